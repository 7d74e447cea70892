package lease

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func TestEntryIsOneCacheLine(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); n != 64 {
		t.Fatalf("%d bytes", n)
	}
}

func TestFirstGrant(t *testing.T) {
	// Given a queue of five messages,
	s := newStory(t, 2)
	s.send(1, 5)
	worker := s.session()
	// when three are popped,
	got := s.pop(worker, 1, 3, 30*second)
	// then they are leased to the session until the deadline, under one token, and the cursor has passed them.
	if len(got) != 3 {
		t.Fatalf("%d receipts", len(got))
	}
	for i, r := range got {
		if r.Token != 1<<32|1 {
			t.Errorf("token %x", r.Token)
		}
		g, ok := s.table.Granted(s.slot(), 1, uint64(i))
		if want := (Granted{Token: r.Token, Attempts: 1, EndMs: s.nowMs + 30*second, SinceMs: s.nowMs}); !ok || g != want {
			t.Errorf("offset %d: %+v %t", i, g, ok)
		}
		if slot, ok := s.table.Holder(1, 1, uint64(i)); !ok || slot != worker.slot {
			t.Errorf("offset %d is held by %d", i, slot)
		}
	}
	if got, want := s.at(1), (Position{Next: 3, Leased: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := s.at(0), (Position{}); got != want {
		t.Errorf("the other queue: %+v", got)
	}
	if n := s.table.Held(worker.slot); n != 3 {
		t.Errorf("the session holds %d", n)
	}
	if sub := s.table.At(s.slot()); sub.Leased != 3 || sub.Waiting != 0 {
		t.Errorf("%+v", sub)
	}
	if at, ok := s.table.NextTimer(); !ok || at > s.nowMs+30*second {
		t.Errorf("next timer %d %t", at, ok)
	}
	if n := s.table.Unsettled(); n != 3 {
		t.Errorf("%d unsettled", n)
	}
}

// TestTokensGrow: with every grant of a message, from one record to the next and over epochs.
func TestTokensGrow(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	last := uint64(0)
	for range 4 {
		for range 3 {
			worker := s.session()
			r := s.pop1(worker, second)
			if r.Token <= last || r.Token >= 1<<63 {
				t.Fatalf("token %x after %x", r.Token, last)
			}
			last = r.Token
			s.release(worker, r, 1)
		}
		s.newEpoch()
	}
	if g, _ := s.table.Granted(s.slot(), 0, 0); g.Token != 0 {
		t.Errorf("a released message is leased: %+v", g)
	}
	if last>>32 != 4 || uint32(last) != 3 {
		t.Errorf("the last token is %x", last)
	}
	if epoch, number := s.table.Number(); epoch != 5 || number != 0 {
		t.Errorf("epoch %d number %d", epoch, number)
	}
}

// TestAttemptsCountGrants: and nothing else.
func TestAttemptsCountGrants(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	for i := range 5 {
		worker := s.session()
		r := s.pop1(worker, 30*second)
		g, _ := s.table.Granted(s.slot(), 0, 0)
		if want := (Granted{Token: r.Token, Attempts: uint16(i + 1), EndMs: s.nowMs + 30*second, SinceMs: s.nowMs}); g != want {
			t.Fatalf("grant %d: %+v", i+1, g)
		}
		s.advance(second)
		s.release(worker, r, 1) // uncounted
	}
}

// TestCursorPassesEveryOffsetOnce: granted, skipped, or known from before.
func TestCursorPassesEveryOffsetOnce(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 20)
	worker := s.session()
	run := func(kind codec.RunKind, offset uint64, count uint32) codec.GrantRun {
		return codec.GrantRun{Kind: kind, Offset: offset, Count: count}
	}
	s.grant(worker, second, run(codec.RunSkipped, 0, 2), run(codec.RunNew, 2, 3), run(codec.RunSkipped, 5, 5))
	if got, want := s.at(0), (Position{Next: 10, Leased: 3, Skipped: 7}); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	if s.table.Known(s.slot(), 0, 1) || !s.table.Known(s.slot(), 0, 2) || s.table.Known(s.slot(), 0, 10) {
		t.Error("a skipped message has an entry, or a leased one has none")
	}
	// What is not where the cursor is changes nothing but the number of the record.
	for name, bad := range map[string]codec.GrantRun{
		"new, behind the cursor":     run(codec.RunNew, 9, 1),
		"new, ahead of the cursor":   run(codec.RunNew, 11, 1),
		"skipped, behind the cursor": run(codec.RunSkipped, 2, 1),
		"skipped, ahead":             run(codec.RunSkipped, 11, 1),
		"known, but not":             run(codec.RunKnown, 10, 1),
		"again, still leased":        run(codec.RunAgain, 2, 1),
		"again, never granted":       run(codec.RunAgain, 1, 1),
		"again, not there yet":       run(codec.RunAgain, 12, 1),
		"of no kind":                 run(9, 10, 1),
		"of a queue that is not":     {Queue: 1, Kind: codec.RunNew, Count: 1},
	} {
		before, held := s.at(0), s.table.Held(worker.slot)
		_, number := s.table.Number()
		s.violate(name, &codec.Grant{Sub: 1, Number: number + 1, DeadlineMs: s.nowMs, Runs: []codec.GrantRun{bad}}, worker)
		if s.at(0) != before || s.table.Held(worker.slot) != held {
			t.Errorf("%s: the cursor is at %+v, the session holds %d", name, s.at(0), s.table.Held(worker.slot))
		}
	}
}

// TestGrantNumbers: one after the other in the newest epoch. A gap would be a grant that the log has lost.
func TestGrantNumbers(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 9)
	worker := s.session()
	s.pop1(worker, second)
	grant := func(number uint32) *codec.Grant {
		return &codec.Grant{Sub: 1, Number: number, DeadlineMs: s.nowMs, Runs: []codec.GrantRun{{Kind: codec.RunNew, Count: 1, Offset: 1}}}
	}
	for _, number := range []uint32{0, 1, 3, 1 << 31} {
		s.refuse("a number out of order", grant(number), worker)
	}
	s.epoch++
	s.refuse("an epoch that has not begun", grant(2), worker)
	s.epoch -= 2
	s.refuse("an epoch that is over", grant(2), worker)
	s.epoch++
	other := grant(2)
	other.Sub = 2
	s.refuse("a subscription that is not", other, worker)
	// The last number of an epoch is not followed by zero.
	for _, table := range []*Table{s.table, s.shadow} {
		table.epochs[len(table.epochs)-1].number = ^uint32(0)
	}
	s.refuse("a number that went round", grant(0), worker)
}

