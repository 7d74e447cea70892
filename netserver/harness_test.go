package netserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// patience bounds every wait of a test; nothing waits for so long unless it fails.
const patience = 20 * time.Second

// staged is a frame that fake has accepted and not flushed yet.
type staged struct {
	h    protocol.Header
	body []byte // the very slice that Frame got
}

// fake is a Handler that answers every frame at Flush with its own body, so that the answer is wrong if
// the body has not stayed as it was. The hooks, set before the server starts, replace parts of it.
type fake struct {
	wakeUp atomic.Pointer[func()]
	batch  map[broker.Peer][]staged
	answer func(p broker.Peer, s staged) []byte // body of the answer; nil: none
	frame  func(p broker.Peer, h protocol.Header, body []byte) bool
	flush  func(p broker.Peer)
	onWake func()
	open   func(p broker.Peer)
	close  func(p broker.Peer)
	drain  func()
	owed   func() int

	flushes, wakes, opens, closes, drains atomic.Int64

	// calls is 1 while a method runs: none may run inside another, or beside it.
	calls   atomic.Int32
	nested  atomic.Bool
	nesting bool // allowed: the test writes from within a method
}

func (f *fake) enter() func() {
	if f.calls.Add(1) != 1 && !f.nesting {
		f.nested.Store(true)
	}
	return func() { f.calls.Add(-1) }
}

// wake calls the wake function that the loop gave.
func (f *fake) wake() { (*f.wakeUp.Load())() }

func (f *fake) Open(p broker.Peer) {
	defer f.enter()()
	f.opens.Add(1)
	if f.open != nil {
		f.open(p)
	}
}

func (f *fake) Frame(p broker.Peer, h protocol.Header, body []byte) bool {
	defer f.enter()()
	if f.frame != nil && !f.frame(p, h, body) {
		return false
	}
	f.batch[p] = append(f.batch[p], staged{h, body})
	return true
}

func (f *fake) Flush(p broker.Peer) {
	defer f.enter()()
	f.flushes.Add(1)
	if f.flush != nil {
		f.flush(p)
	}
	for _, s := range f.batch[p] {
		body := s.body
		if f.answer != nil {
			if body = f.answer(p, s); body == nil {
				continue
			}
		}
		p.SetOut(appendFrame(p.Out(), protocol.Header{
			Opcode: s.h.Opcode, Flags: protocol.FlagAnswer, RequestID: s.h.RequestID,
		}, body))
	}
	f.batch[p] = f.batch[p][:0]
}

func (f *fake) Wake() {
	defer f.enter()()
	f.wakes.Add(1)
	if f.onWake != nil {
		f.onWake()
	}
}

func (f *fake) Close(p broker.Peer) {
	defer f.enter()()
	f.closes.Add(1)
	delete(f.batch, p)
	if f.close != nil {
		f.close(p)
	}
}

func (f *fake) Drain() {
	defer f.enter()()
	f.drains.Add(1)
	if f.drain != nil {
		f.drain()
	}
}

func (f *fake) Pending() int {
	defer f.enter()()
	if f.owed != nil {
		return f.owed()
	}
	return 0
}

// fixture is a server under test with one loop and one fake, and a clock that stands still.
type fixture struct {
	*Server
	t     *testing.T
	fake  *fake
	clock *fakeClock
	ticks chan time.Time
}

// start runs a server for the test. Everything must have ended when the test does.
func start(t *testing.T, o Options, f *fake) *fixture {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	fx := &fixture{t: t, fake: f, clock: &fakeClock{now: time.Unix(1_000_000, 0)}, ticks: make(chan time.Time)}
	f.batch = make(map[broker.Peer][]staged)
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Loops == 0 {
		o.Loops = 1
	}
	if o.NewHandler == nil {
		o.NewHandler = func(wake func()) Handler {
			f.wakeUp.Store(&wake)
			return f
		}
	}
	o.Clock, o.Ticks = fx.clock.Now, fx.ticks
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	fx.Server = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if f.nested.Load() {
			t.Error("a Handler method was called while another one ran")
		}
		goleak.VerifyNone(t, leaks)
	})
	return fx
}

// tick makes every loop that watches something look at it, once.
func (fx *fixture) tick() {
	select {
	case fx.ticks <- time.Time{}:
	case <-fx.Done():
	}
}

// tickUntil ticks until cond holds.
func (fx *fixture) tickUntil(what string, cond func() bool) {
	fx.t.Helper()
	waitFor(fx.t, what, func() bool {
		fx.tick()
		return cond()
	})
}

