package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func oneDelivery(t *testing.T, b *fakeBroker) (*peer, *Session, *Delivery) {
	c, p := b.client(Options{})
	s := p.session(c)
	return p, s, p.popped(s, messageRecord(t, 0, codec.Message{})).Deliveries[0]
}

// expectChange checks the next change and answers it.
func (p *peer) expectChange(ordinal uint32, cause protocol.Cause, invisibleMs uint32) request {
	p.t.Helper()
	var m protocol.ChangeInvisibleRequest
	r := p.expect(protocol.OpChangeInvisible, &m)
	if e := m.Entries[0]; len(m.Entries) != 1 || e.Ordinal != ordinal || e.Cause != cause || e.InvisibleMs != invisibleMs {
		p.t.Errorf("got %+v, want ordinal %d, %v, %d ms", m.Entries, ordinal, cause, invisibleMs)
	}
	return r
}

func TestOrdinalsGrow(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		p, s, d := oneDelivery(t, b)
		wait := going(func() error { return s.Extend(t.Context(), d, time.Minute) })
		r := p.expectChange(1, protocol.CauseRenew, 60_000)
		sentAt := time.Now()
		time.Sleep(time.Second)
		p.settled(r, protocol.SettleResult{RemainingMs: 60_000, RenewalsLeft: 2, BudgetMs: 5000})
		ok(t, wait())
		if d.Deadline().Sub(sentAt) != time.Minute || d.RenewalsLeft() != 2 || d.Budget() != 5*time.Second {
			t.Errorf("deadline %v, %d renewals left, budget %v", d.Deadline().Sub(sentAt), d.RenewalsLeft(), d.Budget())
		}
		// One that was refused uses no ordinal up.
		wait = going(func() error { return s.Extend(t.Context(), d, time.Hour) })
		p.settled(p.expectChange(2, protocol.CauseRenew, 3_600_000), protocol.SettleResult{Status: protocol.RenewLimit})
		wantErr(t, wait(), ErrRenewLimit)
		wait = going(func() error { return s.Fail(t.Context(), d, "why") })
		p.settled(p.expectChange(2, protocol.CauseFailed, 0), protocol.SettleResult{RemainingMs: 1000})
		ok(t, wait())
	})
}

// The same change again, after an answer that did not come, has the same ordinal.
func TestOrdinalIsReused(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		p, s, d := oneDelivery(t, b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, s.Extend(ctx, d, time.Minute), context.DeadlineExceeded)
		lost := p.expectChange(1, protocol.CauseRenew, 60_000)
		wait := going(func() error { return s.Extend(t.Context(), d, time.Minute) })
		r := p.expectChange(1, protocol.CauseRenew, 60_000)
		p.settled(lost, protocol.SettleResult{RemainingMs: 60_000}) // late: nobody looks at it
		p.settled(r, protocol.SettleResult{RemainingMs: 59_000, RenewalsLeft: 2})
		ok(t, wait())
		wait = going(func() error { return s.Extend(t.Context(), d, time.Minute) })
		p.settled(p.expectChange(2, protocol.CauseRenew, 60_000), protocol.SettleResult{RemainingMs: 60_000})
		ok(t, wait())
	})
}

// A different change waits for the truth about the one before: that is repeated first, as it was.
func TestAnotherChangeAfterALostAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		p, s, d := oneDelivery(t, b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, s.Extend(ctx, d, time.Minute), context.DeadlineExceeded)
		p.expectChange(1, protocol.CauseRenew, 60_000)
		wait := going(func() error { return s.Release(t.Context(), d, 5*time.Second) })
		// Still no certainty: then nothing else is sent.
		p.refuse(p.expectChange(1, protocol.CauseRenew, 60_000), protocol.StoreFailed, "")
		if wait() == nil {
			t.Error("no error though the outcome is open")
		}
		p.quiet()
		wait = going(func() error { return s.Release(t.Context(), d, 5*time.Second) })
		p.settled(p.expectChange(1, protocol.CauseRenew, 60_000), protocol.SettleResult{RemainingMs: 60_000})
		p.settled(p.expectChange(2, protocol.CausePostponed, 5000), protocol.SettleResult{RemainingMs: 5000})
		ok(t, wait())
	})
}

