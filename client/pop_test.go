package client

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func TestPop(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		wait := going(func() *Batch {
			batch, err := s.Pop(t.Context(), PopOptions{Topic: "t", Max: 7, MaxBytes: 1000, Invisible: time.Minute,
				FilterTags: []string{"a"}, Start: StartLatest, Create: true})
			ok(t, err)
			return batch
		})
		var m protocol.PopRequest
		r := p.expect(protocol.OpPop, &m)
		if m.Session != 77 || m.Topic != "t" || m.Max != 7 || m.MaxBytes != 1000 || m.InvisibleMs != 60_000 || m.AwaitMs != 0 ||
			len(m.FilterTags) != 1 || m.Start != protocol.StartLatest || m.GroupVersion != 9 || m.Sequence != 1 || m.PreviousLost || r.Flags != protocol.FlagCreate {
			t.Errorf("got %+v, flags %d", m, r.Flags)
		}
		sentAt := time.Now()
		time.Sleep(5 * time.Second)
		answer := popAnswer(
			messageRecord(t, 40, codec.Message{Tag: "tag", Key: "key", OrderKey: "order", UniqueKey: "unique", Body: []byte("one"),
				Properties: []Property{{Name: "a", Value: "1"}, {Name: "b", Value: "2"}}}),
			messageRecord(t, 41, codec.Message{Body: []byte("two")}))
		answer.Rows[1].Checkpoint = []byte("check")
		answer.Rows[1].RenewalsLeft, answer.Rows[1].BudgetMs = protocol.UnlimitedRenewals, protocol.UnlimitedBudget
		p.answer(r, protocol.OK, answer)
		batch := wait()
		if len(batch.Deliveries) != 2 || batch.Leased != 2 || batch.Waiting != 2 {
			t.Fatalf("got %+v", batch)
		}
		d := batch.Deliveries[0]
		body, err := d.Body()
		ok(t, err)
		value, found := d.Property("b")
		if d.ID != codec.NewMessageID(7, 4136) || d.Topic != "t" || d.Queue != 5 || d.Offset != 40 || d.Tag() != "tag" || d.Key() != "key" ||
			d.OrderKey() != "order" || d.UniqueKey() != "unique" || string(body) != "one" || d.Attempt != 2 || d.Token != 7<<32|1 ||
			len(d.Receipt) != protocol.ReceiptBytes || d.Failures != 1 || d.RenewalsLeft() != 3 || d.Budget() != 90*time.Second ||
			!d.BornAt.Equal(time.UnixMilli(1_700_000_000_123)) || len(d.Properties()) != 2 || value != "2" || !found || d.Err() != nil {
			t.Errorf("got %+v", d)
		}
		if got := d.Deadline().Sub(sentAt); got != 30*time.Second {
			t.Errorf("deadline %v after the request was sent", got)
		}
		d = batch.Deliveries[1]
		if string(d.Checkpoint) != "check" || d.RenewalsLeft() != UnlimitedRenewals || d.Budget() != UnlimitedBudget {
			t.Errorf("got %+v", d)
		}
		if _, found := d.Property("b"); found || d.ID.String() != "00000007-0000000000001029" {
			t.Errorf("got %+v", d)
		}
		// A body is not copied.
		body, _ = d.Body()
		if i := bytes.Index(batch.body, []byte("two")); &body[0] != &batch.body[i] {
			t.Error("the body was copied")
		}
		batch.Release()
	})
}

func TestPopOfNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		for range 3 {
			wait := going(func() *Batch {
				batch, err := s.Pop(t.Context(), PopOptions{Topic: "t"})
				ok(t, err)
				return batch
			})
			p.answer(p.expect(protocol.OpPop, nil), protocol.Empty, &protocol.PopAnswer{Leased: 3, Waiting: 4})
			if batch := wait(); len(batch.Deliveries) != 0 || batch.Leased != 3 || batch.Waiting != 4 {
				t.Errorf("got %+v", batch)
			}
		}
	})
}

