package lease

import (
	"slices"

	"github.com/leasemq/leasemq/codec"
)

// The fold. Each method applies one record, whose lease-clock stamp it is given, and reads nothing but the
// record and the table. What does not fit the state does nothing and is counted (Table.violate).

// StartEpoch applies an EPOCH record that lies at position.
func (t *Table) StartEpoch(epoch uint32, position uint64) {
	if last, _ := t.Number(); epoch <= last {
		t.violate("epoch %d after %d", epoch, last)
		return
	}
	t.epochs = append(t.epochs, epochSpan{epoch: epoch, start: position})
}

// Subscribe applies a SUBSCRIBE record.
func (t *Table) Subscribe(r *codec.Subscribe) {
	if _, taken := t.byPair[pair(r.Group, r.Topic)]; taken || r.Sub != t.nextSub || len(r.Filter) > codec.MaxFilterTags {
		t.violate("subscription %d of group %d to topic %d", r.Sub, r.Group, r.Topic)
		return
	}
	t.nextSub++
	slot := t.addSub(&sub{id: r.Sub, group: r.Group, topic: r.Topic, horizonMs: -1}, r.Filter)
	for _, start := range r.Starts {
		t.addQueue(slot, start)
	}
}

// addSub makes a subscription without cursors.
func (t *Table) addSub(s *sub, filter []uint64) (slot uint32) {
	s.nTags = uint32(copy(s.filter[:], filter))
	slot = t.subs.Alloc()
	*t.subs.Mut(slot) = *s
	t.byID[s.id] = slot
	t.byPair[pair(s.group, s.topic)] = slot
	t.ofTopic[s.topic] = append(t.ofTopic[s.topic], slot) // ids grow
	for int(slot) >= len(t.queues) {
		t.queues = append(t.queues, nil)
	}
	t.queues[slot] = t.queues[slot][:0]
	return slot
}

func (t *Table) addQueue(slot uint32, start uint64) {
	i := t.cursors.Alloc()
	*t.cursors.Mut(i) = cursor{start: start, next: start, sub: slot, queue: uint16(len(t.queues[slot]))}
	t.queues[slot] = append(t.queues[slot], i)
}

// GrowTopic gives the subscriptions of a topic cursors for queues that were added; they start at 0.
func (t *Table) GrowTopic(topic uint32, queues int) {
	for _, slot := range t.ofTopic[topic] {
		for len(t.queues[slot]) < queues {
			t.addQueue(slot, 0)
		}
	}
}

// Drop forgets the subscriptions of a topic (group 0) or of a group (topic 0), entries and all.
func (t *Table) Drop(group, topic uint32) {
	for _, slot := range t.Subs() {
		if s := t.subs.At(slot); s.group == group || s.topic == topic {
			t.dropSub(slot)
		}
	}
}

// dropSub forgets one subscription.
func (t *Table) dropSub(slot uint32) {
	for _, c := range t.queues[slot] {
		t.dropCursor(c)
	}
	t.queues[slot] = t.queues[slot][:0]
	s := t.subs.At(slot)
	delete(t.byID, s.id)
	delete(t.byPair, pair(s.group, s.topic))
	list := t.ofTopic[s.topic]
	if list = slices.DeleteFunc(list, func(x uint32) bool { return x == slot }); len(list) == 0 {
		delete(t.ofTopic, s.topic)
	} else {
		t.ofTopic[s.topic] = list
	}
	t.subs.Free(slot)
}

// Renew makes the subscriptions of a topic anew, at the ends of its queues: what their receipts speak of is gone. It
// applies the purge of the topic.
func (t *Table) Renew(topic uint32, ends []uint64) {
	for _, slot := range slices.Clone(t.ofTopic[topic]) {
		s := *t.subs.At(slot)
		t.dropSub(slot)
		fresh := t.addSub(&sub{id: t.nextSub, group: s.group, topic: s.topic, horizonMs: -1}, s.filter[:s.nTags])
		t.nextSub++
		for _, end := range ends {
			t.addQueue(fresh, end)
		}
	}
}

