package broker

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/codec"
)

const (
	tickFineMs   = 10  // while a deadline is near
	tickCoarseMs = 250 // else
	nearMs       = 1000
	clockEveryMs = 1000 // without a record
	indexTickMs  = 1000
)

// ticker is the one background loop that moves the lease clock and proposes what time brings about. Each
// start gets a run number, checked inside the section and before the loop arms itself again: a run that
// was stuck while the engine stopped finds itself stale and does nothing.
type ticker struct {
	mu    sync.Mutex
	run   atomic.Uint64
	kick  chan struct{}
	stopC chan struct{}
	done  chan struct{}

	// Guarded by the section.
	coarse    bool
	indexedMs int64
}

func (t *ticker) start(e *Engine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	run := t.run.Add(1)
	t.kick, t.stopC, t.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go t.loop(e, run, t.stopC, t.done)
}

func (t *ticker) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopC == nil {
		return
	}
	t.run.Add(1)
	close(t.stopC)
	<-t.done
	t.stopC = nil
}

// poke has the next tick come soon: a deadline is near.
func (t *ticker) poke() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

func (t *ticker) loop(e *Engine, run uint64, stop, done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(tickFineMs * time.Millisecond)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.kick:
		case <-timer.C:
		}
		next := e.tick(run)
		e.steward.poke(e)
		if run != t.run.Load() {
			return
		}
		timer.Reset(next)
	}
}

// tickSoon tells whether the ticker sleeps long and should not. It is asked inside the section.
func (e *Engine) tickSoon() bool {
	if !e.ticking.coarse || e.o.Manual || !e.near() {
		return false
	}
	e.ticking.coarse = false
	return true
}

// near tells whether something is due within a second.
func (e *Engine) near() bool {
	soon := e.lease.now() + nearMs
	if at, ok := e.fold.leases.NextTimer(); ok && at <= soon {
		return true
	}
	if at, ok := e.fold.sessions.NextTimer(); ok && at <= soon {
		return true
	}
	at, ok := e.waiters.wheel.Next()
	return ok && at <= soon
}

// Tick is a tick by hand, for tests.
func (e *Engine) Tick() { e.tick(e.ticking.run.Load()) }

