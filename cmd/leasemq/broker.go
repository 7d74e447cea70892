package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/netserver"
)

const (
	// drainTime is how long answers and output may take after SIGTERM.
	drainTime = 30 * time.Second
	// failTime is how long the answers of a broker whose store has failed may take.
	failTime = time.Second

	// lockWait is how long a start waits for a broker that was killed to be gone.
	lockWait = 2 * time.Second

	// verifyEnv turns the engine's checks of itself on, for tests. They cost most of the speed.
	verifyEnv = "LEASEMQ_VERIFY"
)

type brokerFlags struct {
	listen, data    string
	profiles        string
	fsync, io       choice
	segment         byteSize
	level, logShape choice

	retention                         time.Duration
	retentionSize, hardSize, snapshot byteSize
	watermark                         int
}

func (a *app) brokerCommand() *cobra.Command {
	f := brokerFlags{
		fsync: oneOf("always", "interval", "never"),
		io:    oneOf("auto", "mapped", "staged"),
		level: oneOf("info", "debug", "warn", "error"), logShape: oneOf("text", "json"),
	}
	c := &cobra.Command{
		Use:   "broker",
		Short: "Run a broker",
		Long: `Runs a broker until SIGTERM or SIGINT, which stop it in order: pops that wait are answered, the log is
flushed and marked as stopped cleanly. A second signal ends it at once; so does kill -9, and nothing that
was answered is lost by it.

It logs to standard error. The line "listening on ADDR" says that clients can connect.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error { return a.runBroker(ctx, &f) }),
	}
	flags := c.Flags()
	flags.StringVar(&f.listen, "listen", defaultAddr, "`HOST:PORT` to listen on; port 0 takes a free one")
	flags.StringVar(&f.data, "data", "leasemq-data", "data `DIR`ectory, made if it is missing")
	flags.Var(&f.fsync, "fsync", "always: what is answered is on disk. interval: a power loss may take the last 100 ms, a kill -9 nothing. never: for tests")
	flags.Var(&f.io, "io", "how the log is written: mapped stores, staged pwrites, or what a probe at the directory's first start finds faster")
	flags.Var(&f.segment, "segment-size", "bytes of a log file of a new data directory (default 256MiB); an old one keeps its own")
	flags.DurationVar(&f.retention, "retention", 72*time.Hour, "how long messages stay that every group has settled; 0: for ever")
	flags.Var(&f.retentionSize, "retention-size", "bytes of log above which they go earlier (default: no limit)")
	flags.Var(&f.hardSize, "retention-hard-size", "bytes of log above which the oldest go though a group needs them; they are counted and logged (default: never)")
	flags.Var(&f.snapshot, "snapshot-every", "bytes of log between two snapshots of the state, which a restart then replays at most (default 256MiB)")
	flags.IntVar(&f.watermark, "watermark", 90, "how full the disk may be, in `PERCENT`, before sends are refused; 0: until only a reserve for acks and snapshots is left")
	flags.StringVar(&f.profiles, "profile", "", "`HOST:PORT` where profiles of the broker are served to go tool pprof; keep it to the loopback (default: nowhere)")
	flags.Var(&f.level, "log-level", "least severe lines that are logged")
	flags.Var(&f.logShape, "log-format", "shape of the log lines")
	return c
}

func (a *app) runBroker(ctx context.Context, f *brokerFlags) error {
	logger, err := a.logger(f)
	if err != nil {
		return err
	}
	if f.retention < 0 || f.watermark < 0 || f.watermark > 100 {
		return fmt.Errorf("--retention %v, --watermark %d: a duration and a percentage are needed", f.retention, f.watermark)
	}
	age := f.retention
	if age == 0 {
		age = -1
	}
	if f.profiles != "" {
		stop, err := serveProfiles(f.profiles, logger)
		if err != nil {
			return err
		}
		defer stop()
	}
	ballast := make([]byte, ballastBytes)
	defer runtime.KeepAlive(ballast)
	engine, err := broker.Open(broker.Options{
		Dir: f.data, IO: mmaplog.IOMode(f.io.value), Fsync: mmaplog.Policy(f.fsync.value),
		SegmentBytes: int64(f.segment), Logger: logger, Verify: os.Getenv(verifyEnv) == "1",
		LockWait: lockWait, Watermark: cmp.Or(f.watermark, 100), SnapshotBytes: int64(f.snapshot),
		Retention: broker.Retention{Age: age, Bytes: int64(f.retentionSize), HardBytes: int64(f.hardSize)},
	})
	if err != nil {
		return err
	}
	server, err := netserver.Listen(netserver.Options{
		Listen: f.listen, Logger: logger,
		NewHandler: func(wake func()) netserver.Handler { return engine.NewLoop(wake) },
	})
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%s is in use by another process: %w", f.listen, err)
		}
		return errors.Join(err, engine.Close())
	}
	logger.Info("listening on "+server.Addr().String(), "data", f.data, "fsync", f.fsync.value, "version", version())
	return serve(ctx, engine, server, logger)
}

// store and front are the engine and the network as serve sees them.
type store interface {
	Failed() <-chan struct{}
	Err() error
	Close() error
}

type front interface {
	Shutdown(ctx context.Context) error
	Done() <-chan struct{}
	Err() error
}

// serve returns when the broker has ended: nil after an orderly stop, which the end of ctx asks for.
func serve(ctx context.Context, engine store, server front, logger *slog.Logger) error {
	select {
	case <-ctx.Done():
		return stopInOrder(engine, server, logger)
	case <-engine.Failed():
		return goDown(engine, server)
	case <-server.Done():
		return errors.Join(engine.Err(), server.Err()) // the engine's failure may be what ended the network
	}
}

func (a *app) logger(f *brokerFlags) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level.value)); err != nil {
		return nil, err
	}
	o := &slog.HandlerOptions{Level: level}
	if f.logShape.value == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, o)), nil
	}
	return slog.New(slog.NewTextHandler(a.stderr, o)), nil
}

// stopInOrder lets answers and output go out, then flushes the log and marks it.
func stopInOrder(engine store, server front, logger *slog.Logger) error {
	logger.Info("stopping")
	drained := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		drained <- server.Shutdown(ctx)
	}()
	select {
	case err := <-drained:
		if err != nil {
			logger.Warn("some clients did not take their last answers in time", "waited", drainTime)
		}
	case <-engine.Failed():
		return goDown(engine, server)
	}
	if err := engine.Close(); err != nil {
		return errors.Join(engine.Err(), fmt.Errorf("the broker stopped, but not cleanly: %w", err))
	}
	logger.Info("stopped cleanly")
	return nil
}

// goDown ends a broker whose store has failed. What is in memory is void, so clients are told that the outcome
// of their calls is unknown, as far as a second suffices for it, and nothing is written any more.
func goDown(engine store, server front) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), failTime)
		defer cancel()
		server.Shutdown(ctx)
	}()
	late := time.NewTimer(2 * failTime) // a loop that hangs must not keep the process
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
	}
	return engine.Err()
}

// ballastBytes makes garbage collections rare. A young broker has little on the heap and makes little garbage, but with
// little live a collection comes every few MiB; and each one takes time from the event loops, which on a small
// machine is time from every client. The collector lets garbage grow up to the size of what lives, so a ballast
// is a lower bound for that. It is never touched and takes no memory itself; and unlike a larger GOGC it does
// not let a broker with GiBs of leases grow to a multiple of them.
const ballastBytes = 128 << 20