func TestEpochsGrow(t *testing.T) {
	s := newStory(t, 1)
	s.epoch = 10
	s.append(nil, holder{})
	for _, epoch := range []uint32{0, 1, 9, 10} {
		s.epoch = epoch
		s.refuse("an epoch that does not grow", nil, holder{})
	}
	if epoch, _ := s.table.Number(); epoch != 10 {
		t.Errorf("epoch %d", epoch)
	}
	if epoch, number := New().Number(); epoch != 0 || number != 0 {
		t.Errorf("an empty table has epoch %d number %d", epoch, number)
	}
}

func TestGrantAgainOnlyWhenItsTimeHasCome(t *testing.T) {
	// Given a message that waits for five seconds,
	s := newStory(t, 1)
	s.send(0, 1)
	worker := s.session()
	r := s.pop1(worker, 30*second)
	s.change(worker, r, Change{Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 5 * second})
	again := func() *codec.Grant {
		_, number := s.table.Number()
		return &codec.Grant{Sub: 1, Number: number + 1, DeadlineMs: s.nowMs + second, Runs: []codec.GrantRun{{Kind: codec.RunAgain, Count: 1}}}
	}
	// when it is granted a millisecond too early, then it is not;
	s.advance(5*second - 1)
	s.violate("a grant too early", again(), worker)
	if p := s.at(0); p.Waiting != 1 || p.Ready != 0 {
		t.Fatalf("%+v", p)
	}
	// when its time has come, then it is, whether the timers have been told the time or not.
	s.nowMs++
	s.append(again(), worker)
	if p := s.at(0); p.Leased != 1 || p.Waiting != 0 {
		t.Fatalf("%+v", p)
	}
}

