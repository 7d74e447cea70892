// Package lease is what a consumer group knows about messages: how far its cursors have come, and the
// state of every message between its first grant and its settling.
//
// The Table is a fold: its Apply methods (apply.go) change it by records and by nothing else, the same
// way when the broker runs and when it recovers. Its Check methods (check.go) read it to decide what a
// record should say. Invariants, per cursor:
//
//  1. next - start = settled + skipped + unreadable + dropped + unsettled entries below next.
//  2. An entry exists for every offset below next that is not settled, for settled ones that more than
//     one receipt may speak of (memory), and for offsets at or above next that a receipt of a grant lost
//     in a crash has spoken of (ahead).
//  3. A leased entry is on its holder's list exactly once and has a timer no later than its end; a waiting
//     one has a timer, or is on the cursor's ready list once its time has come.
//  4. The token of an entry only grows.
//  5. Only live sessions have pop marks (popid.go), one a slot.
//
// Memory follows the number of messages in flight, not the distance between oldest and newest: 64 bytes
// an entry, 24 its timer, 4 to 5 its index.
//
// Timers, ready lists and the holders' lists are derived: recovery makes them by the same calls, in
// another order perhaps, and Hash leaves them out. Nothing here is safe for concurrent use; the broker's
// sequencing section owns it.
package lease

import (
	"fmt"
	"sort"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/slab"
	"github.com/leasemq/leasemq/timingwheel"
)

// Memory of settled messages, per subscription.
const (
	memoryMs    = 24 * 60 * 60 * 1000
	memoryCount = 1 << 20
	// evictPerRecord bounds the work of one record; settling adds at most as many.
	evictPerRecord = 2 * 1024
)

// sub is one subscription: one group reading one topic since its first pop.
type sub struct {
	id     uint32
	group  uint32
	topic  uint32
	nTags  uint32
	filter [codec.MaxFilterTags]uint64
	memory list
	// horizonMs is the newest settle time evicted from memory.
	horizonMs int64
	leased    uint64
	waiting   uint64
}

// cursor is one subscription's position on one queue.
type cursor struct {
	start uint64
	next  uint64 // first offset never passed
	tree  tree
	sub   uint32 // slot
	queue uint16
	ready list

	leased     uint32
	waiting    uint32
	ahead      uint32 // entries at or above next
	settled    uint64 // passed and settled
	skipped    uint64
	unreadable uint64
	dropped    uint64 // let go by retention before anybody settled them
}

// epochSpan is what is known of one broker start.
type epochSpan struct {
	epoch  uint32
	number uint32 // highest GRANT number
	start  uint64 // log position of its EPOCH record
}

// Table holds all subscriptions.
type Table struct {
	subs    *slab.Slab[sub]
	cursors *slab.Slab[cursor]
	entries *slab.Slab[entry]
	index   radix
	epochs  []epochSpan
	nextSub uint32
	marks   *slab.Slab[popMark]
	marked  []uint32 // by session slot: its first mark

	// Derived.
	wheel   *timingwheel.Wheel
	holders []list              // by session slot
	byID    map[uint32]uint32   // subscription id to slot
	byPair  map[uint64]uint32   // group << 32 | topic to slot
	queues  [][]uint32          // by slot of the subscription: cursor of each queue
	ofTopic map[uint32][]uint32 // slots of a topic's subscriptions, by id
	done    int                 // entries of settled messages
	dropped uint64              // messages that retention took from subscriptions, since the start

	// OnReady is told when a message of a subscription (slot) and queue can be granted again. May be nil.
	OnReady func(sub uint32, queue uint16)
	// OnViolation is told of a record whose precondition did not hold; the record then does nothing. It is
	// counted in any case. May be nil.
	OnViolation func(what string)
	violations  uint64
}

// New makes an empty table. Its clock starts at zero.
func New() *Table {
	return &Table{
		subs:    slab.New[sub](),
		cursors: slab.New[cursor](),
		entries: slab.New[entry](),
		marks:   slab.New[popMark](),
		index:   newRadix(),
		nextSub: 1,
		wheel:   timingwheel.New(0),
		byID:    map[uint32]uint32{},
		byPair:  map[uint64]uint32{},
		ofTopic: map[uint32][]uint32{},
	}
}

