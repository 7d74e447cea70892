package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/protocol"
)

// Retention. The oldest segment of the log goes when nothing in it is needed any more:
//
//   - the kept snapshots stand for its records (Engine.pinned);
//   - its messages are older than Retention.Age, or the log is longer than Retention.Bytes; or none of them can be read
//     any more, because their topics were deleted or emptied;
//   - every group that holds data has settled them. A few that are unsettled do not keep a whole segment: they are
//     copied to the end of the log, as they are (COPY records), and keep their place, their id and their state.
//
// A group holds data while it has a session, and for Rules.HoldMs after its last one. Above Retention.HardBytes the oldest
// segment goes whoever needs it; what is dropped is counted and logged.
//
// RETAIN records say from where on each queue has its messages, slice by slice, each checked again in the hold of the
// section that appends it: a group that begins to read meanwhile begins behind it, or is seen. When they are
// durable the file is unlinked. A crash in between leaves a file that the next pass removes.

// Retention says how long the log is kept. The zero value: 72 h, whatever size that comes to.
type Retention struct {
	Age       time.Duration // older messages go when every group has settled them; 0: 72 h, negative: never by age
	Bytes     int64         // above this much log the oldest go earlier; 0: no limit
	HardBytes int64         // above this much the oldest go though a group needs them; 0: never
}

const defaultRetentionAge = 72 * time.Hour

func (r Retention) withDefaults() Retention {
	if r.Age == 0 {
		r.Age = defaultRetentionAge
	}
	return r
}

const (
	// copyShare: the unsettled messages of a segment are copied forward if they come to at most this part of it.
	copyShare = 8
	// maxCopies is how many are copied forward from one segment at most.
	maxCopies = 16 << 10
	// retainSlice is how many queues one hold of the section lets go of.
	retainSlice = 200
	// reviewEveryMs is how often a segment that could not go is looked at again, and how often idle groups are.
	reviewEveryMs = 10_000
)

// retention is the state of the loop that removes segments. The steward's pass owns it.
type retention struct {
	examined uint64 // the oldest segment when it was last looked at in vain
	againMs  int64  // when it is looked at again
	logged   string // why it could not go, as it was logged last
	idleMs   int64  // when idle groups are looked at again
	warned   map[uint32]int64
}

// retain removes what may go. It ends when the oldest segment may not.
func (e *Engine) retain(run uint64) error {
	r := &e.retention
	nowMs := e.lease.now()
	if nowMs >= r.idleMs {
		r.idleMs = nowMs + reviewEveryMs
		e.warnIdle()
	}
	if e.log.First() == r.examined && nowMs < r.againMs && !e.vacated.Load() {
		return nil
	}
	vacated := e.vacated.Swap(false)
	for e.steward.run.Load() == run && e.ctx.Err() == nil {
		s := outgoing{e: e, run: run, first: e.log.First()}
		s.look = vacated || s.first != r.examined
		gone, err := s.retire()
		if err != nil {
			return err
		}
		if !gone {
			r.examined, r.againMs = s.first, nowMs+reviewEveryMs
			if s.busy {
				r.againMs = nowMs + stewardEveryMs
			}
			if s.held != "" && s.held != r.logged {
				e.logger.Warn("old log is kept because it is needed", "position", s.first, "by", s.held)
			}
			r.logged = s.held
			return nil
		}
	}
	return nil
}

// outgoing is the oldest segment, on its way out.
type outgoing struct {
	e          *Engine
	run        uint64
	first, end uint64
	look       bool // look whether anything in it can be read, even if it is young
	force      bool // the log is over its hard limit
	begins     []codec.QueueBegin
	live       []liveMessage // what must be copied
	known      map[liveName]bool
	damaged    map[liveName]bool // what cannot be copied
	held       string            // who needs it
	busy       bool              // there was no room in the ring: try again soon
	dropped    uint64
}