// A change that never left leaves no doubt.
func TestChangeThatNeverLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		p, s, d := oneDelivery(t, b)
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, s.Extend(ctx, d, time.Minute), context.DeadlineExceeded)
		b.set(func() { b.refuse = nil })
		p = b.accept()
		wait := going(func() error { return s.Release(t.Context(), d, 0) })
		p.settled(p.expectChange(1, protocol.CausePostponed, 0), protocol.SettleResult{})
		ok(t, wait())
	})
}

// Changes of one delivery go one after the other; those of others do not wait.
func TestChangesOfOneDeliveryQueue(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		batch := p.popped(s, messageRecord(t, 0, codec.Message{}), messageRecord(t, 1, codec.Message{}))
		d, other := batch.Deliveries[0], batch.Deliveries[1]
		renew := going(func() error { return s.Extend(t.Context(), d, time.Minute) })
		first := p.expectChange(1, protocol.CauseRenew, 60_000)
		fail := going(func() error { return s.Fail(t.Context(), d, "") })
		p.quiet()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		wantErr(t, s.Fail(ctx, d, ""), context.DeadlineExceeded)
		cancel()
		both := going(func() error {
			_, err := s.ChangeInvisible(t.Context(), []Change{{Delivery: other, Cause: CausePostponed}, {Delivery: d, Cause: CausePostponed}})
			return err
		})
		p.quiet()
		release := going(func() error { return s.Extend(t.Context(), other, time.Hour) })
		p.settled(p.expectChange(1, protocol.CauseRenew, 3_600_000), protocol.SettleResult{RemainingMs: 3_600_000})
		ok(t, release())
		p.settled(first, protocol.SettleResult{RemainingMs: 60_000})
		ok(t, renew())
		// Either of the two that wait may be next.
		for range 2 {
			var m protocol.ChangeInvisibleRequest
			r := p.expect(protocol.OpChangeInvisible, &m)
			for _, e := range m.Entries {
				if e.Receipt[0] == 1 && e.Ordinal < 2 {
					t.Errorf("got %+v", e)
				}
			}
			p.settled(r, make([]protocol.SettleResult, len(m.Entries))...)
		}
		ok(t, fail())
		ok(t, both())
	})
}

func TestChangeRefusesHere(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		p, s, d := oneDelivery(t, b)
		other := &Delivery{session: new(Session)}
		for _, x := range [][]Change{{{Delivery: d}, {Delivery: d}}, {{Delivery: other}}, {{Receipt: []byte{1}}},
			{{Receipt: nil, Ordinal: 1}}, {{Delivery: d, Invisible: -1 * time.Second}}, {{Receipt: body(256), Ordinal: 1}}} {
			if _, err := s.ChangeInvisible(t.Context(), x); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", x, err)
			}
		}
		p.quiet()
		// None of them has left d locked.
		wait := going(func() error { return s.Extend(t.Context(), d, time.Minute) })
		p.settled(p.expectChange(1, protocol.CauseRenew, 60_000), protocol.SettleResult{})
		ok(t, wait())
	})
}

func TestChangeByReceipt(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		p, s, _ := oneDelivery(t, b)
		wait := going(func() error {
			_, err := s.ChangeInvisible(t.Context(), []Change{{Receipt: []byte{9}, Ordinal: 4, Cause: CauseFailed, Invisible: time.Second, Reason: "no"}})
			return err
		})
		p.settled(p.expectChange(4, protocol.CauseFailed, 1000), protocol.SettleResult{})
		ok(t, wait())
	})
}

