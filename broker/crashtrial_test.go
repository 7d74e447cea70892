package broker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/mmaplog/crashfs"
	"github.com/leasemq/leasemq/protocol"
)

type crashDisk = crashfs.FS[mmaplog.File, mmaplog.Mapping]

func newCrashDisk() *crashDisk { return crashfs.New[mmaplog.File, mmaplog.Mapping]() }

var (
	trialTopics = []string{"t0", "t1", "t2"}
	trialGroups = []string{"g0", "g1"}
)

// trial is a data directory whose log and snapshots lie on a disk that crashes, its brokers, one after the other, and their
// clients, played by the test's goroutine. Of the index files, too, only what was flushed is sure to be left. The receipt key lies on
// the machine's disk.
type trial struct {
	*rig
	*ledger
	rnd    *rand.Rand
	disk   *crashDisk
	queues *indexDisk
	c      *conn
	stop   bool // the broker has failed, or the disk has stopped: nothing more is asked
	faulty bool // the disk fails without having stopped
	drops  bool // the log has a hard limit: what groups need may go

	bodies   int
	sequence map[uint64]uint64 // by producer
	observed map[uint64]stateHash
	ends     []uint64
	powerCut bool // since the last start that served
	harmed   bool // index files, since the last snapshot
	met      map[string]int
}

func newTrial(t testing.TB, seed uint64, io mmaplog.IOMode, fsync mmaplog.Policy) *trial {
	x := &trial{
		rnd: rand.New(rand.NewPCG(seed, 11)), disk: newCrashDisk(), queues: newIndexDisk(), ledger: newLedger(),
		sequence: map[uint64]uint64{}, observed: map[uint64]stateHash{}, met: map[string]int{},
	}
	x.rig = &rig{t: t, clock: &testClock{wall: time.Unix(1_790_000_000, 0)}}
	x.o = Options{
		Dir: t.TempDir(), IO: io, Fsync: fsync, FsyncInterval: time.Millisecond, SegmentBytes: 64 << 10, RingBytes: 256 << 10,
		SnapshotBytes: 96 << 10, Clock: x.clock, Manual: true, Verify: true, Seed: seed, FS: x.disk,
		IndexFile: x.queues.open,
		Retention: Retention{Age: 20 * time.Second},
	}
	if x.rnd.IntN(4) == 0 {
		x.o.Retention.Bytes = 192 << 10
	}
	if x.drops = x.rnd.IntN(4) == 0; x.drops {
		x.o.Retention.HardBytes = 384 << 10
	}
	x.o.Observe = func(end uint64, hash func() stateHash) {
		x.observed[end] = hash()
		x.ends = append(x.ends, end)
	}
	return x
}

