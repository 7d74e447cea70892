package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// When no heartbeat is answered handlers end before the broker may give their messages away; when they are
// answered again in the same session, what was buffered goes on.
func TestConsumerSilentSession(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Prefetch: 2, NoRenewals: true}).run(h.handle)
		s.setMute(true)
		at := time.Now()
		s.giveRows(func(r *protocol.LeaseRow) {
			r.RemainingMs = 60_000
			if name(r.Receipt) == "c" {
				r.RemainingMs = 8000
			}
		}, "a", "b", "c")
		within(h.begun)
		<-h.ctx
		beat := s.expect(protocol.OpHeartbeat, nil)
		// Something else is answered, so that the connection lives on.
		var cause error
		for cause == nil {
			select {
			case cause = <-h.ended:
			case <-time.After(time.Second):
				if time.Since(at) > 20*time.Second {
					t.Fatal("not cancelled")
				}
				s.p.push(protocol.Opcode(0x8e), protocol.OK, nil)
			}
		}
		if got := time.Since(at); got != 9*time.Second {
			t.Errorf("cancelled after %v", got)
		}
		wantErr(t, cause, ErrSessionLost)
		// What was buffered under a lease that has ended by this side's clock is given back: the broker may see it otherwise.
		for _, want := range []string{"c", "a"} {
			if got := s.given(); got.Cause != CausePostponed || got.InvisibleMs != 0 || name(got.Receipt) != want {
				t.Errorf("got %+v, want %s", got, want)
			}
		}
		ok(t, s.toldOnce())
		synctest.Wait()
		if len(h.begun) > 0 {
			t.Error("a buffered message was handed out")
		}
		s.setMute(false)
		s.p.answer(beat, protocol.OK, &protocol.HeartbeatAnswer{}) // it is of 6 s ago
		synctest.Wait()
		if d := within(h.begun); text(d) != "b" || (<-h.ctx).Err() != nil {
			t.Errorf("got %s", text(d))
		}
		h.returns(nil)
		s.acked()
		ok(t, s.toldOnce())
		synctest.Wait()
		if len(h.begun) > 0 {
			t.Error("a message was handed out whose lease had ended")
		}
		if got := s.stats(); got.Sessions != 1 || got.LeasesLost != 1 || got.Cancelled != 1 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.stop())
	})
}

func endSession(id uint64, why protocol.Reason) *protocol.SessionEnded {
	return &protocol.SessionEnded{Session: id, Reason: why}
}

// A lost session is followed by another one, in which what is not settled yet is reclaimed.
func TestConsumerReclaims(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{Workers: 3, Prefetch: 2, Invisible: time.Minute, Create: true}).run(h.handle)
		s.give("a", "b", "c", "d", "buffered")
		for range 3 {
			within(h.begun)
		}
		h.returns(nil) // its ack is under way when the session ends
		within(h.begun)
		ack := s.expect(acks, nil)
		lostAt := time.Now()
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		for range 3 {
			wantErr(t, within(h.ended), ErrSessionLost, ErrSessionNotFound)
		}
		var m protocol.RegisterRequest
		r := s.expect(sessions, &m)
		if wait := time.Since(lostAt); wait < minBackOff || wait > 3*minBackOff {
			t.Errorf("registered again after %v", wait)
		}
		if m.Previous != 77 || m.ConsumerID != "me" || m.ReclaimMs != 60_000 || len(m.Receipts) != 4 || r.Flags != protocol.FlagCreate {
			t.Errorf("got %+v", m)
		}
		s.p.refuse(ack, protocol.SessionNotFound, "")
		answer := registered(78)
		for i := range m.Receipts {
			x := protocol.Reclaimed{Token: 100, Attempt: 3, RemainingMs: 60_000, RenewalsLeft: 3, BudgetMs: 1 << 30, Receipt: []byte("new " + name(m.Receipts[i]))}
			if name(m.Receipts[i]) == "b" {
				x = protocol.Reclaimed{Status: protocol.Stale, Reason: protocol.ReasonRegranted, Token: 99}
			}
			answer.Reclaimed = append(answer.Reclaimed, x)
		}
		s.p.answer(r, protocol.OK, answer)
		// The ack goes out again under the new lease, unless it was of b.
		for range 3 {
			h.returns(nil)
		}
		synctest.Wait()
		got := map[string]bool{}
		for len(got) < 3 {
			for _, receipt := range s.acked() {
				got[receipt] = true
			}
		}
		if !got["new a"] || !got["new c"] || !got["new d"] {
			t.Errorf("acked %v", got)
		}
		list := s.told()
		if len(list) != 4 {
			t.Fatalf("told %v", list)
		}
		for _, x := range list {
			if text(x.d) != "b" {
				ok(t, x.err)
				continue
			}
			var status *StatusError
			if wantErr(t, x.err, ErrSessionLost, ErrStale); !errors.As(x.err, &status) || status.Reason != protocol.ReasonRegranted {
				t.Errorf("got %v", x.err)
			}
		}
		if got := s.stats(); got.Sessions != 2 || got.Reclaimed != 3 || got.Acked != 3 || got.Refused != 1 {
			t.Errorf("got %+v", got)
		}
		s.quiet(acks, changes)
		ok(t, s.stop())
	})
}

