package consumequeue

// This file has what the section does besides Append and Block.

// Queue is the handle of a queue, made if there is none yet; that one is empty. Section only (before Start: recovery).
func (x *Index) Queue(topic uint32, queue uint16) *Queue {
	key := queueKey{topic, queue}
	if q := x.queues[key]; q != nil {
		return q
	}
	x.nextID++
	q := &Queue{index: x, id: x.nextID, topic: topic, queue: queue}
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.holes); n > 0 {
		q.place = x.holes[n-1]
		x.holes = x.holes[:n-1]
		x.all[q.place] = q
	} else {
		q.place = len(x.all)
		x.all = append(x.all, q)
	}
	x.queues[key] = q
	x.topics[topic] = append(x.topics[topic], q)
	return q
}

// Poll takes over what the background goroutines have done, and gives back blocks for which there is no room any more. It
// costs next to nothing if there is nothing. Call it at the start of every section.
func (x *Index) Poll() {
	x.visit++
	if x.inbox.Load() == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.takeOver()
	x.takeRepairs()
	for x.ring.length > 0 && x.ring.length+x.loading > x.room {
		x.giveBack(x.ring.take())
		x.stats.evictions.Add(1)
	}
}

// Tick tells the time, in ms of any clock that does not go back, about once a second. Tails of queues that were idle for a
// second are handed to the writer, and their blocks can then be given back. Section only.
func (x *Index) Tick(nowMs int64) {
	x.Poll()
	if nowMs-x.clock >= clockStepMs {
		x.clock = nowMs
	}
	for range mostIdle {
		q := x.tails.first
		if q == nil || x.clock-q.touched < idleMs {
			return
		}
		q.closeTail()
	}
}

// Drop forgets a deleted topic. Its handles and blocks are void; its files are removed in the background. The id must
// not be used again. Section only.
func (x *Index) Drop(topic uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, q := range x.topics[topic] {
		q.dropped.Store(true)
		delete(x.queues, queueKey{q.topic, q.queue})
		x.all[q.place] = nil
		x.holes = append(x.holes, q.place)
		q.last = nil
		if b := q.tail; b != nil {
			q.tail = nil
			x.tails.remove(q)
			x.settle(b)
		}
		// Other blocks of the queue can't be found any more. They go when the hand of the ring comes by, or when the writer
		// or the loader is done with them.
	}
	delete(x.topics, topic)
	x.drops = append(x.drops, topic)
	x.wakes.Or(1 << wakeSweeper)
}

// request asks the loader for what b lacks, or for a block of which nothing is resident if b is nil.
func (x *Index) request(q *Queue, b *Block, offset uint64) {
	if b != nil && b.loading || x.loading >= x.loads {
		// Those that are being loaded end with a call of OnLoad; try again then.
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if b == nil {
		first := firstOf(offset)
		b = x.takeFree()
		x.enter(b, q, first, min(first+BlockEntries, q.end.Load()))
	} else if b.inRing {
		x.ring.remove(b)
	}
	b.loading = true
	x.loading++
	x.requests = append(x.requests, b)
	x.wakes.Or(1 << wakeLoader)
}

// The functions below need mu.

// takeOver empties the inbox. It gives nothing back, so it can be called where a block may be in the caller's hands.
func (x *Index) takeOver() {
	for _, b := range x.loaded {
		b.loading = false
		b.From = b.First
		b.used = true // whoever asked for it comes back for it
		x.loading--
		x.settle(b)
	}
	clear(x.loaded)
	x.loaded = x.loaded[:0]
	// Loaded blocks are waited for and bounded in number. Of the others a part can be left for the next time.
	n := min(len(x.done), max(mostDone, len(x.done)/4))
	for _, h := range x.done[len(x.done)-n:] {
		h.block.writes--
		x.settle(h.block)
	}
	clear(x.done[len(x.done)-n:])
	x.done = x.done[:len(x.done)-n]
	x.countInbox()
}

// countInbox tells the section without a lock whether there is anything for it.
func (x *Index) countInbox() {
	x.inbox.Store(int32(len(x.done) + len(x.loaded) + len(x.repairs)))
}

// handOver gives the writer what is new in b, the block that ends at the end of q.
func (x *Index) handOver(q *Queue, b *Block) {
	if q.flushed == b.To {
		return
	}
	x.handed++
	x.pending = append(x.pending, handOver{queue: q, block: b, from: q.flushed, to: b.To, number: x.handed})
	q.flushed = b.To
	b.writes++
	x.dirty.Add(BlockBytes)
	x.wakes.Or(1 << wakeWriter)
}

// settle puts b into the ring if nobody needs it.
func (x *Index) settle(b *Block) {
	if b.writes > 0 || b.loading || b.inRing || b.queue.tail == b {
		return
	}
	if b.queue.dropped.Load() {
		x.giveBack(b)
		return
	}
	x.ring.insert(b)
}

// enter puts a free block into the table. Nothing of it is valid yet; appending will begin at end.
func (x *Index) enter(b *Block, q *Queue, first, end uint64) {
	b.queue, b.First, b.From, b.To = q, first, end, end
	x.table.put(b)
}

// giveBack takes a block that is not in the ring out of the table.
func (x *Index) giveBack(b *Block) {
	x.table.remove(b)
	if b.queue.last == b {
		b.queue.last = nil
	}
	b.queue = nil
	b.used = false
	x.free = append(x.free, b)
}

// takeFree takes a block that nobody holds.
func (x *Index) takeFree() *Block {
	if len(x.free) <= freeWant {
		x.reclaim()
	}
	if len(x.free) <= freeLow {
		x.wakes.Or(1 << wakeWriter)
	}
	if len(x.free) == 0 {
		// The writer did not keep up. Page faults here are better than a refusal.
		x.addFree(newChunk())
	}
	n := len(x.free)
	b := x.free[n-1]
	x.free = x.free[:n-1]
	return b
}

// reclaim does what a Poll would do, where sections are long or Polls few. It leaves alone what was looked up since the last.
func (x *Index) reclaim() {
	if len(x.done)+len(x.loaded) > 0 {
		x.takeOver()
	}
	for range mostPasses {
		if x.ring.length == 0 || x.ring.length+x.loading <= x.room {
			return
		}
		if b := x.ring.take(); b.lent == x.visit {
			x.ring.insert(b)
		} else {
			x.giveBack(b)
			x.stats.evictions.Add(1)
		}
	}
}

func (x *Index) addFree(blocks []Block) {
	for i := range blocks {
		x.free = append(x.free, &blocks[i])
	}
	x.chunks++
}
