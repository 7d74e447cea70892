package lease

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, as a failed run has printed it")

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

const (
	someGroup = 7
	someTopic = 9
	second    = int64(1000)
	hour      = 3600 * second
)

// encoder is what every record of state can do.
type encoder interface{ Append(dst []byte) []byte }

// record is one record of the log of a story, with what a broker knows when it applies it.
type record struct {
	body     encoder // nil: EPOCH
	bytes    []byte
	epoch    uint32
	position uint64
	stampMs  int64
	holder   uint32 // slot of the session that a GRANT, CHANGE or SESSION_END names
}

// apply gives r to a table as the broker does.
func (r *record) apply(t *Table, body encoder) {
	switch b := body.(type) {
	case nil:
		t.StartEpoch(r.epoch, r.position)
	case *codec.Subscribe:
		t.Subscribe(b)
	case *codec.Grant:
		t.Grant(b, r.epoch, r.stampMs, r.holder)
	case *codec.Settle:
		t.Settle(b, r.stampMs)
	case *codec.Change:
		t.Change(b, r.stampMs, r.holder)
	case *codec.Expire:
		t.Expire(b, r.stampMs)
	case *codec.SessionEnd:
		t.EndSession(b.Releases, r.stampMs, r.holder, b.Cause != codec.EndLeft)
	case *codec.Unreadable:
		t.Unreadable(b)
	case grown:
		t.GrowTopic(b.topic, b.queues)
	case dropped:
		t.Drop(b.group, b.topic)
	default:
		panic(fmt.Sprintf("%T", body))
	}
}

// decoded is the body of r as it is read from a log.
func (r *record) decoded() encoder {
	var err error
	var body encoder
	switch r.body.(type) {
	case *codec.Subscribe:
		b := new(codec.Subscribe)
		body, err = b, b.Decode(r.bytes)
	case *codec.Grant:
		b := new(codec.Grant)
		body, err = b, b.Decode(r.bytes)
	case *codec.Settle:
		b := new(codec.Settle)
		body, err = b, b.Decode(r.bytes)
	case *codec.Change:
		b := new(codec.Change)
		body, err = b, b.Decode(r.bytes)
	case *codec.Expire:
		b := new(codec.Expire)
		body, err = b, b.Decode(r.bytes)
	case *codec.SessionEnd:
		b := new(codec.SessionEnd)
		body, err = b, b.Decode(r.bytes)
	case *codec.Unreadable:
		b := new(codec.Unreadable)
		body, err = b, b.Decode(r.bytes)
	default:
		return r.body
	}
	if err != nil {
		panic(err)
	}
	return body
}

// grown and dropped stand for the TOPIC and GROUP records, which the broker turns into calls of the table.
type grown struct {
	topic  uint32
	queues int
}

type dropped struct{ group, topic uint32 }

func (grown) Append(dst []byte) []byte   { return dst }
func (dropped) Append(dst []byte) []byte { return dst }

// holder is a session.
type holder struct {
	id   uint64
	slot uint32
}

// story drives a table by records, as the broker does, on a clock that the test moves. A shadow gets every record
// through its bytes and never a tick: after each record both must have the same hash, no violation and a clean
// audit. So every test of the table is one of replay too.
type story struct {
	t       testing.TB
	table   *Table
	shadow  *Table
	key     Key
	rnd     *rand.Rand
	rules   codec.Rules
	nowMs   int64
	epoch   uint32
	records []record
	// messages of each queue of someTopic: their ids, by offset.
	messages [][]codec.MessageID
	position uint64
	sessions uint32
	// unaudited skips the audit after each record, for long stories.
	unaudited bool
}

// newStory begins in an epoch, with a group that reads a topic of some queues. Its clock is not at zero, so that a
// time that was forgotten shows.
func newStory(t testing.TB, queues int) *story {
	s := &story{
		t: t, table: New(), shadow: New(), key: NewKey([KeyBytes]byte{1, 2, 3}), rnd: rand.New(rand.NewPCG(1, 2)),
		nowMs: 1_000_000, messages: make([][]codec.MessageID, queues), position: 64,
		rules: codec.Rules{
			MaxInvisibleMs: protocol.MaxInvisibleMs, MaxRenewals: 3,
			BackOff: uint8(protocol.BackOffFixed), BackOffMinMs: 5000, BackOffMaxMs: 5000,
		},
	}
	s.watch(s.table)
	s.watch(s.shadow)
	s.newEpoch()
	s.append(&codec.Subscribe{Sub: 1, Group: someGroup, Topic: someTopic, Starts: make([]uint64, queues)}, holder{})
	return s
}

func (s *story) watch(table *Table) {
	table.OnViolation = func(what string) {
		s.t.Helper()
		s.t.Fatalf("violation: %s", what)
	}
}

