package client

import (
	"container/heap"
	"fmt"
	"time"
)

// keeper is the goroutine that watches the clock: renewals, ends of leases, handlers without progress, and the
// moment until which the session is alive. It ends contexts and starts renewals, and waits for nothing but the
// next moment: whatever the network does, no handler keeps its context beyond its lease.
//
// Some moments move on while they are waited for (the session's with every heartbeat, a handler's with its
// progress). They stay in the heap where they are, and are looked at again when they are reached.
type keeper struct {
	r    *consumerRun
	kick chan struct{} // room for one: the first moment is another one

	// Guarded by consumerRun.mu.
	moments moments
	alive   moment // of the session
}

// stallGrace is how long a handler that has stalled gets to return before what renewals have given it is taken back.
const stallGrace = time.Second

// moment is when something of one job, of one work, or, if neither is set, of the session is due.
type moment struct {
	at    time.Time
	index int // in the heap; 0: not in it
	job   *job
	work  *work
}

// moments is a heap; the first element is not used, so that the zero moment is not in it.
type moments []*moment

func (m moments) Len() int           { return len(m) - 1 }
func (m moments) Less(i, j int) bool { return m[i+1].at.Before(m[j+1].at) }
func (m moments) Swap(i, j int) {
	i, j = i+1, j+1
	m[i], m[j] = m[j], m[i]
	m[i].index, m[j].index = i, j
}
func (m *moments) Push(x any) {
	x.(*moment).index = len(*m)
	*m = append(*m, x.(*moment))
}
func (m *moments) Pop() any {
	last := len(*m) - 1
	x := (*m)[last]
	(*m)[last] = nil
	*m = (*m)[:last]
	x.index = 0
	return x
}

func (k *keeper) init(r *consumerRun) {
	k.r, k.kick, k.moments = r, make(chan struct{}, 1), make(moments, 1)
}

// set has m looked at at the time given. The caller holds r.mu.
func (k *keeper) set(m *moment, at time.Time) {
	m.at = at
	if m.index > 0 {
		heap.Fix(&k.moments, m.index-1)
	} else {
		heap.Push(&k.moments, m)
	}
	if m.index == 1 {
		k.look()
	}
}

// look has the goroutine look at what is new.
func (k *keeper) look() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// drop takes m out. The caller holds r.mu.
func (k *keeper) drop(m *moment) {
	if m.index > 0 {
		heap.Remove(&k.moments, m.index-1)
	}
}

// clear takes all moments out. The caller holds r.mu.
func (k *keeper) clear() {
	for _, m := range k.moments[1:] {
		m.index = 0
	}
	clear(k.moments)
	k.moments = k.moments[:1]
	k.look()
}

// watch begins with a new session. The caller holds r.mu.
func (k *keeper) watch(s *Session) {
	k.set(&k.alive, s.AliveUntil())
	k.look()
}

// keep begins with a new lease of j. The caller holds r.mu.
func (k *keeper) keep(j *job) {
	deadline, length := j.held.leaseTimes()
	j.renewAt = time.Time{}
	if k.r.mayRenew(j) {
		j.renewAt = deadline.Add(-length / 3 * 2)
	}
	k.setJob(j, deadline)
}

// setJob has j looked at at its next renewal, or at the end of its lease.
func (k *keeper) setJob(j *job, deadline time.Time) {
	at := deadline
	if !j.renewAt.IsZero() && j.renewAt.Before(deadline) {
		at = j.renewAt
	}
	k.set(&j.moment, at)
}

func (k *keeper) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s, silent := k.act(timer)
		var lost, answered, restarted <-chan struct{}
		if s != nil {
			lost, restarted = s.Lost(), s.restarted
			if silent {
				answered = s.answered
			}
		}
		select {
		case <-timer.C:
		case <-k.kick:
		case <-lost:
			k.r.lose(s)
		case <-answered:
			k.r.heardOf(s)
		case <-restarted:
			k.r.proveLeases(s)
		case <-k.r.renewing.Done():
			return
		}
	}
}

// dueList is what was found to be done once r.mu is not held.
type dueList struct {
	over  []cancellation
	renew []renewal
	notes []func() // log lines
}

// carryOut ends contexts first. Log lines may be held up by whoever reads them, and are nobody's to wait for.
func (l *dueList) carryOut(r *consumerRun) {
	carryOut(l.over)
	if len(l.notes) > 0 {
		r.notes.Go(func() {
			for _, note := range l.notes {
				note()
			}
		})
	}
}

// act does what is due, sets the timer to the next moment, and returns the session to be watched.
func (k *keeper) act(timer *time.Timer) (s *Session, silent bool) {
	now := time.Now()
	var due dueList
	k.r.mu.Lock()
	for len(k.moments) > 1 && !k.moments[1].at.After(now) {
		k.due(k.moments[1], now, &due)
	}
	wait := time.Hour
	if len(k.moments) > 1 {
		wait = k.moments[1].at.Sub(now)
	}
	s, silent = k.r.session, k.r.silent
	k.r.mu.Unlock()
	timer.Reset(wait)
	due.carryOut(k.r)
	k.r.renewAll(due.renew, now)
	return s, silent
}

