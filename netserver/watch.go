package netserver

import (
	"fmt"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// pace is how often a loop must look at its watched peers.
type pace int32

const (
	paceNone pace = iota
	paceSlow      // timeouts of seconds
	paceFast      // output that drains without a word, a drain
)

var paceInterval = [...]time.Duration{paceSlow: 250 * time.Millisecond, paceFast: 10 * time.Millisecond}

// watch makes ticks look at p, at least as often as need says.
func (l *loop) watch(p *peer, need pace) {
	if !p.watched {
		p.watched = true
		l.watched = append(l.watched, p)
	}
	l.raisePace(need)
}

func (l *loop) raisePace(need pace) {
	l.level = max(l.level, need)
	if int32(need) > l.wanted.Load() {
		l.wanted.Store(int32(need))
		l.server.kick()
	}
}

// onTick looks at every watched peer once and keeps those that still wait for something.
func (l *loop) onTick() {
	l.tickQueued.Store(false)
	l.enter()
	defer l.leave()
	now := l.now()
	list := l.watched
	l.watched = l.spare.watched[:0]
	l.level = paceNone
	for i, p := range list {
		list[i] = nil
		p.watched = false
		if need := l.examine(p, now); need != paceNone && p.state != dead {
			l.watch(p, need)
		}
	}
	l.spare.watched = list[:0]
	if l.draining {
		l.level = paceFast
	}
	l.wanted.Store(int32(l.level))
}

// examine applies the timeouts to p and says how soon it must be looked at again.
func (l *loop) examine(p *peer, now time.Time) pace {
	switch p.state {
	case serving:
		return l.examineServing(p, now)
	case leaving:
		l.finishLeaving(p, p.wire.buffered())
		if p.state == lingering {
			return paceSlow
		}
		if !now.Before(p.endBy) {
			p.wire.close()
		}
		return paceFast
	case lingering:
		if !now.Before(p.endBy) {
			p.wire.close()
		}
		return paceSlow
	}
	return paceNone // failing: its GOODBYE is written when this entry ends; dead
}

func (l *loop) examineServing(p *peer, now time.Time) pace {
	need := paceNone
	held := p.wire.buffered()
	if held == 0 {
		p.backedUp = false
	} else {
		need = paceSlow
		taken := p.written - uint64(held) - uint64(p.wire.unacked())
		if !p.backedUp || taken != p.taken {
			p.backedUp, p.taken, p.takenAt = true, taken, now
		} else if now.Sub(p.takenAt) >= l.opts.SlowTimeout {
			l.slowConsumer(p, held)
			return paceNone
		}
	}
	if p.choked && !l.overHighWater(p) {
		p.choked = false
		if !p.stalled {
			l.parse(p, nil)
		}
	}
	switch {
	case p.state != serving:
		return paceNone
	case p.choked:
		return paceFast
	case p.stalled:
		return need
	}
	if !p.greeted {
		if now.Sub(p.openedAt) >= l.opts.HelloTimeout {
			l.fail(p, protocol.Timeout, fmt.Sprintf("no HELLO within %v", l.opts.HelloTimeout))
			return paceNone
		}
		need = paceSlow
	}
	if !p.partialAt.IsZero() {
		if now.Sub(p.partialAt) >= l.opts.FrameTimeout {
			l.fail(p, protocol.Timeout, fmt.Sprintf("a frame did not end within %v of its first byte", l.opts.FrameTimeout))
			return paceNone
		}
		need = paceSlow
	}
	return need
}
