package lease

import (
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// A pop of first grants may be answered before its GRANT record is on disk. When the broker then crashes, the record
// is gone, and the receipts it gave out speak of grants that the log does not know. They are authentic, and their
// token says so: it is above the newest number that was recovered of its epoch.

// lostGrants is a story in which n messages were granted to one session each, and the records lost in a crash.
func lostGrants(t *testing.T, n int) (s *story, workers []holder, receipts []Receipt) {
	s = newStory(t, 1)
	s.send(0, n+1)
	kept := s.tickle2()
	mark := s.mark()
	for range n {
		workers = append(workers, s.session())
		receipts = append(receipts, s.pop1(workers[len(workers)-1], 30*second))
	}
	s.crash(mark)
	s.expectOK("what was settled before", s.ack(kept))
	if p := s.at(0); p != (Position{Next: 1, Settled: 1}) {
		t.Fatalf("%+v", p)
	}
	return s, workers, receipts
}

// tickle2 settles the message at the cursor.
func (s *story) tickle2() Receipt {
	r := s.pop1(s.session(), 30*second)
	s.expectOK("ack", s.ack(r))
	return r
}

// TestAckOfALostGrant settles ahead of the cursor, and the cursor passes it without granting it again.
func TestAckOfALostGrant(t *testing.T) {
	s, _, rs := lostGrants(t, 3)
	// When the holder of the second one acks,
	r := rs[1] // offset 2
	v := s.ack(r)
	s.expectOK("ack", v)
	if !v.Apply || !v.Lost || v.Late || v.Token != r.Token {
		t.Errorf("%+v", v)
	}
	if p := s.at(0); p != (Position{Next: 1, Settled: 1, Ahead: 1}) || !s.table.Known(s.slot(), 0, 2) || s.table.Unsettled() != 0 {
		t.Errorf("%+v", p)
	}
	v = s.ack(r)
	s.expectOK("ack again", v)
	if v.Apply {
		t.Errorf("%+v", v)
	}
	// then the next pop gives out the others only,
	worker := s.session()
	got := s.pop(worker, 0, 10, 30*second)
	if len(got) != 2 || got[0].Offset != 1 || got[1].Offset != 3 {
		t.Fatalf("%+v", got)
	}
	if p := s.at(0); p != (Position{Next: 4, Settled: 2, Leased: 2}) {
		t.Errorf("%+v", p)
	}
	// and the receipt that settled it is OK still.
	s.expectOK("ack, passed", s.ack(r))
	// Of the others the lost receipts are void: they were granted since.
	for _, r := range []Receipt{rs[0], rs[2]} {
		v := s.ack(r)
		s.expect("granted since", v, protocol.Stale, protocol.ReasonRegranted)
		if v.Token != got[0].Token {
			t.Errorf("%+v", v)
		}
	}
	// Settled since, by the only grant that the log knows: they did not settle it.
	s.expectOK("ack", s.ack(got[0]))
	s.expect("settled since", s.ack(rs[0]), protocol.AlreadySettled, protocol.ReasonSettled)
	s.expectOK("ack again", s.ack(got[0]))
}

// TestRunOverAKnownMessage: the cursor cannot grant or skip what a lost receipt has spoken of.
func TestRunOverAKnownMessage(t *testing.T) {
	s, _, rs := lostGrants(t, 3)
	s.ack(rs[1])
	worker := s.session()
	for name, kind := range map[string]codec.RunKind{"granted": codec.RunNew, "skipped": codec.RunSkipped} {
		_, number := s.table.Number()
		before := s.at(0)
		s.violate(name, &codec.Grant{Sub: 1, Number: number + 1, Runs: []codec.GrantRun{{Kind: kind, Count: 3, Offset: 1}}}, worker)
		if s.at(0) != before {
			t.Errorf("%s: %+v", name, s.at(0))
		}
	}
	s.grant(worker, second, codec.GrantRun{Kind: codec.RunSkipped, Count: 1, Offset: 1}, codec.GrantRun{Kind: codec.RunKnown, Count: 1, Offset: 2})
	if p := s.at(0); p != (Position{Next: 3, Settled: 2, Skipped: 1}) {
		t.Errorf("%+v", p)
	}
}

// TestMemoryOfALostGrant: settled ahead of the cursor, it is what keeps the message from being granted, and is not
// forgotten before the cursor has passed; what was settled after it is.
func TestMemoryOfALostGrant(t *testing.T) {
	s, _, rs := lostGrants(t, 3)
	s.ack(rs[2]) // offset 3; the cursor is at 1
	s.append(grown{someTopic, 2}, holder{})
	s.messages = append(s.messages, nil)
	_, newer := s.settleTwice(1)
	s.nowMs += memoryMs
	s.tickle(1)
	s.expect("settled after it", s.ack(newer), protocol.AlreadySettled, protocol.ReasonSettled)
	if s.table.entries.Len() != 1 {
		t.Errorf("%d entries", s.table.entries.Len())
	}
	s.expectOK("ahead of the cursor", s.ack(rs[2]))
	worker := s.session()
	if got := s.pop(worker, 0, 10, 30*second); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	s.tickle(1)
	s.expect("passed, and forgotten", s.ack(rs[2]), protocol.AlreadySettled, protocol.ReasonSettled)
}

// TestHorizonBehindALostGrant: it joins the memory when the cursor passes it, behind what was settled later. The horizon
// does not go back when it is forgotten.
func TestHorizonBehindALostGrant(t *testing.T) {
	s, _, rs := lostGrants(t, 3)
	s.append(grown{someTopic, 2}, holder{})
	s.messages = append(s.messages, nil)
	s.ack(rs[2])
	s.nowMs += hour
	between := s.tickle(1)
	s.nowMs += hour
	s.settleTwice(1)
	after := s.tickle(1)
	s.pop(s.session(), 0, 10, 30*second)
	s.nowMs += memoryMs
	s.tickle(1)
	if s.table.Unsettled() != 2 || s.table.entries.Len() != 2 {
		t.Errorf("%d entries, %d unsettled", s.table.entries.Len(), s.table.Unsettled())
	}
	for _, r := range []Receipt{between, after} {
		s.expect("granted before the horizon", s.ack(r), protocol.AlreadySettled, protocol.ReasonSettled)
	}
}

// TestChangeOfALostGrant: its record stands for grant and change. The lease is what it asks for.
func TestChangeOfALostGrant(t *testing.T) {
	s, workers, rs := lostGrants(t, 3)
	worker, r := workers[0], rs[0] // offset 1, at the cursor
	c := s.change(worker, r, Change{Ordinal: 1, InvisibleMs: 60 * second})
	s.expectOK("renewal", c.Verdict)
	if !c.Apply || !c.Lost || !c.Entry.Lost || c.Entry.Kind != codec.ChangeRenewed || c.RemainingMs != 60*second || c.RenewalsLeft != 2 {
		t.Errorf("%+v", c)
	}
	again := s.change(worker, r, Change{Ordinal: 1, InvisibleMs: 60 * second})
	if again.Apply || again.Status != protocol.OK || again.RemainingMs != c.RemainingMs || again.RenewalsLeft != c.RenewalsLeft || again.BudgetMs != c.BudgetMs {
		t.Errorf("%+v, first %+v", again, c)
	}
	if p := s.at(0); p != (Position{Next: 1, Settled: 1, Leased: 1, Ahead: 1}) || s.table.Held(worker.slot) != 1 {
		t.Errorf("%+v", p)
	}
	// The cursor passes it, leased.
	got := s.pop(s.session(), 0, 10, 30*second)
	if len(got) != 2 || got[0].Offset != 2 {
		t.Fatalf("%+v", got)
	}
	if p := s.at(0); p != (Position{Next: 4, Settled: 1, Leased: 3}) {
		t.Errorf("%+v", p)
	}
	// Its ack settles it, now and for ever: it must not be taken for a lost grant that somebody else has settled.
	s.expectOK("ack", s.ack(r))
	s.expectOK("ack again", s.ack(r))
	s.nowMs += second
	s.tickle(0)
	s.expectOK("ack again, later", s.ack(r))
}

// TestReleaseOfALostGrant: of every kind, before the cursor comes there.
func TestReleaseOfALostGrant(t *testing.T) {
	for _, test := range []struct {
		name     string
		x        Change
		waitMs   int64
		failures uint8
	}{
		{"released", Change{Ordinal: 1}, 0, 0},
		{"failed", Change{Ordinal: 1, Cause: protocol.CauseFailed}, 5 * second, 1},
		{"postponed", Change{Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 9 * second}, 9 * second, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, workers, rs := lostGrants(t, 3)
			worker, r := workers[1], rs[1] // offset 2
			c := s.change(worker, r, test.x)
			s.expectOK("change", c.Verdict)
			if !c.Apply || !c.Lost || c.RemainingMs != test.waitMs {
				t.Errorf("%+v", c)
			}
			if again := s.change(worker, r, test.x); again.Apply || again.Status != protocol.OK || again.RemainingMs != test.waitMs {
				t.Errorf("again: %+v", again)
			}
			s.expect("ack", s.ack(r), protocol.Stale, protocol.ReasonReleased)
			s.advance(test.waitMs)
			if p := s.at(0); p != (Position{Next: 1, Settled: 1, Waiting: 1, Ahead: 1, Ready: 1}) {
				t.Fatalf("%+v", p)
			}
			// It is granted again ahead of the cursor, which then passes it.
			other := s.session()
			got := s.pop(other, 0, 1, 30*second)
			if len(got) != 1 || got[0].Offset != 2 {
				t.Fatalf("%+v", got)
			}
			if g, _ := s.table.Granted(s.slot(), 0, 2); g.Attempts != 2 || g.Failures != test.failures {
				t.Errorf("%+v", g)
			}
			s.expect("ack", s.ack(r), protocol.Stale, protocol.ReasonRegranted)
			s.expectOK("ack by the new holder", s.ack(got[0]))
			s.expect("ack", s.ack(r), protocol.AlreadySettled, protocol.ReasonSettled)
			if rest := s.pop(other, 0, 10, 30*second); len(rest) != 2 {
				t.Errorf("%+v", rest)
			}
			s.expectOK("ack by the new holder again", s.ack(got[0]))
		})
	}
}

