package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
)

const (
	roundsTopic  = "orders"
	roundsQueues = 8

	// leastTraffic and mostTraffic bound the random time from the moment clients are at work again until the next kill.
	leastTraffic = 50 * time.Millisecond
	mostTraffic  = 1500 * time.Millisecond
	// startPatience is how long a broker may take to start, and clients to be at work again.
	startPatience = 30 * time.Second

	// The log is cut into small pieces, so that snapshots are taken, old segments removed and held messages copied
	// forward all the time, also when a kill comes.
	roundsSegment   = "4MiB"
	roundsSnapshots = "4MiB"
	roundsRetention = "20s"
	roundsSize      = "12MiB"
	// mostBacklog is how many messages a group may be behind until senders wait for it: what it has still to take keeps
	// its log.
	mostBacklog = 20_000
	// mostLogBytes is above what the log may come to with that: a segment that a group still needed when it was looked at is
	// looked at again after ten seconds, and the two snapshots that must cover what goes lag behind.
	mostLogBytes = 128 << 20
)

// RoundsOptions say how Rounds goes about it.
type RoundsOptions struct {
	Program   string // the broker's binary; it is asked to check the log in the end, too
	Dir       string // data directory, which lives through all rounds
	Rounds    int
	Seed      uint64 // of the moments
	Producers int
	Consumers int          // of the group that works; the one that holds messages for long has one
	Say       func(string) // is told what happens
	BrokerLog io.Writer    // gets what all runs of the broker log; nil: nobody does
}

// RoundsReport is what Rounds found.
type RoundsReport struct {
	Rounds int    `json:"rounds"`
	Seed   uint64 `json:"seed"`

	Workers       Verdict        `json:"workers"` // of the group that works
	WorkerLeases  RegrantVerdict `json:"worker_leases"`
	Keepers       Verdict        `json:"keepers"` // of the group that holds some for long
	KeeperLeases  RegrantVerdict `json:"keeper_leases"`
	SessionsLost  uint64         `json:"sessions_lost"` // that no holder had ended
	LeftOver      bool           `json:"left_over"`     // a group still had something when patience ended: it counts as lost
	LogVerify     string         `json:"log_verify"`    // what "leasemq log verify" said: "ok", its findings, or "" where there is no such command
	LogVerifyFail bool           `json:"log_verify_failed"`

	// From the kill until a client's call that began after it was answered OK.
	OutageMedianMs float64 `json:"outage_median_ms"`
	OutageMaxMs    float64 `json:"outage_max_ms"`
	// From the start of the process until it said that it listens.
	StartMedianMs float64 `json:"start_median_ms"`
	StartMaxMs    float64 `json:"start_max_ms"`

	LogBytes        []int64 `json:"log_bytes"` // the log's files at each kill, and at the end
	LogBytesMax     int64   `json:"log_bytes_max"`
	LogBytesLimit   int64   `json:"log_bytes_limit"`
	Snapshots       uint64  `json:"snapshots"` // as of the last look before each kill
	SegmentsRemoved uint64  `json:"segments_removed"`
	CopiedForward   uint64  `json:"messages_copied_forward"`
	Dropped         uint64  `json:"messages_dropped"`
	Unreadable      uint64  `json:"messages_unreadable"`
	Misfits         uint64  `json:"records_misfit"`
	Seconds         float64 `json:"seconds"`
}

// Broken tells whether the broker has broken a promise.
func (r *RoundsReport) Broken() bool {
	return r.Workers.Broken() || r.WorkerLeases.Broken() || r.Keepers.Broken() || r.KeeperLeases.Broken() ||
		r.SessionsLost+r.Dropped+r.Unreadable+r.Misfits > 0 || r.LeftOver || r.LogVerifyFail || r.LogBytesMax > r.LogBytesLimit
}

