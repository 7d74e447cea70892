package netserver

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"
)

// engine is the glue between gnet and the loops: gnet's callbacks, translated. Level-triggered only: with
// edge-triggered events gnet reads on after a write has failed, from whatever has reused the descriptor.
type engine struct {
	server  *Server
	log     *gnetLog
	gnet    gnet.Engine
	addr    net.Addr
	booted  error         // set by OnBoot
	started chan struct{} // closed when the loops run
	once    sync.Once
	running context.Context // ends when run returns
	ended   context.CancelFunc

	// Execute writes 8 bytes to the loop's event descriptor, whose number belongs to somebody else once a
	// stopping engine has closed it. So nothing is executed after shut, which OnShutdown sets before gnet
	// closes anything.
	gate sync.RWMutex
	shut bool

	mu    sync.Mutex
	loops map[gnet.EventLoop]*loop
}

var _ gnet.EventHandler = (*engine)(nil)

func newEngine(s *Server) *engine {
	e := &engine{
		server: s, log: &gnetLog{log: s.log},
		started: make(chan struct{}), loops: make(map[gnet.EventLoop]*loop),
	}
	e.running, e.ended = context.WithCancel(context.Background())
	return e
}

// run serves until the engine stops.
func (e *engine) run() error {
	defer e.ended()
	o := &e.server.opts
	err := gnet.Run(e, "tcp://"+o.Listen,
		gnet.WithNumEventLoop(o.Loops),
		gnet.WithLoadBalancing(gnet.RoundRobin),
		gnet.WithReadBufferCap(readBufferBytes),
		gnet.WithReuseAddr(true),
		gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithTicker(true), // only for the call of OnTick that tells of the start
		gnet.WithLogger(e.log),
	)
	if err == nil {
		err = e.booted
	}
	return err
}

// stop makes the engine end and returns at once. gnet looks only every 500 ms whether it has ended, so the end
// is taken from the return of run instead, which also ends that waiting of gnet.
func (e *engine) stop() { go func() { _ = e.gnet.Stop(e.running) }() }

// OnBoot runs when the port is bound and clients can connect, before the loops run.
func (e *engine) OnBoot(g gnet.Engine) gnet.Action {
	e.gnet = g
	if e.addr, e.booted = boundAddr(g); e.booted != nil {
		return gnet.Shutdown
	}
	return gnet.None
}

// OnTick is called first when all loops have been started; it never needs to be called again.
func (e *engine) OnTick() (time.Duration, gnet.Action) {
	e.once.Do(func() { close(e.started) })
	return math.MaxInt64, gnet.None
}

// OnShutdown runs when the engine is about to stop, for whatever reason; connections still stand.
func (e *engine) OnShutdown(gnet.Engine) {
	e.gate.Lock()
	e.shut = true
	e.gate.Unlock()
}

func (e *engine) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	// An error here means that the client is gone already; its loop will hear of it.
	_ = c.SetKeepAlive(true, keepAliveIdle, keepAliveInterval, keepAliveCount)
	p := &peer{loop: e.loopOf(c.EventLoop()), addr: c.RemoteAddr().String()}
	s := &socket{conn: c}
	p.wire = s
	c.SetContext(p)
	refused, why := e.server.admit()
	p.loop.opened(p, refused, why)
	return nil, actionAfter(s)
}

func (e *engine) OnTraffic(c gnet.Conn) gnet.Action {
	p, ok := c.Context().(*peer)
	if !ok {
		return gnet.Close
	}
	// All is taken, so gnet's inbound buffer is always empty and this is its read buffer, good until return.
	data, _ := c.Next(-1)
	p.loop.traffic(p, data)
	return actionAfter(p.wire.(*socket))
}

func (e *engine) OnClose(c gnet.Conn, _ error) gnet.Action {
	if p, ok := c.Context().(*peer); ok {
		p.wire.(*socket).dead = true
		p.loop.closed(p)
	}
	return gnet.None
}

// actionAfter is Close for a connection that died in the callback, so that gnet touches it no more.
func actionAfter(s *socket) gnet.Action {
	if s.dead {
		return gnet.Close
	}
	return gnet.None
}

// loopOf finds the loop of an event loop, and makes it for the first connection. It runs on that event loop.
func (e *engine) loopOf(el gnet.EventLoop) *loop {
	e.mu.Lock()
	l := e.loops[el]
	e.mu.Unlock()
	if l == nil {
		l = newLoop(e.server, func(f func()) { e.execute(el, f) })
		e.mu.Lock()
		e.loops[el] = l
		e.mu.Unlock()
		e.server.addLoop(l)
	}
	return l
}

func (e *engine) execute(el gnet.EventLoop, f func()) {
	e.gate.RLock()
	defer e.gate.RUnlock()
	if !e.shut {
		_ = el.Execute(context.Background(), task(f))
	}
}

// task is a function as gnet's Runnable.
type task func()

func (t task) Run(context.Context) error {
	t()
	return nil
}

// boundAddr asks the listening socket for its address: gnet knows only what it was told, port 0 included.
func boundAddr(g gnet.Engine) (net.Addr, error) {
	fd, err := g.Dup()
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port}, nil
	case *unix.SockaddrInet6:
		return &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port}, nil
	}
	return nil, fmt.Errorf("unexpected socket address %T", sa)
}
