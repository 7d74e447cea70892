package netserver

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// gated is a fake that refuses SENDs while its gate is closed, as the broker does while its log is behind.
type gated struct {
	*fake
	closed   atomic.Bool
	refusals atomic.Int64
}

func newGated() *gated {
	g := &gated{fake: &fake{}}
	g.frame = func(_ broker.Peer, h protocol.Header, _ []byte) bool {
		if h.Opcode == protocol.OpSend && g.closed.Load() {
			g.refusals.Add(1)
			return false
		}
		return true
	}
	g.closed.Store(true)
	return g
}

func (g *gated) openGate() {
	g.closed.Store(false)
	g.wake()
}

// Level-triggered means that complete frames left unhandled cause no further event. Given refused frames and
// nothing more from the client, then a wake brings them again, in order, and the half frame behind them stays.
func TestLeftoverFramesAreHandledWithoutMoreBytes(t *testing.T) {
	g := newGated()
	fx := start(t, Options{}, g.fake)
	c := fx.greeted()
	var stream []byte
	for id := uint64(2); id < 7; id++ {
		stream = append(stream, request(protocol.OpSend, id, pattern(id, 100_000))...)
	}
	half := request(protocol.OpSend, 7, pattern(7, 1000))
	c.send(append(stream, half[:500]...))
	fx.hasRead(24 + len(stream) + 500)

	g.wake() // in vain
	waitFor(t, "the frame was refused again", func() bool { return g.refusals.Load() >= 2 })
	if n := fx.Stats().Frames; n != 1 {
		t.Fatalf("%d frames were accepted, want HELLO only", n)
	}
	g.openGate()
	for id := uint64(2); id < 7; id++ {
		c.expect(id, pattern(id, 100_000))
	}
	c.send(half[500:])
	c.expect(7, pattern(7, 1000))
}

// Frames that were accepted before the refusal are flushed and answered, those behind wait.
func TestARefusalEndsTheBatchNotTheAnswers(t *testing.T) {
	g := newGated()
	fx := start(t, Options{}, g.fake)
	c := fx.greeted()
	stream := request(protocol.OpHeartbeat, 2, nil)
	stream = append(stream, request(protocol.OpSend, 3, nil)...)
	stream = append(stream, request(protocol.OpHeartbeat, 4, nil)...)
	c.send(stream)
	c.expect(2, nil)
	g.openGate()
	c.expect(3, nil)
	c.expect(4, nil)
}

func TestAStalledConnectionDoesNotStopAnother(t *testing.T) {
	g := newGated()
	fx := start(t, Options{}, g.fake)
	stalled, other := fx.greeted(), fx.greeted()
	stalled.send(request(protocol.OpSend, 2, nil))
	waitFor(t, "the frame was refused", func() bool { return g.refusals.Load() > 0 })
	for id := uint64(2); id < 100; id++ {
		other.send(request(protocol.OpAck, id, []byte("on")))
		other.expect(id, []byte("on"))
	}
	g.openGate()
	stalled.expect(2, nil)
}

// gnet can't pause reading, so what a stalled client goes on sending must be bounded here.
func TestMoreThanTheCreditIsAFlowViolation(t *testing.T) {
	g := newGated()
	const credit, frame = 100_000, 50_000
	fx := start(t, Options{CreditBytes: credit, MaxFrameBytes: frame}, g.fake)
	c := fx.greeted()
	body := make([]byte, 9_976) // frames of 10,000 bytes
	var stream []byte
	for id := uint64(2); len(stream) < credit+frame; id++ {
		stream = append(stream, request(protocol.OpSend, id, body)...)
	}
	c.send(stream)
	fx.hasRead(24 + len(stream))
	fx.onLoop(func(l *loop) {
		if l.peers[0].state != serving {
			t.Error("the credit and one frame were not granted")
		}
	})
	c.send([]byte{0})
	c.expectGoodbye(protocol.FlowViolation)
}

// The time for which the broker does not parse is not the client's silence.
func TestAStalledConnectionHasNoTimeouts(t *testing.T) {
	g := newGated()
	hello := false
	g.frame = func(broker.Peer, protocol.Header, []byte) bool { hello = true; return !g.closed.Load() }
	fx := start(t, Options{}, g.fake)
	c := fx.connect()
	second := request(protocol.OpSend, 2, pattern(2, 100))
	c.send(append(request(protocol.OpHello, 1, nil), second[:50]...))
	fx.hasRead(24 + 50)
	fx.clock.advance(time.Hour)
	fx.settle()
	g.openGate()
	c.expect(1, nil)
	// From here on the half frame has its 10 seconds.
	fx.clock.advance(DefaultFrameTimeout - 1)
	fx.settle()
	c.send(second[50:])
	c.expect(2, pattern(2, 100))
	fx.onLoop(func(*loop) {
		if !hello {
			t.Error("the HELLO was never refused")
		}
	})
}

// Heartbeats that wait, here or in the socket, are not silence.
func TestBackloggedTellsOfUnparsedBytes(t *testing.T) {
	g := newGated()
	inFrame, proceed := make(chan bool), make(chan struct{})
	var fx *fixture
	g.answer = func(p broker.Peer, s staged) []byte {
		if s.h.Opcode == protocol.OpPop {
			inFrame <- p.Backlogged()
			<-proceed
			inFrame <- p.Backlogged()
		}
		return s.body
	}
	fx = start(t, Options{}, g.fake)
	c := fx.greeted()

	c.send(request(protocol.OpPop, 2, nil))
	if <-inFrame {
		t.Error("backlogged though nothing waits")
	}
	c.send(request(protocol.OpHeartbeat, 3, nil)) // while the loop is busy: it lies in the socket
	// The kernel has delivered over loopback when the client's write has returned.
	proceed <- struct{}{}
	if !<-inFrame {
		t.Error("not backlogged though a frame lies in the socket")
	}
	c.expect(2, nil)
	c.expect(3, nil)
	fx.onLoop(func(l *loop) {
		if l.peers[0].Backlogged() {
			t.Error("backlogged though all was handled")
		}
	})

	c.send(request(protocol.OpSend, 4, nil))
	waitFor(t, "the frame was refused", func() bool { return g.refusals.Load() > 0 })
	fx.onLoop(func(l *loop) {
		if !l.peers[0].Backlogged() {
			t.Error("not backlogged though a frame was refused")
		}
	})
	g.openGate()
	c.expect(4, nil)
}
