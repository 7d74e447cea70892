// Package brokertest serves a broker.Engine to clients without a network, so that a whole broker and real clients
// run inside one testing/synctest bubble, where time is fake:
//
//	synctest.Test(t, func(t *testing.T) {
//		e, err := broker.Open(broker.Options{Dir: t.TempDir(), IO: mmaplog.IOStaged, Fsync: mmaplog.SyncNever})
//		s := brokertest.New(e)
//		defer e.Close()
//		defer s.Close()
//		c, err := client.Dial(ctx, "broker", client.Options{Dialer: s.Dial})
//		...
//	})
//
// Everything must be made and closed inside the bubble, and what a library keeps for the whole process must not be
// made there: a producer that compresses has to have done so once before, in TestMain. Frames can be lost and held up
// on their way: see Drop and Hold.
package brokertest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// Direction is where a frame goes.
type Direction uint8

const (
	ToBroker Direction = iota
	ToClients
)

// Server is one event loop of the engine, run by one goroutine, and its connections, each of which is a net.Pipe
// with a goroutine that reads and one that writes. Its exported methods may be called from anywhere, but not by the engine.
type Server struct {
	loop  *broker.Loop
	kick  chan struct{} // room for one: there is something to do
	woken atomic.Bool   // the engine wants Wake
	over  sync.WaitGroup

	mu     sync.Mutex
	todo   []func() // for the loop's goroutine
	conns  map[*conn]struct{}
	rules  map[rule]*fate
	closed bool
}

type rule struct {
	to Direction
	op protocol.Opcode
}

// fate is what happens to the frames of a rule.
type fate struct {
	drop int // so many more are lost; negative: all
	hold bool
	held []func() // in the order in which they came
}

// New serves e. The engine is still the caller's to close, after the Server.
func New(e *broker.Engine) *Server {
	s := &Server{kick: make(chan struct{}, 1), conns: map[*conn]struct{}{}, rules: map[rule]*fate{}}
	s.loop = e.NewLoop(func() {
		s.woken.Store(true)
		s.poke()
	})
	s.over.Go(s.run)
	return s
}

// Dial connects: it is a client.Options.Dialer. The address does not matter.
func (s *Server) Dial(ctx context.Context, addr string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	c := &conn{server: s, pipe: ours, output: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("brokertest: closed")
	}
	s.conns[c] = struct{}{}
	s.todo = append(s.todo, func() { s.loop.Open(c) })
	s.over.Go(c.read)
	s.over.Go(c.write)
	return theirs, nil
}

// CutAll breaks every connection. Clients may dial again at once.
func (s *Server) CutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.pipe.Close()
	}
}

// Close breaks every connection, refuses new ones, and returns when the engine has been told and every
// goroutine has ended.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.CutAll()
	s.poke()
	s.over.Wait()
}

// Drop loses the next n frames of op that go in the direction given; n < 0: all, until Pass.
func (s *Server) Drop(to Direction, op protocol.Opcode, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fate(to, op).drop = n
}

// Hold keeps frames of op that go in the direction given, until Pass. Others overtake them.
func (s *Server) Hold(to Direction, op protocol.Opcode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fate(to, op).hold = true
}

// Pass ends Drop and Hold. What was held goes on, where its connection still lives.
func (s *Server) Pass(to Direction, op protocol.Opcode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fate(to, op)
	delete(s.rules, rule{to, op})
	s.todo = append(s.todo, f.held...)
	s.poke()
}

func (s *Server) fate(to Direction, op protocol.Opcode) *fate {
	f := s.rules[rule{to, op}]
	if f == nil {
		f = &fate{}
		s.rules[rule{to, op}] = f
	}
	return f
}

// passes tells whether a frame goes on now; if it is only held, goOn is called later. The caller holds s.mu.
func (s *Server) passes(to Direction, op protocol.Opcode, goOn func()) bool {
	f := s.rules[rule{to, op}]
	switch {
	case f == nil:
		return true
	case f.drop != 0:
		f.drop = max(f.drop-1, -1)
		return false
	case f.hold:
		f.held = append(f.held, goOn)
		return false
	}
	return true
}

func (s *Server) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// post has f run on the loop's goroutine.
func (s *Server) post(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.todo = append(s.todo, f)
	s.poke()
}

// run is the loop's goroutine: what came, then Wake if it is wanted, then what is to be written.
func (s *Server) run() {
	for range s.kick {
		s.mu.Lock()
		todo := s.todo
		s.todo = nil
		over := s.closed && len(s.conns) == 0 && len(todo) == 0
		s.mu.Unlock()
		if over {
			return
		}
		for _, f := range todo {
			f()
		}
		if s.woken.Swap(false) {
			s.loop.Wake()
			s.everyConn((*conn).retry)
		}
		s.everyConn((*conn).flush)
	}
}

func (s *Server) everyConn(do func(*conn)) {
	s.mu.Lock()
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	s.mu.Unlock()
	for _, c := range list {
		do(c)
	}
}
