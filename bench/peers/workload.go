package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// workload is one kind of work, the same for every peer.
type workload struct {
	id, title    string
	sends, takes bool
	single       bool // one message at a time
	size         int
	rate         int // messages a second, where it is fixed
	flushed      bool
	run          func(ctx context.Context, b *run) (figures, error)
}

// figures are the outcome of one run. A rate of 0 and an empty latency mean that the work has none.
type figures struct {
	Sent     float64 `json:"sent_per_s,omitempty"`
	Taken    float64 `json:"taken_per_s,omitempty"`
	P50      float64 `json:"p50_us,omitempty"`
	P99      float64 `json:"p99_us,omitempty"`
	P999     float64 `json:"p999_us,omitempty"`
	Max      float64 `json:"max_us,omitempty"`
	Messages int64   `json:"messages"`
}

const (
	connections = 4
	queueName   = "jobs"
)

func workloads() []workload {
	return []workload{
		{id: "send", title: "send, 1 KiB, laps with a sync between them", sends: true, size: 1024, run: laps},
		{id: "send-sustained", title: "send, 1 KiB, without a break", sends: true, size: 1024, run: sustained},
		{id: "send-128", title: "send, 128 B, laps with a sync between them", sends: true, size: 128, run: laps},
		{id: "send-flushed", title: "send, 1 KiB, flushed before the answer", sends: true, size: 1024, flushed: true, run: sustained},
		{id: "consume", title: "take and ack, 1 KiB, batches of 64", takes: true, size: 1024, run: consume},
		{id: "consume-flushed", title: "take and ack, 1 KiB, batches of 64, flushed before the answer", takes: true, size: 1024, flushed: true, run: consume},
		{id: "both", title: "send and take and ack at the same time, 1 KiB", sends: true, takes: true, size: 1024, run: both},
		{id: "sync", title: "one at a time, 1 KiB, one connection", sends: true, single: true, size: 1024, run: oneAtATime},
		{id: "sync-flushed", title: "one at a time, 1 KiB, one connection, flushed before the answer", sends: true, single: true, size: 1024, flushed: true, run: oneAtATime},
		{id: "e2e", title: "send to handler at 20,000 messages/s, 1 KiB", sends: true, takes: true, size: 1024, rate: 20_000, run: endToEnd},
		{id: "e2e-slow", title: "send to handler at 2,000 messages/s, 1 KiB", sends: true, takes: true, size: 1024, rate: 2000, run: endToEnd},
	}
}

// run is one run of a workload with a peer, on a server that was started for it.
type run struct {
	broker      broker
	way         string
	w           workload
	dir         string
	seconds     time.Duration
	laps        int
	lapMessages int64 // of 1 KiB; of smaller ones four times as many

	sent, taken atomic.Int64 // everything that was confirmed and settled, warming up included
}

// bodies are what one connection sends again and again: bytes that nobody can compress.
func (b *run) bodies(seed uint64) [][]byte {
	random := rand.New(rand.NewPCG(seed, 1))
	memory := make([]byte, postBatch*b.w.size)
	for at := 0; at < len(memory); at += 8 {
		binary.LittleEndian.PutUint64(memory[at:], random.Uint64())
	}
	bodies := make([][]byte, postBatch)
	for i := range bodies {
		bodies[i] = memory[i*b.w.size : (i+1)*b.w.size]
	}
	return bodies
}

func (b *run) producers(ctx context.Context) (producers []producer, err error) {
	for range connections {
		p, err := b.broker.producer(ctx, queueName, b.way)
		if err != nil {
			return nil, errors.Join(err, closeAll(producers))
		}
		producers = append(producers, p)
	}
	return producers, nil
}

func (b *run) consumers(ctx context.Context) (consumers []consumer, err error) {
	for range connections {
		c, err := b.broker.consumer(ctx, queueName, b.way)
		if err != nil {
			return nil, errors.Join(err, closeAll(consumers))
		}
		consumers = append(consumers, c)
	}
	return consumers, nil
}

// connect makes both.
func (b *run) connect(ctx context.Context) (producers []producer, consumers []consumer, err error) {
	if producers, err = b.producers(ctx); err != nil {
		return nil, nil, err
	}
	if consumers, err = b.consumers(ctx); err != nil {
		return nil, nil, errors.Join(err, closeAll(producers))
	}
	return producers, consumers, nil
}

func closeAll[C interface{ close() }](all []C) error {
	for _, c := range all {
		c.close()
	}
	return nil
}

