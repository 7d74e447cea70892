package broker

import (
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
)

// The last steps of a segment: what is unsettled in it is copied, then it is let go.

// copyLive copies the unsettled messages forward. It is false when that cannot be done, or not now.
func (s *outgoing) copyLive() (bool, error) {
	e := s.e
	total := int64(0)
	for i := range s.live {
		if ok, err := s.place(&s.live[i]); !ok {
			return false, err
		}
		total += int64(codec.Padded(int(s.live[i].entry.Size)))
	}
	if most := e.log.Recovery().SegmentBytes / copyShare; total > most {
		if !s.force {
			s.held = fmt.Sprintf("%d unsettled messages of %d bytes", len(s.live), total)
			return false, nil
		}
		s.live = nil
	}
	// Where no further segment can be had, what is appended here must fit into what there is: nothing would free it.
	retains := int64(len(s.begins)/retainSlice+2) * worstSmall
	if e.log.DiskFull() && e.log.DiskFree() < total+retains {
		s.held = "a disk that has no room for the copies of what is unsettled"
		return false, nil
	}
	for i := range s.live {
		if ok, err := s.copyOne(&s.live[i]); !ok {
			return false, err
		}
	}
	return true, nil
}

// place finds where a message lies.
func (s *outgoing) place(m *liveMessage) (bool, error) {
	e := s.e
	if m.entry.Written() { // a copy
		return true, nil
	}
	var entry [1]consumequeue.Entry
	n, err := e.index.Read(m.topic, m.queue, m.offset, entry[:])
	switch removed, gone := errors.AsType[*consumequeue.RemovedError](err); {
	case gone && m.offset < removed.Begin: // emptied or deleted meanwhile
		s.busy = true
		return false, nil
	case err != nil:
		return false, err
	case n == 0 || !e.sound(entry[0]):
		return s.doubt(m), nil
	}
	m.entry = entry[0]
	return true, nil
}

// doubt is for a message that is not where it should be. The index may be wrong, and is compared with the log; when that was done,
// the message itself is damaged. A copy is where the state says, or damaged. It is true when it is.
func (s *outgoing) doubt(m *liveMessage) (damaged bool) {
	e := s.e
	if !m.copied && m.entry.Flags&entryLost == 0 && !e.isLost(m.topic, m.queue, m.offset) {
		e.indexWrong(m.topic, m.queue)
		s.held, s.busy = "a queue index that is being mended", true
		return false
	}
	// Nobody can be given it. It goes with its segment, and counts as dropped.
	s.damaged[m.liveName] = true
	e.logger.Error("an unsettled message is damaged and cannot be kept", "topic", m.topic, "queue", m.queue, "offset", m.offset,
		"position", m.entry.Position)
	return true
}

// copyOne copies one message to the end of the log, unless it is settled by now. It is false when there is no room, or
// the message has to be looked for first.
func (s *outgoing) copyOne(m *liveMessage) (bool, error) {
	e := s.e
	if s.damaged[m.liveName] {
		return true, nil
	}
	raw := make([]byte, m.entry.Size)
	err := e.log.ReadAt(raw, m.entry.Position)
	if errors.Is(err, mmaplog.ErrClosed) {
		return false, err
	}
	var h codec.Header
	var payload []byte
	place := codec.MessagePlace{}
	if err == nil {
		var assigned []byte
		if h, assigned, payload, err = codec.ReadRecord(raw); err == nil && len(assigned) == codec.MessageAssignedBytes {
			place = codec.ParseMessagePlace(assigned)
		}
	}
	if err != nil || h.Position != m.entry.Position || (liveName{place.Topic, place.Queue, place.Offset}) != m.liveName {
		return s.doubt(m), nil
	}
	crc := codec.Checksum(0, payload)
	ok := s.inSection(func() bool {
		switch worst := len(raw) + worstSmall; {
		case !e.wanted(m):
		case !e.claim(worst):
			s.busy = true
			return false
		default:
			e.appendCopy(&place, h.Born(), payload, crc)
			e.stats.copied.Add(1)
			e.release(worst)
		}
		return true
	})
	return ok, nil
}

// appendCopy appends and applies the copy of a message that was stored first at wall clock born.
func (e *Engine) appendCopy(place *codec.MessagePlace, born int64, payload []byte, crc uint32) {
	h := e.header(codec.TypeCopy)
	h.BornMs = born
	place.Put(e.scratch.assigned[:])
	e.log.Append(&h, e.scratch.assigned[:], payload, crc)
	e.fold.stamp(&h)
	e.fold.topics.copied(place, indexEntry(&h, place, payload))
	e.follow(&h, e.scratch.assigned[:], payload)
}

