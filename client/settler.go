package client

import (
	"context"
	"errors"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// settler sends what handlers have decided to the broker: one call at a time, and what is decided meanwhile
// gathers for the next. There are two, one for acks and one for messages that are given back. (Neither waits for
// a renewal that is under way: an ack may overtake it, and consumerRun.settle keeps back what may not.)
type settler struct {
	r    *consumerRun
	send func(context.Context, *settlement)
	wake chan struct{} // room for one

	// Guarded by consumerRun.mu.
	queue  []*job
	closed bool // nothing more comes
}

// settlement is one call of a settler. It has copies of what may change in the jobs meanwhile.
type settlement struct {
	session  *Session
	jobs     []*job
	held     []*Delivery
	outcomes []outcome
	errs     []error         // what became of each
	most     []time.Duration // the longest delay that the broker lets it have, where it says so
}

func (q *settler) init(r *consumerRun, send func(context.Context, *settlement)) {
	q.r, q.send, q.wake = r, send, make(chan struct{}, 1)
}

// add queues j. The caller holds r.mu.
func (q *settler) add(j *job) {
	q.queue = append(q.queue, j)
	q.signal()
}

func (q *settler) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close ends the settler when its queue is empty.
func (q *settler) close() {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	q.closed = true
	q.signal()
}

func (q *settler) run() {
	var wait backOff
	for {
		c, closed := q.take()
		switch {
		case c == nil && closed:
			return
		case c == nil:
			<-q.wake
			continue
		}
		ctx, cancel := context.WithTimeout(q.r.settling, answerPatience)
		stop := context.AfterFunc(c.session.ctx, cancel)
		q.send(ctx, c)
		stop()
		cancel()
		if again := q.settled(c); again {
			pause(q.r.settling, wait.next())
		} else {
			wait.reset()
		}
	}
}

// take makes a call of what has gathered; nil: nothing has.
func (q *settler) take() (c *settlement, closed bool) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	n := min(len(q.queue), protocol.MaxAckEntries)
	if n == 0 {
		return nil, q.closed
	}
	c = &settlement{
		session: q.r.session,
		jobs:    append([]*job(nil), q.queue[:n]...), held: make([]*Delivery, n),
		outcomes: make([]outcome, n), errs: make([]error, n), most: make([]time.Duration, n),
	}
	for i, j := range c.jobs {
		j.settling, j.sent = true, true
		c.held[i], c.outcomes[i] = j.held, j.outcome
	}
	if clear(q.queue[:n]); n == len(q.queue) {
		q.queue = q.queue[:0]
	} else {
		q.queue = q.queue[n:]
	}
	return c, false
}

// sendAcks is the send of the acks.
func sendAcks(ctx context.Context, c *settlement) {
	entries := make([]AckEntry, len(c.held))
	for i, d := range c.held {
		entries[i] = AckEntry{Receipt: d.Receipt, Duplicate: c.outcomes[i].kind == outcomeDuplicate}
	}
	results, err := c.session.AckReceipts(ctx, entries)
	c.note(results, err)
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	for i, d := range c.held {
		c.session.noteAck(d, c.errs[i])
	}
}

// sendChanges is the send of what is given back.
func sendChanges(ctx context.Context, c *settlement) {
	changes := make([]Change, len(c.held))
	most := c.session.MaxInvisible()
	for i, d := range c.held {
		o := &c.outcomes[i]
		changes[i] = Change{Delivery: d, Cause: CausePostponed, Invisible: o.delay, Reason: o.reason}
		if o.kind == outcomeFailed {
			changes[i].Cause = CauseFailed
		} else if most > 0 {
			changes[i].Invisible = min(o.delay, most)
		}
		if changes[i].Invisible > 0 { // the least that a message can be asked to wait for
			changes[i].Invisible = max(changes[i].Invisible, protocol.MinInvisibleMs*time.Millisecond)
		}
	}
	c.note(c.session.ChangeInvisible(ctx, changes))
}

// note takes the outcome of a call of the session.
func (c *settlement) note(results []SettleResult, err error) {
	for i := range c.errs {
		if c.errs[i] = err; results != nil {
			c.errs[i], c.most[i] = results[i].Err, results[i].Budget
		}
	}
}

// settled moves the jobs of c on. again: some are to be sent again, after a pause.
func (q *settler) settled(c *settlement) (again bool) {
	r := q.r
	r.mu.Lock()
	defer r.mu.Unlock()
	var repeat []*job
	for i, j := range c.jobs {
		j.settling = false
		err := c.errs[i]
		switch {
		case j.told:
		case err == nil || leaseOver(err):
			r.tell(j, err)
		case c.session.Err() != nil:
			r.settle(j)
		case errors.Is(err, ErrInvalid) && c.most[i] > 0 && c.most[i] < j.outcome.delay:
			j.outcome.delay = c.most[i] // the group's rules have changed
			repeat = append(repeat, j)
		case r.settling.Err() == nil && worthAnother(err, c.held[i].Deadline()):
			repeat = append(repeat, j)
		default:
			r.tell(j, err)
		}
	}
	if len(repeat) > 0 {
		q.queue = append(repeat, q.queue...)
	}
	return len(repeat) > 0
}

// worthAnother tells whether an ack or a release of a lease until deadline is to be sent again. One that may have been carried out is, as
// long as the session lives, since the answer then tells; one that was refused for now only while the lease runs.
func worthAnother(err error, deadline time.Time) bool {
	e, ok := errors.AsType[*StatusError](err)
	if !ok {
		return errors.Is(err, context.DeadlineExceeded)
	}
	switch e.Status {
	case protocol.StoreFailed:
		return true
	case protocol.StoreFull, protocol.Draining, protocol.LimitExceeded, protocol.Internal:
		return time.Now().Before(deadline)
	}
	return false
}
