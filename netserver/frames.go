package netserver

import (
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/protocol"
)

// A batch is flushed in the middle when it has this many frames or bytes, or when its answers may pass the
// high-water mark (answerWeight): so neither the work nor the output of one read is unbounded.
const (
	batchFrames = 1024
	batchBytes  = 1 << 20
)

// answerWeight is the largest answer that a request may get, where that is far more than the request.
func answerWeight(op protocol.Opcode) int {
	switch op {
	case protocol.OpPop, protocol.OpPeek:
		return protocol.MaxPopBytes
	case protocol.OpListTopics, protocol.OpListGroups, protocol.OpShowGroup, protocol.OpStats:
		return listWeight
	}
	return 0
}

// listWeight stands for answers that grow with what the broker has: 10,000 topics are about 1 MiB.
const listWeight = 1 << 20

// receive takes what one read brought for p: parses it, or keeps it when p may not be parsed now.
func (l *loop) receive(p *peer, data []byte) {
	if p.state != serving {
		return
	}
	if p.choked && !l.overHighWater(p) {
		p.choked = false
	}
	if p.stalled || p.choked {
		p.in.add(data, &l.pool)
		l.checkCredit(p)
		return
	}
	l.parse(p, data)
}

// parse hands over the complete frames in p.in and data, in that order, and keeps the rest.
func (l *loop) parse(p *peer, data []byte) {
	p.parsing = true
	frames, rest := l.handOver(p, data)
	p.parsing = false
	l.counters.frames.Add(uint64(frames))
	if p.state != serving {
		p.in.release(&l.pool)
		return
	}
	p.in.compact(&l.pool)
	if len(rest) > 0 {
		p.in.add(rest, &l.pool)
	}
	switch {
	case p.stalled || p.choked:
		// Time that we take is not the client's.
		p.partialAt = noTime
		l.checkCredit(p)
	case p.in.len() == 0:
		p.partialAt = noTime
	case frames > 0 || p.partialAt.IsZero():
		p.partialAt = l.now()
		l.watch(p, paceSlow)
	}
}

// handOver is the batch loop of parse. It returns the number of frames taken and the part of data that is
// not. On a panic of the Handler the peer has failed and nothing it returns matters.
func (l *loop) handOver(p *peer, data []byte) (frames int, rest []byte) {
	if l.handler == nil || l.server.void.Load() {
		return 0, nil
	}
	defer l.caught(p, "Frame or Flush")
	var batch, bytes, weight int // since the last Flush
	l.chokeIfOver(p)
	for p.state == serving && !p.stalled && !p.choked {
		fromIn := p.in.len() > 0
		h, body, left, err := l.next(p, data)
		data = left
		if errors.Is(err, protocol.ErrShort) {
			break
		}
		if err != nil {
			status, why := protocol.Refusal(err)
			l.fail(p, status, why.Message)
			break
		}
		if !l.handler.Frame(p, h, body) {
			if p.state == serving {
				p.stalled = true
				l.stalled = append(l.stalled, p)
			}
			break
		}
		size := protocol.HeaderBytes + len(body)
		if fromIn {
			p.in.skip(size)
		} else {
			data = data[size:]
		}
		p.greeted = true
		frames++
		batch++
		bytes += size
		weight += answerWeight(h.Opcode)
		if batch >= batchFrames || bytes >= batchBytes || len(p.out)+weight > l.opts.HighWater {
			l.handler.Flush(p)
			batch, bytes, weight = 0, 0, 0
			if len(p.out) >= min(batchBytes, l.opts.HighWater) {
				l.writeOut(p)
			}
			l.chokeIfOver(p)
		}
	}
	if batch > 0 {
		l.handler.Flush(p)
	}
	return frames, data
}

// next finds the next frame: in p.in, which it completes from data, else in data. ErrShort: there is no
// complete one. left is data without what went into p.in; a frame found in data is still part of it.
func (l *loop) next(p *peer, data []byte) (h protocol.Header, body, left []byte, err error) {
	view := data
	fromIn := p.in.len() > 0
	if fromIn {
		data = p.in.fill(protocol.HeaderBytes, data, &l.pool)
		view = p.in.bytes()
	}
	if h, err = protocol.ParseHeader(view); err != nil {
		return h, nil, data, err
	}
	if err = h.CheckRequest(); err != nil {
		return h, nil, data, err
	}
	size := protocol.HeaderBytes + int(h.BodyLen)
	switch { // before the body is waited for
	case !p.greeted && h.Opcode != protocol.OpHello:
		return h, nil, data, &protocol.FrameError{
			Status: protocol.HelloRequired,
			Reason: fmt.Sprintf("the first frame is %s, not HELLO", h.Opcode),
		}
	case size > l.opts.MaxFrameBytes:
		return h, nil, data, &protocol.FrameError{
			Status: protocol.FrameTooLarge,
			Reason: fmt.Sprintf("frame of %d bytes, limit %d", size, l.opts.MaxFrameBytes),
		}
	}
	if fromIn {
		data = p.in.fill(size, data, &l.pool)
		view = p.in.bytes()
	}
	if len(view) < size {
		return h, nil, data, protocol.ErrShort
	}
	return h, view[protocol.HeaderBytes:size:size], data, nil
}

// checkCredit ends a connection that goes on sending though nothing of it is parsed.
func (l *loop) checkCredit(p *peer) {
	if limit := l.opts.CreditBytes + l.opts.MaxFrameBytes; p.in.len() > limit {
		l.fail(p, protocol.FlowViolation,
			fmt.Sprintf("%d bytes of requests wait, the credit and one frame are %d", p.in.len(), limit))
	}
}

// retryStalled parses the peers whose frames were refused, in the order in which they were.
func (l *loop) retryStalled() {
	if len(l.stalled) == 0 {
		return
	}
	list := l.stalled
	l.stalled = l.spare.stalled[:0]
	for i, p := range list {
		list[i] = nil
		p.stalled = false
		if p.state == serving && !p.choked {
			l.parse(p, nil)
		}
	}
	l.spare.stalled = list[:0]
}
