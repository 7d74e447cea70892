package broker

import (
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Retention. The oldest segment of the log goes when nothing in it is needed any more:
//
//   - the kept snapshots stand for its records (Engine.pinned);
//   - its messages are older than Retention.Age, or the log is longer than Retention.Bytes; or none of them can be read
//     any more, because their topics were deleted or emptied;
//   - every group that holds data has settled them. A few that are unsettled do not keep a whole segment: they are
//     copied to the end of the log, as they are (COPY records), and keep their place, their id and their state.
//
// A group holds data while it has a session, and for Rules.HoldMs after its last one. Above Retention.HardBytes the oldest
// segment goes whoever needs it; what is dropped is counted and logged.
//
// RETAIN records say from where on each queue has its messages, slice by slice, each checked again in the hold of the
// section that appends it: a group that begins to read meanwhile begins behind it, or is seen. When they are
// durable the file is unlinked. A crash in between leaves a file that the next pass removes.

// Retention says how long the log is kept. The zero value: 72 h, whatever size that comes to.
type Retention struct {
	Age       time.Duration // older messages go when every group has settled them; 0: 72 h, negative: never by age
	Bytes     int64         // above this much log the oldest go earlier; 0: no limit
	HardBytes int64         // above this much the oldest go though a group needs them; 0: never
}

const defaultRetentionAge = 72 * time.Hour

func (r Retention) withDefaults() Retention {
	if r.Age == 0 {
		r.Age = defaultRetentionAge
	}
	return r
}

const (
	// copyShare: the unsettled messages of a segment are copied forward if they come to at most this part of it.
	copyShare = 8
	// maxCopies is how many are copied forward from one segment at most.
	maxCopies = 16 << 10
	// retainSlice is how many queues one hold of the section lets go of, dropSlice how many unsettled messages of groups that
	// hold nothing any more.
	retainSlice = 200
	dropSlice   = 4096
	// idleGraceMs is how long before it is let go of what an idle group has not settled, at least, the group was warned: a
	// seventh of its hold if that is less.
	idleGraceMs = 60 * 60 * 1000
	// reviewEveryMs is how often a segment that could not go is looked at again, while the disk has room, and how often idle
	// groups are.
	reviewEveryMs = 10_000
)

// retention is the state of the loop that removes segments. The steward's pass owns it, but for warned.
type retention struct {
	examined  uint64 // the oldest segment when it was last looked at in vain
	againMs   int64  // when it is looked at again
	logged    string // why it could not go, as it was logged last
	idleMs    int64  // when idle groups are looked at again
	coveredMs int64  // when a snapshot was last taken to let something go
	// warned has the groups that were warned, by id. The section guards it.
	warned map[uint32]warning
}

// warning is when, on the lease clock, a group was warned that has had no session since idleMs.
type warning struct{ idleMs, atMs int64 }

// retain removes what may go. It ends when the oldest segment may not.
func (e *Engine) retain(run uint64) error {
	r := &e.retention
	nowMs := e.lease.now()
	if nowMs >= r.idleMs {
		r.idleMs = nowMs + reviewEveryMs
		e.warnIdle(nowMs)
	}
	if nowMs < r.againMs && !e.vacated.Load() {
		return nil
	}
	for e.steward.run.Load() == run && e.ctx.Err() == nil {
		s := outgoing{e: e, run: run, first: e.log.First(), known: map[liveName]bool{}, damaged: map[liveName]bool{}}
		vacated := e.vacated.Swap(false)
		s.look = vacated || s.first != r.examined
		gone, err := s.retire()
		if vacated && !s.looked {
			e.vacated.Store(true) // nobody has looked yet
		}
		if err != nil {
			return err
		}
		if gone {
			e.lookAtDisk() // who waits for room need not wait for the rest
			continue
		}
		if s.looked && !s.uncovered {
			r.examined = s.first
		}
		r.againMs = nowMs + reviewEveryMs
		if s.busy || e.reserveShort.Load() {
			r.againMs = nowMs + stewardEveryMs
		}
		if s.held != "" && s.held != r.logged {
			e.logger.Warn("old log is kept because it is needed", "position", s.first, "by", s.held)
		}
		r.logged = s.held
		if s.uncovered && nowMs >= r.coveredMs {
			r.coveredMs = nowMs + reviewEveryMs
			e.moveOn()
			_, err = e.Snapshot() // so that it can go when the next one has been taken, too
		}
		return err
	}
	return nil
}

// moveOn appends a record if there was none since the newest snapshot: another one of the same position would stand for nothing
// more.
func (e *Engine) moveOn() {
	e.enter()
	defer e.leave()
	if !e.failed.Load() && e.log.Appended() == e.snapped.Load() && e.claim(worstSmall) {
		e.appendClock()
		e.release(worstSmall)
	}
}

// holds tells whether a group holds data: it has a session, or had one not too long ago, or was not warned in time that it
// will not any more. Section only.
func (e *Engine) holds(group uint32) bool {
	g, ok := e.fold.sessions.GroupByID(group)
	if !ok {
		return false
	}
	hold := int64(g.Rules.HoldMs)
	if g.Live > 0 || g.Rules.HoldMs == protocol.HoldForever || e.wallMs(e.clock.Mono())-g.IdleMs < hold {
		return true
	}
	w, warned := e.retention.warned[group]
	return !warned || w.idleMs != g.IdleMs || e.lease.now()-w.atMs < min(hold/7, idleGraceMs)
}

// warnIdle warns of groups that will soon stop holding data.
func (e *Engine) warnIdle(nowMs int64) {
	r := &e.retention
	type idle struct {
		name string
		left time.Duration
	}
	var list []idle
	func() {
		e.enter()
		defer e.leave()
		wall := e.wallMs(e.clock.Mono())
		reads := map[uint32]bool{}
		for _, slot := range e.fold.leases.Subs() {
			reads[e.fold.leases.At(slot).Group] = true
		}
		warned := map[uint32]warning{}
		for id := range reads {
			g, ok := e.fold.sessions.GroupByID(id)
			if !ok || g.Live > 0 || g.Rules.HoldMs == protocol.HoldForever {
				continue
			}
			hold := int64(g.Rules.HoldMs)
			left := g.IdleMs + hold - wall
			if left > hold/7 {
				continue
			}
			if w, ok := r.warned[id]; ok && w.idleMs == g.IdleMs {
				warned[id] = w
			} else {
				warned[id] = warning{g.IdleMs, nowMs}
				list = append(list, idle{e.fold.sessions.GroupName(id), time.Duration(left) * time.Millisecond})
			}
		}
		r.warned = warned
	}()
	for _, g := range list {
		e.logger.Warn("a group has had no session for long and will soon stop holding data: what it has not settled may then go",
			"group", g.name, "in", max(g.left, time.Duration(idleGraceMs)*time.Millisecond).Round(time.Second))
	}
}
