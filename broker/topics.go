package broker

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/cespare/xxhash/v2"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/protocol"
	"github.com/leasemq/leasemq/slab"
)

// topic is one topic: its queues are those of queueOf.
type topic struct {
	id          uint32
	uniqueKeyMs uint32
	queues      uint16
	nName       uint8
	name        [protocol.MaxWireNameBytes]byte
}

// queue is one queue of a topic.
type queue struct {
	topic uint32 // slot
	index uint16
	begin uint64 // offset of the first message that is still there, but for copies
	next  uint64 // offset of the next message
}

// moved is where the newest copy of a message lies that was copied forward in the log.
type moved struct {
	queue  uint32 // slot
	offset uint64 // in the queue
	entry  consumequeue.Entry
}

// topics is the part of the fold that knows topics, where their queues begin and end, and which of their messages were
// moved. It is changed by TOPIC, MESSAGE, COPY and RETAIN records only. The sequencing section owns it.
type topics struct {
	slab     *slab.Slab[topic]
	queues   *slab.Slab[queue]
	copies   *slab.Slab[moved]
	nextID   uint32
	logStart uint64 // no message that is still there lies below this position

	// Derived.
	names    map[string]uint32   // slot
	ids      map[uint32]uint32   // slot
	queueOf  [][]uint32          // by slot of the topic: slot of each queue
	copyOf   map[movedKey]uint32 // slot
	places   []copyPlace         // of copies, by position; some are not true any more
	messages uint64              // in all queues

	violate func(format string, args ...any)
}

func newTopics(violate func(string, ...any)) *topics {
	return &topics{
		slab: slab.New[topic](), queues: slab.New[queue](), copies: slab.New[moved](), nextID: 1,
		names: map[string]uint32{}, ids: map[uint32]uint32{}, copyOf: map[movedKey]uint32{}, violate: violate,
	}
}

func (t *topics) name(slot uint32) string {
	x := t.slab.At(slot)
	return string(x.name[:x.nName])
}

// sorted lists the slots in use, by name.
func (t *topics) sorted() []uint32 {
	names := make([]string, 0, len(t.names))
	for n := range t.names {
		names = append(names, n)
	}
	sort.Strings(names)
	slots := make([]uint32, len(names))
	for i, n := range names {
		slots[i] = t.names[n]
	}
	return slots
}

// apply applies a TOPIC record and tells the slot it is about.
func (t *topics) apply(r *codec.Topic) (slot uint32, ok bool) {
	slot, known := t.ids[r.ID]
	switch r.Op {
	case codec.OpCreate:
		if _, taken := t.names[string(r.Name)]; taken || r.ID != t.nextID {
			t.violate("topic %d %q made again", r.ID, r.Name)
			return 0, false
		}
		t.nextID++
		slot = t.slab.Alloc()
		x := t.slab.Mut(slot)
		x.id, x.uniqueKeyMs = r.ID, r.UniqueKeyMs
		x.nName = uint8(copy(x.name[:], r.Name))
		t.link(slot)
		t.grow(slot, r.Queues)
	case codec.OpUpdate:
		if !known || r.Queues < t.slab.At(slot).queues {
			t.violate("topic %d grown to %d queues", r.ID, r.Queues)
			return 0, false
		}
		t.slab.Mut(slot).uniqueKeyMs = r.UniqueKeyMs
		t.grow(slot, r.Queues)
	case codec.OpPurge:
		if !known {
			t.violate("purge of topic %d", r.ID)
			return 0, false
		}
		t.forgetCopies(slot)
		for _, q := range t.queueOf[slot] {
			x := t.queues.Mut(q)
			t.messages -= x.next - x.begin
			x.begin = x.next
		}
	case codec.OpDelete:
		if !known {
			t.violate("deletion of topic %d", r.ID)
			return 0, false
		}
		t.forgetCopies(slot)
		for _, q := range t.queueOf[slot] {
			t.messages -= t.queues.At(q).next - t.queues.At(q).begin
			t.queues.Free(q)
		}
		t.queueOf[slot] = t.queueOf[slot][:0]
		delete(t.names, t.name(slot))
		delete(t.ids, r.ID)
		t.slab.Free(slot)
	default:
		t.violate("topic operation %d", r.Op)
		return 0, false
	}
	return slot, true
}

// ends lists the next offset of each queue of a topic.
func (t *topics) ends(slot uint32) []uint64 {
	list := make([]uint64, 0, len(t.queueOf[slot]))
	for _, q := range t.queueOf[slot] {
		list = append(list, t.queues.At(q).next)
	}
	return list
}

// link makes the derived parts of a topic.
func (t *topics) link(slot uint32) {
	t.names[t.name(slot)] = slot
	t.ids[t.slab.At(slot).id] = slot
	for int(slot) >= len(t.queueOf) {
		t.queueOf = append(t.queueOf, nil)
	}
	t.queueOf[slot] = t.queueOf[slot][:0]
}

