package broker

import (
	"fmt"
	"slices"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// ledger is what the clients of a broker know: what they have asked for, and what they were told. What was told must outlive a
// crash; what was asked for and not answered may have happened or not.
type ledger struct {
	sends    map[string]*sentMessage // by body
	order    []*sentMessage
	settled  map[string]*settledMessage // by group and body
	subs     map[string]*told           // by group and topic
	sessions []*knownSession
	held     []*heldLease
	tokens   map[uint64]*grantedToken
	newest   map[string]uint64 // token, by group and body
	voids    []*topicVoid
	passed   uint64 // messages that were passed as unreadable
}

// told is something that was asked for, and may have been answered, in an epoch, when the log ended at end: its
// record lies before that.
type told struct {
	answered bool
	epoch    uint32
	end      uint64
}

// sentMessage is a message that was sent, perhaps in vain.
type sentMessage struct {
	told
	topic, body, tag string
	message          codec.Message
	at               time.Duration // when it was sent first
	result           protocol.SendResult
	asked            int             // how often it was sent
	refused          bool            // it was answered that it is not stored
	due              map[string]bool // groups that were subscribed before it was sent
	voids            []*topicVoid    // deletions and purges of its topic since
}

// position is that of the message's record.
func (m *sentMessage) position() uint64 {
	_, position := codec.MessageID(m.result.MessageID).Birth()
	return position
}

// gone tells whether the message went with its topic for sure, and whether it may have.
func (m *sentMessage) gone() (sure, perhaps bool) {
	for _, v := range m.voids {
		sure = sure || v.answered
	}
	return sure, len(m.voids) > 0
}

// repeatable tells whether the broker finds out that the message is sent again.
func (m *sentMessage) repeatable() bool {
	return m.message.ProducerID != 0 || m.message.UniqueKey != ""
}

// settledMessage is an ack of a message for a group. Unanswered it may have come too late.
type settledMessage struct {
	told
	lease *heldLease
}

// knownSession is a registration that was answered.
type knownSession struct {
	told
	group, consumer string
	id              uint64
	over            bool          // it was ended, or somebody asked for that
	seen            time.Duration // when it was last answered
	pops            stateHash     // newest sequence of the slots that are used
}

// heldLease is a row of a pop's answer.
type heldLease struct {
	session     *knownSession
	sub         *told
	topic, body string
	token       uint64
	receipt     []byte
	ordinal     uint32
	over        bool // given back, or somebody else may have been granted the message
	tried       bool // an ack was sent
}

// grantedToken is whom a token was given to.
type grantedToken struct {
	session uint64
	topic   string
}

// topicVoid is the deletion or the purge of a topic.
type topicVoid struct {
	told
	topic string
}

func newLedger() *ledger {
	return &ledger{
		sends: map[string]*sentMessage{}, settled: map[string]*settledMessage{}, subs: map[string]*told{},
		tokens: map[uint64]*grantedToken{}, newest: map[string]uint64{},
	}
}

// forget makes what was told of records that a power failure has taken a thing that may have happened or not. cut is the position
// at which the records of an epoch end in the log that is left.
func (l *ledger) forget(cut func(epoch uint32) uint64) {
	lost := func(f *told) { f.answered = f.answered && f.end <= cut(f.epoch) }
	for _, m := range l.order {
		if epoch, position := codec.MessageID(m.result.MessageID).Birth(); m.answered && position >= cut(epoch) {
			m.answered, m.voids = false, nil
			for _, x := range l.held {
				x.over = x.over || x.body == m.body
			}
		}
	}
	for _, s := range l.settled {
		lost(&s.told)
	}
	for _, s := range l.subs {
		lost(s)
	}
	for _, s := range l.sessions {
		lost(&s.told)
	}
	for _, v := range l.voids {
		lost(&v.told)
	}
	clear(l.newest) // grants were lost, too, and what they were given before may be leased again
}

// void notes that a topic is deleted or purged.
func (l *ledger) void(topic string, deleted bool) *topicVoid {
	v := &topicVoid{topic: topic}
	l.voids = append(l.voids, v)
	for _, m := range l.order {
		if m.topic == topic {
			m.voids = append(m.voids, v)
		}
	}
	for _, x := range l.held {
		x.over = x.over || x.topic == topic
	}
	if deleted {
		for _, group := range trialGroups {
			delete(l.subs, group+"/"+topic)
		}
	}
	return v
}

// contest notes that a pop of a group was not answered: what the group holds of the topic may be somebody else's by now.
func (l *ledger) contest(group, topic string) {
	for _, x := range l.held {
		x.over = x.over || x.topic == topic && x.session.group == group
	}
}

// granted checks a row that a pop, or the beginning of a session, has given, and notes it.
func (l *ledger) granted(t *trial, s *knownSession, topic, body string, row *protocol.LeaseRow) {
	t.t.Helper()
	m := l.sends[body]
	if m == nil || m.topic != topic {
		t.t.Fatalf("a ghost: %.20q of %s was never sent there", body, topic)
	}
	if sure, _ := m.gone(); sure {
		t.t.Fatalf("a ghost: %.20q went with topic %s", body, topic)
	}
	if m.refused {
		t.t.Fatalf("a ghost: %.20q was refused", body)
	}
	key := s.group + "/" + body
	if by := l.settled[key]; by != nil && by.answered {
		t.t.Fatalf("%.20q was settled by %s with token %d and came again with token %d", body, s.group, by.lease.token, row.Token)
	}
	if of := l.tokens[row.Token]; of == nil {
		l.tokens[row.Token] = &grantedToken{s.id, topic}
	} else if *of != (grantedToken{s.id, topic}) {
		t.t.Fatalf("token %d was given to session %d for %s and to session %d for %s", row.Token, of.session, of.topic, s.id, topic)
	}
	if newest := l.newest[key]; row.Token < newest {
		t.t.Fatalf("%.20q was granted to %s with token %d and again with token %d", body, s.group, newest, row.Token)
	} else if row.Token == newest {
		return // an answer that was asked for again
	}
	l.newest[key] = row.Token
	for _, x := range l.held {
		x.over = x.over || x.body == body && x.session.group == s.group
	}
	l.held = append(l.held, &heldLease{
		session: s, sub: l.subs[s.group+"/"+topic], topic: topic, body: body, token: row.Token, receipt: slices.Clone(row.Receipt),
	})
}

// checkHeld acks leases of before the crash by their receipts.
func (l *ledger) checkHeld(t *trial) {
	t.t.Helper()
	n := 0
	for _, x := range l.held {
		m := l.sends[x.body]
		_, perhapsGone := m.gone()
		switch {
		case x.over || x.tried || perhapsGone || !m.answered || x.sub == nil || !x.sub.answered || !t.lives(x.session):
			continue
		case t.rnd.IntN(3) > 0:
			continue
		}
		if n++; n > 8 {
			return
		}
		results, ok := t.ack(x.session, x)
		if !ok {
			return
		}
		if results[0].Status == protocol.AlreadySettled && t.drops {
			continue // it was dropped, held or not
		}
		if results[0].Status != protocol.OK {
			t.t.Fatalf("ack of %.20q by session %d with token %d after a crash: %s %s, newer token %d", x.body, x.session.id, x.token,
				results[0].Status, results[0].Reason, results[0].Token)
		}
		t.met["a lease of before a crash settled"]++
	}
}

// checkSettled repeats acks that were answered OK.
func (l *ledger) checkSettled(t *trial) {
	t.t.Helper()
	n := 0
	for _, key := range t.someKeys(l.settled) {
		s := l.settled[key]
		m := l.sends[s.lease.body]
		if _, perhapsGone := m.gone(); perhapsGone || !s.answered || !m.answered || s.lease.sub == nil || !s.lease.sub.answered || !t.lives(s.lease.session) {
			continue
		}
		if n++; n > 8 {
			return
		}
		results, ok := t.ack(s.lease.session, s.lease)
		if !ok {
			return
		}
		if results[0].Status != protocol.OK {
			t.t.Fatalf("repeated ack of %.20q with token %d: %s %s by %d", s.lease.body, s.lease.token, results[0].Status, results[0].Reason, results[0].Token)
		}
		t.met["an ack of before a crash repeated"]++
	}
}

// checkSessions asks whether the sessions that were told live.
func (l *ledger) checkSessions(t *trial) {
	t.t.Helper()
	for _, s := range l.sessions {
		if !t.lives(s) {
			continue
		}
		a, ok := t.ask(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.id})
		if !ok {
			return
		}
		if a.Status != protocol.OK {
			t.t.Fatalf("session %d of %s is gone: %s", s.id, s.group, a.Status)
		}
		s.seen = t.clock.mono
	}
}