func TestPopRefusesHere(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		for _, o := range []PopOptions{{}, {Topic: "t", Max: 257}, {Topic: "t", Max: -1}, {Topic: "t", MaxBytes: 2 << 20},
			{Topic: "t", Invisible: time.Microsecond}, {Topic: "t", Invisible: 7 * time.Hour}, {Topic: "t", Await: -time.Second},
			{Topic: "t", FilterTags: []string{""}}, {Topic: "t", Start: 9}} {
			if _, err := s.Pop(t.Context(), o); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		p.quiet()
		// A refusal of the broker uses the slot's number up.
		for i := range 3 {
			wait := going(func() error { _, err := s.Pop(t.Context(), PopOptions{Topic: "t"}); return err })
			p.refuse(p.expect(protocol.OpPop, nil), protocol.FilterConflict, "")
			if err := wait(); err == nil {
				t.Errorf("pop %d: no error", i)
			}
		}
	})
}

// The broker waits no longer than the caller.
func TestPopAwait(t *testing.T) {
	for _, x := range []struct{ await, context, want time.Duration }{
		{20 * time.Second, 0, 20 * time.Second},
		{time.Hour, 0, 5 * time.Minute},
		{20 * time.Second, 5 * time.Second, 4900 * time.Millisecond},
		{20 * time.Second, 100 * time.Millisecond, 90 * time.Millisecond},
		{time.Second, 5 * time.Second, time.Second},
	} {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			c, p := b.client(Options{})
			s := p.session(c)
			ctx := t.Context()
			if x.context > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, x.context)
				defer cancel()
			}
			wait := going(func() error { _, err := s.Pop(ctx, PopOptions{Topic: "t", Await: x.await}); return err })
			var m protocol.PopRequest
			p.answer(p.expect(protocol.OpPop, &m), protocol.Empty, &protocol.PopAnswer{})
			ok(t, wait())
			if got := milliseconds(m.AwaitMs); got != x.want {
				t.Errorf("%+v: %v", x, got)
			}
		})
	}
}

// The lease of a pop that waited is not counted from long before it began.
func TestDeadlineAfterAWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		pop := func(beforeAnswer func(), remainingMs uint32) (after time.Duration) {
			wait := going(func() *Batch {
				batch, err := s.Pop(t.Context(), PopOptions{Topic: "t", Await: time.Minute})
				ok(t, err)
				return batch
			})
			r := p.expect(protocol.OpPop, nil)
			beforeAnswer()
			arrived := time.Now()
			answer := popAnswer(messageRecord(t, 0, codec.Message{}))
			answer.Rows[0].RemainingMs = remainingMs
			p.answer(r, protocol.OK, answer)
			return wait().Deliveries[0].Deadline().Sub(arrived)
		}
		// Answered at once: from the send.
		if got := pop(func() { time.Sleep(100 * time.Millisecond) }, 30_000); got != 29_900*time.Millisecond {
			t.Errorf("answered at once: %v", got)
		}
		// A heartbeat was answered 1 s before.
		if got := pop(func() {
			for range 3 {
				p.answer(p.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
			}
			time.Sleep(time.Second)
		}, 30_000); got != 29*time.Second {
			t.Errorf("after a heartbeat: %v", got)
		}
		// It never costs more than a tenth of the lease.
		if got := pop(func() {
			p.answer(p.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
			time.Sleep(time.Second)
		}, 2000); got != 1800*time.Millisecond {
			t.Errorf("a short lease: %v", got)
		}
	})
}

func TestPopIsRepeatedUnderItsNumber(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		pop := oneSlot(t, s)
		var m, again protocol.PopRequest
		wait := pop(t.Context())
		p.expect(protocol.OpPop, &m)
		p.close()
		p = b.accept()
		r := p.expect(protocol.OpPop, &again)
		if again.Slot != m.Slot || again.Sequence != m.Sequence || again.PreviousLost {
			t.Errorf("first %+v, then %+v", m, again)
		}
		p.answer(r, protocol.Empty, &protocol.PopAnswer{})
		ok(t, wait())
		wait = pop(t.Context())
		r = p.expect(protocol.OpPop, &again)
		if again.Sequence != m.Sequence+1 || again.PreviousLost {
			t.Errorf("the next one is %+v", again)
		}
		p.answer(r, protocol.Empty, &protocol.PopAnswer{})
		ok(t, wait())
	})
}

func TestPopThatNobodyWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		pop := oneSlot(t, s)
		var first, m protocol.PopRequest
		ctx, cancel := context.WithCancel(t.Context())
		wait := pop(ctx)
		p.expect(protocol.OpPop, &first)
		cancel()
		wantErr(t, wait(), context.Canceled)
		for i, lost := range []bool{true, false} {
			wait = pop(t.Context())
			r := p.expect(protocol.OpPop, &m)
			if m.Slot != first.Slot || m.Sequence != first.Sequence+1+uint64(i) || m.PreviousLost != lost {
				t.Errorf("pop %d: got %+v", i, m)
			}
			p.answer(r, protocol.Empty, &protocol.PopAnswer{})
			ok(t, wait())
		}
		// A pop that never left uses no number up.
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, pop(ctx)(), context.DeadlineExceeded)
		b.set(func() { b.refuse = nil })
		p = b.accept()
		wait = pop(t.Context())
		before := m
		r := p.expect(protocol.OpPop, &m)
		if m.Sequence != before.Sequence+1 || m.PreviousLost {
			t.Errorf("got %+v", m)
		}
		p.answer(r, protocol.Empty, &protocol.PopAnswer{})
		ok(t, wait())
	})
}

// oneSlot leaves one pop slot of s, so that each pop uses it, and returns how to begin one.
func oneSlot(t *testing.T, s *Session) func(context.Context) func() error {
	t.Helper()
	for range cap(s.slots) - 1 {
		<-s.slots
	}
	return func(ctx context.Context) func() error {
		return going(func() error { _, err := s.Pop(ctx, PopOptions{Topic: "t"}); return err })
	}
}

// Several pops in a row may be lost before they reach the broker: the one after them takes the place of the first.
func TestPopsThatTheBrokerNeverSaw(t *testing.T) {
	for expected := uint64(2); expected <= 5; expected++ {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			c, p := b.client(Options{})
			s := p.session(c)
			pop := oneSlot(t, s)
			var m protocol.PopRequest
			wait := pop(t.Context())
			p.answer(p.expect(protocol.OpPop, &m), protocol.Empty, &protocol.PopAnswer{})
			ok(t, wait())
			for range 3 { // 2, 3 and 4
				ctx, cancel := context.WithCancel(t.Context())
				wait := pop(ctx)
				p.expect(protocol.OpPop, &m)
				cancel()
				wantErr(t, wait(), context.Canceled)
			}
			wait = pop(t.Context())
			r := p.expect(protocol.OpPop, &m)
			if m.Sequence != 5 || !m.PreviousLost {
				t.Errorf("got %+v", m)
			}
			p.answer(r, protocol.Invalid, &protocol.ErrorBody{Detail: expected})
			if expected == 5 { // it expects what it got, and refuses it for another reason
				wantErr(t, wait(), ErrInvalid)
				return
			}
			r = p.expect(protocol.OpPop, &m)
			if m.Sequence != expected || m.PreviousLost != (expected > 2) {
				t.Errorf("got %+v, want sequence %d", m, expected)
			}
			p.answer(r, protocol.Empty, &protocol.PopAnswer{})
			ok(t, wait())
			wait = pop(t.Context())
			r = p.expect(protocol.OpPop, &m)
			if m.Sequence != expected+1 || m.PreviousLost {
				t.Errorf("got %+v", m)
			}
			p.answer(r, protocol.Empty, &protocol.PopAnswer{})
			ok(t, wait())
		})
	}
}

