// Command crash kills a real broker again and again while clients work with it, and tells what was lost, what came back
// after it had been settled, and what came again without a cause:
//
//	go run ./bench/crash --rounds 50
//
// Which deliveries have a cause is written down at bench.Regrants. It exits with 1 if a figure is not as it must be; then the
// data directory is kept, with what the broker logged beside it, and named.
//
// With the argument restart it measures how long a broker with much log and much unsettled takes to be back after a kill:
//
//	go run ./bench/crash restart --log-gb 10 --unsettled 1000000
//
// The broker is a process of its own, by default one that is built from this module first.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/bench"
)

// brokerPackage is what is built when no binary is given.
const brokerPackage = "github.com/leasemq/leasemq/cmd/leasemq"

// errBroken is the error of a run whose figures are not as they must be.
var errBroken = errors.New("the broker broke a promise: see the figures that are marked")

// app is what both commands share.
type app struct {
	binary, dir, output string
	keep, verbose       bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	a := &app{}
	if err := a.command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func (a *app) command() *cobra.Command {
	o := bench.RoundsOptions{}
	c := &cobra.Command{
		Use:           "crash",
		Short:         "Kill a broker again and again under load, and hold it to its word",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(c *cobra.Command, _ []string) error { return a.rounds(c.Context(), o) },
	}
	flags := c.Flags()
	flags.IntVar(&o.Rounds, "rounds", 20, "how many times to kill the broker")
	flags.Uint64Var(&o.Seed, "seed", 0, "of the random moments; 0: another one each time")
	flags.IntVar(&o.Producers, "producers", 4, "connections that send")
	flags.IntVar(&o.Consumers, "consumers", 4, "connections that take and settle; one more holds messages for long")
	all := c.PersistentFlags()
	all.StringVar(&a.binary, "binary", "", "`PATH` of the leasemq to kill (default: it is built)")
	all.StringVar(&a.dir, "dir", "", "where the data directory is made (default: the system's place for temporary files)")
	all.StringVarP(&a.output, "output", "o", "text", "text for people, json for machines")
	all.BoolVar(&a.keep, "keep", false, "keep the data directory")
	all.BoolVarP(&a.verbose, "verbose", "v", false, "say what happens on the way")
	c.AddCommand(a.restartCommand())
	return c
}

func (a *app) restartCommand() *cobra.Command {
	o := bench.RestartOptions{}
	var gb float64
	c := &cobra.Command{
		Use:   "restart",
		Short: "Measure how long a broker with much log and much unsettled takes to be back after a kill",
		Long: `Fills a data directory through a broker, leases many messages, sends on until the next snapshot is nearly due (the worst
moment), kills the broker, and starts it twice: with the files in the system's cache, and without. Tells how long it took
from the start of the process until the first request was answered, and until a pop and its ack were.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.LogBytes = int64(gb * 1e9)
			return a.restart(c.Context(), o)
		},
	}
	flags := c.Flags()
	flags.Float64Var(&gb, "log-gb", 10, "how much log to write, in units of 10^9 bytes")
	flags.IntVar(&o.Unsettled, "unsettled", 1_000_000, "messages that sessions hold at the kill")
	flags.IntVar(&o.Queues, "queues", 100, "of the topic; a group holds at most 10,000 messages of one")
	flags.IntVar(&o.Sessions, "sessions", 250, "that hold them, at most 4,096 each")
	return c
}

// withBroker calls do with the broker's binary and a data directory of its own, which is kept if that is asked for or
// if a promise was broken.
func (a *app) withBroker(ctx context.Context, do func(program, dir string, say func(string)) error) (err error) {
	if a.output != "text" && a.output != "json" {
		return fmt.Errorf("--output %s: text or json is needed", a.output)
	}
	root, err := os.MkdirTemp(a.dir, "leasemq-crash-")
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "data")
	defer func() {
		if a.keep || errors.Is(err, errBroken) {
			fmt.Fprintln(os.Stderr, "kept, with what the broker logged:", root)
			return
		}
		err = errors.Join(err, os.RemoveAll(root))
	}()
	program := a.binary
	if program == "" {
		program = filepath.Join(root, "leasemq")
		build := exec.CommandContext(ctx, "go", "build", "-o", program, brokerPackage)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build of the broker: %w\n%s", err, out)
		}
	}
	say := func(string) {}
	if a.verbose {
		say = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	return do(program, dir, say)
}

func (a *app) rounds(ctx context.Context, o bench.RoundsOptions) error {
	if o.Rounds < 1 || o.Producers < 1 || o.Consumers < 1 {
		return errors.New("--rounds, --producers and --consumers are at least 1")
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	return a.withBroker(ctx, func(program, dir string, say func(string)) error {
		log, err := os.Create(filepath.Join(filepath.Dir(dir), "broker.log"))
		if err != nil {
			return err
		}
		defer log.Close()
		o.Program, o.Dir, o.Say, o.BrokerLog = program, dir, say, log
		report, err := bench.Rounds(ctx, o)
		if err != nil {
			return fmt.Errorf("seed %d: %w", o.Seed, err)
		}
		if err := a.print(report, func(w io.Writer) { roundsTable(w, &report) }); err != nil {
			return err
		}
		if report.Broken() {
			return errBroken
		}
		return nil
	})
}

func (a *app) restart(ctx context.Context, o bench.RestartOptions) error {
	return a.withBroker(ctx, func(program, dir string, say func(string)) error {
		o.Program, o.Dir, o.Say = program, dir, say
		report, err := bench.Restart(ctx, o)
		if err != nil {
			return err
		}
		return a.print(report, func(w io.Writer) { restartTable(w, &report) })
	})
}

// print writes a report as JSON, or lets text write what people get.
func (a *app) print(report any, text func(io.Writer)) error {
	if a.output == "json" {
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}
