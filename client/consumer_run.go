package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"time"
)

// consumerRun is one call of Run. Its goroutines, and what each waits for:
//
//	Run's own   registers, pops, and ends everything: the broker, room for more messages
//	workers     handlers, and messages to be handled
//	keeper      the next moment; never the network (keeper.go)
//	renewals    one for each call that is under way (renewal.go)
//	acks, gives the broker, one call at a time each (settler.go)
//	teller      OnSettled (teller.go)
//
// Invariants:
//
//  1. A message is a job from its pop until tell; jobs has exactly those. Each is in one state: buffered (in
//     buffer), running (its work's worker has it), finished (has an outcome). tell is called once for each that a
//     handler has had.
//  2. A finished job is in one place: in the queue of a settler, in a settler's call (settling), with a renewal
//     that is under way and must end first, or waiting for the next session.
//  3. Only leases of the current session are in the keeper's heap or in a settler's queue.
//  4. After stopping is set no message is handed out, and no session follows the current one.
//  5. busy is the number of running works, but for those given up.
//
// mu guards everything below it, and the fields of jobs and works that say so. Session.mu may be taken under it.
// Nothing of the user's is called under it, and nothing under it waits.
type consumerRun struct {
	k     *Consumer
	opts  *ConsumerOptions
	stats *consumerCounters
	batch int // most messages of a work
	call  func(*work) error
	log   *slog.Logger

	values   context.Context // the values of Run's context, without its end
	settling context.Context // ends when the settlers are to give up
	giveUp   context.CancelFunc
	renewing context.Context // ends with the keeper
	rest     context.CancelFunc
	room     chan struct{} // room for one signal: there may be room for more messages
	gone     chan struct{} // closed when the last worker has ended

	keeper   keeper
	renewals sync.WaitGroup
	notes    sync.WaitGroup // log lines that nothing waits for but the end of Run
	acks     settler
	gives    settler
	settlers sync.WaitGroup
	teller   teller
	kept     sync.WaitGroup // the keeper

	complained string // the newest cause of trouble that was logged; Run's goroutine only

	mu       sync.Mutex
	session  *Session // nil: between two sessions
	labelled context.Context
	silent   bool // no heartbeat was answered in time: nothing is handed out
	stopping bool
	fenced   error // the session was fenced: that is what Run ends with
	jobs     map[*job]struct{}
	lastSeq  uint64
	buffer   []*job
	ready    *sync.Cond // there may be something for a worker
	busy     int
	workers  int // goroutines
}

func newRun(ctx context.Context, k *Consumer, batch int, call func(*work) error) *consumerRun {
	r := &consumerRun{
		k: k, opts: &k.opts, stats: &k.stats, batch: batch, call: call,
		log:    k.opts.Logger.With("group", k.group, "topic", k.topic, "consumer", k.opts.ConsumerID),
		values: context.WithoutCancel(ctx),
		room:   make(chan struct{}, 1), gone: make(chan struct{}),
		jobs: make(map[*job]struct{}),
	}
	r.ready = sync.NewCond(&r.mu)
	r.settling, r.giveUp = context.WithCancel(context.Background())
	r.renewing, r.rest = context.WithCancel(context.Background())
	r.keeper.init(r)
	r.acks.init(r, sendAcks)
	r.gives.init(r, sendChanges)
	r.teller.init(k.opts.OnSettled, r)
	return r
}

func (r *consumerRun) start() {
	r.kept.Go(r.keeper.run)
	r.settlers.Go(r.acks.run)
	r.settlers.Go(r.gives.run)
	go r.teller.run()
	r.workers = r.opts.Workers
	for range r.workers {
		go r.work()
	}
}

// serve takes messages, in one session after the other, until ctx ends (nil) or nothing more can be done.
func (r *consumerRun) serve(ctx context.Context) error {
	var before *Session
	var wait backOff
	for {
		s, err := r.register(ctx, before, &wait)
		if s == nil {
			return err
		}
		began := time.Now()
		if err := r.fetch(ctx, s); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		r.lose(s)
		if err := s.Err(); endsRun(err) {
			return err
		}
		if time.Since(began) >= maxBackOff {
			wait.reset()
		}
		before = s
	}
}

