package lease

// UnsettledBelow calls visit with the offsets below end that a subscription knows on a queue and has not settled, in order,
// until it returns false.
func (t *Table) UnsettledBelow(slot uint32, queue uint16, end uint64, visit func(offset uint64) bool) {
	c := t.cursors.At(t.queues[slot][queue])
	if c.leased+c.waiting == 0 {
		return
	}
	t.index.walk(&c.tree, func(offset uint64, i uint32) bool {
		if offset >= end {
			return false
		}
		return t.entries.At(i).state == settled || visit(offset)
	})
}

// IsUnsettled tells whether a subscription knows a message and has not settled it.
func (t *Table) IsUnsettled(slot uint32, queue uint16, offset uint64) bool {
	e := t.find(slot, queue, offset)
	return e != nil && e.state != settled
}

// Retain applies what a RETAIN record says of one queue: the messages below begin are gone, but for those that kept tells of.
// What a subscription has not settled of the others is dropped, and its cursor goes on at begin.
func (t *Table) Retain(topic uint32, queue uint16, begin uint64, stampMs int64, kept func(offset uint64) bool) {
	for _, slot := range t.ofTopic[topic] {
		if int(queue) >= len(t.queues[slot]) {
			t.violate("queue %d of subscription %d begins at %d", queue, t.subs.At(slot).id, begin)
			continue
		}
		ci := t.queues[slot][queue]
		var gone []uint64
		t.UnsettledBelow(slot, queue, begin, func(offset uint64) bool {
			if !kept(offset) {
				gone = append(gone, offset)
			}
			return true
		})
		for _, offset := range gone {
			t.drop(ci, offset, stampMs)
		}
		t.passTo(ci, begin)
		t.evict(slot, stampMs)
	}
}

// DropMessage applies the loss of one message below the beginning of its queue: nothing of it is left.
func (t *Table) DropMessage(topic uint32, queue uint16, offset uint64, stampMs int64) {
	for _, slot := range t.ofTopic[topic] {
		if int(queue) < len(t.queues[slot]) && t.IsUnsettled(slot, queue, offset) {
			t.drop(t.queues[slot][queue], offset, stampMs)
			t.evict(slot, stampMs)
		}
	}
}

// drop ends a message that a cursor knows and that is gone: remembered, so that no receipt of it is told that it was settled.
func (t *Table) drop(ci uint32, offset uint64, stampMs int64) {
	c := t.cursors.Mut(ci)
	i := t.index.get(ci, &c.tree, offset)
	if t.entries.At(i).state == leased {
		t.leaveLeased(c, i)
	} else {
		t.leaveWaiting(c, i)
	}
	t.entries.Mut(i).ending = endedDropped
	t.dropped++
	t.remember(c, i, stampMs)
}

// passTo moves a cursor over offsets that are gone. Those of which the table knows something ahead of the cursor count as
// what they are.
func (t *Table) passTo(ci uint32, begin uint64) {
	c := t.cursors.Mut(ci)
	if c.next >= begin {
		return
	}
	from := c.next
	c.dropped += begin - from
	t.dropped += begin - from
	c.next = begin
	if c.ahead == 0 {
		return
	}
	t.index.walk(&c.tree, func(offset uint64, i uint32) bool {
		switch {
		case offset < from:
		case offset >= begin:
			return false
		default:
			c.ahead--
			c.dropped--
			t.dropped--
			if t.entries.At(i).state == settled {
				t.keep(c, i)
			}
		}
		return true
	})
}
