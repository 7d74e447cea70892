package mmaplog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	mmap "github.com/edsrzf/mmap-go"

	"github.com/leasemq/leasemq/codec"
)

// Log is the one CommitLog of a broker: an endless row of records in segment files of equal size.
//
// Life: Open recovers and replays; Start writes the epoch record and makes the log appendable; Close or
// Abort ends it. docs/CRASH.md has what is promised when.
//
// Invariants (SEMANTICS 1.4):
//
//  1. appended >= written >= synced; committed is synced under SyncAlways, else written.
//  2. written counts only bytes that the system was handed (they outlive the process), synced only bytes
//     that a flush has returned for without an error, every byte before them included.
//  3. A position is published by one goroutine: appended by the section, written by the writer, synced by the
//     flusher.
//  4. Once the log has failed or was stopped no position advances any more. That is the fence: publication
//     checks it under mu, so a goroutine that comes back late from a stuck disk cannot publish.
//  5. A segment file is durable, its name included, before the writer writes to it. Under SyncAlways every
//     byte of a segment is durable before the first byte of the next one is handed to the system.
//
// Who may call what: Next, Append, AppendQuiet, Last and SetEpoch are the section's; the caller has one lock of its
// own around them. Start, Close and Abort are called once, with nobody appending.
// Everything else may be called by anybody. Lock order: removeMu before segMu; segMu and mu are leaves, never
// held together.
type Log struct {
	o        Options
	geo      geometry
	dir      string // of the segments
	mode     IOMode
	lock     io.Closer
	recovery Recovery
	ring     *ring
	slack    uint64 // ring bytes kept for the log's own records: SEGMENT_END and CLEAN_STOP
	begin    uint64 // position at which this run began to append; what lies below is not in the ring
	started  bool

	section section

	// places[k % len] is what to take off a position in segment k to get its ring position. Written by
	// the section before it appends to segment k.
	places []atomic.Uint64

	_         [64]byte // stored by the section
	appended  atomic.Uint64
	quietFrom atomic.Uint64 // the records from here on asked for no flush; noQuiet if the last one did
	_         [64]byte      // stored by writer and flusher
	written   atomic.Uint64
	synced    atomic.Uint64
	_         [64]byte

	requested atomic.Uint64 // somebody waits for this position to be synced
	asleep    atomic.Bool   // the writer waits for wake
	wake      signal        // to the writer, from Kick
	progress  signal        // to the writer: a segment was prepared, or synced advanced
	syncSoon  signal        // to the flusher: there are unsynced bytes
	syncNow   signal        // to the flusher: look now
	fillRing  signal        // to the ring filler
	readyMore signal        // to the populator of mapped segments
	prepare   signal        // to the preallocator

	prepareAt atomic.Uint64 // an append from this position on makes the preallocator work
	prepared  atomic.Uint64 // number of the first segment that does not exist yet
	full      atomic.Bool   // the next segment could not be allocated
	closing   atomic.Bool

	segments atomic.Pointer[segmentTable] // replaced under segMu when one is added or removed
	segMu    sync.Mutex
	feeders  map[uint64]feeder // segments that can be written to: from the oldest unsynced one on

	removeMu sync.Mutex // one removal at a time; the field below
	doomed   *segment   // taken out of the table, its file perhaps still there

	mu      sync.Mutex // publication of written and synced; the fields below
	ended   bool       // failed or stopped
	waiters []syncWaiter
	failure atomic.Pointer[error]
	done    chan struct{} // closed when ended
	group   sync.WaitGroup

	unsynced bound
	stats    counters
}

// section is the state that the caller's sequencing section guards.
type section struct {
	head     uint64 // position of the next byte
	ringHead uint64 // its ring position
	epoch    uint32
	leaseMs  int64 // of the last record
	wallMs   int64
	last     uint64 // position of the last record; 0 if there is none
	lastCRC  uint32
	quiet    bool
	closed   bool
	scratch  [codec.HeaderBytes]byte
}

const noQuiet = ^uint64(0)

