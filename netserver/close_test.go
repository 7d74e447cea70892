package netserver

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// gnet's close drops what the socket does not take at once, and a socket closed with unread input resets the
// connection, so that the client loses even what had arrived. Given a large answer, then a Fail, and a client that
// had sent more than was read, then it gets all of the answer, the GOODBYE and a clean end.
func TestTheFinalAnswersAreDeliveredBeforeTheClose(t *testing.T) {
	const n = 24 << 20
	f := &fake{}
	f.answer = func(p broker.Peer, s staged) []byte {
		if s.h.Opcode != protocol.OpPop {
			return s.body
		}
		body := pattern(2, n)
		head := protocol.Header{Opcode: protocol.OpPop, Flags: protocol.FlagAnswer, RequestID: 2}
		p.SetOut(append(appendFrame(p.Out(), head, nil), body...))
		p.Fail(protocol.Internal, "test")
		return nil
	}
	fx := start(t, Options{}, f)
	c := fx.greeted(smallReceiveBuffer)
	c.send(request(protocol.OpPop, 2, nil))
	c.expect(2, nil)
	c.sendInBackground(make([]byte, 4<<20)) // no frames at all: ignored after Fail
	stop := fx.keepTicking()
	defer stop()
	got, err := io.ReadAll(io.LimitReader(c, n))
	if err != nil || string(got) != string(pattern(2, n)) {
		t.Fatalf("%d bytes of the answer, %v", len(got), err)
	}
	c.expectGoodbye(protocol.Internal)
}

// The same with input that lies in the socket when the GOODBYE is written.
func TestUnreadInputDoesNotCostTheGoodbye(t *testing.T) {
	inFrame, proceed := make(chan struct{}), make(chan struct{})
	f := &fake{}
	f.frame = func(p broker.Peer, h protocol.Header, _ []byte) bool {
		if h.Opcode == protocol.OpPop {
			inFrame <- struct{}{}
			<-proceed
			p.Fail(protocol.Internal, "test")
		}
		return true
	}
	fx := start(t, Options{}, f)
	c := fx.greeted()
	c.send(request(protocol.OpPop, 2, nil))
	<-inFrame
	c.send(request(protocol.OpAck, 3, nil))
	proceed <- struct{}{}
	c.expect(2, nil)
	c.expectGoodbye(protocol.Internal)
}

// keepTicking ticks in the background until the function that it returns is called.
func (fx *fixture) keepTicking() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			default:
				fx.tick()
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// The answers of one loop entry go before the GOODBYE, whatever the order of the calls; nothing goes behind it.
func TestNothingFollowsTheGoodbye(t *testing.T) {
	f := &fake{}
	var peer broker.Peer
	f.frame = func(p broker.Peer, h protocol.Header, _ []byte) bool {
		peer = p
		if h.Opcode == protocol.OpPop {
			p.Fail(protocol.Internal, "first")
			p.Fail(protocol.Timeout, "second")
		}
		return true
	}
	f.onWake = func() {
		peer.SetOut(appendFrame(peer.Out(), protocol.Header{Opcode: protocol.OpDrain, Flags: protocol.FlagPush}, nil))
		peer.Fail(protocol.Timeout, "third")
	}
	fx := start(t, Options{}, f)
	c := fx.greeted()
	frames := fx.Stats().Frames
	c.send(append(request(protocol.OpPop, 2, nil), request(protocol.OpAck, 3, nil)...))
	c.expect(2, nil)
	waitFor(t, "the GOODBYE is written", func() bool {
		lingers := false
		fx.onLoop(func(l *loop) { lingers = l.peers[0].state == lingering })
		return lingers
	})
	f.wake()
	waitFor(t, "the wake ran", func() bool { return f.wakes.Load() > 0 })
	if why := c.expectGoodbye(protocol.Internal); why != "first" {
		t.Errorf("the reason is %q", why)
	}
	if n := fx.Stats().Frames - frames; n != 1 {
		t.Errorf("%d frames were handed over, want only the one that failed", n)
	}
}

func TestHalfCloseIsADisconnect(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the connection is closed", func() bool { return fx.fake.closes.Load() == 1 })
	if _, _, err := c.read(); err != io.EOF {
		t.Errorf("the client read %v", err)
	}
	if n := fx.Stats().ClosedByClient; n != 1 {
		t.Errorf("counted %d", n)
	}
}

