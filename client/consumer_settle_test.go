package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// What the broker says against it is told with its reason.
func TestConsumerRefusedOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(func(_ context.Context, d *Delivery) error {
			if text(d) == "bad" {
				return errors.New("bad")
			}
			return nil
		})
		s.give("good")
		s.acked(protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonRegranted, Token: 99})
		var status *StatusError
		if err := s.toldOnce(); !errors.As(err, &status) || status.Reason != protocol.ReasonRegranted {
			t.Errorf("got %v", err)
		}
		s.give("bad")
		r, _ := s.changed(1)
		s.p.settled(r, protocol.SettleResult{Status: protocol.AlreadySettled, Reason: protocol.ReasonSettled})
		wantErr(t, s.toldOnce(), ErrAlreadySettled)
		if got := s.stats(); got.Refused != 2 || got.Acked != 0 || got.Failed != 0 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.stop())
	})
}

// One ACK is under way at a time; what finishes meanwhile goes with the next one.
func TestConsumerAcksCoalesce(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{Workers: 4, Prefetch: 252}).run(func(context.Context, *Delivery) error { return nil })
		var bodies []string
		for i := range 256 {
			bodies = append(bodies, fmt.Sprint("m", i))
		}
		n, requests := 0, 0
		for range 10 {
			s.give(bodies...)
			synctest.Wait()
		}
		for n < 2560 {
			synctest.Wait()
			if len(s.by[acks]) != 1 {
				t.Fatalf("%d ACKs under way", len(s.by[acks]))
			}
			got := len(s.acked())
			if got > protocol.MaxAckEntries {
				t.Errorf("an ACK of %d", got)
			}
			n += got
			requests++
		}
		if requests > 5 {
			t.Errorf("%d ACKs for %d messages", requests, n)
		}
		if got := s.told(); len(got) != 2560 {
			t.Errorf("told of %d", len(got))
		}
		ok(t, s.stop())
	})
}

// When nothing is settled, no more is taken than a session may hold.
func TestConsumerHoldsNoMoreThanItMay(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{Workers: 256}).run(func(context.Context, *Delivery) error { return nil })
		var bodies []string
		for i := range 256 {
			bodies = append(bodies, fmt.Sprint("m", i))
		}
		for range mostHeld / 256 {
			s.give(bodies...)
		}
		s.quiet(pops)
		n := len(s.acked())
		if m := s.give(); m.Max == 0 || int(m.Max) > n { // less what OnSettled was not told of yet
			t.Errorf("a pop of %d after %d acks", m.Max, n)
		}
		for n < mostHeld {
			n += len(s.acked())
		}
		ok(t, s.stop())
	})
}

// An ack that the broker could not store is sent again; so is one that gets no answer.
func TestConsumerRepeatsAcks(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(func(_ context.Context, d *Delivery) error {
			if text(d) == "f" {
				return errors.New("f")
			}
			return nil
		})
		s.give("m")
		s.p.refuse(s.expect(acks, nil), protocol.StoreFailed, "")
		s.p.refuse(s.expect(acks, nil), protocol.StoreFailed, "")
		s.expect(acks, nil)
		at := time.Now()
		s.acked()
		if wait := time.Since(at); wait < answerPatience || wait > answerPatience+maxBackOff {
			t.Errorf("sent again after %v", wait)
		}
		ok(t, s.toldOnce())
		s.give("f")
		r, _ := s.changed(1)
		s.p.settled(r, protocol.SettleResult{Status: protocol.StoreFull})
		if got := s.given(); got.Cause != CauseFailed || got.Ordinal != 1 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.toldOnce())
		// Not for ever: at the end of the lease it is told why.
		s.give("m")
		for {
			synctest.Wait()
			if list := s.told(); len(list) == 1 {
				wantErr(t, list[0].err, ErrStoreFull)
				break
			}
			s.p.refuse(s.expect(acks, nil), protocol.StoreFull, "")
		}
		ok(t, s.stop())
	})
}

func TestConsumerStall(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{ProgressTimeout: 8 * time.Second}).run(h.handle)
		s.give("m")
		d := within(h.begun)
		for range 3 {
			time.Sleep(7 * time.Second)
			d.Progress("page 9")
			if len(s.by[changes]) > 0 {
				r, _ := s.changed(1)
				s.p.settled(r, renewed(60_000, 2))
			}
		}
		at := time.Now()
		cause := within(h.ended)
		if wantErr(t, cause, ErrStalled); !strings.Contains(cause.Error(), "page 9") {
			t.Errorf("cause %v", cause)
		}
		if got := time.Since(at); got != 8*time.Second {
			t.Errorf("cancelled after %v", got)
		}
		got := s.given()
		if got.Cause != CauseFailed || !strings.Contains(got.Reason, "page 9") {
			t.Errorf("got %+v", got)
		}
		if got := s.stats(); got.Stalled != 1 || got.Failed != 1 || got.Cancelled != 1 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.stop())
	})
}

