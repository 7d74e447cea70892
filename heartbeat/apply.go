package heartbeat

import (
	"encoding/binary"
	"fmt"
	"sort"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/leasemq/leasemq/codec"
)

// Group applies a GROUP record. It is false when the record does not fit the state.
func (r *Registry) Group(rec *codec.Group, wallMs int64) bool {
	slot, known := r.groupIDs[rec.ID]
	switch rec.Op {
	case codec.OpCreate:
		if _, taken := r.groupNames[string(rec.Name)]; taken || rec.ID != r.nextGroup {
			r.violate("group %d %q made again", rec.ID, rec.Name)
			return false
		}
		r.nextGroup++
		slot = r.groups.Alloc()
		*r.groups.Mut(slot) = group{id: rec.ID, rules: rec.Rules, idleMs: wallMs, name: newText(rec.Name)}
		r.linkGroup(slot)
	case codec.OpUpdate:
		if !known {
			r.violate("update of group %d", rec.ID)
			return false
		}
		r.groups.Mut(slot).rules = rec.Rules
	case codec.OpDelete:
		if !known || r.groups.At(slot).live != 0 {
			r.violate("deletion of group %d", rec.ID)
			return false
		}
		r.forgetEndedOf(slot)
		delete(r.groupNames, r.groups.At(slot).name.String())
		delete(r.groupIDs, rec.ID)
		delete(r.versions, rec.ID)
		r.groups.Free(slot)
	default:
		r.violate("group operation %d", rec.Op)
		return false
	}
	return true
}

// linkGroup makes the derived parts of a group.
func (r *Registry) linkGroup(slot uint32) {
	g := r.groups.At(slot)
	r.groupNames[g.name.String()] = slot
	r.groupIDs[g.id] = slot
	r.versions[g.id] = new(atomic.Uint64)
	r.versions[g.id].Store(g.version)
}

func (r *Registry) bumpVersion(slot uint32) {
	g := r.groups.Mut(slot)
	g.version++
	r.versions[g.id].Store(g.version)
}

// StartSession applies a SESSION_START record.
func (r *Registry) StartSession(rec *codec.SessionStart, stampMs int64) {
	slot, known := r.groupIDs[rec.Group]
	key := consumerKey{rec.Group, string(rec.ConsumerID)}
	if _, alive := r.consumers[key]; !known || alive || rec.Session <= r.lastID {
		r.violate("session %d of group %d, consumer %q", rec.Session, rec.Group, rec.ConsumerID)
		return
	}
	r.lastID = rec.Session
	i := r.sessions.Alloc()
	*r.sessions.Mut(i) = session{
		id: rec.Session, group: slot, nonce: rec.Nonce,
		heartbeatMs: r.groups.At(slot).rules.HeartbeatMs, timeoutMs: r.groups.At(slot).rules.SessionTimeoutMs,
		consumer: newText(rec.ConsumerID), info: newText(rec.ClientInfo),
	}
	g := r.groups.Mut(slot)
	g.live++
	g.idleMs = 0
	r.bumpVersion(slot)
	r.link(i, stampMs)
}

// link makes the derived parts of a live session.
func (r *Registry) link(i uint32, seenMs int64) {
	s := r.sessions.At(i)
	group := r.groups.At(s.group).id
	r.slots[s.id] = i
	r.consumers[consumerKey{group, s.consumer.String()}] = i
	l := &Live{ID: s.id, Group: group, Slot: i, version: r.versions[group]}
	l.word.Store(seenMs)
	r.live.Store(s.id, l)
	r.watch(l, seenMs)
}

// EndSession applies a SESSION_END record to the session itself; its leases are the lease table's.
func (r *Registry) EndSession(rec *codec.SessionEnd, stampMs, wallMs int64) (slot uint32, ok bool) {
	i, known := r.slots[rec.Session]
	if !known || r.sessions.At(i).ended {
		r.violate("end of session %d", rec.Session)
		return 0, false
	}
	s := r.sessions.Mut(i)
	s.ended, s.cause, s.endedMs = true, rec.Cause, stampMs
	g := r.groups.Mut(s.group)
	if g.live--; g.live == 0 {
		g.idleMs = wallMs
	}
	delete(r.consumers, consumerKey{g.id, s.consumer.String()})
	r.bumpVersion(s.group)
	if l, ok := r.Live(rec.Session); ok {
		l.close()
		r.live.Delete(rec.Session)
	}
	r.wheel.Cancel(i)
	r.rememberEnded(i)
	return i, true
}

func (r *Registry) rememberEnded(i uint32) {
	if r.endedTail != 0 {
		r.sessions.Mut(r.endedTail).next = i
	} else {
		r.endedHead = i
	}
	r.endedTail = i
	if r.endedCount++; r.endedCount <= endedMemory {
		return
	}
	oldest := r.endedHead
	r.endedHead = r.sessions.At(oldest).next
	r.endedCount--
	r.forget(oldest)
}