// TestChangeOfALostGrantThatWasGrantedSince is refused, as any old one.
func TestChangeOfALostGrantThatWasGrantedSince(t *testing.T) {
	s, workers, rs := lostGrants(t, 1)
	got := s.pop1(s.session(), 30*second)
	c := s.change(workers[0], rs[0], Change{Ordinal: 1, InvisibleMs: hour})
	s.expect("granted since", c.Verdict, protocol.Stale, protocol.ReasonRegranted)
	s.expectOK("ack", s.ack(got))
	c = s.change(workers[0], rs[0], Change{Ordinal: 1, InvisibleMs: hour})
	s.expect("settled since", c.Verdict, protocol.AlreadySettled, protocol.ReasonSettled)
}

// TestLostChangesOfALostGrant: how many changes the lease had is lost with it, so the one at hand counts as the next.
// (Only after a loss of what had been written: an answered change is on disk, and its grant before it.)
func TestLostChangesOfALostGrant(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	mark := s.mark()
	worker := s.session()
	r := s.pop1(worker, 30*second)
	for n := uint32(1); n <= 2; n++ {
		s.expectOK("renewal", s.change(worker, r, Change{Ordinal: n, InvisibleMs: int64(n+1) * 60 * second}).Verdict)
	}
	s.crash(mark)
	for _, n := range []uint32{0, 1 << 16, 1<<16 + 1} {
		s.expect("an ordinal that is none", s.change(worker, r, Change{Ordinal: n, InvisibleMs: hour}).Verdict, protocol.Stale, protocol.ReasonOrdinal)
	}
	c := s.change(worker, r, Change{Ordinal: 3, InvisibleMs: hour})
	s.expectOK("the third change", c.Verdict)
	if !c.Apply || c.RemainingMs != hour {
		t.Errorf("%+v", c)
	}
	if again := s.change(worker, r, Change{Ordinal: 3, InvisibleMs: hour}); again.Apply || again.Status != protocol.OK {
		t.Errorf("%+v", again)
	}
	s.expectOK("the fourth", s.change(worker, r, Change{Ordinal: 4, InvisibleMs: 2 * hour}).Verdict)
	s.expectOK("ack", s.ack(r))
}