func pair(group, topic uint32) uint64 { return uint64(group)<<32 | uint64(topic) }

// Sub is a subscription as the broker sees it. Slot is its place in memory, ID its incarnation.
type Sub struct {
	Slot             uint32
	ID, Group, Topic uint32
	Leased, Waiting  uint64
}

func (t *Table) view(slot uint32) Sub {
	s := t.subs.At(slot)
	return Sub{Slot: slot, ID: s.id, Group: s.group, Topic: s.topic, Leased: s.leased, Waiting: s.waiting}
}

// Find is the subscription of a group to a topic.
func (t *Table) Find(group, topic uint32) (Sub, bool) {
	slot, ok := t.byPair[pair(group, topic)]
	if !ok {
		return Sub{}, false
	}
	return t.view(slot), true
}

// At is the subscription in a slot that is in use.
func (t *Table) At(slot uint32) Sub { return t.view(slot) }

// NextID is the id that the next SUBSCRIBE record must carry.
func (t *Table) NextID() uint32 { return t.nextSub }

// Subs lists the slots in use, by id.
func (t *Table) Subs() []uint32 {
	slots := make([]uint32, 0, len(t.byID))
	for _, slot := range t.byID {
		slots = append(slots, slot)
	}
	sort.Slice(slots, func(i, j int) bool { return t.subs.At(slots[i]).id < t.subs.At(slots[j]).id })
	return slots
}

// SubsOf lists the slots of a topic's subscriptions, by id. The list is the table's own.
func (t *Table) SubsOf(topic uint32) []uint32 { return t.ofTopic[topic] }

// Accepts tells whether the filter of a subscription lets a tag hash pass.
func (t *Table) Accepts(slot uint32, tag uint64) bool {
	s := t.subs.At(slot)
	if s.nTags == 0 {
		return true
	}
	for _, f := range s.filter[:s.nTags] {
		if f == tag {
			return true
		}
	}
	return false
}

// Filter is the sorted tag hashes of a subscription.
func (t *Table) Filter(slot uint32) []uint64 {
	s := t.subs.At(slot)
	return s.filter[:s.nTags]
}

// Queues is the number of queues of a subscription.
func (t *Table) Queues(slot uint32) int { return len(t.queues[slot]) }

// Position is the state of one cursor.
type Position struct {
	Start, Next                  uint64
	Leased, Waiting, Ahead       uint32
	Settled, Skipped, Unreadable uint64
	Dropped                      uint64
	Ready                        uint32
}

// Position reads the cursor of a queue.
func (t *Table) Position(slot uint32, queue uint16) Position {
	c := t.cursors.At(t.queues[slot][queue])
	return Position{c.start, c.next, c.leased, c.waiting, c.ahead, c.settled, c.skipped, c.unreadable, c.dropped, c.ready.count}
}

// EachReady calls visit with the offsets that can be granted again, oldest return first, until it returns false.
func (t *Table) EachReady(slot uint32, queue uint16, visit func(offset uint64) bool) {
	c := t.cursors.At(t.queues[slot][queue])
	for i := c.ready.head; i != 0; {
		e := t.entries.At(i)
		i = e.next
		if !visit(e.offset) {
			return
		}
	}
}

// Known tells whether the table has an entry at offset.
func (t *Table) Known(slot uint32, queue uint16, offset uint64) bool {
	i := t.queues[slot][queue]
	return t.index.get(i, &t.cursors.At(i).tree, offset) != 0
}

// Granted is what a POP answer tells of a leased message.
type Granted struct {
	Token                      uint64
	Attempts                   uint16
	Renewals, Ordinal          uint16
	Failures, Expiries, Losses uint8
	EndMs, SinceMs             int64 // end of the lease, and when it was given
}

// Granted reads a leased entry.
func (t *Table) Granted(slot uint32, queue uint16, offset uint64) (g Granted, ok bool) {
	e := t.find(slot, queue, offset)
	if e == nil || e.state != leased {
		return g, false
	}
	return e.granted(), true
}

func (e *entry) granted() Granted {
	return Granted{e.token, e.attempts, e.renewals, e.ordinal, e.failures, e.expiries, e.losses, e.atMs, e.sinceMs}
}

func (t *Table) find(slot uint32, queue uint16, offset uint64) *entry {
	_, e := t.lookup(slot, queue, offset)
	return e
}

