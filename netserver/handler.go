package netserver

import (
	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// Handler is the engine's half of one event loop. All its methods run on that loop, one at a time, never
// one inside another.
type Handler interface {
	// Open tells of a new connection.
	Open(p broker.Peer)
	// Frame hands over one complete frame: the first of a connection is HELLO, and the header is that of a
	// request. body stays as it is until Flush(p) has returned. false means: not now. The frame, and all
	// behind it, stay unparsed, and after the next Wake of the loop the same frame is handed over again.
	Frame(p broker.Peer, h protocol.Header, body []byte) bool
	// Flush ends a batch: all frames of p since the last Flush came from one network read (or from what
	// earlier reads left), in order. It is called once for every run of accepted frames, in the middle of a
	// read when the batch is large, and not at all when Frame panicked.
	Flush(p broker.Peer)
	// Wake runs after the loop's wake function was called, once for any number of calls before it. A call
	// that comes while Wake runs leads to one more run.
	Wake()
	// Close tells that p is gone. From then on p.Out is nil, and SetOut and Fail do nothing.
	Close(p broker.Peer)
	// Drain tells that an orderly stop began.
	Drain()
	// Pending is the number of answers that the handler still owes to connections of this loop: gated
	// answers and parked pops.
	Pending() int
}