func (t *Table) dropCursor(i uint32) {
	c := t.cursors.Mut(i)
	t.index.walk(&c.tree, func(_ uint64, x uint32) bool {
		switch e := t.entries.At(x); e.state {
		case leased:
			t.unlink(&t.holders[e.holder], x)
		case settled:
			t.done--
		}
		t.wheel.Cancel(x)
		t.entries.Free(x)
		return true
	})
	t.index.drop(&c.tree)
	t.cursors.Free(i)
}

// Grant applies a GRANT record of the session in the slot holder.
func (t *Table) Grant(r *codec.Grant, epoch uint32, stampMs int64, holder uint32) {
	slot, ok := t.byID[r.Sub]
	if !ok {
		t.violate("grant for subscription %d", r.Sub)
		return
	}
	last := len(t.epochs) - 1
	if last < 0 || t.epochs[last].epoch != epoch || r.Number == 0 || t.epochs[last].number+1 != r.Number {
		t.violate("grant number %d in epoch %d", r.Number, epoch)
		return
	}
	t.epochs[last].number = r.Number
	t.fitHolders(holder)
	g := granting{uint64(epoch)<<32 | uint64(r.Number), r.DeadlineMs, stampMs, holder, 0}
	for i := range r.Runs {
		run := &r.Runs[i]
		if int(run.Queue) >= len(t.queues[slot]) {
			t.violate("grant for queue %d of subscription %d", run.Queue, r.Sub)
			continue
		}
		t.grantRun(&g, t.queues[slot][run.Queue], run)
	}
	if g.lent > 0 && r.PopSequence > 0 {
		t.mark(holder, r.PopSlot, PopMark{r.PopSequence, g.token, r.Sub})
	}
}

// fitHolders makes room for the list of a session slot.
func (t *Table) fitHolders(holder uint32) {
	for int(holder) >= len(t.holders) {
		t.holders = append(t.holders, list{})
	}
}

// granting is what the runs of one GRANT share.
type granting struct {
	token    uint64
	deadline int64
	stampMs  int64
	holder   uint32
	lent     int // leases made so far
}

func (t *Table) grantRun(g *granting, ci uint32, run *codec.GrantRun) {
	c := t.cursors.Mut(ci)
	if run.Kind.Passes() && run.Offset != c.next {
		t.violate("run of kind %d at %d, the cursor is at %d", run.Kind, run.Offset, c.next)
		return
	}
	if c.ahead > 0 && (run.Kind == codec.RunNew || run.Kind == codec.RunSkipped) && t.anyKnown(ci, c, run) {
		t.violate("run of kind %d at %d, where a message is known", run.Kind, run.Offset)
		return
	}
	switch run.Kind {
	case codec.RunNew:
		for offset := run.Offset; offset < run.Offset+uint64(run.Count); offset++ {
			i := t.entries.Alloc()
			*t.entries.Mut(i) = entry{offset: offset, cursor: ci}
			t.index.set(ci, &c.tree, offset, i)
			t.lend(g, c, i)
		}
		c.next += uint64(run.Count)
	case codec.RunSkipped:
		c.next += uint64(run.Count)
		c.skipped += uint64(run.Count)
	case codec.RunKnown:
		for range run.Count {
			t.passKnown(ci, c)
		}
	case codec.RunAgain:
		for offset := run.Offset; offset < run.Offset+uint64(run.Count); offset++ {
			i := t.index.get(ci, &c.tree, offset)
			if i == 0 || t.entries.At(i).state != waiting || t.entries.At(i).atMs > g.stampMs {
				t.violate("grant of offset %d, which is not ready", offset)
				continue
			}
			t.leaveWaiting(c, i)
			t.lend(g, c, i)
		}
	case codec.RunReclaimed:
		for offset := run.Offset; offset < run.Offset+uint64(run.Count); offset++ {
			t.reclaim(g, ci, c, offset)
		}
	default:
		t.violate("run of kind %d", run.Kind)
	}
}