func (r *Registry) forget(i uint32) {
	delete(r.slots, r.sessions.At(i).id)
	r.sessions.Free(i)
}

// forgetEndedOf takes the ended sessions of a group that goes out of the memory.
func (r *Registry) forgetEndedOf(groupSlot uint32) {
	i := r.endedHead
	r.endedHead, r.endedTail, r.endedCount = 0, 0, 0
	for i != 0 {
		next := r.sessions.At(i).next
		r.sessions.Mut(i).next = 0
		if r.sessions.At(i).group == groupSlot {
			r.forget(i)
		} else {
			r.rememberEnded(i)
		}
		i = next
	}
}

// Hash is the same for equal states. Signs of life are not part of it. It walks everything.
func (r *Registry) Hash() uint64 {
	h := xxhash.New()
	put := func(vs ...uint64) {
		var b [8]byte
		for _, v := range vs {
			binary.LittleEndian.PutUint64(b[:], v)
			_, _ = h.Write(b[:]) // never fails
		}
	}
	put(uint64(r.nextGroup), r.lastID, uint64(r.endedCount))
	for _, id := range r.Groups() {
		g := r.groups.At(r.groupIDs[id])
		put(uint64(g.id), uint64(g.live), g.version, uint64(g.idleMs))
		var b []byte
		rec := codec.Group{ID: g.id, Rules: g.rules, Name: g.name.b[:g.name.n]}
		b = rec.Append(b)
		_, _ = h.Write(b)
	}
	ids := make([]uint64, 0, len(r.slots))
	for id := range r.slots {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	for _, id := range ids {
		i := r.slots[id]
		s := r.sessions.At(i)
		ended := uint64(0)
		if s.ended {
			ended = 1
		}
		put(s.id, uint64(r.groups.At(s.group).id), uint64(s.heartbeatMs)<<32|uint64(s.timeoutMs), ended, uint64(s.cause), uint64(s.endedMs))
		_, _ = h.Write(s.nonce[:])
		for _, text := range [...]*text{&s.consumer, &s.info} {
			put(uint64(text.n)) // so that no two pairs look the same in a row
			_, _ = h.Write(text.b[:text.n])
		}
	}
	for i := r.endedHead; i != 0; i = r.sessions.At(i).next {
		put(r.sessions.At(i).id)
	}
	return h.Sum64()
}

// Audit recomputes counters and links and returns the first thing that does not hold.
func (r *Registry) Audit() error {
	live := map[uint32]uint32{}
	ended := uint32(0)
	for id, i := range r.slots {
		s := r.sessions.At(i)
		if s.id != id {
			return fmt.Errorf("session %d lies under id %d", s.id, id)
		}
		if s.ended {
			ended++
			continue
		}
		live[s.group]++
		if c, ok := r.consumers[consumerKey{r.groups.At(s.group).id, s.consumer.String()}]; !ok || c != i {
			return fmt.Errorf("session %d is not the one of its consumer", id)
		}
		if _, ok := r.Live(id); !ok {
			return fmt.Errorf("session %d lives and has no word", id)
		}
		if _, ok := r.wheel.Scheduled(i); !ok {
			return fmt.Errorf("session %d lives and has no timer", id)
		}
	}
	for id, slot := range r.groupIDs {
		if g := r.groups.At(slot); g.live != live[slot] {
			return fmt.Errorf("group %d counts %d sessions, has %d", id, g.live, live[slot])
		}
	}
	if ended != r.endedCount || len(r.slots) != r.sessions.Len() {
		return fmt.Errorf("%d ended sessions are kept, %d counted; %d sessions are named, %d in memory",
			ended, r.endedCount, len(r.slots), r.sessions.Len())
	}
	return r.auditEnded()
}

// auditEnded walks the memory of ended sessions, and counts the words of the live ones.
func (r *Registry) auditEnded() error {
	n, last := uint32(0), uint32(0)
	for i := r.endedHead; i != 0 && n <= r.endedCount; i = r.sessions.At(i).next {
		if s := r.sessions.At(i); !s.ended || (last != 0 && s.endedMs < r.sessions.At(last).endedMs) {
			return fmt.Errorf("session %d is out of place among the ended ones", s.id)
		}
		if _, timed := r.wheel.Scheduled(i); timed {
			return fmt.Errorf("session %d has ended and has a timer", r.sessions.At(i).id)
		}
		n, last = n+1, i
	}
	if n != r.endedCount || last != r.endedTail {
		return fmt.Errorf("%d ended sessions are listed, %d counted; the last is %d, not %d", n, r.endedCount, last, r.endedTail)
	}
	words := 0
	r.live.Range(func(any, any) bool { words++; return true })
	if words != len(r.consumers) || words+int(r.endedCount) != len(r.slots) {
		return fmt.Errorf("%d words, %d consumers, %d sessions, %d of them ended", words, len(r.consumers), len(r.slots), r.endedCount)
	}
	return nil
}
