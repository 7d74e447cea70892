package broker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/slab"
)

// emitRow takes one row of a snapshot; the bytes are its own after the call.
type emitRow func(kind codec.RowKind, row []byte) error

// topicsView is the topics as they were when they were frozen, for another goroutine to write.
type topicsView struct {
	slab   *slab.Slab[topic]
	queues *slab.Slab[queue]
	copies *slab.Slab[moved]
}

func (t *topics) freeze() topicsView {
	return topicsView{t.slab.Freeze(), t.queues.Freeze(), t.copies.Freeze()}
}

func (t *topics) thaw() {
	t.slab.Thaw()
	t.queues.Thaw()
	t.copies.Thaw()
}

// rows gives out a row for each topic, by id, then one for each copy.
func (v *topicsView) rows(emit emitRow) error {
	byID := map[uint32]*codec.TopicRow{}
	for i := uint32(1); i < v.slab.End(); i++ {
		if v.slab.Used(i) {
			x := v.slab.At(i)
			byID[x.id] = &codec.TopicRow{
				ID: x.id, UniqueKeyMs: x.uniqueKeyMs, Name: x.name[:x.nName], Queues: make([]codec.QueueRange, x.queues),
			}
		}
	}
	for i := uint32(1); i < v.queues.End(); i++ {
		if v.queues.Used(i) {
			q := v.queues.At(i)
			byID[v.slab.At(q.topic).id].Queues[q.index] = codec.QueueRange{Begin: q.begin, Next: q.next}
		}
	}
	ids := make([]uint32, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var b []byte
	for _, id := range ids {
		b = byID[id].Append(b[:0])
		if err := emit(codec.RowTopic, b); err != nil {
			return err
		}
	}
	for _, row := range copyRows(v.slab, v.queues, v.copies) {
		b = row.Append(b[:0])
		if err := emit(codec.RowCopy, b); err != nil {
			return err
		}
	}
	return nil
}

// copyRows lists copies by topic, queue and offset.
func copyRows(topics *slab.Slab[topic], queues *slab.Slab[queue], copies *slab.Slab[moved]) []codec.CopyRow {
	rows := make([]codec.CopyRow, 0, copies.Len())
	for i := uint32(1); i < copies.End(); i++ {
		if !copies.Used(i) {
			continue
		}
		x := copies.At(i)
		q := queues.At(x.queue)
		rows = append(rows, codec.CopyRow{
			Topic: topics.At(q.topic).id, Queue: q.index, Offset: x.offset,
			Position: x.entry.Position, Size: x.entry.Size, TagHash: x.entry.TagHash, OrderHash: x.entry.OrderHash,
		})
	}
	slices.SortFunc(rows, func(a, b codec.CopyRow) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Offset, b.Offset))
	})
	return rows
}

func (t *topics) loadTopic(r *codec.TopicRow) error {
	if _, taken := t.ids[r.ID]; taken || r.ID == 0 || r.ID >= t.nextID || len(r.Queues) > 1<<16-1 {
		return fmt.Errorf("topic %d %q of %d queues", r.ID, r.Name, len(r.Queues))
	}
	if _, taken := t.names[string(r.Name)]; taken || len(r.Name) > len(topic{}.name) {
		return fmt.Errorf("topic %d is named %q", r.ID, r.Name)
	}
	slot := t.slab.Alloc()
	x := t.slab.Mut(slot)
	x.id, x.uniqueKeyMs = r.ID, r.UniqueKeyMs
	x.nName = uint8(copy(x.name[:], r.Name))
	t.link(slot)
	t.grow(slot, uint16(len(r.Queues)))
	for i, q := range t.queueOf[slot] {
		if r.Queues[i].Begin > r.Queues[i].Next {
			return fmt.Errorf("topic %d queue %d begins at %d and ends at %d", r.ID, i, r.Queues[i].Begin, r.Queues[i].Next)
		}
		y := t.queues.Mut(q)
		y.begin, y.next = r.Queues[i].Begin, r.Queues[i].Next
		t.messages += y.next - y.begin
	}
	return nil
}

func (t *topics) loadCopy(r *codec.CopyRow) error {
	q, ok := t.queueSlot(r.Topic, r.Queue)
	if !ok || r.Offset >= t.queues.At(q).next || r.Position < t.logStart {
		return fmt.Errorf("copy of offset %d of queue %d of topic %d at %d", r.Offset, r.Queue, r.Topic, r.Position)
	}
	t.copied(&codec.MessagePlace{Topic: r.Topic, Queue: r.Queue, Offset: r.Offset},
		consumequeue.Entry{Position: r.Position, Size: r.Size, TagHash: r.TagHash, OrderHash: r.OrderHash})
	return nil
}
