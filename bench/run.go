package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/leasemq/leasemq/client"
)

const (
	// childStop is how long an embedded broker may take to stop in order.
	childStop = 30 * time.Second
	// generatorGC makes collections of the load generator rare: it shares the machine with the broker, and its few MiB of
	// live memory would otherwise be walked many times a second.
	generatorGC = 1000
	// A run is sampled every second; every quarter of one if it is shorter than this, or ends by itself.
	shortRun = 10 * time.Second
)

// Run is one run of a workload: its settings, what it records, and what a sampler sees meanwhile.
type Run struct {
	Settings
	Addr  string // of the broker
	Group string // a name that nobody else has

	report   *Report
	progress io.Writer
	child    *Child // nil: the broker runs by itself
	dir      string // of the child
	lanes    []*Lane
	copyLoop func(context.Context, CopyLoop) (time.Time, error)

	began   time.Time // of the warm-up
	from    time.Time // of what counts
	stop    context.CancelFunc
	sampler sync.WaitGroup
}

// Setup is what a run needs besides its workload.
type Setup struct {
	Addr     string    // of the broker, unless it is embedded
	Version  string    // of this program
	Goals    []Goal    // besides those that the workload always has
	Progress io.Writer // nil: none
	// CopyLoop is echo.Copy: given, so that this package needs no log. It tells when it has ended. Only ceiling needs it.
	CopyLoop func(context.Context, CopyLoop) (time.Time, error)
}

// Execute runs a workload, and reports also what an error has cut short. The report is nil when nothing was begun.
func Execute(ctx context.Context, w Workload, f *Flags, setup Setup) (report *Report, err error) {
	run := &Run{
		Settings: f.Settings, Addr: setup.Addr, Group: "bench-" + rand.Text()[:8], progress: setup.Progress, copyLoop: setup.CopyLoop,
		report: newReport(w.About().Name, setup.Version, f),
	}
	if err := run.check(); err != nil {
		return nil, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(generatorGC))
	if run.Embedded {
		dir, err := os.MkdirTemp(run.Dir, "leasemq-bench-")
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		run.child, err = StartChild(ctx, ChildOptions{Dir: dir, Args: []string{"--fsync", run.Fsync, "--io", run.IO}})
		if err != nil {
			return nil, err
		}
		run.Addr, run.dir = run.child.Addr, dir
	}
	err = run.do(ctx, w)
	run.finish()
	run.report.judge(setup.Goals)
	switch {
	case run.child == nil:
	case err != nil:
		err = errors.Join(err, run.child.Kill())
	default:
		err = run.child.Stop(childStop)
	}
	return run.report, err
}

// do runs the workload, beside leases that are held if there are to be any.
func (run *Run) do(ctx context.Context, w Workload) error {
	if run.Leases > 0 {
		release, err := run.hold(ctx, run.Leases)
		if release != nil {
			defer release()
		}
		if err != nil {
			return err
		}
	}
	return w.Run(ctx, run)
}

// Lane makes a lane of the report: main for what the workload is about.
func (run *Run) Lane(name string, main bool) *Lane {
	l := newLane(name, run.Size)
	l.main = main
	run.lanes = append(run.lanes, l)
	return l
}

// Count puts a counter into the report.
func (run *Run) Count(name string, n uint64) { run.report.count(name, n) }

// MustBeZero puts a counter into the report, and the goal that it is 0.
func (run *Run) MustBeZero(name string, n uint64) {
	run.report.count(name, n)
	run.report.always = append(run.report.always, Goal{Metric: name, Most: true})
}

// Note tells what whoever reads the report should know.
func (run *Run) Note(format string, args ...any) {
	run.report.Notes = append(run.report.Notes, fmt.Sprintf(format, args...))
}

// Extra adds a figure that only this workload has, with its JSON key.
func (run *Run) Extra(key string, v any) { run.report.extra[key] = v }

// set notes that the workload has given a setting, which the report has among its flags, a value of its own.
func (run *Run) set(name string, v int) {
	run.report.Flags[name] = strconv.Itoa(v)
	if _, ok := run.report.extra[name]; ok {
		run.Extra(name, v)
	}
}

// Begin starts the sampler, and the clock after a lead.
func (run *Run) Begin(lead time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	run.stop = stop
	m := newMonitor(ctx, run)
	run.began = time.Now().Add(lead)
	run.from = run.began.Add(run.WarmUp)
	for _, l := range run.lanes {
		l.begin(run.from)
	}
	run.sampler.Go(func() {
		defer m.close()
		m.watch(ctx, run)
	})
}

// until is when the time is over; zero: never.
func (run *Run) until() time.Time {
	if run.Duration == 0 {
		return time.Time{}
	}
	return run.from.Add(run.Duration)
}

// pacer is that of the run's messages.
func (run *Run) pacer() *pacer {
	return newPacer(run.began, run.until(), run.Rate, run.Messages)
}

// finish ends the sampling and sums up.
func (run *Run) finish() {
	if run.stop != nil {
		run.stop()
		run.sampler.Wait()
	}
	for _, l := range run.lanes {
		run.report.addLane(l)
	}
}

// interval is how often the run is sampled.
func (run *Run) interval() time.Duration {
	if d := run.WarmUp + run.Duration; run.Duration == 0 || d < shortRun {
		return time.Second / 4
	}
	return time.Second
}

// flush waits until the log is on the disk up to where it ends now, and then stops the clock of a lane for good: what was
// answered before it was flushed counts when it is. A broker that does not flush by itself is not waited for.
func (run *Run) flush(ctx context.Context, c *client.Client, l *Lane) error {
	if run.Embedded && run.Fsync == "always" {
		return nil // it is
	}
	switch at, err := run.flushedBy(ctx, c); {
	case errors.Is(err, errNoFlush):
		run.Note("the broker does not flush its log: what was sent is in the page cache")
	case err != nil:
		return err
	default:
		l.Flushed(at)
	}
	return nil
}

const (
	flushEvery    = 2 * time.Millisecond
	flushPatience = 60 * time.Second
	// noFlush is after how long without a move of the flushed position nobody expects one any more. (A disk that is written
	// to flat out may take seconds for one flush.)
	noFlush = 10 * time.Second
)

var errNoFlush = errors.New("bench: the broker does not flush its log")

// flushedBy returns when the broker's log is on the disk up to where it ends at the call.
func (run *Run) flushedBy(ctx context.Context, c *client.Client) (time.Time, error) {
	if run.Embedded && run.Fsync == "never" {
		return time.Time{}, errNoFlush
	}
	return flushedBy(ctx, c)
}

func flushedBy(ctx context.Context, c *client.Client) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, flushPatience)
	defer cancel()
	var end, before uint64
	moved := time.Now()
	for first := true; ; first = false {
		figures, err := figuresOf(ctx, c)
		if err != nil {
			return time.Time{}, err
		}
		now, synced := time.Now(), figures["log_synced"]
		switch {
		case first:
			end = figures["log_appended"]
		case synced != before:
			moved = now
		case now.Sub(moved) > noFlush:
			return now, errNoFlush
		}
		if synced >= end {
			return now, nil
		}
		before = synced
		if err := sleep(ctx, flushEvery); err != nil {
			return now, fmt.Errorf("bench: the log is not on the disk yet: %w", err)
		}
	}
}
