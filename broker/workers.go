package broker

import (
	"sync"
	"sync/atomic"
)

// workers run what may wait for the disk, off the event loops. The queue is bounded by the requests that
// connections may have in flight. Safe for concurrent use.
type workers struct {
	mu      sync.Mutex
	more    sync.Cond
	queue   []func()
	stopped bool
	done    sync.WaitGroup
	pending atomic.Int64
	onPanic func(any)
}

// start starts n workers. onPanic is told of a panic in what they run; the worker goes on.
func (w *workers) start(n int, onPanic func(any)) {
	w.more.L = &w.mu
	w.onPanic = onPanic
	for range n {
		w.done.Go(w.run)
	}
}

func (w *workers) add(f func()) {
	w.pending.Add(1)
	w.mu.Lock()
	w.queue = append(w.queue, f)
	w.mu.Unlock()
	w.more.Signal()
}

func (w *workers) run() {
	for {
		w.mu.Lock()
		for len(w.queue) == 0 && !w.stopped {
			w.more.Wait()
		}
		if w.stopped {
			w.mu.Unlock()
			return
		}
		f := w.queue[0]
		w.queue = w.queue[1:]
		w.mu.Unlock()
		w.do(f)
		w.pending.Add(-1)
	}
}

func (w *workers) do(f func()) {
	defer func() {
		if r := recover(); r != nil {
			w.onPanic(r)
		}
	}()
	f()
}

// stop ends the workers; what waits in the queue is forgotten.
func (w *workers) stop() {
	if w.more.L == nil {
		return
	}
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.more.Broadcast()
	w.done.Wait()
}