// TestReadyOnes come in the order in which they came back, and the broker is told of each.
func TestReadyOnes(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 4)
	worker := s.session()
	got := s.pop(worker, 0, 4, 30*second)
	var told int
	s.table.OnReady = func(sub uint32, queue uint16) {
		if sub != s.slot() || queue != 0 {
			t.Errorf("told of subscription %d queue %d", sub, queue)
		}
		told++
	}
	s.change(worker, got[0], Change{Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 3 * second})
	s.release(worker, got[3], 1)
	s.release(worker, got[1], 1)
	if told != 2 {
		t.Errorf("told of %d", told)
	}
	s.advance(3 * second)
	if told != 3 {
		t.Errorf("told of %d", told)
	}
	var offsets []uint64
	s.table.EachReady(s.slot(), 0, func(offset uint64) bool {
		offsets = append(offsets, offset)
		return true
	})
	if !slices.Equal(offsets, []uint64{3, 1, 0}) || s.at(0).Ready != 3 {
		t.Errorf("ready: %d, counted %d", offsets, s.at(0).Ready)
	}
	offsets = nil
	s.table.EachReady(s.slot(), 0, func(offset uint64) bool {
		offsets = append(offsets, offset)
		return false
	})
	if !slices.Equal(offsets, []uint64{3}) {
		t.Errorf("it went on after it was told to stop: %d", offsets)
	}
}

func TestSubscriptions(t *testing.T) {
	s := newStory(t, 1)
	sub := func(id, group, topic uint32) *codec.Subscribe {
		return &codec.Subscribe{Sub: id, Group: group, Topic: topic}
	}
	s.refuse("a second one of the pair", sub(2, someGroup, someTopic), holder{})
	s.refuse("an id that is not the next", sub(3, 1, 1), holder{})
	s.refuse("an id that was used", sub(1, 1, 1), holder{})
	tooMany := sub(2, 1, 1)
	tooMany.Filter = make([]uint64, codec.MaxFilterTags+1)
	before := s.table.Hash(bySlot)
	for _, table := range []*Table{s.table, s.shadow} { // not through bytes: those are refused before
		table.OnViolation = nil
		table.Subscribe(tooMany)
		s.watch(table)
	}
	if s.table.Hash(bySlot) != before {
		t.Error("a filter over the limit")
	}

	full := sub(s.table.NextID(), 3, someTopic)
	full.Filter = []uint64{5, 7}
	full.Starts = []uint64{0, 100, 1 << 40}
	s.append(full, holder{})
	found, ok := s.table.Find(3, someTopic)
	if !ok || found.ID != 2 || found.Group != 3 || found.Topic != someTopic || s.table.At(found.Slot) != found {
		t.Fatalf("%+v %t", found, ok)
	}
	if s.table.Queues(found.Slot) != 3 || !slices.Equal(s.table.Filter(found.Slot), full.Filter) {
		t.Errorf("%d queues, filter %d", s.table.Queues(found.Slot), s.table.Filter(found.Slot))
	}
	for q, start := range full.Starts {
		if got, want := s.table.Position(found.Slot, uint16(q)), (Position{Start: start, Next: start}); got != want {
			t.Errorf("queue %d: %+v", q, got)
		}
	}
	for tag, want := range map[uint64]bool{0: false, 5: true, 6: false, 7: true} {
		if s.table.Accepts(found.Slot, tag) != want || !s.table.Accepts(s.slot(), tag) {
			t.Errorf("tag %d: %t", tag, !want)
		}
	}
	if _, ok := s.table.Find(3, someTopic+1); ok {
		t.Error("found what is not there")
	}
	if _, ok := s.table.SlotOf(99); ok {
		t.Error("a subscription that never was has a slot")
	}
	if !slices.Equal(s.table.Subs(), []uint32{s.slot(), found.Slot}) {
		t.Errorf("subscriptions %d", s.table.Subs())
	}
}

// TestNothingIsHeldByNobody: what is asked of sessions and messages that are not there.
func TestNothingIsHeldByNobody(t *testing.T) {
	s := newStory(t, 1)
	s.table.HeldBy(99, func(uint32, uint16, uint64, uint64, uint8, uint8) { t.Error("a lease of nobody") })
	if s.table.Held(99) != 0 {
		t.Error("nobody holds something")
	}
	for _, ask := range []func() bool{
		func() bool { _, ok := s.table.Granted(s.slot(), 0, 0); return ok },
		func() bool { _, ok := s.table.Granted(s.slot(), 9, 0); return ok },
		func() bool { _, ok := s.table.Holder(1, 0, 0); return ok },
		func() bool { _, ok := s.table.Holder(1, 9, 0); return ok },
		func() bool { _, ok := s.table.Holder(9, 0, 0); return ok },
		func() bool { _, ok := s.table.NextTimer(); return ok },
	} {
		if ask() {
			t.Error("there is something")
		}
	}
}
