package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasemq/leasemq/bench"
)

// childStop is how long an embedded broker may take to stop in order.
const childStop = 30 * time.Second

// benchFlags are those that benches against a broker have.
type benchFlags struct {
	embedded            bool
	dir                 string
	fsync, io           choice
	topic               string
	queues, size, batch int
	window              int
}

func (f *benchFlags) register(flags *pflag.FlagSet) {
	f.fsync, f.io = oneOf("always", "interval", "never"), oneOf("auto", "mapped", "staged")
	flags.BoolVar(&f.embedded, "embedded", false, "start a broker as a child process, on a directory that is removed afterwards, instead of using the one at --addr")
	flags.StringVar(&f.dir, "dir", "", "where the embedded broker's directory is made (default: the system's place for temporary files)")
	flags.Var(&f.fsync, "fsync", "of the embedded broker")
	flags.Var(&f.io, "io", "of the embedded broker")
	flags.StringVar(&f.topic, "topic", "bench", "topic, made if it is missing")
	flags.IntVar(&f.queues, "queues", defaultQueues, "queues of the topic if it is made")
	flags.IntVar(&f.size, "size", 1024, "bytes of a body")
	f.batch, f.window = 1, 1
}

// registerBatch is for benches that make requests by themselves.
func (f *benchFlags) registerBatch(flags *pflag.FlagSet) {
	flags.IntVar(&f.batch, "batch", 64, "messages of a request")
}

// embeddedOn is what a report says of an embedded broker.
type embeddedOn struct {
	Fsync string `json:"fsync,omitempty"`
	IO    string `json:"io,omitempty"`
}

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure how fast a broker sends and consumes", Args: cobra.NoArgs, RunE: needsSubcommand}
	c.AddCommand(a.benchSend(), a.benchConsume(), a.benchE2E(), a.benchMixed(), a.benchWork(), a.benchDisk())
	return c
}

func (a *app) benchSend() *cobra.Command {
	var f benchFlags
	var producers int
	var duration time.Duration
	c := &cobra.Command{
		Use:   "send",
		Short: "Send as fast as the broker takes it",
		Long: `Sends batches over several connections and reports messages a second and the latency of a request, from the call until
the answer.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			var report struct {
				bench.SendReport
				embeddedOn
			}
			err := f.with(ctx, a, &report.embeddedOn, func(addr string) (err error) {
				report.SendReport, err = bench.Send(ctx, bench.SendOptions{
					Addr: addr, Topic: f.topic, Queues: f.queues, Size: f.size, Batch: f.batch,
					Producers: producers, Window: f.window, Duration: duration,
				})
				return err
			})
			return a.reported(report, &report.Rate, nil, err)
		}),
	}
	f.register(c.Flags())
	f.registerBatch(c.Flags())
	c.Flags().IntVar(&producers, "producers", 4, "connections")
	c.Flags().IntVar(&f.window, "window", 8, "requests that each producer has in flight")
	c.Flags().DurationVar(&duration, "duration", 5*time.Second, "how long to send")
	return c
}

func (a *app) benchConsume() *cobra.Command {
	var f benchFlags
	var consumers int
	var messages uint64
	c := &cobra.Command{
		Use:   "consume",
		Short: "Pop and ack as fast as the broker gives",
		Long: `Fills a topic, waits until it is on the disk, and then starts the clock: pops batches over several connections and acks
each. Reports messages a second, and the latency from the start of a pop until the batch is acked.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			var report struct {
				bench.ConsumeReport
				embeddedOn
			}
			err := f.with(ctx, a, &report.embeddedOn, func(addr string) (err error) {
				report.ConsumeReport, err = bench.Consume(ctx, bench.ConsumeOptions{
					Addr: addr, Topic: f.topic, Group: "bench-" + rand.Text()[:8], Queues: f.queues, Size: f.size, Batch: f.batch,
					Consumers: consumers, Window: f.window, Messages: messages,
					Flushed: f.embedded && f.fsync.value == "interval",
				})
				return err
			})
			return a.reported(report, &report.Rate, func(w io.Writer) {
				fmt.Fprintf(w, "pop p50, p99\t%.0f us, %.0f us\n", report.PopP50, report.PopP99)
				fmt.Fprintf(w, "ack p50, p99\t%.0f us, %.0f us\n", report.AckP50, report.AckP99)
				fmt.Fprintf(w, "redelivered\t%d\n", report.Redelivered)
				fmt.Fprintf(w, "filled before at\t%.0f messages/s\n", report.Fill.MessagesPerS)
			}, err)
		}),
	}
	f.register(c.Flags())
	f.registerBatch(c.Flags())
	c.Flags().IntVar(&consumers, "consumers", 4, "connections, each with a session")
	c.Flags().IntVar(&f.window, "window", 2, "pops that each consumer has out")
	c.Flags().Uint64Var(&messages, "messages", 1_000_000, "how many messages to fill in")
	return c
}

