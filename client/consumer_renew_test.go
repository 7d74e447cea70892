package client

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Renewals come at a third of each lease and ask for 8 times, 64 times ... as much, up to what may be.
func TestConsumerRenewals(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		granted := time.Now()
		s.giveRows(func(r *protocol.LeaseRow) { r.RenewalsLeft = 4 }, "m")
		r := s.renewal(granted, 10*time.Second, 1, 4*60_000)
		s.p.settled(r, renewed(4*60_000, 3))
		at := time.Now()
		r = s.renewal(at, 80*time.Second, 2, 32*60_000)
		s.p.settled(r, renewed(32*60_000, 2))
		at = time.Now()
		r = s.renewal(at, 640*time.Second, 3, 256*60_000)
		s.p.settled(r, renewed(256*60_000, 1))
		at = time.Now()
		r = s.renewal(at, 5120*time.Second, 4, 6*60*60_000)
		s.p.settled(r, renewed(6*60*60_000, 0))
		at = time.Now()
		cause := within(h.ended) // nothing more is asked for, and the lease ends
		wantErr(t, cause, ErrLeaseLost)
		if got := time.Since(at); got != 6*time.Hour {
			t.Errorf("the lease ended after %v", got)
		}
		s.given()
		if got := s.stats(); got.Renewals != 4 || got.LeasesLost != 1 || got.Cancelled != 1 || got.Failed != 0 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.stop())
	})
}

// The caps of a renewal: what is left plus the budget, and no budget at all.
func TestConsumerRenewalsAreCapped(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		at := time.Now()
		s.giveRows(func(r *protocol.LeaseRow) { r.BudgetMs, r.RenewalsLeft = 90_000, protocol.UnlimitedRenewals }, "m")
		r := s.renewal(at, 10*time.Second, 1, 20_000+90_000-1000) // a second less, for a request that takes its time
		s.p.settled(r, protocol.SettleResult{RemainingMs: 109_000, RenewalsLeft: protocol.UnlimitedRenewals, BudgetMs: 0})
		at = time.Now()
		wantErr(t, within(h.ended), ErrLeaseLost)
		if got := time.Since(at); got != 109*time.Second {
			t.Errorf("the lease ended after %v", got)
		}
		s.given()
		s.quiet(changes)
		ok(t, s.stop())
	})
}

func TestConsumerNoRenewals(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{NoRenewals: true}).run(h.handle)
		s.give("m")
		at := time.Now()
		wantErr(t, within(h.ended), ErrLeaseLost)
		if got := time.Since(at); got != 30*time.Second {
			t.Errorf("the lease ended after %v", got)
		}
		if got := s.given(); got.Cause != CausePostponed || got.InvisibleMs != 0 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// Two renewals that fail in a row cost nothing: each is tried again after a third of what is left then.
func TestConsumerFailedRenewals(t *testing.T) {
	for _, x := range []struct {
		name string
		fail func(s *stage, r request)
	}{
		{"refused as a whole", func(s *stage, r request) { s.p.refuse(r, protocol.StoreFull, "full") }},
		{"refused in the answer", func(s *stage, r request) { s.p.settled(r, protocol.SettleResult{Status: protocol.StoreFull}) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *fakeBroker) {
				h := newHeld()
				s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
				at := time.Now()
				s.give("m")
				x.fail(s, s.renewal(at, 10*time.Second, 1, 4*60_000))
				at = time.Now()
				x.fail(s, s.renewal(at, 20*time.Second/3, 1, 4*60_000))
				left := 20*time.Second - 20*time.Second/3
				at = time.Now()
				s.p.settled(s.renewal(at, left/3, 1, 4*60_000), renewed(4*60_000, 2))
				at = time.Now()
				s.p.settled(s.renewal(at, 80*time.Second, 2, 32*60_000), renewed(32*60_000, 1))
				h.returns(nil)
				s.acked()
				ok(t, s.toldOnce())
				if got := s.stats(); got.Renewals != 2 || got.RenewalsFailed != 2 || got.Cancelled != 0 {
					t.Errorf("got %+v", got)
				}
				ok(t, s.stop())
			})
		})
	}
}

