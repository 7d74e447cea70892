package broker

import (
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/heartbeat"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/protocol"
)

// Reclaiming. A consumer whose session has ended comes back with the receipts of what it held. What nobody was granted
// since it is granted again, right behind the start of its new session, so that no other pop can come between.

// prepareRegister checks the signatures of the receipts that a REGISTER presents.
func (l *Loop) prepareRegister(o *op, r *protocol.RegisterRequest) {
	o.tickets = o.tickets[:0]
	for _, receipt := range r.Receipts {
		var t ticket
		t.good = l.e.key.Parse(receipt, &t.receipt)
		o.tickets = append(o.tickets, t)
	}
}

// reclaim grants s what the receipts of o name, in one GRANT record for each run of receipts of one subscription, and
// notes what became of each. A receipt whose message s has already stands twice, or comes with the
// repetition of a REGISTER: it is told that lease again.
func (e *Engine) reclaim(o *op, s *heartbeat.Session, ms uint32) {
	o.register.Reclaimed = o.register.Reclaimed[:0]
	if len(o.tickets) == 0 {
		return
	}
	nowMs := e.lease.fine(e.clock.Mono())
	rec := codec.Grant{Session: s.ID, DeadlineMs: nowMs + e.reclaimMs(s, ms)}
	pending := map[place]struct{}{} // in rec
	for i := range o.tickets {
		r := &o.tickets[i].receipt
		res, done := e.checkFormer(&o.tickets[i], s)
		if !done {
			at := place{r.Queue, r.Offset}
			if rec.Sub != r.Sub {
				e.flushReclaim(&rec, s)
				rec.Sub = r.Sub
				clear(pending)
			}
			v := e.fold.leases.CheckReclaim(r, s.Slot)
			_, twice := pending[at]
			switch {
			case twice && v.Reason != protocol.ReasonReset:
				v = lease.Verdict{Status: protocol.OK}
			case !v.Apply:
			case int(e.fold.leases.Held(s.Slot))+len(rec.Runs) >= e.limits.LeasesPerSession:
				v = lease.Verdict{Status: protocol.LimitExceeded}
			case !e.diskFor(perReclaim, grantReserve):
				v = lease.Verdict{Status: protocol.StoreFull}
			default:
				pending[at] = struct{}{}
				rec.Runs = append(rec.Runs, codec.GrantRun{Queue: r.Queue, Kind: codec.RunReclaimed, Count: 1, Offset: r.Offset})
			}
			res = e.result(&v)
		}
		o.register.Reclaimed = append(o.register.Reclaimed, protocol.Reclaimed{
			Status: res.Status, Reason: res.Reason, Token: res.Token, AgoMs: res.AgoMs,
		})
	}
	e.flushReclaim(&rec, s)
	e.tellReclaimed(o, s, nowMs)
}

// reclaimMs is the length of reclaimed leases.
func (e *Engine) reclaimMs(s *heartbeat.Session, ms uint32) int64 {
	g, _ := e.fold.sessions.GroupByID(s.Group)
	length := int64(ms)
	if length == 0 {
		length = int64(g.Rules.InvisibleMs)
	}
	if g.Rules.MaxTotalMs > 0 {
		length = min(length, int64(g.Rules.MaxTotalMs))
	}
	return length
}

// checkFormer says what can be said of a receipt of an ended session before the lease table is asked; done is
// false when it must be.
func (e *Engine) checkFormer(t *ticket, s *heartbeat.Session) (res protocol.SettleResult, done bool) {
	if !t.good || t.receipt.Group != s.Group {
		return protocol.SettleResult{Status: protocol.InvalidReceipt}, true
	}
	if of, ok := e.fold.sessions.Session(t.receipt.Session); ok && !of.Ended && of.ID != s.ID {
		return protocol.SettleResult{Status: protocol.InvalidReceipt}, true
	}
	if _, ok := e.fold.topics.ids[t.receipt.Topic]; !ok {
		return protocol.SettleResult{Status: protocol.TopicNotFound}, true
	}
	return res, false
}

// place is a message of a subscription.
type place struct {
	queue  uint16
	offset uint64
}

// flushReclaim appends and applies what has been gathered.
func (e *Engine) flushReclaim(rec *codec.Grant, s *heartbeat.Session) {
	if len(rec.Runs) == 0 {
		return
	}
	_, number := e.grantNumber()
	rec.Number = number
	h := e.appendRecord(codec.TypeGrant, rec.Append(e.scratch.payload))
	e.fold.leases.Grant(rec, h.Epoch, h.LeaseMs, s.Slot)
	e.stats.reclaimed.Add(uint64(len(rec.Runs)))
	rec.Runs = rec.Runs[:0]
}

// tellReclaimed notes the leases that s has now, and what their receipts will be made of.
func (e *Engine) tellReclaimed(o *op, s *heartbeat.Session, nowMs int64) {
	g, _ := e.fold.sessions.GroupByID(s.Group)
	for i := range o.register.Reclaimed {
		res, r := &o.register.Reclaimed[i], &o.tickets[i].receipt
		if res.Status != protocol.OK {
			continue
		}
		slot, _ := e.fold.leases.SlotOf(r.Sub)
		got, _ := e.fold.leases.Granted(slot, r.Queue, r.Offset)
		left, budgetMs := lease.Budget(g.Rules, got.Renewals, got.EndMs, got.SinceMs)
		res.Token, res.Attempt, res.RenewalsLeft = got.Token, uint32(got.Attempts), left
		res.RemainingMs = uint32(max(got.EndMs-nowMs, 0))
		res.BudgetMs = uint32(min(budgetMs, 1<<32-1))
		r.Session, r.Token, r.GrantMs = s.ID, got.Token, got.SinceMs
	}
}

// finishRegister makes the new receipts and encodes the answer.
func (l *Loop) finishRegister(o *op) {
	a := &o.register
	for i := range a.Reclaimed {
		if a.Reclaimed[i].Status == protocol.OK {
			a.Reclaimed[i].Receipt = l.e.key.Append(nil, &o.tickets[i].receipt)
		}
	}
	o.body = a.Append(o.body[:0])
}
