package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
)

// workWorkload is `bench work`.
type workWorkload struct{ workers, prefetch, batch int }

func (*workWorkload) About() About {
	return About{
		Name: "work", Short: "Have workers with empty handlers run through a topic",
		Long: `Fills a topic, waits until it is on the disk, and then starts the clock: consumers with workers, as programs have them
(client.Consumer), call a handler for each message that does nothing, until all are acked or, with --duration, so much time
has passed. A latency is the time from the start of a handler until its ack was taken. With --batch the handler gets so
many messages at most (RunBatch).`,
	}
}

func (w *workWorkload) Flags(f *Flags) {
	f.Settings.Consumers, f.Settings.Messages = 1, 200_000
	f.Share("embedded", "dir", "fsync", "io", "topic", "queues", "size", "consumers", "compression", "duration", "messages", "warm-up")
	f.IntVar(&w.workers, "workers", 64, "handlers at once of each consumer")
	f.IntVar(&w.prefetch, "prefetch", 0, "messages taken beyond those that are being handled")
	f.IntVar(&w.batch, "batch", 0, "most messages of a call of the handler, with RunBatch; 0: one, with Run")
}

func (w *workWorkload) Run(ctx context.Context, run *Run) error {
	if w.workers < 1 || w.prefetch < 0 || w.batch < 0 || run.Messages == 0 {
		return &SettingError{errors.New("--workers, --prefetch, --batch or --messages is too small")}
	}
	run.Extra("workers", w.workers)
	run.Extra("prefetch", w.prefetch)
	run.Extra("batch", w.batch)
	clients, err := dialAll(ctx, run.Addr, "leasemq bench work", run.Consumers)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	sessions, err := subscribe(ctx, clients[:1], run.topics(), run.Group, run.Queues)
	if sessions != nil {
		defer leave(ctx, clients[0], run.Group, nil)
	}
	for _, s := range sessions {
		err = errors.Join(err, s.Close(ctx))
	}
	if err != nil {
		return err
	}
	filled, err := run.fill(ctx, run.Consumers, run.Messages, true)
	run.Extra("fill", filled)
	if err != nil {
		return err
	}
	return w.work(ctx, run, clients)
}

// workRun is the state of one run.
type workRun struct {
	batch   int
	most    uint64
	running context.Context
	ended   context.CancelFunc
	settled atomic.Uint64
	cut     atomic.Uint64 // not settled when the run had ended: nobody waits for their answers for long
	first   firstError
}

func (w *workWorkload) work(ctx context.Context, run *Run, clients []*client.Client) error {
	running, ended := context.WithCancel(ctx)
	defer ended()
	x := &workRun{batch: w.batch, most: run.Messages, running: running, ended: ended}
	lane := run.Lane("handler_to_ack", true)
	takers := make([]workTaker, len(clients))
	run.Begin(0)
	if until := run.until(); !until.IsZero() {
		defer time.AfterFunc(time.Until(until), ended).Stop()
	}
	var working sync.WaitGroup
	for i, c := range clients {
		t := &takers[i]
		t.run, t.record = x, lane.Recorder()
		t.consumer = c.Consumer(run.Group, run.Topic, client.ConsumerOptions{
			Workers: w.workers, Prefetch: w.prefetch, Batch: w.batch, OnSettled: t.settled,
		})
		working.Go(func() { t.work(running) })
	}
	working.Wait()
	var redelivered, renewals uint64
	for i := range takers {
		lane.End(takers[i].endedAt)
		redelivered += takers[i].redelivered
		renewals += takers[i].consumer.Stats().Renewals
	}
	run.Count("redelivered", redelivered)
	run.Count("renewals", renewals)
	run.Count("cut_off", x.cut.Load())
	if err := x.first.get(); err != nil {
		return err
	}
	return ctx.Err()
}

// workTaker is one consumer.
type workTaker struct {
	run      *workRun
	consumer *client.Consumer
	starts   sync.Map // *client.Delivery to time.Time
	record   *Recorder

	// Of OnSettled, which is called by one goroutine; read when Run has returned.
	redelivered uint64
	endedAt     time.Time
}

func (t *workTaker) work(ctx context.Context) {
	var err error
	if t.run.batch > 0 {
		err = t.consumer.RunBatch(ctx, func(_ context.Context, batch []*client.Delivery) error {
			now := time.Now()
			for _, d := range batch {
				t.starts.Store(d, now)
			}
			return nil
		})
	} else {
		err = t.consumer.Run(ctx, func(_ context.Context, d *client.Delivery) error {
			t.starts.Store(d, time.Now())
			return nil
		})
	}
	if err != nil {
		t.run.first.set(fmt.Errorf("bench: work: %w", err))
		t.run.ended()
	}
}

func (t *workTaker) settled(d *client.Delivery, err error) {
	now := time.Now()
	began, _ := t.starts.LoadAndDelete(d)
	switch {
	case err == nil:
	case t.run.running.Err() != nil:
		t.run.cut.Add(1)
		return
	default:
		t.record.Fail(1)
		return
	}
	if d.Attempt > 1 {
		t.redelivered++
	}
	start := began.(time.Time)
	t.record.Record(start, now.Sub(start), 1)
	t.endedAt = now
	if t.run.settled.Add(1) == t.run.most {
		t.run.ended()
	}
}
