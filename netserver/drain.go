package netserver

import (
	"context"

	"github.com/leasemq/leasemq/protocol"
)

// Shutdown stops in order: connections that come are refused with DRAINING, every Handler is told to drain, and
// when no answer is owed and all output has been sent (or ctx has ended) each connection gets a GOODBYE DRAINING.
// When the clients have closed, or did not in time, the engine stops. The error is ctx's if it ended first.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	for _, l := range s.allLoops() {
		l.execute(l.onDrain)
	}
	err := s.await(ctx, func() bool {
		for _, l := range s.allLoops() {
			if !l.drained.Load() {
				return false
			}
		}
		return true
	})
	s.sayGoodbye(protocol.Draining, "the broker is stopping")
	if err == nil {
		err = s.await(ctx, func() bool { return s.open.Load() == 0 })
	}
	s.stop()
	return err
}

// await returns nil when ok holds or nothing is served any more. ok is looked at after each poke.
func (s *Server) await(ctx context.Context, ok func() bool) error {
	for !ok() {
		select {
		case <-s.poked:
		case <-s.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// poke makes Shutdown look again. Something to see must have been stored before.
func (s *Server) poke() {
	if s.draining.Load() {
		select {
		case s.poked <- struct{}{}:
		default:
		}
	}
}

// onDrain begins the drain on a loop.
func (l *loop) onDrain() {
	if l.draining {
		return
	}
	l.enter()
	defer l.leave()
	l.draining = true
	if l.handler != nil {
		l.call(nil, "Drain", l.handler.Drain)
	}
	l.raisePace(paceFast)
}

// checkDrained runs at the end of each entry of a draining loop. What it finds may change back while
// clients go on asking; Shutdown goes by what all loops found last.
func (l *loop) checkDrained() {
	pending := 0
	if l.handler != nil {
		l.call(nil, "Pending", func() { pending = l.handler.Pending() })
	}
	drained := pending == 0
	for _, p := range l.watched {
		drained = drained && p.wire.buffered() == 0
	}
	l.drained.Store(drained)
	if drained {
		l.server.poke()
	}
}

// sayGoodbye ends every connection with status.
func (s *Server) sayGoodbye(status protocol.Status, why string) {
	for _, l := range s.allLoops() {
		l.execute(func() {
			l.enter()
			defer l.leave()
			for _, p := range l.peers {
				l.fail(p, status, why)
			}
		})
	}
}
