package broker

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
	"github.com/leasemq/leasemq/snapshot"
)

// TestHistories runs random histories of requests and of time, kills the engine at a random record of
// each, and holds what a recovery makes of the log against what the live engine had at that record.
// What was acknowledged below the record must be there, what was settled must not come back.
func TestHistories(t *testing.T) {
	for _, io := range []mmaplog.IOMode{mmaplog.IOStaged, mmaplog.IOMapped} {
		t.Run(string(io), func(t *testing.T) {
			seed := *seedFlag
			if seed == 0 {
				seed = uint64(time.Now().UnixNano())
			}
			t.Logf("seed %d", seed)
			runs := 6
			if testing.Short() {
				runs = 2
			}
			for i := range runs {
				h := newHistory(t, io, seed+uint64(i))
				for range 4 {
					h.run(250)
					h.crash()
				}
			}
		})
	}
}

type held struct {
	session uint64
	topic   string
	body    string
	receipt []byte
	ordinal uint32
	token   uint64
}

type consumer struct {
	group   string
	session uint64
	live    bool
	pops    stateHash // newest sequence of the slots that are used
}

// fact is something that was acknowledged, and the log position below which its records lie.
type fact struct {
	end    uint64
	what   string
	queue  uint16
	offset uint64
}

// settling is an ack that was taken: the log position below which its record lies, and the token that settled.
type settling struct{ end, token uint64 }

type history struct {
	*rig
	rnd       *rand.Rand
	c         *conn
	observed  map[uint64]stateHash
	ends      []uint64
	consumers []*consumer
	held      []held
	sent      []fact // topic/body
	settled   map[string]settling
	bodies    int
	sequence  uint64
	parked    []parkedPop
	topics    []string
	groups    []string
}

func newHistory(t *testing.T, io mmaplog.IOMode, seed uint64) *history {
	h := &history{
		rnd: rand.New(rand.NewPCG(seed, 7)), observed: map[uint64]stateHash{}, settled: map[string]settling{},
		topics: []string{"t0", "t1", "t2"}, groups: []string{"g0", "g1"},
	}
	h.rig = newRig(t, func(o *Options) {
		o.IO, o.SegmentBytes, o.Seed = io, 128<<10, seed
		o.Limits.MaxBodyBytes = 16 << 10
		o.Retention.Age = 20 * time.Second
		if h.rnd.IntN(2) == 0 { // what groups have not settled goes, too
			o.Retention.HardBytes = 1 << 20
		}
		o.Observe = func(end uint64, hash func() stateHash) {
			h.observed[end] = hash()
			h.ends = append(h.ends, end)
		}
	})
	h.c = h.dial()
	return h
}

func (h *history) run(steps int) {
	for range steps {
		h.step()
	}
}

func (h *history) step() {
	h.t.Helper()
	h.stepParked()
	switch p := h.rnd.IntN(100); {
	case p < 25:
		h.stepSend()
	case p < 50:
		h.stepPop()
	case p < 68:
		h.stepAck()
	case p < 78:
		h.stepChange()
	case p < 84:
		h.stepRegister()
	case p < 87:
		h.stepUnregister()
	case p < 88:
		h.stepSteward()
	case p < 97:
		h.advance(time.Duration(h.rnd.IntN(3000)) * time.Millisecond)
		h.beat()
	default:
		h.stepAdmin()
	}
}

// stepSteward takes a snapshot, or lets old log go, or both.
func (h *history) stepSteward() {
	if h.rnd.IntN(2) == 0 {
		if _, err := h.e.Snapshot(); err != nil {
			h.t.Fatal(err)
		}
	}
	if h.rnd.IntN(8) == 0 {
		h.advance(70 * time.Second) // groups without a session stop holding data, sessions end
	}
	h.advance(reviewEveryMs * time.Millisecond)
	h.e.Steward()
	h.commit()
}

