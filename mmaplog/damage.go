package mmaplog

import "fmt"

// DamageError says that bytes which a flush had made durable are damaged or gone. The log refuses to
// open: going on would silently take back what was acknowledged. A torn tail is not damage.
type DamageError struct {
	File     string // segment file
	Offset   int64  // of the damage in File
	Position uint64 // the same place as a log position: the log is good up to here
	Promise  uint64 // a record further on says that all below this position was durable; 0 if the damage needs no such witness
	What     string
}

func (e *DamageError) Error() string {
	witness := ""
	if e.Promise != 0 {
		witness = fmt.Sprintf(" A later record tells that everything below position %d was durable, so this is no torn tail.", e.Promise)
	}
	return fmt.Sprintf("mmaplog: the log is damaged in %s at byte %d (position %d): %s.%s"+
		" The broker does not start, because that would take back acknowledged data."+
		" Copy the data directory before anything else and check the disk; then restore the file from a backup.",
		e.File, e.Offset, e.Position, e.What, witness)
}
