package broker

import (
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/dedup"
	"github.com/leasemq/leasemq/heartbeat"
	"github.com/leasemq/leasemq/lease"
)

// fold is everything that the log says: the state of the broker as a function of its records. The running
// broker, recovery and the shadow of the tests drive the same methods. A record is applied when it is
// appended, in log order; what does not fit the state does nothing, is counted, and is fatal in tests.
//
// Not part of the fold, because it can be had from it or is nobody's loss: queue index files, timers,
// parked requests, signs of life of sessions.
type fold struct {
	topics   *topics
	sessions *heartbeat.Registry
	leases   *lease.Table
	stored   *dedup.Table // sends

	leaseMs int64 // stamp of the newest record
	wallMs  int64
	epoch   uint32

	violations  uint64
	onViolation func(string)
}

func newFold(onViolation func(string)) *fold {
	f := &fold{sessions: heartbeat.New(), leases: lease.New(), stored: dedup.New(dedup.Limits{}), onViolation: onViolation}
	f.topics = newTopics(f.violate)
	f.sessions.OnViolation = onViolation
	f.leases.OnViolation = onViolation
	f.stored.OnViolation = onViolation
	return f
}

func (f *fold) violate(format string, args ...any) {
	f.violations++
	if f.onViolation != nil {
		f.onViolation(fmt.Sprintf(format, args...))
	}
}

func (f *fold) totalViolations() uint64 {
	return f.violations + f.sessions.Violations() + f.leases.Violations() + f.stored.Violations()
}

// stamp notes the clocks of a record, which never fall.
func (f *fold) stamp(h *codec.Header) {
	f.leaseMs = max(f.leaseMs, h.LeaseMs)
	f.wallMs = max(f.wallMs, h.WallMs)
}

// apply decodes a record and applies it. The error means that the record cannot be read, which its
// checksum should have told before.
func (f *fold) apply(h *codec.Header, assigned, payload []byte) error {
	f.stamp(h)
	switch h.Type {
	case codec.TypeEpoch:
		f.startEpoch(h)
	case codec.TypeMessage:
		p := codec.ParseMessagePlace(assigned)
		f.message(h, &p, payload)
	case codec.TypeCopy:
		p := codec.ParseMessagePlace(assigned)
		f.topics.copied(&p, indexEntry(h, &p, payload))
	case codec.TypeClock:
		f.stored.Age(h.WallMs)
	case codec.TypeSegmentEnd, codec.TypeCleanStop:
	default:
		return f.applyState(h, payload)
	}
	return nil
}

func (f *fold) applyState(h *codec.Header, payload []byte) (err error) {
	switch h.Type {
	case codec.TypeTopic:
		var r codec.Topic
		if err = r.Decode(payload); err == nil {
			f.topic(&r)
		}
	case codec.TypeGroup:
		var r codec.Group
		if err = r.Decode(payload); err == nil {
			f.group(h, &r)
		}
	case codec.TypeRetain:
		var r codec.Retain
		if err = r.Decode(payload); err == nil {
			f.retain(h, &r)
		}
	case codec.TypeSubscribe:
		var r codec.Subscribe
		if err = r.Decode(payload); err == nil {
			f.leases.Subscribe(&r)
		}
	case codec.TypeGrant:
		var r codec.Grant
		if err = r.Decode(payload); err == nil {
			f.grant(h, &r)
		}
	case codec.TypeSettle:
		var r codec.Settle
		if err = r.Decode(payload); err == nil {
			f.leases.Settle(&r, h.LeaseMs)
		}
	case codec.TypeChange:
		var r codec.Change
		if err = r.Decode(payload); err == nil {
			f.change(h, &r)
		}
	case codec.TypeExpire:
		var r codec.Expire
		if err = r.Decode(payload); err == nil {
			f.leases.Expire(&r, h.LeaseMs)
		}
	case codec.TypeUnreadable:
		var r codec.Unreadable
		if err = r.Decode(payload); err == nil {
			f.leases.Unreadable(&r)
		}
	case codec.TypeSessionStart:
		var r codec.SessionStart
		if err = r.Decode(payload); err == nil {
			f.sessions.StartSession(&r, h.LeaseMs)
		}
	case codec.TypeSessionEnd:
		var r codec.SessionEnd
		if err = r.Decode(payload); err == nil {
			f.endSession(h, &r)
		}
	default:
		err = fmt.Errorf("record type %d is unknown", h.Type)
	}
	if err != nil {
		return fmt.Errorf("record of type %d at %d: %w", h.Type, h.Position, err)
	}
	return nil
}

// message applies a MESSAGE record. It is false when the topic was deleted later.
func (f *fold) message(h *codec.Header, p *codec.MessagePlace, payload []byte) bool {
	slot, ok := f.topics.message(p)
	if !ok {
		return false
	}
	producer, sequence, key := codec.Deduplicating(payload)
	s := sending{producer: producer, sequence: sequence, keyed: len(key) > 0}
	if s.keyed {
		s.key = dedup.Hash(key)
	}
	f.sent(slot, &s, dedup.Place{Queue: p.Queue, Offset: p.Offset, ID: p.ID}, h.WallMs)
	return true
}

// sending is what a message says of itself so that its repetition is found out.
type sending struct {
	producer, sequence uint64
	key                dedup.KeyHash
	keyed              bool
}

