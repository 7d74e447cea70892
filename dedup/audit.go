package dedup

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sort"

	"github.com/cespare/xxhash/v2"

	"github.com/leasemq/leasemq/slab"
)

// Hash is the same for equal states, however they came about: the slots do not matter, the orders that decide what is
// evicted do. It walks everything: for tests and audits.
func (t *Table) Hash() uint64 {
	h := xxhash.New()
	put := func(vs ...uint64) {
		var b [8]byte
		for _, v := range vs {
			binary.LittleEndian.PutUint64(b[:], v)
			_, _ = h.Write(b[:]) // never fails
		}
	}
	put(uint64(t.producers.Len()), uint64(t.chunks.Len()), uint64(t.sequences), uint64(t.live))
	slots := make([]uint32, 0, len(t.byID))
	for _, slot := range t.byID {
		slots = append(slots, slot)
	}
	sort.Slice(slots, func(i, j int) bool { return t.producers.At(slots[i]).id < t.producers.At(slots[j]).id })
	for _, slot := range slots {
		p := t.producers.At(slot)
		put(p.id, p.floor, p.highest, uint64(p.lastMs))
	}
	for slot := t.idle.head; slot != 0; slot = t.producers.At(slot).next {
		put(t.producers.At(slot).id)
	}
	for i := t.queue.head; i != 0; i = t.chunks.At(i).next {
		c := t.chunks.At(i)
		put(t.producers.At(c.producer).id, c.number, uint64(c.newestMs), uint64(c.queuedMs), uint64(c.known))
		for left := c.known; left != 0; left &= left - 1 {
			k := bits.TrailingZeros16(left)
			put(uint64(c.at[k])<<32|uint64(c.epoch[k]), c.offset[k], c.position[k])
		}
	}
	topics := make([]uint32, 0, len(t.byTopic))
	for _, slot := range t.byTopic {
		if t.topics.At(slot).count > 0 {
			topics = append(topics, slot)
		}
	}
	sort.Slice(topics, func(i, j int) bool { return t.topics.At(topics[i]).id < t.topics.At(topics[j]).id })
	for _, slot := range topics {
		k := t.topics.At(slot)
		put(uint64(k.id), uint64(k.count))
		for i := k.list.head; i != 0; i = t.keys.At(i).next {
			e := t.keys.At(i)
			put(e.hash[0], e.hash[1], uint64(e.expiresMs), uint64(e.queue)<<32|uint64(e.epoch), e.offset, e.position)
		}
	}
	return h.Sum64()
}

// Audit recomputes every counter, link and bitmap and returns the first thing that does not hold.
func (t *Table) Audit() error {
	if err := t.auditProducers(); err != nil {
		return err
	}
	return t.auditKeys()
}

func (t *Table) auditProducers() error {
	nodes, chunks, sequences, idle := 0, 0, 0, 0
	for id, slot := range t.byID {
		p := t.producers.At(slot)
		if !t.producers.Used(slot) || p.id != id || id == 0 {
			return fmt.Errorf("producer %d is at slot %d, which holds %d", id, slot, p.id)
		}
		n, known, err := t.auditChunks(slot)
		if err == nil {
			err = t.auditWindow(p)
		}
		if err != nil {
			return fmt.Errorf("producer %d: %w", id, err)
		}
		if n == 0 {
			idle++
		}
		chunks, sequences = chunks+n, sequences+known
		nodes += t.forest.walk(&p.chunks, func(uint64, uint32) {})
	}
	if len(t.byID) != t.producers.Len() || chunks != t.chunks.Len() || sequences != t.sequences || nodes != t.forest.nodes.Len() {
		return fmt.Errorf("%d producers of %d, %d chunks of %d, %d sequences of %d, %d nodes of %d", len(t.byID), t.producers.Len(),
			chunks, t.chunks.Len(), sequences, t.sequences, nodes, t.forest.nodes.Len())
	}
	if t.lastSlot != 0 && t.byID[t.lastID] != t.lastSlot || t.lastSlot == 0 && t.lastID != 0 {
		return fmt.Errorf("producer %d was looked up last, at slot %d", t.lastID, t.lastSlot)
	}
	if err := auditList(t.producers, &t.idle, idle, func(p *producer) bool { return p.chunks.root == 0 }); err != nil {
		return fmt.Errorf("producers without sequences: %w", err)
	}
	if err := auditList(t.chunks, &t.queue, chunks, func(c *chunk) bool { return c.known != 0 }); err != nil {
		return fmt.Errorf("queue of chunks: %w", err)
	}
	if t.queue.head != 0 && t.firstMs != t.chunks.At(t.queue.head).queuedMs || t.queue.head == 0 && t.firstMs != math.MaxInt64 {
		return fmt.Errorf("the queue of chunks begins at %d ms", t.firstMs)
	}
	return nil
}

