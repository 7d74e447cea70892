package client

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// teller calls OnSettled, one message at a time, on a goroutine that nothing else waits for.
type teller struct {
	r       *consumerRun
	call    func(d *Delivery, err error) // may be nil
	stopped chan struct{}

	// Guarded by consumerRun.mu.
	queue   []told
	calling bool
	closed  bool
	wake    *sync.Cond
}

type told struct {
	d   *Delivery
	err error
}

func (t *teller) init(call func(*Delivery, error), r *consumerRun) {
	t.r, t.call, t.stopped, t.wake = r, call, make(chan struct{}), sync.NewCond(&r.mu)
}

// add queues a message to be told of. The caller holds r.mu.
func (t *teller) add(d *Delivery, err error) {
	if t.call != nil {
		t.queue = append(t.queue, told{d, err})
		t.wake.Signal()
	}
}

// behind is how many messages are still to be told of. The caller holds r.mu.
func (t *teller) behind() int {
	if t.calling {
		return len(t.queue) + 1
	}
	return len(t.queue)
}

func (t *teller) run() {
	stopped := false
	defer func() {
		if !stopped { // OnSettled has ended the goroutine
			go t.run()
		}
	}()
	for {
		x, ok := t.next()
		if !ok {
			break
		}
		t.tell(x)
	}
	stopped = true
	close(t.stopped)
}

// next waits for a message; ok is false when there are no more.
func (t *teller) next() (x told, ok bool) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.calling {
		t.calling = false
		t.r.signalRoom()
	}
	for len(t.queue) == 0 {
		if t.closed {
			return x, false
		}
		t.wake.Wait()
	}
	x = t.queue[0]
	t.queue[0] = told{}
	t.queue = t.queue[1:]
	t.calling = true
	return x, true
}

func (t *teller) tell(x told) {
	defer func() {
		if v := recover(); v != nil {
			t.r.log.Error("panic in OnSettled", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
	}()
	t.call(x.d, x.err)
}

// stop has the rest told, and waits for that; false: it took longer than it may.
func (t *teller) stop(within time.Duration) bool {
	t.r.mu.Lock()
	t.closed = true
	t.wake.Signal()
	t.r.mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-t.stopped:
		return true
	case <-timer.C:
		return false
	}
}