// Open locks the data directory, recovers the log and gives every record from where Options.Begin says to replay,
// in log order. It appends nothing. A *DamageError says that data that was durable is damaged; a *LockedError
// that another broker has the directory; an *AnchorError that the log has another record where Begin said;
// a *VersionError that the directory is of a newer leasemq.
func Open(o Options, replay func(Record) error) (*Log, error) {
	began := time.Now()
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Log{
		o:        o,
		dir:      filepath.Join(o.Dir, logDirName),
		feeders:  map[uint64]feeder{},
		wake:     newSignal(),
		progress: newSignal(), syncSoon: newSignal(), syncNow: newSignal(),
		fillRing: newSignal(), readyMore: newSignal(), prepare: newSignal(),
		done: make(chan struct{}),
	}
	l.segments.Store(&segmentTable{})
	l.quietFrom.Store(noQuiet)
	if err := l.open(replay); err != nil {
		l.release()
		return nil, err
	}
	l.recovery.Duration = time.Since(began)
	l.recovery.log(o.Logger)
	return l, nil
}

func (l *Log) open(replay func(Record) error) error {
	if err := l.o.FS.MkdirAll(l.dir); err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	lock, err := l.o.FS.Lock(filepath.Join(l.o.Dir, lockName))
	if err != nil {
		if locked, ok := errors.AsType[*LockedError](err); ok {
			locked.Dir = l.o.Dir
		}
		return fmt.Errorf("mmaplog: %w", err)
	}
	l.lock = lock
	if err := l.recover(replay); err != nil {
		return err
	}
	if l.recovery.Fresh {
		if err := l.syncNewDirectories(); err != nil {
			return err
		}
	}
	if err := l.chooseIO(); err != nil {
		return err
	}
	if l.ring, err = newRing(l.o.RingBytes); err != nil {
		return err
	}
	// Readers may come after Close: the ring goes when nobody can.
	runtime.AddCleanup(l, func(region mmap.MMap) { region.Unmap() }, l.ring.region)
	l.sizeRing()

	end := l.recovery.End
	l.begin = end
	l.section.head = end // the rest of the section is what recovery found
	l.places[l.placeSlot(l.geo.segment(end))].Store(end)
	l.appended.Store(end)
	l.written.Store(end)
	l.synced.Store(end)
	l.unsynced.init(l.o)
	return nil
}

// syncNewDirectories makes the names of a new data directory, and of log in it, durable.
func (l *Log) syncNewDirectories() error {
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	// The parent may be none of our business.
	if err := l.o.FS.SyncDir(filepath.Dir(l.o.Dir)); err != nil && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("mmaplog: %w", err)
	}
	return nil
}

// sizeRing works out what the ring keeps back for the log's own records, and how many segments can lie
// in it. Two neighbouring segments together hold at least a segment's worth of records, for the first
// one ended only because a record of the second did not fit.
func (l *Log) sizeRing() {
	crossings := 2*(uint64(l.o.RingBytes)/(l.geo.segmentBytes-3*endBytes)+1) + 1
	l.slack = (crossings + 2) * endBytes
	n := uint64(1)
	for n < 2*crossings+4 {
		n *= 2
	}
	l.places = make([]atomic.Uint64, n)
}

// Start opens an epoch: it appends the EPOCH record, returns when that is durable, and leaves the log
// ready for appends. The epoch must be above Recovery().LastEpoch, the lease clock not below LastLeaseMs.
func (l *Log) Start(epoch uint32, leaseMs, wallMs int64) error {
	r := &l.recovery
	switch {
	case l.started:
		return errors.New("mmaplog: the log was started before")
	case epoch <= r.LastEpoch:
		return fmt.Errorf("mmaplog: epoch %d is not above %d, the last one in the log", epoch, r.LastEpoch)
	case leaseMs < r.LastLeaseMs:
		return fmt.Errorf("mmaplog: lease clock %d ms is behind %d ms, where the log ends", leaseMs, r.LastLeaseMs)
	}
	if err := l.openTail(); err != nil {
		return err
	}
	l.started = true
	l.ring.fill(0, ringAheadBytes)
	l.run("writer", l.runWriter)
	l.run("flusher", l.runFlusher)
	if l.mode == IOMapped {
		l.run("populator", l.runPopulator)
	}
	l.run("preallocator", l.runPreallocator)
	l.run("ring filler", l.runRingFiller)

	l.SetEpoch(epoch)
	h := codec.Header{Type: codec.TypeEpoch, LeaseMs: leaseMs, WallMs: wallMs}
	l.Append(&h, nil, nil, 0)
	l.Kick()
	return l.Sync()
}

