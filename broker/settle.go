package broker

import (
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/heartbeat"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/protocol"
)

// ticket is one receipt of a request, its signature checked outside the section.
type ticket struct {
	receipt lease.Receipt
	good    bool
	bad     protocol.Status // of a CHANGE entry whose values are out of bounds
}

func (l *Loop) prepareAck(o *op) {
	o.tickets = o.tickets[:0]
	for i := range o.ackRequest.Entries {
		var t ticket
		t.good = l.e.key.Parse(o.ackRequest.Entries[i].Receipt, &t.receipt)
		o.tickets = append(o.tickets, t)
	}
}

func (l *Loop) prepareChange(o *op) {
	o.tickets = o.tickets[:0]
	for i := range o.changeRequest.Entries {
		x := &o.changeRequest.Entries[i]
		var t ticket
		t.good = l.e.key.Parse(x.Receipt, &t.receipt)
		if err := x.Validate(); err != nil {
			t.bad, _ = protocol.Refusal(err)
		} else if len(x.Checkpoint) > 0 {
			t.bad = protocol.Unsupported
		}
		o.tickets = append(o.tickets, t)
	}
}

// session finds the live session that a call names, or says what the caller is told.
func (e *Engine) session(id uint64) (heartbeat.Session, protocol.Status, protocol.ErrorBody) {
	s, ok := e.fold.sessions.Session(id)
	switch {
	case !ok:
		return s, protocol.SessionNotFound, protocol.ErrorBody{Message: "no such session"}
	case !s.Ended:
		return s, protocol.OK, protocol.ErrorBody{}
	}
	ago := uint64(max(e.lease.now()-s.EndedMs, 0))
	switch s.Cause {
	case codec.EndFenced:
		return s, protocol.SessionFenced, protocol.ErrorBody{
			Message: "a newer registration of the consumer id took over", Reason: protocol.ReasonSessionFenced, Detail: ago,
		}
	case codec.EndLeft:
		return s, protocol.SessionNotFound, protocol.ErrorBody{
			Message: "the session has unregistered", Reason: protocol.ReasonSessionLeft, Detail: ago,
		}
	}
	return s, protocol.SessionNotFound, protocol.ErrorBody{
		Message: "the session was silent for its timeout and has ended", Reason: protocol.ReasonSessionExpired, Detail: ago,
	}
}

// checkTicket says what can be said of a receipt before the lease table is asked; done is false when it must be.
func (e *Engine) checkTicket(t *ticket, s *heartbeat.Session) (res protocol.SettleResult, done bool) {
	r := &t.receipt
	if !t.good || r.Group != s.Group {
		return protocol.SettleResult{Status: protocol.InvalidReceipt}, true
	}
	if _, ok := e.fold.topics.ids[r.Topic]; !ok {
		return protocol.SettleResult{Status: protocol.TopicNotFound}, true
	}
	if r.Session == s.ID {
		return res, false
	}
	of, ok := e.fold.sessions.Session(r.Session)
	if ok && !of.Ended {
		return protocol.SettleResult{Status: protocol.InvalidReceipt}, true
	}
	v := lease.Verdict{Status: protocol.Stale, Reason: protocol.ReasonSessionExpired}
	if ok {
		v.Reason, v.AtMs = endReason(of.Cause), of.EndedMs
	}
	var settled bool
	var sinceMs int64
	if settled, v.Token, sinceMs = e.fold.leases.Newest(r); settled {
		v.Status, v.Reason, v.AtMs = protocol.AlreadySettled, protocol.ReasonSettled, sinceMs
	}
	return e.result(&v), true
}

func (e *Engine) result(v *lease.Verdict) protocol.SettleResult {
	res := protocol.SettleResult{Status: v.Status, Reason: v.Reason, Token: v.Token}
	if v.Reason != protocol.ReasonNone && v.AtMs > 0 {
		res.AgoMs = uint64(max(e.lease.now()-v.AtMs, 0))
	}
	return res
}

// ack decides an ACK: a verdict for each entry, one SETTLE record for each run of entries of one subscription.
func (e *Engine) ack(o *op) {
	s, status, why := e.session(o.ackRequest.Session)
	if status != protocol.OK {
		o.status, o.why = status, why
		return
	}
	rec := &e.scratch.settle
	*rec = codec.Settle{Session: s.ID, Runs: rec.Runs[:0]}
	o.settled = o.settled[:0]
	for i := range o.tickets {
		t := &o.tickets[i]
		if t.good && (rec.Sub != t.receipt.Sub || pendingSettle(rec.Runs, t.receipt.Queue, t.receipt.Offset)) {
			e.flushSettle(rec) // before anything is said of the message
			rec.Sub = t.receipt.Sub
		}
		res, done := e.checkTicket(t, &s)
		if !done {
			v := e.fold.leases.CheckAck(&t.receipt)
			if v.Apply {
				addSettle(rec, &t.receipt, v.Lost)
			}
			res = e.result(&v)
			e.countAck(&v, o.ackRequest.Entries[i].Duplicate)
		}
		o.settled = append(o.settled, res)
	}
	e.flushSettle(rec)
}

func (e *Engine) countAck(v *lease.Verdict, duplicate bool) {
	switch {
	case v.Status != protocol.OK:
		e.stats.staleAcks.Add(1)
		return
	case v.Late:
		e.stats.lateAcks.Add(1)
	}
	if v.Apply {
		e.stats.acked.Add(1)
	}
	if duplicate {
		e.stats.duplicates.Add(1)
	}
}

// pendingSettle tells whether the record being built covers an offset already, as it does when a receipt
// stands in the batch twice.
func pendingSettle(runs []codec.SettleRun, q uint16, offset uint64) bool {
	for i := len(runs) - 1; i >= 0; i-- {
		if r := &runs[i]; r.Queue == q && offset >= r.Offset && offset < r.Offset+uint64(r.Count) {
			return true
		}
	}
	return false
}

