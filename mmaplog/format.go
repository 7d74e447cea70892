package mmaplog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/leasemq/leasemq/codec"
)

// The layout of the log directory and of a segment file; docs/FORMAT.md says the same in prose. Part of
// the on-disk format.
//
//	<Dir>/LOCK                       locked while a broker runs; holds its pid
//	<Dir>/io                         what the probe of the first start found (JSON)
//	<Dir>/log/<base>.log             a segment; base is its first position, 20 digits
//	<Dir>/log/<base>.log.tmp         a segment being made; removed at the next start
//	<Dir>/log/<base>.log.aside-<n>   a segment that recovery or Repair moved out of the log; never read, never deleted
//
// A segment file has exactly SegmentBytes bytes, and begins with
//
//	 0  8 bytes  "leasemqL"
//	 8  u32      format version
//	12  u32      CRC-32C over bytes 0..63 with this field zero
//	16  u64      segment bytes
//	24  u64      base position: the position of the file's byte 0
//	32  32 bytes zero
//
// then records (codec.Header) follow. A position p lies in segment p / SegmentBytes at offset
// p % SegmentBytes.
const (
	segmentMagic       = "leasemqL"
	formatVersion      = 1
	segmentHeaderBytes = 64

	// endBytes is kept free at the end of each segment for its closing record.
	endBytes = codec.HeaderBytes

	minSegmentBytes = 64 << 10
	maxSegmentBytes = 4 << 30

	// maxBase is where a log may end: sums of positions and sizes stay far from overflow.
	maxBase = 1 << 62

	// MaxRecordBytes bounds a record, so that a length read from a damaged disk cannot ask for more
	// memory than this. A segment may bound it further: Log.MaxRecord.
	MaxRecordBytes = 16 << 20

	lockName   = "LOCK"
	ioName     = "io"
	logDirName = "log"
	suffix     = ".log"
	tmpSuffix  = ".tmp"
	asideMark  = ".aside-"
	baseDigits = 20
)

func segmentName(base uint64) string { return fmt.Sprintf("%0*d%s", baseDigits, base, suffix) }

// parseSegmentName returns the base position of a segment's file name.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != baseDigits {
		return 0, false
	}
	base, err := strconv.ParseUint(digits, 10, 64)
	return base, err == nil
}

func putSegmentHeader(b []byte, segmentBytes int64, base uint64) {
	clear(b[:segmentHeaderBytes])
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint64(b[16:], uint64(segmentBytes))
	binary.LittleEndian.PutUint64(b[24:], base)
	binary.LittleEndian.PutUint32(b[12:], codec.Checksum(0, b[:segmentHeaderBytes]))
}

// parseSegmentHeader checks a segment's header and returns the two numbers in it. The error is a
// *VersionError, without a file, for a version above ours.
func parseSegmentHeader(b []byte) (segmentBytes int64, base uint64, err error) {
	if string(b[:len(segmentMagic)]) != segmentMagic {
		return 0, 0, errors.New("the file does not begin like a leasemq segment")
	}
	var head [segmentHeaderBytes]byte
	copy(head[:], b)
	clear(head[12:16])
	if sum := codec.Checksum(0, head[:]); sum != binary.LittleEndian.Uint32(b[12:]) {
		return 0, 0, errors.New("the checksum of the segment header is wrong")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > formatVersion {
		return 0, 0, &VersionError{Found: v, Known: formatVersion}
	} else if v != formatVersion {
		return 0, 0, fmt.Errorf("the segment header says format version %d, which there never was", v)
	}
	size := binary.LittleEndian.Uint64(b[16:])
	if !validSegmentBytes(int64(size)) {
		return 0, 0, fmt.Errorf("the segment header says %d bytes a segment", size)
	}
	return int64(size), binary.LittleEndian.Uint64(b[24:]), nil
}

func validSegmentBytes(n int64) bool {
	return n >= minSegmentBytes && n <= maxSegmentBytes && n%(64<<10) == 0
}

// geometry is the arithmetic of positions for one segment size.
type geometry struct{ segmentBytes uint64 }

func (g geometry) segment(pos uint64) uint64 { return pos / g.segmentBytes }
func (g geometry) offset(pos uint64) int64   { return int64(pos % g.segmentBytes) }
func (g geometry) base(segment uint64) uint64 {
	return segment * g.segmentBytes
}

// first is the position of a segment's first record.
func (g geometry) first(segment uint64) uint64 {
	return segment*g.segmentBytes + segmentHeaderBytes
}

// maxRecord is the longest record that a segment can hold.
func (g geometry) maxRecord() int {
	return int(min(MaxRecordBytes, g.segmentBytes-segmentHeaderBytes-endBytes))
}

// fits says whether a record of n bytes at pos leaves the closing record its place.
func (g geometry) fits(pos uint64, n int) bool {
	return uint64(g.offset(pos))+uint64(codec.Padded(n))+endBytes <= g.segmentBytes
}