// letGo appends the RETAIN records, after a last look at who needs what. It is false when somebody does.
func (s *outgoing) letGo() bool {
	for i := range s.begins { // those that drop much do so in steps
		for more := true; more; {
			ok := s.inSection(func() bool {
				step, all := s.step(&s.begins[i])
				if more = !all; all {
					return true
				}
				return s.retain([]codec.QueueBegin{step}, 0)
			})
			if !ok {
				return false
			}
		}
	}
	return s.inSlices(func(queues []codec.QueueBegin, last bool) bool {
		start := uint64(0)
		if last {
			start = s.end
		}
		return s.retain(queues, start)
	})
}

// step is how far a queue may be let go of in one record, and whether that is all of it. Section only.
func (s *outgoing) step(q *codec.QueueBegin) (step codec.QueueBegin, all bool) {
	e := s.e
	queueSlot, ok := e.fold.topics.queueSlot(q.Topic, q.Queue)
	if !ok {
		return *q, true
	}
	step = *q
	for _, slot := range e.fold.leases.SubsOf(q.Topic) {
		n := 0
		e.fold.leases.UnsettledBelow(slot, q.Queue, step.Begin, func(offset uint64) bool {
			if _, kept := e.fold.topics.copyAt(queueSlot, offset); !kept {
				n++
			}
			if n > dropSlice {
				step.Begin = offset
			}
			return n <= dropSlice
		})
	}
	return step, step.Begin == q.Begin
}

// retain appends one RETAIN record, if nobody needs what it lets go of. Section only.
func (s *outgoing) retain(queues []codec.QueueBegin, start uint64) bool {
	e := s.e
	for i := range queues {
		late := false
		ok := s.checkQueue(&queues[i], func(m liveMessage) bool {
			late = !s.damaged[m.liveName]
			return !late
		})
		if !ok || late && !s.force {
			return false
		}
	}
	if start > 0 && !s.force && s.missesCopy() {
		s.busy = true
		return false
	}
	if !e.claim(worstSmall) {
		s.busy = true
		return false
	}
	defer e.release(worstSmall)
	rec := codec.Retain{LogStart: start}
	for _, q := range queues {
		if slot, ok := e.fold.topics.queueSlot(q.Topic, q.Queue); ok && q.Begin > e.fold.topics.queues.At(slot).begin {
			rec.Queues = append(rec.Queues, q)
		}
	}
	if len(rec.Queues) > 0 || start > 0 {
		s.dropped += e.appendRetain(&rec)
	}
	return true
}

// appendRetain appends and applies a RETAIN record, and tells how many messages groups lose by it.
func (e *Engine) appendRetain(rec *codec.Retain) (lost uint64) {
	before := e.fold.leases.Dropped()
	h := e.appendRecord(codec.TypeRetain, rec.Append(e.scratch.payload))
	e.fold.retain(&h, rec)
	lost = e.fold.leases.Dropped() - before
	e.stats.dropped.Add(lost)
	for _, q := range rec.Queues {
		if slot, ok := e.fold.topics.queueSlot(q.Topic, q.Queue); ok {
			e.giveUp(slot, q.Begin)
			for _, sub := range e.fold.leases.SubsOf(q.Topic) {
				e.markActive(sub, q.Queue)
			}
		}
	}
	if lost > 0 {
		e.lookAtAll()
		e.later(func() {
			e.logger.Warn("messages were dropped that a group had not settled", "messages", lost)
		})
	}
	return lost
}

// giveUp has the index entries of a queue below an offset removed, when the record that moved its beginning is committed.
func (e *Engine) giveUp(queueSlot uint32, begin uint64) {
	e.gone = append(e.gone, goneRun{queue: queueSlot, topic: e.queueRun[queueSlot].topic, begin: begin, end: e.log.Appended()})
}

// goneRun is index entries that are removed when the log has committed end; or all of a topic's, when end is on the disk: after a
// power cut the topic may be there again.
type goneRun struct {
	drop  bool   // the whole topic
	queue uint32 // slot
	topic uint32 // id
	begin uint64
	end   uint64
}

// giveUpTo removes the index entries whose messages were let go for good.
func (e *Engine) giveUpTo(committed uint64) {
	n := 0
	for ; n < len(e.gone) && e.gone[n].end <= committed; n++ {
		if e.gone[n].drop {
			if e.o.Fsync != mmaplog.SyncNever && e.log.Synced() < e.gone[n].end {
				break
			}
			e.index.Drop(e.gone[n].topic)
			continue
		}
		if run := &e.queueRun[e.gone[n].queue]; run.topic == e.gone[n].topic {
			run.index.SetBegin(e.gone[n].begin)
		}
	}
	e.gone = append(e.gone[:0], e.gone[n:]...)
}

// lookAtAll has everybody looked at who waits: many leases are over at once, whosever they were.
func (e *Engine) lookAtAll() {
	for slot := range e.subRun {
		if e.subRun[slot].id == 0 {
			continue
		}
		for q := range e.fold.leases.Queues(uint32(slot)) {
			e.markActive(uint32(slot), uint16(q))
		}
	}
	e.uncap()
}
