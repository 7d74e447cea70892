package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// RetryFor counts from the first attempt. What has never left goes on waiting.
func TestRetriesEnd(t *testing.T) {
	for _, x := range []struct{ option, want time.Duration }{{0, 2 * time.Minute}, {3 * time.Second, 3 * time.Second}, {time.Hour, 10 * time.Minute}} {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			b.hello.CreditBytes = 700
			c, p := b.client(Options{})
			producer := c.Producer(ProducerOptions{RetryFor: x.option})
			began := time.Now()
			wait := sending(producer, t.Context(), &Message{Topic: "t", Body: body(400)})
			var o outcomes
			async1(t, producer, "t", "fits not", 400, &o)
			p.expect(protocol.OpSend, nil)
			p.quiet()
			b.set(func() { b.refuse = errors.New("down") })
			time.Sleep(time.Second)
			p.close()
			_, err := wait()
			wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost)
			if took := time.Since(began); took < x.want || took > x.want+leastRetryTick {
				t.Errorf("RetryFor %v: gave up after %v", x.option, took)
			}
			if got := o.all(); len(got) != 0 {
				t.Errorf("callbacks %v", got)
			}
			b.set(func() { b.refuse = nil })
			next := b.accept()
			r, list := keys(t, next)
			if !slices.Equal(list, []string{"fits not"}) {
				t.Errorf("sent %v", list)
			}
			next.stored(r, 0)
			ok(t, producer.Flush(t.Context()))
			next.quiet()
			nothingLeft(t, producer)
		})
	}
}

// Many whose times end close together end in their order, each within a tick of its time.
func TestManyRetriesEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{RetryFor: 10 * time.Second})
		var o outcomes
		var want []string
		lasted := make([]time.Duration, 50)
		for i := range lasted {
			began := time.Now()
			name := fmt.Sprint(i)
			want = append(want, name+" failed")
			told := o.of(name)
			ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", Queue: new(i)}, func(r SendResult, err error) {
				lasted[i] = time.Since(began)
				told(r, err)
			}))
			p.expect(protocol.OpSend, nil)
			time.Sleep(7 * time.Millisecond)
		}
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		ok(t, producer.Flush(t.Context()))
		if got := o.all(); !slices.Equal(got, want) {
			t.Errorf("callbacks %v", got)
		}
		for i, took := range lasted {
			if took < 10*time.Second || took > 10*time.Second+leastRetryTick {
				t.Errorf("message %d after %v", i, took)
			}
		}
	})
}

// One that is in flight when its time ends gets its answer, and is not sent again if that is lost.
func TestRetryInFlightAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{RetryFor: 5 * time.Second})
		answered := sending(producer, t.Context(), &Message{Topic: "t", Key: "a"})
		lost := sending(producer, t.Context(), &Message{Topic: "t", Key: "b"})
		p.close()
		next := b.accept()
		r, _ := keys(t, next)
		keys(t, next)
		time.Sleep(8 * time.Second)
		next.stored(r, 1)
		_, err := answered()
		ok(t, err)
		next.close()
		_, err = lost()
		wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost)
		b.accept().quiet()
	})
}

// SEQ_TOO_OLD is never taken for OK, nor for "not stored".
func TestSequenceTooOld(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		wait := sending(c.Producer(ProducerOptions{}), t.Context(), &Message{Topic: "t"})
		p.close()
		next := b.accept()
		next.answer(next.expect(protocol.OpSend, nil), protocol.OK, &protocol.SendAnswer{Results: []protocol.SendResult{{Status: protocol.SeqTooOld}}})
		_, err := wait()
		wantErr(t, err, ErrOutcomeUnknown)
		var status *StatusError
		if !errors.As(err, &status) || status.Status != protocol.SeqTooOld {
			t.Errorf("got %v", err)
		}
		next.quiet()
	})
}

