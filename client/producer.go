package client

import (
	"context"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Compression chooses how a producer compresses bodies.
type Compression uint8

const (
	CompressDefault Compression = iota // zstd
	CompressZstd
	CompressS2 // faster, larger
	CompressNone
)

const (
	defaultCompressAbove = 4096
	defaultMaxPending    = 8 << 20
)

// ProducerOptions of Client.Producer. The zero value is right for most.
type ProducerOptions struct {
	// Create makes a topic at the first message sent to it, with the broker's default number of queues.
	Create bool

	// Compression of bodies longer than CompressAbove bytes (default 4,096). A body whose compressed form
	// is not smaller is sent as it is.
	Compression   Compression
	CompressAbove int

	// MaxPending is how many bytes of messages handed to SendAsync may be unanswered before it waits.
	// Default: 8 MiB.
	MaxPending int
}

// Producer sends messages. It may be used by any number of goroutines, and needs no closing: Flush waits for
// what SendAsync has taken.
type Producer struct {
	link        *link
	flags       protocol.Flags
	compression codec.Compression
	above       int

	async async
}

// Producer makes a producer that sends over c.
func (c *Client) Producer(o ProducerOptions) *Producer {
	p := &Producer{link: c.link, above: o.CompressAbove}
	if o.Create {
		p.flags = protocol.FlagCreate
	}
	if p.above <= 0 {
		p.above = defaultCompressAbove
	}
	switch o.Compression {
	case CompressDefault, CompressZstd:
		p.compression = codec.Zstd
	case CompressS2:
		p.compression = codec.S2
	default:
		p.compression = codec.None
	}
	p.async.init(o.MaxPending)
	return p
}

// Send sends m and waits for the answer: with a nil error it is stored, as durably as the broker's policy
// says. ErrOutcomeUnknown means that it may be stored or not.
func (p *Producer) Send(ctx context.Context, m *Message) (SendResult, error) {
	var result [1]SendResult
	results, err := p.SendBatchInto(ctx, m.Topic, []*Message{m}, result[:0])
	return results[0], err
}

// SendBatch sends messages of one topic in one request, or in several when a limit asks for it or when they ask
// for different queues, and waits for all answers. There is one result for each message, in order. The
// error is nil if all are stored; else it is the first one's. A batch is not atomic.
func (p *Producer) SendBatch(ctx context.Context, topic string, messages []*Message) ([]SendResult, error) {
	return p.SendBatchInto(ctx, topic, messages, make([]SendResult, 0, len(messages)))
}

// SendBatchInto is SendBatch with the memory for the results, which it appends to results.
func (p *Producer) SendBatchInto(ctx context.Context, topic string, messages []*Message, results []SendResult) ([]SendResult, error) {
	base := len(results)
	results = append(results, make([]SendResult, len(messages))...)
	out := results[base:]
	if err := checkTopic(topic); err != nil {
		return results, failAll(out, err)
	}
	b := sendBuilder{p: p, topic: topic, out: out, limits: p.link.limits.Load()}
	b.parts = b.room[:0]
	for i, m := range messages {
		out[i].Err = b.add(i, m, messages)
	}
	b.seal(len(messages))
	for i := range b.parts {
		b.collect(ctx, i)
	}
	return results, firstError(out)
}

func checkTopic(topic string) error {
	if err := protocol.CheckExistingName("topic", topic); err != nil {
		return refused(protocol.OpSend, err)
	}
	return nil
}

func failAll(results []SendResult, err error) error {
	for i := range results {
		if results[i].Err == nil {
			results[i].Err = err
		}
	}
	return err
}

// firstError sums results up.
func firstError(results []SendResult) error {
	failed, first := 0, error(nil)
	for i := range results {
		if err := results[i].Err; err != nil {
			if failed++; first == nil {
				first = err
			}
		}
	}
	if failed == 0 || len(results) == 1 {
		return first
	}
	return fmt.Errorf("%d of %d messages: %w", failed, len(results), first)
}