// A reclaimed message whose handler goes on is renewed under its new lease. An error gives it back uncounted.
func TestConsumerRenewsWhatItReclaimed(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		s.give("m")
		within(h.begun)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		within(h.ended)
		s.register(78, protocol.Reclaimed{Token: 100, RemainingMs: 30_000, RenewalsLeft: 3, BudgetMs: 1 << 30, Receipt: []byte("new")})
		at := time.Now()
		r := s.renewal(at, 10*time.Second, 1, 4*60_000)
		s.p.settled(r, renewed(4*60_000, 2))
		h.returns(errors.New("interrupted"))
		got := s.given()
		if got.Cause != CausePostponed || got.InvisibleMs != 0 || name(got.Receipt) != "new" || got.Ordinal != 2 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.toldOnce())
		if got := s.stats(); got.Failed != 0 || got.Returned != 1 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.stop())
	})
}

// An ack whose answer was lost with the session, and which the broker then names as what settled the message,
// was done.
func TestConsumerAckThatWasDone(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(func(context.Context, *Delivery) error { return nil })
		s.give("m")
		s.expect(acks, nil)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		s.register(78, protocol.Reclaimed{Status: protocol.AlreadySettled, Reason: protocol.ReasonSettled, Token: 7<<32 | 1})
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// Registering is tried again, as one registration to the broker.
func TestConsumerRegistersAgainAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{})
		s.starts(func(ctx context.Context) error { return s.k.Run(ctx, newHeld().handle) })
		var first, m protocol.RegisterRequest
		s.p.refuse(s.expect(sessions, &first), protocol.Draining, "")
		for range 20 {
			at := time.Now()
			r := s.expect(sessions, &m)
			if wait := time.Since(at); wait < minBackOff || wait > maxBackOff {
				t.Errorf("after %v", wait)
			}
			if m.Nonce != first.Nonce || m.Nonce == [16]byte{} {
				t.Errorf("another nonce: %x", m.Nonce)
			}
			s.p.refuse(r, protocol.StoreFailed, "")
		}
		s.register(77)
		s.expect(pops, nil)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		if m := s.register(78); m.Nonce == first.Nonce || m.Previous != 77 {
			t.Errorf("got %+v", m)
		}
		ok(t, s.stop())
	})
}

// A fenced consumer ends, with its handlers, and does not register again.
func TestConsumerFenced(t *testing.T) {
	for _, at := range []string{"running", "registering again", "stopping"} {
		t.Run(at, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *fakeBroker) {
				h := newHeld()
				h.deaf = at == "stopping"
				s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
				s.give("m")
				within(h.begun)
				switch at {
				case "stopping":
					s.cancel()
					synctest.Wait()
					fallthrough
				case "running":
					s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionFenced))
				default:
					s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
					s.p.refuse(s.expect(sessions, nil), protocol.SessionFenced, "somebody else has it")
				}
				wantErr(t, within(h.ended), ErrSessionLost)
				if h.deaf {
					h.returns(nil)
				}
				wantErr(t, s.wait(), ErrSessionFenced)
				wantErr(t, s.toldOnce(), ErrSessionLost)
				time.Sleep(time.Hour)
				s.quiet(sessions, pops, acks, changes)
			})
		})
	}
}

// What ends Run, and what is tried again.
func TestConsumerErrors(t *testing.T) {
	for _, x := range []struct {
		status protocol.Status
		ends   bool
	}{
		{protocol.Invalid, true}, {protocol.Unsupported, true}, {protocol.TopicNotFound, true}, {protocol.GroupNotFound, true},
		{protocol.FilterConflict, true}, {protocol.GroupModeConflict, true},
		{protocol.StoreFull, false}, {protocol.StoreFailed, false}, {protocol.Draining, false}, {protocol.LimitExceeded, false},
		{protocol.Superseded, false}, {protocol.Internal, false},
	} {
		t.Run(x.status.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *fakeBroker) {
				s := stageFor(t, b, ConsumerOptions{}).run(newHeld().handle)
				s.p.refuse(s.expect(pops, nil), x.status, "so")
				if !x.ends {
					at := time.Now()
					s.expect(pops, nil)
					if wait := time.Since(at); wait < minBackOff {
						t.Errorf("again after %v", wait)
					}
					ok(t, s.stop())
					return
				}
				s.p.answer(s.expect(leaves, nil), protocol.OK, nil)
				var status *StatusError
				if err := s.wait(); !errors.As(err, &status) || status.Status != x.status {
					t.Errorf("got %v", err)
				}
			})
			bubble(t, func(t *testing.T, b *fakeBroker) {
				s := stageFor(t, b, ConsumerOptions{})
				s.starts(func(ctx context.Context) error { return s.k.Run(ctx, newHeld().handle) })
				s.p.refuse(s.expect(sessions, nil), x.status, "so")
				if x.ends {
					var status *StatusError
					if err := s.wait(); !errors.As(err, &status) || status.Status != x.status {
						t.Errorf("got %v", err)
					}
					return
				}
				s.register(77)
				ok(t, s.stop())
			})
		})
	}
}