// A lost pop may never have reached the broker: then its number is the one that the broker expects.
func TestPopThatTheBrokerNeverSaw(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		pop := oneSlot(t, s)
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			wait := pop(ctx)
			p.expect(protocol.OpPop, nil)
			cancel()
			wantErr(t, wait(), context.Canceled)
		}
		wait := pop(t.Context())
		var m protocol.PopRequest
		r := p.expect(protocol.OpPop, &m)
		if m.Sequence != 3 || !m.PreviousLost {
			t.Errorf("got %+v", m)
		}
		p.answer(r, protocol.Invalid, &protocol.ErrorBody{Detail: 2})
		r = p.expect(protocol.OpPop, &m)
		if m.Sequence != 2 || !m.PreviousLost { // the first one was lost, too
			t.Errorf("got %+v", m)
		}
		p.answer(r, protocol.Empty, &protocol.PopAnswer{})
		ok(t, wait())
		wait = pop(t.Context())
		r = p.expect(protocol.OpPop, &m)
		if m.Sequence != 3 || m.PreviousLost {
			t.Errorf("got %+v", m)
		}
		// Without a loss such an answer is an error like others.
		p.answer(r, protocol.Invalid, &protocol.ErrorBody{Detail: 2})
		wantErr(t, wait(), ErrInvalid)
		p.quiet()
	})
}

// 16 pops at once, each in a slot of its own; more wait.
func TestPopSlots(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		var waits []func() error
		for range 17 {
			waits = append(waits, going(func() error { _, err := s.Pop(t.Context(), PopOptions{Topic: "t"}); return err }))
		}
		used := map[uint8]request{}
		for range 16 {
			var m protocol.PopRequest
			r := p.expect(protocol.OpPop, &m)
			if _, twice := used[m.Slot]; twice || m.Slot > protocol.MaxPopSlot || m.Sequence != 1 {
				t.Errorf("got %+v", m)
			}
			used[m.Slot] = r
		}
		p.quiet()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Pop(ctx, PopOptions{Topic: "t"})
		wantErr(t, err, context.DeadlineExceeded)
		p.answer(used[5], protocol.Empty, &protocol.PopAnswer{})
		var m protocol.PopRequest
		last := p.expect(protocol.OpPop, &m)
		if m.Slot != 5 || m.Sequence != 2 {
			t.Errorf("got %+v", m)
		}
		used[5] = last
		for _, r := range used {
			p.answer(r, protocol.Empty, &protocol.PopAnswer{})
		}
		for _, wait := range waits {
			ok(t, wait())
		}
	})
}

// Messages that come for a pop whose caller has gone are given back at once, uncounted.
func TestAbandonedPop(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		for range cap(s.slots) - 1 {
			<-s.slots
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait := going(func() error { _, err := s.Pop(ctx, PopOptions{Topic: "t", Await: time.Minute}); return err })
		r := p.expect(protocol.OpPop, nil)
		cancel()
		wantErr(t, wait(), context.Canceled)
		// The slot is free again, and its next pop tells that the answer found nobody.
		wait = going(func() error { _, err := s.Pop(t.Context(), PopOptions{Topic: "t"}); return err })
		var next protocol.PopRequest
		p.answer(p.expect(protocol.OpPop, &next), protocol.Empty, &protocol.PopAnswer{})
		ok(t, wait())
		if next.Sequence != 2 || !next.PreviousLost {
			t.Errorf("got %+v", next)
		}
		answer := popAnswer(messageRecord(t, 0, codec.Message{}), messageRecord(t, 1, codec.Message{}))
		p.answer(r, protocol.OK, answer)
		var m protocol.ChangeInvisibleRequest
		r = p.expect(protocol.OpChangeInvisible, &m)
		if m.Session != 77 || len(m.Entries) != 2 {
			t.Fatalf("got %+v", m)
		}
		for i, e := range m.Entries {
			if !bytes.Equal(e.Receipt, answer.Rows[i].Receipt) || e.Ordinal != 1 || e.Cause != protocol.CausePostponed || e.InvisibleMs != 0 {
				t.Errorf("got %+v", e)
			}
		}
		p.settled(r, protocol.SettleResult{}, protocol.SettleResult{})
		// None, and an answer that cannot be read, are nothing to be given back.
		for _, late := range []protocol.Body{&protocol.PopAnswer{}, &protocol.StatsAnswer{}} {
			ctx, cancel = context.WithCancel(t.Context())
			wait = going(func() error { _, err := s.Pop(ctx, PopOptions{Topic: "t", Await: time.Minute}); return err })
			r = p.expect(protocol.OpPop, nil)
			cancel()
			wantErr(t, wait(), context.Canceled)
			p.answer(r, protocol.OK, late)
			p.quiet()
		}
	})
}