func (t *Table) lookup(slot uint32, queue uint16, offset uint64) (uint32, *entry) {
	if int(queue) >= len(t.queues[slot]) {
		return 0, nil
	}
	c := t.queues[slot][queue]
	i := t.index.get(c, &t.cursors.At(c).tree, offset)
	if i == 0 {
		return 0, nil
	}
	return i, t.entries.At(i)
}

// Held is the number of leases of the session in a slot.
func (t *Table) Held(holder uint32) uint32 {
	if int(holder) >= len(t.holders) {
		return 0
	}
	return t.holders[holder].count
}

// Number is the newest GRANT number of the newest epoch, and that epoch.
func (t *Table) Number() (epoch, number uint32) {
	if len(t.epochs) == 0 {
		return 0, 0
	}
	last := t.epochs[len(t.epochs)-1]
	return last.epoch, last.number
}

// Unsettled is the number of messages of all cursors between first grant and settling. The memory of settled
// ones is not part of it: it has its own bounds, and must not hold up what is new.
func (t *Table) Unsettled() int { return t.entries.Len() - t.done }

// Dropped is how many messages retention has taken from subscriptions that had not settled them, since the start.
func (t *Table) Dropped() uint64 { return t.dropped }

// Violations counts records whose precondition did not hold.
func (t *Table) Violations() uint64 { return t.violations }

func (t *Table) violate(format string, args ...any) {
	t.violations++
	if t.OnViolation != nil {
		t.OnViolation(fmt.Sprintf(format, args...))
	}
}

// NextTimer is a lower bound of the earliest deadline.
func (t *Table) NextTimer() (atMs int64, ok bool) { return t.wheel.Next() }

// Advance moves the timers to now. Messages whose wait is over become ready; leases that are over are
// appended to proposals, for an EXPIRE record that the caller must apply before anything else happens.
// It handles at most limit timers and tells whether more are due.
func (t *Table) Advance(nowMs int64, limit int, proposals []codec.ReleaseEntry) (_ []codec.ReleaseEntry, more bool) {
	more = t.wheel.Advance(nowMs, limit, func(i uint32) {
		e := t.entries.At(i)
		switch {
		case e.atMs > nowMs: // renewed since the timer was set
			t.wheel.Schedule(i, e.atMs)
		case e.state == waiting:
			t.makeReady(i)
		case e.state == leased:
			c := t.cursors.At(e.cursor)
			proposals = append(proposals, codec.ReleaseEntry{
				Sub: t.subs.At(c.sub).id, Queue: c.queue, Offset: e.offset, Token: e.token,
				AtMs: max(e.atMs+afterExpiryMs, nowMs),
			})
			// Should the record not come to be, the timer is there again.
			t.wheel.Schedule(i, nowMs+1)
		}
	})
	return proposals, more
}

func (t *Table) makeReady(i uint32) {
	e := t.entries.Mut(i)
	e.ready = true
	c := t.cursors.Mut(e.cursor)
	t.push(&c.ready, i)
	if t.OnReady != nil {
		t.OnReady(c.sub, c.queue)
	}
}

// HeldBy calls visit with every lease of the session in a slot, oldest first.
func (t *Table) HeldBy(holder uint32, visit func(sub uint32, queue uint16, offset, token uint64, losses uint8, failures uint8)) {
	if int(holder) >= len(t.holders) {
		return
	}
	for i := t.holders[holder].head; i != 0; {
		e := t.entries.At(i)
		i = e.next
		c := t.cursors.At(e.cursor)
		visit(t.subs.At(c.sub).id, c.queue, e.offset, e.token, e.losses, e.failures)
	}
}

// SlotOf is the slot of a subscription id.
func (t *Table) SlotOf(id uint32) (slot uint32, ok bool) {
	slot, ok = t.byID[id]
	return slot, ok
}

// Holder is the session slot that holds a lease.
func (t *Table) Holder(id uint32, queue uint16, offset uint64) (holder uint32, ok bool) {
	slot, ok := t.byID[id]
	if !ok {
		return 0, false
	}
	if e := t.find(slot, queue, offset); e != nil && e.state == leased {
		return e.holder, true
	}
	return 0, false
}

// Cursors is the number of cursors of all subscriptions.
func (t *Table) Cursors() int { return t.cursors.Len() }
