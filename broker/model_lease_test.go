package broker

import (
	"cmp"
	"fmt"

	"github.com/leasemq/leasemq/protocol"
)

// The model of leases: how they begin and end, what a receipt may still do, ACK, CHANGE_INVISIBLE, and what REGISTER
// reclaims.

// Leases

// lend makes e a lease of session s.
func (m *model) lend(e *modelEntry, s *modelSession, token uint64, endMs int64) {
	e.state, e.token, e.session, e.endMs, e.sinceMs = modelLeased, token, s.id, endMs, m.nowMs
	e.ordinal, e.renewed, e.ready = 0, 0, 0
	e.counts.attempts++
}

// giveBack ends the lease e.
func (m *model) giveBack(e *modelEntry, why protocol.Reason, visibleMs int64) {
	e.state, e.why, e.endMs, e.sinceMs, e.ready = modelWaiting, why, visibleMs, m.nowMs, 0
	if visibleMs <= m.nowMs {
		e.ready = m.event
	}
}

func (m *model) settle(e *modelEntry, r modelReceipt) {
	// What was granted once has one receipt, whose repetition is OK without memory. All others are remembered. So is one
	// that the cursor has not come to, which may be so for a message whose first grant was lost in a crash.
	e.kept = e.counts.attempts > 1 || m.lostToken(r.token) || e.found && m.remembers(r)
	e.state, e.token, e.sinceMs, e.ready = modelSettled, r.token, m.nowMs, 0
}

// backOffMs is the wait after the n-th failure.
func (g *modelGroup) backOffMs(n int) int64 {
	switch g.rules.BackOff {
	case protocol.BackOffNone:
		return 0
	case protocol.BackOffFixed:
		return int64(g.rules.BackOffMinMs)
	case protocol.BackOffLevels:
		s := []int64{10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200}
		return 1000 * s[min(n, len(s))-1]
	}
	panic("a back-off with jitter")
}

// budget is what renewals can still do for a lease.
func (g *modelGroup) budget(e *modelEntry) (left uint16, ms uint32) {
	left = protocol.UnlimitedRenewals
	if g.rules.MaxRenewals != protocol.UnlimitedRenewals {
		left = uint16(max(int(g.rules.MaxRenewals)-e.renewed, 0))
	}
	switch {
	case left == 0:
		return 0, 0
	case g.rules.MaxTotalMs > 0:
		return left, uint32(max(e.sinceMs+int64(g.rules.MaxTotalMs)-e.endMs, 0))
	case left == protocol.UnlimitedRenewals:
		return left, protocol.UnlimitedBudget
	}
	return left, uint32(min(int64(left)*int64(g.rules.MaxInvisibleMs), int64(protocol.UnlimitedBudget)))
}

func (m *model) remaining(ms int64) uint32 { return uint32(max(ms-m.fineMs, 0)) }

// lostToken tells that a token, which was given out, is of a grant that a crash took from the log: its number
// is above the newest one that the log has of that epoch.
func (m *model) lostToken(token uint64) bool {
	epoch := uint32(token >> 32)
	return epoch != m.epoch && uint32(token) > m.numbers[epoch]
}

// Receipts

// find is what a receipt is about: its subscription and the entry of its message, nil while that is new. there is
// false when the subscription is another one by now, or a crash has taken the message.
func (m *model) find(r modelReceipt) (sub *modelSub, e *modelEntry, there bool) {
	sub = m.groups[r.group].subs[r.topic]
	if sub == nil || sub.id != r.sub || r.at.offset < sub.starts[r.at.queue] {
		return nil, nil, false
	}
	queue := m.topics[r.topic].queues[r.at.queue]
	if r.at.offset < uint64(len(queue)) && queue[r.at.offset].id == r.message {
		return sub, sub.entries[r.at], true
	}
	return nil, nil, false
}

