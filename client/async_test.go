package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// outcomes collects what callbacks were told.
type outcomes struct {
	mu   sync.Mutex
	list []string
}

func (o *outcomes) of(name string) func(SendResult, error) {
	return func(r SendResult, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if err != nil {
			name += " failed"
		}
		o.list = append(o.list, name)
	}
}

func (o *outcomes) all() []string {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.list)
}

func async1(t *testing.T, p *Producer, topic, name string, n int, o *outcomes) {
	t.Helper()
	ok(t, p.SendAsync(t.Context(), &Message{Topic: topic, Key: name, Body: body(n)}, o.of(name)))
}

func keys(t *testing.T, p *peer) (request, []string) {
	t.Helper()
	var m protocol.SendRequest
	r := p.expect(protocol.OpSend, &m)
	var list []string
	for _, v := range views(t, &m) {
		list = append(list, string(v.Key))
	}
	return r, list
}

// The first message goes at once; those behind it gather until its answer.
func TestAsyncIsClockedByAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		var o outcomes
		async1(t, producer, "t", "a", 10, &o)
		first, list := keys(t, p)
		if !slices.Equal(list, []string{"a"}) {
			t.Fatalf("got %v", list)
		}
		for _, name := range []string{"b", "c", "d"} {
			async1(t, producer, "t", name, 10, &o)
		}
		time.Sleep(time.Second) // no timer sends them
		p.quiet()
		// Another topic has a clock of its own, and so has a queue that was asked for.
		async1(t, producer, "u", "x", 10, &o)
		if _, list := keys(t, p); !slices.Equal(list, []string{"x"}) {
			t.Fatalf("got %v", list)
		}
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", Key: "q", Queue: new(1)}, nil))
		if _, list := keys(t, p); !slices.Equal(list, []string{"q"}) {
			t.Fatalf("got %v", list)
		}
		p.stored(first, 0)
		second, list := keys(t, p)
		if !slices.Equal(list, []string{"b", "c", "d"}) {
			t.Fatalf("got %v", list)
		}
		if got := o.all(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("callbacks %v", got)
		}
		p.stored(second, 1)
		if got := o.all(); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
			t.Errorf("callbacks %v", got)
		}
		// Nothing is in flight again: at once.
		async1(t, producer, "t", "e", 10, &o)
		if _, list := keys(t, p); !slices.Equal(list, []string{"e"}) {
			t.Fatalf("got %v", list)
		}
	})
}

// 64 KiB are not kept back.
func TestAsyncFullBatchGoes(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		var o outcomes
		async1(t, producer, "t", "a", 10, &o)
		p.expect(protocol.OpSend, nil)
		for i := range 100 {
			async1(t, producer, "t", fmt.Sprint(i), 1000, &o)
		}
		r, list := keys(t, p)
		if n := protocol.HeaderBytes + len(r.body); n < 64<<10 || n > 66<<10 {
			t.Errorf("a frame of %d bytes with %d messages", n, len(list))
		}
		p.quiet()
	})
}

func TestAsyncKeepsTheFrameLimit(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.MaxFrameBytes = 1000
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		var o outcomes
		for _, name := range []string{"a", "b", "c", "d"} {
			async1(t, producer, "t", name, 400, &o)
		}
		for _, want := range [][]string{{"a"}, {"b", "c"}} {
			if _, list := keys(t, p); !slices.Equal(list, want) {
				t.Errorf("got %v, want %v", list, want)
			}
		}
		p.quiet()
	})
}

// SendAsync waits while too many bytes are unanswered.
func TestAsyncBackPressure(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{MaxPending: 3000})
		var o outcomes
		async1(t, producer, "t", "long", 3500, &o) // one always has room
		first, _ := keys(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := producer.SendAsync(ctx, &Message{Topic: "t"}, o.of("never"))
		cancel()
		wantErr(t, err, context.DeadlineExceeded)
		var taken atomic.Int32
		var waits []func() error
		for i := range 4 {
			waits = append(waits, going(func() error {
				err := producer.SendAsync(t.Context(), &Message{Topic: "t", Body: body(1200)}, o.of(fmt.Sprint(i)))
				taken.Add(1)
				return err
			}))
			synctest.Wait()
		}
		if n := taken.Load(); n != 0 {
			t.Fatalf("%d were taken", n)
		}
		p.stored(first, 0)
		synctest.Wait()
		if n := taken.Load(); n != 2 {
			t.Errorf("%d were taken, want 2 of 1200 bytes within 3000", n)
		}
		for len(o.all()) < 5 {
			p.stored(p.expect(protocol.OpSend, nil), 1)
		}
		for _, wait := range waits {
			ok(t, wait())
		}
		if got := o.all(); slices.Contains(got, "never") {
			t.Errorf("callbacks %v", got)
		}
	})
}

