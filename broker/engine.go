// Package broker is the engine: one method for each operation, between the frames above and the log
// below.
//
// A request becomes an op in its connection's event loop (loop.go), where everything that needs no state
// is done: decoding, checksums, receipts' signatures. Then it enters the sequencing section (section.go),
// one mutex, in which it is checked against the head state, becomes records in the log's ring, and is
// applied to the fold. Outside again its answer is encoded, and leaves when the log has committed what
// it depends on (answers.go). Nobody waits anywhere but as a record: parked answers, parked pops
// (waiters.go).
//
// Locks, in this order: the section; then the lists of the log, the index, the loops' inboxes, which are
// held for a few instructions each. Goroutines: the event loops of the front, the log's writer and flusher, the
// index's writer and loader, the ticker (ticker.go), two workers for reads that may wait for the disk.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/snapshot"
	"github.com/leasemq/leasemq/timingwheel"
)

// Options configure an engine. Only Dir must be set.
type Options struct {
	Dir           string
	IO            mmaplog.IOMode
	Fsync         mmaplog.Policy
	FsyncInterval time.Duration
	SegmentBytes  int64
	RingBytes     int
	Limits        Limits
	Logger        *slog.Logger
	// SnapshotBytes is how much log lies between two snapshots: 256 MiB. A restart replays at most about that much.
	SnapshotBytes int64
	Retention     Retention
	// Watermark is the share of the disk, in percent, above which sends are refused. 0: none.
	Watermark int
	// LockWait is how long Open waits for a broker that has the directory: one that was killed keeps it until
	// the system has taken its memory apart.
	LockWait time.Duration

	// For tests.
	Clock  Clock // nil: the machine's
	Manual bool  // no ticker: the test calls Tick
	Verify bool  // the checks of verify.go, after every section
	// Observe is called in the section, when Verify is set, after every record: the state as a replay
	// of the log below end has it.
	Observe func(end uint64, hash func() stateHash)
	Seed    uint64     // of the jitter; 0: a random one
	FS      mmaplog.FS // nil: the real one
	// IndexFile opens the files of the queue index. nil: consumequeue.OpenFile.
	IndexFile func(path string, size int64) (consumequeue.File, error)
}

// ErrStoreFailed is the reason why an engine that failed went down.
var ErrStoreFailed = errors.New("broker: store failed")

// Engine is a running broker without a network. Its exported methods may be called from anywhere; Loops
// belong to their event loops.
type Engine struct {
	o      Options
	limits Limits
	logger *slog.Logger
	log    *mmaplog.Log
	index  *consumequeue.Index
	key    lease.Key
	clock  Clock
	wall0  int64 // delay clock, ms, at monotonic zero

	lease leaseClock

	ctx           context.Context // ends with the engine
	cancel        context.CancelFunc
	snaps         snapshots
	snapped       atomic.Uint64 // position of the newest snapshot
	snapshotBytes atomic.Int64  // its length
	disk          diskSpace
	reserveShort  atomic.Bool // the disk lacks some of its reserve
	diskUnknown   atomic.Bool // how full it is could not be told
	vacated       atomic.Bool // a topic was deleted or emptied: old segments may have nothing in them any more
	steward       steward
	retention     retention
	mender        mender

	// mu is the sequencing section. Everything down to the next blank line is guarded by it.
	mu        sync.Mutex
	fold      *fold
	shadow    *fold
	held      heldView // only with Verify
	writing   bool     // the fold is frozen for a snapshot
	sections  uint64
	rnd       *rand.Rand
	topicRun  []topicRun        // by slot of the topic
	queueRun  []queueRun        // by slot of the queue
	subRun    []subRun          // by slot of the subscription
	sessRun   []sessionRun      // by slot of the session
	gates     map[uint32]uint64 // by group id: end of its newest rule change
	epochGate uint64            // end of the newest EPOCH record written in line
	dispatch  dispatchList
	gone      []goneRun // in log order
	dirty     []uint32  // subscriptions to look at before the section is left
	loading   []uint32  // subscriptions that wait for the index to be loaded
	waiters   waiterTable
	loops     []*Loop
	wakeSet   []*Loop
	suspects  map[uint64]uint64 // silent sessions and the marker round at which they were first seen
	lastMs    int64             // lease clock at the newest record
	// There are records since the last one that was appended to promise what lies before it.
	unpromised bool
	plan       plan
	current    int      // ring bytes promised to the request being decided
	capped     bool     // a pop was held back by the cap on all unsettled messages
	notes      []func() // to be run when the section has been left: log lines
	scratch    scratch

	reserved    atomic.Int64  // ring bytes promised to requests that are not yet appended
	waiting     atomic.Int64  // parked pops
	dispatched  atomic.Uint64 // up to where visible ends have been moved
	draining    atomic.Bool
	todo        atomic.Bool   // the section has work left: look at it at the next wake-up
	markerRound atomic.Uint64 // see watchSessions
	failed      atomic.Bool
	failure     error
	failedCh    chan struct{}
	failOnce    sync.Once
	loopList    atomic.Pointer[[]*Loop]

	// suspected is the sessions of suspects, for the loops. It is replaced, never changed.
	suspected atomic.Pointer[map[uint64]struct{}]

	work    workers // reads of pops that may wait for the disk
	peeks   workers
	ticking ticker
	stats   counters

	reindexed bool // the start has built the index anew
}