// refusal is the result of an entry that was refused for something that happened at sinceMs, 0: unknown.
func (m *model) refusal(status protocol.Status, reason protocol.Reason, token uint64,
	sinceMs int64) *protocol.SettleResult {
	a := &protocol.SettleResult{Status: status, Reason: reason, Token: token}
	if sinceMs > 0 {
		a.AgoMs = uint64(m.nowMs - sinceMs)
	}
	return a
}

// judge decides what can be said of a receipt that session s presents before its lease is looked at.
func (m *model) judge(s *modelSession, r modelReceipt) (sub *modelSub, e *modelEntry, no *protocol.SettleResult) {
	if !r.authentic || r.group != s.group {
		return nil, nil, m.refusal(protocol.InvalidReceipt, protocol.ReasonNone, 0, 0)
	}
	sub, e, there := m.find(r)
	if r.session != s.id {
		return nil, nil, m.judgeOthers(r, e)
	}
	switch {
	case !there:
		no = m.refusal(protocol.Stale, protocol.ReasonReset, 0, 0)
	case e == nil && !m.lostToken(r.token):
		panic("a grant that the log has, of a message that it does not know")
	case e != nil && e.state == modelSettled && e.token != r.token:
		no = m.settledBy(e, r)
	case e != nil && r.token < e.token:
		no = m.refusal(protocol.Stale, protocol.ReasonRegranted, e.token, e.sinceMs)
	}
	return sub, e, no
}

// judgeOthers refuses a receipt of another session. One that lives is another consumer's; one that has ended has
// taken its receipts with it.
func (m *model) judgeOthers(r modelReceipt, e *modelEntry) *protocol.SettleResult {
	of, known := m.sessions[r.session]
	why, endedMs, token := protocol.ReasonSessionExpired, int64(0), uint64(0)
	if known {
		why, endedMs = of.ended, of.endedMs
	}
	if e != nil {
		token = e.token
	}
	switch {
	case known && of.ended == protocol.ReasonNone:
		return m.refusal(protocol.InvalidReceipt, protocol.ReasonNone, 0, 0)
	case e != nil && e.state == modelSettled && !e.kept:
		return m.refusal(protocol.AlreadySettled, protocol.ReasonSettled, 0, 0)
	case e != nil && e.state == modelSettled:
		return m.refusal(protocol.AlreadySettled, protocol.ReasonSettled, token, e.sinceMs)
	}
	return m.refusal(protocol.Stale, why, token, endedMs)
}

// settledBy refuses r because its message is settled. How is told if it is remembered.
func (m *model) settledBy(e *modelEntry, r modelReceipt) *protocol.SettleResult {
	switch {
	case e.kept:
		return m.refusal(protocol.AlreadySettled, protocol.ReasonSettled, e.token, e.sinceMs)
	case e.token == r.token:
		return m.refusal(protocol.AlreadySettled, protocol.ReasonSettled, e.token, 0)
	}
	return m.refusal(protocol.AlreadySettled, protocol.ReasonSettled, 0, 0)
}

// ended refuses a receipt whose lease is over.
func (m *model) ended(e *modelEntry) protocol.SettleResult {
	return protocol.SettleResult{Status: protocol.Stale, Reason: e.why, Token: e.token, AgoMs: uint64(m.nowMs - e.sinceMs)}
}

// found is the entry of a message whose newest grant, by the authentic receipt r, was lost in a crash: the
// receipt proves that it was made.
func (m *model) found(sub *modelSub, e *modelEntry, r modelReceipt) *modelEntry {
	if e == nil {
		e = &modelEntry{found: true}
		sub.entries[r.at] = e
	}
	return e
}