// A renewal that gets no answer is tried again under the same ordinal, no less than 100 ms later, until the
// lease ends.
func TestConsumerUnansweredRenewals(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		at := time.Now()
		granted := at
		s.give("m")
		s.renewal(at, 10*time.Second, 1, 4*60_000)
		var last time.Duration
		n := 0
		for {
			at = time.Now()
			select {
			case <-s.by[changes]:
				last = time.Since(at)
				if last < 100*time.Millisecond {
					t.Fatalf("tried again after %v", last)
				}
				n++
				continue
			case cause := <-h.ended:
				wantErr(t, cause, ErrLeaseLost)
			}
			break
		}
		if got := time.Since(granted); got != 30*time.Second || n < 10 || last > 150*time.Millisecond {
			t.Errorf("cancelled after %v, %d more attempts, the last one after %v", got, n, last)
		}
		// The outcome of the renewal is open, so it is made certain before the message is given back.
		r, e := s.changed(1)
		if e[0].Cause != CauseRenew || e[0].Ordinal != 1 {
			t.Errorf("got %+v", e)
		}
		s.p.settled(r, protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonExpired})
		r, _ = s.changed(1)
		s.p.settled(r, protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonExpired})
		wantErr(t, s.toldOnce(), ErrStale)
		ok(t, s.stop())
	})
}

// The connection is down when a renewal is due: it goes out when there is one again.
func TestConsumerRenewalOverALostConnection(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		s.give("m")
		time.Sleep(9500 * time.Millisecond) // just after a heartbeat
		b.set(func() { b.refuse = errors.New("down") })
		s.p.close()
		time.Sleep(time.Second)
		b.set(func() { b.refuse = nil })
		s.reconnected()
		r, e := s.changed(1)
		if e[0].Ordinal != 1 || e[0].InvisibleMs != 4*60_000 {
			t.Errorf("got %+v", e)
		}
		s.p.settled(r, renewed(4*60_000, 2))
		h.returns(nil)
		s.acked()
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

func TestConsumerRenewLimit(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		at := time.Now()
		s.give("m")
		s.p.settled(s.renewal(at, 10*time.Second, 1, 4*60_000), protocol.SettleResult{Status: protocol.RenewLimit})
		time.Sleep(19 * time.Second)
		s.quiet(changes)
		h.returns(nil)
		s.acked()
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// A renewal that the broker calls stale cancels the handler at once; nil is tried as an ack all the same.
func TestConsumerStaleRenewal(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			h := newHeld()
			h.deaf = deaf
			s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
			at := time.Now()
			s.give("m")
			r := s.renewal(at, 10*time.Second, 1, 4*60_000)
			s.p.settled(r, protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonRegranted, Token: 99})
			cause := within(h.ended)
			var status *StatusError
			if wantErr(t, cause, ErrLeaseLost); !errors.As(cause, &status) || status.Reason != protocol.ReasonRegranted {
				t.Errorf("cause %v", cause)
			}
			if deaf {
				h.returns(nil)
				s.acked(protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonRegranted})
				wantErr(t, s.toldOnce(), ErrStale)
			} else {
				wantErr(t, s.toldOnce(), ErrLeaseLost, ErrStale)
			}
			s.quiet(changes, acks)
			ok(t, s.stop())
		})
	}
}

// A message that fails while it is being renewed is given back after the renewal; an ack does not wait.
func TestConsumerSettlesDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Workers: 2}).run(h.handle)
		at := time.Now()
		s.give("a", "b")
		first, second := within(h.begun), within(h.begun)
		r, e := s.changed(2)
		if time.Since(at) != 10*time.Second || e[0].Cause != CauseRenew {
			t.Errorf("got %+v", e)
		}
		_, _ = first, second
		h.returns(nil)
		receipts := s.acked() // one of the two
		ok(t, s.toldOnce())
		h.returns(errors.New("no"))
		s.quiet(changes)
		results := make([]protocol.SettleResult, 2)
		for i := range e {
			results[i] = renewed(4*60_000, 2)
			if name(e[i].Receipt) == receipts[0] {
				results[i] = protocol.SettleResult{Status: protocol.AlreadySettled, Reason: protocol.ReasonSettled}
			}
		}
		s.p.settled(r, results...)
		if got := s.given(); got.Cause != CauseFailed || got.Ordinal != 2 || name(got.Receipt) == receipts[0] {
			t.Errorf("got %+v", got)
		}
		ok(t, s.toldOnce())
		if got := s.stats(); got.Cancelled != 0 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.stop())
	})
}

