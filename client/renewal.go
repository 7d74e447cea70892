package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

const (
	// growth is by how much a renewal asks for more than the one before: a long lease costs nothing, since it
	// ends with its session.
	growth = 8
	// leastRetry is the least time between two attempts at a renewal.
	leastRetry = 100 * time.Millisecond
	// mostPatience is how long an answer is waited for at most, before the attempt counts as failed.
	mostPatience = 10 * time.Second
)

// renewal is one attempt to extend the lease held of job.
type renewal struct {
	job  *job
	held *Delivery
	ask  time.Duration
	left time.Duration // of the lease, when the attempt began
}

// patience is how long the answer is waited for.
func (x *renewal) patience() time.Duration { return min(retryAfter(x.left), mostPatience) }

// retryAfter is how long after a failed renewal the next one is made, when so much of the lease is left.
func retryAfter(left time.Duration) time.Duration { return max(left/3, leastRetry) }

// mayRenew tells whether the lease of j may be extended at all. The caller holds r.mu.
func (r *consumerRun) mayRenew(j *job) bool {
	if r.opts.NoRenewals || j.work != nil && j.work.stalled {
		return false
	}
	return j.held.RenewalsLeft() > 0 && j.held.Budget() > 0
}

// renewalOf is the renewal that is due for j; ok is false when none is worth its while. The caller holds r.mu.
func (r *consumerRun) renewalOf(j *job, now, deadline time.Time) (x renewal, ok bool) {
	if j.renewing || !r.mayRenew(j) {
		return x, false
	}
	left := deadline.Sub(now)
	x = renewal{job: j, held: j.held, left: left}
	if x.ask, ok = j.held.openRenewal(); ok {
		return x, true // the same again: should it have been made, it is not made twice
	}
	if x.ask = r.ladder(j); j.most > 0 {
		x.ask = min(x.ask, j.most)
	}
	// What the answer said to be left was true when that was decided. A request that takes longer to arrive than
	// the last one did would ask for too much, and be refused altogether: so a little less.
	if budget := j.held.Budget(); budget < UnlimitedBudget-left {
		x.ask = min(x.ask, left+budget-min(budget/10, time.Second))
	}
	x.ask = x.ask.Truncate(time.Millisecond)
	return x, x.ask-left > min(left/10, leastRetry)
}

// shortening is the change that takes back what renewals have given a handler that has stalled since: its message
// is free after the length of a lease, should it not even return. ok is false when there is nothing to take back,
// or a renewal is under way, which sees to it when it ends. The caller holds r.mu.
func (r *consumerRun) shortening(j *job, now time.Time) (x renewal, ok bool) {
	if j.work == nil || !j.work.stalled || j.renewing || j.state != jobRunning || j.held.session != r.session {
		return x, false
	}
	deadline, _ := j.held.leaseTimes()
	length := r.leaseLength(j)
	x = renewal{job: j, held: j.held, ask: length, left: deadline.Sub(now)}
	return x, x.left > length
}

// proveLeases has the broker, which has been started anew, confirm the leases of s that a crash may have taken: the
// record of a first grant may trail its answer. Asking for what is left anyway costs nothing of the budget. If the grant
// was lost and nobody else has the message, it stands again; if somebody has, the handler is told at once, and not
// when its lease is to be renewed, which may be hours away.
func (r *consumerRun) proveLeases(s *Session) {
	var due []renewal
	now := time.Now()
	r.mu.Lock()
	for j := range r.jobs {
		d := j.held
		if d.session != s || j.state == jobFinished || j.renewing || d.Attempt > 1 || !d.unproven(s.brokerEpoch.Load()) {
			continue
		}
		deadline, _ := d.leaseTimes()
		x := renewal{job: j, held: d, left: deadline.Sub(now)}
		if x.ask = x.left.Truncate(time.Millisecond); x.ask >= protocol.MinInvisibleMs*time.Millisecond {
			j.renewing = true
			due = append(due, x)
		}
	}
	r.mu.Unlock()
	r.renewAll(due, now)
}

// unproven tells whether the broker, in the epoch given, has not yet been heard to know the lease.
func (d *Delivery) unproven(epoch uint32) bool {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	return d.ordinal == 0 && !d.open.is && uint32(d.Token>>32) < epoch
}

// leaseLength is how long the lease of j is without renewals.
func (r *consumerRun) leaseLength(j *job) time.Duration {
	if r.opts.Invisible > 0 {
		return r.opts.Invisible
	}
	return j.held.session.Invisible()
}