// begin starts a broker on the disk as it is. The error is that of Open.
func (t *trial) begin() error {
	n := len(t.ends)
	e, err := Open(t.o)
	t.ends = t.ends[:n] // the epoch's record is no state of the clients
	if err != nil {
		return err
	}
	t.e = e
	t.woken = make(chan struct{}, 1)
	woken := t.woken
	t.loop = e.NewLoop(func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	t.c = t.dial()
	t.stop = false
	for _, s := range t.sessions {
		s.pops = stateHash{} // a slot takes any higher number after a start: see settlePops
		s.seen = max(s.seen, t.clock.mono)
	}
	return nil
}

// end kills the broker.
func (t *trial) end() {
	t.e.Abort()
	t.passed += t.e.stats.unreadable.Load()
	t.met["segments removed"] += int(t.e.stats.segmentsRemoved.Load())
	t.met["messages copied forward"] += int(t.e.stats.copied.Load())
	t.met["snapshots taken"] += int(t.e.stats.snapshots.Load())
	if n, holes := t.e.stats.unreadable.Load(), t.e.stats.indexHoles.Load(); n+holes > 0 && !t.faulty {
		t.t.Fatalf("%d messages were unreadable, %d index entries wrong", n, holes)
	}
	if err := t.e.Err(); err != nil && !t.disk.Frozen() && !t.faulty {
		t.t.Fatal(err)
	}
}

// ask sends a request and waits for its answer. It is false when the outcome is unknown: the broker goes down.
func (t *trial) ask(code protocol.Opcode, flags protocol.Flags, body interface{ Append([]byte) []byte }) (answer, bool) {
	t.t.Helper()
	id := t.c.start(code, flags, body)
	for deadline := time.Now().Add(time.Minute); ; t.await() {
		if a, ok := t.c.peekAnswer(id); ok {
			delete(t.c.answers, id)
			if a.Status == protocol.StoreFailed {
				t.stop = true
			}
			return a, a.Status != protocol.StoreFailed
		}
		if time.Now().After(deadline) {
			t.t.Fatalf("%s is not answered (%v)", code, t.e.Err())
		}
		if t.e.waiting.Load() > 0 { // for the index to be loaded: that there is nothing it is told by a tick
			t.advance(tickFineMs * time.Millisecond)
		}
	}
}

// tell notes that something was answered.
func (t *trial) tell(f *told) { f.answered, f.epoch, f.end = true, t.e.Epoch(), t.e.Log().Appended() }

// lives tells whether a session must be alive.
func (t *trial) lives(s *knownSession) bool {
	return s.answered && !s.over && t.clock.mono-s.seen < 4*time.Minute
}

// someKeys is the keys of a map in a random order that the seed gives.
func (t *trial) someKeys(m map[string]*settledMessage) []string {
	keys := slices.Sorted(maps.Keys(m))
	t.rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// found makes the topics, the groups and the subscriptions, if they are not there.
func (t *trial) found() {
	for _, group := range trialGroups {
		rules := protocol.GroupRules{BackOff: protocol.BackOffNone, SessionTimeoutMs: protocol.MaxSessionTimeoutMs, HoldMs: protocol.HoldForever}
		if _, ok := t.ask(protocol.OpCreateGroup, 0, &protocol.GroupRequest{Name: group, Rules: rules}); !ok {
			return
		}
	}
	for _, topic := range trialTopics {
		if !t.makeTopic(topic) {
			return
		}
	}
}

// makeTopic makes a topic and has every group subscribe to it.
func (t *trial) makeTopic(topic string) bool {
	if _, ok := t.ask(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: topic, Queues: 2}); !ok {
		return false
	}
	for _, group := range trialGroups {
		if sub := t.subs[group+"/"+topic]; sub != nil && sub.answered {
			continue
		}
		s := t.consumer(group)
		if s == nil {
			var ok bool
			if s, ok = t.register(group, "first"); !ok {
				return false
			}
		}
		if _, ok := t.pop(s, topic, 1, false); !ok {
			return false
		}
	}
	return true
}

// step does something of what clients, and time, do.
func (t *trial) step() {
	t.t.Helper()
	switch p := t.rnd.IntN(100); {
	case p < 30:
		t.send(trialTopics[t.rnd.IntN(3)], 1+t.rnd.IntN(8))
	case p < 45:
		t.stepPop()
	case p < 62:
		t.stepTakeAll()
	case p < 72:
		t.stepAck()
	case p < 80:
		t.stepChange()
	case p < 86:
		t.stepSession()
	case p < 88:
		t.stepVoid()
	case p < 95:
		t.advance(time.Duration(t.rnd.IntN(3000)) * time.Millisecond)
		t.beat()
	default:
		t.stepSteward()
	}
}

// stepSteward takes a snapshot, or lets old log go, or both.
func (t *trial) stepSteward() {
	if t.rnd.IntN(3) > 0 {
		if _, err := t.e.Snapshot(); err == nil {
			t.harmed = false // what was built anew is durable
		} else if !t.disk.Frozen() && !t.faulty {
			t.t.Fatal(err)
		}
	}
	if t.rnd.IntN(3) > 0 {
		t.advance((reviewEveryMs + 1000) * time.Millisecond)
		t.e.Steward()
	}
	t.stop = t.stop || t.e.Err() != nil
}

func (t *trial) beat() {
	for _, s := range t.sessions {
		if t.stop {
			return
		}
		if t.lives(s) && t.rnd.IntN(3) > 0 {
			if _, ok := t.ask(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.id}); ok {
				s.seen = t.clock.mono
			}
		}
	}
}

