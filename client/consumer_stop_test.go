package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func TestConsumerRunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(newHeld().handle)
		if err := s.k.RunBatch(t.Context(), func(context.Context, []*Delivery) error { return nil }); err == nil {
			t.Error("a second Run at once")
		}
		ok(t, s.stop())
		s.run(newHeld().handle) // but one after the other
		ok(t, s.stop())
		wantErr(t, s.k.Run(t.Context(), nil), ErrInvalid)
		wantErr(t, s.k.RunBatch(t.Context(), nil), ErrInvalid)
		wantErr(t, s.c.Consumer("g", "t", ConsumerOptions{Batch: 257}).RunBatch(t.Context(), func(context.Context, []*Delivery) error { return nil }), ErrInvalid)
	})
}

// In order: nothing more is taken, what is buffered goes back at once, handlers finish, the session is left last.
func TestConsumerShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Workers: 2, Prefetch: 2}).run(h.handle)
		s.give("a", "b", "c")
		within(h.begun)
		within(h.begun)
		pop := s.expect(pops, nil)
		s.cancel()
		if got := s.given(); name(got.Receipt) != "c" || got.Cause != CausePostponed || got.InvisibleMs != 0 {
			t.Errorf("got %+v", got)
		}
		s.p.answer(pop, protocol.OK, popAnswer(messageRecord(t, 9, codec.Message{}))) // too late: it goes back
		if got := s.given(); got.Cause != CausePostponed {
			t.Errorf("got %+v", got)
		}
		s.quiet(pops, leaves)
		time.Sleep(15 * time.Second) // renewals go on
		r, _ := s.changed(2)
		s.p.settled(r, renewed(4*60_000, 2), renewed(4*60_000, 2))
		h.returns(nil)
		s.acked()
		s.quiet(pops, leaves)
		h.returns(errors.New("no"))
		r, e := s.changed(1)
		if e[0].Cause != CauseFailed {
			t.Errorf("got %+v", e)
		}
		s.quiet(leaves)
		s.p.settled(r, protocol.SettleResult{})
		s.p.answer(s.expect(leaves, nil), protocol.OK, nil)
		ok(t, s.wait())
		if got := s.told(); len(got) != 2 {
			t.Errorf("told %v", got)
		}
		time.Sleep(time.Minute)
		s.quiet(pops, acks, changes, leaves, protocol.OpHeartbeat)
	})
}

// Handlers that do not finish in time are cancelled; what they return then is no failure.
func TestConsumerShutdownCancels(t *testing.T) {
	for _, limit := range []time.Duration{0, -1, 3 * time.Second} {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			h := newHeld()
			s := stageFor(t, b, ConsumerOptions{FinishWithin: limit}).run(h.handle)
			s.give("m")
			within(h.begun)
			s.cancel()
			at := time.Now()
			want := limit
			if limit == 0 {
				want = 20 * time.Second
				r, _ := s.changed(1) // renewals go on
				s.p.settled(r, renewed(60_000, 2))
			}
			wantErr(t, within(h.ended), ErrShutdown)
			if got := time.Since(at); got != max(want, 0) {
				t.Errorf("cancelled after %v", got)
			}
			if got := s.given(); got.Cause != CausePostponed || got.InvisibleMs != 0 {
				t.Errorf("got %+v", got)
			}
			ok(t, s.stop())
			ok(t, s.toldOnce())
			if got := s.stats(); got.Failed != 0 || got.Returned != 1 {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A handler that does not return is named, and Run returns in its time.
func TestConsumerHungHandler(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{Workers: 2, FinishWithin: 4 * time.Second, StopWithin: 3 * time.Second}).run(h.handle)
		s.give("m", "n")
		first, second := within(h.begun), within(h.begun)
		time.Sleep(time.Second)
		s.cancel()
		at := time.Now()
		within(h.ended)
		within(h.ended)
		h.returns(nil) // one of the two
		acked := s.acked()[0]
		hung := first
		if text(first) == acked {
			hung = second
		}
		s.p.answer(s.expect(leaves, nil), protocol.OK, nil)
		err := s.wait()
		if got := time.Since(at); got != 7*time.Second {
			t.Errorf("Run returned after %v", got)
		}
		var named *HungError
		if !errors.As(err, &named) || len(named.Handlers) != 1 {
			t.Fatalf("got %v", err)
		}
		if x := named.Handlers[0]; x.Topic != "t" || x.Queue != 5 || x.Offset != hung.Offset || x.ID != hung.ID || x.Token != hung.Token || x.Running != 8*time.Second {
			t.Errorf("got %+v", x)
		}
		list := s.told()
		if len(list) != 2 || list[0].err != nil {
			t.Fatalf("told %v", list)
		}
		wantErr(t, list[1].err, ErrShutdown)
		h.returns(nil) // nobody hears it
		synctest.Wait()
		s.quiet(acks, changes)
		if list := s.told(); len(list) != 0 {
			t.Errorf("told %v", list)
		}
	})
}