// scratch are values that the section reuses.
type scratch struct {
	assigned [codec.MessageAssignedBytes]byte
	payload  []byte
	grant    codec.Grant
	settle   codec.Settle
	change   codec.Change
	expire   codec.Expire
	end      codec.SessionEnd
	silent   []uint64
	holders  []uint64
}

// Open recovers the data directory and starts the engine.
func Open(o Options) (*Engine, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = systemClock{time.Now()}
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.FS == nil {
		o.FS = mmaplog.OS
	}
	if o.SnapshotBytes <= 0 {
		o.SnapshotBytes = defaultSnapshotBytes
	}
	o.Retention = o.Retention.withDefaults()
	e := &Engine{
		o: o, limits: o.Limits.withDefaults(), logger: o.Logger, clock: o.Clock,
		rnd:      rand.New(rand.NewPCG(o.Seed, 1)),
		gates:    map[uint32]uint64{},
		suspects: map[uint64]uint64{},
		failedCh: make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.waiters.wheel = timingwheel.New(0)
	e.loopList.Store(&[]*Loop{})
	if err := e.recover(); err != nil {
		e.abort()
		return nil, err
	}
	e.work.start(2, func(r any) { e.fail(fmt.Errorf("panic on a worker: %v\n%s", r, debug.Stack())) })
	e.peeks.start(1, func(r any) { e.fail(fmt.Errorf("panic on a worker: %v\n%s", r, debug.Stack())) })
	if !o.Manual {
		e.steward.start(e)
		e.ticking.start(e) // it pokes the steward
	}
	return e, nil
}

// recover opens the log, folds it, and begins the new epoch.
func (e *Engine) recover() (err error) {
	onViolation := func(what string) {
		if e.o.Verify {
			panic("broker: a record does not fit the state: " + what)
		}
		e.later(func() { e.logger.Error("a record does not fit the state and does nothing", "what", what) })
	}
	e.fold = newFold(onViolation)
	if e.o.Verify {
		e.shadow = newFold(onViolation)
	}
	e.snaps.store = snapshot.NewStore(e.o.FS, filepath.Join(e.o.Dir, "snapshots"))
	if err = e.openIndex(); err != nil {
		return err
	}
	e.log, err = e.openLog(mmaplog.Options{
		Dir: e.o.Dir, IO: e.o.IO, Policy: e.o.Fsync, Interval: e.o.FsyncInterval,
		SegmentBytes: e.o.SegmentBytes, RingBytes: e.o.RingBytes,
		OnCommit: e.onCommit, OnRoom: e.onSegment, OnFail: e.fail, FS: e.o.FS, Logger: e.logger, Begin: e.begin,
	})
	if err != nil {
		return err
	}
	found := e.log.Recovery()
	e.limits.fit(e.log.MaxRecord())
	if e.key, err = loadKey(e.o.Dir, found.Records == 0 && found.From == 0); err != nil {
		return err
	}
	if err := e.checkStart(); err != nil {
		return err
	}
	if err := e.finishIndex(); err != nil {
		return err
	}
	mono, wall := e.clock.Mono(), e.clock.Wall()
	e.wall0 = max(e.fold.wallMs, wall.UnixMilli()) - mono.Milliseconds()
	e.lease.start(e.fold.leaseMs, mono)
	e.lastMs = e.fold.leaseMs
	epoch, err := e.nextEpoch()
	if err != nil {
		return err
	}
	if err := e.log.Start(epoch, e.lease.now(), e.wallMs(mono)); err != nil {
		return err
	}
	h := codec.Header{Type: codec.TypeEpoch, Epoch: epoch, Position: e.log.Appended() - codec.HeaderBytes, LeaseMs: e.lease.now(), WallMs: e.wallMs(mono)}
	e.follow(&h, nil, nil)
	e.fold.stamp(&h)
	e.fold.startEpoch(&h)
	e.index.Start()
	e.rebuildRuns()
	e.fold.sessions.Serve(e.lease.now())
	e.lookAtDisk()
	for _, position := range e.snaps.unfit {
		e.setAside(position)
	}
	e.logger.Info("recovered", "from", found.From, "records", found.Records, "bytes", found.Bytes, "clean_stop", found.CleanStop,
		"epoch", epoch, "topics", len(e.fold.topics.ids), "sessions", e.fold.sessions.Sessions(),
		"unsettled", e.fold.leases.Unsettled(), "took", found.Duration)
	return nil
}

// checkStart looks whether all segments are there that the state needs.
func (e *Engine) checkStart() error {
	first, need := e.log.First(), e.fold.topics.logStart
	if first == 0 || first < e.log.SegmentEnd(need) {
		return nil // what lies before need is removed by the steward
	}
	return fmt.Errorf("broker: the log begins at position %d, but messages from position %d on are still needed: "+
		"a segment file is missing; restore it from a backup", first, need)
}

// openIndex opens the index files. What is in them is looked at by finishIndex.
func (e *Engine) openIndex() (err error) {
	e.index, err = consumequeue.Open(consumequeue.Options{
		Dir: filepath.Join(e.o.Dir, "queues"), OnLoad: e.onLoad, Logger: e.logger, OnFail: e.fail,
		OpenFile: e.o.IndexFile,
		OnHole:   func(topic uint32, q uint16, _ uint64) { e.indexWrong(topic, q) },
	})
	return err
}

// finishIndex brings the index files in line with the log. If they lack what lies before the replayed part of it, the whole
// log is read for them. What is damaged there does not keep the broker from starting.
func (e *Engine) finishIndex() error {
	err := e.index.FinishRecovery(e.queueEnds())
	incomplete, ok := errors.AsType[*consumequeue.IncompleteError](err)
	if !ok {
		return err
	}
	began := time.Now()
	e.logger.Warn("index files are missing or damaged: they are built anew from the log", "found", incomplete)
	e.reindexed = true
	e.index.Abort()
	if err := e.openIndex(); err != nil {
		return err
	}
	lost, err := e.reindex()
	if err == nil {
		err = e.index.FinishRecovery(e.queueEnds())
	}
	if err == nil {
		e.logger.Info("index files were built anew", "damaged messages", lost, "took", time.Since(began))
	}
	return err
}

// maxEpoch keeps fencing tokens below 2^63.
const maxEpoch = 1<<31 - 1

// nextEpoch is the number of the epoch that begins now: greater than the last one, and no smaller than the
// wall clock, so that a restored backup does not hand out tokens again.
func (e *Engine) nextEpoch() (uint32, error) {
	epoch := max(int64(e.fold.epoch)+1, e.clock.Wall().Unix())
	if epoch > maxEpoch {
		return 0, fmt.Errorf("broker: epoch %d (the wall clock's seconds) is over %d: is the clock right?", epoch, maxEpoch)
	}
	return uint32(epoch), nil
}

// openLog opens the log and replays it, when the directory is free.
func (e *Engine) openLog(o mmaplog.Options) (*mmaplog.Log, error) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		l, err := mmaplog.Open(o, e.replay)
		if _, locked := errors.AsType[*mmaplog.LockedError](err); !locked || time.Since(began) >= e.o.LockWait {
			return l, err
		}
	}
}

