package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// testClock is a clock that tests move.
type testClock struct {
	mono time.Duration
	wall time.Time
}

func (c *testClock) Mono() time.Duration { return c.mono }
func (c *testClock) Wall() time.Time     { return c.wall }

// rig is an engine with one event loop, driven by one goroutine: the test. Nothing happens by itself but
// the writing of the log.
type rig struct {
	t     testing.TB
	o     Options
	clock *testClock
	e     *Engine
	loop  *Loop
	woken chan struct{}
	next  uint64
}

func newRig(t testing.TB, change func(*Options)) *rig {
	r := &rig{t: t, clock: &testClock{wall: time.Unix(1_790_000_000, 0)}}
	r.o = Options{
		Dir: t.TempDir(), IO: mmaplog.IOStaged, Fsync: mmaplog.SyncNever, SegmentBytes: 1 << 20, RingBytes: 4 << 20,
		Clock: r.clock, Manual: true, Verify: true, Seed: 1,
	}
	if change != nil {
		change(&r.o)
	}
	r.open()
	t.Cleanup(func() {
		if r.e != nil {
			if err := r.e.Check(); err != nil {
				t.Error(err)
			}
			if r.e.Err() != nil {
				r.e.Abort()
				return
			}
			if err := r.e.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	e, err := Open(r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.e = e
	r.woken = make(chan struct{}, 1)
	woken := r.woken
	r.loop = e.NewLoop(func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
}

// restart kills the engine and opens the directory again. What the test committed must be there.
func (r *rig) restart() {
	r.t.Helper()
	r.commit()
	r.e.Abort()
	r.open()
}

// commit waits until the log has written everything, and lets the loop see it.
func (r *rig) commit() {
	r.t.Helper()
	for r.e.Log().Committed() < r.e.Log().Appended() {
		r.e.Log().Kick()
		r.await()
	}
	r.loop.Wake()
}

// await waits for something to wake the loop.
func (r *rig) await() {
	select {
	case <-r.woken:
	case <-time.After(time.Millisecond): // the log wakes a loop only when it owes something
	}
	r.loop.Wake()
}

// advance moves the clocks in ticks.
func (r *rig) advance(d time.Duration) {
	for d > 0 {
		step := min(d, 250*time.Millisecond)
		r.clock.mono += step
		r.clock.wall = r.clock.wall.Add(step)
		r.e.Tick()
		r.loop.Wake()
		d -= step
	}
}

// conn is a connection of the rig.
type conn struct {
	r       *rig
	out     []byte
	ctx     any
	failed  protocol.Status
	why     string
	backlog bool
	answers map[uint64]answer
	pushes  []answer
}

type answer struct {
	protocol.Header
	body []byte
}

func (r *rig) dial() *conn {
	c := &conn{r: r, answers: map[uint64]answer{}}
	r.loop.Open(c)
	return c
}

func (c *conn) Out() []byte      { return c.out }
func (c *conn) Room(int) []byte  { return c.out }
func (c *conn) SetOut(b []byte)  { c.out = b }
func (c *conn) Backlogged() bool { return c.backlog }
func (c *conn) Context() any     { return c.ctx }
func (c *conn) SetContext(v any) { c.ctx = v }
func (c *conn) Addr() string     { return "test" }
func (c *conn) Fail(s protocol.Status, why string) {
	c.failed, c.why = s, why
}

func (c *conn) read() {
	for len(c.out) > 0 {
		h, err := protocol.ParseHeader(c.out)
		if err != nil {
			c.r.t.Fatalf("an answer: %v", err)
		}
		n := protocol.HeaderBytes + int(h.BodyLen)
		a := answer{h, append([]byte(nil), c.out[protocol.HeaderBytes:n]...)}
		c.out = c.out[n:]
		if h.RequestID == 0 {
			c.pushes = append(c.pushes, a)
			continue
		}
		if _, twice := c.answers[h.RequestID]; twice {
			c.r.t.Fatalf("request %d is answered twice", h.RequestID)
		}
		c.answers[h.RequestID] = a
	}
	c.out = nil
}

// start sends a request and does not wait.
func (c *conn) start(code protocol.Opcode, flags protocol.Flags, body interface{ Append([]byte) []byte }) uint64 {
	c.r.t.Helper()
	c.r.next++
	var b []byte
	if body != nil {
		b = body.Append(nil)
	}
	h := protocol.Header{Version: protocol.Version, Opcode: code, Flags: flags, RequestID: c.r.next, BodyLen: uint32(len(b))}
	for deadline := time.Now().Add(10 * time.Second); !c.r.loop.Frame(c, h, b); c.r.await() {
		if time.Now().After(deadline) {
			c.r.t.Fatal("the engine has no room")
		}
	}
	c.r.loop.Flush(c)
	return c.r.next
}

// peekAnswer is the answer to a request if there is one yet.
func (c *conn) peekAnswer(id uint64) (answer, bool) {
	c.read()
	a, ok := c.answers[id]
	return a, ok
}

// wait waits for the answer to a request.
func (c *conn) wait(id uint64) answer {
	c.r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if a, ok := c.peekAnswer(id); ok {
			delete(c.answers, id)
			return a
		}
		if time.Now().After(deadline) {
			c.r.t.Fatalf("request %d is not answered", id)
		}
		c.r.await()
	}
}

func (c *conn) call(code protocol.Opcode, flags protocol.Flags, body interface{ Append([]byte) []byte }) answer {
	c.r.t.Helper()
	return c.wait(c.start(code, flags, body))
}

type decoder interface{ Decode([]byte) error }

func (c *conn) ok(code protocol.Opcode, flags protocol.Flags, body interface{ Append([]byte) []byte }, into decoder) {
	c.r.t.Helper()
	a := c.call(code, flags, body)
	if a.Status != protocol.OK {
		var why protocol.ErrorBody
		_ = why.Decode(a.body)
		c.r.t.Fatalf("%s: %s: %s (%v)", code, a.Status, why.Message, c.r.e.Err())
	}
	if into != nil {
		if err := into.Decode(a.body); err != nil {
			c.r.t.Fatal(err)
		}
	}
}

func (c *conn) register(group, consumer string) protocol.RegisterAnswer {
	c.r.t.Helper()
	var a protocol.RegisterAnswer
	req := protocol.RegisterRequest{Group: group, ConsumerID: consumer}
	copy(req.Nonce[:], fmt.Sprintf("%d", c.r.next))
	c.ok(protocol.OpRegister, protocol.FlagCreate, &req, &a)
	return a
}

func (c *conn) send(topic string, messages ...codec.Message) []protocol.SendResult {
	c.r.t.Helper()
	req := protocol.SendRequest{Topic: topic, Queue: protocol.AnyQueue}
	for i := range messages {
		b, err := messages[i].Append(nil)
		if err != nil {
			c.r.t.Fatal(err)
		}
		req.Messages = append(req.Messages, b)
	}
	var a protocol.SendAnswer
	c.ok(protocol.OpSend, protocol.FlagCreate, &req, &a)
	return a.Results
}

func (c *conn) sendBodies(topic string, bodies ...string) []protocol.SendResult {
	c.r.t.Helper()
	var ms []codec.Message
	for _, b := range bodies {
		ms = append(ms, codec.Message{Body: []byte(b)})
	}
	return c.send(topic, ms...)
}

func popRequest(session uint64, topic string, max int) *protocol.PopRequest {
	return &protocol.PopRequest{Session: session, Topic: topic, Max: uint16(max)}
}

func (c *conn) pop(req *protocol.PopRequest) protocol.PopAnswer {
	c.r.t.Helper()
	return c.popped(c.call(protocol.OpPop, protocol.FlagCreate, req))
}

func (c *conn) popped(a answer) (p protocol.PopAnswer) {
	c.r.t.Helper()
	if a.Status != protocol.OK && a.Status != protocol.Empty {
		var why protocol.ErrorBody
		_ = why.Decode(a.body)
		c.r.t.Fatalf("pop: %s: %s (%v)", a.Status, why.Message, c.r.e.Err())
	}
	if err := p.Decode(a.body); err != nil {
		c.r.t.Fatal(err)
	}
	return p
}

// bodyOf is the body of a popped message.
func (c *conn) bodyOf(p *protocol.PopAnswer, i int) string {
	c.r.t.Helper()
	_, _, payload, err := codec.ReadRecord(p.Record(i))
	if err != nil {
		c.r.t.Fatal(err)
	}
	var v codec.View
	if err := v.Parse(payload); err != nil {
		c.r.t.Fatal(err)
	}
	return string(v.Body)
}

func (c *conn) ack(session uint64, receipts ...[]byte) []protocol.SettleResult {
	c.r.t.Helper()
	req := protocol.AckRequest{Session: session}
	for _, r := range receipts {
		req.Entries = append(req.Entries, protocol.AckEntry{Receipt: r})
	}
	var a protocol.AckAnswer
	c.ok(protocol.OpAck, 0, &req, &a)
	return a.Results
}

func (c *conn) change(session uint64, entries ...protocol.ChangeEntry) []protocol.SettleResult {
	c.r.t.Helper()
	var a protocol.ChangeInvisibleAnswer
	c.ok(protocol.OpChangeInvisible, 0, &protocol.ChangeInvisibleRequest{Session: session, Entries: entries}, &a)
	return a.Results
}

func receipts(p *protocol.PopAnswer) (list [][]byte) {
	for i := range p.Rows {
		list = append(list, append([]byte(nil), p.Rows[i].Receipt...))
	}
	return list
}

func encoded(t testing.TB, body string) []byte {
	m := codec.Message{Body: []byte(body)}
	b, err := m.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