func (s *story) newEpoch() {
	s.epoch++
	s.append(nil, holder{})
}

// append appends a record, applies it, and holds the table against its shadow.
func (s *story) append(body encoder, by holder) {
	s.t.Helper()
	r := record{body: body, epoch: s.epoch, position: s.position, stampMs: s.nowMs, holder: by.slot}
	if body != nil {
		r.bytes = body.Append(nil)
	}
	s.position += 64
	s.records = append(s.records, r)
	r.apply(s.table, body)
	r.apply(s.shadow, r.decoded())
	s.check()
}

func (s *story) check() {
	s.t.Helper()
	if s.unaudited {
		return
	}
	for name, table := range map[string]*Table{"table": s.table, "shadow": s.shadow} {
		if err := auditAll(table); err != nil {
			s.t.Fatalf("%s after %d records: %v", name, len(s.records), err)
		}
	}
	if s.table.Hash(bySlot) != s.shadow.Hash(bySlot) {
		s.t.Fatalf("after %d records the shadow is another", len(s.records))
	}
}

// auditAll is Audit, and that no node of the index is lost.
func auditAll(t *Table) error {
	if err := t.Audit(); err != nil {
		return err
	}
	nodes := 0
	for _, cursors := range t.queues {
		for _, ci := range cursors {
			n, err := countNodes(&t.index, &t.cursors.At(ci).tree)
			if err != nil {
				return err
			}
			nodes += n
		}
	}
	if nodes != t.index.nodes.Len() {
		return fmt.Errorf("%d nodes in trees, %d in the slab", nodes, t.index.nodes.Len())
	}
	return nil
}

func (s *story) session() holder {
	s.sessions++
	return holder{id: uint64(s.epoch)<<32 | uint64(s.sessions), slot: s.sessions}
}

// send makes n messages of a queue.
func (s *story) send(queue uint16, n int) {
	for range n {
		s.messages[queue] = append(s.messages[queue], codec.NewMessageID(s.epoch, s.position))
		s.position += 64
	}
}

func (s *story) slot() uint32 {
	slot, ok := s.table.SlotOf(1)
	if !ok {
		s.t.Fatal("the subscription is gone")
	}
	return slot
}

func (s *story) at(queue uint16) Position { return s.table.Position(s.slot(), queue) }

// receipt is the one that a grant of the newest GRANT record gives out.
func (s *story) receipt(queue uint16, offset uint64, by holder) Receipt {
	epoch, number := s.table.Number()
	r := Receipt{
		Topic: someTopic, Group: someGroup, Sub: 1, Queue: queue, Session: by.id, Offset: offset,
		ID: s.messages[queue][offset], Token: uint64(epoch)<<32 | uint64(number), GrantMs: s.nowMs,
	}
	var got Receipt
	if !s.key.Parse(s.key.Append(nil, &r), &got) || got != r {
		s.t.Fatalf("%+v came back as %+v", r, got)
	}
	return r
}

// grant appends a GRANT for invisibleMs and gives the receipts of its messages.
func (s *story) grant(by holder, invisibleMs int64, runs ...codec.GrantRun) (receipts []Receipt) {
	s.t.Helper()
	_, number := s.table.Number()
	s.append(&codec.Grant{
		Sub: 1, Number: number + 1, Session: by.id, DeadlineMs: s.nowMs + invisibleMs, Runs: runs,
	}, by)
	for _, run := range runs {
		if run.Kind == codec.RunNew || run.Kind == codec.RunAgain {
			for i := range uint64(run.Count) {
				receipts = append(receipts, s.receipt(run.Queue, run.Offset+i, by))
			}
		}
	}
	return receipts
}

// pop grants up to n messages of a queue: what came back first, then new ones. Known offsets are passed.
func (s *story) pop(by holder, queue uint16, n int, invisibleMs int64) []Receipt {
	s.t.Helper()
	var runs []codec.GrantRun
	add := func(kind codec.RunKind, offset uint64) {
		if k := len(runs) - 1; k >= 0 && runs[k].Kind == kind && runs[k].Offset+uint64(runs[k].Count) == offset {
			runs[k].Count++
			return
		}
		runs = append(runs, codec.GrantRun{Queue: queue, Kind: kind, Count: 1, Offset: offset})
	}
	s.table.EachReady(s.slot(), queue, func(offset uint64) bool {
		add(codec.RunAgain, offset)
		n--
		return n > 0
	})
	for offset := s.at(queue).Next; n > 0 && offset < uint64(len(s.messages[queue])); offset++ {
		if s.table.Known(s.slot(), queue, offset) {
			add(codec.RunKnown, offset)
			continue
		}
		add(codec.RunNew, offset)
		n--
	}
	if len(runs) == 0 {
		return nil
	}
	return s.grant(by, invisibleMs, runs...)
}