// replay applies one record of the log during recovery.
func (e *Engine) replay(r mmaplog.Record) error {
	if e.shadow != nil {
		if err := e.shadow.apply(&r.Header, r.Assigned, r.Payload); err != nil {
			return err
		}
	}
	if r.Header.Type == codec.TypeMessage {
		p := codec.ParseMessagePlace(r.Assigned)
		e.fold.stamp(&r.Header)
		if !e.fold.message(&r.Header, &p, r.Payload) {
			return nil
		}
		return e.index.Recover(p.Topic, p.Queue, p.Offset, indexEntry(&r.Header, &p, r.Payload))
	}
	return e.fold.apply(&r.Header, r.Assigned, r.Payload)
}

func (e *Engine) abort() {
	e.cancel()
	if e.log != nil {
		e.log.Abort()
	}
	if e.index != nil {
		e.index.Abort()
	}
}

// wallMs is the delay clock: it ignores steps of the wall clock and never goes back.
func (e *Engine) wallMs(mono time.Duration) int64 { return e.wall0 + mono.Milliseconds() }

// lastSnapshotTime is how long the snapshot of an orderly stop may wait for the log.
const lastSnapshotTime = 30 * time.Second

// Close stops in order: the log is flushed and marked as stopped cleanly. The front has been shut down
// before.
func (e *Engine) Close() error {
	e.ticking.stop()
	e.cancel() // what runs in the background must not wait for a disk that is full
	e.steward.stop()
	e.work.stop()
	e.peeks.stop()
	e.mender.stop()
	if e.log.Appended() > e.snapped.Load() && !e.failed.Load() && !e.log.DiskFull() {
		ctx, cancel := context.WithTimeout(context.Background(), lastSnapshotTime)
		if _, err := e.snapshotWithin(ctx); err != nil { // the next start replays more
			e.logger.Warn("no snapshot was taken at the stop", "error", err)
		}
		cancel()
	}
	err := e.log.Close()
	indexErr := e.index.Close()
	if indexErr != nil && mmaplog.IsShortage(indexErr) { // all that it has stands in the log, too
		e.logger.Warn("the index could not be stored at the stop: the next start mends it from the log", "error", indexErr)
		indexErr = nil
	}
	return errors.Join(err, indexErr)
}

