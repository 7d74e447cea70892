package timingwheel

import "math/bits"

// occupancy has a bit for each slot of a level that is not empty.
type occupancy [slots / 64]uint64

func (o *occupancy) set(slot uint32) { o[slot/64] |= 1 << (slot % 64) }

func (o *occupancy) clear(slot uint32) { o[slot/64] &^= 1 << (slot % 64) }

// first is the distance from slot number from to the first occupied slot, going round.
func (o *occupancy) first(from int64) (distance int64, ok bool) {
	const words = slots / 64
	i := uint32(from) & slotMask
	word, bit := i/64, i%64
	if x := o[word] >> bit; x != 0 {
		return int64(bits.TrailingZeros64(x)), true
	}
	if x := o[(word+1)%words]; x != 0 {
		return int64(64 - bit + uint32(bits.TrailingZeros64(x))), true
	}
	if x := o[word] & (1<<bit - 1); x != 0 {
		return int64(128 - bit + uint32(bits.TrailingZeros64(x))), true
	}
	return 0, false
}

// head is the list of a slot, whose number counts from the beginning of time.
func head(level int, slot int64) uint32 {
	return firstSlot + uint32(level)*slots + uint32(slot)&slotMask
}

// place puts node i into the list where deadline belongs at pos.
func (w *Wheel) place(i uint32, n *node, deadline int64) {
	if deadline <= w.pos {
		w.link(i, n, late, deadline)
		return
	}
	// With a distance of 6l+1 to 6l+6 bits the slots of level l+1 differ by one at most, those of level l by one at least,
	// and those of level l-1 by 64 at least: so the level is l, or l-1 if the slots of level l differ by one.
	level := (bits.Len64(uint64(deadline-w.pos)) - 1) / slotBits
	if level > 0 && deadline>>(level*slotBits)-w.pos>>(level*slotBits) <= 1 {
		level--
	}
	if level >= levels {
		if w.empty(parked) || deadline < w.parkedMin {
			w.parkedMin = deadline
		}
		w.link(i, n, parked, deadline)
		return
	}
	h := head(level, deadline>>(level*slotBits))
	w.link(i, n, h, deadline)
	w.occupied[level].set((h - firstSlot) % slots)
}

// earliest finds the slot that begins first, of the highest level among those that begin at the same time. Level
// levels stands for what is parked. ok is false if there is nothing.
func (w *Wheel) earliest() (level int, slot, at int64, ok bool) {
	for l := range levels {
		from := w.pos>>(l*slotBits) + 1
		if d, found := w.occupied[l].first(from); found {
			if t := (from + d) << (l * slotBits); !ok || t <= at {
				level, slot, at, ok = l, from+d, t, true
			}
		}
	}
	if least, found := w.parkedLeast(); found {
		// A bound that is past is the bound of an entry moved later or cancelled: look through the list now.
		s := max(least>>spanShift, w.pos>>spanShift+1)
		if t := s << spanShift; !ok || t <= at {
			level, slot, at, ok = levels, s, t, true
		}
	}
	return level, slot, at, ok
}

// parkedLeast is a lower bound of the parked deadlines.
func (w *Wheel) parkedLeast() (least int64, ok bool) {
	least = maxDeadline
	if !w.empty(scan) {
		least, ok = w.scanMin, true
	}
	if !w.empty(parked) {
		least, ok = min(least, w.parkedMin), true
	}
	return least, ok
}

// breakUp places the entries of a slot in the levels below, at most limit of them. It gives what is left of limit, or -1 if
// the slot is not empty yet. REQUIRES: pos is in the slot before it, so that none of them goes back to the same list.
func (w *Wheel) breakUp(level int, slot int64, limit int) int {
	if level == levels {
		return w.breakUpParked(limit)
	}
	h := head(level, slot)
	hd := w.node(h)
	for hd.next != h {
		if limit <= 0 {
			return -1
		}
		limit--
		i := hd.next
		n := w.node(i)
		w.unlink(n)
		w.place(i, n, n.deadline())
	}
	return limit
}

// breakUpParked looks through the parked entries and places those in reach. The others are parked again.
func (w *Wheel) breakUpParked(limit int) int {
	hd := w.node(scan)
	if hd.next == scan {
		w.splice(parked, scan)
		w.scanMin = w.parkedMin
	}
	for hd.next != scan {
		if limit <= 0 {
			return -1
		}
		limit--
		i := hd.next
		n := w.node(i)
		w.unlink(n)
		w.place(i, n, n.deadline())
	}
	return limit
}

// prepare breaks up the slots whose turn is next, ahead of time and evenly: each at twice the pace at which it would
// just be empty in time. It reports whether limit kept it from holding that pace with a crowded slot.
func (w *Wheel) prepare(limit int) (behind bool) {
	for l := 1; l < levels; l++ {
		slot := w.pos>>(l*slotBits) + 1
		count := int64(w.counts[l][slot&slotMask])
		elapsed := w.pos - w.paced[l]
		w.paced[l] = w.pos
		if count == 0 {
			continue
		}
		// The slot is still ahead, so left >= 1. The product stays below 2^63: count < 2^32, elapsed < left <= 2^31.
		left := slot<<(l*slotBits) - w.pos
		quota := count
		if elapsed < left {
			quota = min(count, count*elapsed/left*2+prepareLeast)
		}
		if done := int64(max(limit, 0)); quota > done {
			if count >= prepareCrowded && quota > prepareLeast {
				behind = true
				w.paced[l] -= elapsed - int64(float64(elapsed)*float64(done)/float64(quota)) // still owed
			}
			quota = done
		}
		w.breakUp(l, slot, int(quota))
		limit -= int(quota)
	}
	if limit > 0 {
		if least, ok := w.parkedLeast(); ok && least>>spanShift <= w.pos>>spanShift+1 {
			w.breakUpParked(limit)
		}
	}
	return behind
}
