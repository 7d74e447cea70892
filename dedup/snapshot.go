package dedup

import (
	"fmt"
	"math/bits"
	"sort"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/slab"
)

// A snapshot of the table is its rows: the producers, those without sequences in the order in which they will be
// forgotten; the chunks in the order of their queue; the keys, topic by topic, oldest first. So what a table that was
// loaded evicts, it evicts as the table would that was written.

// View is the table as it was when it was frozen. One goroutine may read it while the table goes on.
type View struct {
	producers *slab.Slab[producer]
	chunks    *slab.Slab[chunk]
	topics    *slab.Slab[topicKeys]
	keys      *slab.Slab[key]
	queue     uint32 // first chunk
	idle      uint32 // first producer without chunks
}

// Freeze gives a view of the table as it is now, good until Thaw. There is one at a time.
func (t *Table) Freeze() *View {
	return &View{
		producers: t.producers.Freeze(), chunks: t.chunks.Freeze(), topics: t.topics.Freeze(), keys: t.keys.Freeze(),
		queue: t.queue.head, idle: t.idle.head,
	}
}

// Thaw ends the view, which nobody reads any more. Without one it does nothing.
func (t *Table) Thaw() {
	t.producers.Thaw()
	t.chunks.Thaw()
	t.topics.Thaw()
	t.keys.Thaw()
}

// Rows calls emit with the rows of the view, until it fails. A row is good during the call only.
func (v *View) Rows(emit func(kind codec.RowKind, row []byte) error) error {
	var buffer []byte
	for slot := v.idle; slot != 0; slot = v.producers.At(slot).next {
		buffer = v.producers.At(slot).row().Append(buffer[:0])
		if err := emit(codec.RowProducer, buffer); err != nil {
			return err
		}
	}
	for slot := range v.producers.End() {
		if !v.producers.Used(slot) || v.producers.At(slot).chunks.root == 0 {
			continue
		}
		buffer = v.producers.At(slot).row().Append(buffer[:0])
		if err := emit(codec.RowProducer, buffer); err != nil {
			return err
		}
	}
	var row codec.SequencesRow
	for i := v.queue; i != 0; i = v.chunks.At(i).next {
		v.chunks.At(i).row(&row, v.producers)
		buffer = row.Append(buffer[:0])
		if err := emit(codec.RowSequences, buffer); err != nil {
			return err
		}
	}
	for _, slot := range v.slots() {
		k := v.topics.At(slot)
		for i := k.list.head; i != 0; i = v.keys.At(i).next {
			e := v.keys.At(i)
			row := codec.UniqueKeyRow{Topic: k.id, Hash: e.hash, ExpiresMs: e.expiresMs, Place: codec.StoredPlace{
				Queue: e.queue, Epoch: e.epoch, Offset: e.offset, Position: e.position,
			}}
			buffer = row.Append(buffer[:0])
			if err := emit(codec.RowUniqueKey, buffer); err != nil {
				return err
			}
		}
	}
	return nil
}

// slots is the topics that have keys and were not dropped, by id.
func (v *View) slots() []uint32 {
	var slots []uint32
	for slot := range v.topics.End() {
		if v.topics.Used(slot) && !v.topics.At(slot).dropped && v.topics.At(slot).count > 0 {
			slots = append(slots, slot)
		}
	}
	sort.Slice(slots, func(i, j int) bool { return v.topics.At(slots[i]).id < v.topics.At(slots[j]).id })
	return slots
}

func (p *producer) row() *codec.ProducerRow {
	return &codec.ProducerRow{ID: p.id, Floor: p.floor, Highest: p.highest, LastMs: p.lastMs}
}

func (c *chunk) row(r *codec.SequencesRow, producers *slab.Slab[producer]) {
	*r = codec.SequencesRow{
		Producer: producers.At(c.producer).id, First: c.number << chunkBits,
		NewestMs: c.newestMs, QueuedMs: c.queuedMs, Known: c.known,
	}
	for left := c.known; left != 0; left &= left - 1 {
		k := bits.TrailingZeros16(left)
		r.Places[k] = codec.StoredPlace{Queue: c.at[k], Epoch: c.epoch[k], Offset: c.offset[k], Position: c.position[k]}
	}
}