// together runs f for each of all at once and joins the errors.
func together[C any](all []C, f func(i int, c C) error) error {
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, c := range all {
		running.Go(func() { errs[i] = f(i, c) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// send sends until more says that it is enough, and returns when all of it is confirmed.
func (b *run) send(ctx context.Context, producers []producer, more func() bool) (sent int64, took time.Duration, err error) {
	var n atomic.Int64
	began := time.Now()
	err = together(producers, func(i int, p producer) error {
		for bodies := b.bodies(uint64(i)); more(); {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := p.post(bodies); err != nil {
				return err
			}
			n.Add(int64(len(bodies)))
		}
		return p.flush()
	})
	took = time.Since(began)
	b.sent.Add(n.Load())
	return n.Load(), took, err
}

// upTo is a more that ends after about n messages.
func upTo(n int64) func() bool {
	left := new(atomic.Int64)
	left.Store(n)
	return func() bool { return left.Add(-postBatch) >= 0 }
}

func until(end time.Time) func() bool { return func() bool { return time.Now().Before(end) } }

func perSecond(n int64, took time.Duration) float64 { return float64(n) / max(took.Seconds(), 1e-9) }

// warmStretch is how many messages are sent in warming up before all of them have to be taken.
const warmStretch = 4 << 10

// warmUp sends and takes for a while, all that a workload could do, and leaves nothing behind.
func (b *run) warmUp(ctx context.Context, d time.Duration) error {
	producers, consumers, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll(producers)
	defer closeAll(consumers)
	taking, enough := context.WithCancel(ctx)
	defer enough()
	drained := b.takeAlong(taking, consumers, func([]byte) {})
	for more := until(time.Now().Add(d)); err == nil && more(); {
		if _, _, err = b.send(ctx, producers, upTo(warmStretch)); err == nil {
			err = b.catchUp(ctx)
		}
	}
	enough()
	return errors.Join(err, <-drained)
}

// laps sends the same amount several times, with everything on the disk in between, and reports the median lap: what the
// broker takes while the disk is not what limits it.
func laps(ctx context.Context, b *run) (figures, error) {
	producers, err := b.producers(ctx)
	if err != nil {
		return figures{}, err
	}
	defer closeAll(producers)
	n := b.lapMessages
	if b.w.size < 1024 {
		n *= 4
	}
	var rates []float64
	var all int64
	for lap := range b.laps + 1 {
		if err := syncDir(b.dir); err != nil {
			return figures{}, err
		}
		sent, took, err := b.send(ctx, producers, upTo(n))
		if err != nil {
			return figures{}, err
		}
		if lap > 0 { // the first one warms everything up
			rates = append(rates, perSecond(sent, took))
			all += sent
		}
	}
	return figures{Sent: median(rates), Messages: all}, nil
}

func sustained(ctx context.Context, b *run) (figures, error) {
	producers, err := b.producers(ctx)
	if err != nil {
		return figures{}, err
	}
	defer closeAll(producers)
	if _, _, err := b.send(ctx, producers, until(time.Now().Add(b.seconds/10))); err != nil {
		return figures{}, err
	}
	sent, took, err := b.send(ctx, producers, until(time.Now().Add(b.seconds)))
	return figures{Sent: perSecond(sent, took), Messages: sent}, err
}

// fillAtOnce is how many messages are filled in before each stretch of taking, or as many as go in in fillAtMost.
const (
	fillAtOnce = 256 << 10
	fillAtMost = 5 * time.Second

	catchUpPatience = 3 * time.Minute
	countPatience   = 20 * time.Second
)

// consume fills in and takes, a stretch after the other, until the taking has gone on for as long as is asked for.
func consume(ctx context.Context, b *run) (figures, error) {
	producers, err := b.producers(ctx)
	if err != nil {
		return figures{}, err
	}
	defer closeAll(producers)
	var all int64
	var spent time.Duration
	for stretch := 0; stretch < 2 || spent < b.seconds; stretch++ {
		fill, most := int64(fillAtOnce), min(fillAtMost, b.seconds)
		if stretch == 0 { // warms everything up
			fill, most = fill/4, most/4
		}
		enough, late := upTo(fill), until(time.Now().Add(most))
		sent, _, err := b.send(ctx, producers, func() bool { return late() && enough() })
		if err != nil {
			return figures{}, err
		}
		if err := syncDir(b.dir); err != nil {
			return figures{}, err
		}
		took, err := b.take(ctx, sent)
		if err != nil {
			return figures{}, err
		}
		if stretch > 0 {
			all, spent = all+sent, spent+took
		}
	}
	return figures{Taken: perSecond(all, spent), Messages: all}, nil
}

// take takes and settles n messages, no more and no fewer.
func (b *run) take(ctx context.Context, n int64) (time.Duration, error) {
	consumers, err := b.consumers(ctx)
	if err != nil {
		return 0, err
	}
	defer closeAll(consumers)
	patience, cancel := context.WithTimeout(ctx, catchUpPatience)
	defer cancel()
	taking, enough := context.WithCancel(patience)
	defer enough()
	var ended atomic.Int64
	began := time.Now()
	take, taken := counted(n, func() {
		ended.Store(int64(time.Since(began)))
		enough()
	})
	err = together(consumers, func(_ int, c consumer) error { return c.drain(taking, take) })
	b.taken.Add(taken.Load())
	if err == nil && taken.Load() != n {
		err = fmt.Errorf("%d messages were taken of %d that were sent", taken.Load(), n)
	}
	return time.Duration(ended.Load()), err
}

func both(ctx context.Context, b *run) (figures, error) {
	producers, consumers, err := b.connect(ctx)
	if err != nil {
		return figures{}, err
	}
	defer closeAll(producers)
	defer closeAll(consumers)
	taking, enough := context.WithCancel(ctx)
	defer enough()
	drained := b.takeAlong(taking, consumers, func([]byte) {})
	f, err := b.sendBeside(ctx, producers)
	if err == nil {
		err = b.catchUp(ctx)
	}
	enough()
	return f, errors.Join(err, <-drained)
}

// takeAlong takes and settles, and counts, until ctx ends.
func (b *run) takeAlong(ctx context.Context, consumers []consumer, take func([]byte)) (drained <-chan error) {
	ended := make(chan error, 1)
	go func() {
		ended <- together(consumers, func(_ int, c consumer) error {
			return c.drain(ctx, func(body []byte) {
				take(body)
				b.taken.Add(1)
			})
		})
	}()
	return ended
}

// sendBeside sends flat out while consumers take, and reports the rates of both as long as it goes on.
func (b *run) sendBeside(ctx context.Context, producers []producer) (figures, error) {
	if _, _, err := b.send(ctx, producers, until(time.Now().Add(b.seconds/10))); err != nil {
		return figures{}, err
	}
	before := b.taken.Load()
	sent, took, err := b.send(ctx, producers, until(time.Now().Add(b.seconds)))
	return figures{Sent: perSecond(sent, took), Taken: perSecond(b.taken.Load()-before, took), Messages: sent}, err
}

// catchUp waits until consumers have taken everything that was sent.
func (b *run) catchUp(ctx context.Context) error {
	patience, cancel := context.WithTimeout(ctx, catchUpPatience)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for b.taken.Load() < b.sent.Load() {
		select {
		case <-look.C:
		case <-patience.Done():
			return fmt.Errorf("%d messages were taken of %d that were sent: %w", b.taken.Load(), b.sent.Load(), patience.Err())
		}
	}
	return nil
}

// settled fails unless the peer itself counts as many messages as were sent and not settled. It is asked again for a while: some
// count what is settled a moment later.
func (b *run) settled(ctx context.Context) error {
	want := b.sent.Load() - b.taken.Load()
	if want < 0 || b.w.takes && want != 0 {
		return fmt.Errorf("%d messages were sent, but %d taken", b.sent.Load(), b.taken.Load())
	}
	patience, cancel := context.WithTimeout(ctx, countPatience)
	defer cancel()
	for {
		left, ok, err := b.broker.left(patience, queueName)
		switch {
		case err != nil:
			return fmt.Errorf("how many messages are left: %w", err)
		case !ok || left == want:
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-patience.Done():
			return fmt.Errorf("%d messages were sent and %d settled, but %d are left", b.sent.Load(), b.taken.Load(), left)
		}
	}
}

func oneAtATime(ctx context.Context, b *run) (figures, error) {
	p, err := b.broker.producer(ctx, queueName, b.way)
	if err != nil {
		return figures{}, err
	}
	defer p.close()
	h := newHistogram()
	bodies := b.bodies(1)
	warm := time.Now().Add(b.seconds / 10)
	n, end := int64(0), warm.Add(b.seconds)
	for now := time.Now(); now.Before(end) && ctx.Err() == nil; {
		if err := p.one(bodies[n%postBatch]); err != nil {
			return figures{}, err
		}
		answered := time.Now()
		b.sent.Add(1)
		if now.After(warm) {
			h.RecordValue(int64(answered.Sub(now)))
			n++
		}
		now = answered
	}
	f := latencies(h)
	f.Messages, f.Sent = n, perSecond(n, b.seconds)
	return f, nil
}

// newHistogram holds 1 us to a minute, exact to three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1000, int64(time.Minute), 3) }

func latencies(h *hdrhistogram.Histogram) figures {
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	return figures{
		P50: us(h.ValueAtQuantile(50)), P99: us(h.ValueAtQuantile(99)), P999: us(h.ValueAtQuantile(99.9)), Max: us(h.Max()),
	}
}