// TestLostGrantAboveAKnownOne: the table knows an older grant of the message, whose end was lost with the newer one.
// An authentic token above the newest known is the newest: its holder may settle and change, and the older holder is told.
func TestLostGrantAboveAKnownOne(t *testing.T) {
	for name, waiting := range map[string]bool{"the older one runs": false, "the older one has ended": true} {
		t.Run(name, func(t *testing.T) {
			setup := func() (s *story, a, b holder, old, newer Receipt) {
				s = newStory(t, 1)
				s.send(0, 1)
				a, b = s.session(), s.session()
				old = s.pop1(a, 30*second)
				mark := s.mark()
				s.advance(30 * second)
				if waiting {
					mark = s.mark()
				}
				s.advance(second)
				newer = s.pop1(b, 30*second)
				s.crash(mark)
				return s, a, b, old, newer
			}

			s, a, _, old, newer := setup()
			v := s.ack(newer)
			s.expectOK("ack of the newer", v)
			if !v.Apply || !v.Lost || v.Token != newer.Token {
				t.Errorf("%+v", v)
			}
			if p := s.at(0); p != (Position{Next: 1, Settled: 1}) || s.table.Held(a.slot) != 0 {
				t.Errorf("%+v", p)
			}
			v = s.ack(old)
			s.expect("ack of the older", v, protocol.AlreadySettled, protocol.ReasonSettled)
			if v.Token != newer.Token {
				t.Errorf("%+v", v)
			}
			s.expectOK("ack of the newer again", s.ack(newer))

			s, a, b, old, newer := setup()
			c := s.change(b, newer, Change{Ordinal: 1, InvisibleMs: hour})
			s.expectOK("renewal by the newer", c.Verdict)
			if !c.Apply || !c.Lost || c.RemainingMs != hour {
				t.Errorf("%+v", c)
			}
			if s.table.Held(a.slot) != 0 || s.table.Held(b.slot) != 1 {
				t.Errorf("%d and %d are held", s.table.Held(a.slot), s.table.Held(b.slot))
			}
			if g, _ := s.table.Granted(s.slot(), 0, 0); g.Token != newer.Token || g.Attempts != 2 {
				t.Errorf("%+v", g)
			}
			v = s.ack(old)
			s.expect("ack of the older", v, protocol.Stale, protocol.ReasonRegranted)
			if v.Token != newer.Token {
				t.Errorf("%+v", v)
			}
			s.expectOK("ack of the newer", s.ack(newer))

			// The older one was first: then it has settled the message, and the newer one learns it.
			s, _, b, old, newer = setup()
			s.expectOK("ack of the older", s.ack(old))
			s.expect("ack of the newer", s.ack(newer), protocol.AlreadySettled, protocol.ReasonSettled)
			s.expect("renewal by the newer", s.change(b, newer, Change{Ordinal: 1, InvisibleMs: hour}).Verdict, protocol.AlreadySettled, protocol.ReasonSettled)

			// It was granted since: the lost one is an old one.
			s, _, _, _, newer = setup()
			s.advance(hour)
			s.pop1(s.session(), 30*second)
			s.expect("ack of the lost one", s.ack(newer), protocol.Stale, protocol.ReasonRegranted)
		})
	}
}

