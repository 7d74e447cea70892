package dedup

import (
	"math"
	"unsafe"

	"github.com/dchest/siphash"

	"github.com/leasemq/leasemq/codec"
)

// KeyHash stands for a unique key.
type KeyHash [2]uint64

// Hash is the siphash-128 of a unique key under a key of zeroes: no secret, because it is stored and must be the same
// for ever.
func Hash(uniqueKey []byte) KeyHash {
	low, high := siphash.Hash128(0, 0, uniqueKey)
	return KeyHash{low, high}
}

// topicKeys is the keys of one topic. It stays when the last key has gone: more are likely to come.
type topicKeys struct {
	id        uint32
	list      list // keys, oldest first
	count     uint32
	heapPlace uint32 // while it has keys and was not dropped; derived
	dropped   bool
	next      uint32 // the next topic that was dropped
}

// key is one unique key.
type key struct {
	hash      KeyHash
	offset    uint64
	position  uint64
	expiresMs int64  // first stamp at which it is free again
	topic     uint32 // slot
	epoch     uint32
	links     // the list of its topic
	queue     uint16
}

// What the memory of a full table is made of.
var _ [64]byte = [unsafe.Sizeof(key{})]byte{}

func (k *key) place() Place {
	return Place{Queue: k.queue, Offset: k.offset, ID: codec.NewMessageID(k.epoch, k.position)}
}

// topicOf is the slot of a topic, or zero.
func (t *Table) topicOf(id uint32) uint32 {
	if t.topicSlot != 0 && id == t.lastTopic {
		return t.topicSlot
	}
	slot, ok := t.byTopic[id]
	if ok {
		t.lastTopic, t.topicSlot = id, slot
	}
	return slot
}

// findKey is a key of the topic in slot, or zero.
func (t *Table) findKey(slot uint32, h KeyHash, tag uint32) uint32 {
	for i := *t.index.bucket(tag); i != 0; {
		l := t.index.link(i)
		if l.tag == tag {
			if k := t.keys.At(i); k.hash == h && k.topic == slot {
				return i
			}
		}
		i = l.next
	}
	return 0
}

// noKeyRoom tells whether there is no room for another key, and none that has expired.
func (t *Table) noKeyRoom(wallMs int64) bool {
	return t.live >= t.limits.Keys && (len(t.expiry) == 0 || t.expiry[0].expiresMs > wallMs)
}

// CheckKey tells whether a message of the topic with this unique key was stored within its window, and where.
func (t *Table) CheckKey(topic uint32, h KeyHash, wallMs int64) (Verdict, Place) {
	if slot := t.topicOf(topic); slot != 0 {
		if i := t.findKey(slot, h, t.index.tag(slot, h)); i != 0 {
			k := t.keys.At(i)
			if wallMs < k.expiresMs {
				return Duplicate, k.place()
			}
			return Fresh, Place{} // in the room of the expired one
		}
	}
	if t.noKeyRoom(wallMs) {
		return Full, Place{}
	}
	return Fresh, Place{}
}

// ApplyKey applies the record of a message that CheckKey finds Fresh. The key expires windowMs after the record; a
// window that is not above zero remembers nothing.
func (t *Table) ApplyKey(topic uint32, h KeyHash, at Place, windowMs int64, wallMs int64) {
	if windowMs <= 0 {
		return
	}
	slot := t.topicOf(topic)
	i, tag := uint32(0), uint32(0)
	if slot != 0 {
		tag = t.index.tag(slot, h)
		i = t.findKey(slot, h, tag)
	}
	switch {
	case i != 0 && wallMs < t.keys.At(i).expiresMs:
		t.violate("key %016x%016x of topic %d, which is known", h[1], h[0], topic)
		return
	case i != 0:
		t.removeKey(i)
	case t.noKeyRoom(wallMs):
		t.violate("key %016x%016x of topic %d beside %d others", h[1], h[0], topic, t.live)
		return
	}
	t.sweep()
	t.evictKeys(wallMs)
	if slot == 0 {
		slot = t.addTopic(topic)
		tag = t.index.tag(slot, h)
	}
	expiresMs := wallMs + windowMs
	if expiresMs < wallMs {
		expiresMs = math.MaxInt64
	}
	epoch, position := at.ID.Birth()
	t.addKey(tag, key{
		hash: h, topic: slot, expiresMs: expiresMs, queue: at.Queue, offset: at.Offset, epoch: epoch, position: position,
	})
}

func (t *Table) addTopic(id uint32) uint32 {
	slot := t.topics.Alloc()
	t.topics.Mut(slot).id = id
	t.byTopic[id] = slot
	return slot
}

// addKey puts a key at the end of the list of its topic.
func (t *Table) addKey(tag uint32, k key) {
	i := t.keys.Alloc()
	*t.keys.Mut(i) = k
	t.index.add(i, tag)
	t.live++
	topic := t.topics.Mut(k.topic)
	topic.count++
	pushBack(t.keys, &topic.list, i)
	if topic.list.head == i {
		t.enter(k.topic)
	}
}

// removeKey frees a key.
func (t *Table) removeKey(i uint32) {
	slot := t.keys.At(i).topic
	topic := t.topics.Mut(slot)
	first := topic.list.head == i
	unlink(t.keys, &topic.list, i)
	topic.count--
	t.index.remove(i)
	t.keys.Free(i)
	if topic.dropped {
		return
	}
	t.live--
	switch {
	case topic.list.head == 0:
		t.leave(slot)
	case first:
		t.moved(slot)
	}
}

// evictKeys frees keys that have expired. One behind a key of its topic that has not must wait: it is free to be used
// again all the same, and only its room is not.
func (t *Table) evictKeys(wallMs int64) {
	for range evictPerRecord {
		if len(t.expiry) == 0 || t.expiry[0].expiresMs > wallMs {
			return
		}
		t.removeKey(t.topics.At(t.expiry[0].slot).list.head)
	}
}

// DropTopic forgets the keys of a topic. They cannot be seen from now on; their memory is freed by the records that
// follow.
func (t *Table) DropTopic(topic uint32) {
	slot := t.topicOf(topic)
	if slot == 0 {
		return
	}
	delete(t.byTopic, topic)
	t.topicSlot = 0
	k := t.topics.Mut(slot)
	if k.count == 0 {
		t.topics.Free(slot)
		return
	}
	t.leave(slot)
	t.live -= int(k.count)
	k.dropped, k.next = true, t.dropped
	t.dropped = slot
}

// sweep frees some keys of topics that were dropped. It frees more than a record adds, so what they take beside the
// limit is never more than when they were dropped.
func (t *Table) sweep() {
	for range evictPerRecord {
		slot := t.dropped
		if slot == 0 {
			return
		}
		k := t.topics.At(slot)
		if t.removeKey(k.list.head); t.topics.At(slot).count == 0 {
			t.dropped = t.topics.At(slot).next
			t.topics.Free(slot)
		}
	}
}
