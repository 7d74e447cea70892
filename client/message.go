package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Property is one name and value of a message.
type Property = codec.Property

// MessageID is the broker's identity of a message: the same on redelivery, dead-letter and redrive.
type MessageID = codec.MessageID

// Message is what a producer sends. It is encoded before the call that takes it returns or waits, and the
// client keeps no reference to it.
type Message struct {
	Topic string // of Send and SendAsync; in SendBatch empty, or the batch's

	Tag      string // subscriptions may filter by it; at most 255 bytes, as all of these
	Key      string // chooses the queue, unless OrderKey does
	OrderKey string // messages of one order key go to one queue

	// UniqueKey is the sender's own name for what the message is about. For the topic's unique-key time (10 min
	// unless the topic says otherwise) a second message of the topic with the same key is not stored: it gets the
	// result of the first, with a nil error. That is all that it does: it is not an identity for consumers, and says
	// nothing once the time is over.
	UniqueKey string

	Properties []Property // at most 64, and 16 KiB
	Body       []byte     // at most 4 MiB as stored, 16 MiB before compression

	// Queue asks for a queue; nil leaves the choice to the broker.
	Queue *int

	// Delay and DeliverAt make a message visible later: after a time, or at a calendar time. At most one of
	// them is set. Fractions of a millisecond are rounded up.
	Delay     time.Duration
	DeliverAt time.Time
}

// SendResult is where one message was stored.
type SendResult struct {
	ID     MessageID
	Queue  int
	Offset uint64
	Handle uint64 // names a delayed message; 0: not delayed
	Err    error  // why the message was not stored, or may not have been
}

// queue is the queue field of a SEND.
func (m *Message) queue() (int32, error) {
	switch {
	case m.Queue == nil:
		return protocol.AnyQueue, nil
	case *m.Queue < 0 || *m.Queue >= protocol.MaxQueuesPerTopic:
		return 0, invalid(protocol.OpSend, "queue %d, 0 to %d are legal", *m.Queue, protocol.MaxQueuesPerTopic-1)
	}
	return int32(*m.Queue), nil
}

// stored sets x to m as the broker stores it, compressed if that is due.
func (p *Producer) stored(x *codec.Message, m *Message) error {
	*x = codec.Message{
		Tag: m.Tag, Key: m.Key, OrderKey: m.OrderKey, UniqueKey: m.UniqueKey,
		Properties: m.Properties, Body: m.Body,
		ProducerID: p.id, // the sequence is put when the request is submitted
	}
	if m.Delay != 0 || !m.DeliverAt.IsZero() {
		if err := setDeliverAt(x, m); err != nil {
			return err
		}
	}
	if p.compression != codec.None && len(x.Body) > p.above {
		if err := x.Compress(p.compression); err != nil {
			return refused(protocol.OpSend, err)
		}
	}
	if limit := p.link.limits.Load().body; len(x.Body) > limit {
		return &StatusError{Op: protocol.OpSend, Status: protocol.TooLarge, Detail: uint64(limit),
			Message: fmt.Sprintf("body of %d bytes as stored, limit %d", len(x.Body), limit)}
	}
	return nil
}

func setDeliverAt(x *codec.Message, m *Message) error {
	switch {
	case m.Delay < 0:
		return invalid(protocol.OpSend, "a delay of %v", m.Delay)
	case m.Delay > 0 && !m.DeliverAt.IsZero():
		return invalid(protocol.OpSend, "both a delay and a time of delivery")
	case m.Delay > 0:
		x.Delayed, x.DeliverAt = true, uint64(ceilMs(m.Delay))
	case m.DeliverAt.Before(time.Unix(0, 0)):
		return invalid(protocol.OpSend, "delivery at %v, before 1970", m.DeliverAt)
	default:
		ms := m.DeliverAt.UnixMilli()
		if m.DeliverAt.After(time.UnixMilli(ms)) {
			ms++
		}
		x.Delayed, x.Calendar, x.DeliverAt = true, true, uint64(ms)
	}
	return nil
}

func ceilMs(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// entryBytes is about how many bytes m needs in a SEND frame; it may be too few.
func entryBytes(m *Message) int {
	n := 48 + len(m.Tag) + len(m.Key) + len(m.OrderKey) + len(m.UniqueKey) + len(m.Body)
	for i := range m.Properties {
		n += 3 + len(m.Properties[i].Name) + len(m.Properties[i].Value)
	}
	return n
}

// A SEND body is built in place: its head, then the messages, each behind its length, then the count is
// put where the head has it.

// appendSendHead begins the body of a SEND and returns where in it the count of messages goes.
func appendSendHead(dst []byte, topic string, queue int32) (b []byte, countAt int) {
	head := protocol.SendRequest{Topic: topic, Queue: queue}
	dst = head.Append(dst)
	return dst, len(dst) - countBytes
}

// appendSendEntry adds one message. On an error dst is as it was.
func appendSendEntry(dst []byte, x *codec.Message) ([]byte, error) {
	at := len(dst)
	b, err := x.Append(append(dst, 0, 0, 0, 0))
	if err != nil {
		return dst[:at], refused(protocol.OpSend, err)
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b, nil
}

// countBytes is the length of the count; the entries follow.
const countBytes = 4

func putSendCount(b []byte, countAt, n int) { binary.LittleEndian.PutUint32(b[countAt:], uint32(n)) }

// sendTarget is the length at which a SEND frame of several messages is full.
func (l *limits) sendTarget() int { return min(l.frame, max(4<<10, min(l.credit/4, 1<<20))) }

var errResults = errors.New("leasemq: broken answer of the broker: not as many results as messages")

// set fills r from the broker's word on its message.
func (r *SendResult) set(from *protocol.SendResult) {
	*r = SendResult{ID: from.MessageID, Queue: int(from.Queue), Offset: from.Offset, Handle: from.Handle}
	if from.Status != protocol.OK {
		r.Err = &StatusError{Op: protocol.OpSend, Status: from.Status}
	}
}
