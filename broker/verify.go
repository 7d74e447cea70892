package broker

import (
	"fmt"
	"iter"

	"github.com/leasemq/leasemq/consumequeue"
)

// fullCheckEvery is how many sections lie between two full recomputations.
const fullCheckEvery = 200

// tryVerify is verify, a panic of which it returns.
func (e *Engine) tryVerify() (r any) {
	defer func() { r = recover() }()
	e.verify()
	return nil
}

// verify is what tests have checked after every section: the records fit the state (a misfit has panicked
// already), positions keep their order, nobody waits beside what could be given to him; and every
// fullCheckEvery sections everything that is counted and linked is recomputed, and the shadow, which
// has applied the records as a recovery would, must have the same state.
func (e *Engine) verify() {
	appended, written, synced, committed := e.log.Appended(), e.log.Written(), e.log.Synced(), e.log.Committed()
	if written > appended || committed > appended || synced > e.log.Appended() || e.dispatched.Load() > e.log.Committed() {
		panic(fmt.Sprintf("broker: appended %d, written %d, synced %d, committed %d, dispatched %d",
			appended, written, synced, committed, e.dispatched.Load()))
	}
	if e.fold.leaseMs > e.lease.now() {
		panic(fmt.Sprintf("broker: a record is stamped %d, the lease clock is at %d", e.fold.leaseMs, e.lease.now()))
	}
	if e.waiters.count > 0 && e.waiters.count < 64 {
		if err := e.checkWaiters(); err != nil {
			panic("broker: " + err.Error())
		}
	}
	if e.sections%fullCheckEvery == 0 {
		if err := e.check(); err != nil {
			panic("broker: " + err.Error())
		}
	}
}

// check recomputes everything. The caller holds the section.
func (e *Engine) check() error {
	if err := e.fold.audit(); err != nil {
		return err
	}
	if e.shadow != nil {
		if live, shadow := e.fold.hash(), e.shadow.hash(); live != shadow {
			return fmt.Errorf("the state is %x, replayed it is %x", live, shadow)
		}
	}
	if e.o.Verify && !e.writing {
		if err := e.checkView(); err != nil {
			return err
		}
	}
	return e.checkWaiters()
}

// heldView is a view of the fold that is held from one full check to the next, so that everything in between changes a
// frozen state, and what the view has to show.
type heldView struct {
	view            *stateView
	hash            stateHash
	epoch           uint32
	leaseMs, wallMs int64
}

// checkView loads what was frozen at the last full check, as a restart would load it from a snapshot, and compares it with
// what the state was. From then on the state as loaded now takes the place of the shadow: the rest of the run checks that a
// snapshot and the records behind it give what the records alone give.
func (e *Engine) checkView() error {
	if h := e.held; h.view != nil {
		f, err := loadView(h.view, h.epoch, h.leaseMs, h.wallMs, e.fold.onViolation)
		if err != nil {
			return fmt.Errorf("the frozen state cannot be loaded: %w", err)
		}
		if got := f.hash(); got != h.hash {
			return fmt.Errorf("the state was %x, loaded from its view it is %x", h.hash, got)
		}
		if err := f.audit(); err != nil {
			return fmt.Errorf("as loaded: %w", err)
		}
	}
	e.dropView()
	hash := e.fold.hash()
	e.held = heldView{e.fold.freeze(), hash, e.fold.epoch, e.fold.leaseMs, e.fold.wallMs}
	if e.shadow == nil {
		return nil
	}
	f, err := loadView(e.held.view, e.fold.epoch, e.fold.leaseMs, e.fold.wallMs, e.fold.onViolation)
	if err != nil {
		return fmt.Errorf("the state cannot be loaded: %w", err)
	}
	e.shadow = f
	return nil
}

// dropView ends the view of checkView: there can be one at a time.
func (e *Engine) dropView() {
	if e.held.view != nil {
		e.fold.thaw()
		e.held = heldView{}
	}
}

// loadView makes a fold of a view.
func loadView(v *stateView, epoch uint32, leaseMs, wallMs int64, onViolation func(string)) (*fold, error) {
	f := newFold(onViolation)
	l := f.load(epoch, leaseMs, wallMs)
	if err := v.rows(l.row); err != nil {
		return nil, err
	}
	return f, l.finish()
}

// checkWaiters looks for a parked pop beside a message that it could have, the long way.
func (e *Engine) checkWaiters() error {
	if len(e.dirty) > 0 || len(e.loading) > 0 || e.todo.Load() || e.mender.busy.Load() {
		return nil // somebody will look
	}
	for slot := range e.subRun {
		for w := e.subRun[slot].waiters.head; w != nil; w = w.next {
			if int(e.fold.leases.Held(w.sessSlot)) >= e.limits.LeasesPerSession || e.log.RingFree()-int(e.reserved.Load()) < worstPop {
				continue
			}
			for q := range e.fold.leases.Queues(uint32(slot)) {
				if e.deliverable(w, uint16(q)) {
					return fmt.Errorf("session %d waits beside messages of queue %d that it could have", w.session, q)
				}
			}
		}
	}
	return nil
}

// deliverable tells whether a queue has something for w, as far as the index is in memory.
func (e *Engine) deliverable(w *waiter, q uint16) bool {
	pos := e.fold.leases.Position(w.sub, q)
	if pos.Ready > 0 {
		sound := false
		e.fold.leases.EachReady(w.sub, q, func(offset uint64) bool {
			entry, ok := e.entryOf(e.fold.topics.queueOf[e.fold.topics.ids[w.topic]][q], offset)
			sound = ok && e.sound(entry)
			return !sound
		})
		if sound {
			return true
		}
	}
	g, _ := e.fold.sessions.GroupByID(w.group)
	if pos.Leased >= g.Rules.MaxInFlight || e.capped {
		return false
	}
	run := &e.queueRun[e.fold.topics.queueOf[e.fold.topics.ids[w.topic]][q]]
	for offset := pos.Next; offset < run.visible; offset++ {
		entry, ok := entryAt(run.index, offset)
		if !ok || !e.sound(entry) {
			return false
		}
		if e.fold.leases.Accepts(w.sub, entry.TagHash) && !e.fold.leases.Known(w.sub, q, offset) {
			return true
		}
	}
	return false
}

// Check recomputes everything and compares the state with its replay. For tests.
func (e *Engine) Check() error {
	e.enter()
	defer e.leave()
	return e.check()
}

// Hash is the same for engines with equal state. For tests.
func (e *Engine) Hash() stateHash {
	e.enter()
	defer e.leave()
	return e.fold.hash()
}

// queueEnds tells recovery of the index how long each queue is.
func (e *Engine) queueEnds() iter.Seq[consumequeue.QueueEnd] {
	t := e.fold.topics
	return func(yield func(consumequeue.QueueEnd) bool) {
		for _, slot := range t.sorted() {
			for i, q := range t.queueOf[slot] {
				x := t.queues.At(q)
				if !yield(consumequeue.QueueEnd{Topic: t.slab.At(slot).id, Queue: uint16(i), Begin: x.begin, End: x.next}) {
					return
				}
			}
		}
	}
}