// onLoop runs f on the only loop and waits for it.
func (fx *fixture) onLoop(f func(l *loop)) {
	fx.t.Helper()
	ran := make(chan struct{})
	l := fx.allLoops()[0]
	l.execute(func() {
		defer close(ran)
		l.enter()
		defer l.leave()
		f(l)
	})
	select {
	case <-ran:
	case <-time.After(patience):
		fx.t.Fatal("the loop does not run what it was given")
	}
}

// hasRead returns when the server has read n bytes in all and is done with them.
func (fx *fixture) hasRead(n int) {
	fx.t.Helper()
	waitFor(fx.t, "the bytes were read", func() bool { return fx.Stats().BytesIn == uint64(n) })
	fx.onLoop(func(*loop) {})
}

// settle returns when the loop has run three ticks from now on.
func (fx *fixture) settle() {
	fx.t.Helper()
	for range 3 {
		fx.tick()
		fx.onLoop(func(*loop) {})
	}
}

type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// client is the other end of a connection.
type client struct {
	*net.TCPConn
	t *testing.T
}

// connect opens a connection. One with a small receive buffer makes the server keep what is not read.
func (fx *fixture) connect(receiveBuffer ...int) *client {
	fx.t.Helper()
	return dialTest(fx.t, fx.Addr().String(), receiveBuffer...)
}

func dialTest(t *testing.T, addr string, receiveBuffer ...int) *client {
	t.Helper()
	d := net.Dialer{Timeout: patience}
	if len(receiveBuffer) > 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var err error
			return errors.Join(raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer[0])
			}), err)
		}
	}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &client{c.(*net.TCPConn), t}
}

// greeted opens a connection and has its HELLO answered.
func (fx *fixture) greeted(receiveBuffer ...int) *client {
	fx.t.Helper()
	c := fx.connect(receiveBuffer...)
	c.send(request(protocol.OpHello, 1, nil))
	c.expect(1, nil)
	return c
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatalf("client write: %v", err)
	}
}

func (c *client) read() (protocol.Header, []byte, error) {
	head := make([]byte, protocol.HeaderBytes)
	if _, err := io.ReadFull(c, head); err != nil {
		return protocol.Header{}, nil, err
	}
	h, err := protocol.ParseHeader(head)
	if err != nil {
		return h, nil, err
	}
	body := make([]byte, h.BodyLen)
	_, err = io.ReadFull(c, body)
	return h, body, err
}

// expect reads the answer to request id and compares its body, unless body is nil.
func (c *client) expect(id uint64, body []byte) {
	c.t.Helper()
	h, got, err := c.read()
	if err != nil {
		c.t.Fatalf("reading the answer to %d: %v", id, err)
	}
	if h.Flags != protocol.FlagAnswer || h.RequestID != id {
		c.t.Fatalf("got %+v (%q), want the answer to %d", h, got, id)
	}
	if body != nil && string(got) != string(body) {
		c.t.Fatalf("the answer to %d has %d bytes that are not those sent (%d)", id, len(got), len(body))
	}
}

// expectGoodbye reads a GOODBYE with status, then the end, and returns its text.
func (c *client) expectGoodbye(status protocol.Status) string {
	c.t.Helper()
	h, body, err := c.read()
	if err != nil {
		c.t.Fatalf("reading a GOODBYE: %v", err)
	}
	if h.Opcode != protocol.OpGoodbye || h.RequestID != 0 || h.Status != status {
		c.t.Fatalf("got %+v, want GOODBYE %v", h, status)
	}
	var e protocol.ErrorBody
	if err := e.Decode(body); err != nil {
		c.t.Fatal(err)
	}
	if e.Message == "" {
		c.t.Error("a GOODBYE without a reason")
	}
	if _, _, err := c.read(); err != io.EOF {
		c.t.Fatalf("after the GOODBYE: %v, want the end of the stream", err)
	}
	return e.Message
}

// reset ends the connection with RST.
func (c *client) reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func appendFrame(dst []byte, h protocol.Header, body []byte) []byte {
	h.BodyLen = uint32(len(body))
	return append(h.Append(dst), body...)
}

func request(op protocol.Opcode, id uint64, body []byte) []byte {
	return appendFrame(nil, protocol.Header{Opcode: op, RequestID: id}, body)
}

// pattern is a body of n bytes that differs everywhere from that of another id.
func pattern(id uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint64(i)*31 + id*17)
	}
	if n >= 8 {
		binary.LittleEndian.PutUint64(b, id)
	}
	return b
}

// within is a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
