package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// EncodedBatch is a SEND request that was encoded once and is sent any number of times, as by a load
// generator. It is in flight once at a time. Each time its messages are new ones, with new numbers.
type EncodedBatch struct {
	mu      sync.Mutex
	frame   *frame
	header  protocol.Header
	entries int
	countAt int
}

// Encode encodes messages of one topic and one queue, which must fit one request, for SendEncoded.
func (p *Producer) Encode(topic string, messages []*Message) (*EncodedBatch, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	if n := len(messages); n == 0 || n > protocol.MaxSendEntries {
		return nil, invalid(protocol.OpSend, "a batch of %d messages, 1 to %d are legal", n, protocol.MaxSendEntries)
	}
	queue, err := messages[0].queue()
	if err != nil {
		return nil, err
	}
	room := 2*protocol.HeaderBytes + len(topic) + 64
	for _, m := range messages {
		room += entryBytes(m)
	}
	e := &EncodedBatch{
		frame:   newFrame(protocol.OpSend, p.flags, room),
		header:  protocol.Header{Opcode: protocol.OpSend, Flags: p.flags},
		entries: len(messages),
	}
	e.frame.b, e.countAt = appendSendHead(e.frame.b, topic, queue)
	for _, m := range messages {
		var x codec.Message
		if err := p.stored(&x, m); err != nil {
			return nil, err
		}
		if e.frame.b, err = appendSendEntry(e.frame.b, &x); err != nil {
			return nil, err
		}
	}
	putSendCount(e.frame.b, e.countAt, e.entries)
	return e, nil
}

// SendEncoded sends e and waits for the answer. It appends a result for each message to results. Calls for the
// same batch go one after the other.
func (p *Producer) SendEncoded(ctx context.Context, e *EncodedBatch, results []SendResult) ([]SendResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.frame.refs.Load() > 1 { // an abandoned call, or its writer, still has it
		old := e.frame
		e.frame = old.copied()
		old.release()
	}
	e.frame.retain()
	c := p.link.callWith(e.header, e.frame)
	p.ready(c)
	c.over = p.over
	owned, err := true, p.number(ctx, c, e.countAt+countBytes, e.entries)
	if err == nil {
		owned, err = p.link.do(ctx, c)
	}
	base := len(results)
	results = append(results, make([]SendResult, e.entries)...)
	out := results[base:]
	switch {
	case err != nil:
		failAll(out, err)
	case len(c.send.Results) != e.entries:
		failAll(out, fmt.Errorf("%w: %w", ErrOutcomeUnknown, errResults))
	default:
		for i := range out {
			out[i].set(&c.send.Results[i])
		}
	}
	if owned {
		p.leave(c)
		p.link.free(c)
	}
	return results, firstError(out)
}
