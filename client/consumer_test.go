package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func TestConsumerOutcomes(t *testing.T) {
	for _, x := range []struct {
		name      string
		h         Handler
		acked     bool
		duplicate bool
		want      protocol.ChangeEntry
		count     func(ConsumerStats) uint64
	}{
		{name: "nil", h: func(context.Context, *Delivery) error { return nil }, acked: true, count: func(c ConsumerStats) uint64 { return c.Acked }},
		{name: "duplicate", h: func(context.Context, *Delivery) error { return fmt.Errorf("seen: %w", ErrDuplicate) }, acked: true, duplicate: true,
			count: func(c ConsumerStats) uint64 { return c.Duplicates }},
		{name: "postponed", h: func(context.Context, *Delivery) error { return fmt.Errorf("busy: %w", ErrPostpone(90*time.Second)) },
			want: protocol.ChangeEntry{Cause: CausePostponed, InvisibleMs: 90_000}, count: func(c ConsumerStats) uint64 { return c.Postponed }},
		{name: "postponed for too long", h: func(context.Context, *Delivery) error { return ErrPostpone(48 * time.Hour) },
			want: protocol.ChangeEntry{Cause: CausePostponed, InvisibleMs: 6 * 60 * 60 * 1000}, count: func(c ConsumerStats) uint64 { return c.Postponed }},
		{name: "postponed by less than can be", h: func(context.Context, *Delivery) error { return ErrPostpone(time.Nanosecond) },
			want: protocol.ChangeEntry{Cause: CausePostponed, InvisibleMs: protocol.MinInvisibleMs}, count: func(c ConsumerStats) uint64 { return c.Postponed }},
		{name: "postponed into the past", h: func(context.Context, *Delivery) error { return ErrPostpone(-time.Hour) },
			want: protocol.ChangeEntry{Cause: CausePostponed}, count: func(c ConsumerStats) uint64 { return c.Postponed }},
		{name: "error", h: func(context.Context, *Delivery) error { return errors.New("no luck") },
			want: protocol.ChangeEntry{Cause: CauseFailed, Reason: "no luck"}, count: func(c ConsumerStats) uint64 { return c.Failed }},
		{name: "panic", h: func(context.Context, *Delivery) error { panic("oh") },
			want: protocol.ChangeEntry{Cause: CauseFailed, Reason: "panic: oh"}, count: func(c ConsumerStats) uint64 { return c.Panics }},
		{name: "goexit", h: func(context.Context, *Delivery) error { runtime.Goexit(); return nil },
			want: protocol.ChangeEntry{Cause: CauseFailed, Reason: errGoexit.Error()}, count: func(c ConsumerStats) uint64 { return c.Failed }},
		{name: "an error that panics", h: func(context.Context, *Delivery) error { return (*brokenError)(nil) },
			want: protocol.ChangeEntry{Cause: CauseFailed, Reason: "panic: broken"}, count: func(c ConsumerStats) uint64 { return c.Failed }},
	} {
		t.Run(x.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *fakeBroker) {
				s := stageFor(t, b, ConsumerOptions{}).run(x.h)
				for i := range 3 { // whatever it was, the worker goes on
					s.give("m")
					if x.acked {
						var m protocol.AckRequest
						r := s.expect(acks, &m)
						if len(m.Entries) != 1 || name(m.Entries[0].Receipt) != "m" || m.Entries[0].Duplicate != x.duplicate {
							t.Errorf("got %+v", m.Entries)
						}
						s.p.settled(r, protocol.SettleResult{})
					} else {
						got := s.given()
						if got.Cause != x.want.Cause || got.InvisibleMs != x.want.InvisibleMs || got.Reason != x.want.Reason || got.Ordinal != 1 {
							t.Errorf("got %+v, want %+v", got, x.want)
						}
					}
					ok(t, s.toldOnce())
					if n := x.count(s.stats()); n != uint64(i+1) {
						t.Errorf("counted %d", n)
					}
				}
				ok(t, s.stop())
				if got := s.stats(); got.Handled != 3 || got.Popped != 3 || got.Refused != 0 {
					t.Errorf("got %+v", got)
				}
			})
		})
	}
}

type brokenError struct{}

func (e *brokenError) Error() string { panic("broken") }

