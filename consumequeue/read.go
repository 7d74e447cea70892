package consumequeue

import "fmt"

// RemovedError tells that an offset lies below the begin of its queue: its entry was given up.
type RemovedError struct {
	Topic uint32
	Queue uint16
	Begin uint64 // the first offset that is kept
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf("consumequeue: topic %d queue %d begins at offset %d; what came before was removed", e.Topic, e.Queue, e.Begin)
}

// Read copies entries of a queue from offset on to dst, and tells how many there were: fewer than len(dst) at the end of the queue,
// none for a queue that does not exist. It sees every entry that was appended. It may block, and must be called
// without the section's lock: it is for looking (PEEK, tools), not for delivering.
//
// Below the begin of the queue there is nothing to read: the error is then a *RemovedError, behind the n entries that were
// read before the begin overtook the call, mostly none. An entry that is not Written is one that its file has
// lost; Options.OnHole was told.
func (x *Index) Read(topic uint32, queue uint16, offset uint64, dst []Entry) (n int, err error) {
	for n < len(dst) {
		m, err := x.readPart(queueKey{topic, queue}, offset+uint64(n), dst[n:])
		if m == 0 || err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

// readPart reads up to the end of a block or less.
func (x *Index) readPart(key queueKey, offset uint64, dst []Entry) (int, error) {
	x.mu.Lock()
	q := x.queues[key]
	if q == nil {
		x.mu.Unlock()
		return 0, nil
	}
	if begin := q.begin.Load(); offset < begin {
		x.mu.Unlock()
		return 0, &RemovedError{q.topic, q.queue, begin}
	}
	first := firstOf(offset)
	// What is below end was stored to its block before end was.
	limit := min(first+BlockEntries, q.end.Load())
	if offset >= limit {
		x.mu.Unlock()
		return 0, nil
	}
	b := x.table.get(q, first)
	if b != nil && offset >= b.From {
		n := copy(dst, b.Entries[offset-first:limit-first])
		x.mu.Unlock()
		x.reportHoles(q, offset, dst[:n])
		return n, nil
	}
	if b != nil {
		limit = min(limit, b.From)
	}
	x.mu.Unlock()
	// What is not resident was written.
	n := min(uint64(len(dst)), limit-offset)
	if err := x.files.read(q, offset, dst[:n]); err != nil {
		return 0, err
	}
	// The file may have been removed before it was read. Then the begin was raised before.
	if begin := q.begin.Load(); offset < begin {
		return 0, &RemovedError{q.topic, q.queue, begin}
	}
	x.reportHoles(q, offset, dst[:n])
	return int(n), nil
}
