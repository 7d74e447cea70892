package consumequeue

import (
	"errors"
	"fmt"
)

// HoleError tells that the file of a queue has lost the entry of an offset. Repair mends it.
type HoleError struct {
	Topic  uint32
	Queue  uint16
	Offset uint64
}

func (e *HoleError) Error() string {
	return fmt.Sprintf("consumequeue: topic %d queue %d has lost the entry of offset %d", e.Topic, e.Queue, e.Offset)
}

// Search finds the first offset in [Begin, End) whose record lies at position or behind it; End if there is none, 0 for a queue
// that does not exist. (The positions of a queue rise with the offsets.) It may block, and must be called without the
// section's lock.
//
// Begin and End are those of some moment during the call: what is appended meanwhile lies behind, and a begin that is
// raised meanwhile can have passed the answer. A lost entry on the way is a *HoleError.
func (x *Index) Search(topic uint32, queue uint16, position uint64) (offset uint64, err error) {
	for {
		offset, err := x.search(queueKey{topic, queue}, position)
		// A begin that has overtaken the search only takes away from it.
		if _, removed := errors.AsType[*RemovedError](err); !removed {
			return offset, err
		}
	}
}

func (x *Index) search(key queueKey, position uint64) (uint64, error) {
	x.mu.Lock()
	q := x.queues[key]
	x.mu.Unlock()
	if q == nil {
		return 0, nil
	}
	lo := q.begin.Load()
	hi := q.end.Load() // after begin, so that it is not below
	if lo == hi {
		return hi, nil
	}
	// Mostly position is where the kept part of the log begins, and nothing of the queue lies below it.
	if below, err := x.liesBelow(key, lo, position); err != nil || !below {
		return lo, err
	}
	// The entry at lo lies below position; the one at hi does not, or was none when the search began. The halves are cut at
	// blocks, so that the last steps are one read.
	for firstOf(lo) != firstOf(hi-1) {
		middle := firstOf(lo + (hi-lo)/2)
		if middle <= lo {
			middle = firstOf(hi - 1)
		}
		below, err := x.liesBelow(key, middle, position)
		if err != nil {
			return 0, err
		}
		if below {
			lo = middle
		} else {
			hi = middle
		}
	}
	var rest [BlockEntries]Entry
	n, err := x.Read(key.topic, key.queue, lo+1, rest[:hi-lo-1])
	if err != nil {
		return 0, err
	}
	for i := range rest[:n] {
		e, offset := &rest[i], lo+1+uint64(i)
		if !e.Written() {
			return 0, &HoleError{key.topic, key.queue, offset}
		}
		if e.Position >= position {
			return offset, nil
		}
	}
	return hi, nil
}

// liesBelow tells whether the record of an offset that has an entry lies below position.
func (x *Index) liesBelow(key queueKey, offset, position uint64) (bool, error) {
	var e [1]Entry
	n, err := x.Read(key.topic, key.queue, offset, e[:])
	if err != nil || n == 0 { // none: the queue was dropped meanwhile
		return false, err
	}
	if !e[0].Written() {
		return false, &HoleError{key.topic, key.queue, offset}
	}
	return e[0].Position < position, nil
}