// Load adds a row of a view to a table that was empty before the first. Rows come in the order in which Rows gave
// them; Loaded follows the last. A table that has refused a row is of no use.
func (t *Table) Load(kind codec.RowKind, row []byte) error {
	if t.loading == 0 && t.producers.Len()+t.topics.Len() != 0 {
		return fmt.Errorf("dedup: a row of kind %d for a table that is not empty", kind)
	}
	if kind < t.loading {
		return fmt.Errorf("dedup: a row of kind %d behind one of kind %d", kind, t.loading)
	}
	t.loading = kind
	switch kind {
	case codec.RowProducer:
		return t.loadProducer(row)
	case codec.RowSequences:
		return t.loadSequences(row)
	case codec.RowUniqueKey:
		return t.loadKey(row)
	}
	return fmt.Errorf("dedup: a row of kind %d", kind)
}

func (t *Table) loadProducer(row []byte) error {
	var r codec.ProducerRow
	if err := r.Decode(row); err != nil {
		return fmt.Errorf("dedup: row of a producer: %w", err)
	}
	if _, known := t.byID[r.ID]; known || r.ID == 0 {
		return fmt.Errorf("dedup: row of producer %d, which is zero or known", r.ID)
	}
	if r.Highest == 0 || r.Floor > r.Highest || r.Highest-r.Floor > window {
		return fmt.Errorf("dedup: producer %d: floor %d, highest sequence %d", r.ID, r.Floor, r.Highest)
	}
	slot := t.producers.Alloc()
	p := t.producers.Mut(slot)
	p.id, p.floor, p.highest, p.lastMs = r.ID, r.Floor, r.Highest, r.LastMs
	pushBack(t.producers, &t.idle, slot)
	t.byID[r.ID] = slot
	return nil
}

func (t *Table) loadSequences(row []byte) error {
	var r codec.SequencesRow
	if err := r.Decode(row); err != nil {
		return fmt.Errorf("dedup: row of sequences: %w", err)
	}
	slot, number := t.slotOf(r.Producer), r.First>>chunkBits
	if slot == 0 {
		return fmt.Errorf("dedup: sequences of producer %d, which has no row", r.Producer)
	}
	p := t.producers.Mut(slot)
	if r.First%perChunk != 0 || r.Known == 0 || r.First == 0 && r.Known&1 != 0 || t.forest.get(&p.chunks, number) != 0 {
		return fmt.Errorf("dedup: producer %d: sequences from %d on, bits %#04x, which cannot be or are known", r.Producer, r.First, r.Known)
	}
	if top := r.First + uint64(bits.Len16(r.Known)) - 1; top > p.highest || r.NewestMs > p.lastMs {
		return fmt.Errorf("dedup: producer %d: sequence %d at %d ms, its highest is %d at %d ms", r.Producer, top, r.NewestMs, p.highest, p.lastMs)
	}
	i := t.addChunk(slot, number, r.QueuedMs)
	c := t.chunks.Mut(i)
	c.newestMs, c.known = r.NewestMs, r.Known
	for k := range r.Places {
		at := &r.Places[k]
		c.at[k], c.epoch[k], c.offset[k], c.position[k] = at.Queue, at.Epoch, at.Offset, at.Position
	}
	t.sequences += bits.OnesCount16(r.Known)
	return nil
}

func (t *Table) loadKey(row []byte) error {
	var r codec.UniqueKeyRow
	if err := r.Decode(row); err != nil {
		return fmt.Errorf("dedup: row of a unique key: %w", err)
	}
	slot := t.topicOf(r.Topic)
	if slot == 0 {
		slot = t.addTopic(r.Topic)
	}
	tag := t.index.tag(slot, r.Hash)
	if t.findKey(slot, r.Hash, tag) != 0 {
		return fmt.Errorf("dedup: key %016x%016x of topic %d twice", r.Hash[1], r.Hash[0], r.Topic)
	}
	t.addKey(tag, key{
		hash: r.Hash, topic: slot, expiresMs: r.ExpiresMs,
		queue: r.Place.Queue, offset: r.Place.Offset, epoch: r.Place.Epoch, position: r.Place.Position,
	})
	return nil
}

// Loaded ends the loading of rows: it tells whether those of producers and of sequences agree.
func (t *Table) Loaded() error {
	t.loading = 0
	for slot := range t.producers.End() {
		if t.producers.Used(slot) {
			if err := t.auditWindow(t.producers.At(slot)); err != nil {
				return fmt.Errorf("dedup: %w", err)
			}
		}
	}
	return nil
}

// auditWindow holds the highest sequence and the floor of a producer against its chunks.
func (t *Table) auditWindow(p *producer) error {
	highest := p.floor
	if i := t.forest.highest(&p.chunks); i != 0 {
		highest = t.chunks.At(i).top()
	}
	if highest != p.highest || p.floor > p.highest || p.highest-p.floor > window {
		return fmt.Errorf("producer %d: floor %d, highest sequence %d, known up to %d", p.id, p.floor, p.highest, highest)
	}
	return nil
}