// checkRepeats sends again what was sent before: what was answered gets the same answer, what was not is stored once.
func (l *ledger) checkRepeats(t *trial) {
	t.t.Helper()
	n := 0
	for i := len(l.order) - 1; i >= 0; i-- {
		m := l.order[i]
		_, perhapsGone := m.gone()
		switch {
		case !m.repeatable() || m.refused:
			continue
		case m.answered && (n > 12 || t.rnd.IntN(4) > 0 || m.message.ProducerID == 0 && (perhapsGone || t.clock.mono-m.at > 5*time.Minute)):
			continue
		}
		if m.answered {
			n++
		}
		if !t.sendAgain(m) {
			return
		}
	}
}

// seenMessage is a message as a look through all queues found it.
type seenMessage struct {
	queue  uint16
	offset uint64
	id     codec.MessageID
}

// checkQueues looks through all queues: everything that was told is there, nothing else is, and nothing is there twice.
func (l *ledger) checkQueues(t *trial) {
	t.t.Helper()
	var list protocol.ListTopicsAnswer
	a, ok := t.ask(protocol.OpListTopics, 0, nil)
	if !ok {
		return
	}
	if err := list.Decode(a.body); err != nil || a.Status != protocol.OK {
		t.t.Fatalf("topics: %s %v", a.Status, err)
	}
	seen := map[string]seenMessage{}
	begins := map[string]uint64{}
	for i := range list.Topics {
		for q := range list.Topics[i].Queues {
			begin, ok := l.lookThrough(t, list.Topics[i].Name, q, seen)
			if !ok {
				return
			}
			begins[fmt.Sprint(list.Topics[i].Name, q)] = begin
		}
	}
	for _, m := range l.order {
		at, there := seen[m.body]
		sure, perhaps := m.gone()
		begin := begins[fmt.Sprint(m.topic, m.result.Queue)]
		switch {
		case there && (sure || m.refused):
			t.t.Fatalf("a ghost: %.20q of %s", m.body, m.topic)
		case there && m.answered && at != (seenMessage{m.result.Queue, m.result.Offset, codec.MessageID(m.result.MessageID)}):
			t.t.Fatalf("%.20q of %s is at %+v, was told %+v", m.body, m.topic, at, m.result)
		case !there && m.answered && !perhaps && m.result.Offset >= begin:
			t.t.Fatalf("%.20q of %s, told to be at offset %d of queue %d, log position %d, is gone: the queue begins at %d (%+v)",
				m.body, m.topic, m.result.Offset, m.result.Queue, m.position(), begin, t.e.Log().Recovery())
		case there:
			t.met["a message found after a crash"]++
		}
	}
}