// ack settles by one receipt. It succeeds for the newest grant, while the lease runs or when it has ended by
// nothing but time; and for a grant lost in a crash, while nobody was granted the message since.
func (m *model) ack(s *modelSession, r modelReceipt) protocol.SettleResult {
	sub, e, no := m.judge(s, r)
	switch {
	case no != nil:
		return *no
	case e != nil && e.state == modelSettled: // by this receipt
	case e == nil || r.token > e.token:
		e = m.found(sub, e, r)
		e.counts.attempts++
		m.settle(e, r)
	case e.state == modelWaiting && e.why != protocol.ReasonExpired:
		return m.ended(e)
	default:
		m.settle(e, r)
	}
	return protocol.SettleResult{Status: protocol.OK, Token: r.token}
}

// change extends, shortens or gives back one lease.
func (m *model) change(s *modelSession, r modelReceipt, x *protocol.ChangeEntry) protocol.SettleResult {
	g := m.groups[s.group]
	sub, e, no := m.judge(s, r)
	switch {
	case no != nil && (no.Status == protocol.InvalidReceipt || r.session != s.id):
		return *no
	case x.Ordinal == 0 || x.InvisibleMs > g.rules.MaxInvisibleMs,
		x.InvisibleMs > 0 && x.InvisibleMs < protocol.MinInvisibleMs:
		return protocol.SettleResult{Status: protocol.Invalid}
	case no != nil:
		return *no
	case e != nil && e.state == modelSettled:
		return *m.settledBy(e, r)
	case e == nil || r.token > e.token:
		return m.changeLost(s, sub, e, r, x)
	case e.state == modelWaiting && e.why == protocol.ReasonReleased &&
		x.Ordinal <= e.ordinal: // done already
		return protocol.SettleResult{Status: protocol.OK, Token: e.token, RemainingMs: m.remaining(e.endMs)}
	case e.state == modelWaiting:
		return m.ended(e)
	}
	return m.changeLease(e, x, g)
}

// changeLost is the change of a lease whose grant was lost in a crash: it is granted to its holder again, with
// the same token, and how many changes it had is lost: the one at hand is the next.
func (m *model) changeLost(s *modelSession, sub *modelSub, e *modelEntry, r modelReceipt,
	x *protocol.ChangeEntry) protocol.SettleResult {
	g := m.groups[s.group]
	probe := modelEntry{found: true}
	if e != nil {
		probe = *e
	}
	m.lend(&probe, s, r.token, m.fineMs)
	probe.ordinal = x.Ordinal - 1
	extends := x.Cause == protocol.CauseRenew && x.InvisibleMs > 0
	if differsLostBudget {
		probe.sinceMs = m.fineMs
	}
	a := m.changeLease(&probe, x, g)
	probe.sinceMs = m.nowMs
	if a.Status != protocol.OK {
		return a
	}
	if extends && m.held(s.id) >= m.leasesPerSession {
		return protocol.SettleResult{Status: protocol.LimitExceeded, Token: r.token}
	}
	*m.found(sub, e, r) = probe
	return a
}

// changeLease changes a lease that runs.
func (m *model) changeLease(e *modelEntry, x *protocol.ChangeEntry, g *modelGroup) protocol.SettleResult {
	a := protocol.SettleResult{Status: protocol.OK, Token: e.token}
	toMs := m.fineMs + int64(x.InvisibleMs)
	switch {
	case x.Ordinal > e.ordinal+1:
		return protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonOrdinal, Token: e.token}
	case x.Ordinal <= e.ordinal: // done already
	case x.Cause == protocol.CauseRenew && x.InvisibleMs > 0 && toMs > e.endMs:
		noneLeft := g.rules.MaxRenewals != protocol.UnlimitedRenewals && e.renewed >= int(g.rules.MaxRenewals)
		if noneLeft || g.rules.MaxTotalMs > 0 && toMs > e.sinceMs+int64(g.rules.MaxTotalMs) {
			a.Status = protocol.RenewLimit
			break
		}
		e.endMs = toMs
		e.renewed++
		e.ordinal = x.Ordinal
	case x.Cause == protocol.CauseRenew && x.InvisibleMs > 0: // shorter: free
		e.endMs = toMs
		e.ordinal = x.Ordinal
	default:
		m.event++
		e.ordinal = x.Ordinal
		switch x.Cause {
		case protocol.CauseRenew:
			toMs = m.nowMs
		case protocol.CauseFailed:
			e.counts.failures++
			if x.InvisibleMs == 0 {
				toMs = m.fineMs + g.backOffMs(e.counts.failures)
			}
		}
		m.giveBack(e, protocol.ReasonReleased, toMs)
		a.RemainingMs = m.remaining(toMs)
		return a
	}
	a.RemainingMs = m.remaining(e.endMs)
	a.RenewalsLeft, a.BudgetMs = g.budget(e)
	return a
}

