// Package consumequeue is the index of each queue over the log: offset -> where the record lies, how long it is, and what
// must be known of it before it is read.
//
// The index is derived: the log is the truth, and recovery rebuilds what is missing. Its entries lie in sparse mapped
// files of 1 MiB (docs/format-consumequeue.md). What this package is about is that the broker's sequencing section
// never waits for those files:
//
//	section           Append, Block: memory only          | index lists, under mu
//	index writer      full and idle tails -> files        | pending ->, -> done
//	loader            files -> blocks that were asked for | requests ->, -> loaded
//	sweeper           files that are not needed any more  | drops, begins ->
//	Repair            lost entries -> files               | repairs ->
//	any goroutine     Read, Search, Repair (may block), Kick, Sync, Stats
//
// The tail of each queue is a block of 4 KiB in memory. When it is full, or idle for a second, it is handed to the
// writer, which stores it into its file (allocate, populate, copy); then it is clean, and kept as long as there is
// room. Blocks that are looked up and not resident are loaded. Results reach the section through lists that it
// takes over in Poll.
//
// # Errors
//
// A failed store (the disk is full) or load is logged, counted, and tried again with growing pauses, for ever: the
// blocks stay in memory. DirtyFree falls meanwhile, so that sends are held back, and no entry is lost.
//
// A part of a file that the disk can't read counts as lost; a file that can't be stored to for that reason, or whose flush
// failed, is made anew from what can be read of it.
//
// A file that has lost entries is found at the start, as far as that is cheap (FinishRecovery), or when they are looked
// at: then Options.OnHole is told, and the broker gives them to Repair, out of the log.
//
// # Locks
//
// The section's lock comes before Index.mu. Index.mu, files.storeMu and files.readMu are never held together. The background
// goroutines never take the section's lock. Index.mu is never held during a system call or a touch of a
// mapping, so the section can take it: it is held for the time of a copy of a block or some list operations.
package consumequeue

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// idleMs is after how long without an append a tail is given back.
	idleMs = 1000
	// clockStepMs is how exactly the time of the last append is known.
	clockStepMs = 250
	// mostIdle bounds how many tails a Tick hands over, mostDone how many finished hand-overs a Poll takes over. The rest
	// waits for the next.
	mostIdle = 2048
	mostDone = 512
	// freeWant is the number of free blocks below which the section looks for idle ones, freeLow that below which the writer
	// makes more.
	freeWant = chunkBlocks * 3 / 4
	freeLow  = chunkBlocks / 2
)

// Options has the settings of an index. Zero values stand for the defaults named.
type Options struct {
	Dir string // made if missing

	CacheBytes   int // of clean blocks in memory: 64 MiB
	DirtyBytes   int // of blocks that wait for the writer, see DirtyFree: 64 MiB
	MaxOpenFiles int // mapped (three quarters or more) or open for reading: 512. With more busy queues, more is faster

	// OnLoad is called by the background goroutines when blocks that Block asked for can be taken over, or when
	// DirtyFree has grown after it was low: then the section should call Poll, and whoever was refused may try
	// again. It must not block and must not take the section's lock.
	OnLoad func()
	// OnFail is called if a background goroutine dies of a panic: the index can't go on. Stores and loads that fail are not
	// reported here but logged, counted and tried again.
	OnFail func(error)
	// OnHole is called for each entry in [Begin, End) that turns out to be missing in its file, by the loader before the block
	// can be taken over, and in Read and Search by their caller; each time one is met. See Repair. It must not
	// block and must not take the section's lock.
	OnHole func(topic uint32, queue uint16, offset uint64)

	Logger *slog.Logger // none: nothing is logged

	// For tests.
	OpenFile func(path string, size int64) (File, error) // nil: OpenFile
	readAt   func(f *os.File, b []byte, off int64) (int, error)
	after    func(time.Duration) <-chan time.Time
}

// Index is the index of all queues. The methods say who may call them; see the package comment.
type Index struct {
	opt   Options
	log   *slog.Logger
	files *files
	room  int // clean blocks that may stay
	loads int // loads that may be outstanding

	// Owned by the section.
	clock   int64  // ms, as Tick said, in steps
	visit   uint64 // counts Polls: a block looked up since may be in the section's hands
	tails   queueList
	ring    ring
	loading int                 // blocks asked for and not taken over
	topics  map[uint32][]*Queue // queues of each topic
	nextID  uint64

	lastRecovered *Queue // recovery only

	dirty  atomic.Int64  // bytes handed over and not in files
	want   atomic.Bool   // DirtyFree was low: call OnLoad when it has grown
	inbox  atomic.Int32  // len(done) + len(loaded)
	wakes  atomic.Uint32 // who has work, for Kick: wakeWriter ...
	signal [wakeCount]chan struct{}
	stats  counters

	mu     sync.Mutex
	queues map[queueKey]*Queue // changed by the section under mu, read by it without
	all    []*Queue            // nil where a queue was dropped
	holes  []int               // in all
	table  table
	free   []*Block
	chunks int
	// Lists between the section and the others.
	pending  []handOver // section -> writer
	done     []handOver // writer -> section
	requests []*Block   // section -> loader
	loaded   []*Block   // loader -> section
	repairs  []repair   // Repair -> section
	drops    []uint32   // section -> sweeper
	begins   []*Queue   // section -> sweeper: the begin has left a file behind
	sweeping bool       // the sweeper is at what it has taken
	// What Sync waits for.
	handed  uint64     // hand-overs so far
	stored  uint64     // all hand-overs up to this one are in files
	begun   uint64     // passes of the writer: each is one attempt at all that it has
	passes  uint64     // of these, how many have ended
	failure error      // of the writer's newest pass, nil if nothing failed
	dead    error      // a background goroutine panicked
	moved   *sync.Cond // those above have changed
	// retryNow asks the writer not to wait with what has failed.
	retryNow bool

	stop    chan struct{} // closed by Close and Abort
	stopped bool          // likewise, under mu
	started bool
	wg      sync.WaitGroup
}

