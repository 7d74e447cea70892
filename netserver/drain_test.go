package netserver

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// shutdown runs Shutdown in the background.
func (fx *fixture) shutdown(ctx context.Context) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- fx.Shutdown(ctx) }()
	return ended
}

func stillRuns(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		t.Fatalf("Shutdown returned %v", err)
	default:
	}
}

func TestShutdownWaitsForOwedAnswers(t *testing.T) {
	var owed atomic.Int64
	owed.Store(1)
	var parked broker.Peer
	f := &fake{}
	f.owed = func() int { return int(owed.Load()) }
	f.answer = func(p broker.Peer, s staged) []byte {
		if s.h.Opcode == protocol.OpPop {
			parked = p
			return nil // parked
		}
		return []byte{}
	}
	f.onWake = func() {
		head := protocol.Header{Opcode: protocol.OpPop, Flags: protocol.FlagAnswer, RequestID: 2}
		parked.SetOut(appendFrame(parked.Out(), head, nil))
		owed.Store(0)
	}
	fx := start(t, Options{}, f)
	c := fx.greeted()
	c.send(request(protocol.OpPop, 2, nil))
	fx.hasRead(24 + 24)
	ended := fx.shutdown(within(t, patience))
	waitFor(t, "the handler was told", func() bool { return f.drains.Load() == 1 })

	// New connections are refused, old ones still served.
	late := fx.connect()
	late.expectGoodbye(protocol.Draining)
	_ = late.Close()
	c.send(request(protocol.OpAck, 3, nil))
	c.expect(3, nil)
	fx.settle()
	stillRuns(t, ended)

	f.wake()
	c.expect(2, nil)
	c.expectGoodbye(protocol.Draining)
	stillRuns(t, ended) // until the client has closed
	_ = c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := f.drains.Load(); n != 1 {
		t.Errorf("the handler was told %d times", n)
	}
	if err := fx.Err(); err != nil {
		t.Errorf("Err is %v after a wanted stop", err)
	}
	if _, err := net.Dial("tcp", fx.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

func TestShutdownWaitsForOutput(t *testing.T) {
	const n = 24 << 20
	fx := start(t, Options{}, big(n))
	c := fx.greeted(smallReceiveBuffer)
	// Longer than a frame may be, but this client does not mind.
	c.send(request(protocol.OpPop, 2, nil))
	waitFor(t, "output waits", func() bool {
		held := 0
		fx.onLoop(func(l *loop) { held = l.peers[0].wire.buffered() })
		return held > 0
	})
	ended := fx.shutdown(within(t, patience))
	waitFor(t, "the handler was told", func() bool { return fx.fake.drains.Load() == 1 })
	fx.settle()
	stillRuns(t, ended)
	stop := fx.keepTicking()
	defer stop()
	if got, err := io.CopyN(io.Discard, c, protocol.HeaderBytes+n); err != nil {
		t.Fatalf("%d bytes of the answer, %v", got, err)
	}
	c.expectGoodbye(protocol.Draining)
	_ = c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	f := &fake{owed: func() int { return 1 }}
	fx := start(t, Options{}, f)
	c := fx.greeted()
	if err := fx.Shutdown(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	c.expectGoodbye(protocol.Draining)
	if f.closes.Load() != 1 {
		t.Error("the handler was not told of the close")
	}
	select {
	case <-fx.Done():
	default:
		t.Error("not done")
	}
}

func TestShutdownOfAServerThatNobodyUsed(t *testing.T) {
	fx := start(t, Options{Loops: 3}, &fake{})
	if err := fx.Shutdown(within(t, patience)); err != nil {
		t.Error(err)
	}
	if err := fx.Shutdown(within(t, patience)); err != nil { // and again
		t.Error(err)
	}
}

// A client that does not close after the GOODBYE holds a shutdown up for the linger time only.
func TestShutdownDoesNotWaitForAClientThatStays(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	ended := fx.shutdown(within(t, patience))
	c.expectGoodbye(protocol.Draining)
	fx.settle()
	stillRuns(t, ended)
	fx.clock.advance(lingerTimeout)
	fx.tick()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCloseDropsEverythingAtOnce(t *testing.T) {
	f := &fake{owed: func() int { return 1 }}
	fx := start(t, Options{Loops: 2, NewHandler: func(func()) Handler { return newFake(f) }}, f)
	var clients []*client
	for range 10 {
		clients = append(clients, fx.greeted())
	}
	began := time.Now()
	if err := fx.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 400*time.Millisecond {
		t.Errorf("Close took %v: it must not wait for gnet to look", d)
	}
	for _, c := range clients {
		if _, _, err := c.read(); err == nil {
			t.Error("a connection stands")
		}
	}
	if st := fx.Stats(); st.ClosedByStop != 10 || st.Connections != 0 {
		t.Errorf("counted %+v", st)
	}
}

// newFake is another fake with the hooks of f, for a second loop.
func newFake(f *fake) *fake {
	return &fake{batch: make(map[broker.Peer][]staged), answer: f.answer, frame: f.frame, owed: f.owed}
}
