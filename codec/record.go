// Package codec is the byte layout of everything that leasemq stores: the record of the CommitLog, the
// message inside it, and the records that carry changes of state. It imports nothing of ours. All
// integers are little endian.
//
// # Record
//
// A record is a 64-byte header, the fields that the broker's sequencing section assigns (a fixed number
// of bytes for each record type), and a payload that was encoded before. Records start at positions
// that are multiples of 8; up to 7 zero bytes follow each. Part of the on-disk format and, since POP and
// PEEK answers carry records as they lie in the log, of the wire format:
//
//	 0  u32  length of the record: header, assigned fields and payload, without the padding behind
//	 4  u32  CRC-32C over payload, assigned fields, header with this field zero, in that order
//	 8  u16  type
//	10  u16  flags (none defined: zero)
//	12  u32  epoch of the broker start that wrote it
//	16  u64  own position in the log
//	24  u64  lease clock, ms
//	32  u64  wall clock, ms since 1970
//	40  u64  synced position when it was appended: the promise that all below it was on disk
//	48  u64  term (replication; zero)
//	56  u64  of a COPY the wall clock of the message's birth, ms since 1970; else zero
//	64       assigned fields, then payload
//
// The order in which the checksum runs lets the payload be summed outside the section. Position and
// epoch lie inside it, so that a stale record in a recycled file, or one that reached the wrong place,
// cannot pass for a good one.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// HeaderBytes is the length of a record header.
const HeaderBytes = 64

// Align is the alignment of record positions.
const Align = 8

// Type says what a record is. The numbers are part of the on-disk format and are never reused.
type Type uint16

