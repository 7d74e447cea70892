package consumequeue

import "math/bits"

// table finds the resident block of an offset. It is a fixed array of chains: it never grows, so that no insertion stalls
// (chains get longer if more tails are open than the budgets of blocks foresee).
//
// The section changes it under Index.mu and reads it without; everybody else reads it under Index.mu.
type table struct {
	buckets []*Block
	shift   uint
}

func newTable(blocks int) table {
	n := bits.Len(uint(max(blocks, 1024) - 1))
	return table{buckets: make([]*Block, 1<<n), shift: uint(64 - n)}
}

func (t *table) bucket(q *Queue, first uint64) **Block {
	h := (first/BlockEntries + q.id*0x9E3779B97F4A7C15) * 0xD6E8FEB86659FD93
	return &t.buckets[h>>t.shift]
}

// get is the block of q that begins at first, or nil.
func (t *table) get(q *Queue, first uint64) *Block {
	b := *t.bucket(q, first)
	for b != nil && (b.queue != q || b.First != first) {
		b = b.chain
	}
	return b
}

func (t *table) put(b *Block) {
	p := t.bucket(b.queue, b.First)
	b.chain = *p
	*p = b
}

func (t *table) remove(b *Block) {
	p := t.bucket(b.queue, b.First)
	for *p != b {
		p = &(*p).chain
	}
	*p = b.chain
	b.chain = nil
}
