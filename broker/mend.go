package broker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
)

// Mending the index. An index entry that is missing, or that names another record than its message's, says nothing about
// the message: the log has it. So the message waits, and the log is read for where the messages of its queue really lie. What
// a scan of the whole log has not found is damaged, and only that is passed.

const (
	// mendEveryMs is how often the log is read for the same queue at most. What is asked for meanwhile waits.
	mendEveryMs = 60_000
	// mendPauseMs is the pause after a scan that failed; it doubles up to mendEveryMs.
	mendPauseMs = 5_000
	// mendSlice is how many queues are looked at in one section.
	mendSlice = 64
)

type queueName struct {
	topic uint32
	queue uint16
}

// offsetRange is the offsets from from up to to, to not among them.
type offsetRange struct{ from, to uint64 }

// mender knows the queues whose index was wrong. Safe for concurrent use. Its lock may be taken inside the section, and
// the section must not be entered with it.
type mender struct {
	busy    atomic.Bool // as running; read without mu
	mu      sync.Mutex
	queues  map[queueName]*mending
	running bool
	stopped bool
	cancel  context.CancelFunc // of the running one
	done    sync.WaitGroup
}

// mending is what is known of one such queue. Guarded by mender.mu.
type mending struct {
	wanted   bool
	reading  bool  // the log is being read for it
	dueMs    int64 // lease clock: not before then
	failures int   // in a row
	// lost has the messages, in order, that the newest scan of the log that succeeded has not found. They are no more than there is
	// damage in the log.
	lost []offsetRange
}

// indexWrong has the index of a queue compared with the log, in the background: at once, or when it is due. While that is being done
// already it does nothing, because everybody looks again afterwards. Any goroutine may call it.
func (e *Engine) indexWrong(topic uint32, q uint16) {
	m := &e.mender
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues == nil {
		m.queues = map[queueName]*mending{}
	}
	name := queueName{topic, q}
	x := m.queues[name]
	if x == nil {
		x = &mending{dueMs: e.lease.now()}
		m.queues[name] = x
	}
	if x.reading {
		return
	}
	x.wanted = true
	if x.dueMs <= e.lease.now() {
		e.startMending()
	}
}

// mendDue begins what has become due. Any goroutine may call it, about once a second.
func (e *Engine) mendDue() {
	m := &e.mender
	m.mu.Lock()
	defer m.mu.Unlock()
	nowMs := e.lease.now()
	for _, x := range m.queues {
		if x.wanted && x.dueMs <= nowMs {
			e.startMending()
			return
		}
	}
}

// startMending starts the goroutine that mends, if none runs. It needs mender.mu.
func (e *Engine) startMending() {
	m := &e.mender
	if m.running || m.stopped || e.ctx.Err() != nil || e.failed.Load() {
		return
	}
	ctx, cancel := context.WithCancel(e.ctx)
	m.running, m.cancel = true, cancel
	m.busy.Store(true)
	m.done.Go(func() {
		defer cancel()
		defer func() {
			if r := recover(); r != nil {
				e.fail(fmt.Errorf("panic while the queue index was mended: %v\n%s", r, debug.Stack()))
			}
		}()
		for {
			names := m.take(ctx, e.lease.now())
			if len(names) == 0 {
				return
			}
			e.mend(ctx, names)
		}
	})
}

// stop ends the mending for good, and waits for it.
func (m *mender) stop() {
	m.mu.Lock()
	m.stopped = true
	if m.cancel != nil {
		m.cancel()
	}
	m.mu.Unlock()
	m.done.Wait()
}

// take gives the queues that are due. When there are none the goroutine has to end.
func (m *mender) take(ctx context.Context, nowMs int64) (names []queueName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, x := range m.queues {
		switch {
		case x.dueMs > nowMs || ctx.Err() != nil:
		case x.wanted:
			x.wanted, x.reading, x.dueMs = false, true, nowMs+mendEveryMs
			names = append(names, name)
		case len(x.lost) == 0:
			delete(m.queues, name) // nothing was wrong for long enough
		}
	}
	if len(names) == 0 {
		m.running = false
		m.busy.Store(false)
	}
	return names
}

// mend reads the log for queues.
func (e *Engine) mend(ctx context.Context, names []queueName) {
	nowMs := e.lease.now()
	queues, scanErr := e.compareWithLog(ctx, names)
	entries, lost := 0, uint64(0)
	var failed []error
	m := &e.mender
	m.mu.Lock()
	for _, name := range names {
		x, q := m.queues[name], queues[name]
		x.reading = false
		if q == nil || q.gone {
			delete(m.queues, name)
			continue
		}
		entries += q.stored
		if err := errors.Join(scanErr, q.err); err != nil {
			failed = append(failed, err)
			x.wanted = true
			x.dueMs = nowMs + min(int64(mendPauseMs)<<min(x.failures, 8), mendEveryMs)
			x.failures++
			continue
		}
		x.failures, x.lost = 0, q.lost
		for _, r := range q.lost {
			lost += r.to - r.from
		}
	}
	m.mu.Unlock()
	e.stats.indexMended.Add(uint64(entries))
	if ctx.Err() != nil {
		return
	}
	e.logger.Warn("the queue index was wrong and was compared with the log", "queues", len(names), "entries stored again", entries, "damaged messages", lost)
	if len(failed) > 0 {
		e.logger.Error("the queue index could not be compared with the log; that is tried again", "queues", len(failed), "error", failed[0])
	}
	for some := range slices.Chunk(names, mendSlice) {
		e.lookAtQueues(some)
	}
}

// isLost tells whether the log was read for a message and has it no more.
func (e *Engine) isLost(topic uint32, q uint16, offset uint64) bool {
	m := &e.mender
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.queues[queueName{topic, q}]
	if x == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(x.lost, offset, func(r offsetRange, offset uint64) int {
		switch {
		case r.to <= offset:
			return -1
		case r.from > offset:
			return 1
		}
		return 0
	})
	return found
}

// lookAtQueues has pops look at queues again.
func (e *Engine) lookAtQueues(names []queueName) {
	e.enter()
	defer e.leave()
	for _, name := range names {
		for _, sub := range e.fold.leases.SubsOf(name.topic) {
			if int(name.queue) < e.fold.leases.Queues(sub) {
				e.markActive(sub, name.queue)
			}
		}
	}
	e.settleDown(nil)
}
