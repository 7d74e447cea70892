package netserver

import (
	"io"
	"runtime"
	"testing"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

const smallReceiveBuffer = 8 << 10

// big is a fake that answers POP with n bytes and everything else as usual.
func big(n int) *fake {
	f := &fake{}
	f.answer = func(_ broker.Peer, s staged) []byte {
		if s.h.Opcode == protocol.OpPop {
			return pattern(s.h.RequestID, n)
		}
		return s.body
	}
	return f
}

// sendInBackground writes stream while the test goes on; the client may be stuck in it.
func (c *client) sendInBackground(stream []byte) {
	go func() { _, _ = c.Write(stream) }()
}

func pops(from, to uint64) (stream []byte) {
	for id := from; id < to; id++ {
		stream = append(stream, request(protocol.OpPop, id, nil)...)
	}
	return stream
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// gnet's outbound buffer has no bound and tells nobody when it drains. Given a client that asks and does not
// read, then its requests wait above the high-water mark, memory stays bounded, others are served; and when it
// reads it gets everything.
func TestASlowReaderIsNotServedAboveHighWater(t *testing.T) {
	const highWater, answer, n = 1 << 20, 256 << 10, 160 // 40 MiB of answers in all
	fx := start(t, Options{HighWater: highWater}, big(answer))
	slow, other := fx.greeted(smallReceiveBuffer), fx.greeted()
	heap := heapBytes()
	slow.send(pops(2, n+2))
	waitFor(t, "the slow reader is choked", func() bool {
		choked := false
		fx.onLoop(func(l *loop) { choked = l.peers[0].choked })
		return choked
	})
	for id := uint64(2); id < 50; id++ {
		other.send(request(protocol.OpAck, id, []byte("on")))
		other.expect(id, []byte("on"))
	}
	fx.settle()
	served := fx.Stats().Frames
	fx.onLoop(func(l *loop) {
		if held := l.peers[0].wire.buffered(); held > 4*highWater {
			t.Errorf("%d bytes of output wait, the high-water mark is %d", held, highWater)
		}
	})
	if grown := int64(heapBytes()) - int64(heap); grown > 16*highWater {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	fx.settle()
	if again := fx.Stats().Frames; again != served {
		t.Errorf("%d more frames were served though nothing was read", again-served)
	}

	stop := fx.keepTicking()
	defer stop()
	for id := uint64(2); id < n+2; id++ {
		slow.expect(id, pattern(id, answer))
	}
}

// A batch of requests with large answers must not pass the mark by much, though it came in one read.
func TestPopsOfOneBatchDoNotOverrunTheHighWaterMark(t *testing.T) {
	fx := start(t, Options{}, big(protocol.MaxPopBytes))
	c := fx.greeted(smallReceiveBuffer)
	c.send(pops(2, 200))
	waitFor(t, "the reader is choked", func() bool {
		choked := false
		fx.onLoop(func(l *loop) { choked = l.peers[0].choked })
		return choked
	})
	fx.onLoop(func(l *loop) {
		if held, limit := l.peers[0].wire.buffered(), 2*DefaultHighWater+protocol.MaxPopBytes; held > limit {
			t.Errorf("%d bytes of output wait, want %d at most", held, limit)
		}
	})
}

func TestASlowReaderIsClosedWhenItTakesNothing(t *testing.T) {
	fx := start(t, Options{HighWater: 1 << 20}, big(512<<10))
	slow, other := fx.greeted(smallReceiveBuffer), fx.greeted()
	slow.send(pops(2, 100))
	waitFor(t, "output waits", func() bool {
		choked := false
		fx.onLoop(func(l *loop) { choked = l.peers[0].choked })
		return choked
	})
	waitForStillOutput(fx)
	fx.clock.advance(DefaultSlowTimeout - 1)
	fx.settle()
	if n := fx.Stats().ClosedByBroker; n != 0 {
		t.Fatal("closed too early")
	}
	// The kernel of the client may have taken a late byte, from which on the time runs anew: then it is over some ticks later.
	fx.tickUntil("the slow reader is closed", func() bool {
		fx.clock.advance(DefaultSlowTimeout / 8)
		return fx.Stats().ClosedByBroker == 1
	})
	if n := fx.Stats().Goodbyes[protocol.SlowConsumer]; n != 1 {
		t.Errorf("counted %d", n)
	}
	if n := fx.fake.closes.Load(); n != 1 {
		t.Errorf("the handler was told %d times", n)
	}
	other.send(request(protocol.OpAck, 2, nil))
	other.expect(2, nil)
}

// waitForStillOutput returns when the kernels take no more of the first connection's output.
func waitForStillOutput(fx *fixture) {
	fx.t.Helper()
	last, same := -1, 0
	waitFor(fx.t, "the socket is full", func() bool {
		held := 0
		fx.onLoop(func(l *loop) { held = l.peers[0].wire.buffered() + l.peers[0].wire.unacked() })
		if held != last {
			last, same = held, 0
		}
		same++
		return same > 20
	})
	fx.settle() // a tick has seen this
}

// A client that reads slowly, but reads, is not closed.
func TestASlowReaderThatReadsIsKept(t *testing.T) {
	const answer, n = 512 << 10, 64
	fx := start(t, Options{HighWater: 1 << 20}, big(answer))
	slow := fx.greeted(smallReceiveBuffer)
	slow.send(pops(2, n+2))
	for id := uint64(2); id < n+2; id++ {
		slow.expect(id, pattern(id, answer))
		fx.clock.advance(DefaultSlowTimeout / 2)
		fx.settle()
	}
}

// Pushes are not asked for, so the high-water mark does not stop them: the hard cap does.
func TestAboveTheHardCapTheConnectionIsClosed(t *testing.T) {
	const hardCap = 8 << 20
	f := &fake{}
	var peers []broker.Peer
	f.open = func(p broker.Peer) { peers = append(peers, p) }
	push := make([]byte, 1<<20)
	f.onWake = func() {
		head := protocol.Header{Opcode: protocol.OpDrain, Flags: protocol.FlagPush}
		peers[0].SetOut(appendFrame(peers[0].Out(), head, push))
	}
	fx := start(t, Options{HardCap: hardCap}, f)
	slow := fx.greeted(smallReceiveBuffer)
	other := fx.greeted()
	waitFor(t, "the slow reader is closed", func() bool {
		f.wake()
		held := 0
		fx.onLoop(func(l *loop) {
			for _, p := range l.peers {
				held = max(held, p.wire.buffered())
			}
		})
		if held > hardCap {
			t.Fatalf("%d bytes of output wait, the cap is %d", held, hardCap)
		}
		return fx.Stats().Goodbyes[protocol.SlowConsumer] == 1
	})
	if _, err := io.Copy(io.Discard, slow); err != nil {
		t.Logf("the slow reader got: %v", err)
	}
	other.send(request(protocol.OpAck, 2, nil))
	other.expect(2, nil)
}
