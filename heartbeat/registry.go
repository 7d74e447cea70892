// Package heartbeat knows consumer groups and their sessions.
//
// A session is one generation of one consumer id in one group. Groups and sessions are a fold over the
// log: they change by GROUP, SESSION_START and SESSION_END records only (apply.go). The one thing that
// is not recorded is when a session last gave a sign of life (Live): that is refreshed without a lock
// by every call that names the session, and judged by a timer that only proposes the end.
//
// Invariants:
//
//  1. A consumer id of a group has at most one live session, its newest.
//  2. Session ids grow; they are never reused. An id is epoch << 32 | counter.
//  3. A group's version grows with every session that comes or goes.
//  4. Live and not ended is the same set, except between Live.Expire and the SESSION_END record that the
//     same hold of the section appends.
//
// The registry belongs to the broker's sequencing section; its method Live is safe anywhere.
package heartbeat

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/slab"
	"github.com/leasemq/leasemq/timingwheel"
)

// endedMemory is how many ended sessions are remembered, so that a caller that names one learns why it
// ended instead of that it is unknown.
const endedMemory = 16 << 10

// text is a short string inside a value without pointers.
type text struct {
	n uint8
	b [255]byte
}

func newText[T string | []byte](s T) (t text) {
	t.n = uint8(copy(t.b[:], s))
	return t
}

func (t *text) String() string { return string(t.b[:t.n]) }

type group struct {
	id      uint32
	live    uint32 // sessions
	rules   codec.Rules
	version uint64
	idleMs  int64 // wall clock at which its last session ended, or it was made; means nothing while it has one
	name    text
}

type session struct {
	id      uint64
	group   uint32 // slot
	ended   bool
	cause   codec.EndCause
	endedMs int64
	next    uint32 // ended sessions, oldest first
	nonce   [16]byte
	// The timings that REGISTER told it. A change of the group's rules is for sessions that start later.
	heartbeatMs, timeoutMs uint32
	consumer               text
	info                   text
}

// Registry holds groups and sessions.
type Registry struct {
	groups    *slab.Slab[group]
	sessions  *slab.Slab[session]
	nextGroup uint32
	lastID    uint64
	// Ended sessions, oldest first.
	endedHead, endedTail, endedCount uint32

	// Derived.
	wheel      *timingwheel.Wheel
	groupNames map[string]uint32
	groupIDs   map[uint32]uint32
	versions   map[uint32]*atomic.Uint64 // by group id
	slots      map[uint64]uint32         // session id to slot, ended ones included
	consumers  map[consumerKey]uint32    // newest session of a consumer, while it lives
	live       sync.Map                  // session id to *Live

	// OnViolation is told of a record whose precondition did not hold; the record then does nothing.
	OnViolation func(what string)
	violations  uint64
}

type consumerKey struct {
	group    uint32
	consumer string
}

// New makes an empty registry.
func New() *Registry {
	return &Registry{
		groups:     slab.New[group](),
		sessions:   slab.New[session](),
		nextGroup:  1,
		wheel:      timingwheel.New(0),
		groupNames: map[string]uint32{},
		groupIDs:   map[uint32]uint32{},
		versions:   map[uint32]*atomic.Uint64{},
		slots:      map[uint64]uint32{},
		consumers:  map[consumerKey]uint32{},
	}
}

// Group is one group as the broker sees it. Rules points into the registry: read only, good until the
// section is left.
type Group struct {
	ID      uint32
	Live    uint32
	Version uint64
	IdleMs  int64 // wall clock since when it has no session, 0 while it has one
	Rules   *codec.Rules
}

func (r *Registry) viewGroup(slot uint32) Group {
	g := r.groups.At(slot)
	return Group{g.id, g.live, g.version, g.idleMs, &g.rules}
}

// GroupNamed finds a group by name.
func (r *Registry) GroupNamed(name string) (Group, bool) {
	slot, ok := r.groupNames[name]
	if !ok {
		return Group{}, false
	}
	return r.viewGroup(slot), true
}

// GroupByID finds a group by id.
func (r *Registry) GroupByID(id uint32) (Group, bool) {
	slot, ok := r.groupIDs[id]
	if !ok {
		return Group{}, false
	}
	return r.viewGroup(slot), true
}

// GroupName is the name of a group.
func (r *Registry) GroupName(id uint32) string {
	if slot, ok := r.groupIDs[id]; ok {
		return r.groups.At(slot).name.String()
	}
	return ""
}

// Groups lists the ids of all groups, by name.
func (r *Registry) Groups() []uint32 {
	names := make([]string, 0, len(r.groupNames))
	for name := range r.groupNames {
		names = append(names, name)
	}
	sort.Strings(names)
	ids := make([]uint32, len(names))
	for i, name := range names {
		ids[i] = r.groups.At(r.groupNames[name]).id
	}
	return ids
}

