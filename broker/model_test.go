package broker

import (
	"fmt"
	"maps"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// model is the lease rules, written once more, from docs/PROTOCOL.md and docs/ARCHITECTURE.md, in the most obvious
// way: maps, slices, and a walk over everything wherever something is asked for. It shares no code with the
// broker. The test that drives it (lockstep_test.go) gives the same history to both and compares each answer.
//
// Where the documents leave the broker a choice (which of several ready messages of different queues a pop is
// given) the model looks at the broker's answer, says whether it was allowed, and follows it. Everything else it
// foretells to the millisecond.
//
// A message is, for one group,
//
//	new                      never granted, as far as the log knows
//	leased until t           to one session
//	waiting until t          given back, expired, or lost with its session; ready when a tick has reached t
//	settled                  for ever
//
// Left out: tag filters, dead letters and the limits that lead to them, deletion, changes of a group's rules,
// damaged messages, full disks, the bound on the memory of settled messages, jitter of back-offs, which of several pops
// that wait is served first, and the number of the next grant (but it must grow).
type model struct {
	// The lease clock, ms. It moves by ticks: nowMs is its newest one, which stamps records and judges what is
	// over. New ends are counted from fineMs, which is what the clock would be if it ticked now.
	nowMs, fineMs int64
	// event numbers what happens, to tell the order in which messages came back.
	event int

	epoch       uint32
	numbers     map[uint32]uint32 // of each epoch, the newest number of a grant that the log has
	lastSession uint64
	nextSub     uint32

	topics   map[string]*modelTopic
	groups   map[string]*modelGroup
	sessions map[uint64]*modelSession
	parked   []*modelPop // pops that wait, the oldest first

	// refused is what pops that have waited must be answered with, by request.
	refused map[uint64]modelRefusal

	leasesPerSession int
	// remembers asks the broker whether it remembers a message that it has just settled.
	remembers func(modelReceipt) bool
}

// Where the broker does otherwise than the documents say. Each goes, with what it switches, when one of the two has
// been mended.
const (
	// A HEARTBEAT tells how many leases were lost since the broker's start, not since the session's.
	differsLeasesLost = true
	// A new message that fits into the bytes that are left overtakes one of its queue that came back and does not fit.
	differsOvertaking = true
	// The change of a lease whose grant was lost is told a budget that counts from the clock read finely, and later ones
	// from the newest tick.
	differsLostBudget = true
)

type modelTopic struct {
	queues [][]modelMessage
}

type modelMessage struct {
	id   codec.MessageID
	body string
}

type modelGroup struct {
	rules   protocol.GroupRules
	version uint64
	subs    map[string]*modelSub // by topic
}

// modelSub is a subscription: what a group knows of the messages of one topic.
type modelSub struct {
	id      uint32 // its incarnation
	starts  []uint64
	entries map[modelPlace]*modelEntry // of messages that are not new
}

type modelPlace struct {
	queue  uint16
	offset uint64
}

type modelState int

const (
	modelLeased modelState = iota + 1
	modelWaiting
	modelSettled
)

type modelEntry struct {
	state   modelState
	token   uint64 // of the newest grant
	session uint64 // that has or had the newest grant
	// endMs is when the lease ends (leased) or when the message is visible (waiting).
	endMs int64
	// sinceMs is when the newest grant was made (leased), when the lease ended (waiting), when it was settled.
	sinceMs int64
	ready   int             // waiting: the event that made it ready; 0: not yet
	why     protocol.Reason // waiting: how its lease ended: EXPIRED, RELEASED or the end of its session
	kept    bool            // settled: the broker remembers it
	found   bool            // it became known by the receipt of a grant that was lost in a crash
	ordinal uint32          // changes of the newest grant
	renewed int             // of them, those that cost a renewal
	counts  modelCounts
}

type modelCounts struct{ attempts, failures, expiries, losses int }

type modelSession struct {
	id              uint64
	group, consumer string
	nonce           [16]byte
	ended           protocol.Reason // NONE: it lives
	endedMs         int64
	seenMs          int64 // newest sign of life
	silentTicks     int
	lost            uint32 // leases that ended by time
	slots           map[uint8]*modelSlot
}

// modelSlot is what is known of a session's pop slot.
type modelSlot struct {
	seen     uint64 // newest sequence that came since the broker's start; not kept over a restart
	sequence uint64 // newest sequence that was granted something, and the token of that grant
	token    uint64
	topic    string
}

// modelReceipt is what a receipt stands for. The driver knows which bytes mean which.
type modelReceipt struct {
	authentic bool
	group     string
	topic     string
	sub       uint32
	session   uint64
	at        modelPlace
	message   codec.MessageID
	token     uint64
}

type modelPop struct {
	request  uint64
	session  uint64
	topic    string
	max      int
	maxBytes int
	leaseMs  int64
	dueMs    int64
	slot     uint8
	sequence uint64
}

type modelRefusal struct {
	status protocol.Status
	reason protocol.Reason
	detail uint64
}

func newModel() *model {
	return &model{
		numbers: map[uint32]uint32{}, nextSub: 1, topics: map[string]*modelTopic{}, groups: map[string]*modelGroup{},
		sessions: map[uint64]*modelSession{}, refused: map[uint64]modelRefusal{},
	}
}

// Sending

// send notes a message that was stored.
func (m *model) send(topic string, q uint16, offset uint64, id codec.MessageID, body string) error {
	t := m.topics[topic]
	if int(q) >= len(t.queues) || offset != uint64(len(t.queues[q])) {
		return fmt.Errorf("stored at offset %d of queue %d", offset, q)
	}
	t.queues[q] = append(t.queues[q], modelMessage{id, body})
	return nil
}

// Sessions

// call is what every request does that names a session: it is a sign of life, or it is refused.
func (m *model) call(id uint64) (*modelSession, modelRefusal) {
	s, ok := m.sessions[id]
	switch {
	case !ok:
		return nil, modelRefusal{status: protocol.SessionNotFound}
	case s.ended == protocol.ReasonNone:
		s.seenMs = max(s.seenMs, m.fineMs)
		return s, modelRefusal{}
	case s.ended == protocol.ReasonSessionFenced:
		return nil, modelRefusal{protocol.SessionFenced, s.ended, uint64(m.nowMs - s.endedMs)}
	default:
		return nil, modelRefusal{protocol.SessionNotFound, s.ended, uint64(m.nowMs - s.endedMs)}
	}
}

func (m *model) liveOf(group, consumer string) *modelSession {
	for _, s := range m.sessions {
		if s.group == group && s.consumer == consumer && s.ended == protocol.ReasonNone {
			return s
		}
	}
	return nil
}

// register opens a session, or finds the one that the same nonce has opened. Another live session of the
// consumer id is fenced, unless the newcomer says that it comes after some other session: then it is refused.
// Reclaimed is left to reclaim.
func (m *model) register(r *protocol.RegisterRequest) (a protocol.RegisterAnswer, no modelRefusal) {
	g := m.groups[r.Group]
	s := m.liveOf(r.Group, r.ConsumerID)
	switch {
	case r.ReclaimMs > g.rules.MaxInvisibleMs:
		return a, modelRefusal{status: protocol.Invalid, detail: uint64(g.rules.MaxInvisibleMs)}
	case s != nil && s.nonce == r.Nonce:
		s.seenMs = max(s.seenMs, m.fineMs)
	case s != nil && r.Previous != 0 && s.id != r.Previous:
		return a, modelRefusal{status: protocol.SessionFenced, reason: protocol.ReasonSessionFenced}
	default:
		if s != nil {
			m.event++
			m.endSession(s, protocol.ReasonSessionFenced)
		}
		m.lastSession = max(m.lastSession, uint64(m.epoch)<<32) + 1
		s = &modelSession{
			id: m.lastSession, group: r.Group, consumer: r.ConsumerID, nonce: r.Nonce, seenMs: m.fineMs,
			slots: map[uint8]*modelSlot{},
		}
		m.sessions[s.id] = s
		g.version++
	}
	return protocol.RegisterAnswer{
		Session: s.id, Generation: s.id, HeartbeatMs: g.rules.HeartbeatMs, TimeoutMs: g.rules.SessionTimeoutMs,
		GroupVersion: g.version, InvisibleMs: g.rules.InvisibleMs, MaxInvisibleMs: g.rules.MaxInvisibleMs,
	}, no
}

func (m *model) heartbeat(id uint64) (a protocol.HeartbeatAnswer, no modelRefusal) {
	s, no := m.call(id)
	if s != nil {
		a.GroupVersion, a.LeasesLost = m.groups[s.group].version, s.lost
	}
	return a, no
}

// unregister ends a session in order. The repetition of one that was done is done.
func (m *model) unregister(id uint64) modelRefusal {
	s, no := m.call(id)
	if s != nil {
		m.event++
		m.endSession(s, protocol.ReasonSessionLeft)
	} else if no.reason == protocol.ReasonSessionLeft {
		return modelRefusal{}
	}
	return no
}

// endSession gives back what the session holds: visible at once when it left, or when it is the first loss of
// the message; otherwise after the back-off. Only a loss counts. Its pops that wait are refused.
func (m *model) endSession(s *modelSession, why protocol.Reason) {
	s.ended, s.endedMs, s.slots = why, m.nowMs, nil
	g := m.groups[s.group]
	g.version++
	for _, sub := range g.subs {
		for _, e := range sub.entries {
			if e.state != modelLeased || e.session != s.id {
				continue
			}
			atMs := m.nowMs
			if why != protocol.ReasonSessionLeft {
				if e.counts.losses > 0 {
					atMs += g.backOffMs(e.counts.losses)
				}
				e.counts.losses++
			}
			m.giveBack(e, why, atMs)
		}
	}
	_, no := m.call(s.id)
	m.refuse(no, func(p *modelPop) bool { return p.session == s.id })
}

// refuse answers pops that wait.
func (m *model) refuse(no modelRefusal, which func(*modelPop) bool) {
	m.parked = slices.DeleteFunc(m.parked, func(p *modelPop) bool {
		if which(p) {
			m.refused[p.request] = no
			return true
		}
		return false
	})
}

// Time

// tick moves the lease clock. Leases that are over end first, and wait a second; then sessions that have been
// silent end, if two rounds of markers have found them silent still.
func (m *model) tick(nowMs int64) {
	m.nowMs, m.fineMs = nowMs, nowMs
	m.event++
	for _, g := range m.groups {
		for _, sub := range g.subs {
			for _, e := range sub.entries {
				switch {
				case e.state == modelWaiting && e.ready == 0 && e.endMs <= nowMs:
					e.ready = m.event
				case e.state == modelLeased && e.endMs <= nowMs:
					e.counts.expiries++
					m.sessions[e.session].lost++
					m.giveBack(e, protocol.ReasonExpired, max(e.endMs+1000, nowMs))
				}
			}
		}
	}
	m.event++
	for _, s := range m.sessions {
		if s.ended != protocol.ReasonNone {
			continue
		}
		if nowMs-s.seenMs < int64(m.groups[s.group].rules.SessionTimeoutMs) {
			s.silentTicks = 0
		} else if s.silentTicks++; s.silentTicks > 2 {
			m.endSession(s, protocol.ReasonSessionExpired)
		}
	}
}

// Starting again

// restart is the model of a broker that has recovered this state: leases and waits go on, by a clock that
// resumes from the newest record; the silence of sessions begins anew; pops that waited are gone.
func (m *model) restart(nowMs int64, epoch uint32) {
	m.nowMs, m.fineMs, m.epoch = nowMs, nowMs, epoch
	m.parked, m.refused = nil, map[uint64]modelRefusal{}
	for _, s := range m.sessions {
		s.silentTicks = 0
		if differsLeasesLost {
			s.lost = 0
		}
		if s.ended == protocol.ReasonNone {
			s.seenMs = nowMs
		}
		for _, slot := range s.slots {
			slot.seen = 0
		}
	}
	for _, g := range m.groups {
		for _, sub := range g.subs {
			for _, e := range sub.entries {
				if e.state == modelWaiting && e.endMs > e.sinceMs {
					e.ready = 0 // no record says that a wait is over: the next tick does
				}
			}
		}
	}
}

// clone is a copy of what the log keeps.
func (m *model) clone() *model {
	c := *m
	c.parked, c.refused = nil, map[uint64]modelRefusal{}
	c.numbers = maps.Clone(m.numbers)
	c.topics, c.groups, c.sessions = map[string]*modelTopic{}, map[string]*modelGroup{}, map[uint64]*modelSession{}
	for name, t := range m.topics {
		c.topics[name] = &modelTopic{slices.Clone(t.queues)}
	}
	for name, g := range m.groups {
		subs := map[string]*modelSub{}
		for topic, sub := range g.subs {
			entries := make(map[modelPlace]*modelEntry, len(sub.entries))
			for at, e := range sub.entries {
				copied := *e
				entries[at] = &copied
			}
			subs[topic] = &modelSub{sub.id, sub.starts, entries}
		}
		c.groups[name] = &modelGroup{g.rules, g.version, subs}
	}
	for id, s := range m.sessions {
		copied := *s
		copied.slots = map[uint8]*modelSlot{}
		for n, slot := range s.slots {
			mark := *slot
			copied.slots[n] = &mark
		}
		c.sessions[id] = &copied
	}
	return &c
}
