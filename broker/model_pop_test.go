package broker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// The model of pops: pop ids, which messages can be had, and who waits.

// Taking messages

// modelVerdict is what a pop must be answered with.
type modelVerdict int

const (
	popRefused modelVerdict = iota // at once, with the refusal
	popRepeats                     // at once, with leases that were granted before, or EMPTY
	popOpen                        // with what can be had, now or later
)

// pop decides what becomes of a POP before it is asked what can be had: it makes the subscription, and what
// the pop id says happens.
func (m *model) pop(r *protocol.PopRequest, p *modelPop) (
	v modelVerdict, no modelRefusal, again map[modelPlace]*modelEntry) {
	s, no := m.call(r.Session)
	if s == nil {
		return popRefused, no, nil
	}
	if r.Sequence > 0 {
		if v, no, again := m.popID(s, r); v != popOpen {
			return v, no, again
		}
	}
	g := m.groups[s.group]
	p.leaseMs = int64(cmp.Or(r.InvisibleMs, g.rules.InvisibleMs))
	if p.leaseMs > int64(g.rules.MaxInvisibleMs) {
		return popRefused, modelRefusal{status: protocol.Invalid, detail: uint64(g.rules.MaxInvisibleMs)}, nil
	}
	if g.rules.MaxTotalMs > 0 {
		p.leaseMs = min(p.leaseMs, int64(g.rules.MaxTotalMs))
	}
	p.session, p.topic, p.max, p.slot, p.sequence = s.id, r.Topic, int(r.Max), r.Slot, r.Sequence
	p.maxBytes, p.dueMs = int(cmp.Or(r.MaxBytes, protocol.MaxPopBytes)), m.fineMs+int64(r.AwaitMs)
	if g.subs[r.Topic] == nil { // the first pop
		sub := &modelSub{id: m.nextSub, entries: map[modelPlace]*modelEntry{}}
		m.nextSub++
		for _, queue := range m.topics[r.Topic].queues {
			start := uint64(0)
			if r.Start == protocol.StartLatest {
				start = uint64(len(queue))
			}
			sub.starts = append(sub.starts, start)
		}
		g.subs[r.Topic] = sub
	}
	if m.held(s.id) >= m.leasesPerSession {
		return popRefused, modelRefusal{status: protocol.LimitExceeded, detail: uint64(m.leasesPerSession)}, nil
	}
	return popOpen, no, nil
}

// popID decides by the pop id: the answer before is repeated, or this is a new pop.
func (m *model) popID(s *modelSession, r *protocol.PopRequest) (
	v modelVerdict, no modelRefusal, again map[modelPlace]*modelEntry) {
	slot := s.slots[r.Slot]
	if slot == nil {
		slot = &modelSlot{}
		s.slots[r.Slot] = slot
	}
	known := max(slot.seen, slot.sequence)
	next := r.Sequence == known+1 || r.Sequence > known && slot.seen == 0
	switch {
	case r.Sequence == known && r.Sequence == slot.sequence: // the repetition
		slot.seen = r.Sequence
		if slot.topic != r.Topic {
			return popRefused, modelRefusal{status: protocol.Invalid, detail: r.Sequence + 1}, nil
		}
		return popRepeats, no, m.leasesOf(s, slot)
	case r.Sequence != known && !next:
		return popRefused, modelRefusal{status: protocol.Invalid, detail: known + 1}, nil
	}
	// The next one, or the repetition of one that was granted nothing: what waits in the slot is replaced.
	m.refuse(modelRefusal{status: protocol.Superseded}, func(p *modelPop) bool {
		return p.session == s.id && p.sequence > 0 && p.slot == r.Slot
	})
	if r.PreviousLost && slot.sequence == r.Sequence-1 {
		m.event++
		for _, e := range m.leasesOf(s, slot) {
			m.giveBack(e, protocol.ReasonReleased, m.nowMs)
			e.ordinal = 0 // the holder never heard of the lease: no change of it is repeated
		}
	}
	slot.seen = r.Sequence
	return popOpen, no, nil
}

// leasesOf is what a session still holds of what a pop was granted.
func (m *model) leasesOf(s *modelSession, slot *modelSlot) map[modelPlace]*modelEntry {
	leases := map[modelPlace]*modelEntry{}
	if sub := m.groups[s.group].subs[slot.topic]; sub != nil {
		for at, e := range sub.entries {
			if e.state == modelLeased && e.session == s.id && e.token == slot.token {
				leases[at] = e
			}
		}
	}
	return leases
}

// row is what POP tells of a lease.
func (m *model) row(g *modelGroup, e *modelEntry) protocol.LeaseRow {
	row := protocol.LeaseRow{
		Token: e.token, Attempt: uint32(e.counts.attempts), RemainingMs: m.remaining(e.endMs),
		Failures: uint8(e.counts.failures), Expiries: uint8(e.counts.expiries), SessionLosses: uint8(e.counts.losses),
	}
	row.RenewalsLeft, row.BudgetMs = g.budget(e)
	return row
}

func (m *model) held(session uint64) (n int) {
	for _, sub := range m.groups[m.sessions[session].group].subs {
		for _, e := range sub.entries {
			if e.state == modelLeased && e.session == session {
				n++
			}
		}
	}
	return n
}

// modelQueue is what can be had from one queue.
type modelQueue struct {
	ready []modelPlace // messages that came back, in the order in which they became ready: they go first
	fresh []modelPlace // new ones, the lowest offset first,
	room  int          // as long as there is room below the limit on the leases of a queue
}

