package lease

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/slab"
)

// View is the table as it was when it was frozen, for another goroutine to write.
type View struct {
	subs    *slab.Slab[sub]
	cursors *slab.Slab[cursor]
	entries *slab.Slab[entry]
	marks   *slab.Slab[popMark]
	index   radix
	epochs  []epochSpan
	marked  []uint32
	// NextSub is the counter of subscriptions.
	NextSub uint32
}

// Freeze gives a view that stays as it is while the table goes on, until Thaw.
func (t *Table) Freeze() *View {
	return &View{
		subs: t.subs.Freeze(), cursors: t.cursors.Freeze(), entries: t.entries.Freeze(), marks: t.marks.Freeze(),
		index: radix{nodes: t.index.nodes.Freeze()}, NextSub: t.nextSub,
		epochs: slices.Clone(t.epochs), marked: slices.Clone(t.marked),
	}
}

// Thaw ends the view.
func (t *Table) Thaw() {
	t.subs.Thaw()
	t.cursors.Thaw()
	t.entries.Thaw()
	t.marks.Thaw()
	t.index.nodes.Thaw()
}

// EpochRows gives out a row for each epoch, oldest first.
func (v *View) EpochRows(emit func(kind codec.RowKind, row []byte) error) error {
	var b []byte
	for _, s := range v.epochs {
		row := codec.EpochRow{Epoch: s.epoch, Number: s.number, Start: s.start}
		b = row.Append(b[:0])
		if err := emit(codec.RowEpoch, b); err != nil {
			return err
		}
	}
	return nil
}

// Rows gives out all subscriptions, by id, each with its cursors and messages, then the pop marks. sessionID names the
// session in a slot.
func (v *View) Rows(sessionID func(slot uint32) uint64, emit func(kind codec.RowKind, row []byte) error) error {
	cursors := map[uint32][]uint32{} // by slot of the subscription
	for i := uint32(1); i < v.cursors.End(); i++ {
		if v.cursors.Used(i) {
			slot := v.cursors.At(i).sub
			cursors[slot] = append(cursors[slot], i)
		}
	}
	var slots []uint32
	for i := uint32(1); i < v.subs.End(); i++ {
		if v.subs.Used(i) {
			slots = append(slots, i)
		}
	}
	slices.SortFunc(slots, func(a, b uint32) int { return cmp.Compare(v.subs.At(a).id, v.subs.At(b).id) })
	w := rowWriter{v: v, sessionID: sessionID, emit: emit}
	for _, slot := range slots {
		list := cursors[slot]
		slices.SortFunc(list, func(a, b uint32) int { return cmp.Compare(v.cursors.At(a).queue, v.cursors.At(b).queue) })
		w.subscription(v.subs.At(slot), list)
	}
	w.popMarks()
	return w.err
}

// rowWriter gives out rows until one is refused.
type rowWriter struct {
	v         *View
	sessionID func(uint32) uint64
	emit      func(codec.RowKind, []byte) error
	buf       []byte
	err       error
}

func (w *rowWriter) row(kind codec.RowKind, b []byte) bool {
	w.buf = b[:0]
	if w.err == nil {
		w.err = w.emit(kind, b)
	}
	return w.err == nil
}

func (w *rowWriter) subscription(s *sub, cursors []uint32) {
	row := codec.SubscriptionRow{Sub: s.id, Group: s.group, Topic: s.topic, HorizonMs: s.horizonMs, Filter: s.filter[:s.nTags]}
	w.row(codec.RowSubscription, row.Append(w.buf))
	for _, i := range cursors {
		c := w.v.cursors.At(i)
		row := codec.CursorRow{
			Queue: c.queue, Start: c.start, Next: c.next,
			Settled: c.settled, Skipped: c.skipped, Unreadable: c.unreadable, Dropped: c.dropped,
		}
		w.row(codec.RowCursor, row.Append(w.buf))
		w.v.index.walk(&c.tree, func(_ uint64, i uint32) bool { return w.message(w.v.entries.At(i)) })
		// What waited has a timer again when it is loaded, as it has after a replay; what did not keeps its place.
		w.list(codec.RowReady, c.ready.head, (*entry).atOnce)
	}
	w.list(codec.RowMemory, s.memory.head, nil)
}

func (w *rowWriter) message(e *entry) bool {
	row := codec.MessageRow{
		Offset: e.offset, Token: e.token, AtMs: e.atMs, SinceMs: e.sinceMs,
		Attempts: e.attempts, Ordinal: e.ordinal, Renewals: e.renewals,
		Failures: e.failures, Expiries: e.expiries, Losses: e.losses, State: uint8(e.state), Ending: uint8(e.ending),
	}
	if e.state == leased {
		row.Session = w.sessionID(e.holder)
	}
	return w.row(codec.RowMessage, row.Append(w.buf))
}

