package consumequeue

import (
	"fmt"
	"slices"
)

// mostRepairs bounds how many blocks a Poll mends in memory. The rest waits for the next.
const mostRepairs = 256

// repair is a piece of a block that was stored again while the block was in memory.
type repair struct {
	queue *Queue
	piece
}

// reportHoles tells OnHole of entries that were lost. The begin is looked at after they were read: if the file was removed meanwhile
// they all lie below it.
func (x *Index) reportHoles(q *Queue, first uint64, entries []Entry) {
	for i := range entries {
		if offset := first + uint64(i); !entries[i].Written() && offset >= q.begin.Load() && !q.dropped.Load() {
			x.stats.holes.Add(1)
			x.opt.OnHole(q.topic, q.queue, offset)
		}
	}
}

// Repair stores entries again, from an offset on, that their file has lost or has wrong, and replaces them where they are in memory:
// the section, and Read, see them from its next Poll on (a block that is being loaded: from the Poll that brings it), and OnLoad is
// called. They are durable after the next Sync. All of them must lie below the end of the queue; what lies below its begin
// is passed over. Entries that were appended since the start and not given to the writer yet can't be lost, and
// are left alone.
//
// It waits for the writer, stores, and may block: any goroutine but the section, from Start on. After an error it may have
// stored a part; repeating it is harmless. The file is opened anew for it, and made if it is gone: its other entries
// are then holes, that are reported when somebody looks.
func (x *Index) Repair(topic uint32, queue uint16, from uint64, entries []Entry) error {
	x.mu.Lock()
	q := x.queues[queueKey{topic, queue}]
	if q == nil {
		x.mu.Unlock()
		return fmt.Errorf("consumequeue: repair: topic %d queue %d is not known", topic, queue)
	}
	given := q.flushed
	end := q.end.Load()
	x.mu.Unlock()
	if from > end || uint64(len(entries)) > end-from {
		return fmt.Errorf("consumequeue: repair: topic %d queue %d: %d entries from offset %d reach over the end %d", topic, queue, len(entries), from, end)
	}
	for i := range entries {
		if !entries[i].Written() {
			return fmt.Errorf("consumequeue: repair: topic %d queue %d: the entry given for offset %d is none", topic, queue, from+uint64(i))
		}
	}
	// The writer is done with everything below given when this returns, and nothing below it is given to the writer again. So
	// below it nobody else stores, and nobody but us and the loader looks into blocks without mu.
	if err := x.awaitWriter(); err != nil {
		return err
	}
	entries = entries[:min(uint64(len(entries)), max(given, from)-from)]
	resident := false
	for i := 0; len(entries) > 0; i++ {
		if i == 0 || from%FileEntries == 0 {
			x.files.reopen(keyOf(q, from))
		}
		n := min(uint64(len(entries)), BlockEntries-from%BlockEntries)
		inMemory, err := x.repairBlock(q, piece{from, entries[:n]})
		if err != nil {
			return err
		}
		resident = resident || inMemory
		from += n
		entries = entries[n:]
	}
	if resident {
		x.opt.OnLoad()
	}
	return nil
}

// repairBlock stores a piece of one block, then asks the section to take it over if the block is in memory. In this order: a block that
// comes later is loaded from what was stored.
func (x *Index) repairBlock(q *Queue, p piece) (resident bool, err error) {
	end := p.from + uint64(len(p.entries))
	if end <= q.begin.Load() {
		return false, nil
	}
	if err := x.files.write(q, p); err != nil {
		return false, err
	}
	x.stats.repaired.Add(uint64(len(p.entries)))
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.table.get(q, firstOf(p.from)) == nil {
		return false, nil
	}
	x.repairs = append(x.repairs, repair{q, piece{p.from, slices.Clone(p.entries)}})
	x.countInbox()
	return true, nil
}

// takeRepairs puts what was repaired into blocks that are in memory. It needs mu, and no block may be in the caller's hands.
func (x *Index) takeRepairs() {
	if len(x.repairs) == 0 {
		return
	}
	n := min(len(x.repairs), mostRepairs)
	later := x.repairs[:0]
	for _, r := range x.repairs[:n] {
		b := x.table.get(r.queue, firstOf(r.from))
		if b == nil {
			continue
		}
		if b.loading { // perhaps from before the repair
			later = append(later, r)
			continue
		}
		from := max(r.from, b.From)
		to := min(r.from+uint64(len(r.entries)), b.To)
		if from < to {
			copy(b.Entries[from-b.First:to-b.First], r.entries[from-r.from:])
		}
	}
	x.repairs = slices.Delete(x.repairs, len(later), n)
	x.countInbox()
}
