package mmaplog

import "time"

// writeChunk bounds one write: the ring is freed, and positions move, in steps of this size.
const writeChunk = 1 << 20

// writer is the state of the one goroutine that takes records out of the ring and brings them into
// segments. It runs beside the flusher: while a flush is on its way it writes what the next one will take.
// Whatever it waits for - the disk, a segment that is not there yet, room under the bound of unsynced
// bytes - the ring fills behind it, and the broker feels that as RingFree.
type writer struct {
	l       *Log
	pos     uint64 // = written
	ringPos uint64 // = tail
	index   uint64 // of feeder
	feeder  feeder // nil: look it up
}

func (l *Log) runWriter() {
	w := writer{l: l, pos: l.written.Load()}
	for {
		target := l.appended.Load()
		if w.pos == target {
			if !w.sleep() {
				return
			}
			continue
		}
		if !w.step(target) {
			return
		}
		l.afterWrite()
	}
}

// afterWrite tells those who wait for written bytes: the flusher, and where commit does not wait for it, the
// broker.
func (l *Log) afterWrite() {
	if l.o.Policy == SyncAlways {
		l.syncNow.raise()
		return
	}
	l.o.OnCommit()
	behind := int64(l.written.Load() - l.synced.Load())
	switch {
	case l.requested.Load() > l.synced.Load(), behind > l.unsynced.limit.Load()/4:
		l.syncNow.raise()
	case l.o.Policy == SyncInterval:
		l.syncSoon.raise()
	}
}

// step writes the next chunk. False: the log has ended.
func (w *writer) step(target uint64) bool {
	l := w.l
	n := min(w.chunk(target), uint64(l.unsynced.limit.Load()))
	if !w.belowBound(n) || !w.segmentBefore() || !w.findFeeder() {
		return false
	}
	off := l.geo.offset(w.pos)
	for at, left := w.ringPos, n; left > 0; {
		piece := l.ring.piece(at, left)
		if err := w.feeder.write(piece, off); err != nil {
			l.fail(err)
			return false
		}
		at, left, off = at+uint64(len(piece)), left-uint64(len(piece)), off+int64(len(piece))
	}
	w.pos, w.ringPos = w.pos+n, w.ringPos+n
	if w.feeder.readied()-off < int64(l.o.PopulateAhead)/2 {
		l.readyMore.raise()
	}
	l.stats.writes.Add(1)
	l.stats.writtenBytes.Add(int64(n))
	ended := l.geo.segment(target) > w.index && l.segmentEnd(w.index) == w.ringPos
	if ended {
		w.pos = l.geo.first(w.index + 1)
		w.feeder = nil
	}
	if !l.publishWritten(w.pos, w.ringPos) {
		return false
	}
	if ended && l.o.Policy != SyncAlways {
		l.syncNow.raise() // a segment is synced at its end whatever the policy; the flusher must see what was written
	}
	return true
}

// chunk is how many bytes the next write takes: to target, to the end of the segment's records, or
// writeChunk.
func (w *writer) chunk(target uint64) uint64 {
	segment := w.l.geo.segment(w.pos)
	n := target - w.pos
	if w.l.geo.segment(target) != segment {
		n = w.l.segmentEnd(segment) - w.ringPos
	}
	return min(n, writeChunk)
}

// segmentEnd is the ring position of the end of an ended segment's records. It means nothing for a
// segment that has not ended.
func (l *Log) segmentEnd(segment uint64) uint64 {
	next := segment + 1
	return l.geo.first(next) - l.places[l.placeSlot(next)].Load()
}

// belowBound waits until n more bytes may be written and not synced.
func (w *writer) belowBound(n uint64) bool {
	l := w.l
	over := func() bool {
		behind := w.pos - l.synced.Load()
		return behind > 0 && behind+n > uint64(l.unsynced.limit.Load()) // it may have shrunk below n
	}
	if !over() {
		return true
	}
	l.stats.boundWaits.Add(1)
	return l.awaitProgress(func() bool { l.demandSync(w.pos); return !over() })
}

// segmentBefore waits under SyncAlways, where a new segment begins, until all of the one before is durable.
func (w *writer) segmentBefore() bool {
	l := w.l
	if w.feeder != nil || l.o.Policy != SyncAlways {
		return true
	}
	first := l.geo.first(l.geo.segment(w.pos))
	return l.awaitProgress(func() bool { l.demandSync(first); return l.synced.Load() >= first })
}

// demandSync has everything below pos flushed, quiet records or not.
func (l *Log) demandSync(pos uint64) {
	raise(&l.requested, pos)
	l.syncNow.raise()
}

// findFeeder looks up the segment to write to and waits for it to exist.
func (w *writer) findFeeder() bool {
	l := w.l
	if w.feeder != nil {
		return true
	}
	w.index = l.geo.segment(w.pos)
	found := func() bool {
		l.segMu.Lock()
		defer l.segMu.Unlock()
		w.feeder = l.feeders[w.index]
		return w.feeder != nil
	}
	if found() {
		return true
	}
	l.stats.segmentWaits.Add(1)
	return l.awaitProgress(func() bool { l.prepare.raise(); return found() })
}

// awaitProgress waits until a segment was prepared or synced advanced, and cond holds. False: the log
// has ended.
func (l *Log) awaitProgress(cond func() bool) bool {
	for !cond() {
		select {
		case <-l.progress:
		case <-l.done:
			return false
		}
	}
	return true
}

// sleep waits for a Kick. False: the log has ended. It announces itself before it looks at appended for the last
// time, and Kick looks after that moved: one of the two sees the other.
func (w *writer) sleep() bool {
	l := w.l
	l.asleep.Store(true)
	if w.pos < l.appended.Load() && l.asleep.CompareAndSwap(true, false) {
		return true
	}
	select { // a Kick that came between has cleared asleep and raised wake
	case <-l.wake:
		return true
	case <-l.done:
		return false
	}
}

// runRingFiller puts memory behind the ring ahead of its head, during the first lap.
func (l *Log) runRingFiller() {
	for l.ring.filled.Load() < l.ring.size {
		select {
		case <-l.fillRing:
			l.ring.fill(l.ring.reserved.Load(), ringAheadBytes)
		case <-l.done:
			return
		}
	}
}

// runPopulator readies the pages of mapped segments ahead of the writer, across the end of a segment.
func (l *Log) runPopulator() {
	for {
		select {
		case <-l.readyMore:
		case <-l.done:
			return
		}
		pos := l.written.Load()
		index, off := l.geo.segment(pos), l.geo.offset(pos)+int64(l.o.PopulateAhead)
		for ; off > 0; index, off = index+1, off-int64(l.geo.segmentBytes) {
			l.segMu.Lock()
			f := l.feeders[index]
			l.segMu.Unlock()
			if f == nil {
				break
			}
			began := time.Now()
			n, err := f.ahead(off)
			if err != nil {
				l.fail(err)
				return
			}
			if n > 0 {
				l.stats.populates.Add(1)
				l.stats.populateNanos.Add(int64(time.Since(began)))
				l.stats.populatedBytes.Add(n)
			}
		}
	}
}
