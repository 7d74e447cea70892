package client

import (
	"context"
	"fmt"

	"github.com/leasemq/leasemq/protocol"
)

// Peeked is the answer to Client.Peek.
type Peeked struct {
	Messages   []*StoredMessage
	Begin, End uint64 // offsets of the queue: the first kept, the next to come
}

// Peek reads up to most messages (1 to 256) of a queue from offset on, without taking them. An offset below
// the first one kept stands for that.
func (c *Client) Peek(ctx context.Context, topic string, queue int, offset uint64, most int) (*Peeked, error) {
	if queue < 0 || queue >= protocol.MaxQueuesPerTopic || most < 0 || most > protocol.MaxPeekMessages {
		return nil, invalid(protocol.OpPeek, "%d messages of queue %d, 1 to %d of 0 to %d are legal",
			most, queue, protocol.MaxPeekMessages, protocol.MaxQueuesPerTopic-1)
	}
	request := protocol.PeekRequest{Topic: topic, Queue: uint16(queue), Offset: offset, Max: uint16(most)}
	if err := request.Validate(); err != nil {
		return nil, refused(protocol.OpPeek, err)
	}
	l := c.link
	x := l.newCall(protocol.OpPeek, 0, 1<<leastFrameClass)
	x.frame.b = request.Append(x.frame.b)
	owned, err := l.do(ctx, x)
	if !owned {
		return nil, err
	}
	defer l.free(x)
	if err != nil {
		return nil, err
	}
	var answer protocol.PeekAnswer
	if err := answer.Decode(x.body); err != nil {
		return nil, fmt.Errorf("leasemq: broken answer of the broker: %w", err)
	}
	p := &Peeked{Begin: answer.Begin, End: answer.End, Messages: make([]*StoredMessage, len(answer.Rows))}
	memory := make([]StoredMessage, len(answer.Rows))
	for i := range memory {
		p.Messages[i] = &memory[i]
		memory[i].read(protocol.OpPeek, topic, answer.Record(i))
	}
	return p, nil
}
