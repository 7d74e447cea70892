// Package timingwheel keeps deadlines: leases, back-offs, sessions, waiting pops.
//
// It is a hierarchical wheel (Varghese and Lauck, 1987) over int64 milliseconds: six levels of slots, 1 ms wide
// at level 0 and 64 times wider at each next level. Insert, move and cancel are O(1) whatever the number of
// timers. A timer fires never before its deadline, and late only by as much as Advance is called late.
//
// # What a level holds
//
// In a textbook wheel a level has 64 slots and a slot of level 3 (262 s wide) is broken up at the moment when its
// time begins. With ten million leases of five minutes that is ten million moves at once, and the first of them
// waits for all the others. So every level has 128 slots here: the 64 of the slot above that time is in, and the
// 64 of the one after it. A slot can then be broken up during the whole time of the slot before it, a few
// entries per Advance, and is normally empty when its time comes.
//
// A deadline d at time pos lies in the lowest level l at which
//
//	(d >> 6(l+1)) - (pos >> 6(l+1)) <= 1
//
// in slot (d >> 6l) mod 128. Deadlines beyond level 5 (2.2 to 4.4 years) are parked beside it and placed when
// their time comes within reach.
//
// # Invariants
//
//  1. Occupied slots lie ahead: at level l every occupied slot k has pos < k << 6l, and k is less than 128 slots
//     behind pos >> 6l. (So slot numbers modulo 128 are unambiguous.)
//  2. No entry of a slot is due before the slot begins. An entry may be due after its slot ends: moving a deadline
//     later only writes the deadline, and the entry is placed again when its slot is broken up.
//  3. Everything due at or before pos is in the lists due and late.
//  4. pos enters a slot of level 1 and up only when that slot is empty.
//
// # Memory
//
// The wheel owns links only: 16 bytes for each id, without pointers, in chunks of 64 KiB that are never copied. The
// id is the index of the caller's own entry (lease, session, waiter), so nothing is allocated per timer.
package timingwheel

import "math"

const (
	levels    = 6
	slotBits  = 6   // a slot is 64 times as wide as one of the level below
	slots     = 128 // of a level: two turns of 64
	slotMask  = slots - 1
	spanShift = levels * slotBits // a deadline this many bits away may not fit into the levels
)

// Deadlines are kept beside ten bits that name a list, so they are clamped to 53 bits: 285,000 years.
const (
	maxDeadline = math.MaxInt64 >> listBits
	minDeadline = math.MinInt64 >> listBits
)

const (
	// prepareLeast is how many entries of a slot whose turn is next are placed per Advance, if there is room
	// under the limit, whatever the pace asks for.
	prepareLeast = 64
	// prepareCrowded is the size from which a slot that is prepared too slowly makes Advance ask to be called again.
	prepareCrowded = 4096
)

// Wheel is a hierarchical timing wheel. It is not safe for concurrent use: whoever owns the entries owns it
// (in the broker the sequencing section). Its zero value is not ready, see New.
type Wheel struct {
	pos    int64 // all that is due at or before pos was fired or waits in due or late
	target int64 // newest time given to Advance; pos < target only when a limit cut the call short

	// paced is for each level the time up to which the preparation of its next slot has held its pace.
	paced [levels]int64

	length   int // ids scheduled
	occupied [levels]occupancy
	counts   [levels][slots]uint32 // entries of each slot; level 0 is not counted
	nodes    []*chunk

	// Lower bounds of the deadlines in the lists scan and parked; meaningless while those are empty.
	scanMin, parkedMin int64
}

// New makes an empty wheel that stands at now.
func New(now int64) *Wheel {
	now = clamp(now)
	w := &Wheel{pos: now, target: now, scanMin: maxDeadline, parkedMin: maxDeadline}
	for l := range w.paced {
		w.paced[l] = now
	}
	w.nodes = append(w.nodes, new(chunk))
	for h := uint32(1); h < listCount; h++ {
		n := w.node(h)
		n.next, n.prev = h, h
	}
	return w
}

// Schedule sets the deadline of id: it will be given to fire once, by the first Advance that reaches the deadline. If
// id was scheduled already, it is moved. A deadline at or before the wheel's time is due at the next Advance, not
// at one that is running.
func (w *Wheel) Schedule(id uint32, deadline int64) {
	deadline = clamp(deadline)
	i := w.index(id)
	n := w.node(i)
	if n.next == 0 {
		w.length++
		w.place(i, n, deadline)
		return
	}
	if deadline >= n.deadline() {
		// Where it lies it is looked at no later than its old deadline: early enough to be placed again. This is
		// what makes a renewal cheap, which comes more often than any other move.
		n.setDeadline(deadline)
		return
	}
	w.unlink(n)
	w.place(i, n, deadline)
}

// Cancel takes the deadline of id away, if it has one.
func (w *Wheel) Cancel(id uint32) {
	n := w.find(id)
	if n == nil || n.next == 0 {
		return
	}
	w.unlink(n)
	w.length--
}

// Scheduled tells the deadline of id; ok is false if it has none.
func (w *Wheel) Scheduled(id uint32) (deadline int64, ok bool) {
	n := w.find(id)
	if n == nil || n.next == 0 {
		return 0, false
	}
	return n.deadline(), true
}

// Len is the number of ids that are scheduled.
func (w *Wheel) Len() int { return w.length }

// Now is the newest time that Advance (or New) was given.
func (w *Wheel) Now() int64 { return w.target }

// Next is a lower bound of the earliest deadline; ok is false if nothing is scheduled. What is due already counts as due
// at Now. It is exact for deadlines less than 64 ms away that were not moved, and an Advance to it brings the next one closer.
func (w *Wheel) Next() (at int64, ok bool) {
	if !w.empty(due) || !w.empty(late) {
		return w.target, true
	}
	_, _, at, ok = w.earliest()
	return max(at, w.target), ok
}

// Advance moves the time of the wheel to now and calls fire for ids whose deadline has come: first those that were past
// when they were scheduled, then the others in the order of their deadlines, those of equal deadlines in an order that
// depends only on the calls made before. An id is no longer scheduled when it is given to fire; fire may schedule
// and cancel any id, that one included, but must not call Advance.
//
// limit bounds the work: ids fired plus entries moved between levels. More is true if due ids are left: call again
// with the same now, after letting others have their turn. (It is also true, rarely, when a slot with thousands of
// entries must be prepared faster than the limit allows.) A time before the newest one given counts as that one.
func (w *Wheel) Advance(now int64, limit int, fire func(id uint32)) (more bool) {
	w.target = max(w.target, clamp(now))
	w.splice(late, due)
	for {
		for !w.empty(due) {
			if limit <= 0 {
				return true
			}
			limit--
			i := w.node(due).next
			n := w.node(i)
			w.unlink(n)
			if d := n.deadline(); d > w.pos {
				w.place(i, n, d) // it was moved later while it lay here
				continue
			}
			w.length--
			fire(i - listSpace)
		}
		level, slot, at, ok := w.earliest()
		if !ok || at > w.target {
			break
		}
		if level == 0 {
			w.pos = at
			h := head(0, slot)
			w.splice(h, due)
			w.occupied[0].clear(h - firstSlot)
			continue
		}
		// Invariant 4: stop short of the slot, and go on when it is empty. Nothing is due before it.
		w.pos = at - 1
		if limit = w.breakUp(level, slot, limit); limit < 0 {
			return true
		}
	}
	w.pos = w.target
	behind := w.prepare(limit)
	return behind || !w.empty(late)
}

func clamp(t int64) int64 { return min(max(t, minDeadline), maxDeadline) }
