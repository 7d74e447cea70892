package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// settleWithin is how long a run that ends waits for the answers to its last acks and changes, leaveWithin
	// for that to UNREGISTER. The broker may be gone.
	settleWithin = 3 * time.Second
	leaveWithin  = 2 * time.Second
)

// stop ends the run, which err has ended (nil: its context).
func (r *consumerRun) stop(err error) error {
	if s := r.k.session.Load(); s != nil && s.Err() != nil {
		r.lose(s)
	}
	s := r.beginStop()
	r.await(s)
	hung := r.giveUpHung()
	r.rest()
	r.kept.Wait()
	r.renewals.Wait()
	if s != nil && s.Err() != nil { // the keeper may not have seen it
		r.lose(s)
	}
	r.drain()
	errs := []error{err}
	if hung != nil {
		errs = append(errs, hung)
	}
	if !r.teller.stop(r.opts.StopWithin) {
		errs = append(errs, errors.New("leasemq: OnSettled does not return"))
	}
	switch {
	case s == nil:
	case s.Err() != nil:
		r.lose(s)
	default:
		ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
		defer cancel()
		errs = append(errs, s.Close(ctx))
	}
	r.k.session.Store(nil)
	r.notes.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return firstOrAll(append(errs, r.fenced))
}

// firstOrAll joins errors that are not nil and not said already.
func firstOrAll(errs []error) error {
	var some []error
	for _, err := range errs {
		if err != nil && !slices.ContainsFunc(some, func(e error) bool { return errors.Is(e, err) }) {
			some = append(some, err)
		}
	}
	if len(some) == 1 {
		return some[0]
	}
	return errors.Join(some...)
}

// beginStop gives back what no handler has, and sends idle workers home. It returns the session, if there is
// one.
func (r *consumerRun) beginStop() *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
	r.ready.Broadcast()
	for _, j := range r.buffer {
		r.keeper.drop(&j.moment)
		j.state, j.outcome = jobFinished, outcome{kind: outcomeReturned}
		r.settle(j)
	}
	r.buffer = nil
	if r.session == nil {
		for j := range r.jobs {
			if j.state == jobFinished && !j.settling && !j.renewing {
				r.tell(j, lostBecause(ErrSessionLost, r.fenced))
			}
		}
	}
	return r.session
}

// await waits for the workers to end: handlers that are not cancelled yet have FinishWithin, and then
// StopWithin. s is the session that they work in.
func (r *consumerRun) await(s *Session) {
	if within := r.opts.FinishWithin; s != nil && within > 0 {
		timer := time.NewTimer(within)
		defer timer.Stop()
		select {
		case <-r.gone:
			return
		case <-timer.C:
		case <-s.Lost():
			r.lose(s)
		}
	}
	r.mu.Lock()
	var over []cancellation
	for j := range r.jobs {
		if j.state == jobRunning {
			over = r.cancel(over, j.work, ErrShutdown)
		}
	}
	r.mu.Unlock()
	carryOut(over)
	timer := time.NewTimer(r.opts.StopWithin)
	defer timer.Stop()
	select {
	case <-r.gone:
	case <-timer.C:
	}
}

// giveUpHung gives up handlers that have not returned, and names them.
func (r *consumerRun) giveUpHung() error {
	hung := r.hung()
	if hung == nil {
		return nil
	}
	r.log.Error("handlers do not return", "error", hung)
	return hung
}

func (r *consumerRun) hung() *HungError {
	r.mu.Lock()
	defer r.mu.Unlock()
	var jobs []*job
	for j := range r.jobs {
		if j.state == jobRunning {
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	slices.SortFunc(jobs, func(a, b *job) int { return cmp.Compare(a.seq, b.seq) })
	hung := new(HungError)
	for _, j := range jobs {
		d := j.held
		running := time.Since(j.work.began)
		hung.Handlers = append(hung.Handlers, HungHandler{d.Topic, d.Queue, d.Offset, d.ID, j.d.Token, running})
		if !j.work.givenUp {
			j.work.givenUp = true
			r.busy--
		}
		r.tell(j, fmt.Errorf("%w: the handler has not returned for %v", ErrShutdown, running))
	}
	return hung
}

// drain has what is finished settled.
func (r *consumerRun) drain() {
	timer := time.AfterFunc(settleWithin, r.giveUp)
	defer timer.Stop()
	r.acks.close()
	r.gives.close()
	r.settlers.Wait()
	r.giveUp()
}
