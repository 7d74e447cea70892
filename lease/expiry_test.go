package lease

import (
	"math"
	"slices"
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func TestExpiry(t *testing.T) {
	// Given a lease of 30 s,
	s, worker, r := leaseOfOne(t)
	end := s.nowMs + 30*second
	// when a millisecond of it is left, then nothing is proposed.
	if got := s.advance(30*second - 1); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	// When it is over, then its end is proposed, with a second until the message is visible again.
	got := s.advance(1)
	want := []codec.ReleaseEntry{{Sub: 1, Offset: 0, Token: r.Token, AtMs: end + second}}
	if !slices.Equal(got, want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
	if p := s.at(0); p != (Position{Next: 1, Waiting: 1}) || s.table.Held(worker.slot) != 0 {
		t.Errorf("%+v", p)
	}
	if got := s.pop(worker, 0, 1, second); len(got) != 0 {
		t.Error("it was granted at once")
	}
	s.advance(second - 1)
	if got := s.pop(worker, 0, 1, second); len(got) != 0 {
		t.Error("it was granted too early")
	}
	s.advance(1)
	s.pop1(worker, second)
	if g, _ := s.table.Granted(s.slot(), 0, 0); g.Attempts != 2 || g.Expiries != 1 || g.Failures != 0 || g.Losses != 0 {
		t.Errorf("%+v", g)
	}
}

// TestRenewedLeaseOutlivesItsFirstEnd: its timer is not moved by a renewal, and must not end it.
func TestRenewedLeaseOutlivesItsFirstEnd(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.change(worker, r, Change{Ordinal: 1, InvisibleMs: 50 * second})
	for range 4 {
		if got := s.advance(10 * second); len(got) != 0 {
			t.Fatalf("%+v", got)
		}
	}
	if at, ok := s.table.NextTimer(); !ok || at > s.nowMs+10*second {
		t.Errorf("next timer %d %t", at, ok)
	}
	if got := s.advance(10 * second); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
}

// TestLateTick: a tick that comes long after the end does not make the message wait once more; it has been invisible
// for long enough.
func TestLateTick(t *testing.T) {
	s, _, _ := leaseOfOne(t)
	got := s.advance(30*second + 700)
	if len(got) != 1 || got[0].AtMs != s.nowMs+300 {
		t.Fatalf("%+v at %d", got, s.nowMs)
	}
	s, worker, _ := leaseOfOne(t)
	got = s.advance(hour)
	if len(got) != 1 || got[0].AtMs != s.nowMs {
		t.Fatalf("%+v at %d", got, s.nowMs)
	}
	if p := s.at(0); p.Ready != 1 {
		t.Errorf("%+v", p)
	}
	s.pop1(worker, second)
}

// TestProposedAgainUntilRecorded: a proposal that came to nothing is made again by the next tick, and in between
// everything holds.
func TestProposedAgainUntilRecorded(t *testing.T) {
	s, _, r := leaseOfOne(t)
	s.nowMs += 30 * second
	for range 3 {
		got, more := s.table.Advance(s.nowMs, math.MaxInt, nil)
		if len(got) != 1 || more {
			t.Fatalf("%+v %t", got, more)
		}
		s.check()
		if again, _ := s.table.Advance(s.nowMs, math.MaxInt, nil); len(again) != 0 {
			t.Errorf("proposed twice in a millisecond: %+v", again)
		}
		s.nowMs++
	}
	// Until then the lease runs: its holder settles it, and not late.
	v := s.ack(r)
	s.expectOK("ack", v)
	if v.Late {
		t.Error("it counts as late")
	}
	if got := s.advance(second); len(got) != 0 {
		t.Errorf("it was proposed after it was settled: %+v", got)
	}
}

// TestAdvanceInSlices: the work of a call is bounded, and what is left over comes next, in order.
func TestAdvanceInSlices(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 100)
	worker := s.session()
	for range 100 {
		s.pop1(worker, 30*second)
		s.nowMs++
	}
	s.nowMs += hour
	var all []codec.ReleaseEntry
	for more := true; more; {
		var got []codec.ReleaseEntry
		got, more = s.table.Advance(s.nowMs, 7, nil)
		if len(got) > 7 {
			t.Fatalf("%d in one call", len(got))
		}
		if len(got) > 0 {
			s.append(&codec.Expire{Entries: got}, holder{})
		}
		all = append(all, got...)
	}
	if len(all) != 100 {
		t.Fatalf("%d of 100", len(all))
	}
	for i, x := range all {
		if x.Offset != uint64(i) {
			t.Fatalf("offset %d is number %d", x.Offset, i)
		}
	}
}

// TestExpirePreconditions: a lease ends by time only when its time is over, on the clock of the record.
func TestExpirePreconditions(t *testing.T) {
	s := newStory(t, 2)
	s.send(0, 2)
	worker := s.session()
	r := s.pop1(worker, 30*second)
	settled := s.pop1(worker, 30*second)
	s.ack(settled)
	expire := func(x codec.ReleaseEntry) *codec.Expire { return &codec.Expire{Entries: []codec.ReleaseEntry{x}} }
	s.nowMs += 30*second - 1
	s.refuse("a lease that runs", expire(codec.ReleaseEntry{Sub: 1, Token: r.Token}), holder{})
	s.nowMs++
	for name, x := range map[string]codec.ReleaseEntry{
		"another subscription": {Sub: 2, Token: r.Token},
		"another queue":        {Sub: 1, Queue: 1, Token: r.Token},
		"a queue that is not":  {Sub: 1, Queue: 2, Token: r.Token},
		"another offset":       {Sub: 1, Offset: 5, Token: r.Token},
		"another token":        {Sub: 1, Token: r.Token + 1},
		"a settled one":        {Sub: 1, Offset: 1, Token: settled.Token},
	} {
		s.refuse(name, expire(x), holder{})
	}
	s.append(expire(codec.ReleaseEntry{Sub: 1, Token: r.Token, AtMs: s.nowMs + second}), holder{})
	s.refuse("the same twice", expire(codec.ReleaseEntry{Sub: 1, Token: r.Token}), holder{})
}

// TestCountersDoNotWrap: they stay at the most that they hold.
func TestCountersDoNotWrap(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	for range 300 {
		worker := s.session()
		s.pop1(worker, second)
		s.end(worker, codec.EndExpired, 0)
	}
	worker := s.session()
	r := s.pop1(worker, 30*second)
	if g, _ := s.table.Granted(s.slot(), 0, 0); g.Attempts != 301 || g.Losses != 255 || g.Token != r.Token {
		t.Errorf("%+v", g)
	}
	for _, table := range []*Table{s.table, s.shadow} {
		i, _ := table.lookup(s.slot(), 0, 0)
		e := table.entries.Mut(i)
		e.attempts, e.renewals, e.failures, e.expiries = 65535, 65535, 255, 255
	}
	s.rules.MaxRenewals = protocol.UnlimitedRenewals
	s.expectOK("renewal", s.change(worker, r, Change{Ordinal: 1, InvisibleMs: hour}).Verdict)
	s.expectOK("failure", s.change(worker, r, Change{Ordinal: 2, Cause: protocol.CauseFailed}).Verdict)
	s.advance(5 * second)
	s.pop1(worker, second)
	s.advance(10 * second)
	s.pop1(worker, second)
	if g, _ := s.table.Granted(s.slot(), 0, 0); g.Attempts != 65535 || g.Failures != 255 || g.Expiries != 255 {
		t.Errorf("%+v", g)
	}
}
