package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasemq/leasemq/bench"
)

// goals are what --check holds a report against.
type goals struct {
	check   bool
	minRate float64
	maxP99  time.Duration
}

func (g *goals) register(flags *pflag.FlagSet) {
	flags.BoolVar(&g.check, "check", false, "end with exit code 1 when something was lost, settled twice or damaged, or a goal was missed")
	flags.Float64Var(&g.minRate, "min-rate", 0, "goal: at least so many messages/s")
	flags.DurationVar(&g.maxP99, "max-p99", 0, "goal: p99 of at most so long")
}

// missed says which goals a rate misses.
func (g *goals) missed(name string, r *bench.Rate) (err error) {
	if g.minRate > 0 && r.MessagesPerS < g.minRate {
		err = errors.Join(err, fmt.Errorf("goal missed: %s %.0f messages/s, at least %.0f are wanted", name, r.MessagesPerS, g.minRate))
	}
	if us := float64(g.maxP99.Microseconds()); us > 0 && r.P99 > us {
		err = errors.Join(err, fmt.Errorf("goal missed: %s p99 of %.0f us, at most %.0f are wanted", name, r.P99, us))
	}
	return err
}

func (a *app) benchE2E() *cobra.Command {
	var f benchFlags
	var g goals
	o := bench.LoadOptions{}
	c := &cobra.Command{
		Use:   "e2e",
		Short: "Measure the time from sending until the handler, at a fixed rate",
		Long: `Sends at a fixed rate, however slow the answers are, and has consumers with workers (client.Consumer) take what comes. A
latency is the time from the moment at which a message was to be sent until its handler begins: a stall of the broker, or
of the sender, is not hidden. Each message is counted: what is lost, damaged or settled twice is reported.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			load := o
			load.Queues, load.Size, load.Patience = f.queues, f.size, 30*time.Second
			return a.runLoad(ctx, &f, &g, "", load)
		}),
	}
	f.register(c.Flags())
	g.register(c.Flags())
	loadFlags(c.Flags(), &o)
	c.Flags().IntVar(&o.Rate, "rate", 20_000, "messages a second")
	c.Flags().IntVar(&o.Consumers, "consumers", 4, "connections, each with a consumer")
	c.Flags().IntVar(&o.Workers, "workers", 64, "handlers at once of each consumer")
	c.Flags().IntVar(&o.Prefetch, "prefetch", 64, "messages taken beyond those that are being handled")
	return c
}

func loadFlags(flags *pflag.FlagSet, o *bench.LoadOptions) {
	flags.IntVar(&o.Producers, "producers", 4, "connections that send")
	flags.DurationVar(&o.Duration, "duration", 10*time.Second, "how long to send")
	flags.DurationVar(&o.Warm, "warm-up", time.Second, "at the beginning, of which no latency counts")
}

func (a *app) benchMixed() *cobra.Command {
	var f benchFlags
	var g goals
	o := bench.LoadOptions{}
	var scenario choice
	var scale float64
	names := []string{"flat-out"}
	about := ""
	for _, s := range bench.Scenarios {
		names = append(names, s.Name)
		about += fmt.Sprintf("\n  %-6s %s", s.Name, s.About)
	}
	scenario = oneOf(names...)
	c := &cobra.Command{
		Use:   "mixed",
		Short: "Send and consume at the same time: flat out, or as users do",
		Long: `Without a scenario batches are sent, and popped and acked, both as fast as the broker lets them. With one, messages are sent at
its rate, and consumers with workers (client.Consumer) work on each for as long as it says:
` + about + `

--scale makes work, pauses and leases shorter or longer; rates and sizes stay. Work takes no processor time. Reported are
duplicates that were handled, how many of them went to another consumer, renewals, and how long messages were held.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			s, ok := bench.FindScenario(scenario.value)
			if !ok {
				return a.runMixed(ctx, &f, &g, &o)
			}
			if scale <= 0 {
				return usageError{errors.New("--scale is too small")}
			}
			load := s.Load(scale)
			load.Producers, load.Duration, load.Warm = o.Producers, o.Duration, o.Warm
			return a.runLoad(ctx, &f, &g, s.Name, load)
		}),
	}
	f.register(c.Flags())
	f.registerBatch(c.Flags())
	g.register(c.Flags())
	loadFlags(c.Flags(), &o)
	c.Flags().Var(&scenario, "scenario", "what to do")
	c.Flags().Float64Var(&scale, "scale", 1, "of the times of a scenario")
	c.Flags().IntVar(&o.Consumers, "consumers", 4, "connections that pop, flat out")
	c.Flags().IntVar(&f.window, "window", 4, "requests that each connection has in flight, flat out")
	return c
}

