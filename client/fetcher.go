package client

import (
	"context"
	"errors"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// answerPatience is how long the answer to an ack or a release, or to a pop that has waited, may take before it is
// asked for again.
const answerPatience = 10 * time.Second

// fetchBytes is how much a pop asks for at most for each message (one comes however long it is). The broker lets the
// pops that wait on a connection ask for so much and no more, so a connection has room for many consumers.
const fetchBytes = 64 << 10

// emptyTooSoon: a pop that was to wait and came back with nothing before this is not repeated at once.
const emptyTooSoon = 100 * time.Millisecond

// fetch takes messages in s until s or ctx is over (nil), or until a pop is refused in a way that ends the
// run. There is one pop at a time, for what there is room for.
func (r *consumerRun) fetch(ctx context.Context, s *Session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var wait backOff
	for {
		n := r.waitForRoom(ctx)
		if n == 0 {
			return nil
		}
		began := time.Now()
		batch, err := r.pop(ctx, s, n)
		switch {
		case err == nil && len(batch.Deliveries) > 0:
			wait.reset()
			r.complained = ""
			r.take(s, batch.Deliveries)
			continue
		case err == nil && time.Since(began) >= emptyTooSoon:
			wait.reset()
			r.complained = ""
			continue
		case ctx.Err() != nil, s.Err() != nil:
			return nil
		case endsRun(err):
			return err
		case err != nil:
			r.complain("cannot pop", err)
		}
		if !pause(ctx, wait.next()) {
			return nil
		}
	}
}

// pop takes up to n messages. One that gets no answer is given up in the end, and the next one gives back what may have
// been granted to it.
func (r *consumerRun) pop(ctx context.Context, s *Session, n int) (*Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchAwait+answerPatience)
	defer cancel()
	return s.Pop(ctx, PopOptions{
		Topic: r.k.topic, Max: n, MaxBytes: min(n*fetchBytes, protocol.MaxPopBytes), Invisible: r.opts.Invisible, Await: fetchAwait,
		FilterTags: r.opts.FilterTags, Start: r.opts.Start, Create: r.opts.Create,
	})
}

// endsRun tells whether another attempt would end with err again, or must not be made.
func endsRun(err error) bool {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrSessionFenced) {
		return true
	}
	var e *StatusError
	if !errors.As(err, &e) || e.Op != protocol.OpRegister && e.Op != protocol.OpPop {
		return false
	}
	switch e.Status {
	case protocol.Invalid, protocol.Unsupported, protocol.TooLarge, protocol.TopicNotFound, protocol.GroupNotFound,
		protocol.FilterConflict, protocol.GroupModeConflict:
		return true
	}
	return false
}

// waitForRoom waits until messages can be taken, and tells how many; 0: ctx has ended.
func (r *consumerRun) waitForRoom(ctx context.Context) int {
	for ctx.Err() == nil {
		if n := r.roomNow(); n > 0 {
			return n
		}
		select {
		case <-r.room:
		case <-ctx.Done():
		}
	}
	return 0
}

// roomNow is how many messages free workers would start at once, plus what is left of the prefetch.
func (r *consumerRun) roomNow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent || r.stopping {
		return 0
	}
	free, buffered := r.opts.Workers-r.busy, len(r.buffer)
	n := r.opts.Prefetch
	if taking := (buffered + r.batch - 1) / r.batch; taking <= free {
		n += (free - taking) * r.batch
	} else {
		n -= buffered - free*r.batch
	}
	held := len(r.jobs) + r.teller.behind()
	return min(n, protocol.MaxPopMessages, mostHeld-held)
}

// take makes jobs of what a pop brought.
func (r *consumerRun) take(s *Session, deliveries []*Delivery) {
	r.stats.popped.Add(uint64(len(deliveries)))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session != s { // lost since: nobody's any more
		return
	}
	for _, d := range deliveries {
		r.lastSeq++
		j := &job{d: d, held: d, seq: r.lastSeq}
		j.moment.job = j
		r.jobs[j] = struct{}{}
		r.buffer = append(r.buffer, j)
		r.keeper.keep(j)
		r.ready.Signal()
	}
}
