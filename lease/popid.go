package lease

// A pop names itself by a slot and a sequence in it, and its GRANT record carries both, so that its repetition, after
// the answer was lost, can be given the same leases. What has to be known for that is kept for each slot that a live
// session has used: which sequence was granted something last, and under which token. The leases themselves
// are on their holder's list.

// PopMark is the newest pop of a slot that was granted something. The zero value: none was.
type PopMark struct {
	Sequence uint64
	Token    uint64
	Sub      uint32 // id of the subscription
}

// popMark is a PopMark on its session's list, lowest slot first.
type popMark struct {
	PopMark
	next uint32
	slot uint8
}

// PopMark tells the newest pop in a slot of the session in the slot holder.
func (t *Table) PopMark(holder uint32, slot uint8) PopMark {
	if int(holder) < len(t.marked) {
		for i := t.marked[holder]; i != 0; i = t.marks.At(i).next {
			if m := t.marks.At(i); m.slot == slot {
				return m.PopMark
			}
		}
	}
	return PopMark{}
}

// mark notes that a pop was granted something.
func (t *Table) mark(holder uint32, slot uint8, m PopMark) {
	for int(holder) >= len(t.marked) {
		t.marked = append(t.marked, 0)
	}
	last := uint32(0)
	i := t.marked[holder]
	for i != 0 && t.marks.At(i).slot < slot {
		last, i = i, t.marks.At(i).next
	}
	if i != 0 && t.marks.At(i).slot == slot {
		t.marks.Mut(i).PopMark = m
		return
	}
	fresh := t.marks.Alloc()
	*t.marks.Mut(fresh) = popMark{PopMark: m, next: i, slot: slot}
	if last != 0 {
		t.marks.Mut(last).next = fresh
	} else {
		t.marked[holder] = fresh
	}
}

// unmark forgets the pops of a session that has ended.
func (t *Table) unmark(holder uint32) {
	if int(holder) >= len(t.marked) {
		return
	}
	for i := t.marked[holder]; i != 0; {
		next := t.marks.At(i).next
		t.marks.Free(i)
		i = next
	}
	t.marked[holder] = 0
}

// EachOf calls visit with every lease under a token that the session in the slot holder has, oldest first.
func (t *Table) EachOf(holder uint32, token uint64, visit func(queue uint16, offset uint64, g Granted)) {
	if int(holder) >= len(t.holders) {
		return
	}
	for i := t.holders[holder].head; i != 0; {
		e := t.entries.At(i)
		i = e.next
		if e.token == token {
			visit(t.cursors.At(e.cursor).queue, e.offset, e.granted())
		}
	}
}

// Marks is the number of pop slots in use, of all sessions.
func (t *Table) Marks() int { return t.marks.Len() }
