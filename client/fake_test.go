package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(sinkVariable) != "" {
		sinkProcess()
		return
	}
	// The compressors make channels at their first use, which must not be in the bubble of one test.
	for _, c := range []codec.Compression{codec.Zstd, codec.S2} {
		x := codec.Message{Body: make([]byte, 1000)}
		if err := x.Compress(c); err != nil {
			panic(err)
		}
		if _, err := x.Decompress(); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// fakeBroker is the other end of a client's connections. It greets each one, and the test plays the rest: what
// arrived is taken with peer.expect, and answered with peer.answer. It lives in a synctest bubble, so
// that "nothing else arrived" can be said for sure and time is the test's.
type fakeBroker struct {
	t     *testing.T
	hello protocol.HelloAnswer
	peers chan *peer

	mu     sync.Mutex
	refuse error       // what the dialer fails with, nil: it connects
	mute   bool        // accept connections, do not greet
	bye    *goodbye    // in place of the greeting
	dials  []time.Time // when each attempt was made
	conns  []*clientEnd
}

type goodbye struct {
	status  protocol.Status
	message string
}

func newFakeBroker(t *testing.T) *fakeBroker {
	return &fakeBroker{
		t: t, peers: make(chan *peer, 100),
		hello: protocol.HelloAnswer{Version: 1, BrokerID: "b", Epoch: 7, CreditBytes: 4 << 20,
			MaxFrameBytes: protocol.MaxFrameBytes, MaxBodyBytes: protocol.MaxBodyBytes},
	}
}

// clientEnd is the client's end of a connection. It counts writes, holds them up, and fails them.
type clientEnd struct {
	net.Conn

	mu     sync.Mutex
	writes int
	gate   chan struct{} // not nil: a write waits until it is closed
	fail   error
}

func (c *clientEnd) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.writes++
	gate, fail := c.gate, c.fail
	c.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if fail != nil {
		return 0, fail
	}
	return c.Conn.Write(b)
}

func (c *clientEnd) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (b *fakeBroker) dial(ctx context.Context, addr string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dials = append(b.dials, time.Now())
	if b.refuse != nil {
		return nil, b.refuse
	}
	ours, theirs := net.Pipe()
	p := &peer{b: b, t: b.t, conn: ours, frames: make(chan request, 10_000), gone: make(chan struct{})}
	hello, mute, bye := b.hello, b.mute, b.bye
	go p.serve(hello, mute, bye)
	c := &clientEnd{Conn: theirs}
	b.conns = append(b.conns, c)
	return c, nil
}

func (b *fakeBroker) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// client connects a client and returns it with its first connection.
func (b *fakeBroker) client(o Options) (*Client, *peer) {
	b.t.Helper()
	o.Dialer = b.dial
	c, err := Dial(b.t.Context(), "broker:1", o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c, b.accept()
}

// accept is the next greeted connection.
func (b *fakeBroker) accept() *peer {
	b.t.Helper()
	select {
	case p := <-b.peers:
		return p
	case <-time.After(time.Hour):
		b.t.Fatal("no connection")
		return nil
	}
}

type request struct {
	protocol.Header
	body []byte
}

// peer is the broker's end of one connection.
type peer struct {
	b      *fakeBroker
	t      *testing.T
	conn   net.Conn
	frames chan request
	gone   chan struct{} // the client's end is closed

	mu sync.Mutex // of writes
}

func (p *peer) serve(hello protocol.HelloAnswer, mute bool, bye *goodbye) {
	defer close(p.gone)
	in := bufio.NewReader(p.conn)
	for first := true; ; first = false {
		r, err := readRequest(in)
		if err != nil {
			p.conn.Close()
			return
		}
		switch {
		case !first:
			p.frames <- r
		case mute:
		case bye != nil:
			p.push(protocol.OpGoodbye, bye.status, &protocol.ErrorBody{Message: bye.message})
			p.conn.Close()
			return
		default:
			p.answer(r, protocol.OK, &hello)
			p.b.peers <- p
		}
	}
}

func readRequest(in io.Reader) (request, error) {
	head := make([]byte, protocol.HeaderBytes)
	if _, err := io.ReadFull(in, head); err != nil {
		return request{}, err
	}
	h, err := protocol.ParseHeader(head)
	if err != nil {
		return request{}, err
	}
	if err := h.CheckRequest(); err != nil {
		return request{}, err
	}
	body := make([]byte, h.BodyLen)
	_, err = io.ReadFull(in, body)
	return request{h, body}, err
}

// expect is the next request, which must be of op, decoded into body.
func (p *peer) expect(op protocol.Opcode, body protocol.Body) request {
	p.t.Helper()
	select {
	case r := <-p.frames:
		if r.Opcode != op {
			p.t.Fatalf("got %s, want %s", r.Opcode, op)
		}
		if body != nil {
			if err := body.Decode(r.body); err != nil {
				p.t.Fatal(err)
			}
		}
		return r
	case <-time.After(time.Hour):
		p.t.Fatalf("no %s came", op)
		return request{}
	}
}

// quiet fails if anything arrived that was not expected.
func (p *peer) quiet() {
	p.t.Helper()
	synctest.Wait()
	select {
	case r := <-p.frames:
		p.t.Fatalf("unexpected %s", r.Opcode)
	default:
	}
}

func (p *peer) write(h protocol.Header, body protocol.Body) {
	b := protocol.BeginFrame(nil, h)
	if body != nil {
		b = body.Append(b)
	}
	protocol.EndFrame(b, 0)
	p.raw(b)
}

func (p *peer) raw(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.conn.Write(b); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		p.t.Error(err)
	}
}