// loadShown is what is printed of a load.
type loadShown struct {
	Scenario string `json:"scenario,omitempty"`
	bench.LoadReport
	embeddedOn
}

func (a *app) runLoad(ctx context.Context, f *benchFlags, g *goals, scenario string, o bench.LoadOptions) error {
	shown := loadShown{Scenario: scenario}
	err := f.with(ctx, a, &shown.embeddedOn, func(addr string) (err error) {
		o.Addr, o.Topic, o.Group = addr, f.topic, "bench-"+rand.Text()[:8]
		shown.LoadReport, err = bench.Load(ctx, o)
		return err
	})
	r := &shown.LoadReport
	err = a.reported(shown, &r.Rate, func(w io.Writer) {
		fmt.Fprintf(w, "asked for\t%d messages/s, of %d bytes\n", r.Scheduled, r.Size)
		fmt.Fprintf(w, "held p50, p99, max\t%.0f us, %.0f us, %.0f us\n", r.HoldP50, r.HoldP99, r.HoldMax)
		fmt.Fprintf(w, "settled\t%d\n", r.Settled)
		fmt.Fprintf(w, "duplicates handled\t%d, of which %d by another consumer\n", r.Duplicates, r.Handovers)
		fmt.Fprintf(w, "renewals\t%d\n", r.Renewals)
		fmt.Fprintf(w, "leases lost\t%d\n", r.LeasesLost)
		fmt.Fprintf(w, "lost, settled twice, corrupt\t%d, %d, %d\n", r.Lost, r.Twice, r.Corrupt)
	}, err)
	if !g.check {
		return err
	}
	if r.Broken() {
		err = errors.Join(err, fmt.Errorf("%d messages were lost, %d settled twice, %d corrupt, %d failed", r.Lost, r.Twice, r.Corrupt, r.Errors))
	}
	return errors.Join(err, g.missed("send to handler", &r.Rate))
}

func (a *app) runMixed(ctx context.Context, f *benchFlags, g *goals, o *bench.LoadOptions) error {
	var report struct {
		bench.MixedReport
		embeddedOn
	}
	err := f.with(ctx, a, &report.embeddedOn, func(addr string) (err error) {
		report.MixedReport, err = bench.Mixed(ctx, bench.SendOptions{
			Addr: addr, Topic: f.topic, Queues: f.queues, Size: f.size, Batch: f.batch,
			Producers: o.Producers, Window: f.window, Duration: o.Duration,
		}, bench.ConsumeOptions{
			Addr: addr, Topic: f.topic, Group: "bench-" + rand.Text()[:8], Queues: f.queues, Size: f.size, Batch: f.batch,
			Consumers: o.Consumers, Window: f.window,
		})
		return err
	})
	err = a.reported(report, &report.Send.Rate, func(w io.Writer) {
		r := &report.Consume.Rate
		fmt.Fprintf(w, "popped and acked\t%.0f messages/s, %.1f MB/s\n", r.MessagesPerS, r.MBPerS)
		fmt.Fprintf(w, "p50, p99, p99.9, max\t%.0f us, %.0f us, %.0f us, %.0f us\n", r.P50, r.P99, r.P999, r.Max)
		fmt.Fprintf(w, "redelivered\t%d\n", report.Consume.Redelivered)
		fmt.Fprintf(w, "left over\t%d\n", report.Left)
	}, err)
	if !g.check {
		return err
	}
	return errors.Join(err, g.missed("send", &report.Send.Rate), g.missed("pop and ack", &report.Consume.Rate))
}
