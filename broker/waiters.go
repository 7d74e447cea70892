package broker

import (
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
	"github.com/leasemq/leasemq/timingwheel"
)

// waiter is one POP: its terms, and, while nothing can be given to it, its place among the parked ones.
// It is answered exactly once. The section owns it until it is answered, its loop afterwards.
type waiter struct {
	conn     *connState
	request  uint64
	size     int // of the request, for the credit
	session  uint64
	sessSlot uint32
	group    uint32
	sub      uint32 // slot
	subID    uint32
	topic    uint32
	max      int
	maxBytes int
	leaseMs  int64
	awaitMs  int64
	slot     uint8
	lost     bool
	sequence uint64
	repeats  uint64 // token of the answer that it asks for again; 0: it is a new pop
	wholly   bool   // its answer depends on everything, whatever it is given

	id         uint32 // in the table while parked; 0: not parked
	prev, next *waiter
	inSession  int // place in its session's list, while parked
	inConn     int // place in its connection's
	dueMs      int64

	// The outcome.
	status  protocol.Status
	refusal protocol.ErrorBody
	gate    uint64
	result  popResult
}

// waiterList is the parked pops of one subscription, first come first served.
type waiterList struct{ head, tail *waiter }

func (l *waiterList) push(w *waiter) {
	w.prev, w.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = w
	} else {
		l.head = w
	}
	l.tail = w
}

func (l *waiterList) unlink(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.tail = w.prev
	}
	w.prev, w.next = nil, nil
}

// waiterTable numbers the parked pops for the wheel of their await times. The section owns it.
type waiterTable struct {
	byID  []*waiter // index 0 is unused
	freed []uint32
	wheel *timingwheel.Wheel
	count int
}

// park keeps w until something can be given to it or its time is over.
func (e *Engine) park(w *waiter) {
	t := &e.waiters
	if n := len(t.freed); n > 0 {
		w.id = t.freed[n-1]
		t.freed = t.freed[:n-1]
	} else {
		if len(t.byID) == 0 {
			t.byID = append(t.byID, nil)
		}
		w.id = uint32(len(t.byID))
		t.byID = append(t.byID, nil)
	}
	t.byID[w.id] = w
	t.count++
	e.waiting.Store(int64(t.count)) // before committed is read again: see Loop.Flush
	t.wheel.Schedule(w.id, w.dueMs)
	e.subRun[w.sub].waiters.push(w)
	run := &e.sessRun[w.sessSlot]
	w.inSession, w.inConn = len(run.waiters), len(w.conn.waiters)
	run.waiters = append(run.waiters, w)
	w.conn.waiters = append(w.conn.waiters, w)
	w.conn.owed += w.maxBytes
}

// unpark takes w out of every list.
func (e *Engine) unpark(w *waiter) {
	t := &e.waiters
	t.wheel.Cancel(w.id)
	t.byID[w.id] = nil
	t.freed = append(t.freed, w.id)
	t.count--
	w.id = 0
	if run := &e.subRun[w.sub]; run.id == w.subID {
		run.waiters.unlink(w)
	}
	run := &e.sessRun[w.sessSlot]
	last := len(run.waiters) - 1
	run.waiters[w.inSession] = run.waiters[last]
	run.waiters[w.inSession].inSession = w.inSession
	run.waiters[last] = nil
	run.waiters = run.waiters[:last]
	c := w.conn
	c.owed -= w.maxBytes
	last = len(c.waiters) - 1
	c.waiters[w.inConn] = c.waiters[last]
	c.waiters[w.inConn].inConn = w.inConn
	c.waiters[last] = nil
	c.waiters = c.waiters[:last]
}

// hand gives an answered pop to its loop.
func (e *Engine) hand(w *waiter) {
	l := w.conn.loop
	l.put(inboxItem{waiter: w})
	e.wakeSoon(l)
}

// refuseWaiters answers parked pops with a status. Their list is taken apart while it is walked.
func (e *Engine) refuseWaiters(list []*waiter, s protocol.Status, why protocol.ErrorBody) {
	for _, w := range append([]*waiter(nil), list...) {
		e.unpark(w)
		w.status, w.refusal, w.gate = s, why, e.log.Appended()
		e.hand(w)
	}
}

// waitersOf lists the parked pops of a subscription.
func (e *Engine) waitersOf(slot uint32) (list []*waiter) {
	for w := e.subRun[slot].waiters.head; w != nil; w = w.next {
		list = append(list, w)
	}
	return list
}

// serve gives what is deliverable to whom waits for it: after every section and every advance of
// committed no eligible waiter may be left beside a deliverable message. It grants at most limit
// messages and tells whether it left work.
func (e *Engine) serve(limit int) (more bool) {
	nowMs := e.lease.fine(e.clock.Mono())
	for len(e.dirty) > 0 {
		slot := e.dirty[len(e.dirty)-1]
		e.dirty = e.dirty[:len(e.dirty)-1]
		run := &e.subRun[slot]
		run.dirty = false
		if run.id == 0 {
			continue
		}
		for w := run.waiters.head; w != nil; {
			next := w.next
			if limit <= 0 {
				e.markDirty(slot)
				return true
			}
			switch e.tryPop(w, nowMs) {
			case popGranted:
				limit -= len(w.result.rows)
				e.unpark(w)
				e.hand(w)
			case popNothing:
				if w.repeats == 0 {
					next = nil
				}
			case popMore:
				e.markDirty(slot)
				return true
			case popLoading:
				next = nil
			case popSessionFull, popGone:
			case popNoRoom:
				e.markDirty(slot) // the next section looks again
				return false
			}
			w = next
		}
	}
	return false
}

// tickWaiters answers pops whose await time is over, and tells whether more are due. Each is tried once more:
// EMPTY says that there was nothing, not that nobody had looked, or that the index was being loaded.
func (e *Engine) tickWaiters(nowMs int64, limit int) (more bool) {
	return e.waiters.wheel.Advance(nowMs, limit, func(id uint32) {
		w := e.waiters.byID[id]
		outcome := e.tryPop(w, nowMs)
		switch {
		case outcome == popMore || outcome == popLoading, outcome == popNoRoom && e.diskFor(worstPop, grantReserve):
			e.waiters.wheel.Schedule(id, nowMs+tickFineMs)
			return
		case outcome == popNoRoom:
			w.status, w.refusal = protocol.StoreFull, e.noSpace("leases", worstPop, grantReserve)
			w.gate = e.log.Appended()
		case outcome != popGranted:
			e.answerEmpty(w)
		}
		e.unpark(w)
		e.hand(w)
	})
}

// answerEmpty makes EMPTY the outcome of w.
func (e *Engine) answerEmpty(w *waiter) {
	sub := e.fold.leases.At(w.sub)
	w.status = protocol.Empty
	w.result.leased, w.result.waiting = sub.Leased, sub.Waiting
	w.gate = e.log.Appended()
}

// endReason is the wire's word for why a session ended.
func endReason(c codec.EndCause) protocol.Reason { return protocol.Reason(c) }