// list gives out the order of a list of messages, or of those among them that belong to it.
func (w *rowWriter) list(kind codec.RowKind, head uint32, belongs func(*entry) bool) {
	var row codec.MemoryRow
	for i := head; i != 0; i = w.v.entries.At(i).next {
		e := w.v.entries.At(i)
		if belongs != nil && !belongs(e) {
			continue
		}
		row.Messages = append(row.Messages, codec.QueueOffset{Queue: w.v.cursors.At(e.cursor).queue, Offset: e.offset})
		if len(row.Messages) == codec.MaxMemoryRow {
			w.row(kind, row.Append(w.buf))
			row.Messages = row.Messages[:0]
		}
	}
	if len(row.Messages) > 0 {
		w.row(kind, row.Append(w.buf))
	}
}

func (w *rowWriter) popMarks() {
	for holder, i := range w.v.marked {
		for ; i != 0; i = w.v.marks.At(i).next {
			m := w.v.marks.At(i)
			row := codec.PopMarkRow{Session: w.sessionID(uint32(holder)), Slot: m.slot, Sequence: m.Sequence, Token: m.Token, Sub: m.Sub}
			if !w.row(codec.RowPopMark, row.Append(w.buf)) {
				return
			}
		}
	}
}

// Loader fills an empty table with the rows of a snapshot, in the order in which they were given out.
type Loader struct {
	t       *Table
	slotOf  func(session uint64) (slot uint32, live bool)
	sub     uint32 // slot of the newest subscription, 0: none
	cursor  uint32 // index of its newest cursor, 0: none
	owed    int    // settled messages behind their cursor, not yet remembered
	unready int    // messages that were given back without a wait, not yet ready
	below   uint64 // unsettled messages of the newest cursor that it has passed

	// reused
	message codec.MessageRow
	memory  codec.MemoryRow
}

// Load begins to load a snapshot. slotOf finds a session that was loaded before.
func (t *Table) Load(nextSub uint32, slotOf func(session uint64) (slot uint32, live bool)) *Loader {
	t.nextSub = nextSub
	return &Loader{t: t, slotOf: slotOf}
}

// Row takes a row. An error says that it contradicts others: the snapshot is no good.
func (l *Loader) Row(kind codec.RowKind, b []byte) error {
	switch kind {
	case codec.RowEpoch:
		var r codec.EpochRow
		if err := r.Decode(b); err != nil {
			return err
		}
		if last, _ := l.t.Number(); r.Epoch <= last {
			return fmt.Errorf("epoch %d behind %d", r.Epoch, last)
		}
		l.t.epochs = append(l.t.epochs, epochSpan{epoch: r.Epoch, number: r.Number, start: r.Start})
		return nil
	case codec.RowSubscription:
		var r codec.SubscriptionRow
		if err := r.Decode(b); err != nil {
			return err
		}
		return l.subscription(&r)
	case codec.RowCursor:
		var r codec.CursorRow
		if err := r.Decode(b); err != nil {
			return err
		}
		return l.newCursor(&r)
	case codec.RowMessage:
		if err := l.message.Decode(b); err != nil {
			return err
		}
		return l.newMessage(&l.message)
	case codec.RowReady, codec.RowMemory:
		if err := l.memory.Decode(b); err != nil {
			return err
		}
		if kind == codec.RowReady {
			return l.makeReady(&l.memory)
		}
		return l.remember(&l.memory)
	case codec.RowPopMark:
		var r codec.PopMarkRow
		if err := r.Decode(b); err != nil {
			return err
		}
		return l.popMark(&r)
	}
	return fmt.Errorf("a row of kind %d", kind)
}

// endCursor looks whether the newest cursor counts right what it has passed.
func (l *Loader) endCursor() error {
	if l.cursor == 0 {
		return nil
	}
	c := l.t.cursors.At(l.cursor)
	if c.next-c.start != c.settled+c.skipped+c.unreadable+c.dropped+l.below {
		return fmt.Errorf("the cursor of queue %d has passed %d, settled %d, skipped %d, unreadable %d, dropped %d, unsettled %d",
			c.queue, c.next-c.start, c.settled, c.skipped, c.unreadable, c.dropped, l.below)
	}
	l.cursor, l.below = 0, 0
	return nil
}

func (l *Loader) subscription(r *codec.SubscriptionRow) error {
	if err := l.endCursor(); err != nil {
		return err
	}
	t := l.t
	if _, taken := t.byPair[pair(r.Group, r.Topic)]; taken || r.Sub == 0 || r.Sub >= t.nextSub || t.byID[r.Sub] != 0 {
		return fmt.Errorf("subscription %d of group %d to topic %d", r.Sub, r.Group, r.Topic)
	}
	l.sub = t.addSub(&sub{id: r.Sub, group: r.Group, topic: r.Topic, horizonMs: r.HorizonMs}, r.Filter)
	return nil
}

