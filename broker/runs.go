package broker

import (
	"github.com/leasemq/leasemq/consumequeue"
)

// What the engine keeps beside the fold to find work without looking for it: which queues may have
// something for a subscription, up to where a queue is visible, who waits. All of it is rebuilt from the
// fold at the start. The sequencing section owns it; slots are those of the fold's slabs.

type topicRun struct {
	turn uint32   // queue that the next SEND without a key goes to
	subs []uint32 // subscriptions of the topic
}

type queueRun struct {
	topic   uint32 // id
	visible uint64 // offsets below it are committed
	moved   bool   // visible has moved in this dispatch
	index   *consumequeue.Queue
}

type subRun struct {
	id      uint32 // of the subscription in the slot; 0: none
	active  []uint64
	turn    int // queue at which the next pop begins to look
	waiters waiterList
	gate    uint64 // end of the SUBSCRIBE record
	dirty   bool
	loading bool
}

type sessionRun struct {
	id      uint64
	gate    uint64 // end of the SESSION_START record
	waiters []*waiter
	seen    []uint64 // by pop slot: newest sequence that came since the start; see popid.go
}

// fit grows s so that i is a valid index.
func fit[T any](s []T, i uint32) []T {
	for int(i) >= len(s) {
		var zero T
		s = append(s, zero)
	}
	return s
}

// rebuildRuns makes the runs of everything that recovery has found. All of it is committed.
func (e *Engine) rebuildRuns() {
	for _, slot := range e.fold.topics.sorted() {
		e.addTopicRun(slot)
		for _, q := range e.fold.topics.queueOf[slot] {
			e.queueRun[q].visible = e.fold.topics.queues.At(q).next
		}
	}
	for _, slot := range e.fold.leases.Subs() {
		e.addSubRun(slot, 0)
	}
	for _, id := range e.fold.sessions.LiveOf(0) {
		s, _ := e.fold.sessions.Session(id)
		e.sessRun = fit(e.sessRun, s.Slot)
		e.sessRun[s.Slot].id = id
	}
	e.fold.leases.OnReady = e.markActive
	e.dispatched.Store(e.log.Committed())
}

// addTopicRun makes or grows the runs of a topic and its queues.
func (e *Engine) addTopicRun(slot uint32) {
	t := e.fold.topics
	e.topicRun = fit(e.topicRun, slot)
	id := t.slab.At(slot).id
	for i, q := range t.queueOf[slot] {
		e.queueRun = fit(e.queueRun, q)
		if e.queueRun[q].topic != id {
			e.queueRun[q] = queueRun{topic: id, index: e.index.Queue(id, uint16(i))}
		}
	}
}

// addSubRun makes the run of a subscription. Every queue may have something for it.
func (e *Engine) addSubRun(slot uint32, gate uint64) {
	sub := e.fold.leases.At(slot)
	e.subRun = fit(e.subRun, slot)
	e.subRun[slot] = subRun{id: sub.ID, gate: gate}
	topicSlot := e.fold.topics.ids[sub.Topic]
	e.topicRun[topicSlot].subs = append(e.topicRun[topicSlot].subs, slot)
	for q := range e.fold.leases.Queues(slot) {
		e.markActive(slot, uint16(q))
	}
}

// markActive notes that a queue may have something for a subscription.
func (e *Engine) markActive(slot uint32, q uint16) {
	if int(slot) >= len(e.subRun) {
		return // during recovery; rebuildRuns looks at everything
	}
	run := &e.subRun[slot]
	word := int(q) / 64
	for word >= len(run.active) {
		run.active = append(run.active, 0)
	}
	run.active[word] |= 1 << (q % 64)
	e.markDirty(slot)
}

// markDirty has the waiters of a subscription looked at before the section is left.
func (e *Engine) markDirty(slot uint32) {
	run := &e.subRun[slot]
	if run.waiters.head != nil && !run.dirty {
		run.dirty = true
		e.dirty = append(e.dirty, slot)
	}
}

// dispatchRun is messages of one queue that become visible when the log has committed end.
type dispatchRun struct {
	queue  uint32 // slot
	topic  uint32 // id
	offset uint64 // next offset behind the run
	end    uint64 // log position behind the last record
	index  uint16
}

// dispatchList has the messages that are appended and not yet visible, in log order.
type dispatchList struct {
	runs []dispatchRun
	head int
	// moved has a run of each queue that became longer in this dispatch.
	moved []dispatchRun
	open  bool // the newest run may grow: it is of the request being handled
}

// seal ends the newest run. Runs never grow across requests, or a queue that is always being sent to
// would never become visible.
func (d *dispatchList) seal() { d.open = false }

func (d *dispatchList) add(queueSlot, topicID uint32, q uint16, next, end uint64) {
	if n := len(d.runs); n > d.head && d.open {
		if last := &d.runs[n-1]; last.queue == queueSlot {
			last.offset, last.end = next, end
			return
		}
	}
	if d.head > 4096 && d.head*2 > len(d.runs) {
		d.runs = d.runs[:copy(d.runs, d.runs[d.head:])]
		d.head = 0
	}
	d.runs = append(d.runs, dispatchRun{queueSlot, topicID, next, end, q})
	d.open = true
}

// dispatchTo moves the visible ends of queues to what is committed, and marks whom it concerns: each queue
// once, however many messages it got. It handles a slice of what there is and tells whether it left some.
func (e *Engine) dispatchTo(committed uint64) (more bool) {
	d := &e.dispatch
	d.moved = d.moved[:0]
	reached := committed
	for n := 0; d.head < len(d.runs) && d.runs[d.head].end <= committed; n++ {
		if n == dispatchSlice {
			more, reached = true, d.runs[d.head-1].end
			break
		}
		r := &d.runs[d.head]
		d.head++
		run := &e.queueRun[r.queue]
		if run.topic != r.topic {
			continue // deleted meanwhile
		}
		run.visible = max(run.visible, r.offset)
		if !run.moved {
			run.moved = true
			d.moved = append(d.moved, *r)
		}
	}
	for i := range d.moved {
		r := &d.moved[i]
		e.queueRun[r.queue].moved = false
		if slot, ok := e.fold.topics.ids[r.topic]; ok {
			for _, sub := range e.topicRun[slot].subs {
				e.markActive(sub, r.index)
			}
		}
	}
	if d.head == len(d.runs) {
		d.runs, d.head = d.runs[:0], 0
	}
	e.dispatched.Store(max(e.dispatched.Load(), reached))
	return more
}