func (m *model) onQueue(g *modelGroup, topic string, q uint16) (x modelQueue) {
	sub := g.subs[topic]
	x.room = int(g.rules.MaxInFlight)
	for at, e := range sub.entries {
		switch {
		case at.queue != q:
		case e.state == modelLeased:
			x.room--
		case e.state == modelWaiting && e.ready > 0:
			x.ready = append(x.ready, at)
		}
	}
	slices.SortFunc(x.ready, func(a, b modelPlace) int { return cmp.Compare(sub.entries[a].ready, sub.entries[b].ready) })
	for offset := sub.starts[q]; offset < uint64(len(m.topics[topic].queues[q])); offset++ {
		if at := (modelPlace{q, offset}); sub.entries[at] == nil {
			x.fresh = append(x.fresh, at)
		}
	}
	return x
}

// take takes a message from what can be had of its queue. Messages that became ready in one event may come in any
// order. Answers of few bytes may pass over what came back.
func (x *modelQueue) take(sub *modelSub, at modelPlace, fewBytes bool) error {
	x.room--
	if i := slices.Index(x.ready, at); i >= 0 {
		if sub.entries[at].ready != sub.entries[x.ready[0]].ready {
			return fmt.Errorf("the message at %v is not the one that came back first of %v", at, x.ready)
		}
		x.ready = slices.Delete(x.ready, i, i+1)
		return nil
	}
	switch {
	case len(x.ready) > 0 && !(differsOvertaking && fewBytes):
		return fmt.Errorf("the message at %v is taken before %v, which came back", at, x.ready)
	case len(x.fresh) == 0 || x.fresh[0] != at || x.room < 0:
		return fmt.Errorf("the message at %v is not the next new one of %v, with room for %d", at, x.fresh, x.room+1)
	}
	x.fresh = x.fresh[1:]
	return nil
}

// available is how many messages p can have.
func (m *model) available(p *modelPop) (n int) {
	g := m.groups[m.sessions[p.session].group]
	for q := range m.topics[p.topic].queues {
		x := m.onQueue(g, p.topic, uint16(q))
		n += len(x.ready) + min(len(x.fresh), max(x.room-len(x.ready), 0))
	}
	return min(n, p.max, m.leasesPerSession-m.held(p.session))
}

// modelRow is a row of the broker's answer, with what the model needs to know of its record.
type modelRow struct {
	protocol.LeaseRow
	at    modelPlace
	id    codec.MessageID
	body  string
	bytes int // of its record
}

// grant follows the broker in giving rows to p, if it may, and tells the rows as they should be.
func (m *model) grant(p *modelPop, rows []modelRow) ([]protocol.LeaseRow, error) {
	s := m.sessions[p.session]
	g := m.groups[s.group]
	sub := g.subs[p.topic]
	total := 0
	for _, r := range rows {
		total += r.bytes
	}
	switch n := m.available(p); {
	case len(rows) > 1 && total > p.maxBytes:
		return nil, fmt.Errorf("%d bytes, at most %d were asked for", total, p.maxBytes)
	case len(rows) > n, len(rows) < n && p.maxBytes == protocol.MaxPopBytes, len(rows) == 0:
		return nil, fmt.Errorf("%d messages, %d were to be had", len(rows), n)
	}
	if err := m.newToken(rows[0].Token); err != nil {
		return nil, err
	}
	var queues []modelQueue
	for q := range m.topics[p.topic].queues {
		queues = append(queues, m.onQueue(g, p.topic, uint16(q)))
	}
	m.event++
	var want []protocol.LeaseRow
	for _, r := range rows {
		q := r.at.queue
		if err := queues[q].take(sub, r.at, p.maxBytes < protocol.MaxPopBytes); err != nil {
			return nil, err
		}
		if message := m.topics[p.topic].queues[q][r.at.offset]; message.id != r.id || message.body != r.body {
			return nil, fmt.Errorf("the message at %v is %x %.10q, not %x %.10q", r.at, r.id, r.body, message.id, message.body)
		}
		e := sub.entries[r.at]
		if e == nil {
			e = &modelEntry{}
			sub.entries[r.at] = e
		}
		m.lend(e, s, rows[0].Token, m.fineMs+p.leaseMs)
		want = append(want, m.row(g, e))
	}
	if p.sequence > 0 {
		slot := s.slots[p.slot]
		slot.sequence, slot.token, slot.topic = p.sequence, rows[0].Token, p.topic
	}
	return want, nil
}

// newToken notes the token of a new grant: each is greater than all before.
func (m *model) newToken(token uint64) error {
	if uint32(token>>32) != m.epoch || uint32(token) <= m.numbers[m.epoch] {
		return fmt.Errorf("token %d:%d after %d:%d", token>>32, uint32(token), m.epoch, m.numbers[m.epoch])
	}
	m.numbers[m.epoch] = uint32(token)
	return nil
}

// counts are the messages of a topic that a group holds and that wait.
func (m *model) counts(group, topic string) (leased, waiting uint64) {
	for _, e := range m.groups[group].subs[topic].entries {
		switch e.state {
		case modelLeased:
			leased++
		case modelWaiting:
			waiting++
		}
	}
	return leased, waiting
}

// overdue is a pop that waits and should not: beside messages that it could have, or beyond its time.
func (m *model) overdue() *modelPop {
	for _, p := range m.parked {
		if m.available(p) > 0 || p.dueMs <= m.nowMs {
			return p
		}
	}
	return nil
}

func (m *model) unpark(p *modelPop) {
	m.parked = slices.DeleteFunc(m.parked, func(x *modelPop) bool { return x == p })
}