func (l *Loader) newCursor(r *codec.CursorRow) error {
	if err := l.endCursor(); err != nil {
		return err
	}
	t := l.t
	if l.sub == 0 || int(r.Queue) != len(t.queues[l.sub]) || r.Start > r.Next {
		return fmt.Errorf("cursor of queue %d, from %d to %d", r.Queue, r.Start, r.Next)
	}
	t.addQueue(l.sub, r.Start)
	l.cursor = t.queues[l.sub][r.Queue]
	c := t.cursors.Mut(l.cursor)
	// What is remembered adds itself below; it is counted here.
	c.next, c.settled, c.skipped, c.unreadable, c.dropped = r.Next, r.Settled, r.Skipped, r.Unreadable, r.Dropped
	return nil
}

func (l *Loader) newMessage(r *codec.MessageRow) error {
	t := l.t
	if l.cursor == 0 {
		return fmt.Errorf("a message at offset %d without a cursor", r.Offset)
	}
	c := t.cursors.Mut(l.cursor)
	if t.index.get(l.cursor, &c.tree, r.Offset) != 0 {
		return fmt.Errorf("two messages at offset %d", r.Offset)
	}
	i := t.entries.Alloc()
	e := t.entries.Mut(i)
	*e = entry{
		offset: r.Offset, token: r.Token, atMs: r.AtMs, sinceMs: r.SinceMs, cursor: l.cursor,
		attempts: r.Attempts, ordinal: r.Ordinal, renewals: r.Renewals,
		failures: r.Failures, expiries: r.Expiries, losses: r.Losses, state: state(r.State), ending: ending(r.Ending),
	}
	t.index.set(l.cursor, &c.tree, r.Offset, i)
	if r.Offset >= c.next {
		c.ahead++
	} else if e.state != settled {
		l.below++
	}
	switch e.state {
	case leased:
		holder, live := l.slotOf(r.Session)
		if !live {
			return fmt.Errorf("offset %d is leased to session %d, which does not live", r.Offset, r.Session)
		}
		t.fitHolders(holder)
		e.holder = holder
		t.push(&t.holders[holder], i)
		t.wheel.Schedule(i, e.atMs)
		c.leased++
		t.subs.Mut(l.sub).leased++
	case waiting:
		c.waiting++
		t.subs.Mut(l.sub).waiting++
		if e.atOnce() {
			l.unready++
		} else {
			t.wheel.Schedule(i, e.atMs)
		}
	case settled:
		t.done++
		if r.Offset < c.next {
			l.owed++
		}
	default:
		return fmt.Errorf("offset %d is in state %d", r.Offset, r.State)
	}
	return nil
}

// makeReady puts messages of the newest cursor on its list of those that can be granted again.
func (l *Loader) makeReady(r *codec.MemoryRow) error {
	t := l.t
	for _, m := range r.Messages {
		i := uint32(0)
		if l.cursor != 0 && t.cursors.At(l.cursor).queue == m.Queue {
			i = t.index.get(l.cursor, &t.cursors.At(l.cursor).tree, m.Offset)
		}
		if i == 0 || t.entries.At(i).state != waiting || !t.entries.At(i).atOnce() || t.entries.At(i).ready {
			return fmt.Errorf("offset %d of queue %d is ready", m.Offset, m.Queue)
		}
		t.makeReady(i)
		l.unready--
	}
	return nil
}

func (l *Loader) remember(r *codec.MemoryRow) error {
	t := l.t
	for _, m := range r.Messages {
		if l.sub == 0 || int(m.Queue) >= len(t.queues[l.sub]) {
			return fmt.Errorf("memory of queue %d", m.Queue)
		}
		ci := t.queues[l.sub][m.Queue]
		c := t.cursors.At(ci)
		i := t.index.get(ci, &c.tree, m.Offset)
		memory := &t.subs.Mut(l.sub).memory
		if i == 0 || t.entries.At(i).state != settled || m.Offset >= c.next || t.entries.At(i).prev != 0 || memory.head == i {
			return fmt.Errorf("offset %d of queue %d is remembered", m.Offset, m.Queue)
		}
		t.push(memory, i)
		l.owed--
	}
	return nil
}

func (l *Loader) popMark(r *codec.PopMarkRow) error {
	holder, live := l.slotOf(r.Session)
	if !live || r.Sequence == 0 || r.Token == 0 || l.t.PopMark(holder, r.Slot).Sequence != 0 {
		return fmt.Errorf("pop slot %d of session %d", r.Slot, r.Session)
	}
	l.t.mark(holder, r.Slot, PopMark{r.Sequence, r.Token, r.Sub})
	return nil
}

// Finish ends the loading.
func (l *Loader) Finish() error {
	if err := l.endCursor(); err != nil {
		return err
	}
	if l.owed != 0 || l.unready != 0 {
		return fmt.Errorf("%d settled messages are in no memory, %d that can be granted are on no list", l.owed, l.unready)
	}
	return nil
}
