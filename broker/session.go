package broker

import (
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/heartbeat"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/protocol"
)

// register opens a session. The retry of a lost answer, told by its nonce, gets the session that the
// first one opened; any other registration of the consumer id fences the one before.
func (e *Engine) register(o *op, r *protocol.RegisterRequest) {
	g, ok := e.fold.sessions.GroupNamed(r.Group)
	switch {
	case e.draining.Load():
		o.refuse(protocol.Draining, 0, "the broker is stopping")
		return
	case !ok && !o.create:
		o.refuse(protocol.GroupNotFound, 0, "no group "+r.Group)
		return
	case !ok:
		var status protocol.Status
		if status, o.why = e.createGroup(r.Group, protocol.GroupRules{}); status != protocol.OK {
			o.status = status
			return
		}
		g, _ = e.fold.sessions.GroupNamed(r.Group)
	}
	if r.ReclaimMs > g.Rules.MaxInvisibleMs {
		o.refuse(protocol.Invalid, uint64(g.Rules.MaxInvisibleMs), "the reclaimed lease is over the group's limit")
		return
	}
	old, fenced := e.fold.sessions.OfConsumer(g.ID, r.ConsumerID)
	if fenced {
		switch {
		case old.Nonce == r.Nonce:
			if live, ok := e.fold.sessions.Live(old.ID); ok {
				live.Refresh(e.lease.fine(e.clock.Mono()))
			}
			e.reclaim(o, &old, r.ReclaimMs)
			e.answerRegister(o, &old)
			return
		case r.Previous != 0 && r.Previous != old.ID:
			o.status, o.why = protocol.SessionFenced, protocol.ErrorBody{
				Message: "another registration of the consumer id took over", Reason: protocol.ReasonSessionFenced,
			}
			return
		}
	}
	if !e.diskFor(o.worst, grantReserve) { // before anybody is fenced
		o.status, o.why = protocol.StoreFull, e.noSpace("new state", worstSmall, grantReserve)
		return
	}
	if fenced {
		e.endSession(old.ID, codec.EndFenced)
	}
	if e.fold.sessions.Sessions() >= e.limits.Sessions {
		o.refuse(protocol.LimitExceeded, uint64(e.limits.Sessions), "sessions")
		return
	}
	s := e.startSession(g.ID, r)
	e.reclaim(o, &s, r.ReclaimMs)
	e.answerRegister(o, &s)
}

// startSession begins a session.
func (e *Engine) startSession(group uint32, r *protocol.RegisterRequest) heartbeat.Session {
	rec := codec.SessionStart{
		Session: e.fold.sessions.NextSessionID(e.fold.epoch), Group: group, Nonce: r.Nonce,
		ConsumerID: []byte(r.ConsumerID), ClientInfo: []byte(r.ClientInfo),
	}
	h := e.appendRecord(codec.TypeSessionStart, rec.Append(e.scratch.payload))
	e.fold.sessions.StartSession(&rec, h.LeaseMs)
	s, _ := e.fold.sessions.Session(rec.Session)
	e.sessRun = fit(e.sessRun, s.Slot)
	e.sessRun[s.Slot] = sessionRun{id: s.ID, gate: e.log.Appended()}
	if live, ok := e.fold.sessions.Live(s.ID); ok {
		live.Refresh(e.lease.fine(e.clock.Mono()))
	}
	return s
}

// answerRegister tells a session. The receipts of what it has reclaimed are made outside of the section.
func (e *Engine) answerRegister(o *op, s *heartbeat.Session) {
	g, _ := e.fold.sessions.GroupByID(s.Group)
	a := &o.register
	a.Session, a.Generation = s.ID, s.ID
	a.HeartbeatMs, a.TimeoutMs = s.HeartbeatMs, s.TimeoutMs
	a.GroupVersion = g.Version
	a.InvisibleMs, a.MaxInvisibleMs = g.Rules.InvisibleMs, g.Rules.MaxInvisibleMs
	o.session = s.ID
}

// endSession ends a live session: one record that releases everything it holds. Whoever waits for what
// it held is served before the section is left.
func (e *Engine) endSession(id uint64, cause codec.EndCause) {
	s, ok := e.fold.sessions.Session(id)
	if !ok || s.Ended {
		return
	}
	g, _ := e.fold.sessions.GroupByID(s.Group)
	rec := &e.scratch.end
	*rec = codec.SessionEnd{Session: id, Cause: cause, Releases: rec.Releases[:0]}
	nowMs := e.lease.now()
	e.fold.leases.HeldBy(s.Slot, func(sub uint32, q uint16, offset, token uint64, losses, failures uint8) {
		at := nowMs
		if cause != codec.EndLeft && losses > 0 { // after the first loss at once, then as failures
			at += lease.FailureBackOffMs(g.Rules, int(losses), e.rnd)
		}
		rec.Releases = append(rec.Releases, codec.ReleaseEntry{Sub: sub, Queue: q, Offset: offset, Token: token, AtMs: at})
	})
	h := e.appendRecord(codec.TypeSessionEnd, rec.Append(e.scratch.payload))
	e.fold.endSession(&h, rec)
	for i := range rec.Releases {
		e.freed(rec.Releases[i].Sub, rec.Releases[i].Queue, id)
	}
	e.stats.sessionsEnded.Add(1)
	_, status, why := e.session(id)
	e.refuseWaiters(e.sessRun[s.Slot].waiters, status, why)
	e.sessRun[s.Slot].id = 0
	delete(e.suspects, id)
	for _, l := range e.loops {
		l.put(inboxItem{ended: id, reason: endReason(cause), gate: e.log.Appended()})
		e.wakeSoon(l)
	}
}

// unregister ends a session in order.
func (e *Engine) unregister(o *op, r *protocol.UnregisterRequest) {
	_, status, why := e.session(r.Session)
	if status != protocol.OK {
		if why.Reason == protocol.ReasonSessionLeft {
			return // the repetition of one that was done
		}
		o.status, o.why = status, why
		return
	}
	e.endSession(r.Session, codec.EndLeft)
}