func (p *peer) answer(r request, s protocol.Status, body protocol.Body) {
	p.write(protocol.Header{Opcode: r.Opcode, Flags: protocol.FlagAnswer, Status: s, RequestID: r.RequestID}, body)
}

func (p *peer) refuse(r request, s protocol.Status, message string) {
	p.answer(r, s, &protocol.ErrorBody{Message: message})
}

func (p *peer) push(op protocol.Opcode, s protocol.Status, body protocol.Body) {
	p.write(protocol.Header{Opcode: op, Flags: protocol.FlagPush, Status: s}, body)
}

// stored answers a SEND with OK for each of its messages, offsets from first.
func (p *peer) stored(r request, first uint64) {
	p.t.Helper()
	var m protocol.SendRequest
	if err := m.Decode(r.body); err != nil {
		p.t.Error(err)
	}
	results := make([]protocol.SendResult, len(m.Messages))
	for i := range results {
		results[i] = protocol.SendResult{Queue: 3, Offset: first + uint64(i), MessageID: codec.NewMessageID(7, first+uint64(i))}
	}
	p.answer(r, protocol.OK, &protocol.SendAnswer{Results: results})
}

func (p *peer) settled(r request, results ...protocol.SettleResult) {
	p.answer(r, protocol.OK, &protocol.AckAnswer{Results: results})
}

// close returns when the client has noticed.
func (p *peer) close() {
	p.conn.Close()
	<-p.gone
	synctest.Wait()
}

// going runs f and returns how to wait for what it returns.
func going[T any](f func() T) func() T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return func() T { return <-c }
}

// bubble runs a test with a fake clock.
func bubble(t *testing.T, f func(t *testing.T, b *fakeBroker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newFakeBroker(t)) })
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error %v, want %v in it", err, w)
		}
	}
}

func notErr(t *testing.T, err error, unwanted error) {
	t.Helper()
	if errors.Is(err, unwanted) {
		t.Errorf("error %v, want no %v in it", err, unwanted)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// messageRecord is a log record with a message, as a POP or PEEK answer carries it.
func messageRecord(t testing.TB, offset uint64, m codec.Message) []byte {
	payload, err := m.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return payloadRecord(offset, payload)
}

func payloadRecord(offset uint64, payload []byte) []byte {
	record := make([]byte, codec.HeaderBytes+codec.MessageAssignedBytes, codec.HeaderBytes+codec.MessageAssignedBytes+len(payload))
	place := codec.MessagePlace{Topic: 1, Queue: 5, Offset: offset, ID: codec.NewMessageID(7, 4096+offset)}
	place.Put(record[codec.HeaderBytes:])
	record = append(record, payload...)
	codec.Seal(record, &codec.Header{Type: codec.TypeMessage, Epoch: 7, Position: 4096 + offset, WallMs: 1_700_000_000_123},
		codec.MessageAssignedBytes, codec.Checksum(0, payload))
	return record
}

// popAnswer has a lease row for each record.
func popAnswer(records ...[]byte) *protocol.PopAnswer {
	answer := &protocol.PopAnswer{Leased: uint64(len(records)), Waiting: 2}
	for i, r := range records {
		receipt := make([]byte, protocol.ReceiptBytes)
		receipt[0] = byte(i + 1)
		answer.Rows = append(answer.Rows, protocol.LeaseRow{
			RecordOffset: uint32(len(answer.Records)), RecordLength: uint32(len(r)),
			Token: 7<<32 | uint64(i+1), Attempt: 2, RemainingMs: 30_000, RenewalsLeft: 3, Failures: 1,
			BudgetMs: 90_000, Receipt: receipt,
		})
		answer.Records = append(answer.Records, r...)
	}
	return answer
}

// session registers a session whose broker asks for a heartbeat each 3 s and ends it after 10 s.
func (p *peer) session(c *Client) *Session {
	p.t.Helper()
	wait := going(func() *Session {
		s, err := c.Register(p.t.Context(), "g", RegisterOptions{ConsumerID: "me"})
		if err != nil {
			p.t.Error(err)
		}
		return s
	})
	p.answer(p.expect(protocol.OpRegister, nil), protocol.OK, registered(77))
	return wait()
}

func registered(id uint64) *protocol.RegisterAnswer {
	return &protocol.RegisterAnswer{Session: id, Generation: 4, HeartbeatMs: 3000, TimeoutMs: 10_000, GroupVersion: 9, InvisibleMs: 30_000}
}

// popped pops what records hold.
func (p *peer) popped(s *Session, records ...[]byte) *Batch {
	p.t.Helper()
	wait := going(func() *Batch {
		b, err := s.Pop(p.t.Context(), PopOptions{Topic: "t", Max: 16})
		if err != nil {
			p.t.Error(err)
		}
		return b
	})
	p.answer(p.expect(protocol.OpPop, nil), protocol.OK, popAnswer(records...))
	return wait()
}