// pop1 grants the next message of queue 0, which there must be.
func (s *story) pop1(by holder, invisibleMs int64) Receipt {
	s.t.Helper()
	got := s.pop(by, 0, 1, invisibleMs)
	if len(got) != 1 {
		s.t.Fatalf("%d messages popped", len(got))
	}
	return got[0]
}

// ack decides an ack and makes it so.
func (s *story) ack(r Receipt) Verdict {
	s.t.Helper()
	v := s.table.CheckAck(&r)
	if v.Apply {
		s.append(&codec.Settle{Sub: r.Sub, Session: r.Session, Runs: []codec.SettleRun{
			{Queue: r.Queue, Lost: v.Lost, Count: 1, Offset: r.Offset, Token: r.Token},
		}}, holder{})
	}
	return v
}

// change decides a change and makes it so.
func (s *story) change(by holder, r Receipt, x Change) Changed {
	s.t.Helper()
	c := s.table.CheckChange(&r, x, &s.rules, s.nowMs, s.rnd)
	if c.Apply {
		s.append(&codec.Change{Sub: r.Sub, Session: r.Session, Entries: []codec.ChangeEntry{c.Entry}}, by)
	}
	return c
}

func (s *story) release(by holder, r Receipt, ordinal uint32) {
	s.t.Helper()
	if c := s.change(by, r, Change{Ordinal: ordinal}); c.Status != protocol.OK || !c.Apply {
		s.t.Fatalf("release: %+v", c)
	}
}

// advance moves the clock and records what it ends. It gives what was proposed.
func (s *story) advance(ms int64) []codec.ReleaseEntry {
	s.t.Helper()
	s.nowMs += ms
	proposals, more := s.table.Advance(s.nowMs, math.MaxInt, nil)
	if more {
		s.t.Fatal("more is due without a limit")
	}
	s.check()
	if len(proposals) > 0 {
		s.append(&codec.Expire{Entries: proposals}, holder{})
	}
	return proposals
}

// end ends a session: everything it holds is visible again after waitMs.
func (s *story) end(by holder, cause codec.EndCause, waitMs int64) {
	s.t.Helper()
	rec := &codec.SessionEnd{Session: by.id, Cause: cause}
	s.table.HeldBy(by.slot, func(sub uint32, queue uint16, offset, token uint64, _, _ uint8) {
		rec.Releases = append(rec.Releases, codec.ReleaseEntry{Sub: sub, Queue: queue, Offset: offset, Token: token, AtMs: s.nowMs + waitMs})
	})
	s.append(rec, by)
}

// mark names the end of the log, for a crash to fall back to.
func (s *story) mark() int { return len(s.records) }

// crash loses the records behind mark and opens a new epoch at the cut. Messages are not lost: they were on disk
// before anybody was given them.
func (s *story) crash(mark int) {
	s.t.Helper()
	kept := s.records[:mark]
	s.records = s.records[:mark:mark]
	s.table, s.shadow = New(), New()
	for _, table := range []*Table{s.table, s.shadow} {
		s.watch(table)
		for i := range kept {
			kept[i].apply(table, kept[i].decoded())
		}
	}
	if mark > 0 {
		s.nowMs = kept[mark-1].stampMs
	}
	s.newEpoch()
}

// expect holds a verdict against what was expected of it.
func (s *story) expect(what string, got Verdict, status protocol.Status, reason protocol.Reason) {
	s.t.Helper()
	if got.Status != status || got.Reason != reason {
		s.t.Errorf("%s: %s %s, want %s %s", what, got.Status, got.Reason, status, reason)
	}
}

func (s *story) expectOK(what string, got Verdict) {
	s.t.Helper()
	s.expect(what, got, protocol.OK, protocol.ReasonNone)
}

// violate appends a record that does not fit. It must be counted, in the table and in its shadow.
func (s *story) violate(what string, body encoder, by holder) {
	s.t.Helper()
	var told int
	for _, table := range []*Table{s.table, s.shadow} {
		table.OnViolation = func(string) { told++ }
	}
	before := s.table.Violations()
	s.append(body, by)
	if s.table.Violations() != before+1 || s.shadow.Violations() != before+1 || told != 2 {
		s.t.Errorf("%s: %d violations, told of %d", what, s.table.Violations()-before, told)
	}
	s.watch(s.table)
	s.watch(s.shadow)
}

// refuse is violate by a record that, besides, must change nothing.
func (s *story) refuse(what string, body encoder, by holder) {
	s.t.Helper()
	before := s.table.Hash(bySlot)
	s.violate(what, body, by)
	if s.table.Hash(bySlot) != before {
		s.t.Errorf("%s: the state has changed", what)
	}
}

// bySlot names sessions by their slots, which stay the same where nothing is loaded.
func bySlot(slot uint32) uint64 { return uint64(slot) }
