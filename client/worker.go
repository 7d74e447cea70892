package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"
)

type jobState uint8

const (
	jobBuffered jobState = iota
	jobRunning
	jobFinished
)

// job is one message from its pop until it is told of. All but d and seq is guarded by consumerRun.mu.
type job struct {
	d   *Delivery // as the handler knows it
	seq uint64    // in the order of the pops

	state   jobState
	held    *Delivery  // the lease that it is settled by: d, until that was reclaimed
	gone    *Reclaimed // the lease is over and was not reclaimed: why
	lost    error      // the broker has said that the lease is over
	work    *work      // nil: no handler had it
	outcome outcome    // once finished

	settling bool // in a settler's call
	sent     bool // it was in one at least once, and the answer may have been missed
	told     bool

	moment   moment
	renewAt  time.Time     // when to renew next; zero: not, or a renewal is under way
	renewed  int           // renewals of held that were granted
	most     time.Duration // the longest renewal, where the session does not know better; 0: it does
	renewing bool
}

// leased makes d the lease of j.
func (j *job) leased(d *Delivery) {
	j.held, j.gone, j.lost, j.renewed = d, nil, nil, 0
}

// work is what one call of the handler gets.
type work struct {
	r      *consumerRun
	jobs   []*job
	one    [1]*job // where jobs of one lies
	ctx    context.Context
	end    context.CancelCauseFunc
	began  time.Time
	moment moment // of the next look at its progress
	marked atomic.Pointer[progressMark]

	// Guarded by consumerRun.mu.
	cancelled bool
	stalled   bool // its leases are not renewed any more
	givenUp   bool // it was told as hung; what it returns does not count
}

type progressMark struct {
	at   time.Time
	note string
}

// noteProgress is called by the handler. It returns the session that holds d by now.
func (w *work) noteProgress(d *Delivery, note string) *Session {
	w.marked.Store(&progressMark{time.Now(), note})
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	for _, j := range w.jobs {
		if j.d == d {
			return j.held.session
		}
	}
	return d.session
}

// progress is when the work last told of progress, and what it said.
func (w *work) progress() (at time.Time, note string) {
	if m := w.marked.Load(); m != nil {
		return m.at, m.note
	}
	return w.began, ""
}

// cancellation is a context to be ended, once consumerRun.mu is not held: what watches it runs then.
type cancellation struct {
	work *work
	why  error
}

// cancel adds w to list, unless it was cancelled before. The caller holds r.mu.
func (r *consumerRun) cancel(list []cancellation, w *work, why error) []cancellation {
	if w.cancelled {
		return list
	}
	w.cancelled = true
	r.stats.cancelled.Add(1)
	return append(list, cancellation{w, why})
}

func carryOut(list []cancellation) {
	for _, c := range list {
		c.work.end(c.why)
	}
}

// work is a worker: it calls the handler for one work after the other until the run stops.
func (r *consumerRun) work() {
	stopped := false
	defer func() {
		if !stopped { // a handler has ended the goroutine
			go r.work()
		}
	}()
	for {
		w := r.next()
		if w == nil {
			break
		}
		r.handle(w)
	}
	stopped = true
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.workers--; r.workers == 0 {
		close(r.gone)
	}
}

// next waits for something to do; nil: the run stops.
func (r *consumerRun) next() *work {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.stopping && !r.anyToHandOut(time.Now()) {
		r.ready.Wait()
	}
	if r.stopping {
		return nil
	}
	n := min(len(r.buffer), r.batch)
	w := &work{r: r, began: time.Now()}
	w.jobs = append(w.one[:0], r.buffer[:n]...)
	if clear(r.buffer[:n]); n == len(r.buffer) {
		r.buffer = r.buffer[:0:0]
	} else {
		r.buffer = r.buffer[n:]
	}
	w.ctx, w.end = context.WithCancelCause(r.labelled)
	w.moment.work = w
	for _, j := range w.jobs {
		j.state, j.work, j.d.work = jobRunning, w, w
	}
	r.busy++
	if t := r.opts.ProgressTimeout; t > 0 {
		r.keeper.set(&w.moment, w.began.Add(t))
	}
	return w
}

