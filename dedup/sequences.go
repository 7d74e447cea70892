package dedup

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/leasemq/leasemq/codec"
)

// producer is what is known of one sender.
type producer struct {
	id      uint64
	floor   uint64 // it and all below are too old
	highest uint64 // ever stored
	lastMs  int64  // newest stamp
	chunks  tree
	links          // the idle list, when it has no chunks
	lowest  uint64 // number of its lowest chunk, when it has any; derived
	touched uint32 // the chunk that was touched last, or zero; derived
	number  uint64 // of that chunk; derived
}

const (
	chunkBits = 4
	perChunk  = 1 << chunkBits
)

// chunk is 16 neighbouring sequences of a producer, those that have number << 4 in common. Chunks without sequences
// do not exist.
type chunk struct {
	number   uint64
	newestMs int64 // stamp of the newest message
	queuedMs int64 // when it was put at the end of the queue
	producer uint32
	links           // the queue
	known    uint16 // a bit for each sequence that was stored
	at       [perChunk]uint16
	epoch    [perChunk]uint32
	offset   [perChunk]uint64
	position [perChunk]uint64
}

// What the memory of a full table is made of.
var (
	_ [392]byte = [unsafe.Sizeof(chunk{})]byte{}
	_ [80]byte  = [unsafe.Sizeof(producer{})]byte{}
)

func (c *chunk) has(sequence uint64) bool { return c.known>>(sequence%perChunk)&1 != 0 }

func (c *chunk) place(sequence uint64) Place {
	k := sequence % perChunk
	return Place{Queue: c.at[k], Offset: c.offset[k], ID: codec.NewMessageID(c.epoch[k], c.position[k])}
}

// top is the highest sequence of the chunk.
func (c *chunk) top() uint64 { return c.number<<chunkBits + uint64(bits.Len16(c.known)) - 1 }

// slotOf is the slot of a producer, or zero.
func (t *Table) slotOf(id uint64) uint32 {
	if id == t.lastID {
		return t.lastSlot
	}
	slot, ok := t.byID[id]
	if ok {
		t.lastID, t.lastSlot = id, slot
	}
	return slot
}

// crowded tells whether there is no room for another producer, and none that can be forgotten.
func (t *Table) crowded() bool { return t.producers.Len() >= t.limits.Producers && t.idle.head == 0 }

// CheckSequence tells whether a message was stored, and where. There is no producer 0 and no sequence 0: both are
// TooOld.
func (t *Table) CheckSequence(producer, sequence uint64) (Verdict, Place) {
	slot := t.slotOf(producer)
	if slot == 0 {
		switch {
		case producer == 0 || sequence == 0:
			return TooOld, Place{}
		case t.crowded():
			return Full, Place{}
		}
		return Fresh, Place{}
	}
	p := t.producers.At(slot)
	if sequence <= p.floor {
		return TooOld, Place{}
	}
	if sequence > p.highest {
		return Fresh, Place{}
	}
	if i := t.forest.get(&p.chunks, sequence>>chunkBits); i != 0 {
		if c := t.chunks.At(i); c.has(sequence) {
			return Duplicate, c.place(sequence)
		}
	}
	return Fresh, Place{}
}

// ApplySequence applies the record of a message that CheckSequence finds Fresh.
func (t *Table) ApplySequence(producer, sequence uint64, at Place, wallMs int64) {
	slot := t.slotOf(producer)
	if slot == 0 {
		switch {
		case producer == 0 || sequence == 0:
			t.violate("sequence %d of producer %d", sequence, producer)
			return
		case t.crowded():
			t.violate("producer %d beside %d others", producer, t.producers.Len())
			return
		}
		slot = t.admit(producer, wallMs)
	}
	p := t.producers.Mut(slot)
	if sequence <= p.floor {
		t.violate("sequence %d of producer %d, whose floor is %d", sequence, producer, p.floor)
		return
	}
	i, number := p.touched, sequence>>chunkBits
	if i == 0 || p.number != number {
		if i = t.forest.get(&p.chunks, number); i == 0 {
			i = t.addChunk(slot, number, wallMs)
		}
	}
	c := t.chunks.Mut(i)
	if c.has(sequence) {
		t.violate("sequence %d of producer %d, which is known", sequence, producer)
		return
	}
	k := sequence % perChunk
	c.at[k], c.offset[k] = at.Queue, at.Offset
	c.epoch[k], c.position[k] = at.ID.Birth()
	c.known |= 1 << k
	c.newestMs = max(c.newestMs, wallMs)
	if c.known == 1<<perChunk-1 {
		t.requeue(i, wallMs)
	}
	t.sequences++
	p.touched, p.number = i, number
	p.lastMs = max(p.lastMs, wallMs)
	if sequence > p.highest {
		p.highest = sequence
		if sequence > window {
			p.floor = max(p.floor, sequence-window)
		}
	}
	for n := 0; p.lowest<<chunkBits|(perChunk-1) <= p.floor && n < evictPerRecord && p.chunks.root != 0; n++ {
		t.dropLowest(slot)
	}
	if t.chunkDue(wallMs) {
		t.evictChunks(wallMs)
	}
	if t.idle.head != 0 {
		t.evictProducers(wallMs)
	}
}

