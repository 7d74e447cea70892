package consumequeue

import "sync/atomic"

// Queue is the index of one queue. The handle is good until its topic is dropped; keep it.
//
// The section owns it, with the exceptions that the fields name.
type Queue struct {
	index *Index
	id    uint64 // never used twice, unlike the place in Index.all
	topic uint32
	queue uint16
	place int // in Index.all

	// begin is the offset below which nothing is kept, end the next offset. Both only rise, and anybody may read them.
	begin, end atomic.Uint64
	// flushed is the offset below which entries lie in files or were handed to the writer. What is not is in tail.
	// Changed under Index.mu.
	flushed uint64
	// dropped is set by the section and read by the background goroutines, which then leave the queue alone.
	dropped atomic.Bool

	tail *Block // being appended to, nil if the next append opens one
	last *Block // last one looked up

	touched    int64 // Index.clock at the last append to tail
	prev, next *Queue

	sweeping  bool   // in Index.begins; guarded by Index.mu
	firstFile uint64 // files with lower numbers were removed; the sweeper's (before Start: recovery's)

	// Recovery only.
	known         bool   // FinishRecovery was told of it
	recovered     bool   // an entry was recovered
	recoveredFrom uint64 // the first such
}

// Topic is the id of the topic.
func (q *Queue) Topic() uint32 { return q.topic }

// Number is the number of the queue in its topic.
func (q *Queue) Number() uint16 { return q.queue }

// Begin is the first offset that has an entry, if that is below End. Any goroutine may ask.
func (q *Queue) Begin() uint64 { return q.begin.Load() }

// End is the offset that the next entry gets. Any goroutine may ask.
func (q *Queue) End() uint64 { return q.end.Load() }

// SetBegin gives up the entries below offset, or all of them if there are not as many. It never lowers Begin. From then on Block, Read
// and Search know nothing below it, and the files that lie wholly below are removed in the background. Section only.
//
// Call it when the reason for it is durable: a begin that a crash takes back names entries that are gone, so that
// the index has to be rebuilt (see IncompleteError).
func (q *Queue) SetBegin(offset uint64) {
	begin := q.begin.Load()
	offset = min(offset, q.end.Load())
	if offset <= begin {
		return
	}
	q.begin.Store(offset)
	if offset/FileEntries == begin/FileEntries {
		return // no file has come to lie below
	}
	// What of the queue is in memory stays there: nobody asks for it any more, so the ring gives it back.
	x := q.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if q.sweeping || q.dropped.Load() {
		return
	}
	q.sweeping = true
	x.begins = append(x.begins, q)
	x.wakes.Or(1 << wakeSweeper)
}

// removed tells that a file is not needed any more: its topic was dropped, or it lies below the begin. That is for good,
// and true before the sweeper removes the file; so whoever makes a file, and looks here first under files.storeMu,
// does not make one again that was removed.
func (q *Queue) removed(number uint64) bool {
	return q.dropped.Load() || number < q.begin.Load()/FileEntries
}

// Append adds an entry in memory and gives its offset. Section only.
func (q *Queue) Append(e Entry) (offset uint64) {
	offset = q.end.Load()
	b := q.tail
	if b == nil {
		b = q.openTail(offset)
	}
	b.Entries[offset%BlockEntries] = e
	b.To = offset + 1
	q.end.Store(offset + 1) // publishes the entry to Read
	if q.touched != q.index.clock {
		q.touched = q.index.clock
		q.index.tails.remove(q)
		q.index.tails.append(q)
	}
	if (offset+1)%BlockEntries == 0 {
		q.closeTail()
	}
	return offset
}

// Block is the resident block that holds offset. If it is not resident, ok is false and the block is asked for, unless offset
// is outside [Begin, End): then nothing comes. Options.OnLoad tells when it is worth trying again.
//
// The block is good until the section calls Poll, Tick or Drop, or is left. An entry that is not Written is one that its
// file has lost; Options.OnHole was told. What lies below Begin in it means nothing. Section only.
func (q *Queue) Block(offset uint64) (b *Block, ok bool) {
	if offset < q.begin.Load() {
		return nil, false
	}
	if b := q.last; b != nil && b.contains(offset) {
		b.used, b.lent = true, q.index.visit
		return b, true
	}
	if offset >= q.end.Load() {
		return nil, false
	}
	b = q.index.table.get(q, firstOf(offset))
	if b == nil || !b.contains(offset) {
		q.index.request(q, b, offset)
		return nil, false
	}
	b.used, b.lent = true, q.index.visit
	q.last = b
	return b, true
}

// openTail readies the block that offset goes to. It may be resident: given back as idle and not yet dropped, or
// looked up.
func (q *Queue) openTail(offset uint64) *Block {
	x := q.index
	first := firstOf(offset)
	b := x.table.get(q, first)
	if b == nil {
		x.mu.Lock()
		b = x.takeFree()
		x.enter(b, q, first, offset)
		x.mu.Unlock()
	} else if b.inRing {
		x.ring.remove(b)
	}
	q.tail = b
	q.touched = x.clock
	x.tails.append(q)
	return b
}

// closeTail hands what is new in the tail to the writer. The next append opens a tail.
func (q *Queue) closeTail() {
	x := q.index
	b := q.tail
	q.tail = nil
	x.tails.remove(q)
	x.mu.Lock()
	x.handOver(q, b)
	x.settle(b)
	x.mu.Unlock()
}
