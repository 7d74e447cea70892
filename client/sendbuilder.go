package client

import (
	"context"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// sendBuilder makes the requests of one SendBatch. Each part but the open one has been submitted.
type sendBuilder struct {
	p      *Producer
	topic  string
	limits *limits
	out    []SendResult

	parts []sendPart
	room  [4]sendPart

	open    *call // nil: none
	queue   int32
	from    int // the message that open begins with
	entries int
	countAt int
	x       codec.Message
}

// sendPart is one request for the messages from (inclusive) to to (exclusive) that have no error of their own.
type sendPart struct {
	call     *call
	from, to int
	entries  int
	err      error
}

// add encodes message i into the open request.
func (b *sendBuilder) add(ctx context.Context, i int, m *Message, all []*Message) error {
	if m.Topic != "" && m.Topic != b.topic {
		return invalid(protocol.OpSend, "a message of topic %q in a batch of topic %q", m.Topic, b.topic)
	}
	queue, err := m.queue()
	if err != nil {
		return err
	}
	if err := b.p.stored(&b.x, m); err != nil {
		return err
	}
	if b.open != nil && (queue != b.queue || b.entries == protocol.MaxSendEntries) {
		b.seal(ctx, i)
	}
	if b.open == nil {
		b.begin(i, queue, all[i:])
	}
	f := b.open.frame
	at := len(f.b)
	if f.b, err = appendSendEntry(f.b, &b.x); err != nil {
		return err
	}
	if b.entries > 0 && len(f.b) > b.limits.sendTarget() {
		b.move(ctx, i, queue, at, all[i:])
	}
	b.entries++
	return nil
}

// begin opens a request for message i and those after it.
func (b *sendBuilder) begin(i int, queue int32, rest []*Message) {
	room := 2 * protocol.HeaderBytes
	for _, m := range rest {
		if room += entryBytes(m); room >= b.limits.sendTarget() {
			break
		}
	}
	c := b.p.newSend(room + len(b.topic) + 64)
	c.over = b.p.over
	c.frame.b, b.countAt = appendSendHead(c.frame.b, b.topic, queue)
	b.open, b.queue, b.from, b.entries = c, queue, i, 0
}

// move takes the newest entry, which made the request too long, into a request of its own.
func (b *sendBuilder) move(ctx context.Context, i int, queue int32, at int, rest []*Message) {
	full := b.open.frame
	full.retain() // its bytes are needed after it was submitted, and writing it does not change them
	entry := full.b[at:]
	full.b = full.b[:at]
	b.seal(ctx, i)
	b.begin(i, queue, rest)
	b.open.frame.b = append(b.open.frame.b, entry...)
	full.release()
}

// seal submits the open request, which ends before message to. It waits while there is no room in the window.
func (b *sendBuilder) seal(ctx context.Context, to int) {
	c := b.open
	if c == nil {
		return
	}
	b.open = nil
	if b.entries == 0 {
		b.p.link.free(c)
		return
	}
	putSendCount(c.frame.b, b.countAt, b.entries)
	err := b.p.number(ctx, c, b.countAt+countBytes, b.entries)
	if err == nil {
		err = b.p.link.submit(c)
	}
	b.parts = append(b.parts, sendPart{call: c, from: b.from, to: to, entries: b.entries, err: err})
}

// collect waits for part i and hands out its results.
func (b *sendBuilder) collect(ctx context.Context, i int) {
	part := &b.parts[i]
	owned, err := true, part.err
	if err == nil {
		owned, err = b.p.link.wait(ctx, part.call)
	}
	out := b.out[part.from:part.to]
	if err == nil && len(part.call.send.Results) != part.entries {
		err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, errResults)
	}
	if err != nil {
		failAll(out, err)
	} else {
		from := part.call.send.Results
		for j := range out {
			if out[j].Err == nil {
				out[j].set(&from[0])
				from = from[1:]
			}
		}
	}
	if owned {
		b.p.leave(part.call)
		b.p.link.free(part.call)
	}
}
