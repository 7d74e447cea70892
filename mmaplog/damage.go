package mmaplog

import "fmt"

// DamageError says that bytes which a flush had made durable are damaged or gone. The log refuses to
// open: going on would silently take back what was acknowledged. A torn tail is not damage.
type DamageError struct {
	File     string // segment file
	Offset   int64  // of the damage in File
	Position uint64 // the same place as a log position: the log is good up to here
	Promise  uint64 // a record further on, or a snapshot, says that all below this position was durable; 0 if the damage needs no such witness
	Snapshot bool   // it is a snapshot that says so
	What     string
}

func (e *DamageError) Error() string {
	witness := ""
	if e.Promise != 0 {
		who := "later record"
		if e.Snapshot {
			who = "snapshot"
		}
		witness = fmt.Sprintf(" A %s tells that everything below position %d was durable, so this is no torn tail.", who, e.Promise)
	}
	return fmt.Sprintf("mmaplog: the log is damaged in %s at byte %d (position %d): %s.%s"+
		" The broker does not start, because that would take back acknowledged data."+
		" Copy the data directory before anything else and check the disk;"+
		" `leasemq log verify` shows what is damaged, `leasemq log repair` moves what lies behind the damage aside and lets the"+
		" broker start without it, or restore the file from a backup.",
		e.File, e.Offset, e.Position, e.What, witness)
}

// VersionError says that a segment has a format that only a newer leasemq knows. Nothing is damaged.
type VersionError struct {
	File  string
	Found uint32 // format version of the segment
	Known uint32 // the newest one that this leasemq reads
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("mmaplog: %s has format version %d, this leasemq knows versions up to %d: a newer one has written it."+
		" Start the broker with that version or a later one; nothing was changed.", e.File, e.Found, e.Known)
}

// AnchorError says that the log does not have what a From vouches for: the snapshot behind it belongs to
// another log, or to a part of this one that is gone.
type AnchorError struct {
	File     string // segment file; the directory of the log where no segment could hold the position
	Position uint64
	What     string
}

func (e *AnchorError) Error() string {
	return fmt.Sprintf("mmaplog: replay cannot begin at position %d in %s: %s", e.Position, e.File, e.What)
}

// RecordError says that there is no good record where one was asked for.
type RecordError struct {
	File     string
	Offset   int64 // in File
	Position uint64
	What     string
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("mmaplog: no good record in %s at byte %d (position %d): %s", e.File, e.Offset, e.Position, e.What)
}