// A record that is not what was stored costs one message its contents, and nobody a panic.
func TestDamagedRecords(t *testing.T) {
	good := messageRecord(t, 0, codec.Message{Key: "k", Body: []byte("body")})
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	other := make([]byte, codec.HeaderBytes)
	codec.Seal(other, &codec.Header{Type: codec.TypeClock}, 0, 0)
	for name, record := range map[string][]byte{
		"flipped bit": flipped, "cut off": good[:len(good)-1], "empty": {}, "half a header": good[:30],
		"another type": other, "no message": payloadRecord(0, []byte("no message at all")), "bytes behind": append(bytes.Clone(good), 0),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *fakeBroker) {
				c, p := b.client(Options{})
				s := p.session(c)
				batch := p.popped(s, record, good)
				d := batch.Deliveries[0]
				var status *StatusError
				if _, err := d.Body(); !errors.As(err, &status) || status.Status != protocol.Unreadable || d.Err() != err {
					t.Errorf("body: %v, err: %v", err, d.Err())
				}
				if d.Key() != "" || d.Properties() != nil || d.Topic != "t" || len(d.Receipt) == 0 {
					t.Errorf("got %+v", d)
				}
				if body, err := batch.Deliveries[1].Body(); err != nil || string(body) != "body" {
					t.Errorf("the other one: %q, %v", body, err)
				}
				// It can be given back.
				wait := going(func() error { return s.Fail(t.Context(), d, "damaged") })
				p.settled(p.expect(protocol.OpChangeInvisible, nil), protocol.SettleResult{})
				ok(t, wait())
			})
		})
	}
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		wait := going(func() error { _, err := s.Pop(t.Context(), PopOptions{Topic: "t"}); return err })
		p.answer(p.expect(protocol.OpPop, nil), protocol.OK, &protocol.StatsAnswer{})
		if wait() == nil {
			t.Error("no error for a broken answer")
		}
	})
}

func TestPeek(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		wait := going(func() *Peeked {
			got, err := c.Peek(t.Context(), "t", 5, 40, 10)
			ok(t, err)
			return got
		})
		var m protocol.PeekRequest
		r := p.expect(protocol.OpPeek, &m)
		if m.Topic != "t" || m.Queue != 5 || m.Offset != 40 || m.Max != 10 {
			t.Errorf("got %+v", m)
		}
		one, two := messageRecord(t, 40, codec.Message{Key: "a"}), messageRecord(t, 41, codec.Message{Key: "b"})
		p.answer(r, protocol.OK, &protocol.PeekAnswer{Begin: 2, End: 50, Records: append(bytes.Clone(one), two...),
			Rows: []protocol.RecordRange{{Offset: 0, Length: uint32(len(one))}, {Offset: uint32(len(one)), Length: uint32(len(two))}}})
		got := wait()
		if got.Begin != 2 || got.End != 50 || len(got.Messages) != 2 || got.Messages[1].Key() != "b" || got.Messages[1].Offset != 41 {
			t.Errorf("got %+v", got)
		}
		_, err := c.Peek(t.Context(), "t", 0, 0, 0)
		wantErr(t, err, ErrInvalid)
		_, err = c.Peek(t.Context(), "t", -1, 0, 1)
		wantErr(t, err, ErrInvalid)
	})
}