// The handler's context has the values of Run's and the labels of its goroutine, and ends with the call.
func TestConsumerContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{}).run(h.handle)
		if s.k.Session() == nil {
			synctest.Wait()
		}
		if got := s.k.Session(); got == nil || got.ID() != 77 {
			t.Errorf("session %v", got)
		}
		s.give("m")
		within(h.begun)
		ctx := <-h.ctx
		if ctx.Value(testKey{}) != "value" {
			t.Error("no value")
		}
		var profile strings.Builder
		pprof.Lookup("goroutine").WriteTo(&profile, 1)
		found := false
		for _, block := range strings.Split(profile.String(), "\n\n") {
			if strings.Contains(block, "held).handle") && strings.Contains(block, `"consumer":"me", "group":"g", "session":"77"`) {
				found = true
			}
		}
		if !found {
			t.Error("the handler's goroutine has no labels")
		}
		s.cancel() // the end of Run's context is not the handler's
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("cancelled with Run's context")
		}
		h.returns(nil)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("the context goes on after the call")
		}
		s.acked()
		ok(t, s.stop())
		if s.k.Session() != nil {
			t.Error("a session after Run")
		}
	})
}

// What a consumer with nothing buffered asks for is what its free workers start at once.
func TestConsumerTakesWhatFreeWorkersStart(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		h := newHeld()
		s := stageFor(t, b, ConsumerOptions{Workers: 3, FilterTags: []string{"x"}, Start: StartLatest, Create: true, Invisible: time.Minute}).run(h.handle)
		var m protocol.PopRequest
		r := s.expect(pops, &m)
		if m.Session != 77 || m.Topic != "t" || m.Max != 3 || m.AwaitMs != 20_000 || m.InvisibleMs != 60_000 || len(m.FilterTags) != 1 ||
			m.Start != protocol.StartLatest || r.Flags != protocol.FlagCreate {
			t.Errorf("got %+v", m)
		}
		s.quiet(pops) // one pop at a time
		time.Sleep(20 * time.Second)
		s.p.answer(r, protocol.Empty, &protocol.PopAnswer{})
		if m := s.give("a", "b"); m.Max != 3 {
			t.Errorf("a pop of %d", m.Max)
		}
		if m := s.give("c"); m.Max != 1 {
			t.Errorf("a pop of %d", m.Max)
		}
		s.quiet(pops)
		h.returns(nil) // the next one does not wait for the ack
		if m := s.give("d"); m.Max != 1 {
			t.Errorf("a pop of %d", m.Max)
		}
		s.acked()
		s.quiet(pops)
		for range 3 {
			h.returns(nil)
		}
		for n := 0; n < 3; {
			n += len(s.acked())
		}
		ok(t, s.stop())
	})
}

// A broker that answers EMPTY without waiting is not asked again at once.
func TestConsumerEmptyAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(newHeld().handle)
		for range 50 {
			s.p.answer(s.expect(pops, nil), protocol.Empty, &protocol.PopAnswer{})
		}
		if time.Since(s.began) < 50*minBackOff {
			t.Errorf("50 pops in %v", time.Since(s.began))
		}
		ok(t, s.stop())
	})
}

// A message that cannot be read is the handler's to judge.
func TestConsumerWithADamagedMessage(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(func(_ context.Context, d *Delivery) error { return d.Err() })
		record := messageRecord(t, 1, codec.Message{Body: []byte("body")})
		record[len(record)-1] ^= 1
		s.p.answer(s.expect(pops, nil), protocol.OK, popAnswer(record))
		if got := s.given(); got.Cause != CauseFailed {
			t.Errorf("got %+v", got)
		}
		ok(t, s.stop())
	})
}

// The heap of moments, against a sorted list.
func TestMoments(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 1))
	r := &consumerRun{}
	k := &r.keeper
	k.init(r)
	all := make([]moment, 100)
	start := time.Now()
	for range 10_000 {
		m := &all[rnd.IntN(len(all))]
		if rnd.IntN(3) == 0 {
			k.drop(m)
		} else {
			k.set(m, start.Add(time.Duration(rnd.IntN(1000))))
		}
		n, first := 0, time.Time{}
		for i := range all {
			if all[i].index > 0 {
				if n++; first.IsZero() || all[i].at.Before(first) {
					first = all[i].at
				}
			}
		}
		if n != len(k.moments)-1 || n > 0 && !k.moments[1].at.Equal(first) {
			t.Fatalf("seed %d: %d moments of %d, first %v, want %v", seed, len(k.moments)-1, n, k.moments[1].at, first)
		}
	}
	k.clear()
	for i := range all {
		if all[i].index != 0 {
			t.Fatal("not cleared")
		}
	}
}

// A pop that gets no answer is not waited for for ever.
func TestConsumerUnansweredPop(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		s := stageFor(t, b, ConsumerOptions{}).run(func(context.Context, *Delivery) error { return nil })
		s.expect(pops, nil)
		at := time.Now()
		if m := s.give("m"); m.Sequence != 2 || !m.PreviousLost {
			t.Errorf("got %+v", m)
		}
		if took := time.Since(at); took < fetchAwait+answerPatience || took > fetchAwait+answerPatience+3*minBackOff {
			t.Errorf("after %v", took)
		}
		s.acked()
		ok(t, s.stop())
	})
}
