package lease

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// Hash is the same for equal states, however they came about. Derived parts are left out, and so are slots: sessionID
// names the session in one. It walks everything: for tests and audits.
func (t *Table) Hash(sessionID func(slot uint32) uint64) uint64 {
	h := xxhash.New()
	put := func(vs ...uint64) {
		var b [8]byte
		for _, v := range vs {
			binary.LittleEndian.PutUint64(b[:], v)
			_, _ = h.Write(b[:]) // never fails
		}
	}
	put(uint64(t.nextSub), uint64(len(t.epochs)))
	for _, s := range t.epochs {
		put(uint64(s.epoch), uint64(s.number), s.start)
	}
	for _, slot := range t.Subs() {
		s := t.subs.At(slot)
		put(uint64(s.id), uint64(s.group), uint64(s.topic), uint64(s.horizonMs), s.leased, s.waiting)
		put(uint64(s.nTags), uint64(len(t.queues[slot])), uint64(s.memory.count))
		put(s.filter[:s.nTags]...)
		for _, ci := range t.queues[slot] {
			c := t.cursors.At(ci)
			put(c.start, c.next, uint64(c.leased), uint64(c.waiting), uint64(c.ahead), c.settled, c.skipped, c.unreadable, c.dropped)
			t.index.walk(&c.tree, func(offset uint64, i uint32) bool {
				e := t.entries.At(i)
				holder := uint64(0)
				if e.state == leased {
					holder = sessionID(e.holder)
				}
				put(offset, e.token, uint64(e.atMs), uint64(e.sinceMs), holder,
					uint64(e.attempts)<<48|uint64(e.ordinal)<<32|uint64(e.renewals)<<16|uint64(e.state)<<8|uint64(e.ending),
					uint64(e.failures)<<16|uint64(e.expiries)<<8|uint64(e.losses))
				return true
			})
			put(^uint64(0)) // no offset: the queue ends here
		}
		for i := s.memory.head; i != 0; i = t.entries.At(i).next {
			e := t.entries.At(i)
			put(uint64(t.cursors.At(e.cursor).queue), e.offset)
		}
	}
	marks := map[uint64]uint32{} // first one, by session id
	for holder, i := range t.marked {
		if i != 0 {
			marks[sessionID(uint32(holder))] = i
		}
	}
	for _, session := range slices.Sorted(maps.Keys(marks)) {
		for i := marks[session]; i != 0; i = t.marks.At(i).next {
			m := t.marks.At(i)
			put(session, uint64(m.slot), m.Sequence, m.Token, uint64(m.Sub))
		}
	}
	return h.Sum64()
}

// Audit recomputes every counter and link and returns the first thing that does not hold.
func (t *Table) Audit() error {
	held := map[uint32]uint32{}
	total, done := 0, 0
	for _, slot := range t.Subs() {
		s := t.subs.At(slot)
		var leasedN, waitingN uint64
		memory := uint32(0)
		for q, ci := range t.queues[slot] {
			n, remembered, err := t.auditCursor(ci, held)
			if err != nil {
				return fmt.Errorf("subscription %d queue %d: %w", s.id, q, err)
			}
			c := t.cursors.At(ci)
			leasedN += uint64(c.leased)
			waitingN += uint64(c.waiting)
			memory += remembered
			done += n - int(c.leased) - int(c.waiting)
			total += n
		}
		if leasedN != s.leased || waitingN != s.waiting || memory != s.memory.count {
			return fmt.Errorf("subscription %d: leased %d of %d, waiting %d of %d, memory %d of %d",
				s.id, s.leased, leasedN, s.waiting, waitingN, s.memory.count, memory)
		}
		if err := t.auditList(&s.memory, func(e *entry) bool {
			return e.state == settled && t.cursors.At(e.cursor).sub == slot
		}); err != nil {
			return fmt.Errorf("memory of subscription %d: %w", s.id, err)
		}
	}
	ofTopic := 0
	for topic, list := range t.ofTopic {
		for k, slot := range list {
			if s := t.subs.At(slot); s.topic != topic || k > 0 && t.subs.At(list[k-1]).id >= s.id {
				return fmt.Errorf("subscription %d is listed for topic %d", s.id, topic)
			}
			ofTopic++
		}
	}
	if ofTopic != t.subs.Len() || len(t.byID) != t.subs.Len() || len(t.byPair) != t.subs.Len() {
		return fmt.Errorf("%d subscriptions, %d of topics, %d by id, %d by pair", t.subs.Len(), ofTopic, len(t.byID), len(t.byPair))
	}
	if total != t.entries.Len() || done != t.done {
		return fmt.Errorf("%d entries are indexed, %d live; %d settled, %d counted", total, t.entries.Len(), done, t.done)
	}
	if err := t.auditMarks(); err != nil {
		return err
	}
	return t.auditHolders(held)
}

