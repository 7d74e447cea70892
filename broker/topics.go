package broker

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/cespare/xxhash/v2"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
	"github.com/leasemq/leasemq/slab"
)

// topic is one topic: its queues are those of queueOf.
type topic struct {
	id     uint32
	queues uint16
	nName  uint8
	name   [protocol.MaxWireNameBytes]byte
}

// queue is one queue of a topic.
type queue struct {
	topic uint32 // slot
	index uint16
	next  uint64 // offset of the next message
}

// topics is the part of the fold that knows topics and how long their queues are. It is changed by
// TOPIC and MESSAGE records only. The sequencing section owns it.
type topics struct {
	slab   *slab.Slab[topic]
	queues *slab.Slab[queue]
	nextID uint32

	// Derived.
	names   map[string]uint32 // slot
	ids     map[uint32]uint32 // slot
	queueOf [][]uint32        // by slot of the topic: slot of each queue

	violate func(format string, args ...any)
}

func newTopics(violate func(string, ...any)) *topics {
	return &topics{
		slab: slab.New[topic](), queues: slab.New[queue](), nextID: 1,
		names: map[string]uint32{}, ids: map[uint32]uint32{}, violate: violate,
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
		x.id = r.ID
		x.nName = uint8(copy(x.name[:], r.Name))
		t.names[string(r.Name)] = slot
		t.ids[r.ID] = slot
		for int(slot) >= len(t.queueOf) {
			t.queueOf = append(t.queueOf, nil)
		}
		t.queueOf[slot] = t.queueOf[slot][:0]
		t.grow(slot, r.Queues)
	case codec.OpUpdate:
		if !known || r.Queues < t.slab.At(slot).queues {
			t.violate("topic %d grown to %d queues", r.ID, r.Queues)
			return 0, false
		}
		t.grow(slot, r.Queues)
	case codec.OpDelete:
		if !known {
			t.violate("deletion of topic %d", r.ID)
			return 0, false
		}
		for _, q := range t.queueOf[slot] {
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
	return slot, true
}

func (t *topics) hash() uint64 {
	h := xxhash.New()
	var b []byte
	b = binary.LittleEndian.AppendUint32(b, t.nextID)
	for _, slot := range t.sorted() {
		x := t.slab.At(slot)
		b = fmt.Appendf(b, "%d %s %d", x.id, t.name(slot), x.queues)
		for _, q := range t.queueOf[slot] {
			b = binary.LittleEndian.AppendUint64(b, t.queues.At(q).next)
		}
	}
	_, _ = h.Write(b) // never fails
	return h.Sum64()
}