// One that gives up its place in the line does not hold up those behind it.
func TestAsyncBackPressureGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{MaxPending: 3000})
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", Body: body(2000)}, nil))
		p.expect(protocol.OpSend, nil)
		ctx, cancel := context.WithCancel(t.Context())
		long := going(func() error { return producer.SendAsync(ctx, &Message{Topic: "t", Body: body(2000)}, nil) })
		synctest.Wait()
		short := going(func() error { return producer.SendAsync(t.Context(), &Message{Topic: "t", Body: body(100)}, nil) })
		synctest.Wait()
		cancel()
		gaveUp := time.Now()
		wantErr(t, long(), context.Canceled)
		ok(t, short())
		if waited := time.Since(gaveUp); waited > 0 {
			t.Errorf("waited for another %v", waited)
		}
	})
}

// A callback may hand in the next message though the buffer is full of others.
func TestAsyncCallbackMaySend(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{MaxPending: 1000})
		again := make(chan error, 1)
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", Body: body(800)}, func(SendResult, error) {
			again <- producer.SendAsync(t.Context(), &Message{Topic: "t", Body: body(800)}, nil)
		}))
		p.stored(p.expect(protocol.OpSend, nil), 0)
		ok(t, <-again)
		p.stored(p.expect(protocol.OpSend, nil), 0)
		ok(t, producer.Flush(t.Context()))
	})
}

func TestFlush(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		ok(t, producer.Flush(t.Context()))
		var o outcomes
		async1(t, producer, "t", "a", 10, &o)
		async1(t, producer, "t", "b", 10, &o)
		first, _ := keys(t, p)
		flush := going(func() error { return producer.Flush(t.Context()) })
		second, list := keys(t, p) // it does not wait for the answer to the first
		if !slices.Equal(list, []string{"b"}) {
			t.Fatalf("got %v", list)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		wantErr(t, producer.Flush(ctx), context.DeadlineExceeded)
		cancel()
		async1(t, producer, "u", "later", 10, &o) // it does not wait for what came after it
		p.expect(protocol.OpSend, nil)
		p.stored(second, 1)
		synctest.Wait()
		p.stored(first, 0)
		ok(t, flush())
		if got := o.all(); !slices.Equal(got, []string{"b", "a"}) {
			t.Errorf("callbacks %v", got)
		}
	})
}

// Without numbers nothing is sent again, and what had not left goes on the next connection.
func TestAsyncLossWithoutNumbers(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{NotIdempotent: true})
		var o outcomes
		async1(t, producer, "t", "a", 10, &o)
		p.expect(protocol.OpSend, nil)
		async1(t, producer, "t", "b", 10, &o)
		p.close()
		next := b.accept()
		r, list := keys(t, next)
		if !slices.Equal(list, []string{"b"}) {
			t.Fatalf("got %v", list)
		}
		next.stored(r, 0)
		if got := o.all(); !slices.Equal(got, []string{"a failed", "b"}) {
			t.Errorf("callbacks %v", got)
		}
	})
}

func TestAsyncRefusesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		never := func(SendResult, error) { t.Error("called") }
		for _, m := range []*Message{{}, {Topic: "a b"}, {Topic: "t", Queue: new(-1)}, {Topic: "t", Delay: -1},
			{Topic: "t", Properties: []Property{{}}}, {Topic: "t", Key: string(body(256))}} {
			if producer.SendAsync(t.Context(), m, never) == nil {
				t.Errorf("%+v was taken", m)
			}
		}
		p.quiet()
		ok(t, producer.Flush(t.Context()))
		if producer.async.pending != 0 {
			t.Errorf("%d bytes are pending", producer.async.pending)
		}
	})
}
