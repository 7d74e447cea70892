package mmaplog

import (
	"fmt"
	"sync/atomic"

	mmap "github.com/edsrzf/mmap-go"
)

// ring is the staging ring: the newest bytes of the log in memory. The section copies records in at its
// head, the writer takes them out at its tail and brings them into segments, readers copy recent ones.
//
// A ring position counts every byte that ever went through, so it lies at memory[position % size]. It is
// not the log position, because the unused end of a segment takes no room here: Log.place translates.
//
// Invariants:
//  1. tail <= head <= reserved < head + margin, and head <= tail + usable, where usable is size less two
//     margins. The section checks the room before it copies; it never waits.
//  2. reserved is published before the first byte of a record is copied in, so a reader that finds, after
//     its copy, that its bytes are still at least margin away from being overwritten got the right ones.
//     The margin is there for machines whose stores may overtake the publication: it is thousands of
//     times what a core can have in flight. reserved moves in steps of margin, because each publication makes
//     the section wait for the stores of the record before.
//  3. Bytes at or above tail are valid for every reader (from 1): what is not in the ring is in a file.
//
// reserve, put, zero: the section. release: the writer. get, window: anybody. fill: one goroutine at a time.
type ring struct {
	region mmap.MMap
	mem    []byte
	size   uint64
	margin uint64

	_        [64]byte // the section stores here, others read
	reserved atomic.Uint64
	limit    uint64   // = reserved, for the section
	_        [64]byte // the writer stores here
	tail     atomic.Uint64
	_        [64]byte
	filled   atomic.Uint64 // memory[:filled] has pages behind it
}

func newRing(bytes int) (*ring, error) {
	region, err := mmap.MapRegion(nil, bytes+ringStepBytes, mmap.RDWR, mmap.ANON, 0)
	if err != nil {
		return nil, fmt.Errorf("mmaplog: no memory for a ring of %d bytes: %w", bytes, err)
	}
	skip := -int(address(region)) & (ringStepBytes - 1) // huge pages need the alignment
	r := &ring{
		region: region,
		mem:    region[skip : skip+bytes : skip+bytes],
		size:   uint64(bytes),
		margin: uint64(min(maxRingMargin, bytes/16)),
	}
	adviseHuge(r.mem)
	return r, nil
}

func (r *ring) unmap() error { return r.region.Unmap() }

// usable is how many bytes can wait for the writer.
func (r *ring) usable() int { return int(r.size - 2*r.margin) }

// reserve announces that everything below ring position end may be overwritten with what belongs there.
func (r *ring) reserve(end uint64) {
	if end > r.limit {
		r.limit = end + r.margin - 1
		r.reserved.Store(r.limit)
	}
}

// put copies b in at ring position at. The caller has reserved the room.
func (r *ring) put(at uint64, b []byte) {
	i := at % r.size
	n := copy(r.mem[i:], b)
	if n < len(b) {
		copy(r.mem, b[n:])
	}
}

// zero clears the fewer than 8 bytes that pad a record at ring position at.
func (r *ring) zero(at uint64, n int) {
	for i := range uint64(n) {
		r.mem[(at+i)%r.size] = 0
	}
}

// get copies [at, at+len(dst)) out. False if that is no longer in the ring: then all of it that lies below
// tail, and at least its first byte, is in a file.
func (r *ring) get(dst []byte, at uint64) bool {
	if !r.holds(at) {
		return false
	}
	i := at % r.size
	n := copy(dst, r.mem[i:])
	if n < len(dst) {
		copy(dst[n:], r.mem)
	}
	return r.holds(at)
}

func (r *ring) holds(at uint64) bool { return r.reserved.Load() <= at+r.size-r.margin }

// piece is the longest contiguous part of [at, at+n): the ring's memory itself. For the writer, between
// tail and head, where nobody writes.
func (r *ring) piece(at, n uint64) []byte {
	i := at % r.size
	return r.mem[i:min(i+n, r.size)]
}

// fill brings memory behind the ring up to ahead bytes in front of position at, a step at a time. After the first
// lap there is nothing left to do.
func (r *ring) fill(at, ahead uint64) {
	for r.wantsFill(at, ahead) {
		from := r.filled.Load()
		step := min(ringStepBytes, r.size-from)
		_ = populate(r.mem[from : from+step]) // no memory left: the store will say so
		r.filled.Store(from + step)
	}
}

func (r *ring) wantsFill(at, ahead uint64) bool {
	filled := r.filled.Load()
	return filled < r.size && filled < at+ahead
}