// NextGroupID is the id that the next GROUP record that creates must carry.
func (r *Registry) NextGroupID() uint32 { return r.nextGroup }

// NextSessionID is the id that the next session of the running epoch gets.
func (r *Registry) NextSessionID(epoch uint32) uint64 {
	return max(r.lastID, uint64(epoch)<<32) + 1
}

// Session is one session as the broker sees it.
type Session struct {
	ID      uint64
	Slot    uint32
	Group   uint32 // id
	Ended   bool
	Cause   codec.EndCause
	EndedMs int64
	Nonce   [16]byte
	// HeartbeatMs and TimeoutMs are the timings that the session was told.
	HeartbeatMs, TimeoutMs uint32
}

func (r *Registry) viewSession(slot uint32) Session {
	s := r.sessions.At(slot)
	return Session{s.id, slot, r.groups.At(s.group).id, s.ended, s.cause, s.endedMs, s.nonce, s.heartbeatMs, s.timeoutMs}
}

// Session finds a session by id, also one that ended not too long ago.
func (r *Registry) Session(id uint64) (Session, bool) {
	slot, ok := r.slots[id]
	if !ok {
		return Session{}, false
	}
	return r.viewSession(slot), true
}

// SessionAt is the session in a slot that is in use.
func (r *Registry) SessionAt(slot uint32) Session { return r.viewSession(slot) }

// Names are the consumer id and client info of a session.
func (r *Registry) Names(slot uint32) (consumer, info string) {
	s := r.sessions.At(slot)
	return s.consumer.String(), s.info.String()
}

// OfConsumer is the live session of a consumer id.
func (r *Registry) OfConsumer(group uint32, consumer string) (Session, bool) {
	slot, ok := r.consumers[consumerKey{group, consumer}]
	if !ok {
		return Session{}, false
	}
	return r.viewSession(slot), true
}

// LiveOf lists the live sessions of a group (0: of all), by id.
func (r *Registry) LiveOf(group uint32) []uint64 {
	var ids []uint64
	for id, slot := range r.slots {
		if s := r.sessions.At(slot); !s.ended && (group == 0 || r.groups.At(s.group).id == group) {
			ids = append(ids, id)
		}
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// Live finds a live session. Safe anywhere, without a lock.
func (r *Registry) Live(id uint64) (*Live, bool) {
	v, ok := r.live.Load(id)
	if !ok {
		return nil, false
	}
	return v.(*Live), true
}

// Sessions is the number of live sessions.
func (r *Registry) Sessions() int { return len(r.consumers) }

// Violations counts records whose precondition did not hold.
func (r *Registry) Violations() uint64 { return r.violations }

func (r *Registry) violate(format string, args ...any) {
	r.violations++
	if r.OnViolation != nil {
		r.OnViolation(fmt.Sprintf(format, args...))
	}
}

// Serve begins the watch over sessions at the lease clock nowMs: what was live when the log ended gets a
// whole timeout from now.
func (r *Registry) Serve(nowMs int64) {
	for _, id := range r.LiveOf(0) {
		if l, ok := r.Live(id); ok {
			l.Refresh(nowMs)
			r.watch(l, nowMs)
		}
	}
}

func (r *Registry) timeoutMs(slot uint32) int64 {
	return int64(r.sessions.At(slot).timeoutMs)
}

func (r *Registry) watch(l *Live, seenMs int64) {
	r.wheel.Schedule(l.Slot, seenMs+r.timeoutMs(l.Slot))
}

// NextTimer is a lower bound of the earliest time at which a session may be found silent.
func (r *Registry) NextTimer() (atMs int64, ok bool) { return r.wheel.Next() }

// Advance moves the timers to now and appends the sessions that have been silent for their timeout. Each
// is looked at again a moment later, until it is refreshed or ended.
func (r *Registry) Advance(nowMs int64, limit int, silent []uint64) (_ []uint64, more bool) {
	more = r.wheel.Advance(nowMs, limit, func(slot uint32) {
		l, ok := r.Live(r.sessions.At(slot).id)
		if !ok {
			return
		}
		if seen, alive := l.Seen(); alive && seen+r.timeoutMs(slot) > nowMs {
			r.wheel.Schedule(slot, seen+r.timeoutMs(slot))
			return
		}
		silent = append(silent, l.ID)
		r.wheel.Schedule(slot, nowMs+1)
	})
	return silent, more
}

// Silent tells whether a session has been silent for its timeout, and since when.
func (r *Registry) Silent(l *Live, nowMs int64) (seenMs int64, silent bool) {
	seen, ok := l.Seen()
	return seen, ok && seen+r.timeoutMs(l.Slot) <= nowMs
}
