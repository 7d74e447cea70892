package broker

import (
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
)

// outgoing is the oldest segment, on its way out. The steward's pass owns it.
type outgoing struct {
	e          *Engine
	run        uint64
	first, end uint64
	look       bool // look whether anything in it can be read, even if it is young
	looked     bool // that was done
	force      bool // the log is over its hard limit
	begins     []codec.QueueBegin
	live       []liveMessage // what must be copied
	known      map[liveName]bool
	damaged    map[liveName]bool // what cannot be copied
	held       string            // who needs it
	busy       bool              // something is in the way that will not be for long: try again soon
	uncovered  bool              // it could go, were there newer snapshots
	dropped    uint64
}

// liveMessage is an unsettled message of the segment.
type liveMessage struct {
	liveName
	entry  consumequeue.Entry
	copied bool // entry is that of a copy
}

type liveName struct {
	topic  uint32
	queue  uint16
	offset uint64
}

// retire lets the segment go, if it may. It is false when it may not.
func (s *outgoing) retire() (gone bool, err error) {
	e := s.e
	s.end = e.log.SegmentEnd(s.first)
	if s.end > e.logStart() { // else it was let go before, and its file is still there
		why := s.expired()
		if why == "" && !s.look || s.end >= e.log.Synced() {
			return false, nil
		}
		if ok, err := s.findBegins(); !ok {
			return false, err
		}
		s.looked = true
		if why == "" && len(s.begins) > 0 {
			return false, nil
		}
		if s.uncovered = !e.covered(s.end); s.uncovered {
			return false, nil
		}
		if !s.check() {
			return false, nil
		}
		if ok, err := s.copyLive(); !ok {
			return false, err
		}
		if position, ok := e.pinned(); !ok || position < s.end || !s.letGo() {
			return false, nil
		}
		if err := e.log.SyncTo(e.ctx, e.log.Appended()); err != nil {
			return false, err
		}
		e.logger.Info("old log let go", "from", s.first, "to", s.end, "why", why, "queues", len(s.begins), "copied", len(s.live), "dropped", s.dropped)
	} else if !e.covered(s.end) {
		return false, nil
	}
	n, _, err := e.log.RemoveBefore(s.end)
	e.stats.segmentsRemoved.Add(uint64(n))
	return err == nil && n > 0, err
}

// covered tells whether the kept snapshots stand for the log below a position, without reading them.
func (e *Engine) covered(position uint64) bool {
	s := &e.snaps
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kept) == keptSnapshots && s.kept[keptSnapshots-1].last >= position
}

func (e *Engine) logStart() uint64 {
	e.enter()
	defer e.leave()
	return e.fold.topics.logStart
}

// expired says why the segment should go, "" if it should not.
func (s *outgoing) expired() (why string) {
	e, r := s.e, &s.e.o.Retention
	bytes := int64(e.log.Stats().Segments) * e.log.Recovery().SegmentBytes
	if r.HardBytes > 0 && bytes > r.HardBytes {
		s.force = true
		return "the log is over its hard limit"
	}
	if r.Bytes > 0 && bytes > r.Bytes {
		return "the log is over its size"
	}
	if r.Age < 0 {
		return ""
	}
	// The newest record of the segment is as old as the first of the next, or older. One that cannot be read says nothing, and
	// the next one is younger.
	for at := s.end; at < e.log.Synced(); at = e.log.SegmentEnd(at) {
		if h, err := e.log.ReadHeader(at + firstPosition); err == nil {
			if e.wallMs(e.clock.Mono())-h.WallMs > r.Age.Milliseconds() {
				return "age"
			}
			return ""
		}
	}
	return ""
}