func TestAClientThatDoesNotCloseIsClosed(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.connect()
	c.send([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	c.expectGoodbye(protocol.BadFrame) // and the client's side stays open
	fx.onLoop(func(*loop) {})
	fx.clock.advance(lingerTimeout - 1)
	fx.settle()
	if fx.Stats().Connections != 1 {
		t.Fatal("closed too early: the client may not have read yet")
	}
	fx.clock.advance(1)
	fx.tickUntil("the connection is closed", func() bool { return fx.Stats().Connections == 0 })
}

func TestAClientThatDoesNotReadItsLastAnswersIsClosed(t *testing.T) {
	f := &fake{}
	f.flush = func(p broker.Peer) {
		if n := f.batch[p][0].h.RequestID; n == 2 {
			p.SetOut(append(p.Out(), make([]byte, 24<<20)...))
			p.Fail(protocol.Internal, "test")
		}
	}
	fx := start(t, Options{}, f)
	c := fx.greeted(smallReceiveBuffer)
	c.send(request(protocol.OpPop, 2, nil))
	waitFor(t, "it fails", func() bool { return fx.Stats().Goodbyes[protocol.Internal] == 1 })
	fx.onLoop(func(*loop) {})
	fx.clock.advance(DefaultSlowTimeout - 1)
	fx.settle()
	if fx.Stats().Connections != 1 {
		t.Fatal("closed too early")
	}
	fx.clock.advance(1)
	fx.tickUntil("the connection is closed", func() bool { return fx.Stats().Connections == 0 })
}

// After a failed write gnet has closed the descriptor, and a second write goes to the file that has reused its
// number, without an error. Given a client that resets the connection while its request is handled, then what is
// written after the failure reaches nothing: not by the socket, not by the peer.
func TestNoWriteAfterAFailedOneReachesAReusedDescriptor(t *testing.T) {
	dir := t.TempDir()
	const content = "MAGIC000 and the rest of a segment"
	var files []*os.File
	t.Cleanup(func() {
		for _, f := range files {
			_ = f.Close()
		}
	})
	var reused *os.File
	reuse := func(fd int) {
		for range 100 {
			f, err := os.OpenFile(filepath.Join(dir, "segment"), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Error(err)
				return
			}
			files = append(files, f)
			if int(f.Fd()) == fd {
				_, err := f.WriteAt([]byte(content), 0)
				if err != nil {
					t.Error(err)
				}
				reused = f
				return
			}
		}
	}
	inFrame, proceed, handled := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var victim broker.Peer
	f := &fake{nesting: true}
	f.frame = func(p broker.Peer, h protocol.Header, _ []byte) bool {
		switch h.Opcode {
		case protocol.OpPop:
			victim = p
			inFrame <- struct{}{}
			<-proceed
			s := p.(*peer).wire.(*socket)
			fd := s.conn.Fd()
			for range 3 { // the first may still be taken
				s.write([]byte("answer"))
			}
			if !s.dead {
				t.Error("the write did not fail")
			}
			reuse(fd)
			s.write([]byte("REPLY000"))
			s.closeWrite()
			if s.buffered() != 0 || s.unacked() != 0 || s.waiting() {
				t.Error("a dead socket answers")
			}
			p.SetOut(append(p.Out(), "REPLY000"...))
			return true
		case protocol.OpAck: // of another connection, later
			victim.SetOut(append(victim.Out(), "REPLY000"...))
			victim.Fail(protocol.Internal, "REPLY000")
			if victim.Backlogged() {
				t.Error("a dead peer is backlogged")
			}
			close(handled)
		}
		return true
	}
	fx := start(t, Options{}, f)
	c, other := fx.greeted(), fx.greeted()
	c.send(request(protocol.OpPop, 2, nil))
	<-inFrame
	c.reset()
	proceed <- struct{}{}
	other.send(request(protocol.OpAck, 2, nil))
	<-handled
	other.expect(2, nil)
	fx.onLoop(func(*loop) {})
	if reused == nil {
		t.Fatal("no file got the number of the connection's descriptor")
	}
	got, err := os.ReadFile(filepath.Join(dir, "segment"))
	if err != nil || string(got) != content {
		t.Errorf("the file is %q, %v", got, err)
	}
}

// The same in the way of production: the answers of a batch are written, and fail, in the middle of a loop entry.
func TestAConnectionThatDiesInItsWriteIsClosedOnce(t *testing.T) {
	inFrame, proceed := make(chan struct{}), make(chan struct{})
	f := &fake{}
	f.frame = func(_ broker.Peer, h protocol.Header, _ []byte) bool {
		if h.Opcode == protocol.OpPop && h.RequestID == 2 {
			inFrame <- struct{}{}
			<-proceed
		}
		return true
	}
	f.answer = func(broker.Peer, staged) []byte { return make([]byte, 2<<20) }
	f.close = func(p broker.Peer) { // re-entrant, from within the write
		p.SetOut(append(p.Out(), 1, 2, 3))
		p.Fail(protocol.Internal, "late")
	}
	fx := start(t, Options{HighWater: 1 << 20}, f)
	c := fx.connect()
	c.send(append(request(protocol.OpHello, 1, nil), pops(2, 50)...))
	<-inFrame
	c.reset()
	proceed <- struct{}{}
	waitFor(t, "the connection is gone", func() bool { return fx.Stats().Connections == 0 })
	fx.settle()
	if n := f.closes.Load(); n != 1 {
		t.Errorf("the handler was told %d times", n)
	}
	next := fx.connect()
	next.send(request(protocol.OpHello, 1, nil))
	next.expect(1, nil)
}

// A peer may be written to in the loop entry of another one: one write each, at the end.
func TestAnswersForOthersAreWrittenInTheSameEntry(t *testing.T) {
	f := &fake{}
	var peers []broker.Peer
	f.open = func(p broker.Peer) { peers = append(peers, p) }
	f.answer = func(_ broker.Peer, s staged) []byte {
		if s.h.Opcode == protocol.OpSend {
			for _, p := range peers {
				head := protocol.Header{Opcode: protocol.OpPop, Flags: protocol.FlagAnswer, RequestID: 9}
				p.SetOut(appendFrame(p.Out(), head, nil))
			}
		}
		return s.body
	}
	fx := start(t, Options{}, f)
	a, b := fx.greeted(), fx.greeted()
	_ = b.SetReadDeadline(time.Now().Add(patience))
	a.send(request(protocol.OpSend, 2, nil))
	b.expect(9, nil)
	a.expect(9, nil)
	a.expect(2, nil)
}
