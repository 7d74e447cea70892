package broker

import (
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// peek reads messages without leases. Only committed ones can be seen. What there is to read is decided
// in the section, the reading is a worker's: nobody who peeks is in a hurry.
func (e *Engine) peek(o *op, r *protocol.PeekRequest) {
	slot, ok := e.fold.topics.names[r.Topic]
	if !ok {
		o.refuse(protocol.TopicNotFound, 0, "no topic "+r.Topic)
		return
	}
	if r.Queue >= e.fold.topics.slab.At(slot).queues {
		o.refuse(protocol.Invalid, uint64(e.fold.topics.slab.At(slot).queues-1), "the topic has no such queue")
		return
	}
	e.dispatchTo(e.log.Committed())
	visible := e.queueRun[e.fold.topics.queueOf[slot][r.Queue]].visible
	topicID := e.fold.topics.slab.At(slot).id
	begin := e.fold.topics.queues.At(e.fold.topics.queueOf[slot][r.Queue]).begin
	if o.conn.peeks.Load() >= maxPeeks {
		o.refuse(protocol.LimitExceeded, maxPeeks, "PEEKs of the connection that are not answered yet")
		return
	}
	o.conn.peeks.Add(1)
	code, request, size, c, gate := o.code, o.request, o.size, o.conn, e.log.Appended()
	most := int(r.Max)
	queue, offset := r.Queue, max(r.Offset, begin)
	o.parked = true
	e.peeks.add(func() {
		defer c.peeks.Add(-1)
		if c.gone.Load() {
			return
		}
		frame := e.readPeek(code, request, topicID, queue, offset, begin, visible, most)
		l := c.loop
		l.put(inboxItem{call: func() {
			if c.closed {
				return
			}
			out := c.peer.Out()
			at := len(out)
			l.deliver(c, append(out, frame...), at, parkedAnswer{gate: gate, request: request, size: size, code: code})
		}})
		l.wake()
	})
}

// readPeek makes the answer of a PEEK.
func (e *Engine) readPeek(code protocol.Opcode, request uint64, topic uint32, q uint16, offset, begin, visible uint64, most int) []byte {
	a := protocol.PeekAnswer{Begin: begin, End: max(begin, visible)}
	var entries []consumequeue.Entry
	if offset < visible {
		entries = make([]consumequeue.Entry, min(uint64(most), visible-offset))
		n, err := e.index.Read(topic, q, offset, entries)
		if removed, ok := errors.AsType[*consumequeue.RemovedError](err); ok {
			n, err, a.Begin = 0, nil, removed.Begin
		}
		if err != nil {
			return appendError(nil, code, request, protocol.Unreadable, &protocol.ErrorBody{Message: err.Error()})
		}
		entries = entries[:n]
	}
	for i, entry := range entries {
		if !e.sound(entry) {
			return appendError(nil, code, request, protocol.Unreadable, &protocol.ErrorBody{
				Message: fmt.Sprintf("the queue index has lost offset %d; it is being mended from the log", offset+uint64(i)), Detail: offset + uint64(i),
			})
		}
		size := codec.Padded(int(entry.Size))
		if len(a.Rows) > 0 && len(a.Records)+size > protocol.MaxPopBytes {
			break
		}
		at := len(a.Records)
		a.Records = append(a.Records, make([]byte, size)...)
		err := e.log.ReadAt(a.Records[at:], entry.Position)
		if err == nil {
			var h codec.Header
			var assigned []byte
			if h, assigned, _, err = codec.ReadRecord(a.Records[at : at+int(entry.Size)]); err == nil {
				if p := codec.ParseMessagePlace(assigned); h.Position != entry.Position || p.Topic != topic || p.Queue != q || p.Offset != offset+uint64(i) {
					err = fmt.Errorf("the index names another record")
				}
			}
		}
		if errors.Is(err, mmaplog.ErrRemoved) {
			a.Records, a.Begin = a.Records[:at], offset+uint64(i)+1
			break
		}
		if err != nil {
			return appendError(nil, code, request, protocol.Unreadable, &protocol.ErrorBody{
				Message: fmt.Sprintf("offset %d: %v", offset+uint64(i), err), Detail: offset + uint64(i),
			})
		}
		a.Rows = append(a.Rows, protocol.RecordRange{Offset: uint32(at), Length: entry.Size})
	}
	a.End = max(a.End, a.Begin)
	frame := protocol.BeginFrame(nil, protocol.Header{Opcode: code, Flags: protocol.FlagAnswer, RequestID: request})
	frame = a.Append(frame)
	protocol.EndFrame(frame, 0)
	return frame
}