// auditChunks counts the chunks and the sequences of a producer.
func (t *Table) auditChunks(slot uint32) (chunks, sequences int, err error) {
	p := t.producers.At(slot)
	last := uint64(0)
	t.forest.walk(&p.chunks, func(number uint64, i uint32) {
		c := t.chunks.At(i)
		switch {
		case !t.chunks.Used(i) || c.number != number || c.producer != slot || c.known == 0 || c.number == 0 && c.known&1 != 0:
			err = fmt.Errorf("chunk %d holds number %d of slot %d, bits %#04x", number, c.number, c.producer, c.known)
		case chunks == 0 && p.lowest != number:
			err = fmt.Errorf("the lowest chunk is %d, not %d", number, p.lowest)
		case chunks > 0 && number <= last:
			err = fmt.Errorf("chunk %d behind %d", number, last)
		case c.newestMs > p.lastMs:
			err = fmt.Errorf("chunk %d was changed at %d, the producer at %d", number, c.newestMs, p.lastMs)
		case t.forest.get(&p.chunks, number) != i:
			err = fmt.Errorf("chunk %d is not found", number)
		}
		last = number
		chunks++
		sequences += bits.OnesCount16(c.known)
	})
	if err == nil && p.touched != 0 && (!t.chunks.Used(p.touched) || t.chunks.At(p.touched).producer != slot) {
		err = fmt.Errorf("chunk %d was touched last", p.touched)
	}
	return chunks, sequences, err
}

func (t *Table) auditKeys() error {
	live, listed, dropped := 0, 0, 0
	for slot := t.dropped; slot != 0; slot = t.topics.At(slot).next {
		if k := t.topics.At(slot); !k.dropped || k.count == 0 || dropped > t.topics.Len() {
			return fmt.Errorf("topic %d is dropped: %t, with %d keys", k.id, k.dropped, k.count)
		}
		dropped++
	}
	for slot := range t.topics.End() {
		if !t.topics.Used(slot) {
			continue
		}
		k := t.topics.At(slot)
		if err := auditList(t.keys, &k.list, int(k.count), func(e *key) bool { return e.topic == slot }); err != nil {
			return fmt.Errorf("keys of topic %d: %w", k.id, err)
		}
		for i := k.list.head; i != 0; i = t.keys.At(i).next {
			h := t.keys.At(i).hash
			if tag := t.index.tag(slot, h); t.findKey(slot, h, tag) != i || t.index.link(i).tag != tag {
				return fmt.Errorf("key %016x%016x of topic %d is not found", h[1], h[0], k.id)
			}
		}
		listed += int(k.count)
		if k.dropped {
			continue
		}
		live += int(k.count)
		if t.byTopic[k.id] != slot {
			return fmt.Errorf("topic %d is at slot %d, not %d", k.id, slot, t.byTopic[k.id])
		}
		if k.count > 0 && (int(k.heapPlace) >= len(t.expiry) ||
			t.expiry[k.heapPlace] != oldest{t.keys.At(k.list.head).expiresMs, k.id, slot}) {
			return fmt.Errorf("topic %d is not in the heap at %d", k.id, k.heapPlace)
		}
	}
	inHeap := 0
	for _, slot := range t.byTopic {
		if t.topics.At(slot).count > 0 {
			inHeap++
		}
	}
	if listed != t.keys.Len() || live != t.live || uint32(listed) != t.index.count || inHeap != len(t.expiry) ||
		len(t.byTopic)+dropped != t.topics.Len() {
		return fmt.Errorf("%d keys of %d, %d live of %d, %d indexed, %d topics of %d in the heap, %d and %d dropped of %d",
			listed, t.keys.Len(), live, t.live, t.index.count, len(t.expiry), inHeap, len(t.byTopic), dropped, t.topics.Len())
	}
	for i := range t.expiry {
		if i > 0 && t.expiry[i].before(t.expiry[(i-1)/2]) {
			return fmt.Errorf("topic %d is above one that expires before it", t.expiry[(i-1)/2].topic)
		}
	}
	return t.auditIndex()
}

// auditIndex looks whether each key is in the bucket that its tag says, and the buckets are as many as they should be.
func (t *Table) auditIndex() error {
	x, n := &t.index, uint32(0)
	for b := range x.used {
		for i := *x.at(b); i != 0; i = x.link(i).next {
			if x.bucket(x.link(i).tag) != x.at(b) || !t.keys.Used(i) || n == x.count {
				return fmt.Errorf("bucket %d holds key %d", b, i)
			}
			n++
		}
	}
	if n != x.count || x.half > x.used || x.used >= 2*x.half {
		return fmt.Errorf("%d keys of %d in %d buckets, half of which are %d", n, x.count, x.used, x.half)
	}
	return nil
}

// auditList walks a list that should have n values.
func auditList[T any, P linked[T]](s *slab.Slab[T], l *list, n int, belongs func(*T) bool) error {
	last := uint32(0)
	for i := l.head; i != 0; i = P(s.At(i)).linked().next {
		if n == 0 || !s.Used(i) || P(s.At(i)).linked().prev != last || !belongs(s.At(i)) {
			return fmt.Errorf("value %d behind %d does not belong to the list, or is one too many", i, last)
		}
		last, n = i, n-1
	}
	if n != 0 || last != l.tail {
		return fmt.Errorf("%d values are missing; the last is %d, not %d", n, last, l.tail)
	}
	return nil
}
