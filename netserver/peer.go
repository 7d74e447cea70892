package netserver

import (
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// peer is one connection. Loop-only.
//
// Its life is one way through the states:
//
//	serving    frames are parsed and handed over
//	failing    a GOODBYE is owed; what Out holds goes before it. Input is ignored from here on
//	leaving    the GOODBYE is handed to the wire, which may still hold output
//	lingering  all is sent, FIN too; the client is to close
//	dead       the connection is gone
//
// Invariants:
//
//  1. A peer that is not parsed though it is serving is stalled (a frame was refused: it is in
//     loop.stalled and the next Wake looks at it) or choked (output above the high-water mark: it is
//     in loop.watched and a tick looks at it). Otherwise in holds less than a frame.
//  2. out is not empty only while the peer is in loop.dirty, so every loop entry writes it out.
//  3. Whatever waits for time (HELLO, half a frame, buffered output, leaving, lingering) keeps the peer in
//     loop.watched.
type peer struct {
	loop *loop
	wire wire
	addr string
	slot int // in loop.peers
	ctx  any

	state    state
	admitted bool // not refused at once: it counts against the cap
	served   bool // the Handler knows it: Open was called, Close is owed
	greeted  bool // its HELLO was accepted
	stalled  bool
	choked   bool
	parsing  bool // a batch is under way, frames may point into in
	dirty    bool // in loop.dirty
	watched  bool // in loop.watched
	refusal  bool // counted by Server.mayLinger

	in      inbound
	out     []byte
	outHint int // size of the buffer to begin with, from the last ones

	openedAt  time.Time
	partialAt time.Time // first byte of the half frame in in; zero: none, or not parsed for now

	written    uint64    // bytes handed to the wire
	taken      uint64    // bytes of them that the client has got, at the last tick; valid while backedUp
	takenAt    time.Time // when taken last grew
	backedUp   bool      // the wire held bytes at the last tick
	endBy      time.Time // leaving, lingering: close then
	goodbye    protocol.Status
	goodbyeWhy string
}

type state uint8

const (
	serving state = iota
	failing
	leaving
	lingering
	dead
)

var _ broker.Peer = (*peer)(nil)

// Out is the output buffer; nil once the GOODBYE is written.
func (p *peer) Out() []byte {
	if p.out == nil && p.state < leaving {
		p.out = p.loop.pool.get(p.outHint)
	}
	return p.out
}

// Room is Out with room for n bytes more.
func (p *peer) Room(n int) []byte {
	out := p.Out()
	if p.out == nil || cap(out)-len(out) >= n {
		return out
	}
	p.out = append(p.loop.pool.get(max(len(out)+n, 2*len(out))), out...)
	p.loop.pool.put(out)
	return p.out
}

// SetOut replaces the output buffer, which is the front's from here on: ask Out again before appending more.
func (p *peer) SetOut(b []byte) {
	if p.state >= leaving {
		return
	}
	p.out = b
	if len(b) > 0 {
		p.loop.markDirty(p)
	}
}

// Fail ends the connection with a GOODBYE behind what Out holds.
func (p *peer) Fail(status protocol.Status, reason string) { p.loop.fail(p, status, reason) }

// Backlogged asks the socket, not only the last read: a full last read says nothing once the socket has
// been emptied, and bytes may have come since a read that was not full.
func (p *peer) Backlogged() bool {
	if p.state != serving {
		return false
	}
	return p.stalled || p.choked || p.wire.waiting()
}

func (p *peer) Context() any     { return p.ctx }
func (p *peer) SetContext(v any) { p.ctx = v }
func (p *peer) Addr() string     { return p.addr }