// register opens the session after before (nil: the first one). All its attempts are one registration to the
// broker. It returns nil without an error when ctx has ended.
func (r *consumerRun) register(ctx context.Context, before *Session, wait *backOff) (*Session, error) {
	o := RegisterOptions{
		ConsumerID: r.opts.ConsumerID, ClientInfo: r.opts.ClientInfo, Create: r.opts.Create,
		After: before, ReclaimFor: r.opts.Invisible,
	}
	rand.Read(o.nonce[:])
	var former []*job
	if before != nil {
		if !pause(ctx, wait.next()) { // others may have lost theirs at the same moment
			return nil, nil
		}
		former = r.unsettled()
		for _, j := range former {
			o.Reclaim = append(o.Reclaim, j.held.Receipt)
		}
	}
	for {
		s, err := r.k.client.Register(ctx, r.k.group, o)
		switch {
		case err == nil:
			r.adopt(s, former)
			return s, nil
		case ctx.Err() != nil:
			return nil, nil
		case endsRun(err):
			return nil, err
		}
		r.complain("cannot register", err)
		if !pause(ctx, wait.next()) {
			return nil, nil
		}
	}
}

// pause is false when ctx ended before d was over.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// complain logs an error that is got over by trying again, once for each change of it.
func (r *consumerRun) complain(what string, err error) {
	if text := err.Error(); text != r.complained {
		r.complained = text
		r.log.Warn(what, "error", err)
	}
}

// unsettled are the jobs whose receipts may be reclaimed, oldest first.
func (r *consumerRun) unsettled() []*job {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*job, 0, len(r.jobs))
	for j := range r.jobs {
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b *job) int { return cmp.Compare(a.seq, b.seq) })
	return list[:min(len(list), mostHeld)]
}

// adopt makes s the current session. What of former was reclaimed goes on under its new lease; a handler keeps the
// context that has ended, but what it returns counts.
func (r *consumerRun) adopt(s *Session, former []*job) {
	labels := pprof.Labels("group", s.group, "consumer", s.consumerID, "session", strconv.FormatUint(s.id, 10))
	r.stats.sessions.Add(1)
	r.complained = ""
	r.mu.Lock()
	r.session, r.silent = s, false
	r.k.session.Store(s)
	r.labelled = pprof.WithLabels(r.values, labels)
	r.keeper.watch(s)
	reclaimed := r.takeBack(s, former)
	r.mu.Unlock()
	r.stats.reclaimed.Add(uint64(reclaimed))
	if s.reclaimed != nil {
		r.log.Info("registered again", "session", s.id, "unsettled", len(former), "reclaimed", reclaimed)
	}
}

// takeBack has former go on under the leases that s has reclaimed, and tells how many there are. The caller holds
// r.mu.
func (r *consumerRun) takeBack(s *Session, former []*job) (reclaimed int) {
	for i, j := range former {
		x := &s.reclaimed[i]
		if j.told { // meanwhile, and nobody is there to settle what was reclaimed
			if x.Err == nil {
				r.returned(x.Delivery(j.d))
			}
			continue
		}
		if x.Err != nil {
			j.gone = x
			r.settle(j)
			continue
		}
		reclaimed++
		j.leased(x.Delivery(j.d))
		if j.state == jobRunning {
			r.keeper.keep(j)
		}
		r.settle(j)
	}
	return reclaimed
}

// returned gives back a lease that no handler knows of. The caller holds r.mu.
func (r *consumerRun) returned(d *Delivery) {
	r.lastSeq++
	j := &job{d: d, held: d, seq: r.lastSeq, state: jobFinished, outcome: outcome{kind: outcomeReturned}}
	r.jobs[j] = struct{}{}
	r.settle(j)
}

// lose ends the use of s, which is over: handlers are cancelled, what no handler has is forgotten, and what
// is not settled waits for the next session.
func (r *consumerRun) lose(s *Session) {
	why := lostBecause(ErrSessionLost, s.Err())
	var over []cancellation
	r.mu.Lock()
	if r.session != s {
		r.mu.Unlock()
		return
	}
	r.session, r.silent = nil, false
	r.keeper.clear()
	if errors.Is(why, ErrSessionFenced) {
		r.fenced = s.Err()
	}
	r.acks.queue, r.gives.queue, r.buffer = nil, nil, nil
	for j := range r.jobs {
		j.gone = nil // the next session presents its receipt again
		switch {
		case j.work == nil: // buffered, or being given back
			r.tell(j, why)
		case j.state == jobRunning:
			over = r.cancel(over, j.work, why)
		case r.stopping && !j.settling && !j.renewing:
			r.tell(j, why)
		}
	}
	r.mu.Unlock()
	carryOut(over)
	r.notes.Go(func() { r.log.Warn("session lost", "session", s.id, "error", s.Err(), "handlers", len(over)) })
}
