package netserver

import (
	"errors"
	"testing"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// gnet recovers nothing. Given a panic in a method of the Handler, then the connection it was called for ends
// with INTERNAL and the others are served.
func TestAPanicClosesOneConnection(t *testing.T) {
	boom := func(p broker.Peer, h protocol.Header, _ []byte) bool {
		if h.Opcode == protocol.OpPop {
			panic("test: Frame")
		}
		return true
	}
	for name, f := range map[string]*fake{
		"Frame": {frame: boom},
		"Flush": {answer: func(_ broker.Peer, s staged) []byte {
			if s.h.Opcode == protocol.OpPop {
				panic("test: Flush")
			}
			return s.body
		}},
		"Frame and Close": {frame: boom, close: func(broker.Peer) { panic("test: Close") }},
	} {
		t.Run(name, func(t *testing.T) {
			var told any
			fx := start(t, Options{Fatal: func(v any) bool { told = v; return false }}, f)
			bad, other := fx.greeted(), fx.greeted()
			other.send(request(protocol.OpAck, 2, nil)[:10])
			// Half a frame follows, so that what was kept is dropped too.
			bad.send(append(request(protocol.OpPop, 2, pattern(2, 10)), request(protocol.OpAck, 3, nil)[:10]...))
			bad.expectGoodbye(protocol.Internal)
			_ = bad.Close()
			waitFor(t, "the handler was told", func() bool { return f.closes.Load() == 1 })
			other.send(request(protocol.OpAck, 2, nil)[10:])
			other.expect(2, nil)
			fx.onLoop(func(*loop) {
				if told == nil {
					t.Error("Fatal was not asked")
				}
			})
			if fx.Stats().Panics == 0 {
				t.Error("not counted")
			}
		})
	}
}

func TestAPanicInOpenClosesTheConnection(t *testing.T) {
	f := &fake{open: func(broker.Peer) { panic("test: Open") }}
	fx := start(t, Options{}, f)
	c := fx.connect()
	c.expectGoodbye(protocol.Internal)
	_ = c.Close()
	waitFor(t, "Close is called for what Open was called for", func() bool { return f.closes.Load() == 1 })
}

func TestAPanicInNewHandlerClosesTheConnection(t *testing.T) {
	tries := 0
	f := &fake{}
	o := Options{NewHandler: func(wake func()) Handler {
		if tries++; tries == 1 {
			panic("test: NewHandler")
		}
		return f
	}}
	fx := start(t, o, f)
	c := fx.connect()
	c.expectGoodbye(protocol.Internal)
	_ = c.Close()
	fx.greeted()
	waitFor(t, "the first is gone", func() bool { return fx.Stats().Connections == 1 })
	if n := fx.served.Load(); n != 1 {
		t.Errorf("%d connections count against the cap, want 1", n)
	}
}

func TestAPanicInWakeDrainAndPendingIsSurvived(t *testing.T) {
	f := &fake{}
	f.onWake = func() { panic("test: Wake") }
	f.drain = func() { panic("test: Drain") }
	f.owed = func() int { panic("test: Pending") }
	fx := start(t, Options{}, f)
	c := fx.greeted()
	for id := uint64(2); id < 5; id++ {
		f.wake()
		waitFor(t, "the wake ran", func() bool { return f.wakes.Load() == int64(id-1) })
		c.send(request(protocol.OpAck, id, nil))
		c.expect(id, nil)
	}
	go func() {
		c.expectGoodbye(protocol.Draining)
		_ = c.Close()
	}()
	if err := fx.Shutdown(within(t, patience)); err != nil {
		t.Error(err)
	}
}

// When the engine's state is void nothing of it is called any more, and the broker hears of it at once.
func TestAFatalPanicEndsTheServer(t *testing.T) {
	for _, where := range []string{"Frame", "Wake"} {
		t.Run(where, func(t *testing.T) {
			f := &fake{}
			f.frame = func(_ broker.Peer, h protocol.Header, _ []byte) bool {
				if h.Opcode == protocol.OpPop {
					panic("test: the section")
				}
				return true
			}
			f.onWake = func() { panic("test: the section") }
			fx := start(t, Options{Fatal: func(any) bool { return true }}, f)
			c, other := fx.greeted(), fx.greeted()
			if where == "Frame" {
				c.send(request(protocol.OpPop, 2, nil))
			} else {
				f.wake()
			}
			<-fx.Done()
			if err := fx.Err(); !errors.Is(err, ErrVoid) {
				t.Errorf("Err is %v", err)
			}
			other.expectGoodbye(protocol.StoreFailed)
			<-fx.ended
			if n := f.closes.Load() + f.drains.Load(); n != 0 {
				t.Errorf("the handler was called %d times after that", n)
			}
		})
	}
}