// rounds is the state of one Rounds.
type rounds struct {
	o      RoundsOptions
	began  time.Time // of all moments
	report *RoundsReport

	workers, keepers book       // of the two groups
	reserving        sync.Mutex // so that a message has one number in both

	sending context.Context
	stop    context.CancelFunc // ends sending: no further batch is begun
	ending  context.Context
	end     context.CancelFunc // ends ending: consumers return
	quiet   atomic.Bool        // every send has been answered: hold nothing, take what is left
	first   firstError

	epoch        atomic.Uint32 // of the broker that runs, 0 while it is being killed and started
	gone         atomic.Int64  // the moment at which the broker was gone last
	back         atomic.Int64  // the moment of the first answer after that; 0: none yet
	sends, acks  atomic.Uint64 // that were answered OK
	sessionsLost atomic.Uint64
}

// book is what is known of one group.
type book struct {
	Ledger
	leases Regrants
	done   atomic.Uint64 // acks that were answered OK, or not at all
	empty  chan struct{} // closed when the group was found empty after the last send
	once   sync.Once
}

// behind tells whether the group has much to take of so many messages that were sent.
func (b *book) behind(sent uint64) bool { return sent > b.done.Load()+mostBacklog }

// known tells whether a number was given to a message.
func (b *book) known(number uint64) bool {
	b.Ledger.mu.Lock()
	defer b.Ledger.mu.Unlock()
	return number < uint64(len(b.entries))
}

// brokerArgs are the flags of the broker's n-th start. A kill takes nothing that was answered under either policy, and
// both ways of writing give the same files.
func brokerArgs(n int) []string {
	return []string{
		"--fsync", []string{"always", "interval"}[n/2%2], "--io", []string{"staged", "mapped"}[n%2],
		"--segment-size", roundsSegment, "--snapshot-every", roundsSnapshots,
		"--retention", roundsRetention, "--retention-size", roundsSize,
	}
}

// Rounds has producers and consumers work with a broker and kills it again and again, at random moments, on one data
// directory. In the end it lets both groups run dry, and tells what was lost, came back or came again without a cause. A
// report with figures that must not be is no error; an error is what kept Rounds from finding out.
func Rounds(ctx context.Context, o RoundsOptions) (report RoundsReport, err error) {
	report = RoundsReport{Rounds: o.Rounds, Seed: o.Seed, LogBytesLimit: mostLogBytes}
	r := &rounds{o: o, began: time.Now(), report: &report}
	r.workers.empty, r.keepers.empty = make(chan struct{}), make(chan struct{})
	broker, err := r.startBroker(ctx, 0, "")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, broker.Kill()) }()

	ctx, cancel := context.WithCancel(ctx)
	r.sending, r.stop = context.WithCancel(ctx)
	r.ending, r.end = context.WithCancel(ctx)
	clients, err := dialAll(ctx, broker.Addr, "leasemq crash", o.Producers+o.Consumers+2)
	if err != nil {
		cancel()
		return report, err
	}
	var working, producing sync.WaitGroup
	defer func() {
		cancel()
		producing.Wait()
		working.Wait()
		closeAll(clients)
	}()
	watcher := clients[0]
	if err := r.prepare(ctx, watcher); err != nil {
		return report, err
	}
	if err := r.noteEpoch(ctx, watcher); err != nil {
		return report, err
	}
	for i, c := range clients[1:] {
		random := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		switch {
		case i < o.Producers:
			producing.Go(func() { r.produce(ctx, c, random) })
		case i < o.Producers+o.Consumers:
			working.Go(func() { r.work(ctx, c, random) })
		default:
			working.Go(func() { r.keep(ctx, c, random) })
		}
	}
	outages, starts := []time.Duration{}, []time.Duration{}
	random := rand.New(rand.NewPCG(o.Seed, 1<<32))
	for n := 1; n <= o.Rounds; n++ {
		if err := r.traffic(ctx, random, broker); err != nil {
			return report, err
		}
		r.look(ctx, watcher)
		broker, starts, err = r.kill(ctx, n, broker, watcher, starts)
		if err != nil {
			return report, err
		}
		if err := r.awaitWork(ctx, broker); err != nil {
			return report, err
		}
		outage := time.Duration(r.back.Load() - r.gone.Load())
		outages = append(outages, outage)
		o.Say(fmt.Sprintf("%3d  back after %4d ms  %8d sends, %8d acks answered OK, %3d MiB of log", n, outage.Milliseconds(),
			r.sends.Load(), r.acks.Load(), report.LogBytes[len(report.LogBytes)-1]>>20))
	}
	r.stop()
	producing.Wait()
	r.quiet.Store(true)
	o.Say("no more sends; consumers take what is left")
	report.LeftOver = !r.awaitEmpty(ctx)
	r.look(ctx, watcher)
	r.end()
	working.Wait()
	if err := errors.Join(r.first.get(), ctx.Err()); err != nil {
		return report, err
	}
	if err := broker.Stop(stopPatience); err != nil {
		return report, err
	}
	r.verifyLog(ctx)
	r.sum(outages, starts)
	return report, nil
}