// ladder is how long the next renewal of j is by itself: the first one 8 times the lease, the next 64 times ...
func (r *consumerRun) ladder(j *job) time.Duration {
	s := j.held.session
	most := s.MaxInvisible()
	if most <= 0 {
		most = protocol.MaxInvisibleMs * time.Millisecond
	}
	length := r.leaseLength(j)
	for range j.renewed + 1 {
		if length = min(length, most) * growth; length >= most {
			return most
		}
	}
	return length
}

// noteLeft notes what a refused renewal says to be left.
func (d *Delivery) noteLeft(r *SettleResult) {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	d.renewalsLeft, d.budget = r.RenewalsLeft, r.Budget
}

// openRenewal is the length of a renewal of which it is not known whether it was made.
func (d *Delivery) openRenewal() (time.Duration, bool) {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	return milliseconds(d.open.invisibleMs), d.open.is && d.open.cause == CauseRenew
}

// renewAll begins list, in as few calls as may be: but none waits less than half as long as its lease would let it,
// only because another one is nearer to its end.
func (r *consumerRun) renewAll(list []renewal, now time.Time) {
	slices.SortFunc(list, func(a, b renewal) int { return cmp.Compare(a.patience(), b.patience()) })
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].patience() <= 2*list[0].patience() {
			n++
		}
		part := list[:n]
		list = list[n:]
		r.renewals.Go(func() { r.renew(part, now) })
	}
}

// renew makes one call for list, which is of one session.
func (r *consumerRun) renew(list []renewal, began time.Time) {
	s := list[0].held.session
	ctx, cancel := context.WithTimeout(r.renewing, list[0].patience())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	changes := make([]Change, len(list))
	for i := range list {
		changes[i] = Change{Delivery: list[i].held, Cause: CauseRenew, Invisible: list[i].ask}
	}
	results, err := s.ChangeInvisible(ctx, changes)
	if results == nil {
		results = slices.Repeat([]SettleResult{{Err: err}}, len(list))
	}
	var due dueList
	var failed error
	r.mu.Lock()
	for i := range list {
		r.renewed(&list[i], &results[i], began, &due)
		if err := results[i].Err; err != nil && !leaseOver(err) {
			failed = err
		}
	}
	r.mu.Unlock()
	due.carryOut(r)
	r.renewAll(due.renew, time.Now())
	if failed != nil && s.Err() == nil {
		r.log.Warn("renewals failed", "session", s.ID(), "leases", len(list), "error", failed)
	}
}

// renewed notes what became of an attempt. The caller holds r.mu.
func (r *consumerRun) renewed(x *renewal, result *SettleResult, began time.Time, due *dueList) {
	j, err := x.job, result.Err
	j.renewing = false
	if err == nil && x.ask > x.left {
		r.stats.renewals.Add(1)
	}
	switch {
	case j.told:
		return
	case j.held != x.held: // reclaimed meanwhile
		if j.state != jobFinished && j.held.session == r.session {
			r.keeper.keep(j)
		}
	case j.state == jobFinished: // whatever it said: the message was handled
	case err == nil:
		if x.ask > x.left {
			j.renewed++
		}
		if j.held.session == r.session && r.session.Err() == nil {
			r.keeper.keep(j)
			if again, ok := r.shortening(j, time.Now()); ok { // it has stalled meanwhile
				j.renewing = true
				due.renew = append(due.renew, again)
			}
		}
	case errors.Is(err, ErrRenewLimit): // it asked for too much, or nothing is left
		j.held.noteLeft(result)
		r.retryRenewal(x, err, began)
	case leaseOver(err):
		j.lost = err
		r.keeper.drop(&j.moment)
		r.leaseOver(j, err, due)
	default:
		if errors.Is(err, ErrInvalid) {
			j.most = result.Budget // the group's rules have changed, and this is what they allow now
		}
		r.stats.renewalsFailed.Add(1)
		r.retryRenewal(x, err, began)
	}
	r.settle(j)
}

// retryRenewal plans the next attempt after one that failed and said nothing of the lease. One that was not
// answered in its time has waited already. The caller holds r.mu.
func (r *consumerRun) retryRenewal(x *renewal, err error, began time.Time) {
	j := x.job
	if j.moment.index == 0 || j.held.session != r.session || !r.mayRenew(j) { // the lease is over, or the session is
		return
	}
	now := time.Now()
	deadline, _ := j.held.leaseTimes()
	if j.renewAt = now.Add(retryAfter(deadline.Sub(now))); errors.Is(err, context.DeadlineExceeded) {
		j.renewAt = began.Add(retryAfter(x.left))
	}
	r.keeper.setJob(j, deadline)
}
