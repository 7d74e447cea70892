package netserver

import (
	"log/slog"
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

func TestNoHelloEndsTheConnection(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	silent, half := fx.connect(), fx.connect()
	half.send(request(protocol.OpHello, 1, nil)[:10])
	waitFor(t, "both are open", func() bool { return fx.Stats().Connections == 2 })
	fx.hasRead(10)
	fx.clock.advance(DefaultHelloTimeout - 1)
	fx.settle()
	if n := fx.Stats().ClosedByBroker; n != 0 {
		t.Fatalf("%d closed too early", n)
	}
	fx.clock.advance(1)
	fx.tick()
	silent.expectGoodbye(protocol.Timeout)
	half.expectGoodbye(protocol.Timeout)
}

func TestAnIdleConnectionStays(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	fx.clock.advance(24 * time.Hour)
	fx.settle()
	c.send(request(protocol.OpAck, 2, nil))
	c.expect(2, nil)
}

func TestHalfAFrameAndSilenceEndTheConnection(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	c.send(request(protocol.OpSend, 2, pattern(2, 100))[:60])
	fx.hasRead(24 + 60)
	fx.clock.advance(DefaultFrameTimeout)
	fx.tick()
	c.expectGoodbye(protocol.Timeout)
}

// One byte now and then is not silence, but each frame has its time from its first byte.
func TestATrickleMustFinishEachFrameInTime(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	trickle := func(frame []byte, pause time.Duration) {
		for _, b := range frame {
			before := int(fx.Stats().BytesIn)
			c.send([]byte{b})
			fx.hasRead(before + 1)
			fx.clock.advance(pause)
			fx.settle()
		}
	}
	// 34 bytes in 9.9 seconds, again and again: in time.
	for id := uint64(2); id < 5; id++ {
		trickle(request(protocol.OpSend, id, pattern(id, 10)), 290*time.Millisecond)
		c.expect(id, pattern(id, 10))
	}
	// 30 of 34 bytes in 12 seconds, none of the gaps longer than 0.4: too slow.
	trickle(request(protocol.OpSend, 5, pattern(5, 10))[:30], 400*time.Millisecond)
	c.expectGoodbye(protocol.Timeout)
}

// With nothing to watch there are no ticks, and so no work on the loops.
func TestALoopWithNothingToWatchGetsNoTicks(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	fx.settle()
	l := fx.allLoops()[0]
	if pace(l.wanted.Load()) != paceNone {
		t.Fatal("an idle connection is watched")
	}
	c.send(request(protocol.OpSend, 2, nil)[:10])
	waitFor(t, "the half frame is watched", func() bool { return pace(l.wanted.Load()) == paceSlow })
	c.send(request(protocol.OpSend, 2, nil)[10:])
	c.expect(2, nil)
	fx.settle()
	if pace(l.wanted.Load()) != paceNone {
		t.Fatal("a finished frame is watched")
	}
}

// The ticker of production, with the real clock.
func TestTheTickerTicksByItself(t *testing.T) {
	s, err := Listen(Options{
		Listen: "127.0.0.1:0", Loops: 1, HelloTimeout: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		NewHandler: func(func()) Handler { return &fake{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	dialTest(t, s.Addr().String()).expectGoodbye(protocol.Timeout)
}
