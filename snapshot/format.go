// Package snapshot is the file in which the broker keeps its state as of one position of the log, so that a restart replays
// only what lies behind it and old segments of the log can go. It knows files, blocks and checksums; what the
// rows in them mean is in codec (rows.go) and in the rooms that write and load them.
//
// A snapshot is never changed. It is written under a temporary name, flushed, renamed, and the directory flushed; it is
// published only when the log is durable up to its position. A bad one is passed over for the one before.
//
// # File
//
//	<dir>/<position, 20 digits>.snap            a snapshot
//	<dir>/<position>.snap.tmp                   one being written; removed at the next start
//	<dir>/<position>.snap.aside-<n>             one that does not belong to this log; never read, never deleted
//
// All integers are little endian, CRC is CRC-32C. The file begins with 64 bytes:
//
//	 0  8 bytes  "leasemqS"
//	 8  u32      format version
//	12  u32      CRC over these 64 bytes with this field zero
//	16  u64      position: the state is that of all records below it
//	24  u64      position of the last of them
//	32  u32      CRC of the last of them
//	36  u32      epoch of the last of them
//	40  u64      its lease clock, ms
//	48  u64      its wall clock, ms
//	56  8 bytes  zero
//
// Blocks follow:
//
//	 0  u32  length of the rows
//	 4  u32  CRC over the block with this field zero
//	 8  u32  number of rows
//	12  u16  kind of all its rows; 0 ends the file
//	14  u16  zero
//	16       rows: u16 length, then as many bytes
//
// The last block has kind 0 and one row of 16 bytes: u64 rows and u64 blocks before it. Nothing follows it.
package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
)

const (
	magic         = "leasemqS"
	formatVersion = 1
	headBytes     = 64
	blockHead     = 16
	endRowBytes   = 16

	// blockBytes is about how long a block gets; maxBlock is what a reader believes.
	blockBytes = 256 << 10
	maxBlock   = 1 << 20
)

// Head is what a snapshot is of.
type Head struct {
	Position     uint64 // the state is that of all records below it
	LastPosition uint64 // of the last of them
	LastCRC      uint32 // and its checksum: the snapshot belongs to the log that has this record there
	Epoch        uint32 // its epoch and clocks
	LeaseMs      int64
	WallMs       int64
}

func (h *Head) put(b []byte) {
	clear(b[:headBytes])
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint64(b[16:], h.Position)
	binary.LittleEndian.PutUint64(b[24:], h.LastPosition)
	binary.LittleEndian.PutUint32(b[32:], h.LastCRC)
	binary.LittleEndian.PutUint32(b[36:], h.Epoch)
	binary.LittleEndian.PutUint64(b[40:], uint64(h.LeaseMs))
	binary.LittleEndian.PutUint64(b[48:], uint64(h.WallMs))
	binary.LittleEndian.PutUint32(b[12:], codec.Checksum(0, b[:headBytes]))
}

func (h *Head) parse(b []byte) error {
	if string(b[:len(magic)]) != magic {
		return errors.New("it does not begin like a snapshot")
	}
	var own [headBytes]byte
	copy(own[:], b)
	clear(own[12:16])
	if codec.Checksum(0, own[:]) != binary.LittleEndian.Uint32(b[12:]) {
		return errors.New("the checksum of its head is wrong")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != formatVersion {
		return &VersionError{Found: v, Known: formatVersion}
	}
	*h = Head{
		Position: binary.LittleEndian.Uint64(b[16:]), LastPosition: binary.LittleEndian.Uint64(b[24:]),
		LastCRC: binary.LittleEndian.Uint32(b[32:]), Epoch: binary.LittleEndian.Uint32(b[36:]),
		LeaseMs: int64(binary.LittleEndian.Uint64(b[40:])), WallMs: int64(binary.LittleEndian.Uint64(b[48:])),
	}
	return nil
}

// DamagedError says that a file is no good snapshot. Another one may be.
type DamagedError struct {
	Path   string
	Offset int64
	What   string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("snapshot: %s is damaged at byte %d: %s", e.Path, e.Offset, e.What)
}

// RowError says that who read a snapshot refused one of its rows, though every checksum was right.
type RowError struct {
	Path   string
	Offset int64 // of its block
	Err    error
}

func (e *RowError) Error() string {
	return fmt.Sprintf("snapshot: %s, block at byte %d: %v", e.Path, e.Offset, e.Err)
}

func (e *RowError) Unwrap() error { return e.Err }

// VersionError says that a snapshot was written in a format that this program does not know.
type VersionError struct {
	Path         string
	Found, Known uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("snapshot: %s has format version %d, this broker knows %d: it was written by a newer one", e.Path, e.Found, e.Known)
}