func (h *history) beat() {
	for i := range h.consumers {
		if x := h.consumers[i]; x.live && h.rnd.IntN(10) > 0 {
			if a := h.c.call(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: x.session}); a.Status != protocol.OK {
				x.live = false
			}
		}
	}
}

func (h *history) stepSend() {
	topic := h.topics[h.rnd.IntN(len(h.topics))]
	var ms []codec.Message
	var bodies []string
	for range 1 + h.rnd.IntN(12) {
		h.bodies++
		body := fmt.Sprintf("%d-%s", h.bodies, string(make([]byte, h.rnd.IntN(600))))
		m := codec.Message{Body: []byte(body), Tag: []string{"", "red", "blue"}[h.rnd.IntN(3)]}
		if h.rnd.IntN(3) == 0 {
			m.Key = fmt.Sprint(h.rnd.IntN(5))
		}
		if h.rnd.IntN(2) == 0 {
			h.sequence++
			m.ProducerID, m.Sequence = 1+h.sequence%3, h.sequence
		}
		if h.rnd.IntN(8) == 0 {
			m.UniqueKey = body[:min(len(body), 20)]
		}
		ms = append(ms, m)
		bodies = append(bodies, body)
	}
	results := h.c.send(topic, ms...)
	if h.rnd.IntN(3) == 0 { // those that say who they are may come again, and get the same answer
		for i := range ms {
			if ms[i].ProducerID == 0 && ms[i].UniqueKey == "" {
				continue
			}
			if again := h.c.send(topic, ms[i]); again[0] != results[i] {
				h.t.Fatalf("sent again: %+v, first %+v", again[0], results[i])
			}
		}
	}
	for i, res := range results {
		if res.Status != protocol.OK {
			h.t.Fatalf("send: %s", res.Status)
		}
		h.sent = append(h.sent, fact{h.e.Log().Appended(), topic + "/" + bodies[i], res.Queue, res.Offset})
	}
}

func (h *history) liveConsumer() *consumer {
	for range 8 {
		if n := len(h.consumers); n > 0 {
			if x := h.consumers[h.rnd.IntN(n)]; x.live {
				return x
			}
		}
	}
	return nil
}

// filterOf is the one filter that a group may have for a topic.
func filterOf(group, topic string) []string {
	if group == "g1" && topic == "t1" {
		return []string{"red"}
	}
	return nil
}

func (h *history) stepPop() {
	x := h.liveConsumer()
	if x == nil {
		return
	}
	topic := h.topics[h.rnd.IntN(len(h.topics))]
	req := popRequest(x.session, topic, 1+h.rnd.IntN(20))
	req.FilterTags = filterOf(x.group, topic)
	req.InvisibleMs = uint32(10 + h.rnd.IntN(20_000))
	if h.rnd.IntN(4) == 0 {
		req.MaxBytes = 1000
	}
	if h.rnd.IntN(5) == 0 {
		req.AwaitMs = uint32(h.rnd.IntN(4000))
	}
	if h.rnd.IntN(2) == 0 { // with a number: mostly the next one, or one again
		req.Slot = uint8(h.rnd.IntN(len(x.pops)))
		req.Sequence = max(x.pops[req.Slot]+uint64(h.rnd.IntN(3))-1, 1)
		req.PreviousLost = h.rnd.IntN(3) == 0
		x.pops[req.Slot] = max(x.pops[req.Slot], req.Sequence)
	}
	id := h.c.start(protocol.OpPop, protocol.FlagCreate, req)
	if req.AwaitMs > 0 { // it may wait; its answer is read later
		h.parked = append(h.parked, parkedPop{id, x, topic})
		return
	}
	h.took(x, topic, h.c.wait(id))
}

// parkedPop is a POP that may wait on the broker.
type parkedPop struct {
	id    uint64
	x     *consumer
	topic string
}