// Buffered messages are renewed, too, in one call with the others; one whose lease is over is not handed out.
func TestConsumerBufferedMessages(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Prefetch: 2}).run(h.handle)
		if m := s.give("a", "b", "c"); m.Max != 3 {
			t.Errorf("a pop of %d", m.Max)
		}
		within(h.begun)
		r, e := s.changed(3)
		results := make([]protocol.SettleResult, 3)
		for i := range e {
			if results[i] = renewed(4*60_000, 2); name(e[i].Receipt) == "b" {
				results[i] = protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonReset}
			}
		}
		s.p.settled(r, results...)
		if m := s.give(); m.Max != 1 { // room for one in place of b
			t.Errorf("a pop of %d", m.Max)
		}
		h.returns(nil)
		if d := within(h.begun); text(d) != "c" {
			t.Errorf("got %s", text(d))
		}
		s.acked()
		h.returns(nil)
		s.acked()
		if got := s.told(); len(got) != 2 {
			t.Errorf("told %v", got)
		}
		ok(t, s.stop())
	})
}

// A handler that stalls is not renewed any more, whether it listens or not.
func TestConsumerStalledIsNotRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{ProgressTimeout: 8 * time.Second}).run(h.handle)
		s.give("m")
		d := within(h.begun)
		wantErr(t, within(h.ended), ErrStalled)
		time.Sleep(time.Hour)
		s.quiet(changes)
		d.Progress("too late")
		h.returns(nil)
		s.acked()
		ok(t, s.toldOnce())
		ok(t, s.stop())
		(&Delivery{}).Progress("of no consumer")
	})
}

// A renewal that was too late, and asked for more than is left by now, is followed by one that asks for less.
func TestConsumerRenewLimitWithSomethingLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		at := time.Now()
		s.give("m")
		r := s.renewal(at, 10*time.Second, 1, 4*60_000)
		s.p.settled(r, protocol.SettleResult{Status: protocol.RenewLimit, RemainingMs: 20_000, RenewalsLeft: 2, BudgetMs: 60_000})
		synctest.Wait()
		r, m := s.changed(1)
		if x := m[0]; x.Ordinal != 1 || x.InvisibleMs <= 30_000 || x.InvisibleMs >= 80_000 {
			t.Errorf("got %+v", x)
		}
		s.p.settled(r, renewed(m[0].InvisibleMs, 1))
		h.returns(nil)
		s.acked()
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// A crash of the broker may take a first grant that was answered: the leases from before it are confirmed at once.
func TestConsumerProvesItsLeasesAfterARestart(t *testing.T) {
	for _, taken := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			h := newHeld()
			s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
			at := time.Now()
			s.giveRows(func(r *protocol.LeaseRow) { r.Attempt = 1 }, "m")
			within(h.begun)
			time.Sleep(time.Second)
			b.set(func() { b.hello.Epoch++ })
			s.p.close()
			s.reconnected()
			r, m := s.changed(1)
			if x := m[0]; x.Cause != CauseRenew || x.Ordinal != 1 || x.InvisibleMs > 29_000 || x.InvisibleMs < 28_000 {
				t.Errorf("got %+v", x)
			}
			if taken {
				s.p.settled(r, protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonRegranted, Token: 8<<32 | 1})
				wantErr(t, within(h.ended), ErrLeaseLost, ErrStale)
				wantErr(t, s.toldOnce(), ErrLeaseLost)
				s.quiet(changes)
				ok(t, s.stop())
				return
			}
			s.p.settled(r, renewed(m[0].InvisibleMs, 3))
			s.p.close() // the same start of the broker: there is nothing to be confirmed
			s.reconnected()
			// The ladder begins where it would have begun.
			r, m = s.changed(1)
			if x := m[0]; x.Ordinal != 2 || x.InvisibleMs != 240_000 || time.Since(at) < 9*time.Second {
				t.Errorf("got %+v after %v", x, time.Since(at))
			}
			s.p.settled(r, renewed(240_000, 2))
			h.returns(nil)
			s.acked()
			ok(t, s.toldOnce())
			ok(t, s.stop())
		})
	}
}

