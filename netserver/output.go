package netserver

import (
	"fmt"

	"github.com/leasemq/leasemq/protocol"
)

// writeOut writes what p has, its GOODBYE too if one is owed, with one write. It is called when no Handler
// method is on the stack, or, within a batch, after its Flush.
func (l *loop) writeOut(p *peer) {
	if p.state == dead {
		l.recycle(p)
		return
	}
	if p.state == failing {
		p.out = appendGoodbye(p.Out(), p.goodbye, p.goodbyeWhy)
		p.state = leaving
		p.endBy = l.now().Add(l.opts.SlowTimeout)
		p.in.release(&l.pool)
		l.watch(p, paceFast)
	}
	if len(p.out) > 0 {
		if held := p.wire.buffered(); held > 0 && held+len(p.out) > l.opts.HardCap {
			l.slowConsumer(p, held+len(p.out))
			return
		}
		n := len(p.out)
		p.written += uint64(n)
		l.counters.bytesOut.Add(uint64(n))
		l.counters.writes.Add(1)
		ok := p.wire.write(p.out)
		l.recycle(p)
		if !ok {
			return
		}
	}
	held := p.wire.buffered()
	if held > l.opts.HardCap {
		l.slowConsumer(p, held)
		return
	}
	if held > 0 {
		l.watch(p, paceSlow)
	}
	l.finishLeaving(p, held)
}

// recycle gives p's output buffer back and remembers roughly how large it grew.
func (l *loop) recycle(p *peer) {
	if p.out == nil {
		return
	}
	p.outHint = min(max(len(p.out), p.outHint/2), batchBytes)
	l.pool.put(p.out)
	p.out = nil
}

func (l *loop) overHighWater(p *peer) bool { return p.wire.buffered() > l.opts.HighWater }

// chokeIfOver stops the parsing of a peer whose client does not read. A tick looks at it again: nobody
// tells when the output drains.
func (l *loop) chokeIfOver(p *peer) {
	if p.state == serving && l.overHighWater(p) {
		p.choked = true
		l.watch(p, paceFast)
	}
}

// fail makes a GOODBYE owed. It is written when the loop entry ends, behind all that the Handler still
// appends in it.
func (l *loop) fail(p *peer, status protocol.Status, why string) {
	if p.state != serving {
		return
	}
	p.state = failing
	p.goodbye, p.goodbyeWhy = status, why
	l.server.said(status)
	switch status {
	case protocol.Draining, protocol.TooManyConnections, protocol.StoreFailed:
		// These come in crowds, and the broker says once itself what is the matter.
	default:
		l.log.Info("closing a connection", "peer", p.addr, "status", status, "reason", why)
	}
	l.markDirty(p)
}

// slowConsumer closes p at once: a GOODBYE would wait behind what the client does not read.
func (l *loop) slowConsumer(p *peer, waiting int) {
	l.fail(p, protocol.SlowConsumer, fmt.Sprintf("%d bytes of answers are not read", waiting))
	p.wire.close()
}

// finishLeaving sends FIN once the last byte is out. Closing at once would, where input is still unread, reset the
// connection and destroy what the client has not read yet.
func (l *loop) finishLeaving(p *peer, held int) {
	if p.state != leaving || held > 0 {
		return
	}
	if !p.admitted && !l.server.mayLinger(p) {
		p.wire.close()
		return
	}
	p.wire.closeWrite()
	p.state = lingering
	p.endBy = l.now().Add(lingerTimeout)
	l.watch(p, paceSlow)
}

// appendGoodbye encodes the last frame of a connection.
func appendGoodbye(dst []byte, status protocol.Status, why string) []byte {
	start := len(dst)
	dst = protocol.BeginFrame(dst, protocol.Header{
		Opcode: protocol.OpGoodbye, Flags: protocol.FlagPush, Status: status,
	})
	body := protocol.ErrorBody{Message: why}
	dst = body.Append(dst)
	protocol.EndFrame(dst, start)
	return dst
}