// stepParked reads the answers of pops that have waited.
func (h *history) stepParked() {
	h.parked = slices.DeleteFunc(h.parked, func(p parkedPop) bool {
		a, ok := h.c.peekAnswer(p.id)
		if ok {
			delete(h.c.answers, p.id)
			h.took(p.x, p.topic, a)
		}
		return ok
	})
}

// took notes what a pop was given.
func (h *history) took(x *consumer, topic string, a answer) {
	h.t.Helper()
	if a.Status == protocol.TopicNotFound {
		return // deleted while the pop waited
	}
	if a.Status == protocol.SessionNotFound || a.Status == protocol.SessionFenced {
		x.live = false
		return
	}
	if a.Status == protocol.Superseded || a.Status == protocol.Invalid {
		return // a number that was wrong, or that another pop has gone past
	}
	p := h.c.popped(a)
	for i := range p.Rows {
		body := h.c.bodyOf(&p, i)
		// The answer of a pop that has waited may be read after its repetition was acked.
		if by, ok := h.settled[x.group+"/"+topic+"/"+body]; ok && by.end <= h.e.Log().Committed() && by.token != p.Rows[i].Token {
			h.t.Fatalf("%s was settled by %s at %d and came again", body, x.group, by.end)
		}
		h.held = append(h.held, held{x.session, topic, body, append([]byte(nil), p.Rows[i].Receipt...), 0, p.Rows[i].Token})
	}
}

func (h *history) groupOf(session uint64) string {
	for _, x := range h.consumers {
		if x.session == session {
			return x.group
		}
	}
	return ""
}

func (h *history) stepAck() {
	if len(h.held) == 0 {
		return
	}
	first := h.held[h.rnd.IntN(len(h.held))]
	req := protocol.AckRequest{Session: first.session}
	var of []held
	for range 1 + h.rnd.IntN(10) {
		x := h.held[h.rnd.IntN(len(h.held))]
		if x.session == first.session {
			of = append(of, x)
			req.Entries = append(req.Entries, protocol.AckEntry{Receipt: x.receipt})
		}
	}
	if len(of) == 0 {
		return
	}
	a := h.c.call(protocol.OpAck, 0, &req)
	if a.Status != protocol.OK {
		return
	}
	var res protocol.AckAnswer
	if err := res.Decode(a.body); err != nil {
		h.t.Fatal(err)
	}
	for i, r := range res.Results {
		key := h.groupOf(of[i].session) + "/" + of[i].topic + "/" + of[i].body
		if _, known := h.settled[key]; r.Status == protocol.OK && !known {
			h.settled[key] = settling{h.e.Log().Appended(), of[i].token}
		}
	}
}

func (h *history) stepChange() {
	if len(h.held) == 0 {
		return
	}
	x := &h.held[h.rnd.IntN(len(h.held))]
	entry := protocol.ChangeEntry{
		Receipt: x.receipt, Ordinal: x.ordinal + uint32(h.rnd.IntN(3)), Cause: protocol.Cause(h.rnd.IntN(3)),
		InvisibleMs: uint32(h.rnd.IntN(3) * (10 + h.rnd.IntN(10_000))),
	}
	a := h.c.call(protocol.OpChangeInvisible, 0, &protocol.ChangeInvisibleRequest{Session: x.session, Entries: []protocol.ChangeEntry{entry}})
	var res protocol.ChangeInvisibleAnswer
	if a.Status == protocol.OK && res.Decode(a.body) == nil && res.Results[0].Status == protocol.OK {
		x.ordinal = entry.Ordinal
	}
}