func (r *rounds) now() time.Duration { return time.Since(r.began) }

func (r *rounds) startBroker(ctx context.Context, n int, listen string) (*Child, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("it took more than %v", startPatience))
	defer cancel()
	return StartChild(ctx, ChildOptions{Program: r.o.Program, Listen: listen, Dir: r.o.Dir, Args: brokerArgs(n), Log: r.o.BrokerLog})
}

// prepare makes the topic and the groups. Their limits of attempts are out of the way: a message that is at one would not be
// delivered any more.
func (r *rounds) prepare(ctx context.Context, c *client.Client) error {
	if _, err := needTopic(ctx, c, roundsTopic, roundsQueues); err != nil {
		return err
	}
	rules := client.GroupRules{
		SessionTimeoutMs: 30_000, MaxFailures: 254, MaxExpiries: 254, MaxSessionLosses: 254, BackOffMinMs: 100, BackOffMaxMs: 1000,
	}
	for _, group := range []string{workGroup, keepGroup} {
		if err := c.CreateGroup(ctx, group, rules); err != nil {
			return fmt.Errorf("bench: group %s: %w", group, err)
		}
	}
	return nil
}

// fail ends the run because of something that nobody knows how to go on from.
func (r *rounds) fail(err error) {
	r.first.set(err)
	r.stop()
	r.end()
}

// answered notes that a call was answered OK.
func (r *rounds) answered(called time.Duration) {
	if gone := r.gone.Load(); gone > 0 && int64(called) >= gone && r.back.Load() == 0 {
		r.back.CompareAndSwap(0, int64(r.now()))
	}
}

// awaitWork returns when a send and an ack that were called after the last kill were answered.
func (r *rounds) awaitWork(ctx context.Context, broker *Child) error {
	sends, acks := r.sends.Load(), r.acks.Load()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(startPatience); ; {
		if r.sends.Load() > sends && r.acks.Load() > acks && (r.gone.Load() == 0 || r.back.Load() != 0) {
			return nil
		}
		select {
		case <-tick.C:
		case <-broker.Done():
			return broker.endError()
		case <-r.sending.Done():
			return errors.Join(r.first.get(), ctx.Err())
		}
		if time.Now().After(late) {
			return fmt.Errorf("bench: %v after a start no client is at work again; the broker's last lines:\n%s", startPatience, broker.LastLines())
		}
	}
}

// traffic lets clients work for a random time.
func (r *rounds) traffic(ctx context.Context, random *rand.Rand, broker *Child) error {
	if err := r.awaitWork(ctx, broker); err != nil {
		return err
	}
	over := time.NewTimer(leastTraffic + time.Duration(random.Int64N(int64(mostTraffic-leastTraffic))))
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-broker.Done():
		return broker.endError()
	case <-r.sending.Done():
		return errors.Join(r.first.get(), ctx.Err())
	}
}