// anyToHandOut tells whether a message is there that a handler may have. It looks at the clock itself: when the process was
// stopped, a worker may come before the keeper, and the session or a lease may be long over. What would be next and
// has no lease any more is let go. The caller holds r.mu.
func (r *consumerRun) anyToHandOut(now time.Time) bool {
	if r.silent || r.session == nil || !now.Before(r.session.AliveUntil()) {
		return false // the keeper wakes the workers when it has looked at the session
	}
	for i := 0; i < min(len(r.buffer), r.batch); {
		j := r.buffer[i]
		deadline, _ := j.held.leaseTimes()
		if now.Before(deadline) {
			i++
			continue
		}
		r.keeper.drop(&j.moment)
		r.leaseOver(j, lateBy(now, deadline), new(dueList))
	}
	return len(r.buffer) > 0
}

// handle calls the handler. It does not come back when the handler ends the goroutine, but finishes the
// work then, too.
func (r *consumerRun) handle(w *work) {
	pprof.SetGoroutineLabels(w.ctx)
	var err error
	returned := false
	defer func() {
		if !returned {
			err = r.fault(w, recover())
		}
		outcomes := outcomesOf(err, context.Cause(w.ctx), len(w.jobs))
		w.end(context.Canceled)
		r.finish(w, outcomes)
	}()
	err = r.call(w)
	returned = true
}

// fault is the error of a handler that did not return: v is what it panicked with.
func (r *consumerRun) fault(w *work, v any) error {
	if v == nil {
		return errGoexit
	}
	r.stats.panics.Add(1)
	d := w.jobs[0].d
	r.log.Error("panic in a handler", "queue", d.Queue, "offset", d.Offset, "messages", len(w.jobs), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	return &panicError{v}
}

// finish has done with w what its handler asked for.
func (r *consumerRun) finish(w *work, outcomes []outcome) {
	r.stats.handled.Add(uint64(len(w.jobs)))
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.givenUp {
		return
	}
	r.busy--
	r.keeper.drop(&w.moment)
	for i, j := range w.jobs {
		r.keeper.drop(&j.moment)
		j.state, j.outcome = jobFinished, outcomes[i]
		r.settle(j)
	}
	r.signalRoom()
}

// settle moves a finished job on, wherever it goes next. The caller holds r.mu.
func (r *consumerRun) settle(j *job) {
	switch {
	case j.state != jobFinished || j.told || j.settling:
	case j.gone != nil:
		r.tell(j, j.unreclaimed())
	case j.lost != nil && !j.outcome.acks():
		r.tell(j, lostBecause(ErrLeaseLost, j.lost))
	case j.renewing && !j.outcome.acks(): // the renewal settles it when it has ended
	case r.session == nil || j.held.session != r.session || r.session.Err() != nil:
		if r.stopping {
			r.tell(j, lostBecause(ErrSessionLost, j.held.session.Err()))
		} // else adopt settles it
	case j.outcome.acks():
		r.acks.add(j)
	default:
		r.gives.add(j)
	}
}

// unreclaimed is why j could not be settled: its session was lost, and its receipt was not reclaimed. An ack
// that was sent, and of which the answer was lost with the session, may have been what settled the message.
func (j *job) unreclaimed() error {
	if x := j.gone; j.sent && j.outcome.acks() && errors.Is(x.Err, ErrAlreadySettled) && x.Token == j.held.Token {
		return nil
	}
	return lostBecause(ErrSessionLost, j.gone.Err)
}

// tell ends a job; err is nil when what its outcome asked for was done. The caller holds r.mu.
func (r *consumerRun) tell(j *job, err error) {
	j.told = true
	delete(r.jobs, j)
	r.keeper.drop(&j.moment)
	if err == nil {
		r.stats.done(j.outcome.kind)
	}
	if j.work != nil {
		if err != nil {
			r.stats.refused.Add(1)
		}
		r.teller.add(j.d, err)
	}
	r.signalRoom()
}

// signalRoom has Run's goroutine look whether there is room for more messages.
func (r *consumerRun) signalRoom() {
	select {
	case r.room <- struct{}{}:
	default:
	}
}