// What renewals have given a handler is taken back when it stalls: its message is free after the length of a lease.
func TestConsumerStallShortensTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{ProgressTimeout: time.Minute}).run(h.handle)
		s.give("m")
		d := within(h.begun)
		r, _ := s.changed(1)
		s.p.settled(r, renewed(240_000, 2))
		wantErr(t, within(h.ended), ErrStalled)
		s.quiet(changes) // it may return yet
		r, m := s.changed(1)
		if x := m[0]; x.Cause != CauseRenew || x.InvisibleMs != 30_000 || x.Ordinal != 2 {
			t.Errorf("got %+v", x)
		}
		s.p.settled(r, renewed(30_000, 2))
		synctest.Wait()
		if left := time.Until(d.Deadline()); left > 30*time.Second || left < 29*time.Second {
			t.Errorf("%v are left", left)
		}
		time.Sleep(time.Hour)
		s.quiet(changes)
		if got := s.stats(); got.Renewals != 1 || got.Stalled != 1 {
			t.Errorf("got %+v", got)
		}
		h.returns(nil)
		s.acked()
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// A renewal that was under way when its handler stalled is taken back, too.
func TestConsumerStallsDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{ProgressTimeout: 11 * time.Second}).run(h.handle)
		s.give("m")
		within(h.begun)
		r, _ := s.changed(1)
		wantErr(t, within(h.ended), ErrStalled)
		s.p.settled(r, renewed(240_000, 2))
		r, m := s.changed(1)
		if x := m[0]; x.InvisibleMs != 30_000 || x.Ordinal != 2 {
			t.Errorf("got %+v", x)
		}
		s.p.settled(r, renewed(30_000, 2))
		h.returns(nil)
		s.acked()
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// The group's rules have changed since the session began: a renewal asks for what they allow now.
func TestConsumerRenewalsUnderNewRules(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		at := time.Now()
		s.give("m")
		s.p.settled(s.renewal(at, 10*time.Second, 1, 4*60_000), protocol.SettleResult{Status: protocol.Invalid, BudgetMs: 60_000})
		at = time.Now()
		s.p.settled(s.renewal(at, 20*time.Second/3, 1, 60_000), renewed(60_000, 2))
		at = time.Now()
		s.p.settled(s.renewal(at, 20*time.Second, 2, 60_000), renewed(60_000, 1))
		h.returns(nil)
		s.acked()
		ok(t, s.stop())
	})
}

// Leases that are due at once are renewed in one call, but those near their end do not hurry the others.
func TestConsumerRenewsInGroups(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Workers: 4, FinishWithin: -1}).run(h.handle)
		s.giveRows(func(r *protocol.LeaseRow) {
			if strings.HasPrefix(name(r.Receipt), "short") { // due at the same moment as the others, with little left
				r.RemainingMs = 15_000
			}
		}, "short 1", "short 2", "long 1", "long 2")
		time.Sleep(5 * time.Second)
		r, e := s.changed(2)
		if !strings.HasPrefix(name(e[0].Receipt), "short") {
			t.Errorf("got %+v", e)
		}
		s.p.settled(r, protocol.SettleResult{Status: protocol.StoreFull}, protocol.SettleResult{Status: protocol.StoreFull})
		for range 3 {
			r, e = s.changed(2)
			if name(e[0].Receipt)[0] != name(e[1].Receipt)[0] {
				t.Errorf("got %+v", e)
			}
			s.p.settled(r, protocol.SettleResult{Status: protocol.StoreFull}, protocol.SettleResult{Status: protocol.StoreFull})
		}
		s.cancel()
		for n := 0; n < 4; {
			r := s.expect(changes, nil)
			var m protocol.ChangeInvisibleRequest
			ok(t, m.Decode(r.body))
			n += len(m.Entries)
			s.p.settled(r, make([]protocol.SettleResult, len(m.Entries))...)
		}
		ok(t, s.stop())
	})
}
