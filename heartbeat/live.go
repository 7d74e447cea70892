package heartbeat

import (
	"math"
	"sync/atomic"
)

// expired in a Live word means that the session is over. It is the greatest value, so that no refresh can
// undo it.
const expired = math.MaxInt64

// Live is the part of a live session that calls touch without the section's lock: when it last gave a
// sign of life. It is not part of the hashed state; after a recovery it starts at the lease clock at
// which serving starts. Safe for concurrent use.
type Live struct {
	// ID is the session, Group its group, Slot its place in the registry.
	ID    uint64
	Group uint32
	Slot  uint32
	// word is the lease-clock time of the newest sign of life, or expired.
	word    atomic.Int64
	lost    atomic.Uint32
	version *atomic.Uint64 // of the group
}

// Refresh notes a sign of life: an atomic maximum, so that late calls never take time back. It is false
// when the session has expired.
func (l *Live) Refresh(nowMs int64) bool {
	for {
		seen := l.word.Load()
		if seen == expired {
			return false
		}
		if nowMs <= seen || l.word.CompareAndSwap(seen, nowMs) {
			return true
		}
	}
}

// Seen is the newest sign of life; ok is false when the session has expired.
func (l *Live) Seen() (ms int64, ok bool) {
	seen := l.word.Load()
	return seen, seen != expired
}

// Expire ends the session if its newest sign of life is still the one that the caller judged: a
// heartbeat that came in between wins.
func (l *Live) Expire(seen int64) bool { return l.word.CompareAndSwap(seen, expired) }

// close ends the word whatever it is.
func (l *Live) close() { l.word.Store(expired) }

// GroupVersion is the version of the session's group.
func (l *Live) GroupVersion() uint64 { return l.version.Load() }

// LeasesLost counts leases of the session that ended by time since the broker started.
func (l *Live) LeasesLost() uint32 { return l.lost.Load() }

// AddLost counts a lease that ended by time.
func (l *Live) AddLost() { l.lost.Add(1) }