func TestConsumerBatches(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		results := make(chan error)
		batches := make(chan []string, 10)
		s := stageFor(t, b, ConsumerOptions{Batch: 4}).runBatch(func(ctx context.Context, batch []*Delivery) error {
			var bodies []string
			for _, d := range batch {
				bodies = append(bodies, text(d))
			}
			batches <- bodies
			return <-results
		})
		if m := s.give("a", "b", "c"); m.Max != 4 {
			t.Errorf("a pop of %d", m.Max)
		}
		if got := <-batches; !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("got %v", got)
		}
		s.quiet(pops)
		results <- nil
		if got := s.acked(); len(got) != 3 {
			t.Errorf("acked %v", got)
		}

		s.give("a", "b", "c", "d")
		<-batches
		results <- &BatchError{Errs: []error{nil, errors.New("no"), ErrDuplicate, ErrPostpone(time.Minute)}}
		var m protocol.AckRequest
		r := s.expect(acks, &m)
		if len(m.Entries) != 2 || name(m.Entries[0].Receipt) != "a" || m.Entries[0].Duplicate || name(m.Entries[1].Receipt) != "c" || !m.Entries[1].Duplicate {
			t.Errorf("acked %+v", m.Entries)
		}
		s.p.settled(r, protocol.SettleResult{}, protocol.SettleResult{})
		r, e := s.changed(2)
		if e[0].Cause != CauseFailed || e[0].Reason != "no" || e[1].Cause != CausePostponed || e[1].InvisibleMs != 60_000 {
			t.Errorf("got %+v", e)
		}
		s.p.settled(r, protocol.SettleResult{}, protocol.SettleResult{})

		for _, err := range []error{errors.New("all"), &BatchError{Errs: []error{nil}}, fmt.Errorf("wrapped: %w", &BatchError{})} {
			s.give("a", "b")
			<-batches
			results <- err
			r, e = s.changed(2)
			for i := range e {
				if e[i].Cause != CauseFailed || e[i].Reason == "" {
					t.Errorf("got %+v", e[i])
				}
			}
			s.p.settled(r, protocol.SettleResult{}, protocol.SettleResult{})
		}
		if got := s.told(); len(got) != 13 {
			t.Errorf("told %v", got)
		}
		ok(t, s.stop())
	})
}

// The context of a batch ends with the lease of any of its messages. The others are given back.
func TestConsumerBatchLosesALease(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{NoRenewals: true}).runBatch(func(ctx context.Context, batch []*Delivery) error {
			<-ctx.Done()
			return &BatchError{Errs: []error{context.Cause(ctx), nil, context.Cause(ctx)}}
		})
		at := time.Now()
		s.giveRows(func(r *protocol.LeaseRow) {
			if name(r.Receipt) == "a" {
				r.RemainingMs = 5000
			}
		}, "a", "b", "c")
		s.acked()
		if got := time.Since(at); got != 5*time.Second {
			t.Errorf("after %v", got)
		}
		r, e := s.changed(2)
		if e[0].Cause != CausePostponed || e[1].Cause != CausePostponed {
			t.Errorf("got %+v", e)
		}
		s.p.settled(r, protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonExpired}, protocol.SettleResult{})
		for _, x := range s.told() {
			if text(x.d) == "a" {
				wantErr(t, x.err, ErrStale)
			} else {
				ok(t, x.err)
			}
		}
		ok(t, s.stop())
	})
}

// A panic in OnSettled is its own affair; one that does not return holds up nothing but the end.
func TestConsumerOnSettled(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		calls := 0
		release := make(chan struct{})
		s := stageFor(t, b, ConsumerOptions{OnSettled: func(d *Delivery, err error) {
			if calls++; calls == 1 {
				panic("oh")
			}
			<-release
		}}).run(func(context.Context, *Delivery) error { return nil })
		for range 5 {
			s.give("m")
			s.acked()
		}
		at := time.Now()
		err := s.stop()
		if err == nil || time.Since(at) != defaultStopWithin {
			t.Errorf("%v after %v", err, time.Since(at))
		}
		close(release)
		synctest.Wait()
		if calls != 5 {
			t.Errorf("%d calls", calls)
		}
	})
}

// An ack that may have been carried out is asked for until the answer tells, be the lease over or not; also when
// its session is lost meanwhile.
func TestConsumerUnansweredAck(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(func(context.Context, *Delivery) error { return nil })
		at := time.Now()
		s.give("m")
		for range 5 {
			s.expect(acks, nil)
		}
		s.acked()
		if took := time.Since(at); took < 40*time.Second {
			t.Errorf("answered after %v", took)
		}
		ok(t, s.toldOnce())
		for len(s.by[pops]) > 1 {
			<-s.by[pops] // of pops that were given up meanwhile
		}
		s.give("n")
		s.expect(acks, nil)
		s.expect(acks, nil) // it is not in a call when the session is lost, but waits for the next one
		time.Sleep(answerPatience)
		s.p.push(protocol.OpSessionEnded, protocol.OK, endSession(77, protocol.ReasonSessionExpired))
		s.register(78, protocol.Reclaimed{Status: protocol.AlreadySettled, Reason: protocol.ReasonSettled, Token: 7<<32 | 1})
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// The longest delay of the group was lowered since the session began: a postponement is repeated with what it allows.
func TestConsumerPostponesUnderNewRules(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(func(context.Context, *Delivery) error { return ErrPostpone(5 * time.Hour) })
		s.give("m")
		r, m := s.changed(1)
		if m[0].InvisibleMs != 5*60*60*1000 {
			t.Errorf("got %+v", m[0])
		}
		s.p.settled(r, protocol.SettleResult{Status: protocol.Invalid, BudgetMs: 60_000})
		if got := s.given(); got.Cause != CausePostponed || got.InvisibleMs != 60_000 {
			t.Errorf("got %+v", got)
		}
		ok(t, s.toldOnce())
		ok(t, s.stop())
	})
}

// OnSettled that ends its goroutine is called for the next message all the same.
func TestConsumerOnSettledThatExits(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		var told atomic.Int64
		s := stageFor(t, b, ConsumerOptions{OnSettled: func(*Delivery, error) {
			told.Add(1)
			runtime.Goexit()
		}}).run(func(context.Context, *Delivery) error { return nil })
		for range 3 {
			s.give("m")
			s.acked()
		}
		ok(t, s.stop())
		if told.Load() != 3 {
			t.Errorf("told %d times", told.Load())
		}
	})
}