func (h *history) stepRegister() {
	group := h.groups[h.rnd.IntN(len(h.groups))]
	consumerID := fmt.Sprintf("c%d", h.rnd.IntN(4))
	if h.rnd.IntN(2) == 0 {
		s := h.c.register(group, consumerID)
		h.consumers = append(h.consumers, &consumer{group: group, session: s.Session, live: true})
		return
	}
	// One that comes back with receipts, of whomever.
	r := &protocol.RegisterRequest{Group: group, ConsumerID: consumerID, ReclaimMs: uint32(10 + h.rnd.IntN(20_000))}
	copy(r.Nonce[:], fmt.Sprintf("%d", h.next))
	var of []held
	for range h.rnd.IntN(40) {
		if n := len(h.held); n > 0 {
			x := h.held[n-1-h.rnd.IntN(min(n, 200))]
			of = append(of, x)
			r.Receipts = append(r.Receipts, x.receipt)
		}
	}
	var a protocol.RegisterAnswer
	h.c.ok(protocol.OpRegister, protocol.FlagCreate, r, &a)
	h.consumers = append(h.consumers, &consumer{group: group, session: a.Session, live: true})
	for i, x := range a.Reclaimed {
		if x.Status == protocol.OK {
			if by, ok := h.settled[group+"/"+of[i].topic+"/"+of[i].body]; ok && by.end <= h.e.Log().Committed() {
				h.t.Fatalf("%s was settled by %s at %d and was reclaimed", of[i].body, group, by.end)
			}
			h.held = append(h.held, held{a.Session, of[i].topic, of[i].body, append([]byte(nil), x.Receipt...), 0, x.Token})
		}
	}
}

func (h *history) stepUnregister() {
	if x := h.liveConsumer(); x != nil {
		h.c.call(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: x.session})
		x.live = false
	}
}

func (h *history) stepAdmin() {
	name := h.topics[h.rnd.IntN(len(h.topics))]
	switch h.rnd.IntN(4) {
	case 0:
		h.c.call(protocol.OpUpdateTopic, 0, &protocol.UpdateTopicRequest{Name: name, Queues: uint16(1 + h.rnd.IntN(12))})
	case 1:
		h.c.call(protocol.OpUpdateGroup, 0, &protocol.GroupRequest{Name: "g0", Rules: protocol.GroupRules{
			BackOff: protocol.BackOff(h.rnd.IntN(4)), MaxInFlight: uint32(5 + h.rnd.IntN(100)),
			HoldMs: []uint64{0, protocol.MinHoldMs, protocol.HoldForever}[h.rnd.IntN(3)],
		}})
	case 2:
		h.c.call(protocol.OpShowGroup, 0, &protocol.NameRequest{Name: "g0"})
		h.c.call(protocol.OpStats, 0, nil)
		h.c.call(protocol.OpListTopics, 0, nil)
	case 3:
		if h.rnd.IntN(4) > 0 {
			return
		}
		if h.rnd.IntN(2) == 0 {
			h.c.call(protocol.OpPurgeTopic, 0, &protocol.NameRequest{Name: name})
			h.held = slices.DeleteFunc(h.held, func(x held) bool { return x.topic == name })
			return
		}
		h.c.call(protocol.OpDeleteTopic, 0, &protocol.NameRequest{Name: name})
		// The name may come again, as another topic: what is known of it is void.
		h.sent = slices.DeleteFunc(h.sent, func(f fact) bool { return f.what[:2] == name })
		h.held = slices.DeleteFunc(h.held, func(x held) bool { return x.topic == name })
	}
}

// crash kills the engine and cuts the log behind a random record, as a crash that lost the rest would.
func (h *history) crash() {
	h.t.Helper()
	h.commit()
	synced := h.e.Log().Synced()
	h.e.Abort()
	end := h.ends[h.rnd.IntN(len(h.ends))]
	if h.rnd.IntN(3) == 0 || end < synced { // no crash takes what was made durable
		end = h.ends[len(h.ends)-1]
	}
	h.cut(end)

	// A fold of the log, made from nothing but the newest snapshot, is the state that the live engine had.
	f := h.foldOnDisk(end)
	if got, want := f.hash(), h.observed[end]; got != want {
		h.t.Fatalf("recovered state %x, live state at record end %d %x", got, end, want)
	}
	if err := f.audit(); err != nil {
		h.t.Fatal(err)
	}
	h.forgetBeyond(end)
	h.parked = nil
	h.open()
	h.c = h.dial()
	h.ends = append(h.ends[:0], h.e.Log().Appended())
	h.observed = map[uint64]stateHash{h.ends[0]: h.e.Hash()}
	if err := h.e.Check(); err != nil {
		h.t.Fatal(err)
	}
	h.checkSent()
}