type queueKey struct {
	topic uint32
	queue uint16
}

// handOver gives the writer [from, to) of a block. Those entries are not written to any more.
type handOver struct {
	queue    *Queue
	block    *Block
	from, to uint64
	number   uint64 // counts hand-overs from 1
}

const (
	wakeWriter = iota
	wakeLoader
	wakeSweeper
	wakeCount
)

// Open readies an index: next comes recovery (Recover, FinishRecovery), then Start.
func Open(o Options) (*Index, error) {
	if o.Dir == "" {
		return nil, errors.New("consumequeue: no directory")
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.DirtyBytes == 0 {
		o.DirtyBytes = 64 << 20
	}
	if o.MaxOpenFiles == 0 {
		o.MaxOpenFiles = 512
	}
	if o.CacheBytes < 0 || o.DirtyBytes < 0 || o.MaxOpenFiles < 0 {
		return nil, fmt.Errorf("consumequeue: negative limit: cache %d, dirty %d, files %d", o.CacheBytes, o.DirtyBytes, o.MaxOpenFiles)
	}
	if o.OnLoad == nil {
		o.OnLoad = func() {}
	}
	if o.OnFail == nil {
		o.OnFail = func(error) {}
	}
	if o.OnHole == nil {
		o.OnHole = func(uint32, uint16, uint64) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OpenFile == nil {
		o.OpenFile = OpenFile
	}
	if o.readAt == nil {
		o.readAt = (*os.File).ReadAt
	}
	if o.after == nil {
		o.after = time.After
	}
	fs, err := openFiles(&o)
	if err != nil {
		return nil, err
	}
	x := &Index{
		opt:    o,
		log:    o.Logger,
		files:  fs,
		room:   max(o.CacheBytes/BlockBytes, 2),
		topics: map[uint32][]*Queue{},
		queues: map[queueKey]*Queue{},
		table:  newTable((o.CacheBytes + o.DirtyBytes) / BlockBytes),
		stop:   make(chan struct{}),
	}
	x.loads = min(max(x.room/2, 1), 1024)
	x.moved = sync.NewCond(&x.mu)
	for i := range x.signal {
		x.signal[i] = make(chan struct{}, 1)
	}
	x.addFree(newChunk())
	return x, nil
}

// Start ends recovery: the background goroutines begin.
func (x *Index) Start() {
	x.started = true
	x.wg.Add(3)
	go x.writeLoop()
	go x.loadLoop()
	go x.sweepLoop()
}

// Close writes everything to the files, flushes them and ends the goroutines. The section must not be
// running any more. If something could not be written, the next recovery rebuilds it.
func (x *Index) Close() error {
	var err error
	if x.started {
		err = x.Sync()
	}
	x.Abort()
	return err
}

// Abort ends the goroutines and writes nothing more.
func (x *Index) Abort() {
	x.mu.Lock()
	already := x.stopped
	x.stopped = true
	x.moved.Broadcast()
	x.mu.Unlock()
	if already {
		return
	}
	close(x.stop)
	x.wg.Wait()
	x.files.close()
}

// Kick wakes the goroutines for which the section has left work. Call it after every section, without its lock.
func (x *Index) Kick() {
	if x.wakes.Load() == 0 {
		return
	}
	bits := x.wakes.Swap(0)
	for i := range x.signal {
		if bits&(1<<i) != 0 {
			x.rouse(i)
		}
	}
}

func (x *Index) rouse(who int) {
	select {
	case x.signal[who] <- struct{}{}:
	default:
	}
}

// DirtyFree is how many bytes of entries may still be appended before the writer must catch up. Some more is harmless: the
// entries stay in memory. When it was less than half of DirtyBytes, OnLoad is called each time it has grown.
func (x *Index) DirtyFree() int {
	free := x.opt.DirtyBytes - int(x.dirty.Load())
	if free < x.opt.DirtyBytes/2 {
		x.want.Store(true)
		// Look again: had the writer caught up before it could see that we wait, nobody would call.
		free = x.opt.DirtyBytes - int(x.dirty.Load())
	}
	return free
}