// A broker that drains and stays: it is certain that the message was not stored, unless an attempt before was lost.
func TestDrainingUntilTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		lost := sending(producer, t.Context(), &Message{Topic: "t"})
		p.close()
		next := b.accept()
		r := next.expect(protocol.OpSend, nil)
		certain := sending(producer, t.Context(), &Message{Topic: "t"})
		next.refuse(next.expect(protocol.OpSend, nil), protocol.Draining, "stopping")
		next.refuse(r, protocol.Draining, "stopping")
		_, err := lost()
		wantErr(t, err, ErrOutcomeUnknown, ErrDraining)
		_, err = certain()
		wantErr(t, err, ErrDraining)
		notErr(t, err, ErrOutcomeUnknown)
		next.quiet()
		nothingLeft(t, producer)
	})
}

// STORE_FULL and LIMIT_EXCEEDED are answers. Of a request that had been lost before they say only that this attempt
// stored nothing.
func TestRefusalsAreNotRepeated(t *testing.T) {
	for _, status := range []protocol.Status{protocol.StoreFull, protocol.LimitExceeded, protocol.TopicNotFound} {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			c, p := b.client(Options{})
			producer := c.Producer(ProducerOptions{})
			wait := sending(producer, t.Context(), &Message{Topic: "t"})
			p.refuse(p.expect(protocol.OpSend, nil), status, "because")
			_, err := wait()
			var refusal *StatusError
			if !errors.As(err, &refusal) || refusal.Status != status || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("got %v", err)
			}
			wait = sending(producer, t.Context(), &Message{Topic: "t"})
			p.close()
			next := b.accept()
			next.refuse(next.expect(protocol.OpSend, nil), status, "because")
			_, err = wait()
			wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost)
			if !errors.As(err, &refusal) || refusal.Status != status {
				t.Errorf("got %v", err)
			}
			next.quiet()
			nothingLeft(t, producer)
		})
	}
}

// In a batch, what was refused does not make the rest come again.
func TestRefusedMessageInABatch(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		wait := going(func() []SendResult {
			r, _ := c.Producer(ProducerOptions{}).SendBatch(t.Context(), "t", []*Message{{}, {}})
			return r
		})
		p.close()
		next := b.accept()
		next.answer(next.expect(protocol.OpSend, nil), protocol.OK, &protocol.SendAnswer{Results: []protocol.SendResult{{Offset: 9}, {Status: protocol.StoreFull}}})
		results := wait()
		if results[0].Err != nil || results[0].Offset != 9 {
			t.Errorf("got %+v", results[0])
		}
		wantErr(t, results[1].Err, ErrStoreFull)
		notErr(t, results[1].Err, ErrOutcomeUnknown) // the word on a message counts for its first attempt, too
		next.quiet()
	})
}

// The context of a Send ends its retries, wherever it is.
func TestContextEndsRetries(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		waiting := sending(producer, ctx, &Message{Topic: "t"})
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		_, err := waiting()
		wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost, context.DeadlineExceeded)
		b.set(func() { b.refuse = nil })
		next := b.accept()
		next.quiet()
		// While it is under way for the second time; it is not sent a third time.
		ctx, cancel = context.WithCancel(t.Context())
		inFlight := sending(producer, ctx, &Message{Topic: "t"})
		next.close()
		next = b.accept()
		r := next.expect(protocol.OpSend, nil)
		cancel()
		_, err = inFlight()
		wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost, context.Canceled)
		next.refuse(r, protocol.Draining, "stopping")
		next.close()
		next = b.accept()
		next.quiet()
		// While it is held back by a broker that drains: an earlier attempt was refused for certain.
		ctx, cancel = context.WithCancel(t.Context())
		held := sending(producer, ctx, &Message{Topic: "t"})
		next.refuse(next.expect(protocol.OpSend, nil), protocol.Draining, "stopping")
		never := sending(producer, ctx, &Message{Topic: "t"})
		cancel()
		for _, wait := range []func() (SendResult, error){held, never} {
			_, err = wait()
			wantErr(t, err, context.Canceled)
			notErr(t, err, ErrOutcomeUnknown)
		}
		next.quiet()
		nothingLeft(t, producer)
	})
}