// tick moves the lease clock, ends what is over, and tells when to come back.
func (e *Engine) tick(run uint64) time.Duration {
	for first := true; ; first = false {
		if more := e.tickOnce(run, first); !more {
			break
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	near := e.near() || len(e.suspects) > 0
	e.ticking.coarse = !near
	if near {
		return tickFineMs * time.Millisecond
	}
	return tickCoarseMs * time.Millisecond
}

// tickOnce is one hold of the section. It handles a slice of what is due and tells whether more is.
func (e *Engine) tickOnce(run uint64, first bool) (more bool) {
	e.enter()
	defer e.leave()
	if run != e.ticking.run.Load() {
		return false
	}
	if e.failed.Load() {
		e.failWaiters()
		return false
	}
	if first {
		e.lease.tick(e.clock.Mono())
		if nowMs := e.lease.now(); nowMs-e.ticking.indexedMs >= indexTickMs {
			e.ticking.indexedMs = nowMs
			e.index.Tick(nowMs)
		}
	}
	nowMs := e.lease.now()
	const worst = expireSlice*32 + worstSmall
	if !e.claim(worst) {
		return false // the next tick proposes again
	}
	defer e.release(worst)
	more = e.expireLeases(nowMs)
	more = e.watchSessions(nowMs) || more
	more = e.tickWaiters(nowMs, expireSlice) || more
	e.recordClock(nowMs)
	e.promise(nowMs)
	e.giveUpTo(e.log.Committed())
	e.settleDown(nil)
	return more
}

// expireLeases ends leases whose time is over, a slice of them in one record.
func (e *Engine) expireLeases(nowMs int64) (more bool) {
	rec := &e.scratch.expire
	rec.Entries, more = e.fold.leases.Advance(nowMs, expireSlice, rec.Entries[:0])
	if len(rec.Entries) == 0 {
		return more
	}
	h := e.appendRecord(codec.TypeExpire, rec.Append(e.scratch.payload))
	holders := e.scratch.holders[:0] // session of each lease, which only the lease knows
	for i := range rec.Entries {
		x := &rec.Entries[i]
		session := uint64(0)
		if holder, ok := e.fold.leases.Holder(x.Sub, x.Queue, x.Offset); ok {
			session = e.fold.sessions.SessionAt(holder).ID
			if live, ok := e.fold.sessions.Live(session); ok {
				live.AddLost()
			}
		}
		holders = append(holders, session)
	}
	e.scratch.holders = holders
	e.fold.leases.Expire(rec, h.LeaseMs)
	for i := range rec.Entries {
		e.freed(rec.Entries[i].Sub, rec.Entries[i].Queue, holders[i])
	}
	e.stats.expired.Add(uint64(len(rec.Entries)))
	return more
}

// watchSessions ends sessions that have been silent for their timeout. Before one is ended a marker goes
// through every event loop, twice: what had arrived when the timeout passed has then been read, and
// heartbeats that waited in a socket, or behind the log, have counted.
func (e *Engine) watchSessions(nowMs int64) (more bool) {
	e.scratch.silent, more = e.fold.sessions.Advance(nowMs, expireSlice, e.scratch.silent[:0])
	for _, id := range e.scratch.silent {
		if _, ok := e.suspects[id]; !ok {
			e.suspects[id] = e.markerRound.Load()
		}
	}
	if len(e.suspects) == 0 {
		return more
	}
	round := e.markerRound.Load()
	for _, l := range e.loops {
		if l.marked.Load() < round {
			e.wakeSoon(l)
			return more
		}
	}
	ended := 0
	for _, id := range slices.Sorted(maps.Keys(e.suspects)) { // in order: what a seed gives is always the same
		since := e.suspects[id]
		live, ok := e.fold.sessions.Live(id)
		if !ok {
			delete(e.suspects, id)
			continue
		}
		seen, silent := e.fold.sessions.Silent(live, nowMs)
		switch {
		case !silent:
			delete(e.suspects, id)
		case round < since+2 && len(e.loops) > 0:
		case ended >= 16:
			more = true
		case !e.claim(worstSessionID):
		default:
			if live.Expire(seen) {
				e.endSession(id, codec.EndExpired)
				ended++
			}
			e.release(worstSessionID)
		}
	}
	e.publishSuspects()
	if len(e.suspects) > 0 && len(e.loops) > 0 {
		e.markerRound.Add(1)
		for _, l := range e.loops {
			e.wakeSoon(l)
		}
	}
	return more
}

// publishSuspects tells the loops whom the next marker round is about.
func (e *Engine) publishSuspects() {
	suspects := make(map[uint64]struct{}, len(e.suspects))
	for id := range e.suspects {
		suspects[id] = struct{}{}
	}
	e.suspected.Store(&suspects)
}

// recordClock keeps the lease clock of an idle broker in the log while something runs by it.
func (e *Engine) recordClock(nowMs int64) {
	if nowMs-e.lastMs < clockEveryMs {
		return
	}
	_, leases := e.fold.leases.NextTimer()
	if !leases && e.fold.sessions.Sessions() == 0 {
		return
	}
	e.appendClock()
}

// promiseAfterMs is how long the log has not grown when its newest records are promised by one more.
const promiseAfterMs = 1000

// promise has an idle broker write down that its newest records are on the disk. That stands in the header of a later record only,
// and damage in what nothing promises cannot be told from a torn write, which a start cuts off.
func (e *Engine) promise(nowMs int64) {
	if !e.unpromised || nowMs-e.lastMs < promiseAfterMs || e.log.Synced() < e.log.Appended() {
		return
	}
	h := e.header(codec.TypeClock)
	e.log.Append(&h, nil, nil, 0)
	e.applyClock(&h)
	e.unpromised = false
}

// appendClock appends and applies a record of nothing but its clocks.
func (e *Engine) appendClock() {
	h := e.header(codec.TypeClock)
	e.log.AppendQuiet(&h, nil, nil, 0)
	e.applyClock(&h)
}

func (e *Engine) applyClock(h *codec.Header) {
	e.fold.stamp(h)
	e.fold.stored.Age(h.WallMs)
	e.follow(h, nil, nil)
}
