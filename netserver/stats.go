package netserver

import (
	"maps"
	"sync/atomic"

	"github.com/leasemq/leasemq/protocol"
)

// counters are one loop's; it adds to them once a batch or less.
type counters struct {
	bytesIn, bytesOut atomic.Uint64
	frames            atomic.Uint64
	writes            atomic.Uint64
	wakes             atomic.Uint64
	panics            atomic.Uint64
}

// Stats are the figures of a Server since its start.
type Stats struct {
	Connections int    // open now, those that are being closed or refused included
	Accepted    uint64 // connections that were served
	Refused     uint64 // told TOO_MANY_CONNECTIONS or DRAINING at once

	// Served connections that ended: the client closed or vanished; the broker said a GOODBYE; the server stopped.
	ClosedByClient, ClosedByBroker, ClosedByStop uint64
	// Goodbyes counts connections that the broker ended, by the status told; SLOW_CONSUMER may go unsaid.
	Goodbyes map[protocol.Status]uint64

	BytesIn, BytesOut uint64
	Frames            uint64 // accepted by a Handler
	Writes            uint64 // calls; a batch or a wake makes one for each connection that gets answers
	Wakes             uint64 // runs of Handler.Wake
	Panics            uint64 // of a Handler
}

// Stats reads the figures; any goroutine may.
func (s *Server) Stats() Stats {
	st := Stats{
		Connections:    int(s.open.Load()),
		Accepted:       s.accepted.Load(),
		Refused:        s.refused.Load(),
		ClosedByClient: s.closedByClient.Load(),
		ClosedByBroker: s.closedByBroker.Load(),
		ClosedByStop:   s.closedByStop.Load(),
	}
	s.mu.Lock()
	st.Goodbyes = maps.Clone(s.goodbyes)
	s.mu.Unlock()
	for _, l := range s.allLoops() {
		c := &l.counters
		st.BytesIn += c.bytesIn.Load()
		st.BytesOut += c.bytesOut.Load()
		st.Frames += c.frames.Load()
		st.Writes += c.writes.Load()
		st.Wakes += c.wakes.Load()
		st.Panics += c.panics.Load()
	}
	return st
}