// reclaim grants session s again, for ms, what its receipts name and nobody was granted since: what waits after an
// expiry or the end of its session, and what a crash has taken the grant of. Any other receipt is refused like its
// ack. got is what the broker says, whose tokens are taken over. The second result is what the new receipts mean.
func (m *model) reclaim(s *modelSession, receipts []modelReceipt, ms uint32, got []protocol.Reclaimed) (
	want []protocol.Reclaimed, means []modelReceipt, err error) {
	g := m.groups[s.group]
	leaseMs := int64(cmp.Or(ms, g.rules.InvisibleMs))
	if g.rules.MaxTotalMs > 0 {
		leaseMs = min(leaseMs, int64(g.rules.MaxTotalMs))
	}
	var last uint32  // subscription
	var token uint64 // of the record of the receipts of last
	m.event++
	for i, r := range receipts {
		var no *protocol.SettleResult
		var sub *modelSub
		var e *modelEntry
		there := false
		of := m.sessions[r.session]
		good := r.authentic && r.group == s.group && (of == nil || of.ended != protocol.ReasonNone || of == s)
		if good {
			sub, e, there = m.find(r)
			if r.sub != last {
				last, token = r.sub, 0
			}
		}
		switch {
		case !good:
			no = m.refusal(protocol.InvalidReceipt, protocol.ReasonNone, 0, 0)
		case !there:
			no = m.refusal(protocol.Stale, protocol.ReasonReset, 0, 0)
		case e != nil && e.state == modelSettled:
			no = m.settledBy(e, r)
		case e != nil && e.state == modelLeased && e.session == s.id: // it has it already
		case e != nil && (e.state == modelLeased || r.token < e.token):
			no = m.refusal(protocol.Stale, protocol.ReasonRegranted, e.token, e.sinceMs)
		case e != nil && e.token == r.token && e.why == protocol.ReasonReleased:
			no = m.refusal(protocol.Stale, protocol.ReasonReleased, e.token, e.sinceMs)
		case m.held(s.id) >= m.leasesPerSession:
			no = m.refusal(protocol.LimitExceeded, protocol.ReasonNone, 0, 0)
		case i >= len(got) || got[i].Status != protocol.OK:
			return nil, nil, fmt.Errorf("receipt %d is not granted again: %+v, %+v, %+v", i, r, e, sub.starts)
		default:
			if token == 0 {
				if err := m.newToken(got[i].Token); err != nil {
					return nil, nil, err
				}
				token = got[i].Token
			}
			e = m.found(sub, e, r)
			m.lend(e, s, token, m.fineMs+leaseMs)
		}
		if no != nil {
			want = append(want, protocol.Reclaimed{Status: no.Status, Reason: no.Reason, Token: no.Token, AgoMs: no.AgoMs})
			means = append(means, modelReceipt{})
			continue
		}
		row := m.row(g, e)
		want = append(want, protocol.Reclaimed{
			Status: protocol.OK, Token: row.Token, Attempt: row.Attempt,
			RemainingMs: row.RemainingMs, RenewalsLeft: row.RenewalsLeft, BudgetMs: row.BudgetMs,
		})
		r.session, r.token = s.id, e.token
		means = append(means, r)
	}
	return want, means, nil
}
