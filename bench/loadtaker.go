package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leasemq/leasemq/client"
)

// loadTaker is one consumer of a load.
type loadTaker struct {
	load     *load
	number   uint32 // from 1
	consumer *client.Consumer
	moving   sync.RWMutex // held for writing while nothing moves
	starts   sync.Map     // *client.Delivery to the time.Time at which its handler began; not of those that failed

	toHandler *Recorder // due until first handled
	hold      *Recorder // handler's start until acked

	mu     sync.Mutex
	random *rand.Rand
}

func newLoadTaker(l *load, i int, c *client.Client) *loadTaker {
	t := &loadTaker{
		load: l, number: uint32(i + 1), random: rand.New(rand.NewPCG(uint64(i), 4)),
		toHandler: l.toHandler.Recorder(), hold: l.hold.Recorder(),
	}
	topics := l.topics()
	t.consumer = c.Consumer(l.Group, topics[i%len(topics)], client.ConsumerOptions{
		Workers: l.workers, Prefetch: l.prefetch, Invisible: l.invisible, OnSettled: t.settled,
	})
	return t
}

func (t *loadTaker) consume(ctx context.Context) {
	if err := t.consumer.Run(ctx, t.handle); err != nil && ctx.Err() == nil {
		t.load.fail(fmt.Errorf("bench: consumer: %w", err))
	}
}

// pauses keeps the handlers from moving now and then.
func (t *loadTaker) pauses(ctx context.Context) {
	if t.load.pause <= 0 || t.load.pauseEvery <= 0 {
		return
	}
	tick := time.NewTicker(t.load.pauseEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.moving.Lock()
			sleep(ctx, t.load.pause)
			t.moving.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (t *loadTaker) handle(ctx context.Context, d *client.Delivery) error {
	now := time.Now()
	t.starts.Store(d, now)
	err := t.workOn(ctx, d, now)
	if err != nil {
		t.starts.Delete(d)
	}
	return err
}

func (t *loadTaker) workOn(ctx context.Context, d *client.Delivery, now time.Time) error {
	body, err := d.Body()
	if err != nil {
		t.load.corrupt.Add(1)
		return err
	}
	due, number, ok := t.load.open(body)
	if !ok {
		t.load.corrupt.Add(1)
		return nil // it would only come again
	}
	t.note(d, due, number, now)
	if t.load.work != nil {
		t.mu.Lock()
		long := t.load.work(t.random)
		t.mu.Unlock()
		if err := sleep(ctx, long); err != nil {
			return err
		}
	}
	t.moving.RLock()
	defer t.moving.RUnlock()
	return ctx.Err()
}

// note counts the message that is about to be handled.
func (t *loadTaker) note(d *client.Delivery, due time.Duration, number uint64, now time.Time) {
	if d.Attempt > 1 {
		t.load.redelivered.Add(1)
	}
	switch before := t.load.seen[number].Swap(t.number); before {
	case 0:
		at := t.load.began.Add(due)
		t.load.reached(now.Sub(t.load.began))
		t.toHandler.Record(at, now.Sub(at), 1)
	case t.number:
		t.load.duplicates.Add(1)
	default:
		t.load.duplicates.Add(1)
		t.load.handovers.Add(1)
	}
}

// reached notes when a message came to its first handler.
func (l *load) reached(since time.Duration) {
	for {
		last := l.lastFirst.Load()
		if int64(since) <= last || l.lastFirst.CompareAndSwap(last, int64(since)) {
			return
		}
	}
}

func (t *loadTaker) settled(d *client.Delivery, err error) {
	now := time.Now()
	began, acked := t.starts.LoadAndDelete(d)
	body, bad := d.Body()
	if !acked || err != nil || bad != nil {
		return
	}
	_, number, ok := t.load.open(body)
	if !ok {
		return
	}
	if t.load.done[number].Swap(true) {
		t.load.twice.Add(1)
		return
	}
	start := began.(time.Time)
	t.hold.Record(start, now.Sub(start), 1)
	t.load.settled.Add(1)
	t.load.checkEnd()
}