const (
	TypeEpoch        Type = 1  // a broker start: the first record of its epoch
	TypeSegmentEnd   Type = 2  // the log goes on in the next segment
	TypeCleanStop    Type = 3  // an orderly stop; only counts as the very last record
	TypeClock        Type = 4  // nothing but its lease clock
	TypeMessage      Type = 16 // a message
	TypeCopy         Type = 17 // a message that was copied forward, so that its segment can go: same identity, same place in its queue
	TypeTopic        Type = 32 // a topic made, grown, emptied or deleted
	TypeGroup        Type = 33 // a group made, changed or deleted
	TypeSubscribe    Type = 34 // a group's first pop of a topic
	TypeRetain       Type = 35 // old messages let go
	TypeGrant        Type = 48 // leases given, offsets passed
	TypeSettle       Type = 49 // acks
	TypeChange       Type = 50 // renewals, releases
	TypeExpire       Type = 51 // leases that ended by time
	TypeUnreadable   Type = 52 // a message whose stored bytes are damaged: its lease ends uncounted
	TypeSessionStart Type = 64
	TypeSessionEnd   Type = 65
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum continues a CRC-32C.
func Checksum(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// Header is the fixed part of a record.
type Header struct {
	Length   uint32
	CRC      uint32
	Type     Type
	Flags    uint16
	Epoch    uint32
	Position uint64
	LeaseMs  int64
	WallMs   int64
	Synced   uint64
	Term     uint64
	BornMs   int64 // of a COPY: WallMs of the message that it is a copy of; else zero
}

// Born is the wall clock, in ms since 1970, at which the message in a MESSAGE or COPY record was stored first. Of a copy that does not
// say so, as they were made once, it is when the copy was stored.
func (h *Header) Born() int64 {
	if h.Type == TypeCopy && h.BornMs != 0 {
		return h.BornMs
	}
	return h.WallMs
}

// Put writes h into b[:HeaderBytes].
func (h *Header) Put(b []byte) {
	_ = b[HeaderBytes-1]
	binary.LittleEndian.PutUint32(b[0:], h.Length)
	binary.LittleEndian.PutUint32(b[4:], h.CRC)
	binary.LittleEndian.PutUint16(b[8:], uint16(h.Type))
	binary.LittleEndian.PutUint16(b[10:], h.Flags)
	binary.LittleEndian.PutUint32(b[12:], h.Epoch)
	binary.LittleEndian.PutUint64(b[16:], h.Position)
	binary.LittleEndian.PutUint64(b[24:], uint64(h.LeaseMs))
	binary.LittleEndian.PutUint64(b[32:], uint64(h.WallMs))
	binary.LittleEndian.PutUint64(b[40:], h.Synced)
	binary.LittleEndian.PutUint64(b[48:], h.Term)
	binary.LittleEndian.PutUint64(b[56:], uint64(h.BornMs))
}

// ParseHeader reads a header without checking it.
func ParseHeader(b []byte) (h Header) {
	_ = b[HeaderBytes-1]
	h.Length = binary.LittleEndian.Uint32(b[0:])
	h.CRC = binary.LittleEndian.Uint32(b[4:])
	h.Type = Type(binary.LittleEndian.Uint16(b[8:]))
	h.Flags = binary.LittleEndian.Uint16(b[10:])
	h.Epoch = binary.LittleEndian.Uint32(b[12:])
	h.Position = binary.LittleEndian.Uint64(b[16:])
	h.LeaseMs = int64(binary.LittleEndian.Uint64(b[24:]))
	h.WallMs = int64(binary.LittleEndian.Uint64(b[32:]))
	h.Synced = binary.LittleEndian.Uint64(b[40:])
	h.Term = binary.LittleEndian.Uint64(b[48:])
	h.BornMs = int64(binary.LittleEndian.Uint64(b[56:]))
	return h
}

// Padded is n rounded up to the alignment of records.
func Padded(n int) int { return (n + Align - 1) &^ (Align - 1) }

// noCRC is what a checksum is computed over in its own place.
var noCRC [4]byte

// ErrNoRecord says that bytes are not a whole, valid record.
var ErrNoRecord = errors.New("codec: not a record")

// AssignedBytes is the length of the assigned fields of a record type.
func (t Type) AssignedBytes() int {
	switch t {
	case TypeMessage, TypeCopy:
		return MessageAssignedBytes
	default:
		return 0
	}
}

// Seal writes the header h in front of the assigned fields and the payload that b already holds,
// computing length and checksum. payloadCRC is Checksum(0, payload). b is the whole record.
func Seal(b []byte, h *Header, assigned int, payloadCRC uint32) {
	h.Length = uint32(len(b))
	h.CRC = 0
	h.Put(b)
	crc := Checksum(payloadCRC, b[HeaderBytes:HeaderBytes+assigned])
	h.CRC = Checksum(crc, b[:HeaderBytes])
	binary.LittleEndian.PutUint32(b[4:], h.CRC)
}

// ReadRecord checks the record at the start of b and returns its header, assigned fields and payload,
// which point into b. The error wraps ErrNoRecord and says what is wrong.
func ReadRecord(b []byte) (h Header, assigned, payload []byte, err error) {
	if len(b) < HeaderBytes {
		return h, nil, nil, fmt.Errorf("%w: %d bytes are no header", ErrNoRecord, len(b))
	}
	h = ParseHeader(b)
	n := h.Type.AssignedBytes()
	if int64(h.Length) < int64(HeaderBytes+n) || int64(h.Length) > int64(len(b)) {
		return h, nil, nil, fmt.Errorf("%w: length %d of %d bytes", ErrNoRecord, h.Length, len(b))
	}
	assigned = b[HeaderBytes : HeaderBytes+n]
	payload = b[HeaderBytes+n : h.Length]
	crc := Checksum(Checksum(Checksum(0, payload), assigned), b[:4])
	crc = Checksum(Checksum(crc, noCRC[:]), b[8:HeaderBytes])
	if crc != h.CRC {
		return h, nil, nil, fmt.Errorf("%w: checksum %08x, stored %08x", ErrNoRecord, crc, h.CRC)
	}
	return h, assigned, payload, nil
}