func (t *topics) grow(slot uint32, queues uint16) {
	for i := t.slab.At(slot).queues; i < queues; i++ {
		q := t.queues.Alloc()
		*t.queues.Mut(q) = queue{topic: slot, index: i}
		t.queueOf[slot] = append(t.queueOf[slot], q)
	}
	t.slab.Mut(slot).queues = queues
}

// message applies a MESSAGE record's place.
func (t *topics) message(p *codec.MessagePlace) (slot uint32, ok bool) {
	slot, known := t.ids[p.Topic]
	if !known {
		return 0, false // the topic was deleted later; its messages mean nothing any more
	}
	if int(p.Queue) >= len(t.queueOf[slot]) {
		t.violate("message for queue %d of topic %d", p.Queue, p.Topic)
		return 0, false
	}
	q := t.queues.Mut(t.queueOf[slot][p.Queue])
	if q.next != p.Offset {
		t.violate("message at offset %d of queue %d of topic %d, which is at %d", p.Offset, p.Queue, p.Topic, q.next)
		return 0, false
	}
	q.next++
	t.messages++
	return slot, true
}

// queueSlot finds a queue by the id of its topic.
func (t *topics) queueSlot(topicID uint32, q uint16) (slot uint32, ok bool) {
	topicSlot, known := t.ids[topicID]
	if !known || int(q) >= len(t.queueOf[topicSlot]) {
		return 0, false
	}
	return t.queueOf[topicSlot][q], true
}

// retain moves the beginning of a queue.
func (t *topics) retain(r *codec.QueueBegin) (queueSlot uint32, ok bool) {
	q, ok := t.queueSlot(r.Topic, r.Queue)
	if !ok {
		return 0, false
	}
	x := t.queues.Mut(q)
	if r.Begin < x.begin || r.Begin > x.next {
		t.violate("queue %d of topic %d, offsets %d to %d, begins at %d", r.Queue, r.Topic, x.begin, x.next, r.Begin)
		return 0, false
	}
	t.messages -= r.Begin - x.begin
	x.begin = r.Begin
	return q, true
}

func (t *topics) hash() uint64 {
	h := xxhash.New()
	var b []byte
	b = binary.LittleEndian.AppendUint32(b, t.nextID)
	b = binary.LittleEndian.AppendUint64(b, t.logStart)
	for _, slot := range t.sorted() {
		x := t.slab.At(slot)
		b = fmt.Appendf(b, "%d %s %d %d", x.id, t.name(slot), x.queues, x.uniqueKeyMs)
		for _, q := range t.queueOf[slot] {
			b = binary.LittleEndian.AppendUint64(b, t.queues.At(q).begin)
			b = binary.LittleEndian.AppendUint64(b, t.queues.At(q).next)
		}
	}
	for _, row := range copyRows(t.slab, t.queues, t.copies) {
		b = row.Append(b)
	}
	_, _ = h.Write(b) // never fails
	return h.Sum64()
}

// audit recomputes what is counted and linked.
func (t *topics) audit() error {
	var messages uint64
	queues := 0
	for name, slot := range t.names {
		x := t.slab.At(slot)
		if t.ids[x.id] != slot || t.name(slot) != name || int(x.queues) != len(t.queueOf[slot]) {
			return fmt.Errorf("topic %q in slot %d: id %d, %d queues", name, slot, x.id, x.queues)
		}
		for i, q := range t.queueOf[slot] {
			y := t.queues.At(q)
			if y.topic != slot || int(y.index) != i || y.begin > y.next {
				return fmt.Errorf("topic %q: queue %d is %d of slot %d, offsets %d to %d", name, i, y.index, y.topic, y.begin, y.next)
			}
			messages += y.next - y.begin
			queues++
		}
	}
	if messages != t.messages || queues != t.queues.Len() || len(t.names) != t.slab.Len() || len(t.ids) != t.slab.Len() || len(t.copyOf) != t.copies.Len() {
		return fmt.Errorf("%d messages, counted %d; %d queues of %d; %d topics, %d named; %d copies, %d known",
			messages, t.messages, queues, t.queues.Len(), t.slab.Len(), len(t.names), t.copies.Len(), len(t.copyOf))
	}
	placed := 0
	for i, p := range t.places {
		if i > 0 && p.position <= t.places[i-1].position {
			return fmt.Errorf("the copy at %d is placed behind the one at %d", p.position, t.places[i-1].position)
		}
		if _, ok := t.copyIn(p); ok {
			placed++
		}
	}
	if placed != t.copies.Len() {
		return fmt.Errorf("%d copies, of %d the place is known", t.copies.Len(), placed)
	}
	for key, i := range t.copyOf {
		x := t.copies.At(i)
		if x.queue != key.queue || x.offset != key.offset || x.offset >= t.queues.At(x.queue).next || x.entry.Position < t.logStart {
			return fmt.Errorf("copy of offset %d at %d, the log starts at %d", x.offset, x.entry.Position, t.logStart)
		}
	}
	return nil
}