// TestFailureOfALostGrant: the failures of the grants before it are known, and count.
func TestFailureOfALostGrant(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.rules.BackOff = uint8(protocol.BackOffLevels)
	s.change(worker, r, Change{Ordinal: 1, Cause: protocol.CauseFailed})
	s.advance(levelsMs[0])
	mark := s.mark()
	r = s.pop1(worker, 30*second)
	s.crash(mark)
	c := s.change(worker, r, Change{Ordinal: 1, Cause: protocol.CauseFailed})
	s.expectOK("second failure", c.Verdict)
	if !c.Lost || c.RemainingMs != levelsMs[1] {
		t.Errorf("%+v", c)
	}
	s.advance(levelsMs[1])
	s.pop1(worker, 30*second)
	if g, _ := s.table.Granted(s.slot(), 0, 0); g.Failures != 2 || g.Attempts != 3 {
		t.Errorf("%+v", g)
	}
}

// TestLostSettlePreconditions: a record that stands for a lost grant fits only what that grant was newer than.
func TestLostSettlePreconditions(t *testing.T) {
	s, workers, rs := lostGrants(t, 3)
	got := s.pop1(s.session(), 30*second) // offset 1, granted since
	s.ack(rs[1])                          // offset 2, ahead
	settle := func(offset, token uint64) *codec.Settle {
		return &codec.Settle{Sub: 1, Runs: []codec.SettleRun{{Lost: true, Count: 1, Offset: offset, Token: token}}}
	}
	change := func(offset, token uint64) *codec.Change {
		return &codec.Change{Sub: 1, Entries: []codec.ChangeEntry{{Lost: true, Kind: codec.ChangeReleased, Ordinal: 1, Offset: offset, Token: token}}}
	}
	for name, x := range map[string]struct{ offset, token uint64 }{
		"granted since":               {1, rs[0].Token},
		"settled ahead":               {2, rs[1].Token + 1},
		"the same twice":              {2, rs[1].Token},
		"settled, and forgotten":      {0, rs[0].Token},
		"of a grant that is known":    {3, 1<<32 | 1},
		"of the running epoch":        {3, got.Token + 1},
		"of an epoch that never was":  {3, 1},
		"of an epoch yet to be begun": {3, 9<<32 | 1},
	} {
		s.refuse(name, settle(x.offset, x.token), holder{})
		s.refuse(name+", changed", change(x.offset, x.token), workers[0])
	}
}

