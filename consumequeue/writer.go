package consumequeue

import (
	"cmp"
	"slices"
	"time"
)

const (
	// mostUnreported is how many blocks the writer stores before it tells the section, which may wait for room.
	mostUnreported = 256
	// mostRun is how many it stores with one populate.
	mostRun = allocateStep / BlockBytes

	leastPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
)

// writer is the goroutine that stores what was handed over. It is the only user of its fields.
type writer struct {
	x *Index

	work, spare []handOver
	failed      []handOver // to be tried again
	err         error      // why, the newest
	through     uint64     // all hand-overs up to this number were tried

	ok     []handOver // scratch
	pieces []piece    // scratch
	pause  time.Duration
	retry  <-chan time.Time
}

func (x *Index) writeLoop() {
	defer x.wg.Done()
	defer x.failOnPanic("index writer")
	w := &writer{x: x}
	for {
		x.makeFree()
		x.mu.Lock()
		w.work, x.pending = x.pending, w.spare[:0]
		stopped, again := x.stopped, x.retryNow
		x.retryNow = false
		x.mu.Unlock()
		if stopped {
			return
		}
		if again && len(w.failed) > 0 {
			w.again()
		}
		if len(w.work) == 0 {
			w.spare = w.work
			select {
			case <-x.signal[wakeWriter]:
			case <-w.retry:
				w.again()
			case <-x.stop:
				return
			}
			continue
		}
		w.through = w.work[len(w.work)-1].number
		if len(w.failed) == 0 {
			w.begin()
		}
		w.store(w.work)
		w.report()
		w.spare = w.work
	}
}

// again tries what has failed once more.
func (w *writer) again() {
	w.retry = nil
	w.begin()
	items := slices.Clone(w.failed)
	w.failed = w.failed[:0]
	w.store(items)
	w.report()
}

// begin begins a pass, which tries all that is not stored.
func (w *writer) begin() {
	w.x.mu.Lock()
	w.x.begun++
	w.x.mu.Unlock()
}

// store stores items, file by file: whatever has gathered since the last time is sorted as a whole, because finding a file
// not mapped any more costs more than a few blocks do. What fails goes to failed.
func (w *writer) store(items []handOver) {
	slices.SortFunc(items, func(a, b handOver) int {
		if c := cmp.Compare(a.queue.id, b.queue.id); c != 0 {
			return c
		}
		return cmp.Compare(a.from, b.from)
	})
	for len(items) > 0 {
		run := items[:runLength(items)]
		items = items[len(run):]
		w.pieces = w.pieces[:0]
		for _, h := range run {
			first := firstOf(h.from)
			w.pieces = append(w.pieces, piece{h.from, h.block.Entries[h.from-first : h.to-first]})
		}
		if err := w.x.files.write(run[0].queue, w.pieces...); err != nil {
			w.err = err
			w.failed = append(w.failed, run...)
		} else {
			w.ok = append(w.ok, run...)
		}
		if len(w.ok) >= mostUnreported {
			w.release()
			select {
			case <-w.x.stop:
				return
			default:
			}
		}
	}
}

// runLength is how many of the first items can be stored together.
func runLength(items []handOver) int {
	n := 1
	for n < len(items) && n < mostRun && items[n].queue == items[0].queue &&
		items[n].from == items[n-1].to && items[n].from/FileEntries == items[0].from/FileEntries {
		n++
	}
	return n
}

// release passes on to the section what was stored.
func (w *writer) release() {
	if len(w.ok) == 0 {
		return
	}
	x := w.x
	x.mu.Lock()
	x.done = append(x.done, w.ok...)
	x.countInbox()
	x.mu.Unlock()
	x.dirty.Add(-int64(len(w.ok)) * BlockBytes)
	x.stats.blocksStored.Add(uint64(len(w.ok)))
	w.ok = w.ok[:0]
	if x.want.Load() && x.want.Swap(false) {
		x.opt.OnLoad()
	}
}

// report ends a pass: it tells Sync how far it came, and plans another attempt at what has failed.
func (w *writer) report() {
	w.release()
	x := w.x
	stored := w.through
	for _, h := range w.failed {
		stored = min(stored, h.number-1)
	}
	var failure error
	if len(w.failed) > 0 {
		failure = w.err
	}
	x.mu.Lock()
	if x.stopped {
		x.mu.Unlock()
		return // the pass may have been left early
	}
	x.stored = stored
	x.failure = failure
	x.passes = x.begun
	x.moved.Broadcast()
	x.mu.Unlock()

	switch {
	case failure == nil:
		w.pause = 0
	case w.retry == nil:
		w.pause = min(max(2*w.pause, leastPause), mostPause)
		w.retry = x.opt.after(w.pause)
		x.stats.storeErrors.Add(1)
		x.log.Warn("index entries could not be stored; they stay in memory", "blocks", len(w.failed), "retry_in", w.pause, "error", failure)
	}
}

// makeFree keeps some free blocks ready for the section.
func (x *Index) makeFree() {
	x.mu.Lock()
	enough := len(x.free) > freeLow
	x.mu.Unlock()
	if enough {
		return
	}
	blocks := newChunk()
	x.mu.Lock()
	x.addFree(blocks)
	x.mu.Unlock()
}