// reclaim gives a message back to who held it: one that waits, or one of which the table knows nothing since
// a crash took its only grant.
func (t *Table) reclaim(g *granting, ci uint32, c *cursor, offset uint64) {
	i := t.index.get(ci, &c.tree, offset)
	switch {
	case i == 0 && offset < c.next:
		t.violate("reclaim of offset %d, which is settled", offset)
		return
	case i == 0:
		i = t.entries.Alloc()
		*t.entries.Mut(i) = entry{offset: offset, cursor: ci}
		t.index.set(ci, &c.tree, offset, i)
		c.ahead++
	case t.entries.At(i).state != waiting:
		t.violate("reclaim of offset %d: state %d", offset, t.entries.At(i).state)
		return
	default:
		t.leaveWaiting(c, i)
	}
	t.lend(g, c, i)
}

// anyKnown tells whether a run has an offset whose entry is ahead of the cursor.
func (t *Table) anyKnown(ci uint32, c *cursor, run *codec.GrantRun) bool {
	for offset := run.Offset; offset < run.Offset+uint64(run.Count); offset++ {
		if t.index.get(ci, &c.tree, offset) != 0 {
			return true
		}
	}
	return false
}

// passKnown moves the cursor over an entry that was ahead of it. A settled one becomes memory: before, it
// was what kept the message from being granted, and could not be forgotten.
func (t *Table) passKnown(ci uint32, c *cursor) {
	i := t.index.get(ci, &c.tree, c.next)
	if i == 0 {
		t.violate("offset %d is not known", c.next)
		return
	}
	c.next++
	c.ahead--
	if e := t.entries.Mut(i); e.state == settled {
		t.keep(c, i)
	}
}

// lend makes entry i, which is on no list and has no timer, a lease.
func (t *Table) lend(g *granting, c *cursor, i uint32) {
	e := t.entries.Mut(i)
	e.token, e.atMs, e.sinceMs = g.token, g.deadline, g.stampMs
	e.holder, e.state = g.holder, leased
	e.ordinal, e.renewals = 0, 0
	bump16(&e.attempts)
	t.push(&t.holders[g.holder], i)
	t.wheel.Schedule(i, g.deadline)
	g.lent++
	c.leased++
	t.subs.Mut(c.sub).leased++
}

// leaveLeased takes entry i off its holder's list and its timer.
func (t *Table) leaveLeased(c *cursor, i uint32) {
	e := t.entries.Mut(i)
	t.unlink(&t.holders[e.holder], i)
	t.wheel.Cancel(i)
	c.leased--
	t.subs.Mut(c.sub).leased--
}

// leaveWaiting takes entry i off the ready list, or its timer.
func (t *Table) leaveWaiting(c *cursor, i uint32) {
	e := t.entries.Mut(i)
	if e.ready {
		t.unlink(&c.ready, i)
		e.ready = false
	} else {
		t.wheel.Cancel(i)
	}
	c.waiting--
	t.subs.Mut(c.sub).waiting--
}

// giveBack makes the lease i a waiting message.
func (t *Table) giveBack(c *cursor, i uint32, atMs, stampMs int64, how ending) {
	t.leaveLeased(c, i)
	e := t.entries.Mut(i)
	e.state, e.ending, e.sinceMs, e.atMs = waiting, how, stampMs, atMs
	c.waiting++
	t.subs.Mut(c.sub).waiting++
	if atMs <= stampMs {
		t.makeReady(i)
	} else {
		t.wheel.Schedule(i, atMs)
	}
}

// Settle applies a SETTLE record.
func (t *Table) Settle(r *codec.Settle, stampMs int64) {
	slot, ok := t.byID[r.Sub]
	if !ok {
		t.violate("settle for subscription %d", r.Sub)
		return
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if int(run.Queue) >= len(t.queues[slot]) {
			t.violate("settle for queue %d of subscription %d", run.Queue, r.Sub)
			continue
		}
		ci := t.queues[slot][run.Queue]
		for offset := run.Offset; offset < run.Offset+uint64(run.Count); offset++ {
			if run.Lost {
				t.settleLost(ci, offset, run.Token, stampMs)
			} else {
				t.settle(ci, offset, run.Token, stampMs)
			}
		}
	}
	t.evict(slot, stampMs)
}