// sent notes where a message was stored.
func (f *fold) sent(topicSlot uint32, s *sending, at dedup.Place, wallMs int64) {
	if s.producer != 0 {
		f.stored.ApplySequence(s.producer, s.sequence, at, wallMs)
	}
	if s.keyed {
		x := f.topics.slab.At(topicSlot)
		f.stored.ApplyKey(x.id, s.key, at, int64(x.uniqueKeyMs), wallMs)
	}
	if s.producer == 0 && !s.keyed {
		f.stored.Age(wallMs)
	}
}

func (f *fold) startEpoch(h *codec.Header) {
	f.epoch = h.Epoch
	f.leases.StartEpoch(h.Epoch, h.Position)
}

func (f *fold) topic(r *codec.Topic) {
	slot, ok := f.topics.apply(r)
	if !ok {
		return
	}
	switch r.Op {
	case codec.OpUpdate:
		f.leases.GrowTopic(r.ID, int(r.Queues))
	case codec.OpPurge:
		f.stored.DropTopic(r.ID)
		f.leases.Renew(r.ID, f.topics.ends(slot))
	case codec.OpDelete:
		f.stored.DropTopic(r.ID)
		f.leases.Drop(0, r.ID)
	}
}

func (f *fold) group(h *codec.Header, r *codec.Group) {
	if f.sessions.Group(r, h.WallMs) && r.Op == codec.OpDelete {
		f.leases.Drop(r.ID, 0)
	}
}

// retain lets go of old messages. What a group had not settled of them, and no copy keeps, is dropped.
func (f *fold) retain(h *codec.Header, r *codec.Retain) {
	f.topics.startAt(r.LogStart, func(topic uint32, q uint16, offset uint64) {
		if slot, ok := f.topics.queueSlot(topic, q); ok && offset < f.topics.queues.At(slot).begin {
			f.leases.DropMessage(topic, q, offset, h.LeaseMs)
		}
	})
	for i := range r.Queues {
		x := &r.Queues[i]
		if q, ok := f.topics.retain(x); ok {
			f.leases.Retain(x.Topic, x.Queue, x.Begin, h.LeaseMs, func(offset uint64) bool {
				_, kept := f.topics.copyAt(q, offset)
				return kept
			})
		}
	}
}

func (f *fold) grant(h *codec.Header, r *codec.Grant) {
	s, ok := f.sessions.Session(r.Session)
	if !ok || s.Ended {
		f.violate("grant to session %d, which does not live", r.Session)
		return
	}
	f.leases.Grant(r, h.Epoch, h.LeaseMs, s.Slot)
}

func (f *fold) change(h *codec.Header, r *codec.Change) {
	s, ok := f.sessions.Session(r.Session)
	if !ok || s.Ended {
		f.violate("change by session %d, which does not live", r.Session)
		return
	}
	f.leases.Change(r, h.LeaseMs, s.Slot)
}

// endSession ends a session and releases its leases, in one record: nothing can come between.
func (f *fold) endSession(h *codec.Header, r *codec.SessionEnd) (slot uint32, ok bool) {
	slot, ok = f.sessions.EndSession(r, h.LeaseMs, h.WallMs)
	if ok {
		f.leases.EndSession(r.Releases, h.LeaseMs, slot, r.Cause != codec.EndLeft)
	}
	return slot, ok
}

// sessionID is the id of the session in a slot.
func (f *fold) sessionID(slot uint32) uint64 { return f.sessions.SessionAt(slot).ID }

// stateHash is a hash of each part of the fold.
type stateHash [4]uint64

// hash is the same for equal states. It walks everything.
func (f *fold) hash() stateHash {
	return stateHash{f.topics.hash(), f.sessions.Hash(), f.leases.Hash(f.sessionID), f.stored.Hash()}
}

// audit recomputes what the state counts and links.
func (f *fold) audit() error {
	if err := f.topics.audit(); err != nil {
		return fmt.Errorf("topics: %w", err)
	}
	if err := f.sessions.Audit(); err != nil {
		return fmt.Errorf("sessions: %w", err)
	}
	if err := f.leases.Audit(); err != nil {
		return fmt.Errorf("leases: %w", err)
	}
	if err := f.stored.Audit(); err != nil {
		return fmt.Errorf("stored sends: %w", err)
	}
	if err := f.auditBegins(); err != nil {
		return err
	}
	var held, leased uint64
	for _, id := range f.sessions.LiveOf(0) {
		s, _ := f.sessions.Session(id)
		held += uint64(f.leases.Held(s.Slot))
	}
	for _, slot := range f.leases.Subs() {
		leased += f.leases.At(slot).Leased
	}
	if held != leased {
		return fmt.Errorf("%d leases, live sessions hold %d", leased, held)
	}
	return nil
}

// auditBegins looks whether everything unsettled is still there: at or behind the beginning of its queue, or copied.
func (f *fold) auditBegins() error {
	for _, slot := range f.leases.Subs() {
		sub := f.leases.At(slot)
		for i, q := range f.topics.queueOf[f.topics.ids[sub.Topic]] {
			begin := f.topics.queues.At(q).begin
			if next := f.leases.Position(slot, uint16(i)).Next; next < begin {
				return fmt.Errorf("subscription %d queue %d is at %d, the queue begins at %d", sub.ID, i, next, begin)
			}
			var err error
			f.leases.UnsettledBelow(slot, uint16(i), begin, func(offset uint64) bool {
				if _, ok := f.topics.copyAt(q, offset); !ok {
					err = fmt.Errorf("subscription %d queue %d: offset %d is unsettled and gone, the queue begins at %d", sub.ID, i, offset, begin)
				}
				return err == nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
