package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/bench"
)

func (a *app) demoCommand() *cobra.Command {
	fsync, io := oneOf("always", "interval", "never"), oneOf("auto", "mapped", "staged")
	var traffic time.Duration
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch a broker lose nothing when it is killed",
		Long: `Starts a broker in a temporary directory, sends, pops and acks over TCP, kills the broker with kill -9 in the middle,
starts it again, and adds up what was promised and what came. Exits with 1 if a figure that must be zero is not.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			return a.runDemo(ctx, traffic, "--fsync", fsync.value, "--io", io.value)
		}),
	}
	c.Flags().Var(&fsync, "fsync", "of the broker")
	c.Flags().Var(&io, "io", "of the broker")
	c.Flags().DurationVar(&traffic, "duration", 8*time.Second, "of the traffic, half of it before the kill")
	return c
}

func (a *app) runDemo(ctx context.Context, traffic time.Duration, brokerArgs ...string) (err error) {
	dir, err := os.MkdirTemp("", "leasemq-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	say := func(line string) { fmt.Fprintln(a.stdout, line) }
	if a.json() {
		say = func(line string) { a.note("%s", line) }
	}
	report, err := bench.Crash(ctx, bench.CrashOptions{
		Broker: bench.ChildOptions{Dir: dir, Args: brokerArgs},
		Queues: 4, Producers: 4, Consumers: 4, Batch: 32, Size: 256,
		Before: traffic / 2, After: traffic / 2, Say: say,
	})
	if err != nil {
		return err
	}
	if err := a.print(report, func(w io.Writer) { demoTable(w, &report) }); err != nil {
		return err
	}
	if report.Broken() {
		return errors.New("the broker broke a promise: see the figures that must be zero")
	}
	return nil
}

func demoTable(w io.Writer, r *bench.CrashReport) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	zero := func(name string, n uint64) {
		mark := "ok"
		if n != 0 {
			mark = "MUST BE ZERO"
		}
		row(name, "%d\t%s", n, mark)
	}
	fmt.Fprintln(w)
	row("acknowledged", "%d", r.Acknowledged)
	row("delivered", "%d", r.Delivered)
	row("acked", "%d", r.Acked)
	row("no answer at the kill", "%d, of which %d were stored", r.Unknown, r.UnknownKept)
	row("delivered again before an ack", "%d", r.Again)
	zero("lost", r.Lost)
	zero("delivered again although acked", r.AfterAck)
	zero("one lease given out twice", r.TwiceGranted)
	zero("never sent, or damaged", r.Phantoms+r.Damaged)
	row("messages/s", "%.0f, over %.1f s with an outage of %.2f s", r.MessagesPerS, r.Seconds, r.OutageS)
	row("end to end p50", "%.1f ms", r.P50/1000)
	row("end to end p99", "%.1f ms", r.P99/1000)
}