func (t *Table) settle(ci uint32, offset, token uint64, stampMs int64) {
	c := t.cursors.Mut(ci)
	i := t.index.get(ci, &c.tree, offset)
	if i == 0 {
		t.violate("settle of offset %d, which has no entry", offset)
		return
	}
	e := t.entries.Mut(i)
	switch {
	case e.token == token && e.state == leased:
		t.leaveLeased(c, i)
	case e.token == token && e.state == waiting && e.ending == endedExpired:
		t.leaveWaiting(c, i)
	default:
		t.violate("settle of offset %d by token %d: state %d, token %d", offset, token, e.state, e.token)
		return
	}
	if offset < c.next && e.attempts == 1 && !t.lostToken(token) {
		// Only one receipt was ever made of it, and the log knows it: that one needs no memory.
		c.settled++
		t.index.remove(ci, &c.tree, offset)
		t.entries.Free(i)
		return
	}
	t.remember(c, i, stampMs)
}

// remember makes entry i, which is on no list, one of a settled message: memory, or ahead of the cursor.
func (t *Table) remember(c *cursor, i uint32, stampMs int64) {
	e := t.entries.Mut(i)
	e.state, e.sinceMs, e.atMs = settled, stampMs, 0
	t.done++
	if e.offset < c.next {
		t.keep(c, i)
	}
}

// keep puts entry i, of a settled message that the cursor has passed, on the list of what is forgotten in time.
func (t *Table) keep(c *cursor, i uint32) {
	switch t.entries.At(i).ending {
	case endedUnreadable:
		c.unreadable++
	case endedDropped:
		c.dropped++
	default:
		c.settled++
	}
	t.push(&t.subs.Mut(c.sub).memory, i)
}

// evict forgets settled messages that are too old or too many, by the time of the record.
func (t *Table) evict(slot uint32, stampMs int64) {
	s := t.subs.Mut(slot)
	for range evictPerRecord {
		i := s.memory.head
		if i == 0 {
			return
		}
		e := t.entries.At(i)
		c := t.cursors.Mut(e.cursor)
		if s.memory.count <= memoryCount && e.sinceMs+memoryMs > stampMs {
			return
		}
		s.horizonMs = max(s.horizonMs, e.sinceMs)
		t.done--
		t.unlink(&s.memory, i)
		t.index.remove(e.cursor, &c.tree, e.offset)
		t.entries.Free(i)
	}
}

// Change applies a CHANGE record of the session in the slot holder.
func (t *Table) Change(r *codec.Change, stampMs int64, holder uint32) {
	slot, ok := t.byID[r.Sub]
	if !ok {
		t.violate("change for subscription %d", r.Sub)
		return
	}
	for i := range r.Entries {
		x := &r.Entries[i]
		if int(x.Queue) >= len(t.queues[slot]) {
			t.violate("change for queue %d of subscription %d", x.Queue, r.Sub)
			continue
		}
		t.change(t.queues[slot][x.Queue], x, stampMs, holder)
	}
}

