package inspect

import (
	"encoding/binary"
	"sort"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
)

// places are where the messages of a queue lie, by offset: for each the position of its record, and a checksum of what else its
// index entry must say. 12 bytes a message.
type places struct {
	pieces []piece // by first
}

// piece is consecutive offsets within one index file.
type piece struct {
	first     uint64
	positions []uint64
	sums      []uint32
}

func (p *piece) end() uint64 { return p.first + uint64(len(p.positions)) }

// add notes a message at an offset above all others.
func (p *places) add(offset, position uint64, sum uint32) {
	last := len(p.pieces) - 1
	if last < 0 || p.pieces[last].end() != offset || offset%consumequeue.FileEntries == 0 {
		p.pieces = append(p.pieces, piece{first: offset})
		last++
	}
	x := &p.pieces[last]
	x.positions, x.sums = append(x.positions, position), append(x.sums, sum)
}

// at finds a message.
func (p *places) at(offset uint64) (position uint64, sum uint32, ok bool) {
	i := sort.Search(len(p.pieces), func(i int) bool { return p.pieces[i].end() > offset })
	if i == len(p.pieces) || p.pieces[i].first > offset {
		return 0, 0, false
	}
	x := &p.pieces[i]
	return x.positions[offset-x.first], x.sums[offset-x.first], true
}

// dropBefore forgets messages below an offset, as far as whole pieces go.
func (p *places) dropBefore(offset uint64) {
	n := 0
	for n < len(p.pieces) && p.pieces[n].end() <= offset {
		n++
	}
	p.pieces = append([]piece(nil), p.pieces[n:]...)
}

// An index entry is {u64 position, u32 size, u32 flags, u64 tag hash, u64 order hash} (docs/format-consumequeue.md).
const entryRest = 8

// entrySum is the checksum of an index entry behind its position.
func entrySum(entry []byte) uint32 {
	return codec.Checksum(0, entry[entryRest:consumequeue.EntryBytes])
}

// expectedEntry is the index entry that a message record must have.
func expectedEntry(h *codec.Header, p *codec.MessagePlace, v *codec.View) (b [consumequeue.EntryBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], h.Position)
	binary.LittleEndian.PutUint32(b[8:], h.Length)
	binary.LittleEndian.PutUint64(b[16:], p.TagHash)
	binary.LittleEndian.PutUint64(b[24:], codec.TagHash(v.OrderKey))
	return b
}