// lookThrough peeks at all messages of a queue and tells where it begins.
func (l *ledger) lookThrough(t *trial, topic string, q uint16, seen map[string]seenMessage) (begin uint64, ok bool) {
	t.t.Helper()
	failed := 0
	for at := uint64(0); ; {
		a, ok := t.ask(protocol.OpPeek, 0, &protocol.PeekRequest{Topic: topic, Queue: q, Offset: at, Max: 256})
		if !ok {
			return 0, false
		}
		if a.Status == protocol.Unreadable && t.faulty && failed == 0 {
			failed++ // the disk has failed to read, once
			continue
		}
		var p protocol.PeekAnswer
		if err := p.Decode(a.body); err != nil || a.Status != protocol.OK {
			var why protocol.ErrorBody
			_ = why.Decode(a.body)
			t.t.Fatalf("peek at offset %d of queue %d of %s: %s %s %v", at, q, topic, a.Status, why.Message, err)
		}
		at = max(at, p.Begin)
		for i := range p.Rows {
			_, assigned, payload, err := codec.ReadRecord(p.Record(i))
			var v codec.View
			if err != nil || v.Parse(payload) != nil {
				t.t.Fatalf("offset %d of queue %d of %s: %v", at, q, topic, err)
			}
			place, body := codec.ParseMessagePlace(assigned), string(v.Body)
			if m := l.sends[body]; m == nil || m.topic != topic {
				t.t.Fatalf("a ghost: %.20q at offset %d of queue %d of %s was never sent there", body, place.Offset, q, topic)
			}
			if twice, ok := seen[body]; ok {
				t.t.Fatalf("%.20q of %s is there twice: at %+v and at offset %d of queue %d", body, topic, twice, place.Offset, q)
			}
			seen[body] = seenMessage{q, place.Offset, place.ID}
			at++
		}
		if len(p.Rows) == 0 && at < p.End {
			t.t.Fatalf("queue %d of %s ends at %d, nothing is at offset %d", q, topic, p.End, at)
		}
		if at >= p.End || len(p.Rows) == 0 {
			return p.Begin, true
		}
	}
}

// checkDelivered pops what there is for every group, and sees that every message that was told was settled by each, or comes.
func (l *ledger) checkDelivered(t *trial) {
	t.t.Helper()
	missing := uint64(0)
	for _, group := range trialGroups {
		s, ok := t.register(group, "drain")
		if !ok {
			return
		}
		came := map[string]bool{}
		for idle := 0; idle < 4; { // no lease and no wait is longer than that
			n, ok := t.takeAll(s, came)
			if !ok {
				return
			}
			if idle++; n > 0 {
				idle = 0
			}
			t.advance(5 * time.Second)
		}
		for _, m := range l.order {
			_, perhaps := m.gone()
			by := l.settled[group+"/"+m.body]
			if !m.answered || perhaps || !m.due[group] || came[m.body] || by != nil || !accepts(group, m) {
				continue
			}
			if t.drops && m.result.Offset < t.beginOf(m.topic, m.result.Queue) {
				continue
			}
			if missing++; missing > l.passed {
				t.t.Fatalf("%.20q of %s, at offset %d of queue %d, was never delivered to %s", m.body, m.topic, m.result.Offset, m.result.Queue, group)
			}
		}
	}
}

// accepts tells whether a group reads a message.
func accepts(group string, m *sentMessage) bool {
	tags := filterOf(group, m.topic)
	return len(tags) == 0 || slices.Contains(tags, m.tag)
}
