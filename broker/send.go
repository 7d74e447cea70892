package broker

import (
	"errors"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/dedup"
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
		case v.Delayed:
			m.status = protocol.Unsupported
		case v.ProducerID != 0 && v.Sequence == 0:
			m.status = protocol.Invalid
		default:
			m.crc = codec.Checksum(0, payload)
			m.tag = codec.TagHash(v.Tag)
			m.order = codec.TagHash(v.OrderKey)
			m.route, m.routed = v.RouteHash()
			m.sending.producer, m.sending.sequence = v.ProducerID, v.Sequence
			if m.sending.keyed = len(v.UniqueKey) > 0; m.sending.keyed {
				m.sending.key = dedup.Hash(v.UniqueKey)
			}
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
		o.status, o.why = protocol.StoreFull, e.noSpace("messages", o.worst, sendReserve)
		return
	case !ok:
		var status protocol.Status
		if slot, status, o.why = e.createTopic(r.Topic, defaultQueues, 0); status != protocol.OK {
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
		if m.status == protocol.OK && !e.sentBefore(slot, m, &res) {
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

// sentBefore tells whether a message was stored already, or may have been: then res is its result, and it is not
// stored again.
func (e *Engine) sentBefore(topicSlot uint32, m *message, res *protocol.SendResult) bool {
	s := &m.sending
	verdict, at := dedup.Fresh, dedup.Place{}
	if s.producer != 0 {
		verdict, at = e.fold.stored.CheckSequence(s.producer, s.sequence)
	}
	if verdict == dedup.Fresh && s.keyed {
		verdict, at = e.fold.stored.CheckKey(e.fold.topics.slab.At(topicSlot).id, s.key, e.wallMs(time.Duration(e.lease.last.Load())))
	}
	switch verdict {
	case dedup.Fresh:
		return false
	case dedup.Duplicate:
		res.Queue, res.Offset, res.MessageID = at.Queue, at.Offset, at.ID
		e.stats.duplicateSends.Add(1)
	case dedup.TooOld:
		res.Status = protocol.SeqTooOld
	case dedup.Full:
		res.Status = protocol.LimitExceeded
	}
	return true
}
