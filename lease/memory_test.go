package lease

import (
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// settleTwice has a message granted to one session, given back, granted to another and acked by that one. It gives
// both receipts.
func (s *story) settleTwice(queue uint16) (old, newer Receipt) {
	s.t.Helper()
	s.send(queue, 1)
	a, b := s.session(), s.session()
	old = s.pop(a, queue, 1, 30*second)[0]
	s.release(a, old, 1)
	newer = s.pop(b, queue, 1, 30*second)[0]
	s.expectOK("ack", s.ack(newer))
	return old, newer
}

// tickle has a message settled by its only grant: nothing to remember, but a record by whose time memory goes.
func (s *story) tickle(queue uint16) Receipt {
	s.t.Helper()
	s.send(queue, 1)
	r := s.pop(s.session(), queue, 1, 30*second)[0]
	s.expectOK("ack", s.ack(r))
	return r
}

// TestMemory: a message that was granted more than once is remembered with the token that settled it, for 24 hours.
func TestMemory(t *testing.T) {
	s := newStory(t, 1)
	old, newer := s.settleTwice(0)
	settledMs := s.nowMs
	if s.table.entries.Len() != 1 || s.table.Unsettled() != 0 {
		t.Errorf("%d entries, %d unsettled", s.table.entries.Len(), s.table.Unsettled())
	}
	if p := s.at(0); p != (Position{Next: 1, Settled: 1}) {
		t.Errorf("%+v", p)
	}
	for range 3 {
		v := s.ack(old)
		s.expect("the old receipt", v, protocol.AlreadySettled, protocol.ReasonSettled)
		if v.Token != newer.Token || v.AtMs != settledMs {
			t.Errorf("%+v", v)
		}
		s.expectOK("the one that settled it", s.ack(newer))
		s.nowMs += 7 * hour
	}
	// A millisecond before the 24 hours are over it is there,
	s.nowMs = settledMs + memoryMs - 1
	s.tickle(0)
	s.expectOK("within 24 h", s.ack(newer))
	// and then it goes, by the time of a record; without one it stays.
	s.nowMs++
	s.expectOK("after 24 h, without a record", s.ack(newer))
	s.tickle(0)
	if s.table.entries.Len() != 0 {
		t.Errorf("%d entries", s.table.entries.Len())
	}
}

// TestHorizon: without memory, what was granted at or before the newest settle time that was forgotten is told that
// the message is settled: whether by itself is not known any more. What was granted later is OK: it must have been
// the only grant.
func TestHorizon(t *testing.T) {
	s := newStory(t, 1)
	before := s.tickle(0)
	s.nowMs += second
	old, newer := s.settleTwice(0)
	atHorizon := s.tickle(0)
	s.nowMs++
	after := s.tickle(0)
	rs := map[string]Receipt{"before": before, "at the horizon": atHorizon, "after": after}
	for name, r := range rs {
		s.expectOK(name+", before anything is forgotten", s.ack(r))
	}
	s.nowMs += memoryMs
	late := s.tickle(0)
	for name, r := range map[string]Receipt{"old": old, "newer": newer, "before": before, "at the horizon": atHorizon} {
		v := s.ack(r)
		s.expect(name, v, protocol.AlreadySettled, protocol.ReasonSettled)
		if v.Apply {
			t.Errorf("%s: %+v", name, v)
		}
	}
	s.expectOK("after", s.ack(after))
	s.expectOK("late", s.ack(late))
	// The horizon never goes back.
	s.settleTwice(0)
	s.expect("old", s.ack(old), protocol.AlreadySettled, protocol.ReasonSettled)
	s.expectOK("late", s.ack(late))
}

// TestMemoryIsOfASubscription: what one forgets, and its horizon, is nothing to another.
func TestMemoryIsOfASubscription(t *testing.T) {
	s := newStory(t, 1)
	old, newer := s.settleTwice(0)
	s.append(&codec.Subscribe{Sub: 2, Group: 1, Topic: someTopic, Starts: []uint64{0}}, holder{})
	s.nowMs += 2 * memoryMs
	worker := s.session()
	_, number := s.table.Number()
	s.append(&codec.Grant{Sub: 2, Number: number + 1, DeadlineMs: s.nowMs + second, Runs: []codec.GrantRun{{Kind: codec.RunNew, Count: 1}}}, worker)
	s.append(&codec.Settle{Sub: 2, Runs: []codec.SettleRun{{Count: 1, Token: 1<<32 | uint64(number+1)}}}, holder{})
	s.expect("old", s.ack(old), protocol.AlreadySettled, protocol.ReasonSettled)
	s.expectOK("newer", s.ack(newer))
}

// TestMemoryOfAllQueues is one list, in the order of settling.
func TestMemoryOfAllQueues(t *testing.T) {
	s := newStory(t, 3)
	var settled []Receipt
	for i := range 9 {
		_, newer := s.settleTwice(uint16(i * 2 % 3))
		settled = append(settled, newer)
		s.nowMs += second
	}
	s.nowMs = settled[4].GrantMs + memoryMs
	s.tickle(0)
	if n := s.table.entries.Len(); n != 4 {
		t.Errorf("%d are remembered", n)
	}
	for i, r := range settled {
		v := s.ack(r)
		if i > 4 {
			s.expectOK("remembered", v)
		} else {
			s.expect("forgotten", v, protocol.AlreadySettled, protocol.ReasonSettled)
		}
	}
}

// TestMemoryIsBounded: by a number, however young it is, and forgetting is bounded work for each record.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("settles a million messages")
	}
	const batch = 1024
	table := New()
	table.OnViolation = func(what string) { t.Fatal(what) }
	table.StartEpoch(1, 0)
	table.Subscribe(&codec.Subscribe{Sub: 1, Group: 1, Topic: 1, Starts: []uint64{0}})
	number, now := uint32(0), int64(0)
	grant := func(kind codec.RunKind, offset uint64) uint64 {
		number++
		table.Grant(&codec.Grant{Sub: 1, Number: number, DeadlineMs: now + 30*second, Runs: []codec.GrantRun{{Kind: kind, Count: batch, Offset: offset}}}, 1, now, 1)
		return 1<<32 | uint64(number)
	}
	change := codec.Change{Sub: 1, Entries: make([]codec.ChangeEntry, batch)}
	settleTwice := func(offset uint64) {
		now++
		token := grant(codec.RunNew, offset)
		for i := range change.Entries {
			change.Entries[i] = codec.ChangeEntry{Kind: codec.ChangeReleased, Ordinal: 1, Offset: offset + uint64(i), Token: token}
		}
		table.Change(&change, now, 1)
		token = grant(codec.RunAgain, offset)
		table.Settle(&codec.Settle{Sub: 1, Runs: []codec.SettleRun{{Count: batch, Offset: offset, Token: token}}}, now)
	}
	offset := uint64(0)
	for ; offset < memoryCount; offset += batch {
		settleTwice(offset)
		if want := int(offset) + batch; table.entries.Len() != want {
			t.Fatalf("%d are remembered of %d", table.entries.Len(), want)
		}
	}
	for range 3 {
		settleTwice(offset)
		offset += batch
		if table.entries.Len() != memoryCount || table.Unsettled() != 0 {
			t.Fatalf("%d are remembered, %d unsettled", table.entries.Len(), table.Unsettled())
		}
	}
	// The first batches are forgotten; the horizon is the time at which the third was settled.
	if s := table.subs.At(1); s.horizonMs != 3 {
		t.Errorf("horizon %d", s.horizonMs)
	}
	// A day later everything has to go: each record takes no more than its share.
	now += memoryMs
	before := table.entries.Len()
	for table.entries.Len() > 0 {
		table.Settle(&codec.Settle{Sub: 1}, now)
		after := table.entries.Len()
		if before-after > evictPerRecord || after == before {
			t.Fatalf("%d were forgotten by one record", before-after)
		}
		before = after
	}
	if err := auditAll(table); err != nil {
		t.Fatal(err)
	}
	if table.index.nodes.Len() != 0 {
		t.Errorf("%d nodes hold nothing", table.index.nodes.Len())
	}
}