// send sends new messages in one request.
func (t *trial) send(topic string, n int) {
	t.t.Helper()
	var list []*sentMessage
	for range n {
		t.bodies++
		body := fmt.Sprintf("%d-%s", t.bodies, string(make([]byte, t.rnd.IntN(2000))))
		m := &sentMessage{topic: topic, body: body, tag: []string{"", "red", "blue"}[t.rnd.IntN(3)], at: t.clock.mono, due: map[string]bool{}}
		m.message = codec.Message{Body: []byte(body), Tag: m.tag}
		if t.rnd.IntN(2) == 0 {
			m.message.ProducerID = uint64(1 + t.rnd.IntN(3))
			t.sequence[m.message.ProducerID]++
			m.message.Sequence = t.sequence[m.message.ProducerID]
		}
		if t.rnd.IntN(5) == 0 {
			m.message.UniqueKey = fmt.Sprint("key ", t.bodies)
		}
		t.sends[body] = m
		t.order = append(t.order, m)
		list = append(list, m)
	}
	if !t.sendAll(list) || t.rnd.IntN(3) > 0 {
		return
	}
	for _, m := range list { // those that say who they are may come again
		if m.repeatable() && !m.refused && !t.sendAgain(m) {
			return
		}
	}
}

// sendAgain sends one message that may have been stored.
func (t *trial) sendAgain(m *sentMessage) bool {
	t.t.Helper()
	first := m.result
	if answered := m.answered; !answered {
		return t.sendAll([]*sentMessage{m})
	}
	if !t.sendAll([]*sentMessage{m}) {
		return false
	}
	if m.result != first {
		t.t.Fatalf("%.20q of %s sent again: %+v, first %+v", m.body, m.topic, m.result, first)
	}
	t.met["a send repeated"]++
	return true
}

// sendAll sends messages of one topic and notes what is answered.
func (t *trial) sendAll(list []*sentMessage) bool {
	t.t.Helper()
	topic := list[0].topic
	req := protocol.SendRequest{Topic: topic, Queue: protocol.AnyQueue}
	for _, m := range list {
		b, err := m.message.Append(nil)
		if err != nil {
			t.t.Fatal(err)
		}
		req.Messages = append(req.Messages, b)
		m.asked++
		if !m.answered {
			for _, group := range trialGroups {
				sub := t.subs[group+"/"+topic]
				m.due[group] = sub != nil && sub.answered
			}
		}
	}
	a, ok := t.ask(protocol.OpSend, protocol.FlagCreate, &req)
	if !ok {
		return false
	}
	var res protocol.SendAnswer
	switch {
	case a.Status == protocol.StoreFull && t.faulty:
		for _, m := range list {
			m.refused = m.asked == 1 // one that comes again may be there already
		}
		return true
	case a.Status != protocol.OK:
		t.t.Fatalf("send: %s", a.Status)
	}
	if err := res.Decode(a.body); err != nil {
		t.t.Fatal(err)
	}
	for i, r := range res.Results {
		if r.Status != protocol.OK {
			t.t.Fatalf("send: %s", r.Status)
		}
		list[i].result = r
		t.tell(&list[i].told)
	}
	return true
}

