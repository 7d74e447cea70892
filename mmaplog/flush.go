package mmaplog

import (
	"log/slog"
	"slices"
	"time"
)

// syncWaiter waits for a position to be synced.
type syncWaiter struct {
	pos  uint64
	done chan error // one slot
}

// flush makes everything that was written below to durable, oldest segment first, and publishes it.
// False: the log has ended. Only the flusher calls it.
func (l *Log) flush(to uint64) bool {
	for from := l.synced.Load(); from < to; from = l.synced.Load() {
		index := l.geo.segment(from)
		l.segMu.Lock()
		f := l.feeders[index]
		l.segMu.Unlock()

		upTo, end := to, l.geo.offset(to)
		sealed := l.geo.segment(to) > index
		if sealed {
			upTo, end = l.geo.first(index+1), int64(l.geo.segmentBytes)
		}
		began := time.Now()
		if err := f.sync(l.geo.offset(from), end); err != nil {
			l.fail(err)
			return false
		}
		took := time.Since(began)
		l.stats.flushed(took, int64(upTo-from))
		l.unsynced.sample(int64(upTo-from), took)
		if l.o.OnFlush != nil {
			l.o.OnFlush(took, int64(upTo-from))
		}
		if !l.publishSynced(upTo) {
			return false
		}
		if sealed {
			l.retire(index, f)
		}
	}
	return true
}

// retire closes the writing side of a segment that is complete and durable.
func (l *Log) retire(index uint64, f feeder) {
	l.segMu.Lock()
	delete(l.feeders, index)
	l.segMu.Unlock()
	if err := f.close(); err != nil {
		l.o.Logger.Warn("closing a complete segment", slog.Uint64("segment", l.geo.base(index)), slog.Any("error", err))
	}
}

// runFlusher makes written bytes durable.
//
// Under SyncAlways it flushes whatever has been written, as soon as a record that asks for it is among that;
// what is written during a flush goes into the next, so batches size themselves. Under SyncInterval it flushes an
// interval after the first byte that is not durable, sooner when much has gathered, and at once when
// it is asked to. Under SyncNever only when it is asked to.
func (l *Log) runFlusher() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		select {
		case <-l.syncSoon:
			timer.Reset(l.o.Interval)
			select {
			case <-timer.C:
			case <-l.syncNow:
			case <-l.done:
				return
			}
			timer.Stop()
		case <-l.syncNow:
		case <-l.done:
			return
		}
		if l.o.Policy != SyncAlways {
			to := l.written.Load()
			if !l.flush(to) {
				return
			}
			if to < l.written.Load() && l.o.Policy == SyncInterval {
				l.syncSoon.raise()
			}
			continue
		}
		for l.owesFlush() {
			if !l.flush(l.written.Load()) {
				return
			}
			l.o.OnCommit()
		}
	}
}

// owesFlush decides under SyncAlways whether anybody waits for what is written and not synced.
func (l *Log) owesFlush() bool {
	synced := l.synced.Load()
	if l.written.Load() == synced {
		return false
	}
	appended := l.appended.Load() // before quietFrom: see publishAppended
	return max(min(appended, l.quietFrom.Load()), l.requested.Load()) > synced
}

// publishWritten moves written and frees the ring below ringTail. False: the log has ended.
func (l *Log) publishWritten(pos, ringTail uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	if l.written.Load() == l.synced.Load() {
		l.stats.dirtySince.Store(time.Now().UnixNano())
	}
	l.written.Store(pos)
	l.ring.tail.Store(ringTail)
	return true
}

// publishSynced moves synced and answers those who wait for it. False: the log has ended.
func (l *Log) publishSynced(pos uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.synced.Store(pos)
	l.stats.dirtySince.Store(time.Now().UnixNano()) // what is unsynced now came at most this flush ago
	l.progress.raise()
	l.waiters = slices.DeleteFunc(l.waiters, func(w syncWaiter) bool {
		if w.pos <= pos {
			w.done <- nil
		}
		return w.pos <= pos
	})
	return true
}

// await registers a waiter for pos.
func (l *Log) await(pos uint64) <-chan error {
	w := syncWaiter{pos: pos, done: make(chan error, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.synced.Load() >= pos:
		w.done <- nil
	case l.ended:
		w.done <- l.endError()
	default:
		l.waiters = append(l.waiters, w)
	}
	return w.done
}

func (l *Log) endError() error {
	if err := l.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// fail latches the first failure of the store.
func (l *Log) fail(err error) {
	if l.end(err, err) {
		l.o.Logger.Error("the log failed; nothing more becomes durable", slog.Any("error", err),
			slog.Uint64("written", l.Written()), slog.Uint64("synced", l.Synced()))
		l.o.OnFail(err)
	}
}

// end raises the fence: no position moves after it. True for the call that did it.
func (l *Log) end(answer, failure error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.ended = true
	if failure != nil {
		l.failure.Store(&failure)
	}
	for _, w := range l.waiters {
		w.done <- answer
	}
	l.waiters = nil
	close(l.done)
	return true
}

// giveUp answers those who wait for a position above pos with err. The log goes on.
func (l *Log) giveUp(pos uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters = slices.DeleteFunc(l.waiters, func(w syncWaiter) bool {
		if w.pos > pos {
			w.done <- err
		}
		return w.pos > pos
	})
}