func addSettle(rec *codec.Settle, r *lease.Receipt, lost bool) {
	if n := len(rec.Runs); n > 0 {
		last := &rec.Runs[n-1]
		if last.Queue == r.Queue && last.Token == r.Token && last.Lost == lost && last.Offset+uint64(last.Count) == r.Offset {
			last.Count++
			return
		}
	}
	rec.Runs = append(rec.Runs, codec.SettleRun{Queue: r.Queue, Lost: lost, Count: 1, Offset: r.Offset, Token: r.Token})
}

// flushSettle appends and applies what has been gathered.
func (e *Engine) flushSettle(rec *codec.Settle) {
	if len(rec.Runs) == 0 {
		return
	}
	h := e.appendRecord(codec.TypeSettle, rec.Append(e.scratch.payload))
	e.fold.leases.Settle(rec, h.LeaseMs)
	for i := range rec.Runs {
		e.freed(rec.Sub, rec.Runs[i].Queue, rec.Session)
	}
	e.uncap()
	rec.Runs = rec.Runs[:0]
}

// freed notes that leases of a queue and of a session are over: what a cap held back may go on.
func (e *Engine) freed(subID uint32, q uint16, session uint64) {
	if slot, ok := e.fold.leases.SlotOf(subID); ok {
		e.markActive(slot, q)
	}
	if s, ok := e.fold.sessions.Session(session); ok && len(e.sessRun[s.Slot].waiters) > 0 {
		for _, w := range e.sessRun[s.Slot].waiters {
			e.markDirty(w.sub)
		}
	}
}

// uncap has pops looked at that the cap on all unsettled messages held back, when there is room again.
func (e *Engine) uncap() {
	if !e.capped || e.fold.leases.Unsettled() >= e.limits.Unsettled {
		return
	}
	e.capped = false
	for slot := range e.subRun {
		if e.subRun[slot].id != 0 {
			e.markDirty(uint32(slot))
		}
	}
}

// change decides a CHANGE_INVISIBLE.
func (e *Engine) change(o *op) {
	s, status, why := e.session(o.changeRequest.Session)
	if status != protocol.OK {
		o.status, o.why = status, why
		return
	}
	g, _ := e.fold.sessions.GroupByID(s.Group)
	nowMs := e.lease.fine(e.clock.Mono())
	rec := &e.scratch.change
	*rec = codec.Change{Session: s.ID, Entries: rec.Entries[:0]}
	o.settled = o.settled[:0]
	for i := range o.tickets {
		t, x := &o.tickets[i], &o.changeRequest.Entries[i]
		if t.good && (rec.Sub != t.receipt.Sub || pendingChange(rec.Entries, t.receipt.Queue, t.receipt.Offset)) {
			e.flushChange(rec)
			rec.Sub = t.receipt.Sub
		}
		res, done := e.checkTicket(t, &s)
		switch {
		case done:
		case t.bad != protocol.OK:
			res.Status = t.bad
		case int64(x.InvisibleMs) > int64(g.Rules.MaxInvisibleMs):
			res.Status, res.BudgetMs = protocol.Invalid, g.Rules.MaxInvisibleMs
		default:
			c := e.fold.leases.CheckChange(&t.receipt, lease.Change{
				Ordinal: x.Ordinal, Cause: x.Cause, InvisibleMs: int64(x.InvisibleMs),
			}, g.Rules, nowMs, e.rnd)
			switch lends := c.Lost && c.Entry.Kind <= codec.ChangeShortened; {
			case !c.Apply:
			case lends && int(e.fold.leases.Held(s.Slot)) >= e.limits.LeasesPerSession:
				c = lease.Changed{Verdict: lease.Verdict{Status: protocol.LimitExceeded, Token: c.Token}}
			case c.Entry.Kind == codec.ChangeRenewed && !e.diskFor(perChange, grantReserve):
				c = lease.Changed{Verdict: lease.Verdict{Status: protocol.StoreFull, Token: c.Token}}
			default:
				rec.Entries = append(rec.Entries, c.Entry)
				if lends {
					e.flushChange(rec) // so that the leases of the session are what they are
				}
			}
			res = e.result(&c.Verdict)
			res.RenewalsLeft = c.RenewalsLeft
			res.RemainingMs = uint32(min(c.RemainingMs, 1<<32-1))
			res.BudgetMs = uint32(min(c.BudgetMs, 1<<32-1))
			e.countChange(&c)
		}
		o.settled = append(o.settled, res)
	}
	e.flushChange(rec)
}

func (e *Engine) countChange(c *lease.Changed) {
	switch {
	case c.Status != protocol.OK:
		e.stats.staleChanges.Add(1)
	case c.Apply && c.Entry.Kind == codec.ChangeRenewed:
		e.stats.renewals.Add(1)
	case c.Apply && c.Entry.Kind != codec.ChangeShortened:
		e.stats.releases.Add(1)
	}
}

func pendingChange(list []codec.ChangeEntry, q uint16, offset uint64) bool {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Queue == q && list[i].Offset == offset {
			return true
		}
	}
	return false
}

// flushChange appends and applies what has been gathered.
func (e *Engine) flushChange(rec *codec.Change) {
	if len(rec.Entries) == 0 {
		return
	}
	h := e.appendRecord(codec.TypeChange, rec.Append(e.scratch.payload))
	e.fold.change(&h, rec)
	for i := range rec.Entries {
		if rec.Entries[i].Kind > codec.ChangeShortened {
			e.freed(rec.Sub, rec.Entries[i].Queue, rec.Session)
		}
	}
	rec.Entries = rec.Entries[:0]
}
