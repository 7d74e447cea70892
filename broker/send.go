package broker

import (
	"errors"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// prepareSend does what needs no state: it checks the messages and sums their checksums.
func (l *Loop) prepareSend(o *op) {
	r := o.sendRequest
	o.messages = o.messages[:0]
	var v codec.View
	for _, payload := range r.Messages {
		m := message{payload: payload}
		switch err := v.Parse(payload); {
		case err != nil:
			m.status = protocol.Invalid
			if errors.Is(err, codec.ErrTooLarge) {
				m.status = protocol.TooLarge
			}
		case len(v.Body) > l.e.limits.MaxBodyBytes:
			m.status = protocol.TooLarge
		case v.Delayed, v.ProducerID != 0, len(v.UniqueKey) > 0:
			m.status = protocol.Unsupported
		default:
			m.crc = codec.Checksum(0, payload)
			m.tag = codec.TagHash(v.Tag)
			m.order = codec.TagHash(v.OrderKey)
			m.route, m.routed = v.RouteHash()
		}
		o.messages = append(o.messages, m)
	}
}

// send appends the messages of a SEND. A batch is not atomic: each message has its own result.
func (e *Engine) send(o *op) {
	r := o.sendRequest
	slot, ok := e.fold.topics.names[r.Topic]
	switch {
	case e.draining.Load():
		o.refuse(protocol.Draining, 0, "the broker is stopping")
		return
	case !ok && !o.create:
		o.refuse(protocol.TopicNotFound, 0, "no topic "+r.Topic)
		return
	case !e.diskFor(o.worst, sendReserve):
		o.refuse(protocol.StoreFull, 0, "no disk space for messages")
		return
	case !ok:
		var status protocol.Status
		if slot, status, o.why = e.createTopic(r.Topic, defaultQueues); status != protocol.OK {
			o.status = status
			return
		}
	}
	queues := uint32(e.fold.topics.slab.At(slot).queues)
	if r.Queue != protocol.AnyQueue && uint32(r.Queue) >= queues {
		o.refuse(protocol.Invalid, uint64(queues-1), "the topic has no such queue")
		return
	}
	e.dispatch.seal()
	turn, turned := uint32(0), false
	o.results = o.results[:0]
	for i := range o.messages {
		m := &o.messages[i]
		res := protocol.SendResult{Status: m.status}
		if m.status == protocol.OK {
			switch {
			case r.Queue != protocol.AnyQueue:
				res.Queue = uint16(r.Queue)
			case m.routed:
				res.Queue = uint16(m.route % uint64(queues))
			default:
				if !turned {
					run := &e.topicRun[slot]
					turn, turned = run.turn%queues, true
					run.turn = turn + 1
				}
				res.Queue = uint16(turn)
			}
			var id codec.MessageID
			res.Offset, id = e.appendMessage(slot, res.Queue, m)
			res.MessageID = id
			e.stats.sent.Add(1)
		}
		o.results = append(o.results, res)
	}
}

// Shares of the disk, in fractions of a segment, that are kept for what must never be refused.
const (
	sendReserve  = 4 // a quarter: sends go first
	grantReserve = 8 // an eighth: then grants and renewals
)

// diskFor tells whether need bytes may be appended when the next segment cannot be allocated: what is
// refused as space shrinks is refused in order, and acks, releases and session ends never are.
func (e *Engine) diskFor(need int, share int64) bool {
	if !e.log.DiskFull() {
		return true
	}
	owed := int64(e.fold.leases.Unsettled()) * perSettle / 2
	return e.log.DiskFree()-int64(need) > e.log.Recovery().SegmentBytes/share+owed
}