// liveMessage is an unsettled message of the segment.
type liveMessage struct {
	liveName
	entry consumequeue.Entry
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
	if !e.covered(s.end) {
		return false, nil
	}
	if s.end > e.logStart() { // else it was let go before, and its file is still there
		why, err := s.expired()
		if err != nil || why == "" && !s.look {
			return false, err
		}
		if err := s.findBegins(); err != nil {
			return false, err
		}
		if why == "" && len(s.begins) > 0 {
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
func (s *outgoing) expired() (why string, err error) {
	e, r := s.e, &s.e.o.Retention
	stats := e.log.Stats()
	bytes := int64(stats.Segments) * e.log.Recovery().SegmentBytes
	if r.HardBytes > 0 && bytes > r.HardBytes {
		s.force = true
		return "the log is over its hard limit", nil
	}
	if r.Bytes > 0 && bytes > r.Bytes {
		return "the log is over its size", nil
	}
	if r.Age < 0 {
		return "", nil
	}
	// The newest record of the segment is as old as the first of the next, or older.
	h, err := e.log.ReadHeader(s.end + firstPosition)
	if err != nil {
		return "", err
	}
	if e.wallMs(e.clock.Mono())-h.WallMs > r.Age.Milliseconds() {
		return "age", nil
	}
	return "", nil
}

// findBegins finds the queues that have messages in the segment, and where they begin behind it.
func (s *outgoing) findBegins() error {
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
		if _, gone := errors.AsType[*consumequeue.RemovedError](err); gone {
			continue // the topic was deleted or emptied meanwhile
		}
		if err != nil {
			return err
		}
		if begin > q.Begin {
			q.Begin = begin
			s.begins = append(s.begins, q)
		}
	}
	return nil
}

// inSlices calls do with slices of the queues, each in a hold of the section, until it returns false.
func (s *outgoing) inSlices(do func(queues []codec.QueueBegin, last bool) bool) bool {
	e := s.e
	for rest := s.begins; ; {
		n := min(len(rest), retainSlice)
		ok := func() bool {
			e.enter()
			defer e.leave()
			if e.failed.Load() || e.steward.run.Load() != s.run {
				return false
			}
			defer e.settleDown(nil)
			return do(rest[:n], n == len(rest))
		}()
		if rest = rest[n:]; !ok || len(rest) == 0 {
			return ok
		}
	}
}

// check looks who needs the segment. It gathers the unsettled messages that would have to be copied.
func (s *outgoing) check() bool {
	ok := s.inSlices(func(queues []codec.QueueBegin, last bool) bool {
		for i := range queues {
			if !s.checkQueue(&queues[i], s.addLive) {
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
// what is unsettled there and not copied yet. Section only.
func (s *outgoing) checkQueue(q *codec.QueueBegin, live func(q *codec.QueueBegin, offset uint64)) bool {
	e := s.e
	queueSlot, ok := e.fold.topics.queueSlot(q.Topic, q.Queue)
	if !ok {
		return true
	}
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
			if at, ok := e.fold.topics.copyAt(queueSlot, offset); !ok || at.Position < s.end {
				live(q, offset)
			}
			return true
		})
	}
	return true
}

// holds tells whether a group holds data: it has a session, or had one not too long ago.
func (e *Engine) holds(group uint32) bool {
	g, ok := e.fold.sessions.GroupByID(group)
	return ok && (g.Live > 0 || g.Rules.HoldMs == protocol.HoldForever ||
		e.wallMs(e.clock.Mono())-g.IdleMs < int64(g.Rules.HoldMs))
}

func (s *outgoing) addLive(q *codec.QueueBegin, offset uint64) {
	s.mustCopy(liveMessage{liveName: liveName{q.Topic, q.Queue, offset}})
}

// mustCopy notes a message, which several groups may have unsettled.
func (s *outgoing) mustCopy(m liveMessage) {
	if s.known == nil {
		s.known, s.damaged = map[liveName]bool{}, map[liveName]bool{}
	}
	if !s.known[m.liveName] && len(s.live) <= maxCopies {
		s.known[m.liveName] = true
		s.live = append(s.live, m)
	}
}

// addCopies gathers the messages whose copies lie in the segment and that are still unsettled. Section only.
func (s *outgoing) addCopies() {
	t := s.e.fold.topics
	for i := uint32(1); i < t.copies.End(); i++ {
		if !t.copies.Used(i) || t.copies.At(i).entry.Position >= s.end {
			continue
		}
		x := t.copies.At(i)
		q := t.queues.At(x.queue)
		if m := (liveMessage{liveName{t.slab.At(q.topic).id, q.index, x.offset}, x.entry}); s.e.wanted(&m) {
			s.mustCopy(m)
		}
	}
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

// copyLive copies the unsettled messages forward. It is false when that cannot be done, or not now.
func (s *outgoing) copyLive() (bool, error) {
	e := s.e
	total := int64(0)
	for i := range s.live {
		m := &s.live[i]
		if m.entry.Written() {
			total += int64(m.entry.Size)
			continue
		}
		var entry [1]consumequeue.Entry
		if n, err := e.index.Read(m.topic, m.queue, m.offset, entry[:]); err != nil || n == 0 || !e.sound(entry[0]) {
			return false, fmt.Errorf("broker: topic %d queue %d offset %d cannot be found to be copied (%d, %w)", m.topic, m.queue, m.offset, n, err)
		}
		m.entry = entry[0]
		total += int64(m.entry.Size)
	}
	if most := e.log.Recovery().SegmentBytes / copyShare; total > most {
		if !s.force {
			s.held = fmt.Sprintf("%d unsettled messages of %d bytes", len(s.live), total)
			return false, nil
		}
		s.live = nil
	}
	for i := range s.live {
		ok, err := s.copyOne(&s.live[i])
		if err != nil {
			return false, err
		}
		if !ok {
			s.busy = true
			return false, nil
		}
	}
	return true, nil
}

// copyOne copies one message to the end of the log, unless it is settled by now. It is false when there is no room.
func (s *outgoing) copyOne(m *liveMessage) (bool, error) {
	e := s.e
	raw := make([]byte, m.entry.Size)
	if err := e.log.ReadAt(raw, m.entry.Position); err != nil {
		return false, err
	}
	h, assigned, payload, err := codec.ReadRecord(raw)
	place := codec.MessagePlace{}
	if err == nil {
		place = codec.ParseMessagePlace(assigned)
	}
	if err != nil || h.Position != m.entry.Position || place.Topic != m.topic || place.Queue != m.queue || place.Offset != m.offset {
		// Nobody can be given it. It goes with its segment, and counts as dropped.
		s.damaged[m.liveName] = true
		e.logger.Error("an unsettled message is damaged and cannot be kept", "topic", m.topic, "queue", m.queue,
			"offset", m.offset, "position", m.entry.Position, "error", err)
		return true, nil
	}
	crc := codec.Checksum(0, payload)
	e.enter()
	defer e.leave()
	if e.failed.Load() || e.steward.run.Load() != s.run {
		return false, nil
	}
	if !e.wanted(m) {
		return true, nil
	}
	if !e.claim(len(raw) + worstSmall) {
		return false, nil
	}
	defer e.release(len(raw) + worstSmall)
	e.appendCopy(&place, payload, crc, m.entry)
	e.stats.copied.Add(1)
	return true, nil
}

// appendCopy appends and applies the copy of a message.
func (e *Engine) appendCopy(place *codec.MessagePlace, payload []byte, crc uint32, entry consumequeue.Entry) {
	h := e.header(codec.TypeCopy)
	place.Put(e.scratch.assigned[:])
	entry.Position = e.log.Append(&h, e.scratch.assigned[:], payload, crc)
	e.fold.stamp(&h)
	e.fold.topics.copied(place, entry)
	e.follow(&h, e.scratch.assigned[:], payload)
}

// letGo appends the RETAIN records, after a last look at who needs what. It is false when somebody does.
func (s *outgoing) letGo() bool {
	e := s.e
	return s.inSlices(func(queues []codec.QueueBegin, last bool) bool {
		for i := range queues {
			late := false
			ok := s.checkQueue(&queues[i], func(q *codec.QueueBegin, offset uint64) {
				late = late || !s.damaged[liveName{q.Topic, q.Queue, offset}]
			})
			if !ok || late && !s.force {
				return false
			}
		}
		if !e.claim(worstSmall) {
			s.busy = true
			return false
		}
		defer e.release(worstSmall)
		rec := codec.Retain{}
		for _, q := range queues {
			if slot, ok := e.fold.topics.queueSlot(q.Topic, q.Queue); ok && q.Begin > e.fold.topics.queues.At(slot).begin {
				rec.Queues = append(rec.Queues, q)
			}
		}
		if last {
			rec.LogStart = s.end
		}
		e.appendRetain(&rec, &s.dropped)
		return true
	})
}

// appendRetain appends and applies a RETAIN record, and adds to dropped how many messages groups lose by it.
func (e *Engine) appendRetain(rec *codec.Retain, dropped *uint64) {
	before := e.droppedOf(rec)
	h := e.appendRecord(codec.TypeRetain, rec.Append(e.scratch.payload))
	e.fold.retain(&h, rec)
	lost := e.droppedOf(rec) - before
	*dropped += lost
	e.stats.dropped.Add(lost)
	for _, q := range rec.Queues {
		slot, ok := e.fold.topics.queueSlot(q.Topic, q.Queue)
		if !ok {
			continue
		}
		e.queueRun[slot].index.SetBegin(q.Begin)
		for _, sub := range e.fold.leases.SubsOf(q.Topic) {
			e.markActive(sub, q.Queue)
		}
	}
	if lost > 0 {
		e.later(func() {
			e.logger.Warn("messages were dropped that a group had not settled", "messages", lost, "log start", rec.LogStart)
		})
	}
}

// droppedOf is how many messages the groups of some queues have lost to retention.
func (e *Engine) droppedOf(rec *codec.Retain) (n uint64) {
	for _, q := range rec.Queues {
		for _, slot := range e.fold.leases.SubsOf(q.Topic) {
			if int(q.Queue) < e.fold.leases.Queues(slot) {
				n += e.fold.leases.Position(slot, q.Queue).Dropped
			}
		}
	}
	return n
}

// warnIdle warns of groups that will soon stop holding data.
func (e *Engine) warnIdle() {
	r := &e.retention
	type idle struct {
		name string
		left time.Duration
	}
	var list []idle
	func() {
		e.enter()
		defer e.leave()
		wall := e.wallMs(e.clock.Mono())
		reads := map[uint32]bool{}
		for _, slot := range e.fold.leases.Subs() {
			reads[e.fold.leases.At(slot).Group] = true
		}
		warned := map[uint32]int64{}
		for id := range reads {
			g, ok := e.fold.sessions.GroupByID(id)
			if !ok || g.Live > 0 || g.Rules.HoldMs == protocol.HoldForever {
				continue
			}
			hold := int64(g.Rules.HoldMs)
			left := g.IdleMs + hold - wall
			if left > hold/7 {
				continue
			}
			warned[id] = g.IdleMs
			if r.warned[id] != g.IdleMs {
				list = append(list, idle{e.fold.sessions.GroupName(id), time.Duration(left) * time.Millisecond})
			}
		}
		r.warned = warned
	}()
	for _, g := range list {
		if g.left <= 0 {
			e.logger.Warn("a group has had no session for so long that it no longer holds data", "group", g.name)
			continue
		}
		e.logger.Warn("a group has had no session for long and will soon stop holding data: what it has not settled may then go",
			"group", g.name, "in", g.left.Round(time.Second))
	}
}
