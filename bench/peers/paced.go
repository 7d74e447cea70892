package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// endToEnd sends at a fixed rate and measures from the moment at which a message was due to be sent until a consumer has its body. Each
// connection sends what is due every millisecond or two.
func endToEnd(ctx context.Context, b *run) (figures, error) {
	producers, consumers, err := b.connect(ctx)
	if err != nil {
		return figures{}, err
	}
	defer closeAll(producers)
	defer closeAll(consumers)
	s := newSchedule(time.Now().Add(100*time.Millisecond), b.w.rate, b.seconds)
	taking, enough := context.WithCancel(ctx)
	defer enough()
	drained := b.takeAlong(taking, consumers, s.came)
	before := b.sent.Load()
	err = together(producers, func(i int, p producer) error { return b.pace(ctx, s, p, b.bodies(uint64(i))) })
	if err == nil {
		err = s.keptUp(time.Now(), b.sent.Load()-b.taken.Load())
	}
	if err == nil {
		err = b.catchUp(ctx)
	}
	enough()
	err = errors.Join(err, <-drained)
	f := latencies(s.histogram)
	f.Messages = b.sent.Load() - before
	return f, err
}

// pace sends what is due, when it is due, and returns when all of it is confirmed.
func (b *run) pace(ctx context.Context, s *schedule, p producer, noise [][]byte) error {
	for tick := range s.ticks {
		due := time.Duration(tick) * s.tick
		time.Sleep(time.Until(s.began.Add(due)))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.post(bodiesDue(noise, tick, s.perTick, due)); err != nil {
			return err
		}
		b.sent.Add(int64(s.perTick))
	}
	return p.flush()
}

// schedule says when each message is due, and keeps how much later it came. The first tenth warms up.
type schedule struct {
	began   time.Time
	warm    time.Duration
	rate    int           // messages a second
	tick    time.Duration // every one of them a connection sends perTick
	perTick int
	ticks   int

	mu        sync.Mutex
	histogram *hdrhistogram.Histogram
}

func newSchedule(began time.Time, rate int, d time.Duration) *schedule {
	perTick := max(1, rate/1000/connections)
	tick := time.Duration(perTick*connections) * time.Second / time.Duration(rate)
	return &schedule{
		began: began, warm: d / 10, rate: rate, tick: tick, perTick: perTick, ticks: int((d + d/10) / tick), histogram: newHistogram(),
	}
}

func (s *schedule) came(body []byte) {
	now := time.Since(s.began)
	due := time.Duration(binary.LittleEndian.Uint64(body))
	if due < s.warm {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.histogram.RecordValue(int64(now - due))
}

// behindMost is how far a peer may be behind when the last message was sent.
const behindMost = time.Second

// keptUp fails if a peer is behind when all is sent: its latency would only tell how long the run was.
func (s *schedule) keptUp(now time.Time, waiting int64) error {
	late := now.Sub(s.began.Add(time.Duration(s.ticks) * s.tick))
	if late < behindMost && waiting < int64(behindMost.Seconds()*float64(s.rate)) {
		return nil
	}
	return fmt.Errorf("it does not keep up: the last of %d/s was confirmed %.1f s late, when %d had not been taken", s.rate, late.Seconds(), waiting)
}

// bodiesDue are n new bodies of a tick: noise, and before it the moment at which they are due.
func bodiesDue(noise [][]byte, tick, n int, due time.Duration) [][]byte {
	bodies := make([][]byte, n)
	for i := range bodies {
		bodies[i] = slices.Clone(noise[(tick*n+i)%len(noise)])
		binary.LittleEndian.PutUint64(bodies[i], uint64(due))
	}
	return bodies
}
