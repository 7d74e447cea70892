package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// mixedWorkload is `bench mixed`.
type mixedWorkload struct {
	scenario string
	scale    float64
	flags    FlagSet
}

// flatOut is mixed without a scenario.
const flatOut = "flat-out"

func (*mixedWorkload) About() About {
	var about strings.Builder
	for _, s := range scenarios {
		fmt.Fprintf(&about, "  %-6s %s\n", s.name, s.about)
	}
	return About{
		Name: "mixed", Short: "Send and consume at the same time: flat out, or as users do",
		Long: `Without a scenario batches are sent, and popped and acked, both as fast as the broker lets them, and heartbeats are measured
beside that. With one, messages are sent at its rate, and consumers with workers (client.Consumer) work on each for as
long as it says:

` + about.String() + `
--scale makes work, pauses and leases shorter or longer; rates, sizes, heartbeats and the timeouts of sessions stay. Work takes
no processor time. Reported are duplicates that were handled, how many of them went to another consumer, renewals, and how
long messages were held. Of a scenario, rate, size, queues and consumers are its own; a flag overrides them.`,
	}
}

func (w *mixedWorkload) Flags(f *Flags) {
	w.flags = f.FlagSet
	f.Settings.Window, f.Settings.Duration, f.Settings.WarmUp = 4, 10*time.Second, time.Second
	f.Share(brokerSettings...)
	f.Share("batch", "producers", "consumers", "window", "compression", "rate", "duration", "warm-up", "leases")
	names := []string{flatOut}
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	w.scenario = flatOut
	f.WordVar(&w.scenario, "scenario", names, "what to do")
	f.Float64Var(&w.scale, "scale", 1, "of the times of a scenario")
}

func (w *mixedWorkload) Run(ctx context.Context, run *Run) error {
	if w.scale <= 0 || run.Duration == 0 {
		return &SettingError{errors.New("--scale or --duration is too small")}
	}
	s, ok := findScenario(w.scenario)
	useless := []string{"scale"}
	if ok {
		useless = []string{"batch", "window"}
	}
	for _, name := range useless {
		if w.flags.Changed(name) {
			return &SettingError{fmt.Errorf("--%s says nothing to --scenario %s", name, w.scenario)}
		}
	}
	if !ok {
		return run.mixed(ctx)
	}
	own := s.settings
	for name, x := range map[string]struct{ to, from *int }{
		"rate": {&run.Rate, &own.Rate}, "size": {&run.Size, &own.Size},
		"queues": {&run.Queues, &own.Queues}, "consumers": {&run.Consumers, &own.Consumers},
	} {
		if !w.flags.Changed(name) {
			*x.to = *x.from
			run.set(name, *x.from)
		}
	}
	run.Extra("scenario", s.name)
	run.Extra("scale", w.scale)
	if w.scale != 1 {
		run.Note("times are scaled by %g: work, pauses and leases; not rates, sizes, heartbeats and timeouts of sessions", w.scale)
	}
	return run.load(ctx, s.handling(w.scale))
}

// mixed sends as fast as the broker takes it, while consumers pop and ack as fast as it gives.
func (run *Run) mixed(ctx context.Context) error {
	lane := run.Lane("send", true)
	producers, err := dialAll(ctx, run.Addr, "leasemq bench mixed", run.Producers)
	if err != nil {
		return err
	}
	defer closeAll(producers)
	consumers, err := dialAll(ctx, run.Addr, "leasemq bench mixed", run.Consumers)
	if err != nil {
		return err
	}
	defer closeAll(consumers)
	taking, err := run.newTaking(ctx, consumers)
	defer taking.leave(ctx)
	if err != nil {
		return err
	}
	sending, err := run.newSending(ctx, producers, lane)
	if err != nil {
		return err
	}
	defer run.reportMixed(sending, taking)
	return run.besideHeartbeats(ctx, producers[0], func() error {
		return besideTaking(ctx, taking, func() error {
			if err := sending.run(ctx, run.pacer()); err != nil {
				return err
			}
			return run.flush(ctx, producers[0], lane)
		})
	})
}

// besideTaking ends when send does.
func besideTaking(ctx context.Context, t *taking, send func() error) error {
	working, ended := context.WithCancel(ctx)
	defer ended()
	var consumed error
	var consuming sync.WaitGroup
	consuming.Go(func() { consumed = t.run(working, ^uint64(0), time.Time{}) })
	err := send()
	ended()
	consuming.Wait()
	if errors.Is(consumed, context.Canceled) && ctx.Err() == nil {
		consumed = nil
	}
	return errors.Join(err, consumed)
}

func (run *Run) reportMixed(s *sending, t *taking) {
	sent, settled := s.sent.Load(), t.settled.Load()
	run.Extra("send", s.lane.rate())
	run.Extra("consume", t.whole.rate())
	t.report(run)
	run.Count("sent", sent)
	run.Count("settled", settled)
	run.Count("left", sent-min(settled, sent))
	run.MustBeZero("out_of_count", settled-min(settled, sent)) // more were settled than sent
}