func TestConsumerWithAClosedClient(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		s.give("m")
		within(h.begun)
		ok(t, s.c.Close())
		wantErr(t, within(h.ended), ErrSessionLost, ErrClosed)
		wantErr(t, s.wait(), ErrClosed)
		wantErr(t, s.toldOnce(), ErrSessionLost)
		wantErr(t, s.k.Run(t.Context(), h.handle), ErrClosed)
	})
}

// What a pop brings while no heartbeat is answered waits, and is not lost.
func TestConsumerPopsWhileSilent(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Workers: 2}).run(h.handle)
		s.setMute(true)
		s.give("a")
		within(h.begun)
		s.p.push(protocol.Opcode(0x8e), protocol.OK, nil)
		beat := s.expect(protocol.OpHeartbeat, nil)
		for range 6 {
			time.Sleep(time.Second)
			s.p.push(protocol.Opcode(0x8e), protocol.OK, nil)
		}
		wantErr(t, within(h.ended), ErrSessionLost)
		s.given()
		s.give("b") // the pop that was under way
		s.quiet(pops)
		if len(h.begun) > 0 {
			t.Error("handed out")
		}
		s.setMute(false)
		s.p.answer(beat, protocol.OK, &protocol.HeartbeatAnswer{})
		if d := within(h.begun); text(d) != "b" {
			t.Errorf("got %s", text(d))
		}
		h.returns(nil)
		s.acked()
		ok(t, s.stop())
	})
}

// A lease that is reclaimed while the renewal of the former one is under way is renewed on its own terms.
func TestConsumerReclaimsDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		at := time.Now()
		s.give("m")
		within(h.begun)
		s.renewal(at, 10*time.Second, 1, 4*60_000)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		within(h.ended)
		s.register(78, protocol.Reclaimed{Token: 100, RemainingMs: 30_000, RenewalsLeft: 3, BudgetMs: 1 << 30, Receipt: []byte("new")})
		at = time.Now()
		s.p.settled(s.renewal(at, 10*time.Second, 1, 4*60_000), renewed(4*60_000, 2))
		h.returns(nil)
		if got := s.acked(); got[0] != "new" {
			t.Errorf("acked %v", got)
		}
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// A job that one registration could not reclaim, and the next one could, is acked under its new lease.
func TestConsumerReclaimsAtTheSecondTry(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		s.give("m")
		within(h.begun)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		within(h.ended)
		s.register(78, protocol.Reclaimed{Status: protocol.StoreFull})
		synctest.Wait() // a push about a session that the client does not know yet is passed over
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(78, protocol.ReasonSessionExpired))
		s.register(79, protocol.Reclaimed{Token: 100, RemainingMs: 30_000, RenewalsLeft: 3, BudgetMs: 1 << 30, Receipt: []byte("new")})
		h.returns(nil)
		var m protocol.AckRequest
		r := s.expect(acks, &m)
		if m.Session != 79 || string(m.Entries[0].Receipt) != "new" {
			t.Errorf("got %+v", m)
		}
		s.p.settled(r, protocol.SettleResult{})
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// A worker that is free in the very moment in which the session becomes silent, or a lease ends, hands nothing out, whether the
// keeper has been there before or not.
func TestConsumerHandsOutByTheClock(t *testing.T) {
	for _, x := range []struct {
		name string
		ms   uint32 // of the leases
		free time.Duration
	}{{"session", 60_000, 9 * time.Second}, {"lease", 8_000, 8 * time.Second}} {
		t.Run(x.name, func(t *testing.T) {
			for range 20 {
				bubble(t, func(t *testing.T, b *fakeBroker) {
					var calls atomic.Int64
					var s *stage
					s = stageFor(t, b, ConsumerOptions{Prefetch: 1, NoRenewals: true}).run(func(ctx context.Context, d *Delivery) error {
						if calls.Add(1); text(d) == "a" {
							time.Sleep(time.Until(s.began.Add(x.free)))
						}
						return nil
					})
					s.setMute(x.name == "session")
					s.giveRows(func(r *protocol.LeaseRow) { r.RemainingMs = x.ms }, "a", "b")
					time.Sleep(time.Until(s.began.Add(x.free + time.Millisecond)))
					synctest.Wait()
					if calls.Load() != 1 {
						t.Fatalf("%d messages were handed out", calls.Load())
					}
					s.c.Close()
				})
			}
		})
	}
}
