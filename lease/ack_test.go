package lease

import (
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func TestAckSettles(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 2)
	worker := s.session()
	r := s.pop1(worker, 30*second)
	// When the holder acks, then the message is settled, and nothing is left of it.
	v := s.ack(r)
	s.expectOK("ack", v)
	if !v.Apply || v.Late || v.Lost || v.Token != r.Token {
		t.Errorf("%+v", v)
	}
	if got, want := s.at(0), (Position{Next: 1, Settled: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if s.table.Held(worker.slot) != 0 || s.table.entries.Len() != 0 || s.table.wheel.Len() != 0 {
		t.Error("something is left")
	}
	// A repeated ack is OK again, and appends nothing.
	for range 3 {
		s.advance(hour)
		v := s.ack(r)
		s.expectOK("ack again", v)
		if v.Apply || v.Token != r.Token {
			t.Errorf("%+v", v)
		}
	}
}

func TestAckOfSeveralAtOnce(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 10)
	worker := s.session()
	got := s.pop(worker, 0, 10, 30*second)
	s.append(&codec.Settle{Sub: 1, Session: worker.id, Runs: []codec.SettleRun{
		{Count: 3, Offset: 1, Token: got[0].Token}, {Count: 1, Offset: 8, Token: got[0].Token},
	}}, holder{})
	if got, want := s.at(0), (Position{Next: 10, Leased: 6, Settled: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestLateAck: the lease has ended by time, and nobody else was given the message: its holder still settles it,
// before and after the message is ready again.
func TestLateAck(t *testing.T) {
	for _, late := range []int64{0, 500, 999, 1000, hour} {
		s := newStory(t, 1)
		s.send(0, 1)
		worker := s.session()
		r := s.pop1(worker, 30*second)
		s.advance(30 * second)
		if p := s.at(0); p.Waiting != 1 {
			t.Fatalf("%+v", p)
		}
		s.advance(late)
		v := s.ack(r)
		s.expectOK("late ack", v)
		if !v.Apply || !v.Late {
			t.Errorf("after %d ms: %+v", late, v)
		}
		if got, want := s.at(0), (Position{Next: 1, Settled: 1}); got != want {
			t.Errorf("after %d ms: %+v, want %+v", late, got, want)
		}
		// It was granted once, so one receipt speaks of it, and that one is OK for ever.
		if s.table.entries.Len() != 0 {
			t.Error("it is remembered")
		}
		v = s.ack(r)
		s.expectOK("late ack again", v)
		if v.Apply || v.Late {
			t.Errorf("%+v", v)
		}
	}
}

// TestTheNewestGrantWins: the receipt of an older one is told of the newer token, and settles nothing.
func TestTheNewestGrantWins(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	first, second2 := s.session(), s.session()
	old := s.pop1(first, 30*second)
	s.advance(31 * second)
	newer := s.pop1(second2, 30*second)
	grantedMs := s.nowMs
	s.advance(second)

	v := s.ack(old)
	s.expect("ack by the old holder", v, protocol.Stale, protocol.ReasonRegranted)
	if v.Token != newer.Token || v.AtMs != grantedMs || v.Apply {
		t.Errorf("%+v", v)
	}
	c := s.change(first, old, Change{Ordinal: 1, InvisibleMs: 60 * second})
	s.expect("change by the old holder", c.Verdict, protocol.Stale, protocol.ReasonRegranted)
	if c.Token != newer.Token || c.AtMs != grantedMs || c.Apply {
		t.Errorf("%+v", c)
	}
	if s.table.Held(first.slot) != 0 || s.table.Held(second2.slot) != 1 {
		t.Error("the lease has moved")
	}

	settledMs := s.nowMs
	s.expectOK("ack by the new holder", s.ack(newer))
	s.advance(second)
	v = s.ack(old)
	s.expect("ack by the old holder afterwards", v, protocol.AlreadySettled, protocol.ReasonSettled)
	if v.Token != newer.Token || v.AtMs != settledMs {
		t.Errorf("%+v", v)
	}
	v = s.ack(newer)
	s.expectOK("ack by the new holder again", v)
	if v.Apply {
		t.Errorf("%+v", v)
	}
}

// TestReleaseVoidsTheReceipt: of every kind.
func TestReleaseVoidsTheReceipt(t *testing.T) {
	for name, x := range map[string]Change{
		"released":  {Ordinal: 1},
		"failed":    {Ordinal: 1, Cause: protocol.CauseFailed},
		"postponed": {Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 5 * second},
	} {
		s := newStory(t, 1)
		s.send(0, 1)
		worker := s.session()
		r := s.pop1(worker, 30*second)
		s.expectOK(name, s.change(worker, r, x).Verdict)
		releasedMs := s.nowMs
		for _, wait := range []int64{0, 10 * second} { // while it waits, and when it is ready
			s.advance(wait)
			v := s.ack(r)
			s.expect(name, v, protocol.Stale, protocol.ReasonReleased)
			if v.AtMs != releasedMs || v.Apply {
				t.Errorf("%s: %+v", name, v)
			}
			c := s.change(worker, r, Change{Ordinal: 2, InvisibleMs: 30 * second})
			s.expect(name+", renewed", c.Verdict, protocol.Stale, protocol.ReasonReleased)
		}
	}
}

// TestLossOfTheSessionVoidsTheReceipt: the broker asks for the session first; the table says the same.
func TestLossOfTheSessionVoidsTheReceipt(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	worker := s.session()
	r := s.pop1(worker, 30*second)
	s.end(worker, codec.EndExpired, 0)
	s.expect("ack", s.ack(r), protocol.Stale, protocol.ReasonSessionExpired)
	s.expect("change", s.change(worker, r, Change{Ordinal: 1, InvisibleMs: second}).Verdict, protocol.Stale, protocol.ReasonSessionExpired)
}

// TestReceiptsOfElsewhere: an authentic receipt of a subscription that is gone, of a queue that is not, of a message
// that a crash took away.
func TestReceiptsOfElsewhere(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 3)
	worker := s.session()
	r := s.pop1(worker, 30*second)
	for name, change := range map[string]func(r *Receipt){
		"another incarnation":           func(r *Receipt) { r.Sub = 2 },
		"a queue that is not":           func(r *Receipt) { r.Queue = 1 },
		"an offset that was not passed": func(r *Receipt) { r.Offset, r.ID = 1, s.messages[0][1] },
	} {
		other := r
		change(&other)
		v := s.ack(other)
		s.expect(name, v, protocol.Stale, protocol.ReasonReset)
		if v.Apply || v.Token != 0 || v.AtMs != 0 {
			t.Errorf("%s: %+v", name, v)
		}
		c := s.change(worker, other, Change{Ordinal: 1, InvisibleMs: second})
		s.expect(name+", changed", c.Verdict, protocol.Stale, protocol.ReasonReset)
	}
}

// TestSettlePreconditions: a SETTLE that does not fit does nothing.
func TestSettlePreconditions(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 9)
	worker := s.session()
	running := s.pop1(worker, hour)
	released := s.pop1(worker, hour)
	lost := s.pop1(worker, hour)
	done := s.pop1(worker, hour)
	s.release(worker, released, 1)
	s.ack(done)
	other := s.session()
	again := s.pop1(other, hour) // of released
	s.ack(again)
	s.end(worker, codec.EndFenced, hour)
	settle := func(run codec.SettleRun) *codec.Settle {
		run.Count = 1
		return &codec.Settle{Sub: 1, Session: worker.id, Runs: []codec.SettleRun{run}}
	}
	for name, bad := range map[string]*codec.Settle{
		"another token":                  settle(codec.SettleRun{Offset: running.Offset, Token: running.Token + 1}),
		"lost with the session":          settle(codec.SettleRun{Offset: lost.Offset, Token: lost.Token}),
		"settled":                        settle(codec.SettleRun{Offset: done.Offset, Token: done.Token}),
		"settled, remembered":            settle(codec.SettleRun{Offset: again.Offset, Token: again.Token}),
		"never granted":                  settle(codec.SettleRun{Offset: 8, Token: 1<<32 | 1}),
		"a queue that is not":            settle(codec.SettleRun{Queue: 1, Token: 1}),
		"lost, of the running epoch":     settle(codec.SettleRun{Offset: 8, Lost: true, Token: 1<<32 | 9}),
		"lost, of an epoch to come":      settle(codec.SettleRun{Offset: 8, Lost: true, Token: 2<<32 | 1}),
		"lost, of an epoch that was not": settle(codec.SettleRun{Offset: 8, Lost: true, Token: 1}),
		"a subscription that is not":     {Sub: 2, Runs: []codec.SettleRun{{Count: 1}}},
	} {
		s.refuse(name, bad, holder{})
	}
}