// run starts one of the log's goroutines. A panic in any of them ends the process (SEMANTICS 1.7).
func (l *Log) run(name string, loop func()) {
	l.group.Go(func() {
		loop()
		l.o.Logger.Debug("log goroutine ended", slog.String("loop", name))
	})
}

// Recovery is what Open found.
func (l *Log) Recovery() Recovery { return l.recovery }

// First is the position of the first record that is still there, or of the first there will be.
func (l *Log) First() uint64 { return l.geo.first(l.segments.Load().first) }

// Appended is the end of what was appended.
func (l *Log) Appended() uint64 { return l.appended.Load() }

// Written is the end of what outlives the process.
func (l *Log) Written() uint64 { return l.written.Load() }

// Synced is the end of what outlives the machine.
func (l *Log) Synced() uint64 { return l.synced.Load() }

// Committed is the end of what answers may speak of: Synced under SyncAlways, else Written.
func (l *Log) Committed() uint64 {
	if l.o.Policy == SyncAlways {
		return l.synced.Load()
	}
	return l.written.Load()
}

// Err is the failure of the store, nil while there is none. After it no position advances.
func (l *Log) Err() error {
	if p := l.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// ErrClosed is the answer to calls after Close or Abort.
var ErrClosed = errors.New("mmaplog: the log is closed")

// Sync waits until everything that was appended so far is durable.
func (l *Log) Sync() error { return l.SyncTo(context.Background(), l.Appended()) }

// SyncTo waits until everything below pos, which was appended, is durable.
func (l *Log) SyncTo(ctx context.Context, pos uint64) error {
	wait := l.await(pos)
	l.demandSync(pos)
	l.wakeWriter()
	select {
	case err := <-wait:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the log in order: everything durable, a CLEAN_STOP record last. Nobody may append any more; reads
// of what has left the ring get ErrClosed. On a full disk, or after a failure, the log ends without that
// record and the error says why.
func (l *Log) Close() error {
	var err error
	if l.started {
		l.closing.Store(true)
		// Everything before the CLEAN_STOP record first: its promise then covers all of it, and the next
		// start has nothing to rewrite but that record.
		if err = l.Sync(); err == nil {
			l.appendCleanStop()
			err = l.Sync()
		} else if IsShortage(err) && l.Err() == nil {
			l.SyncTo(context.Background(), l.geo.first(l.prepared.Load())) // what there is room for
		}
	}
	l.stop()
	return errors.Join(err, l.release())
}

func (l *Log) appendCleanStop() {
	if l.full.Load() && !l.geo.fits(l.section.head, codec.HeaderBytes) {
		return // it would need a segment that there is no room for
	}
	h := codec.Header{Type: codec.TypeCleanStop, LeaseMs: l.section.leaseMs, WallMs: l.section.wallMs}
	l.appendRecord(&h, nil, nil, 0)
	l.publishAppended(false)
}

// Abort ends the log as the death of the process would: what the system was handed stays, nothing more
// is written. For tests.
func (l *Log) Abort() {
	l.stop()
	l.release()
}

// stop raises the fence and waits for the goroutines.
func (l *Log) stop() {
	l.end(ErrClosed, nil)
	l.group.Wait()
	l.section.closed = true
}

// release closes all files and gives the lock back. The goroutines have ended.
func (l *Log) release() error {
	l.removeMu.Lock() // a removal that is on its way still needs the directory lock
	defer l.removeMu.Unlock()
	var errs []error
	l.segMu.Lock()
	for _, f := range l.feeders {
		errs = append(errs, f.close())
	}
	l.feeders = nil
	table := l.segments.Load()
	l.segments.Store(&segmentTable{first: table.first})
	l.segMu.Unlock()
	for _, s := range table.list {
		s.release()
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
		l.lock = nil
	}
	return errors.Join(errs...)
}
