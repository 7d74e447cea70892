package lease

import (
	"fmt"
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// plot is a story with messages in every state.
func plot(t *testing.T) *story {
	s := newStory(t, 2)
	s.send(0, 8)
	s.send(1, 4)
	mark := s.mark()
	lost := s.pop1(s.session(), 30*second)
	s.crash(mark)
	s.ack(lost) // remembered
	a, b := s.session(), s.session()
	got := s.pop(a, 0, 5, 30*second)
	s.pop(b, 1, 2, 20*second) // leased, and expired later
	s.ack(got[0])
	s.release(a, got[1], 1)
	s.change(a, got[2], Change{Ordinal: 1, Cause: protocol.CauseFailed, InvisibleMs: hour})
	s.change(a, got[3], Change{Ordinal: 1, InvisibleMs: hour})
	s.advance(20 * second)
	return s
}

// TestHashOfTheSameRecords: each record of a story is applied to a shadow, which must have the same hash; here it is
// said again for two stories, and that looking at a table does not change it.
func TestHashOfTheSameRecords(t *testing.T) {
	a, b := plot(t), plot(t)
	before := a.table.Hash(bySlot)
	a.table.EachReady(a.slot(), 0, func(uint64) bool { return true })
	a.table.CheckAck(&Receipt{Sub: 1, Token: 5})
	a.table.CheckChange(&Receipt{Sub: 1, Offset: 3, Token: 2<<32 | 1}, Change{Ordinal: 1, InvisibleMs: second}, &a.rules, a.nowMs, a.rnd)
	a.table.NextTimer()
	if a.table.Hash(bySlot) != before || b.table.Hash(bySlot) != before || before == New().Hash(bySlot) {
		t.Errorf("%x, %x, %x", before, a.table.Hash(bySlot), b.table.Hash(bySlot))
	}
}

// TestTimersAreNoState: what is ready by its time and what is ready by a tick is the same.
func TestTimersAreNoState(t *testing.T) {
	s := plot(t)
	before := s.table.Hash(bySlot)
	s.nowMs += 100 * hour
	s.table.Advance(s.nowMs, 1000, nil)
	if s.table.Hash(bySlot) != before {
		t.Error("a tick has changed the state")
	}
}

// TestHashOfDifferentStates: any one thing that is different shows.
func TestHashOfDifferentStates(t *testing.T) {
	entryOf := func(table *Table, q uint16, offset uint64) *entry {
		slot, _ := table.SlotOf(1)
		i, _ := table.lookup(slot, q, offset)
		return table.entries.Mut(i)
	}
	cursorOf := func(table *Table) *cursor { return table.cursors.Mut(table.queues[1][0]) }
	changes := map[string]func(*Table){
		"nothing":               func(*Table) {},
		"the next subscription": func(x *Table) { x.nextSub++ },
		"an epoch":              func(x *Table) { x.epochs[0].epoch++ },
		"a grant number":        func(x *Table) { x.epochs[0].number++ },
		"an epoch's start":      func(x *Table) { x.epochs[1].start++ },
		"an epoch more":         func(x *Table) { x.StartEpoch(9, 1<<40) },
		"a subscription's id":   func(x *Table) { x.subs.Mut(1).id++ },
		"a group":               func(x *Table) { x.subs.Mut(1).group++ },
		"a topic":               func(x *Table) { x.subs.Mut(1).topic++ },
		"a filter":              func(x *Table) { x.subs.Mut(1).nTags, x.subs.Mut(1).filter[0] = 1, 0 },
		"a horizon":             func(x *Table) { x.subs.Mut(1).horizonMs++ },
		"a queue more":          func(x *Table) { x.GrowTopic(someTopic, 3) },
		"a start":               func(x *Table) { cursorOf(x).start++ },
		"a cursor":              func(x *Table) { cursorOf(x).next++ },
		"settled":               func(x *Table) { cursorOf(x).settled++ },
		"skipped":               func(x *Table) { cursorOf(x).skipped++ },
		"unreadable":            func(x *Table) { cursorOf(x).unreadable++ },
		"ahead":                 func(x *Table) { cursorOf(x).ahead++ },
		"a token":               func(x *Table) { entryOf(x, 0, 3).token++ },
		"an end":                func(x *Table) { entryOf(x, 0, 4).atMs++ },
		"a start of a lease":    func(x *Table) { entryOf(x, 0, 4).sinceMs++ },
		"a holder":              func(x *Table) { entryOf(x, 0, 4).holder++ },
		"attempts":              func(x *Table) { entryOf(x, 0, 2).attempts++ },
		"an ordinal":            func(x *Table) { entryOf(x, 0, 2).ordinal++ },
		"renewals":              func(x *Table) { entryOf(x, 0, 4).renewals++ },
		"failures":              func(x *Table) { entryOf(x, 0, 3).failures++ },
		"expiries":              func(x *Table) { entryOf(x, 1, 0).expiries++ },
		"losses":                func(x *Table) { entryOf(x, 1, 0).losses++ },
		"an ending":             func(x *Table) { entryOf(x, 1, 0).ending = endedSession },
		"memory":                func(x *Table) { x.evict(1, 1<<50) },
		"everything":            func(x *Table) { x.Drop(someGroup, 0) },
	}
	hashes := map[uint64]string{}
	for name, change := range changes {
		s := plot(t)
		change(s.table)
		h := s.table.Hash(bySlot)
		if other, ok := hashes[h]; ok {
			t.Errorf("%s and %s look the same", name, other)
		}
		hashes[h] = name
	}
	// Whose slot it was is nothing that a message which is not leased remembers.
	a, b := plot(t), plot(t)
	entryOf(a.table, 0, 2).holder++
	if a.table.Hash(bySlot) != b.table.Hash(bySlot) {
		t.Error("the slot of a former holder shows")
	}
}

// TestHashKnowsTheQueueOfAMemory: two queues, the same offset, settled in another order.
func TestHashKnowsTheQueueOfAMemory(t *testing.T) {
	var hashes []uint64
	for _, order := range [][]uint16{{0, 1}, {1, 0}} {
		s := newStory(t, 2)
		s.send(0, 1)
		s.send(1, 1)
		worker := s.session()
		run := func(kind codec.RunKind) []Receipt {
			return s.grant(worker, second, codec.GrantRun{Queue: 0, Kind: kind, Count: 1}, codec.GrantRun{Queue: 1, Kind: kind, Count: 1})
		}
		for _, r := range run(codec.RunNew) {
			s.release(worker, r, 1)
		}
		got := run(codec.RunAgain)
		for _, q := range order {
			s.ack(got[q])
		}
		hashes = append(hashes, s.table.Hash(bySlot))
	}
	if hashes[0] == hashes[1] {
		t.Error("they look the same")
	}
}

// TestAuditFinds: whatever is out of order.
func TestAuditFinds(t *testing.T) {
	find := func(x *Table, q uint16, offset uint64) uint32 {
		slot, _ := x.SlotOf(1)
		i, _ := x.lookup(slot, q, offset)
		if i == 0 {
			panic(fmt.Sprintf("no entry at %d", offset))
		}
		return i
	}
	cursorOf := func(x *Table) *cursor { return x.cursors.Mut(x.queues[1][0]) }
	for name, spoil := range map[string]func(*Table){
		"leases of a subscription":                 func(x *Table) { x.subs.Mut(1).leased++ },
		"waiting ones of a subscription":           func(x *Table) { x.subs.Mut(1).waiting-- },
		"leases of a cursor":                       func(x *Table) { cursorOf(x).leased-- },
		"waiting ones of a cursor":                 func(x *Table) { cursorOf(x).waiting++ },
		"ones ahead":                               func(x *Table) { cursorOf(x).ahead++ },
		"what was settled":                         func(x *Table) { cursorOf(x).settled++ },
		"what was skipped":                         func(x *Table) { cursorOf(x).skipped-- },
		"what was unreadable":                      func(x *Table) { cursorOf(x).unreadable++ },
		"where the cursor is":                      func(x *Table) { cursorOf(x).next-- },
		"a lease without a timer":                  func(x *Table) { x.wheel.Cancel(find(x, 0, 5)) },
		"a timer after the end of its lease":       func(x *Table) { x.entries.Mut(find(x, 0, 5)).atMs = 1 },
		"a waiting one without a timer":            func(x *Table) { x.wheel.Cancel(find(x, 0, 3)) },
		"a ready one with a timer":                 func(x *Table) { x.wheel.Schedule(find(x, 0, 2), 1<<40) },
		"a settled one with a timer":               func(x *Table) { x.wheel.Schedule(find(x, 0, 0), 1<<40) },
		"a state that is none":                     func(x *Table) { x.entries.Mut(find(x, 0, 0)).state = 9 },
		"an entry that lies elsewhere":             func(x *Table) { x.entries.Mut(find(x, 0, 0)).offset++ },
		"an entry of another cursor":               func(x *Table) { x.entries.Mut(find(x, 0, 0)).cursor++ },
		"an entry in no queue":                     func(x *Table) { x.entries.Alloc() },
		"a lease that nobody lists":                func(x *Table) { x.unlink(&x.holders[x.entries.At(find(x, 0, 5)).holder], find(x, 0, 5)) },
		"a lease that somebody else holds":         func(x *Table) { x.entries.Mut(find(x, 0, 5)).holder++ },
		"a ready one on no list":                   func(x *Table) { x.unlink(&cursorOf(x).ready, find(x, 0, 2)) },
		"a ready one that does not know it":        func(x *Table) { x.entries.Mut(find(x, 0, 2)).ready = false },
		"a memory on no list":                      func(x *Table) { x.unlink(&x.subs.Mut(1).memory, find(x, 0, 0)) },
		"a count of a list":                        func(x *Table) { x.subs.Mut(1).memory.count++ },
		"a list that ends elsewhere":               func(x *Table) { cursorOf(x).ready.tail = 0 },
		"a link back that goes wrong":              func(x *Table) { x.entries.Mut(find(x, 0, 5)).prev = find(x, 0, 3) },
		"a count of settled ones":                  func(x *Table) { x.done++ },
		"a settled one that is thought to be live": func(x *Table) { x.entries.Mut(find(x, 0, 0)).state = leased },
	} {
		s := plot(t)
		if err := s.table.Audit(); err != nil {
			t.Fatal(err)
		}
		spoil(s.table)
		if err := s.table.Audit(); err == nil {
			t.Errorf("%s: not found", name)
		}
	}
}
