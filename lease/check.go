package lease

import (
	"math/rand/v2"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Verdict is what the table says of a receipt: what to answer, and, when Apply is set, that a record must
// make it so. AtMs is the lease-clock time of what Reason names.
type Verdict struct {
	Status protocol.Status
	Reason protocol.Reason
	Apply  bool
	Lost   bool // the grant behind the receipt was lost in a crash; the record stands for it too
	Late   bool // an ack after the lease had ended by time
	Token  uint64
	AtMs   int64
}

func refuse(s protocol.Status, why protocol.Reason, token uint64, atMs int64) Verdict {
	return Verdict{Status: s, Reason: why, Token: token, AtMs: atMs}
}

// slotOf finds the subscription that r names. An id that a crash took back may have gone to another one.
func (t *Table) slotOf(r *Receipt) (slot uint32, ok bool) {
	slot, ok = t.byID[r.Sub]
	if !ok || int(r.Queue) >= len(t.queues[slot]) {
		return 0, false
	}
	s := t.subs.At(slot)
	return slot, s.group == r.Group && s.topic == r.Topic
}

// CheckAck decides an ack by the receipt r, whose session the caller has found live and the caller's.
func (t *Table) CheckAck(r *Receipt) Verdict {
	slot, ok := t.slotOf(r)
	if !ok {
		return refuse(protocol.Stale, protocol.ReasonReset, 0, 0)
	}
	if !t.alive(r) {
		return refuse(protocol.Stale, protocol.ReasonReset, 0, 0)
	}
	e := t.find(slot, r.Queue, r.Offset)
	if e == nil {
		return t.checkAckWithout(slot, r)
	}
	switch {
	case e.state == settled && e.token == r.Token && !e.passed():
		return Verdict{Status: protocol.OK, Token: e.token}
	case e.state == settled:
		return refuse(protocol.AlreadySettled, protocol.ReasonSettled, e.token, e.sinceMs)
	case r.Token > e.token && t.lostToken(r.Token): // and not granted since, or the table knew a newer token
		return Verdict{Status: protocol.OK, Apply: true, Lost: true, Token: r.Token}
	case r.Token != e.token:
		return refuse(protocol.Stale, protocol.ReasonRegranted, e.token, e.sinceMs)
	case e.state == leased:
		return Verdict{Status: protocol.OK, Apply: true, Token: e.token}
	case e.ending == endedExpired:
		return Verdict{Status: protocol.OK, Apply: true, Late: true, Token: e.token}
	case e.ending == endedReleased, e.ending == endedTaken:
		return refuse(protocol.Stale, protocol.ReasonReleased, e.token, e.sinceMs)
	default:
		return refuse(protocol.Stale, protocol.ReasonSessionExpired, e.token, e.sinceMs)
	}
}

// checkAckWithout decides an ack of a message that the table has no entry of, and that lies in the log.
func (t *Table) checkAckWithout(slot uint32, r *Receipt) Verdict {
	lost := t.lostToken(r.Token)
	c := t.cursors.At(t.queues[slot][r.Queue])
	switch {
	case r.Offset < c.start: // a crash took the position from which it was granted
		return refuse(protocol.Stale, protocol.ReasonReset, 0, 0)
	case r.Offset >= c.next && lost:
		return Verdict{Status: protocol.OK, Apply: true, Lost: true, Token: r.Token}
	case r.Offset >= c.next: // the position was set back
		return refuse(protocol.Stale, protocol.ReasonReset, 0, 0)
	case lost || r.GrantMs <= t.subs.At(slot).horizonMs:
		return refuse(protocol.AlreadySettled, protocol.ReasonSettled, 0, 0)
	}
	return Verdict{Status: protocol.OK, Token: r.Token}
}

// CheckReclaim decides whether the session in the slot holder may have the message of r again, whose session has
// ended: if nobody was granted it since. Lost: it is granted although the table knows less of it than r does. With OK
// and no Apply the session has it already.
func (t *Table) CheckReclaim(r *Receipt, holder uint32) Verdict {
	slot, ok := t.slotOf(r)
	if !ok {
		return refuse(protocol.Stale, protocol.ReasonReset, 0, 0)
	}
	if !t.alive(r) {
		return refuse(protocol.Stale, protocol.ReasonReset, 0, 0)
	}
	e := t.find(slot, r.Queue, r.Offset)
	if e == nil {
		v := t.checkAckWithout(slot, r)
		if v.Status == protocol.OK && !v.Lost { // settled by this very receipt
			v = refuse(protocol.AlreadySettled, protocol.ReasonSettled, r.Token, 0)
		}
		return v
	}
	lost := r.Token > e.token && t.lostToken(r.Token)
	switch {
	case e.state == settled:
		return refuse(protocol.AlreadySettled, protocol.ReasonSettled, e.token, e.sinceMs)
	case e.state == leased && e.holder == holder:
		return Verdict{Status: protocol.OK, Token: e.token}
	case e.state == leased, !lost && r.Token != e.token:
		return refuse(protocol.Stale, protocol.ReasonRegranted, e.token, e.sinceMs)
	case !lost && (e.ending == endedReleased || e.ending == endedTaken):
		return refuse(protocol.Stale, protocol.ReasonReleased, e.token, e.sinceMs)
	}
	return Verdict{Status: protocol.OK, Apply: true, Lost: lost}
}

// Newest is what is known of the message of r, whose session has ended: whether it is settled, and the newest token.
func (t *Table) Newest(r *Receipt) (isSettled bool, token uint64, sinceMs int64) {
	slot, ok := t.slotOf(r)
	if !ok || !t.alive(r) {
		return false, 0, 0
	}
	if e := t.find(slot, r.Queue, r.Offset); e != nil {
		return e.state == settled && !e.passed(), e.token, e.sinceMs
	}
	c := t.cursors.At(t.queues[slot][r.Queue])
	return r.Offset >= c.start && r.Offset < c.next, 0, 0
}

// Change is what a CHANGE_INVISIBLE asks of one lease, its values checked.
type Change struct {
	Ordinal     uint32
	Cause       protocol.Cause
	InvisibleMs int64
}

// Changed is the outcome of a change: the verdict, the entry of the CHANGE record when Apply is set, and
// what is left afterwards.
type Changed struct {
	Verdict
	Entry        codec.ChangeEntry
	RenewalsLeft uint16
	RemainingMs  int64
	BudgetMs     int64
}

// MaxOrdinal is the most changes of one grant; the entry keeps 16 bits.
const MaxOrdinal = 1<<16 - 1

// CheckChange decides a change by the receipt r, whose session the caller has found live and the
// caller's. nowMs is the lease clock read as finely as it can be, so that no lease is cut short by the
// age of the last tick.
func (t *Table) CheckChange(r *Receipt, x Change, rules *codec.Rules, nowMs int64, rnd *rand.Rand) Changed {
	slot, ok := t.slotOf(r)
	if !ok {
		return Changed{Verdict: refuse(protocol.Stale, protocol.ReasonReset, 0, 0)}
	}
	if !t.alive(r) {
		return Changed{Verdict: refuse(protocol.Stale, protocol.ReasonReset, 0, 0)}
	}
	e := t.find(slot, r.Queue, r.Offset)
	if e == nil {
		v := t.checkAckWithout(slot, r)
		if v.Lost {
			return decideLostChange(r, 0, x, rules, nowMs, rnd)
		}
		if v.Status == protocol.OK {
			v = refuse(protocol.AlreadySettled, protocol.ReasonSettled, r.Token, 0)
		}
		return Changed{Verdict: v}
	}
	switch {
	case e.state == settled:
		return Changed{Verdict: refuse(protocol.AlreadySettled, protocol.ReasonSettled, e.token, e.sinceMs)}
	case r.Token > e.token && t.lostToken(r.Token):
		return decideLostChange(r, e.failures, x, rules, nowMs, rnd)
	case r.Token != e.token:
		return Changed{Verdict: refuse(protocol.Stale, protocol.ReasonRegranted, e.token, e.sinceMs)}
	case e.state == leased:
		return decideChange(r, e, x, rules, nowMs, rnd, Verdict{Status: protocol.OK, Token: e.token})
	case e.ending == endedExpired:
		return Changed{Verdict: refuse(protocol.Stale, protocol.ReasonExpired, e.token, e.sinceMs)}
	case e.ending == endedReleased && x.Ordinal <= uint32(e.ordinal) && x.Ordinal > 0: // done already
		c := Changed{Verdict: Verdict{Status: protocol.OK, Token: e.token}}
		c.RemainingMs = max(e.atMs-nowMs, 0)
		return c
	case e.ending == endedReleased, e.ending == endedTaken:
		return Changed{Verdict: refuse(protocol.Stale, protocol.ReasonReleased, e.token, e.sinceMs)}
	default:
		return Changed{Verdict: refuse(protocol.Stale, protocol.ReasonSessionExpired, e.token, e.sinceMs)}
	}
}

// decideChange decides a change of the lease e.
func decideChange(r *Receipt, e *entry, x Change, rules *codec.Rules, nowMs int64, rnd *rand.Rand, v Verdict) Changed {
	c := Changed{Verdict: v}
	renewals := e.renewals
	endMs := e.atMs
	switch {
	case x.Ordinal > 0 && x.Ordinal <= uint32(e.ordinal): // the repetition of one already done
	case x.Ordinal != uint32(e.ordinal)+1 || x.Ordinal > MaxOrdinal:
		return Changed{Verdict: refuse(protocol.Stale, protocol.ReasonOrdinal, e.token, 0)}
	default:
		c.Apply = true
		c.Entry = codec.ChangeEntry{Queue: r.Queue, Lost: v.Lost, Ordinal: x.Ordinal, Offset: r.Offset, Token: r.Token}
		c.Entry.Kind, c.Entry.AtMs = kindOf(e, x, rules, nowMs, rnd)
		endMs = c.Entry.AtMs
		if c.Entry.Kind == codec.ChangeRenewed {
			if renewals >= rules.MaxRenewals && rules.MaxRenewals != protocol.UnlimitedRenewals ||
				rules.MaxTotalMs > 0 && endMs-e.sinceMs > int64(rules.MaxTotalMs) {
				c.Apply, c.Status, endMs = false, protocol.RenewLimit, e.atMs
			} else {
				renewals++
			}
		}
	}
	c.RemainingMs = max(endMs-nowMs, 0)
	if !c.Apply || c.Entry.Kind == codec.ChangeRenewed || c.Entry.Kind == codec.ChangeShortened {
		c.RenewalsLeft, c.BudgetMs = Budget(rules, renewals, endMs, e.sinceMs)
	} // else there is no lease left that could be extended
	return c
}

func kindOf(e *entry, x Change, rules *codec.Rules, nowMs int64, rnd *rand.Rand) (codec.ChangeKind, int64) {
	at := nowMs + x.InvisibleMs
	switch {
	case x.Cause == protocol.CauseFailed:
		if x.InvisibleMs == 0 {
			at = nowMs + FailureBackOffMs(rules, int(e.failures)+1, rnd)
		}
		return codec.ChangeFailed, at
	case x.Cause == protocol.CausePostponed:
		return codec.ChangePostponed, at
	case x.InvisibleMs == 0:
		return codec.ChangeReleased, 0 // visible from the stamp of the record on
	case at > e.atMs:
		return codec.ChangeRenewed, at
	default:
		return codec.ChangeShortened, at
	}
}

// Budget is what a lease may still be extended by: renewals, and milliseconds beyond endMs under the cap
// on the total.
func Budget(rules *codec.Rules, renewals uint16, endMs, sinceMs int64) (left uint16, ms int64) {
	switch {
	case rules.MaxRenewals == protocol.UnlimitedRenewals:
		left = protocol.UnlimitedRenewals
	case renewals < rules.MaxRenewals:
		left = rules.MaxRenewals - renewals
	}
	perRenewal := int64(rules.MaxInvisibleMs)
	if left == 0 {
		return 0, 0
	}
	if rules.MaxTotalMs > 0 {
		return left, max(sinceMs+int64(rules.MaxTotalMs)-endMs, 0)
	}
	if left == protocol.UnlimitedRenewals {
		return left, int64(^uint32(0))
	}
	return left, min(perRenewal*int64(left), int64(^uint32(0)))
}
