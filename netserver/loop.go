package netserver

import (
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// noTime is the zero time.
var noTime time.Time

// loop is the dispatcher of one event loop. It knows nothing of gnet: whatever feeds it calls opened,
// traffic and closed on the loop's goroutine and gives it execute.
//
// Every entry begins with enter and ends with leave. Entries nest in one way only: a write, or close, that
// ends a connection runs closed inside. leave of the outermost entry writes the dirty peers. So no Handler method
// is ever on the stack when a connection dies, except that of a Handler which panicked.
//
// Fields are the loop's own unless they are atomic.
type loop struct {
	opts    *Options
	server  *Server
	log     *slog.Logger
	execute func(func()) // runs a function on the loop later; from any goroutine; drops it after the stop

	handler Handler // nil until the first connection that is served
	depth   int
	peers   []*peer
	dirty   []*peer
	stalled []*peer
	watched []*peer
	spare   struct{ stalled, watched []*peer } // the arrays used before, to be used again
	pool    bufpool

	wake    wake
	entries entries

	level      pace         // the fastest that any of watched needs
	wanted     atomic.Int32 // the same, for the ticker
	tickQueued atomic.Bool
	draining   bool
	drained    atomic.Bool // draining: nothing is owed and nothing waits to be sent

	counters counters
}

// entries are the functions that others put onto the loop, bound once.
type entries struct {
	wake, tick func()
}

func newLoop(s *Server, execute func(func())) *loop {
	l := &loop{opts: &s.opts, server: s, log: s.log, execute: execute}
	l.entries = entries{wake: l.onWake, tick: l.onTick}
	return l
}

func (l *loop) enter() { l.depth++ }

func (l *loop) leave() {
	if l.depth == 1 {
		l.flushDirty()
		if l.draining {
			l.checkDrained()
		}
	}
	l.depth--
}

func (l *loop) markDirty(p *peer) {
	if !p.dirty {
		p.dirty = true
		l.dirty = append(l.dirty, p)
	}
}

// flushDirty writes what grew. A write may end a connection, whose Close may make others dirty: the list
// grows while it is walked.
func (l *loop) flushDirty() {
	for i := 0; i < len(l.dirty); i++ {
		p := l.dirty[i]
		l.dirty[i] = nil
		p.dirty = false
		l.writeOut(p)
	}
	l.dirty = l.dirty[:0]
}

// opened takes a new connection in. refused, if not zero, is why it is not served.
func (l *loop) opened(p *peer, refused protocol.Status, why string) {
	l.enter()
	defer l.leave()
	p.slot = len(l.peers)
	p.openedAt = l.opts.Clock()
	l.peers = append(l.peers, p)
	if refused != 0 {
		l.fail(p, refused, why)
		return
	}
	p.admitted = true
	if !l.call(p, "NewHandler", l.needHandler) || l.handler == nil {
		l.fail(p, protocol.Internal, internalFault)
		return
	}
	p.served = true
	l.call(p, "Open", func() { l.handler.Open(p) })
	l.watch(p, paceSlow)
}

func (l *loop) needHandler() {
	if l.handler == nil {
		l.handler = l.opts.NewHandler(l.wakeUp)
		if l.handler != nil && l.draining {
			l.handler.Drain()
		}
	}
}

// traffic takes what one read brought. data is the caller's again on return.
func (l *loop) traffic(p *peer, data []byte) {
	l.enter()
	defer l.leave()
	l.counters.bytesIn.Add(uint64(len(data)))
	l.receive(p, data)
	l.wakeIfDeferred()
}

// closed takes the end of a connection, whoever caused it.
func (l *loop) closed(p *peer) {
	if p.state == dead {
		return
	}
	l.enter()
	defer l.leave()
	last := len(l.peers) - 1
	l.peers[p.slot] = l.peers[last]
	l.peers[p.slot].slot = p.slot
	l.peers[last] = nil
	l.peers = l.peers[:last]
	if !p.parsing {
		p.in.release(&l.pool)
	}
	l.recycle(p)
	before := p.state
	p.state = dead
	if p.served {
		l.call(nil, "Close", func() { l.handler.Close(p) })
	}
	l.server.gone(p, before)
}

const internalFault = "a fault of the broker"

// call runs f, which calls the Handler, and reports whether it came back. A panic fails p, if there is one.
// After a fatal panic, of whatever loop, nothing is called any more.
func (l *loop) call(p *peer, what string, f func()) (ok bool) {
	if l.server.void.Load() {
		return false
	}
	defer l.caught(p, what)
	f()
	return true
}

// caught is deferred around every call of the Handler.
func (l *loop) caught(p *peer, what string) {
	v := recover()
	if v == nil {
		return
	}
	l.counters.panics.Add(1)
	addr := ""
	if p != nil {
		addr = p.addr
	}
	l.log.Error("panic in the engine", "in", what, "peer", addr, "panic", v, "stack", string(debug.Stack()))
	if l.opts.Fatal != nil && l.opts.Fatal(v) {
		l.server.becomeVoid(v)
		return
	}
	if p != nil {
		l.fail(p, protocol.Internal, internalFault)
	}
}

func (l *loop) now() time.Time { return l.opts.Clock() }
