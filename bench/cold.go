package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/codec"
)

// coldWorkload is `bench cold`.
type coldWorkload struct{ backlog int64 }

func (*coldWorkload) About() About {
	return About{
		Name: "cold", Short: "Read a backlog that is on the disk only, while others send flat out",
		Long: `Fills a topic, waits until it is on the disk, and has the system forget what it has of it in memory. Then sends to another topic
flat out: alone, while the backlog is popped and acked from the disk, and alone again. Reported are the three rates, and the second
one as a share of the mean of the others; and heartbeats, which go on all the time. --duration is that of each part.

It needs the files of the broker, so it starts one (--embedded).`,
	}
}

func (w *coldWorkload) Flags(f *Flags) {
	f.Settings.Embedded, f.Settings.Fsync, f.Settings.Window, f.Settings.Duration = true, "interval", 4, 10*time.Second
	w.backlog = 20 << 30
	f.Share(brokerSettings...)
	f.Share("batch", "producers", "consumers", "window", "duration")
	f.BytesVar(&w.backlog, "backlog", "bytes of log that the backlog takes")
}

func (w *coldWorkload) Run(ctx context.Context, run *Run) error {
	messages := uint64(w.backlog) / uint64(codec.Padded(recordHeadBytes+run.Size))
	if !run.Embedded || run.Duration == 0 || w.backlog < 0 || messages == 0 {
		return &SettingError{errors.New("--embedded is off, or --duration or --backlog is too small")}
	}
	consumers, err := dialAll(ctx, run.Addr, "leasemq bench cold", run.Consumers)
	if err != nil {
		return err
	}
	defer closeAll(consumers)
	producers, err := dialAll(ctx, run.Addr, "leasemq bench cold", run.Producers)
	if err != nil {
		return err
	}
	defer closeAll(producers)
	taking, err := run.newTaking(ctx, consumers)
	defer taking.leave(ctx)
	if err != nil {
		return err
	}
	filled, err := run.fill(ctx, run.Producers, messages, true)
	run.Extra("fill", filled)
	if err != nil {
		return err
	}
	how, err := dropCache(run.dir)
	if err != nil {
		return err
	}
	run.Note("%.1f GB of log were filled, then the cache was dropped: %s", float64(w.backlog)/1e9, how)
	run.Topic += "-live"
	var parts [3]*sending // alone, beside the reading, and alone again
	for i, name := range []string{"alone", "send", "alone again"} {
		if parts[i], err = run.newSending(ctx, producers, run.Lane(name, i == 1)); err != nil {
			return err
		}
	}
	err = run.besideHeartbeats(ctx, producers[0], func() error { return run.cold(ctx, parts, taking) })
	taking.report(run)
	if err != nil {
		return err
	}
	rate := func(i int) float64 { return parts[i].lane.rate().MessagesPerS }
	if alone := (rate(0) + rate(2)) / 2; alone > 0 {
		run.Count("sends_kept_percent", uint64(100*rate(1)/alone))
	}
	if read := taking.settled.Load(); read >= messages {
		run.Note("all of the backlog was read before the time was over: the rate of sends beside it is too good")
	}
	return nil
}

// cold sends three times, the second time while the backlog is read.
func (run *Run) cold(ctx context.Context, parts [3]*sending, taking *taking) error {
	for i, s := range parts {
		began := time.Now()
		s.lane.begin(began)
		p := newPacer(began, began.Add(run.Duration), 0, 0)
		if i != 1 {
			if err := s.run(ctx, p); err != nil {
				return err
			}
			continue
		}
		for _, l := range []*Lane{taking.whole, taking.pops, taking.acks} {
			l.begin(began)
		}
		if err := besideTaking(ctx, taking, func() error { return s.run(ctx, p) }); err != nil {
			return fmt.Errorf("bench: beside the reading: %w", err)
		}
	}
	return nil
}