// The broker is gone when Run ends: it does not wait for it for long.
func TestConsumerShutdownWithoutABroker(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Prefetch: 1}).run(h.handle)
		s.give("m", "n")
		within(h.begun)
		b.set(func() { b.refuse = errors.New("down") })
		s.p.close()
		s.cancel()
		synctest.Wait()
		h.returns(nil)
		at := time.Now()
		err := s.wait()
		if got := time.Since(at); got > settleWithin+leaveWithin {
			t.Errorf("Run returned after %v", got)
		}
		wantErr(t, err, context.DeadlineExceeded)
		if err := s.toldOnce(); err == nil {
			t.Error("told that it was acked")
		}
	})
}

// The same before there is a session, and while there is none.
func TestConsumerShutdownWithoutASession(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{})
		s.starts(func(ctx context.Context) error { return s.k.Run(ctx, h.handle) })
		r := s.expect(sessions, nil)
		s.cancel()
		ok(t, s.wait())
		s.p.answer(r, protocol.OK, registered(81))
		s.p.answer(s.expect(leaves, nil), protocol.OK, nil) // nobody waited for it

		h.deaf = true
		s.run(h.handle)
		s.give("m")
		within(h.begun)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		within(h.ended)
		s.expect(sessions, nil)
		s.cancel()
		synctest.Wait()
		h.returns(nil)
		ok(t, s.wait())
		wantErr(t, s.toldOnce(), ErrSessionLost)
	})
}

// A session that is lost while handlers finish is not followed by another.
func TestConsumerLosesItsSessionWhileStopping(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		h.deaf = true
		s := stageFor(t, b, ConsumerOptions{Workers: 2}).run(h.handle)
		s.give("m", "n")
		within(h.begun)
		within(h.begun)
		s.cancel()
		synctest.Wait()
		h.returns(nil)
		s.expect(acks, nil)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		wantErr(t, within(h.ended), ErrSessionLost)
		h.returns(nil)
		ok(t, s.wait())
		list := s.told()
		if len(list) != 2 {
			t.Fatalf("told %v", list)
		}
		for _, x := range list {
			wantErr(t, x.err, ErrSessionLost)
		}
		s.quiet(sessions, leaves)
	})
}

func TestConsumerErrorTexts(t *testing.T) {
	hung := &HungError{Handlers: make([]HungHandler, 9)}
	for i := range hung.Handlers {
		hung.Handlers[i] = HungHandler{Topic: "t", Queue: 1, Offset: uint64(i), Running: time.Second}
	}
	for _, x := range []struct {
		err  error
		want string
	}{
		{ErrPostpone(time.Minute), "1m0s"},
		{&BatchError{Errs: []error{nil, errors.New("a"), errors.New("b")}}, "2 of 3 messages: a"},
		{&BatchError{Errs: []error{nil}}, "none of 1"},
		{&HungError{Handlers: hung.Handlers[:1]}, "t/1/0"},
		{hung, "9 messages"},
		{hung, "..."},
	} {
		if got := x.err.Error(); !strings.Contains(got, x.want) {
			t.Errorf("%q, want %q in it", got, x.want)
		}
	}
}