// foldOnDisk is the state as recovery finds it.
func (h *history) foldOnDisk(end uint64) *fold {
	h.t.Helper()
	logger := slog.New(slog.DiscardHandler)
	e := &Engine{o: h.o, logger: logger, fold: newFold(func(what string) { h.t.Fatal(what) })}
	e.snaps.store = snapshot.NewStore(mmaplog.OS, filepath.Join(h.o.Dir, "snapshots"))
	log, err := mmaplog.Open(mmaplog.Options{
		Dir: h.o.Dir, IO: h.o.IO, Policy: h.o.Fsync, Logger: logger, Begin: e.begin,
	}, func(r mmaplog.Record) error { return e.fold.apply(&r.Header, r.Assigned, r.Payload) })
	if err != nil {
		h.t.Fatalf("log cut at %d: %v", end, err)
	}
	log.Abort()
	return e.fold
}

// cut zeroes the log from a position on.
func (r *rig) cut(end uint64) {
	files, err := filepath.Glob(filepath.Join(r.o.Dir, "log", "*.log"))
	if err != nil || len(files) == 0 {
		r.t.Fatalf("no log files: %v", err)
	}
	slices.Sort(files)
	for _, name := range files {
		var base uint64
		if _, err := fmt.Sscanf(filepath.Base(name), "%d.log", &base); err != nil {
			r.t.Fatal(err)
		}
		st, err := os.Stat(name)
		if err != nil {
			r.t.Fatal(err)
		}
		if from := int64(end) - int64(base); from < st.Size() {
			from = max(from, 64) // the header of the file stays
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				r.t.Fatal(err)
			}
			if _, err := f.WriteAt(make([]byte, st.Size()-from), from); err != nil {
				r.t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// forgetBeyond forgets what was known by records that the crash has taken.
func (h *history) forgetBeyond(end uint64) {
	h.sent = slices.DeleteFunc(h.sent, func(f fact) bool { return f.end > end })
	for key, by := range h.settled {
		if by.end > end {
			delete(h.settled, key)
		}
	}
	for i := range h.consumers {
		h.consumers[i].live = true // the first call that is refused tells
	}
}

// checkSent sees that every message that was acknowledged below the cut is there, by peeking.
func (h *history) checkSent() {
	have := map[string]bool{}
	begins := map[string]uint64{}
	for _, topic := range h.topics {
		for q := range uint16(16) {
			for at := uint64(0); ; {
				a := h.c.call(protocol.OpPeek, 0, &protocol.PeekRequest{Topic: topic, Queue: q, Offset: at, Max: 256})
				if a.Status == protocol.TopicNotFound || a.Status == protocol.Invalid {
					break
				}
				var p protocol.PeekAnswer
				if err := p.Decode(a.body); err != nil || a.Status != protocol.OK {
					h.t.Fatalf("peek: %s %v", a.Status, err)
				}
				for i := range p.Rows {
					_, _, payload, err := codec.ReadRecord(p.Record(i))
					var v codec.View
					if err != nil || v.Parse(payload) != nil {
						h.t.Fatal(err)
					}
					have[topic+"/"+string(v.Body)] = true
				}
				begins[fmt.Sprint(topic, q)] = p.Begin
				if at = max(at, p.Begin) + uint64(len(p.Rows)); at >= p.End {
					break
				}
			}
		}
	}
	for _, f := range h.sent {
		if !have[f.what] && f.offset >= begins[fmt.Sprint(f.what[:2], f.queue)] {
			h.t.Fatalf("a message acknowledged at %d is gone: %.20s", f.end, f.what)
		}
	}
}
