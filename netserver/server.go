package netserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/leasemq/leasemq/protocol"
)

// ErrEnded is in the error of a server whose engine ended by itself.
var ErrEnded = errors.New("netserver: the network engine ended by itself")

// ErrVoid is in the error of a server whose Options.Fatal said that the process must end.
var ErrVoid = errors.New("netserver: the engine's state is void")

// Server listens on one port. All its methods may be called from any goroutine but an event loop's.
type Server struct {
	opts   Options
	log    *slog.Logger
	engine *engine

	open, served                                 atomic.Int64 // connections now; those within the cap
	lingeringRefusals                            atomic.Int64
	accepted, refused                            atomic.Uint64
	closedByClient, closedByBroker, closedByStop atomic.Uint64

	draining atomic.Bool
	stopping atomic.Bool
	void     atomic.Bool

	kicked     chan struct{} // to the ticker
	stopTicker chan struct{}
	poked      chan struct{} // to Shutdown: something may have drained
	ended      chan struct{} // the engine has stopped
	done       chan struct{} // ended, or void
	doneOnce   sync.Once

	loops atomic.Pointer[[]*loop] // replaced under mu, read without

	mu       sync.Mutex
	goodbyes map[protocol.Status]uint64
	err      error
}

// Listen binds the port and serves. It returns when clients can connect. A port that is taken is an error
// that wraps syscall.EADDRINUSE.
func Listen(o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: o, log: o.Logger,
		kicked: make(chan struct{}, 1), stopTicker: make(chan struct{}),
		poked: make(chan struct{}, 1),
		ended: make(chan struct{}), done: make(chan struct{}),
		goodbyes: make(map[protocol.Status]uint64),
	}
	s.loops.Store(new([]*loop))
	s.engine = newEngine(s)
	failed := make(chan error, 1)
	tickerEnded := make(chan struct{})
	go func() {
		s.runTicker()
		close(tickerEnded)
	}()
	go func() {
		err := s.engine.run()
		close(s.stopTicker)
		<-tickerEnded
		failed <- err
		s.finish(s.endOf(err))
		close(s.ended)
	}()
	select {
	case <-s.engine.started:
		return s, nil
	case err := <-failed:
		<-s.ended
		if err == nil {
			err = errors.New(s.engine.log.lastErrors())
		}
		return nil, fmt.Errorf("netserver: listen on %s: %w", o.Listen, err)
	}
}

// endOf says whether the end of the engine was wanted.
func (s *Server) endOf(err error) error {
	switch {
	case s.stopping.Load():
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return fmt.Errorf("%w: %s", ErrEnded, s.engine.log.lastErrors())
}

// finish closes Done, once, with the first reason.
func (s *Server) finish(err error) {
	s.doneOnce.Do(func() {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(s.done)
	})
}

// Addr is the address that is listened on, with the port in use.
func (s *Server) Addr() net.Addr { return s.engine.addr }

// Done is closed when nothing is served any more, wanted or not.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err says why Done was closed: nil before that and after Shutdown or Close, ErrEnded when the engine ended
// by itself, ErrVoid after a fatal panic. The last two end the broker.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close drops all connections and stops. It returns when everything has ended.
func (s *Server) Close() error {
	s.stop()
	return nil
}

// stop ends the engine and waits for it: every Handler has seen the Close of all its peers then. A void
// server is not waited for, its loops may hang in the engine.
func (s *Server) stop() {
	s.stopping.Store(true)
	s.engine.stop()
	if s.void.Load() {
		return
	}
	<-s.ended
}

// becomeVoid latches the server after a fatal panic. It runs on a loop.
func (s *Server) becomeVoid(v any) {
	if s.void.Swap(true) {
		return
	}
	s.finish(fmt.Errorf("%w: panic: %v", ErrVoid, v))
	s.sayGoodbye(protocol.StoreFailed, "the broker failed and is going down")
	s.engine.stop()
}

func (s *Server) allLoops() []*loop { return *s.loops.Load() }

func (s *Server) addLoop(l *loop) {
	s.mu.Lock()
	list := append([]*loop{}, s.allLoops()...)
	list = append(list, l)
	s.loops.Store(&list)
	s.mu.Unlock()
	if s.draining.Load() { // Shutdown may have looked at the list before
		l.execute(l.onDrain)
	}
}

// admit counts a new connection in, and says why it is refused, if it is.
func (s *Server) admit() (protocol.Status, string) {
	s.open.Add(1)
	switch {
	case s.draining.Load():
		s.refused.Add(1)
		return protocol.Draining, "the broker is stopping"
	case s.served.Add(1) > int64(s.opts.MaxConnections):
		s.served.Add(-1)
		s.refused.Add(1)
		return protocol.TooManyConnections,
			fmt.Sprintf("the broker is at its limit of %d connections", s.opts.MaxConnections)
	}
	s.accepted.Add(1)
	return 0, ""
}

// said counts a GOODBYE.
func (s *Server) said(status protocol.Status) {
	s.mu.Lock()
	s.goodbyes[status]++
	s.mu.Unlock()
}

// mayLinger grants a refused connection the time to read why, to a few at a time: each holds a descriptor
// that the cap does not count.
func (s *Server) mayLinger(p *peer) bool {
	if s.lingeringRefusals.Add(1) > maxLingeringRefusals {
		s.lingeringRefusals.Add(-1)
		return false
	}
	p.refusal = true
	return true
}

// gone counts the end of a connection that was in state before.
func (s *Server) gone(p *peer, before state) {
	if p.refusal {
		s.lingeringRefusals.Add(-1)
	}
	if p.admitted {
		s.served.Add(-1)
		switch {
		case before != serving:
			s.closedByBroker.Add(1)
		case s.stopping.Load():
			s.closedByStop.Add(1)
		default:
			s.closedByClient.Add(1)
		}
	}
	s.open.Add(-1)
	s.poke()
}