func TestSettleResults(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		entries := make([]AckEntry, 1500) // more than one request may carry
		for i := range entries {
			entries[i] = AckEntry{Receipt: []byte{byte(i), byte(i >> 8)}, Duplicate: i == 3}
		}
		type outcome struct {
			results []SettleResult
			err     error
		}
		wait := going(func() outcome {
			results, err := s.AckReceipts(t.Context(), entries)
			return outcome{results, err}
		})
		synctest.Wait()
		if len(p.frames) != 2 {
			t.Fatalf("%d requests", len(p.frames))
		}
		var m protocol.AckRequest
		first := p.expect(protocol.OpAck, &m)
		if len(m.Entries) != 1024 || !m.Entries[3].Duplicate || m.Entries[4].Duplicate {
			t.Errorf("%d entries, %+v", len(m.Entries), m.Entries[3])
		}
		results := make([]protocol.SettleResult, 1024)
		results[5] = protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonRegranted, Token: 99, AgoMs: 1500}
		p.refuse(p.expect(protocol.OpAck, nil), protocol.Draining, "stopping")
		p.settled(first, results...)
		got := wait()
		wantErr(t, got.err, ErrStale)
		var status *StatusError
		if r := got.results[5]; !errors.As(r.Err, &status) || status.Reason != protocol.ReasonRegranted || r.Token != 99 || r.Ago != 1500*time.Millisecond {
			t.Errorf("got %+v", r)
		}
		ok(t, got.results[6].Err)
		wantErr(t, got.results[1024].Err, ErrDraining)
		_, err := s.AckReceipts(t.Context(), []AckEntry{{}})
		wantErr(t, err, ErrInvalid)
		if results, err := s.Ack(t.Context()); len(results) != 0 || err != nil {
			t.Errorf("no entries: %v, %v", results, err)
		}
		wait = going(func() outcome {
			results, err := s.AckReceipts(t.Context(), entries[:2])
			return outcome{results, err}
		})
		p.settled(p.expect(protocol.OpAck, nil), protocol.SettleResult{})
		if got := wait(); got.err == nil || len(got.results) != 2 {
			t.Errorf("a result too few: %+v", got)
		}
	})
}

// An ack that was begun is on its way before anybody waits for it, beside the next pop, over a lost connection too; and it
// counts as held until its answer has been looked at.
func TestBeginAck(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		batch := p.popped(s, messageRecord(t, 0, codec.Message{}), messageRecord(t, 1, codec.Message{}))
		ack := s.BeginAck(batch.Deliveries...)
		pop := going(func() error { _, err := s.Pop(t.Context(), PopOptions{Topic: "t"}); return err })
		var m protocol.AckRequest
		p.expect(protocol.OpAck, &m)
		if len(m.Entries) != 2 || string(m.Entries[1].Receipt) != string(batch.Deliveries[1].Receipt) {
			t.Errorf("%d entries were sent", len(m.Entries))
		}
		p.expect(protocol.OpPop, nil)
		p.close()
		next := b.accept()
		next.settled(next.expect(protocol.OpAck, nil), protocol.SettleResult{}, protocol.SettleResult{Status: protocol.Stale, Token: 99})
		next.answer(next.expect(protocol.OpPop, nil), protocol.Empty, &protocol.PopAnswer{})
		ok(t, pop())
		if held := s.vitals().Held; held != 2 {
			t.Errorf("%d messages are held before the answer was looked at", held)
		}
		for range 2 { // the second time says the same
			results, err := ack.Wait(t.Context())
			wantErr(t, err, ErrStale)
			if len(results) != 2 || results[0].Err != nil || results[1].Token != 99 {
				t.Errorf("got %+v", results)
			}
		}
		if held := s.vitals().Held; held != 0 {
			t.Errorf("%d messages are held", held)
		}

		_, err := s.BeginAck(&Delivery{}).Wait(t.Context())
		wantErr(t, err, ErrInvalid)

		ctx, cancel := context.WithCancel(t.Context())
		ack = s.BeginAck(batch.Deliveries[0])
		cancel()
		_, err = ack.Wait(ctx)
		wantErr(t, err, context.Canceled)
	})
}