// TestMessageLostWithItsGrant: the log was cut before the message, so the receipt names bytes that are gone; another
// message may stand at its offset by now.
func TestMessageLostWithItsGrant(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	gone := s.messages[0][0]
	mark := s.mark()
	worker := s.session()
	r := s.pop1(worker, 30*second)
	// The next epoch begins where the message lay.
	_, s.position = gone.Birth()
	s.crash(mark)
	s.messages[0] = nil
	s.expect("ack", s.ack(r), protocol.Stale, protocol.ReasonReset)
	s.expect("renewal", s.change(worker, r, Change{Ordinal: 1, InvisibleMs: hour}).Verdict, protocol.Stale, protocol.ReasonReset)

	s.send(0, 1)
	other := s.pop1(s.session(), 30*second)
	s.expect("ack, when another lies there", s.ack(r), protocol.Stale, protocol.ReasonReset)
	s.expectOK("ack of what is there now", s.ack(other))
	s.expect("ack, settled since", s.ack(r), protocol.Stale, protocol.ReasonReset)
	s.expectOK("ack of what is there now, again", s.ack(other))
}

// TestSubscriptionLostWithItsGrant: its id is given to the next one, which may be of another group or topic. The old
// receipts mean nothing to it, though their numbers fit.
func TestSubscriptionLostWithItsGrant(t *testing.T) {
	for name, other := range map[string]codec.Subscribe{
		"another group": {Sub: 1, Group: someGroup + 1, Topic: someTopic},
		"another topic": {Sub: 1, Group: someGroup, Topic: someTopic + 1},
	} {
		s := newStory(t, 1)
		s.send(0, 1)
		worker := s.session()
		r := s.pop1(worker, 30*second)
		s.crash(1) // nothing but the first epoch is left
		other.Starts = make([]uint64, 1)
		s.append(&other, holder{})
		s.expect(name, s.ack(r), protocol.Stale, protocol.ReasonReset)
		s.expect(name, s.change(worker, r, Change{Ordinal: 1, InvisibleMs: hour}).Verdict, protocol.Stale, protocol.ReasonReset)
		if p := s.at(0); p != (Position{}) {
			t.Errorf("%s: %+v", name, p)
		}
	}
	// The same pair subscribes again: the message, which is alive, is settled by its lost grant.
	s := newStory(t, 1)
	s.send(0, 1)
	r := s.pop1(s.session(), 30*second)
	s.crash(1)
	s.append(&codec.Subscribe{Sub: 1, Group: someGroup, Topic: someTopic, Starts: make([]uint64, 1)}, holder{})
	v := s.ack(r)
	s.expectOK("the same pair", v)
	if !v.Lost {
		t.Errorf("%+v", v)
	}
}

// TestAlive: a message lies in the log if its position belongs to the epoch of its birth.
func TestAlive(t *testing.T) {
	table := New()
	table.StartEpoch(1, 100)
	table.StartEpoch(5, 1000)
	table.StartEpoch(6, 1500)
	for _, test := range []struct {
		epoch    uint32
		position uint64
		alive    bool
	}{
		{1, 99, false}, {1, 100, true}, {1, 999, true}, {1, 1000, false}, {1, 5000, false},
		{5, 999, false}, {5, 1000, true}, {5, 1499, true}, {5, 1500, false},
		{6, 1499, false}, {6, 1500, true}, {6, 1 << 60, true},
		{0, 100, false}, {2, 1000, false}, {7, 2000, false},
	} {
		r := Receipt{ID: codec.NewMessageID(test.epoch, test.position)}
		if table.alive(&r) != test.alive {
			t.Errorf("born in epoch %d at %d: alive %t", test.epoch, test.position, !test.alive)
		}
	}
}

// TestSeveralCrashes: each epoch has a highest number of its own, for ever.
func TestSeveralCrashes(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 6)
	var lost, known []Receipt
	for range 3 {
		known = append(known, s.tickle2())
		mark := s.mark()
		lost = append(lost, s.pop1(s.session(), 30*second))
		s.crash(mark)
	}
	for i, r := range known {
		s.expectOK("settled", s.ack(r))
		switch v := s.ack(lost[i]); {
		case i < 2: // granted and settled after the crash
			s.expect("lost", v, protocol.AlreadySettled, protocol.ReasonSettled)
		default:
			s.expectOK("lost, and not granted since", v)
		}
	}
}