func (t *Table) change(ci uint32, x *codec.ChangeEntry, stampMs int64, holder uint32) {
	c := t.cursors.Mut(ci)
	if x.Lost && !t.lendLost(ci, c, x, stampMs, holder) {
		return
	}
	i := t.index.get(ci, &c.tree, x.Offset)
	if i == 0 || t.entries.At(i).token != x.Token || t.entries.At(i).state != leased || t.entries.At(i).holder != holder {
		t.violate("change of offset %d by token %d, which holds no lease", x.Offset, x.Token)
		return
	}
	e := t.entries.Mut(i)
	if !e.fits(x) {
		t.violate("change %d of kind %d of offset %d to %d: %d changes, ends at %d", x.Ordinal, x.Kind, x.Offset, x.AtMs, e.ordinal, e.atMs)
		return
	}
	if x.Kind == codec.ChangeTaken {
		t.giveBack(c, i, x.AtMs, stampMs, endedTaken)
		return
	}
	e.ordinal = uint16(x.Ordinal)
	switch x.Kind {
	case codec.ChangeRenewed:
		e.atMs = x.AtMs // the timer moves when it fires
		bump16(&e.renewals)
	case codec.ChangeShortened:
		e.atMs = x.AtMs
		t.wheel.Schedule(i, x.AtMs)
	case codec.ChangeFailed:
		bump8(&e.failures)
		t.giveBack(c, i, x.AtMs, stampMs, endedReleased)
	case codec.ChangeReleased, codec.ChangePostponed:
		t.giveBack(c, i, x.AtMs, stampMs, endedReleased)
	}
}

// fits tells whether x is the next change of the lease e, and of a kind that agrees with its end.
func (e *entry) fits(x *codec.ChangeEntry) bool {
	switch x.Kind {
	case codec.ChangeRenewed:
		if x.AtMs <= e.atMs {
			return false
		}
	case codec.ChangeShortened:
		if x.AtMs > e.atMs {
			return false
		}
	case codec.ChangeReleased, codec.ChangeFailed, codec.ChangePostponed:
	case codec.ChangeTaken:
		return x.Ordinal == 0 && !x.Lost
	default:
		return false
	}
	return x.Ordinal == uint32(e.ordinal)+1 && x.Ordinal <= MaxOrdinal
}

// Expire applies an EXPIRE record.
func (t *Table) Expire(r *codec.Expire, stampMs int64) {
	for k := range r.Entries {
		x := &r.Entries[k]
		c, i := t.leaseOf(x)
		if i == 0 || t.entries.At(i).atMs > stampMs {
			t.violate("expiry of offset %d by token %d, which is not due", x.Offset, x.Token)
			continue
		}
		bump8(&t.entries.Mut(i).expiries)
		t.giveBack(c, i, x.AtMs, stampMs, endedExpired)
	}
}

// leaseOf finds the lease that x names, or zero.
func (t *Table) leaseOf(x *codec.ReleaseEntry) (*cursor, uint32) {
	slot, ok := t.byID[x.Sub]
	if !ok {
		return nil, 0
	}
	i, e := t.lookup(slot, x.Queue, x.Offset)
	if e == nil || e.token != x.Token || e.state != leased {
		return nil, 0
	}
	return t.cursors.Mut(e.cursor), i
}

// EndSession releases what the session in the slot holder holds, as its SESSION_END record lists it.
// counted: the losses count against the messages.
func (t *Table) EndSession(releases []codec.ReleaseEntry, stampMs int64, holder uint32, counted bool) {
	for k := range releases {
		x := &releases[k]
		c, i := t.leaseOf(x)
		if i == 0 || t.entries.At(i).holder != holder {
			t.violate("release of offset %d by token %d, which the session does not hold", x.Offset, x.Token)
			continue
		}
		if counted {
			bump8(&t.entries.Mut(i).losses)
		}
		t.giveBack(c, i, x.AtMs, stampMs, endedSession)
	}
	t.unmark(holder)
	if n := t.Held(holder); n != 0 {
		t.violate("an ended session holds %d leases still", n)
	}
}

// Unreadable applies an UNREADABLE record: the message is passed, its lease ends uncounted. It is remembered like
// one that was settled, so that no receipt of an earlier grant of it is told that it was.
func (t *Table) Unreadable(r *codec.Unreadable) {
	c, i := t.leaseOf(&codec.ReleaseEntry{Sub: r.Sub, Queue: r.Queue, Offset: r.Offset, Token: r.Token})
	if i == 0 {
		t.violate("offset %d by token %d is unreadable and not leased", r.Offset, r.Token)
		return
	}
	t.leaveLeased(c, i)
	e := t.entries.Mut(i)
	e.ending = endedUnreadable
	t.remember(c, i, e.sinceMs)
}
