package broker

import (
	"cmp"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
)

// Which messages were copied forward, and where their newest copies lie.

// movedKey names a message that was copied forward.
type movedKey struct {
	queue  uint32 // slot
	offset uint64
}

// copyPlace is where a copy lies. It is true as long as the copy in that slot lies there: the message may have been copied again since, or
// forgotten.
type copyPlace struct {
	position uint64
	slot     uint32
}

// copied applies the place of a COPY record that lies at position.
func (t *topics) copied(p *codec.MessagePlace, entry consumequeue.Entry) {
	q, ok := t.queueSlot(p.Topic, p.Queue)
	if !ok {
		return // the topic was deleted later
	}
	if p.Offset >= t.queues.At(q).next {
		t.violate("copy of offset %d of queue %d of topic %d, which is at %d", p.Offset, p.Queue, p.Topic, t.queues.At(q).next)
		return
	}
	key := movedKey{q, p.Offset}
	i, known := t.copyOf[key]
	if !known {
		i = t.copies.Alloc()
		t.copyOf[key] = i
	}
	*t.copies.Mut(i) = moved{queue: q, offset: p.Offset, entry: entry}
	t.places = append(t.places, copyPlace{entry.Position, i})
}

// sortPlaces is called when copies were loaded from a snapshot, in another order.
func (t *topics) sortPlaces() {
	slices.SortFunc(t.places, func(a, b copyPlace) int { return cmp.Compare(a.position, b.position) })
}

// copyAt is where the copy of a message lies.
func (t *topics) copyAt(queueSlot uint32, offset uint64) (consumequeue.Entry, bool) {
	i, ok := t.copyOf[movedKey{queueSlot, offset}]
	if !ok {
		return consumequeue.Entry{}, false
	}
	return t.copies.At(i).entry, true
}

// copiesBelow gives the messages whose newest copies lie below a position, by position, until do returns false.
func (t *topics) copiesBelow(position uint64, do func(m *liveMessage) bool) {
	for _, p := range t.places {
		if p.position >= position {
			return
		}
		if m, ok := t.copyIn(p); ok && !do(&m) {
			return
		}
	}
}

// copyIn is the message whose newest copy lies at a place; ok is false when there is none any more.
func (t *topics) copyIn(p copyPlace) (m liveMessage, ok bool) {
	if !t.copies.Used(p.slot) || t.copies.At(p.slot).entry.Position != p.position {
		return m, false
	}
	x := t.copies.At(p.slot)
	q := t.queues.At(x.queue)
	return liveMessage{liveName{t.slab.At(q.topic).id, q.index, x.offset}, x.entry, true}, true
}

func (t *topics) forgetCopy(i uint32) {
	x := t.copies.At(i)
	delete(t.copyOf, movedKey{x.queue, x.offset})
	t.copies.Free(i)
}

// forgetCopies forgets the copies of a topic's messages.
func (t *topics) forgetCopies(topicSlot uint32) {
	for i := uint32(1); i < t.copies.End(); i++ {
		if t.copies.Used(i) && t.queues.At(t.copies.At(i).queue).topic == topicSlot {
			t.forgetCopy(i)
		}
	}
}

// startAt notes that nothing below a position is needed, and gives gone the messages whose newest copy lies there: by position, because
// what follows from it is part of the state. It costs no more than what lies there.
func (t *topics) startAt(position uint64, gone func(topicID uint32, q uint16, offset uint64)) {
	if position <= t.logStart {
		return
	}
	t.logStart = position
	n := 0
	for ; n < len(t.places) && t.places[n].position < position; n++ {
		if m, ok := t.copyIn(t.places[n]); ok {
			t.forgetCopy(t.places[n].slot)
			gone(m.topic, m.queue, m.offset)
		}
	}
	t.places = t.places[n:]
}
