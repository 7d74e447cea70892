package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/bench"
)

func (a *app) demoCommand() *cobra.Command {
	fsync, io := oneOf("always", "interval", "never"), oneOf("auto", "mapped", "staged")
	act := oneOf("all", "crash", "workers")
	var traffic time.Duration
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch a broker lose nothing when it is killed, and workers hand over when they die",
		Long: `Two acts, each with a broker of its own in a temporary directory, over TCP.

crash: sends, pops and acks, kills the broker with kill -9 in the middle, starts it again, and adds up what was promised
and what came.

workers: three worker processes take jobs under leases of 6 hours. One is killed with kill -9 in the middle of its jobs, one
is frozen with SIGSTOP and goes on when it is long lost, one leaves in order. Tells how long it took each time until
their jobs ran elsewhere, and what became of the frozen one's late acks.

Exits with 1 if a figure is not as it must be.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			brokerArgs := []string{"--fsync", fsync.value, "--io", io.value}
			if act.value != "workers" {
				if err := a.runCrashAct(ctx, traffic, brokerArgs); err != nil {
					return err
				}
			}
			if act.value != "crash" {
				return a.runWorkersAct(ctx, brokerArgs)
			}
			return nil
		}),
	}
	c.Flags().Var(&fsync, "fsync", "of the broker")
	c.Flags().Var(&io, "io", "of the broker")
	c.Flags().Var(&act, "act", "which to play")
	c.Flags().DurationVar(&traffic, "duration", 8*time.Second, "of the traffic of the crash act, half of it before the kill")
	return c
}

// errBrokenPromise is the error of a demo whose figures are not as they must be.
var errBrokenPromise = errors.New("the broker broke a promise: see the figures that are marked")

// inTempDir runs an act in a directory of its own, with a voice for what happens on the way.
func (a *app) inTempDir(act func(dir string, say func(string)) error) (err error) {
	dir, err := os.MkdirTemp("", "leasemq-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	say := func(line string) { fmt.Fprintln(a.stdout, line) }
	if a.json() {
		say = func(line string) { a.note("%s", line) }
	}
	return act(dir, say)
}

func (a *app) runCrashAct(ctx context.Context, traffic time.Duration, brokerArgs []string) error {
	return a.inTempDir(func(dir string, say func(string)) error {
		report, err := bench.Crash(ctx, bench.CrashOptions{
			Broker: bench.ChildOptions{Dir: dir, Args: brokerArgs},
			Queues: 4, Producers: 4, Consumers: 4, Batch: 32, Size: 256,
			Before: traffic / 2, After: traffic / 2, Say: say,
		})
		if err != nil {
			return err
		}
		if err := a.print(report, func(w io.Writer) { crashTable(w, &report) }); err != nil {
			return err
		}
		if report.Broken() {
			return errBrokenPromise
		}
		return nil
	})
}

// Sessions of the demo are short, so that it is; see the realtime preset.
const (
	demoHeartbeat = time.Second
	demoTimeout   = 3 * time.Second
	demoLease     = 6 * time.Hour
)

func (a *app) runWorkersAct(ctx context.Context, brokerArgs []string) error {
	return a.inTempDir(func(dir string, say func(string)) error {
		report, err := bench.Handover(ctx, bench.HandoverOptions{
			Broker: bench.ChildOptions{Dir: dir, Args: brokerArgs},
			Lease:  demoLease, Heartbeat: demoHeartbeat, Timeout: demoTimeout, Say: say,
		})
		if err != nil {
			return err
		}
		if err := a.print(report, func(w io.Writer) { workersTable(w, &report) }); err != nil {
			return err
		}
		if report.Broken() {
			return errBrokenPromise
		}
		return nil
	})
}

func workersTable(w io.Writer, r *bench.HandoverReport) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	must := func(is bool) string {
		if is {
			return "ok"
		}
		return "MUST NOT BE"
	}
	handed := func(name string, h *bench.Handed) {
		row(name, "%.0f to %.0f ms\t%s (%d jobs, at most %.0f ms)", h.FirstMs, h.LastMs, must(!h.Late()), h.Jobs, h.BoundMs)
	}
	fmt.Fprintln(w)
	row("leases", "%.0f h", r.LeaseS/3600)
	row("jobs", "%d", r.Sent)
	handed("killed with -9: jobs elsewhere after", &r.Killed)
	handed("frozen: jobs elsewhere after", &r.Frozen)
	handed("left in order: jobs elsewhere after", &r.Left)
	row("frozen, going on: handlers cancelled", "%d\t%s", r.Cancelled, must(r.Cancelled > 0))
	row("  because", "%s", strings.TrimPrefix(r.CancelWhy, "leasemq: "))
	row("frozen, going on: late acks refused", "%d\t%s", r.Refused, must(r.Refused > 0))
	row("  because", "%s", strings.TrimPrefix(r.RefuseWhy, "leasemq: "))
	row("frozen, going on: late acks taken", "%d\t%s", r.LateTaken, must(r.LateTaken == 0))
	row("lost", "%d\t%s", r.Lost, must(r.Lost == 0))
	row("settled twice", "%d\t%s", r.Twice, must(r.Twice == 0))
}

func crashTable(w io.Writer, r *bench.CrashReport) {
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