// Abort stops without writing anything more, as a kill would. For tests.
func (e *Engine) Abort() {
	e.cancel()
	e.ticking.stop()
	e.steward.stop()
	e.work.stop()
	e.peeks.stop()
	e.mender.stop()
	e.abort()
}

// Failed is closed when the engine has failed: head state is void, nothing is answered OK any more, and
// the process must end. Err tells why.
func (e *Engine) Failed() <-chan struct{} { return e.failedCh }

// Err is why the engine failed; nil before.
func (e *Engine) Err() error {
	select {
	case <-e.failedCh:
		return e.failure
	default:
		return nil
	}
}

// fail voids the head state. It may be called from any goroutine, with or without the section.
func (e *Engine) fail(err error) {
	e.failOnce.Do(func() {
		e.failure = fmt.Errorf("%w: %w", ErrStoreFailed, err)
		e.failed.Store(true)
		close(e.failedCh)
		e.logger.Error("the broker goes down: what is in memory is not what is on disk", "error", err)
	})
	e.wakeLoops()
}

// Drain begins the orderly stop: requests that begin new work are refused, parked pops are answered.
func (e *Engine) Drain() { e.draining.Store(true) }

// Epoch is the number of this start of the broker.
func (e *Engine) Epoch() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fold.epoch
}

// Log is the engine's log, for reports.
func (e *Engine) Log() *mmaplog.Log { return e.log }