// kill kills the broker and starts it again, with the flags of the n-th start.
func (r *rounds) kill(ctx context.Context, n int, broker *Child, watcher *client.Client, starts []time.Duration) (*Child, []time.Duration, error) {
	r.epoch.Store(0)
	killed := r.now()
	if err := broker.Kill(); err != nil {
		return broker, starts, err
	}
	r.back.Store(0)
	r.gone.Store(int64(killed))
	began := time.Now()
	again, err := r.startBroker(ctx, n, broker.Addr)
	if err != nil {
		return broker, starts, err
	}
	return again, append(starts, time.Since(began)), r.noteEpoch(ctx, watcher)
}

// noteEpoch asks the broker for the number of its run.
func (r *rounds) noteEpoch(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	called := r.now()
	figures, err := figuresOf(ctx, c)
	if err != nil {
		return err
	}
	r.answered(called)
	r.epoch.Store(uint32(figures["epoch"]))
	return nil
}

// figuresOf asks the broker for its figures.
func figuresOf(ctx context.Context, c *client.Client) (map[string]uint64, error) {
	stats, err := c.Stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("bench: stats: %w", err)
	}
	figures := make(map[string]uint64, len(stats))
	for _, s := range stats {
		figures[s.Name] = s.Value
	}
	return figures, nil
}

// look adds up the figures of the run that is about to end.
func (r *rounds) look(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	figures, err := figuresOf(ctx, c)
	if err != nil {
		r.fail(err)
		return
	}
	r.report.Snapshots += figures["snapshots_taken"]
	r.report.SegmentsRemoved += figures["log_segments_removed"]
	r.report.CopiedForward += figures["messages_copied_forward"]
	r.report.Dropped += figures["messages_dropped"]
	r.report.Unreadable += figures["messages_unreadable"]
	r.report.Misfits += figures["records_misfit"]
	bytes, err := dirBytes(filepath.Join(r.o.Dir, "log"))
	if err != nil {
		r.fail(err)
	}
	r.report.LogBytes = append(r.report.LogBytes, bytes)
}

// dirBytes is the length of all files in a directory, which may come and go meanwhile.
func dirBytes(dir string) (n int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
	}
	return n, nil
}

// awaitEmpty waits until both groups were found empty; false when it takes too long.
func (r *rounds) awaitEmpty(ctx context.Context) bool {
	late := time.After(2 * drainPatience)
	for _, b := range []*book{&r.workers, &r.keepers} {
		select {
		case <-b.empty:
		case <-r.ending.Done():
			return false
		case <-ctx.Done():
			return false
		case <-late:
			return false
		}
	}
	return true
}

// verifyLog has the program check the directory, if it knows how to.
func (r *rounds) verifyLog(ctx context.Context) {
	help, err := exec.CommandContext(ctx, r.o.Program, "log", "verify", "--help").Output()
	if err != nil || !bytes.Contains(help, []byte("leasemq log verify")) {
		return
	}
	out, err := exec.CommandContext(ctx, r.o.Program, "log", "verify", "--data", r.o.Dir).CombinedOutput()
	r.report.LogVerify = "ok"
	if err != nil {
		r.report.LogVerify, r.report.LogVerifyFail = string(out), true
	}
}

func (r *rounds) sum(outages, starts []time.Duration) {
	report := r.report
	report.Workers, report.WorkerLeases = r.workers.Verdict(), r.workers.leases.Verdict()
	report.Keepers, report.KeeperLeases = r.keepers.Verdict(), r.keepers.leases.Verdict()
	report.SessionsLost = r.sessionsLost.Load()
	report.OutageMedianMs, report.OutageMaxMs = medianAndMaxMs(outages)
	report.StartMedianMs, report.StartMaxMs = medianAndMaxMs(starts)
	report.LogBytesMax = slices.Max(report.LogBytes)
	report.Seconds = r.now().Seconds()
}

func medianAndMaxMs(all []time.Duration) (median, most float64) {
	if len(all) == 0 {
		return 0, 0
	}
	all = slices.Sorted(slices.Values(all))
	return ms(all[len(all)/2]), ms(all[len(all)-1])
}