// admit makes a producer without sequences, if need be in the place of one.
func (t *Table) admit(id uint64, wallMs int64) uint32 {
	for range evictPerRecord {
		if t.producers.Len() < t.limits.Producers || t.idle.head == 0 {
			break
		}
		t.forget(t.idle.head)
	}
	slot := t.producers.Alloc()
	p := t.producers.Mut(slot)
	p.id, p.lastMs = id, wallMs
	pushBack(t.producers, &t.idle, slot)
	t.byID[id] = slot
	t.lastID, t.lastSlot = id, slot
	return slot
}

// forget forgets a producer without sequences.
func (t *Table) forget(slot uint32) {
	unlink(t.producers, &t.idle, slot)
	delete(t.byID, t.producers.At(slot).id)
	t.producers.Free(slot)
	t.lastID, t.lastSlot = 0, 0
}

// addChunk makes an empty chunk, which must not stay so.
func (t *Table) addChunk(slot uint32, number uint64, wallMs int64) uint32 {
	i := t.chunks.Alloc()
	c := t.chunks.Mut(i)
	c.number, c.producer, c.newestMs, c.queuedMs = number, slot, wallMs, wallMs
	pushBack(t.chunks, &t.queue, i)
	t.queueMoved()
	p := t.producers.Mut(slot)
	if p.chunks.root == 0 {
		unlink(t.producers, &t.idle, slot)
		p.lowest = number
	}
	p.lowest = min(p.lowest, number)
	t.forest.set(&p.chunks, number, i)
	return i
}

// requeue puts a chunk at the end of the queue.
func (t *Table) requeue(i uint32, wallMs int64) {
	t.chunks.Mut(i).queuedMs = wallMs
	if t.queue.tail != i {
		unlink(t.chunks, &t.queue, i)
		pushBack(t.chunks, &t.queue, i)
	}
	t.queueMoved()
}

// dropLowest frees the lowest chunk of a producer; the floor rises to what was known there.
func (t *Table) dropLowest(slot uint32) {
	p := t.producers.Mut(slot)
	i, next := t.forest.removeLowest(&p.chunks)
	c := t.chunks.At(i)
	p.floor = max(p.floor, c.top())
	t.sequences -= bits.OnesCount16(c.known)
	p.lowest = next
	unlink(t.chunks, &t.queue, i)
	t.queueMoved()
	t.chunks.Free(i)
	if p.touched == i {
		p.touched = 0
	}
	if p.chunks.root == 0 {
		pushBack(t.producers, &t.idle, slot)
	}
}

// tooMany tells whether something must go however young it is.
func (t *Table) tooMany() bool {
	return t.sequences > t.limits.Sequences || t.chunks.Len() > t.maxChunks
}

// chunkDue tells whether the first chunk of the queue must be looked at, if there is one.
func (t *Table) chunkDue(wallMs int64) bool {
	return t.firstMs <= wallMs-keepMs || t.tooMany()
}

// queueMoved notes when the first chunk of the queue, which may be another one now, was put there.
func (t *Table) queueMoved() {
	t.firstMs = math.MaxInt64
	if t.queue.head != 0 {
		t.firstMs = t.chunks.At(t.queue.head).queuedMs
	}
}

// evictChunks lets go of chunks that are too old or too many. The lowest chunk of a producer goes first, because the
// floor rises with it: a younger one below would be lost together with an older one above.
func (t *Table) evictChunks(wallMs int64) {
	for range evictPerRecord {
		i := t.queue.head
		if i == 0 || !t.chunkDue(wallMs) {
			return
		}
		c := t.chunks.At(i)
		p := t.producers.At(c.producer)
		lowest := t.chunks.At(t.forest.lowest(&p.chunks))
		if t.tooMany() || wallMs-lowest.newestMs >= keepMs || lowest.top() <= p.floor {
			t.dropLowest(c.producer)
		} else {
			t.requeue(i, wallMs)
		}
	}
}

// evictProducers forgets producers that were idle for too long, or are too many: the limit may have been higher.
func (t *Table) evictProducers(wallMs int64) {
	for range evictPerRecord {
		slot := t.idle.head
		if slot == 0 || wallMs-t.producers.At(slot).lastMs < idleMs && t.producers.Len() <= t.limits.Producers {
			return
		}
		t.forget(slot)
	}
}