// due looks at a moment that is reached. It moves it on, or drops it.
func (k *keeper) due(m *moment, now time.Time, due *dueList) {
	switch {
	case m.job != nil:
		k.jobDue(m.job, now, due)
	case m.work != nil:
		k.workDue(m.work, now, due)
	default:
		k.sessionDue(now, due)
	}
}

func (k *keeper) jobDue(j *job, now time.Time, due *dueList) {
	r := k.r
	deadline, _ := j.held.leaseTimes()
	if !now.Before(deadline) {
		k.drop(&j.moment)
		r.leaseOver(j, lateBy(now, deadline), due)
		return
	}
	if !j.renewAt.IsZero() && !now.Before(j.renewAt) {
		j.renewAt = time.Time{}
		if x, ok := r.renewalOf(j, now, deadline); ok {
			j.renewing = true
			due.renew = append(due.renew, x)
		}
	}
	k.setJob(j, deadline)
}

func lateBy(now, deadline time.Time) error {
	return fmt.Errorf("it ended %v ago by this side's clock", now.Sub(deadline))
}

// leaseOver ends what is done with a job whose lease is over. The caller holds r.mu.
func (r *consumerRun) leaseOver(j *job, why error, due *dueList) {
	j.renewAt = time.Time{}
	switch j.state {
	case jobBuffered:
		r.stats.leasesLost.Add(1)
		r.unbuffer(j)
		if j.lost != nil { // so the broker says
			j.held.forget()
			r.tell(j, why)
			return
		}
		// The broker may have it leased for longer than this side knows: by a renewal whose answer did not come.
		j.state, j.outcome = jobFinished, outcome{kind: outcomeReturned}
		r.settle(j)
	case jobRunning:
		r.stats.leasesLost.Add(1)
		due.over = r.cancel(due.over, j.work, lostBecause(ErrLeaseLost, why))
	}
}

// unbuffer takes j out of the buffer.
func (r *consumerRun) unbuffer(j *job) {
	for i, other := range r.buffer {
		if other == j {
			r.buffer = append(r.buffer[:i], r.buffer[i+1:]...)
			return
		}
	}
}

func (k *keeper) workDue(w *work, now time.Time, due *dueList) {
	if w.stalled {
		k.drop(&w.moment)
		for _, j := range w.jobs {
			if x, ok := k.r.shortening(j, now); ok {
				j.renewing = true
				due.renew = append(due.renew, x)
			}
		}
		return
	}
	at, note := w.progress()
	if end := at.Add(k.r.opts.ProgressTimeout); now.Before(end) {
		k.set(&w.moment, end)
		return
	}
	k.set(&w.moment, now.Add(stallGrace))
	why := fmt.Errorf("%w for %v", ErrStalled, now.Sub(at))
	if note != "" {
		why = fmt.Errorf("%w; its last note: %s", why, note)
	}
	if !w.cancelled {
		k.r.stats.stalled.Add(1)
		d := w.jobs[0].d
		due.notes = append(due.notes, func() {
			k.r.log.Warn("a handler makes no progress", "queue", d.Queue, "offset", d.Offset, "messages", len(w.jobs), "for", now.Sub(at), "note", note)
		})
	}
	w.stalled = true
	due.over = k.r.cancel(due.over, w, why)
	for _, j := range w.jobs {
		j.renewAt = time.Time{}
	}
}

// sessionDue looks whether the session has become silent: then it may have ended at the broker, and others may
// have its messages.
func (k *keeper) sessionDue(now time.Time, due *dueList) {
	r := k.r
	if until := r.session.AliveUntil(); now.Before(until) {
		k.set(&k.alive, until)
		r.ready.Broadcast() // workers that have seen the former moment pass
		return
	}
	k.drop(&k.alive)
	r.silent = true
	why := lostBecause(ErrSessionLost, fmt.Errorf("no heartbeat was answered in time, of a timeout of %v", r.session.Timeout()))
	for j := range r.jobs {
		if j.state == jobRunning {
			due.over = r.cancel(due.over, j.work, why)
		}
	}
	s, n := r.session, len(due.over)
	due.notes = append(due.notes, func() {
		r.log.Warn("no heartbeat is answered", "session", s.ID(), "timeout", s.Timeout(), "handlers", n)
	})
}

// heardOf resumes when a heartbeat of the silent s was answered: it has not ended.
func (r *consumerRun) heardOf(s *Session) {
	until := s.AliveUntil()
	r.mu.Lock()
	again := r.session == s && r.silent && time.Now().Before(until)
	if again {
		r.silent = false
		r.keeper.set(&r.keeper.alive, until)
		r.ready.Broadcast()
		r.signalRoom()
	}
	r.mu.Unlock()
	if again {
		r.log.Info("heartbeats are answered again", "session", s.ID())
	}
}