// findBegins finds the queues that have messages in the segment, and where they begin behind it. It is false when that cannot be
// told.
func (s *outgoing) findBegins() (bool, error) {
	e := s.e
	var queues []codec.QueueBegin
	func() {
		e.enter()
		defer e.leave()
		t := e.fold.topics
		queues = make([]codec.QueueBegin, 0, t.queues.Len())
		for id, slot := range t.ids {
			for i, q := range t.queueOf[slot] {
				if x := t.queues.At(q); x.begin < x.next {
					queues = append(queues, codec.QueueBegin{Topic: id, Queue: uint16(i), Begin: x.begin})
				}
			}
		}
	}()
	for _, q := range queues {
		begin, err := e.index.Search(q.Topic, q.Queue, s.end)
		if _, hole := errors.AsType[*consumequeue.HoleError](err); hole {
			e.indexWrong(q.Topic, q.Queue)
			s.held, s.busy = "a queue index that is being mended", true
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if begin <= q.Begin {
			continue
		}
		if !s.believed(q.Topic, q.Queue, begin) {
			s.held, s.busy = "a queue index that is being mended", true
			return false, nil
		}
		q.Begin = begin
		s.begins = append(s.begins, q)
	}
	return true, nil
}

// believed looks whether the log agrees that a queue's last message in the segment is the one before begin. The index is not
// trusted with what is let go.
func (s *outgoing) believed(topic uint32, q uint16, begin uint64) bool {
	e := s.e
	for _, offset := range [...]uint64{begin - 1, begin} {
		var entry [1]consumequeue.Entry
		n, err := e.index.Read(topic, q, offset, entry[:])
		if removed, ok := errors.AsType[*consumequeue.RemovedError](err); ok && offset < removed.Begin || err == nil && n == 0 {
			continue // the topic was emptied or deleted meanwhile, or the queue ends there
		}
		at := entry[0].Position
		if err == nil && e.sound(entry[0]) && (at < s.end) == (offset < begin) && s.lies(liveName{topic, q, offset}, entry[0]) {
			continue
		}
		if entry[0].Flags&entryLost == 0 && !e.isLost(topic, q, offset) {
			e.indexWrong(topic, q)
			return false
		}
	}
	return true
}

// lies tells whether the log has the message where an index entry says.
func (s *outgoing) lies(m liveName, entry consumequeue.Entry) bool {
	raw := make([]byte, codec.HeaderBytes+codec.MessageAssignedBytes)
	if err := s.e.log.ReadAt(raw, entry.Position); err != nil {
		return false
	}
	h := codec.ParseHeader(raw)
	p := codec.ParseMessagePlace(raw[codec.HeaderBytes:])
	return h.Position == entry.Position && h.Type == codec.TypeMessage && p.Topic == m.topic && p.Queue == m.queue && p.Offset == m.offset
}

// inSlices calls do with slices of the queues, each in a hold of the section, until it returns false.
func (s *outgoing) inSlices(do func(queues []codec.QueueBegin, last bool) bool) bool {
	for rest := s.begins; ; {
		n := min(len(rest), retainSlice)
		ok := s.inSection(func() bool { return do(rest[:n], n == len(rest)) })
		if rest = rest[n:]; !ok || len(rest) == 0 {
			return ok
		}
	}
}

// inSection runs do in a hold of the section. It is false when the engine has failed, or the pass is an old one.
func (s *outgoing) inSection(do func() bool) bool {
	e := s.e
	e.enter()
	defer e.leave()
	if e.failed.Load() || e.steward.run.Load() != s.run {
		return false
	}
	defer e.settleDown(nil)
	return do()
}

// check looks who needs the segment. It gathers the unsettled messages that would have to be copied.
func (s *outgoing) check() bool {
	ok := s.inSlices(func(queues []codec.QueueBegin, last bool) bool {
		for i := range queues {
			if !s.checkQueue(&queues[i], s.mustCopy) {
				return false
			}
		}
		if last {
			s.addCopies()
		}
		return true
	})
	if ok && len(s.live) > maxCopies {
		if !s.force {
			s.held = fmt.Sprintf("more than %d unsettled messages", maxCopies)
			return false
		}
		s.live = nil
	}
	return ok
}

// checkQueue looks whether a group that holds data has still to come to what a queue has in the segment, and gives live
// what is unsettled there and has no copy that stays, until live returns false. Section only.
func (s *outgoing) checkQueue(q *codec.QueueBegin, live func(m liveMessage) bool) bool {
	e := s.e
	queueSlot, ok := e.fold.topics.queueSlot(q.Topic, q.Queue)
	if !ok {
		return true
	}
	begin := e.fold.topics.queues.At(queueSlot).begin
	for _, slot := range e.fold.leases.SubsOf(q.Topic) {
		sub := e.fold.leases.At(slot)
		if !e.holds(sub.Group) {
			continue
		}
		if next := e.fold.leases.Position(slot, q.Queue).Next; next < q.Begin && !s.force {
			topicSlot := e.fold.topics.ids[q.Topic]
			s.held = fmt.Sprintf("group %s, which is at offset %d of queue %d of topic %s",
				e.fold.sessions.GroupName(sub.Group), next, q.Queue, e.fold.topics.name(topicSlot))
			return false
		}
		e.fold.leases.UnsettledBelow(slot, q.Queue, q.Begin, func(offset uint64) bool {
			m := liveMessage{liveName: liveName{q.Topic, q.Queue, offset}}
			if at, ok := e.fold.topics.copyAt(queueSlot, offset); ok {
				if at.Position >= s.end {
					return true
				}
				m.entry, m.copied = at, true
			} else if offset < begin {
				return true // it was dropped, and nothing is left of it
			}
			return live(m)
		})
	}
	return true
}

// mustCopy notes a message, which several groups may have unsettled. It is false when there are too many.
func (s *outgoing) mustCopy(m liveMessage) bool {
	if !s.known[m.liveName] && len(s.live) <= maxCopies {
		s.known[m.liveName] = true
		s.live = append(s.live, m)
	}
	return len(s.live) <= maxCopies
}

// addCopies gathers the messages whose copies lie in the segment and that are still unsettled. Section only.
func (s *outgoing) addCopies() {
	s.e.fold.topics.copiesBelow(s.end, func(m *liveMessage) bool { return !s.e.wanted(m) || s.mustCopy(*m) })
}

// missesCopy tells whether a group needs a copy in the segment that was not copied again: one that was idle, and came back since. Section
// only.
func (s *outgoing) missesCopy() (missed bool) {
	s.e.fold.topics.copiesBelow(s.end, func(m *liveMessage) bool {
		missed = !s.damaged[m.liveName] && s.e.wanted(m)
		return !missed
	})
	return missed
}

// wanted tells whether a group that holds data has a message unsettled. Section only.
func (e *Engine) wanted(m *liveMessage) bool {
	for _, slot := range e.fold.leases.SubsOf(m.topic) {
		if e.holds(e.fold.leases.At(slot).Group) && e.fold.leases.IsUnsettled(slot, m.queue, m.offset) {
			return true
		}
	}
	return false
}