func (a *app) benchWork() *cobra.Command {
	var f benchFlags
	var o bench.WorkOptions
	c := &cobra.Command{
		Use:   "work",
		Short: "Have workers with empty handlers run through a topic",
		Long: `Fills a topic, waits until it is on the disk, and then starts the clock: consumers with workers, as programs have them
(client.Consumer), call a handler for each message that does nothing. Reports messages a second, and the latency from the
start of a handler until its ack was taken. With --batch the handler gets so many messages at most (RunBatch).`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			if o.Consumers < 1 || o.Workers < 1 || o.Prefetch < 0 || o.Batch < 0 {
				return usageError{errors.New("--consumers, --workers, --prefetch or --batch is too small")}
			}
			var report struct {
				bench.WorkReport
				embeddedOn
			}
			work := o
			err := f.with(ctx, a, &report.embeddedOn, func(addr string) (err error) {
				work.Addr, work.Topic, work.Group = addr, f.topic, "bench-"+rand.Text()[:8]
				work.Queues, work.Size, work.Flushed = f.queues, f.size, f.embedded && f.fsync.value == "interval"
				report.WorkReport, err = bench.Work(ctx, work)
				return err
			})
			return a.reported(report, &report.Rate, func(w io.Writer) {
				fmt.Fprintf(w, "redelivered\t%d\n", report.Redelivered)
				fmt.Fprintf(w, "renewals\t%d\n", report.Renewals)
			}, err)
		}),
	}
	f.register(c.Flags())
	c.Flags().IntVar(&o.Consumers, "consumers", 1, "connections, each with a consumer")
	c.Flags().IntVar(&o.Workers, "workers", 64, "handlers at once of each consumer")
	c.Flags().IntVar(&o.Prefetch, "prefetch", 0, "messages taken beyond those that are being handled")
	c.Flags().IntVar(&o.Batch, "batch", 0, "most messages of a call of the handler, with RunBatch; 0: one, with Run")
	c.Flags().Uint64Var(&o.Messages, "messages", 200_000, "how many messages to fill in")
	return c
}

func (a *app) benchDisk() *cobra.Command {
	var dir string
	var size int
	var duration time.Duration
	chunk := byteSize(1 << 20)
	c := &cobra.Command{
		Use:   "disk",
		Short: "Measure what a plain loop of pwrite and fsync takes, to compare send with",
		Args:  cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) (err error) {
			if size < 1 || chunk < 1 || chunk > 1<<30 {
				return usageError{errors.New("--size or --chunk is out of range")}
			}
			dir, err := os.MkdirTemp(dir, "leasemq-bench-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			rate, err := bench.Disk(ctx, bench.DiskOptions{Dir: dir, Size: size, Chunk: int(chunk), Duration: duration})
			return a.reported(rate, &rate, nil, err)
		}),
	}
	c.Flags().StringVar(&dir, "dir", "", "where the file is made (default: the system's place for temporary files)")
	c.Flags().IntVar(&size, "size", 1024, "bytes that count as one message")
	c.Flags().Var(&chunk, "chunk", "bytes of a write")
	c.Flags().DurationVar(&duration, "duration", 3*time.Second, "how long to write")
	return c
}

// generatorGC makes collections of the load generator rare: it shares the machine with the broker, and its few MiB of
// live memory would otherwise be walked many times a second.
const generatorGC = 1000

// with runs f against the broker at --addr, or against one that lives as long as f runs.
func (f *benchFlags) with(ctx context.Context, a *app, on *embeddedOn, run func(addr string) error) (err error) {
	for name, n := range map[string]int{"size": f.size + 1, "batch": f.batch, "queues": f.queues, "window": f.window} {
		if n < 1 {
			return usageError{fmt.Errorf("--%s is too small", name)}
		}
	}
	debug.SetGCPercent(generatorGC)
	if !f.embedded {
		c, err := a.dial(ctx) // a broker that is just starting is waited for
		if err != nil {
			return err
		}
		c.Close()
		return run(a.addr)
	}
	dir, err := os.MkdirTemp(f.dir, "leasemq-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	child, err := bench.StartChild(ctx, bench.ChildOptions{Dir: dir, Args: []string{"--fsync", f.fsync.value, "--io", f.io.value}})
	if err != nil {
		return err
	}
	on.Fsync, on.IO = f.fsync.value, f.io.value
	if err := run(child.Addr); err != nil {
		return errors.Join(err, child.Kill())
	}
	return child.Stop(childStop)
}

// reported prints a report, also one that an error has cut short.
func (a *app) reported(report any, rate *bench.Rate, more func(io.Writer), err error) error {
	if err != nil && rate.Messages == 0 {
		return err
	}
	printErr := a.print(report, func(w io.Writer) {
		fmt.Fprintf(w, "messages\t%d in %.2f s\n", rate.Messages, rate.Seconds)
		fmt.Fprintf(w, "rate\t%.0f messages/s, %.1f MB/s\n", rate.MessagesPerS, rate.MBPerS)
		fmt.Fprintf(w, "p50, p99, p99.9, max\t%.0f us, %.0f us, %.0f us, %.0f us\n", rate.P50, rate.P99, rate.P999, rate.Max)
		if more != nil {
			more(w)
		}
		fmt.Fprintf(w, "errors\t%d\n", rate.Errors)
	})
	return errors.Join(err, printErr)
}
