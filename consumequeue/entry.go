package consumequeue

import "encoding/binary"

// Part of the on-disk format (docs/format-consumequeue.md); don't change.
const (
	EntryBytes = 32
	FileBytes  = 1 << 20
	// FileEntries is how many entries a file has.
	FileEntries = FileBytes / EntryBytes

	// allocateStep is how much of a file is given disk blocks at a time.
	allocateStep = 64 << 10
)

// A block is the unit that is held in memory. It is not part of the format.
const (
	BlockEntries = 128
	BlockBytes   = BlockEntries * EntryBytes
)

const (
	_ = uint(0 - FileBytes%allocateStep)
	_ = uint(0 - allocateStep%BlockBytes)
	_ = uint(0 - BlockEntries&(BlockEntries-1))
)

// Entry says where a message of a queue lies in the log, and what a delivery must know before it reads it.
type Entry struct {
	Position  uint64 // of the record in the log; the first record lies at 64, so 0 is none
	Size      uint32 // of the record in bytes
	Flags     uint32 // reserved
	TagHash   uint64
	OrderHash uint64
}

// Written tells an entry from a place that nothing was stored to.
func (e *Entry) Written() bool { return e.Position != 0 || e.Size != 0 }

// encodeEntries stores entries to dst, which has EntryBytes for each.
func encodeEntries(dst []byte, entries []Entry) {
	for i := range entries {
		e := &entries[i]
		b := dst[i*EntryBytes:][:EntryBytes]
		binary.LittleEndian.PutUint64(b[0:], e.Position)
		binary.LittleEndian.PutUint32(b[8:], e.Size)
		binary.LittleEndian.PutUint32(b[12:], e.Flags)
		binary.LittleEndian.PutUint64(b[16:], e.TagHash)
		binary.LittleEndian.PutUint64(b[24:], e.OrderHash)
	}
}

// decodeEntries reads as many entries as dst has room for from src.
func decodeEntries(dst []Entry, src []byte) {
	for i := range dst {
		b := src[i*EntryBytes:][:EntryBytes]
		dst[i] = Entry{
			Position:  binary.LittleEndian.Uint64(b[0:]),
			Size:      binary.LittleEndian.Uint32(b[8:]),
			Flags:     binary.LittleEndian.Uint32(b[12:]),
			TagHash:   binary.LittleEndian.Uint64(b[16:]),
			OrderHash: binary.LittleEndian.Uint64(b[24:]),
		}
	}
}
