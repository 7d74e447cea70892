package broker

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/dedup"
	"github.com/leasemq/leasemq/protocol"
)

// The sequencing section: log order is apply order. Inside, a request is checked, gets its position, its
// queue offsets and its token, is copied into the log's ring, and is applied. Nothing inside loads from
// or stores into a file mapping, makes a syscall, or wakes anybody: enter and leave do that around it.

// enter takes the section.
func (e *Engine) enter() {
	e.mu.Lock()
	e.sections++
	e.index.Poll()
}

// leave gives the section back and wakes whom it concerns. It must be deferred: a panic inside leaves
// state that is not the log's, and ends the engine.
func (e *Engine) leave() {
	r := recover()
	if r == nil && e.o.Verify && !e.failed.Load() {
		r = e.tryVerify()
	}
	if r != nil {
		e.mu.Unlock()
		e.fail(fmt.Errorf("panic inside the section: %v\n%s", r, debug.Stack()))
		return
	}
	e.waiting.Store(int64(e.waiters.count))
	wake, notes := e.wakeSet, e.notes
	e.wakeSet, e.notes = nil, nil
	poke := e.tickSoon()
	e.mu.Unlock()
	e.log.Kick()
	e.index.Kick()
	for _, l := range wake {
		l.wake()
	}
	if poke {
		e.ticking.poke()
	}
	for _, note := range notes {
		note()
	}
}

// later has f run when the section has been left: writing a log line may block.
func (e *Engine) later(f func()) { e.notes = append(e.notes, f) }

// header begins a record.
func (e *Engine) header(t codec.Type) codec.Header {
	e.lastMs = e.lease.now()
	e.unpromised = e.unpromised || t != codec.TypeClock
	return codec.Header{Type: t, LeaseMs: e.lastMs, WallMs: e.wallMs(time.Duration(e.lease.last.Load()))}
}

// appendRecord appends a record of state whose payload is in scratch.payload, and returns its header for
// the fold. The caller applies it at once.
func (e *Engine) appendRecord(t codec.Type, payload []byte) codec.Header {
	h := e.header(t)
	e.log.Append(&h, nil, payload, codec.Checksum(0, payload)) // fills in position and epoch
	e.fold.stamp(&h)
	e.follow(&h, nil, payload)
	e.scratch.payload = payload[:0]
	return h
}

// follow applies a record to the shadow, as a recovery would. Without one it does nothing.
func (e *Engine) follow(h *codec.Header, assigned, payload []byte) {
	if e.shadow == nil {
		return
	}
	if err := e.shadow.apply(h, assigned, payload); err != nil {
		panic(err)
	}
	if e.o.Observe != nil {
		e.o.Observe(e.log.Appended(), e.shadow.hash)
	}
}

// newEpoch begins an epoch in line, when the running one is out of GRANT numbers. Nothing waits for it, but
// no grant of the new epoch is told before its record is on disk: lost in a crash, its number could be
// given to another epoch.
func (e *Engine) newEpoch() {
	epoch, err := e.nextEpoch()
	if err != nil {
		panic(err)
	}
	e.log.SetEpoch(epoch)
	h := e.header(codec.TypeEpoch)
	e.log.Append(&h, nil, nil, 0)
	e.follow(&h, nil, nil)
	e.fold.startEpoch(&h)
	e.epochGate = e.log.Appended()
}

// message is one message on its way into the log, prepared outside the section.
type message struct {
	payload []byte
	crc     uint32
	tag     uint64
	order   uint64
	route   uint64
	routed  bool
	sending sending
	status  protocol.Status
}

// appendMessage appends one message to a queue and applies it.
func (e *Engine) appendMessage(topicSlot uint32, q uint16, m *message) (offset uint64, id codec.MessageID) {
	t := e.fold.topics
	qSlot := t.queueOf[topicSlot][q]
	run := &e.queueRun[qSlot]
	h := e.header(codec.TypeMessage)
	position := e.log.Next(&h, codec.HeaderBytes+codec.MessageAssignedBytes+len(m.payload))
	place := codec.MessagePlace{
		Topic: t.slab.At(topicSlot).id, Queue: q, Offset: t.queues.At(qSlot).next,
		TagHash: m.tag, ID: codec.NewMessageID(e.fold.epoch, position),
	}
	place.Put(e.scratch.assigned[:])
	if got := e.log.Append(&h, e.scratch.assigned[:], m.payload, m.crc); got != position {
		panic(fmt.Sprintf("broker: record lies at %d, not at %d", got, position))
	}
	e.fold.stamp(&h)
	t.queues.Mut(qSlot).next++
	t.messages++
	e.fold.sent(topicSlot, &m.sending, dedup.Place{Queue: q, Offset: place.Offset, ID: place.ID}, h.WallMs)
	e.follow(&h, e.scratch.assigned[:], m.payload)
	end := position + uint64(codec.HeaderBytes+codec.MessageAssignedBytes+len(m.payload))
	if at := run.index.Append(consumequeue.Entry{
		Position: position, Size: uint32(end - position), TagHash: m.tag, OrderHash: m.order,
	}); at != place.Offset {
		panic(fmt.Sprintf("broker: index of queue %d is at %d, not at %d", q, at, place.Offset))
	}
	e.dispatch.add(qSlot, place.Topic, q, place.Offset+1, end)
	return place.Offset, place.ID
}

// indexEntry is the index entry of a message record.
func indexEntry(h *codec.Header, p *codec.MessagePlace, payload []byte) consumequeue.Entry {
	return consumequeue.Entry{
		Position: h.Position, Size: h.Length, TagHash: p.TagHash, OrderHash: orderHash(payload),
	}
}

// orderHash is the hash of a message's order key, 0 when it has none.
func orderHash(payload []byte) uint64 {
	var v codec.View
	if err := v.Parse(payload); err != nil {
		return 0
	}
	return codec.TagHash(v.OrderKey)
}