// consumer is a session of a group that should live; nil if there is none.
func (t *trial) consumer(group string) *knownSession {
	var live []*knownSession
	for _, s := range t.sessions {
		if s.group == group && t.lives(s) {
			live = append(live, s)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[t.rnd.IntN(len(live))]
}

func (t *trial) anyConsumer() *knownSession { return t.consumer(trialGroups[t.rnd.IntN(2)]) }

func (t *trial) register(group, consumerID string, former ...*heldLease) (*knownSession, bool) {
	t.t.Helper()
	req := &protocol.RegisterRequest{Group: group, ConsumerID: consumerID, ReclaimMs: uint32(500 + t.rnd.IntN(5000))}
	copy(req.Nonce[:], fmt.Sprint("nonce ", t.next))
	for _, x := range former {
		req.Receipts = append(req.Receipts, x.receipt)
	}
	for _, s := range t.sessions {
		s.over = s.over || s.group == group && s.consumer == consumerID
	}
	a, ok := t.ask(protocol.OpRegister, protocol.FlagCreate, req)
	if !ok {
		for _, x := range former {
			t.contest(group, x.topic)
		}
		return nil, false
	}
	if a.Status != protocol.OK {
		if !t.faulty {
			t.t.Fatalf("register: %s", a.Status)
		}
		return nil, false
	}
	var res protocol.RegisterAnswer
	if err := res.Decode(a.body); err != nil {
		t.t.Fatal(err)
	}
	s := &knownSession{group: group, consumer: consumerID, id: res.Session, seen: t.clock.mono}
	t.tell(&s.told)
	t.sessions = append(t.sessions, s)
	for i, x := range res.Reclaimed {
		if x.Status == protocol.OK {
			t.granted(t, s, former[i].topic, former[i].body, &protocol.LeaseRow{Token: x.Token, Receipt: x.Receipt})
			t.met["a lease reclaimed"]++
		}
	}
	return s, true
}

// stepSession begins a session, one that comes back with receipts perhaps, or ends one.
func (t *trial) stepSession() {
	if t.rnd.IntN(3) == 0 {
		if s := t.anyConsumer(); s != nil {
			s.over = true
			t.ask(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: s.id})
		}
		return
	}
	group := trialGroups[t.rnd.IntN(2)]
	var former []*heldLease
	for _, x := range t.held[max(0, len(t.held)-60):] {
		if x.session.group == group && t.rnd.IntN(3) == 0 {
			former = append(former, x)
		}
	}
	t.register(group, fmt.Sprint("c", t.rnd.IntN(6)), former...)
}

func (t *trial) stepPop() {
	if s := t.anyConsumer(); s != nil {
		t.pop(s, trialTopics[t.rnd.IntN(3)], 1+t.rnd.IntN(12), t.rnd.IntN(2) == 0)
	}
}

// pop pops, and notes what is given. A pop with a number may be one that came before: it gives nothing new, and subscribes to nothing.
func (t *trial) pop(s *knownSession, topic string, most int, numbered bool) (got []*heldLease, ok bool) {
	t.t.Helper()
	req := popRequest(s.id, topic, most)
	req.FilterTags = filterOf(s.group, topic)
	req.InvisibleMs = uint32(10 + t.rnd.IntN(8000))
	if numbered { // mostly the next one, or one again
		req.Slot = uint8(t.rnd.IntN(len(s.pops)))
		req.Sequence = max(s.pops[req.Slot]+uint64(t.rnd.IntN(3))-1, 1)
		req.PreviousLost = t.rnd.IntN(4) == 0
		s.pops[req.Slot] = max(s.pops[req.Slot], req.Sequence)
		if req.PreviousLost {
			for _, x := range t.held { // what the slot gave before may be given back
				x.over = x.over || x.session == s
			}
		}
	}
	a, ok := t.ask(protocol.OpPop, protocol.FlagCreate, req)
	if !ok {
		t.contest(s.group, topic)
		return nil, false
	}
	switch a.Status {
	case protocol.OK, protocol.Empty:
	case protocol.Invalid:
		return nil, true // a number that is wrong
	case protocol.StoreFull, protocol.LimitExceeded:
		if t.faulty {
			return nil, true
		}
		fallthrough
	default:
		t.t.Fatalf("pop of %s by session %d: %s", topic, s.id, a.Status)
	}
	s.seen = t.clock.mono
	if sub := t.subs[s.group+"/"+topic]; !numbered && (sub == nil || !sub.answered) {
		sub = &told{}
		t.tell(sub)
		t.subs[s.group+"/"+topic] = sub
	}
	p := t.c.popped(a)
	from := len(t.held)
	for i := range p.Rows {
		t.granted(t, s, topic, t.c.bodyOf(&p, i), &p.Rows[i])
	}
	return t.held[from:], true
}

// stepTakeAll has a consumer pop everything of a topic, and ack most of it.
func (t *trial) stepTakeAll() {
	s := t.anyConsumer()
	if s == nil {
		return
	}
	topic := trialTopics[t.rnd.IntN(3)]
	for range 4 {
		got, ok := t.pop(s, topic, 100, t.rnd.IntN(2) == 0)
		if !ok || len(got) == 0 {
			return
		}
		got = slices.DeleteFunc(slices.Clone(got), func(*heldLease) bool { return t.rnd.IntN(25) == 0 })
		if _, ok := t.ack(s, got...); !ok {
			return
		}
	}
}

// takeAll pops and acks everything that a session can have, once, and notes what came.
func (t *trial) takeAll(s *knownSession, came map[string]bool) (n int, ok bool) {
	t.t.Helper()
	for _, topic := range trialTopics {
		for {
			got, ok := t.pop(s, topic, 256, false)
			if !ok {
				return n, false
			}
			if len(got) == 0 {
				break
			}
			n += len(got)
			for _, x := range got {
				came[x.body] = true
			}
			if _, ok := t.ack(s, got...); !ok {
				return n, false
			}
		}
	}
	return n, true
}

func (t *trial) stepAck() {
	s := t.anyConsumer()
	if s == nil || len(t.held) == 0 {
		return
	}
	var some []*heldLease
	for range 10 {
		if x := t.held[len(t.held)-1-t.rnd.IntN(min(len(t.held), 100))]; x.session == s {
			some = append(some, x)
		}
	}
	if len(some) > 0 {
		t.ack(s, some...)
	}
}

// ack acks leases of a session, and notes what is answered.
func (t *trial) ack(s *knownSession, some ...*heldLease) ([]protocol.SettleResult, bool) {
	t.t.Helper()
	if len(some) == 0 {
		return nil, true
	}
	req := protocol.AckRequest{Session: s.id}
	for _, x := range some {
		x.tried = true
		req.Entries = append(req.Entries, protocol.AckEntry{Receipt: x.receipt})
	}
	a, ok := t.ask(protocol.OpAck, 0, &req)
	var res protocol.AckAnswer
	if ok {
		if err := res.Decode(a.body); err != nil || a.Status != protocol.OK {
			t.t.Fatalf("ack by session %d: %s %v", s.id, a.Status, err)
		}
		s.seen = t.clock.mono
	}
	for i, x := range some {
		key := s.group + "/" + x.body
		known := t.settled[key]
		if known == nil {
			known = &settledMessage{lease: x}
		}
		switch {
		case !ok:
			t.settled[key] = known
		case res.Results[i].Status == protocol.OK:
			if !known.answered {
				known.lease = x
			}
			if known.lease.token != x.token {
				t.t.Fatalf("%.20q was settled by token %d, and then by %d", x.body, known.lease.token, x.token)
			}
			t.tell(&known.told)
			t.settled[key] = known
		case res.Results[i].Status == protocol.AlreadySettled && t.settled[key] == nil:
			if _, perhapsGone := t.sends[x.body].gone(); !perhapsGone && t.passed == 0 && !t.faulty && !t.drops {
				t.t.Fatalf("%.20q is settled for %s, says an ack; nobody has acked it", x.body, s.group)
			}
		}
	}
	return res.Results, ok
}

func (t *trial) stepChange() {
	s := t.anyConsumer()
	if s == nil || len(t.held) == 0 {
		return
	}
	x := t.held[len(t.held)-1-t.rnd.IntN(min(len(t.held), 100))]
	if x.session != s {
		return
	}
	entry := protocol.ChangeEntry{
		Receipt: x.receipt, Ordinal: x.ordinal + 1, Cause: protocol.Cause(t.rnd.IntN(3)), InvisibleMs: uint32(t.rnd.IntN(3) * 2000),
	}
	x.over = x.over || entry.Cause != protocol.CauseRenew || entry.InvisibleMs == 0
	a, ok := t.ask(protocol.OpChangeInvisible, 0, &protocol.ChangeInvisibleRequest{Session: s.id, Entries: []protocol.ChangeEntry{entry}})
	var res protocol.ChangeInvisibleAnswer
	if ok && a.Status == protocol.OK && res.Decode(a.body) == nil && res.Results[0].Status == protocol.OK {
		x.ordinal++
	}
}

// stepVoid purges a topic, or deletes it and makes it again.
func (t *trial) stepVoid() {
	if t.rnd.IntN(2) == 0 {
		return
	}
	topic, deleted := trialTopics[t.rnd.IntN(3)], t.rnd.IntN(2) == 0
	v := t.void(topic, deleted)
	code := protocol.OpPurgeTopic
	if deleted {
		code = protocol.OpDeleteTopic
	}
	a, ok := t.ask(code, 0, &protocol.NameRequest{Name: topic})
	if !ok {
		return
	}
	if a.Status == protocol.OK || a.Status == protocol.TopicNotFound {
		t.tell(&v.told)
	}
	if deleted {
		t.makeTopic(topic)
	}
}

// beginOf is the offset at which a queue begins.
func (t *trial) beginOf(topic string, q uint16) uint64 {
	a, ok := t.ask(protocol.OpPeek, 0, &protocol.PeekRequest{Topic: topic, Queue: q, Max: 1})
	var p protocol.PeekAnswer
	if !ok || a.Status != protocol.OK || p.Decode(a.body) != nil {
		return ^uint64(0)
	}
	return p.Begin
}
