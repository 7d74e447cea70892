package client

import (
	"context"
	"fmt"
	"time"

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
	defaultRetryFor      = 2 * time.Minute
	mostRetryFor         = 10 * time.Minute
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
	// Those that are being sent again are among them. Default: 8 MiB.
	MaxPending int

	// RetryFor is for how long after its first attempt a request is sent again by itself, as it was, when the
	// connection was lost with its answer or the broker answered that it is going down (STORE_FAILED, DRAINING, INTERNAL).
	// The broker knows the messages by their numbers and stores none twice. When the time is over no attempt begins any
	// more, and the error is ErrOutcomeUnknown, or ErrDraining where it is certain that nothing was stored. What was
	// never sent waits for a connection as long as its context lets it. Default: 2 min. At most 10 min, since the broker
	// knows the numbers for 15. Negative: never.
	RetryFor time.Duration

	// NotIdempotent sends messages without numbers, 16 bytes shorter each. Nothing is sent again then: a lost
	// connection is ErrOutcomeUnknown, and whoever repeats the message may store it twice.
	NotIdempotent bool
}

// Producer sends messages. It may be used by any number of goroutines, and needs no closing: Flush waits for
// what SendAsync has taken.
//
// Each producer has a random id and numbers its messages, by which the broker recognises a message that
// comes again (see ProducerOptions.RetryFor). It knows the last 65,536 numbers of a producer; so while a message is
// unanswered no later one is sent that would push it out of there, and who would send it waits.
type Producer struct {
	link        *link
	id          uint64 // 0: messages are not numbered
	retryFor    time.Duration
	flags       protocol.Flags
	compression codec.Compression
	above       int

	async  async
	window window      // guarded by async.mu
	over   func(*call) // leave, made once; nil: messages are not numbered
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
	if !o.NotIdempotent {
		p.id = newProducerID()
		p.window.mu = &p.async.mu
		p.over = p.leave
		switch {
		case o.RetryFor == 0:
			p.retryFor = defaultRetryFor
		case o.RetryFor > 0:
			p.retryFor = min(o.RetryFor, mostRetryFor)
		}
	}
	return p
}

// newSend makes a SEND for a frame of about so many bytes.
func (p *Producer) newSend(room int) *call {
	c := p.link.newCall(protocol.OpSend, p.flags, room)
	p.ready(c)
	return c
}

// ready makes c a SEND of p.
func (p *Producer) ready(c *call) {
	c.answer = &c.send
	c.retryFor = p.retryFor
}

// Send sends m and waits for the answer: with a nil error it is stored, as durably as the broker's policy
// says. ErrOutcomeUnknown means that it may be stored or not, and that the producer has stopped trying: ctx ended,
// or ProducerOptions.RetryFor. ErrStoreFull and a status of LIMIT_EXCEEDED are answers like others, for the caller to
// decide about.
func (p *Producer) Send(ctx context.Context, m *Message) (SendResult, error) {
	var result [1]SendResult
	results, err := p.SendBatchInto(ctx, m.Topic, []*Message{m}, result[:0])
	return results[0], err
}

// SendBatch sends messages of one topic in one request, or in several when a limit asks for it or when they ask
// for different queues, and waits for all answers. There is one result for each message, in order. The
// error is nil if all are stored; else it is the first one's. A batch is not atomic. Each request is sent again by
// itself, see ProducerOptions.RetryFor.
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
		out[i].Err = b.add(ctx, i, m, messages)
	}
	b.seal(ctx, len(messages))
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