func (t *Table) auditMarks() error {
	n := 0
	for holder, i := range t.marked {
		for last := -1; i != 0; i = t.marks.At(i).next {
			m := t.marks.At(i)
			if int(m.slot) <= last || m.Sequence == 0 || m.Token == 0 {
				return fmt.Errorf("pop slot %d of session slot %d, behind %d: sequence %d, token %d", m.slot, holder, last, m.Sequence, m.Token)
			}
			last = int(m.slot)
			n++
		}
	}
	if n != t.marks.Len() {
		return fmt.Errorf("%d pop slots are listed, %d live", n, t.marks.Len())
	}
	return nil
}

// auditCursor counts the entries of a cursor, and those among them that are memory.
func (t *Table) auditCursor(ci uint32, held map[uint32]uint32) (n int, memory uint32, err error) {
	c := t.cursors.At(ci)
	var leasedN, waitingN, aheadN, readyN uint32
	var unsettledBelow uint64
	t.index.walk(&c.tree, func(offset uint64, i uint32) bool {
		n++
		e := t.entries.At(i)
		if e.offset != offset || e.cursor != ci {
			err = fmt.Errorf("entry of offset %d says %d", offset, e.offset)
			return false
		}
		if offset >= c.next {
			aheadN++
		} else if e.state != settled {
			unsettledBelow++
		}
		at, timed := t.wheel.Scheduled(i)
		switch e.state {
		case leased:
			leasedN++
			held[e.holder]++
			// A lease that is over may have been proposed: it is looked at again in the next millisecond.
			if !timed || at > max(e.atMs, t.wheel.Now()+1) {
				err = fmt.Errorf("lease of offset %d ends at %d, its timer at %d (%t)", offset, e.atMs, at, timed)
			}
		case waiting:
			waitingN++
			if e.ready {
				readyN++
			}
			if e.ready == timed {
				err = fmt.Errorf("offset %d waits: ready %t, timer %t", offset, e.ready, timed)
			}
		case settled:
			if offset < c.next {
				memory++
			}
			if timed || e.ready {
				err = fmt.Errorf("offset %d is settled: ready %t, timer %t", offset, e.ready, timed)
			}
		default:
			err = fmt.Errorf("offset %d is in state %d", offset, e.state)
		}
		return err == nil
	})
	if err == nil {
		err = t.auditList(&c.ready, func(e *entry) bool { return e.ready && e.cursor == ci })
	}
	if err != nil {
		return n, memory, err
	}
	if leasedN != c.leased || waitingN != c.waiting || aheadN != c.ahead || readyN != c.ready.count {
		return n, memory, fmt.Errorf("leased %d of %d, waiting %d of %d, ahead %d of %d, ready %d of %d",
			c.leased, leasedN, c.waiting, waitingN, c.ahead, aheadN, c.ready.count, readyN)
	}
	if c.next-c.start != c.settled+c.skipped+c.unreadable+c.dropped+unsettledBelow {
		return n, memory, fmt.Errorf("passed %d, settled %d, skipped %d, unreadable %d, dropped %d, unsettled %d",
			c.next-c.start, c.settled, c.skipped, c.unreadable, c.dropped, unsettledBelow)
	}
	return n, memory, nil
}

// auditList walks a list both ways and asks whether its entries belong there.
func (t *Table) auditList(l *list, belongs func(e *entry) bool) error {
	n, last := uint32(0), uint32(0)
	for i := l.head; i != 0 && n <= l.count; i = t.entries.At(i).next {
		e := t.entries.At(i)
		if e.prev != last || !belongs(e) {
			return fmt.Errorf("offset %d, behind entry %d, is on a list that it does not belong to", e.offset, e.prev)
		}
		n, last = n+1, i
	}
	if n != l.count || last != l.tail {
		return fmt.Errorf("a list of %d entries counts %d; its last is %d, not %d", n, l.count, last, l.tail)
	}
	return nil
}

func (t *Table) auditHolders(held map[uint32]uint32) error {
	var slots []int
	for slot := range t.holders {
		slots = append(slots, slot)
	}
	sort.Ints(slots)
	for _, slot := range slots {
		if err := t.auditList(&t.holders[slot], func(e *entry) bool {
			return e.state == leased && int(e.holder) == slot
		}); err != nil {
			return fmt.Errorf("leases of session slot %d: %w", slot, err)
		}
		if n := t.holders[slot].count; n != held[uint32(slot)] {
			return fmt.Errorf("session slot %d counts %d leases, holds %d", slot, n, held[uint32(slot)])
		}
	}
	return nil
}
