package consumequeue

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"syscall"
)

// Recovery runs between Open and Start, in one goroutine. The log is read, whole or from a snapshot on, and every message in it is
// given to Recover, which brings the files in line and leaves alone what is right already. FinishRecovery then cuts
// off what the log does not know.

// QueueEnd says where the entries of a queue begin and end, as the recovered state has it.
type QueueEnd struct {
	Topic uint32
	Queue uint16
	Begin uint64 // below it nothing is needed, whether it was replayed or not
	End   uint64
}

// IncompleteError tells that entries are missing which lie before the part of the log that was replayed. The index has to be
// rebuilt from the whole log.
type IncompleteError struct {
	Topic    uint32
	Queue    uint16
	Offset   uint64 // the first that is known to be missing
	Replayed uint64 // the first that was replayed; the end of the queue if none was
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("consumequeue: topic %d queue %d has no entry for offset %d, and the log was replayed from offset %d on", e.Topic, e.Queue, e.Offset, e.Replayed)
}

// Recover takes the entry of a message. The offsets of a queue come without gaps, from wherever the replay begins;
// one that has come already is replaced (the message was moved in the log).
func (x *Index) Recover(topic uint32, queue uint16, offset uint64, e Entry) error {
	q := x.lastRecovered
	if q == nil || q.topic != topic || q.queue != queue {
		q = x.Queue(topic, queue)
		x.lastRecovered = q
	}
	end := q.end.Load()
	switch {
	case !q.recovered:
		q.recovered, q.recoveredFrom = true, offset
		q.flushed = offset
		end = offset
		q.end.Store(offset)
	case offset > end:
		return fmt.Errorf("consumequeue: topic %d queue %d: offset %d follows %d in the log", topic, queue, offset, end)
	case offset < end:
		if b := x.table.get(q, firstOf(offset)); b != nil && b.contains(offset) {
			b.Entries[offset%BlockEntries] = e
		}
		if offset >= q.flushed || waits(x.table.get(q, firstOf(offset))) {
			return nil
		}
		return x.files.restore(q, offset, []Entry{e})
	}
	b := q.tail
	if b == nil {
		b = q.openTail(offset)
	}
	b.Entries[offset%BlockEntries] = e
	b.To = end + 1
	q.end.Store(end + 1)
	if b.To%BlockEntries == 0 {
		return x.restoreTail(q)
	}
	return nil
}

// restoreTail brings the file in line with what was recovered since the last time.
func (x *Index) restoreTail(q *Queue) error {
	b := q.tail
	if b == nil {
		return nil
	}
	if err := x.files.restore(q, q.flushed, b.Entries[q.flushed-b.First:b.To-b.First]); err != nil {
		if !isShortage(err) || x.dirty.Load() >= int64(x.opt.DirtyBytes) {
			return err
		}
		// A disk without room must not keep the broker from starting, since consumers may be what makes room: the
		// entries wait in memory for the writer, as those that are appended later do.
		if x.dirty.Load() == 0 {
			x.log.Warn("index entries of the replay could not be stored; they stay in memory", "error", err)
		}
		q.closeTail()
		return nil
	}
	q.flushed = b.To
	q.tail = nil
	x.tails.remove(q)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ring.insert(b)
	if x.ring.length > x.room {
		x.giveBack(x.ring.take())
	}
	return nil
}

// waits tells whether b is to be stored by the writer.
func waits(b *Block) bool { return b != nil && b.writes > 0 }

// isShortage tells whether an error says that the disk is full.
func isShortage(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// restore stores entries unless the file has them. Even then they may be in memory only, if just the process died: they are to be
// flushed before anything says that they need no replay.
func (f *files) restore(q *Queue, offset uint64, entries []Entry) error {
	var there [BlockEntries]Entry
	old := there[:len(entries)]
	if key := keyOf(q, offset); key != f.restoring {
		f.mustFlush(q, key)
		f.restoring = key
	}
	if found, err := f.readFile(q, offset, old); err == nil && found && slices.Equal(old, entries) {
		return nil
	}
	return f.write(q, piece{offset, entries})
}

// FinishRecovery takes the queues that there are. It removes everything else from the directory: entries at and beyond the end of
// a queue, files below its begin, files and directories of other queues.
//
// It gives an *IncompleteError if entries in [Begin, End) of a queue were not replayed and are not in the files, as far as that can be seen
// without reading them all: for each file its size, where the file system knows of no data in it, and its last entries, or the last before
// the replayed ones. (These are missing when a lost file was made anew by what came behind it.) Pages that
// were overwritten with zeroes are found when they are looked up: see Options.OnHole.
//
// Then Abort, Open another index, Recover every message of the log, and FinishRecovery again. If that one, too, finds
// something missing, it is in no log any more.
func (x *Index) FinishRecovery(ends iter.Seq[QueueEnd]) error {
	for e := range ends {
		if err := x.finish(x.Queue(e.Topic, e.Queue), e); err != nil {
			return err
		}
	}
	for _, q := range x.queues {
		if !q.known {
			x.forget(q)
		}
	}
	x.lastRecovered = nil
	x.files.closeReaders(func(fileKey) bool { return true }) // files may be removed
	return x.reconcile()
}

// finish completes what was recovered of a queue by what the state says of it.
func (x *Index) finish(q *Queue, e QueueEnd) error {
	if err := x.restoreTail(q); err != nil {
		return err
	}
	if !q.recovered {
		q.recoveredFrom = e.End
		q.end.Store(e.End)
		q.flushed = e.End
	}
	if end := q.end.Load(); end != e.End || e.Begin > end {
		return fmt.Errorf("consumequeue: topic %d queue %d: the log ends at offset %d, the state says %d to %d", q.topic, q.queue, end, e.Begin, e.End)
	}
	q.known = true
	q.begin.Store(e.Begin)
	q.firstFile = e.Begin / FileEntries
	return nil
}

// forget drops a queue that was in the log and is not in the state: its topic was deleted.
func (x *Index) forget(q *Queue) {
	q.dropped.Store(true)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.queues, queueKey{q.topic, q.queue})
	x.all[q.place] = nil
	x.holes = append(x.holes, q.place)
	x.topics[q.topic] = slices.DeleteFunc(x.topics[q.topic], func(o *Queue) bool { return o == q })
	if b := q.tail; b != nil {
		q.tail = nil
		x.tails.remove(q)
		x.giveBack(b)
	}
}
