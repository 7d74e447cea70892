package netserver

import "sync/atomic"

// wake is the state behind a loop's wake function.
//
//	idle --wakeUp--> queued --the loop runs it--> running --done--> idle
//	                                                 |
//	                                                 wakeUp--> again --done--> queued, deferred
//
// One execute is made on the way from idle to queued, so any number of calls before the run cost one.
//
// A wake that comes during the run must lead to another run, but not from within: the event loop runs its
// tasks until the queue is empty, sockets come after that, and with wakes that keep coming it would not
// look at a socket again. So the run is deferred, to whichever comes first: the end of the next
// traffic of the loop (there are sockets to serve, and one was served), or the ticker goroutine
// putting it onto the loop (the goroutine gets the processor when the loop has nothing to do). Either way
// the sockets were polled between two runs, and no run waits for longer than it must.
type wake struct {
	state    atomic.Int32
	deferred bool        // loop-only: the next traffic is to run it
	handOn   atomic.Bool // the ticker is to put it onto the loop
}

const (
	wakeIdle int32 = iota
	wakeQueued
	wakeRunning
	wakeAgain
)

// wakeUp asks for a run of Handler.Wake. Any goroutine may call it.
func (l *loop) wakeUp() {
	for {
		switch l.wake.state.Load() {
		case wakeIdle:
			if l.wake.state.CompareAndSwap(wakeIdle, wakeQueued) {
				l.execute(l.entries.wake)
				return
			}
		case wakeRunning:
			if l.wake.state.CompareAndSwap(wakeRunning, wakeAgain) {
				return
			}
		default: // queued or again: a run is to come that will see what the caller did
			return
		}
	}
}

// onWake is what execute runs. The traffic of the loop may have run the wake already.
func (l *loop) onWake() {
	l.enter()
	defer l.leave()
	if l.wake.state.Load() == wakeQueued {
		l.runWake()
	}
}

// wakeIfDeferred runs a deferred wake at the end of a traffic.
func (l *loop) wakeIfDeferred() {
	if l.wake.deferred {
		l.runWake()
	}
}

func (l *loop) runWake() {
	l.wake.deferred = false
	l.wake.state.Store(wakeRunning)
	l.counters.wakes.Add(1)
	if l.handler != nil {
		l.call(nil, "Wake", l.handler.Wake)
		l.retryStalled()
	}
	if !l.wake.state.CompareAndSwap(wakeRunning, wakeIdle) {
		l.wake.deferred = true
		l.wake.state.Store(wakeQueued)
		l.wake.handOn.Store(true)
		l.server.kick()
	}
}