func TestCloseDuringRetries(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		lost := sending(producer, t.Context(), &Message{Topic: "t"})
		async := make(chan error, 1)
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t"}, func(_ SendResult, err error) { async <- err }))
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		never := sending(producer, t.Context(), &Message{Topic: "t"})
		flush := going(func() error { return producer.Flush(t.Context()) })
		time.Sleep(time.Minute)
		ok(t, c.Close())
		_, err := lost()
		wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost, ErrClosed)
		wantErr(t, <-async, ErrOutcomeUnknown, ErrClosed)
		_, err = never()
		wantErr(t, err, ErrClosed)
		notErr(t, err, ErrOutcomeUnknown)
		ok(t, flush())
		nothingLeft(t, producer)
		time.Sleep(time.Hour) // no timer is left that would find anything
	})
}

// Close while a retry is under way, and while others are held back by a broker that drains.
func TestCloseWithRetriesInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		again := sending(producer, t.Context(), &Message{Topic: "t"})
		p.close()
		next := b.accept()
		next.expect(protocol.OpSend, nil)
		held := sending(producer, t.Context(), &Message{Topic: "t"})
		next.refuse(next.expect(protocol.OpSend, nil), protocol.Draining, "stopping")
		synctest.Wait()
		ok(t, c.Close())
		_, err := again()
		wantErr(t, err, ErrOutcomeUnknown, ErrClosed)
		_, err = held()
		wantErr(t, err, ErrClosed)
		notErr(t, err, ErrOutcomeUnknown)
		nothingLeft(t, producer)
	})
}

// With a negative RetryFor messages have numbers, so that whoever sends the same bytes again may; the producer does not.
func TestNeverRetried(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{RetryFor: -1})
		wait := sending(producer, t.Context(), &Message{Topic: "t"})
		if id, list := numbers(t, p.expect(protocol.OpSend, nil)); id == 0 || !slices.Equal(list, []uint64{1}) {
			t.Errorf("producer %d, sequences %d", id, list)
		}
		p.close()
		_, err := wait()
		wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost)
		next := b.accept()
		next.quiet()
		wait = sending(producer, t.Context(), &Message{Topic: "t"})
		next.refuse(next.expect(protocol.OpSend, nil), protocol.StoreFailed, "broken")
		_, err = wait()
		wantErr(t, err, ErrOutcomeUnknown)
		nothingLeft(t, producer)
	})
}

// A context that ends while the answer is being read ends the Send, though the answer would have it sent again.
func TestContextEndsWhileTheAnswerComes(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		l, producer := c.link, c.Producer(ProducerOptions{})
		x := producer.newSend(100)
		ok(t, l.submit(x))
		r := p.expect(protocol.OpSend, nil)
		ctx, cancel := context.WithCancel(t.Context())
		waiting := going(func() error { _, err := l.wait(ctx, x); return err })
		answer := protocol.Header{Opcode: protocol.OpSend, Status: protocol.Draining, RequestID: r.RequestID}
		_, err := l.claim(l.conn, answer) // the reader has it,
		ok(t, err)
		cancel() // its owner leaves,
		synctest.Wait()
		began := time.Now()
		l.conn.settle(x, answer, new(protocol.ErrorBody).Append(nil)) // and it turns out to be one that is sent again
		l.answered(x)
		wantErr(t, waiting(), ErrDraining)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("waited for another %v", waited)
		}
		l.free(x)
		p.close()
		b.accept().quiet()
		nothingLeft(t, producer)
	})
}

// A broker that comes back with lower limits gets no request that it would refuse; the one before may have stored it.
func TestLowerLimitsForARetry(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{Compression: CompressNone})
		wait := sending(producer, t.Context(), &Message{Topic: "t", Body: body(3000)})
		b.set(func() { b.hello.MaxFrameBytes = 2000 })
		p.close()
		_, err := wait()
		wantErr(t, err, ErrTooLarge, ErrOutcomeUnknown, ErrConnectionLost)
		b.accept().quiet()
		nothingLeft(t, producer)
	})
}
