package mmaplog

import (
	"fmt"
	"log/slog"
)

// RemoveBefore removes the segments that end at or below position, oldest first, and says how many and how many
// bytes they were. It leaves the segments that are not complete and synced, and the last one there is. Whoever
// keeps a snapshot passes its From.LastPosition: then the record that the next start compares it with stays.
//
// The order for each: out of the readers' table (who reads it keeps it open), unlink, sync of the directory; only then the
// next one, so that no crash leaves a gap. An error of the disk names the file and stops the removal; the log goes on.
// The segment can no longer be read then, and the next call tries its file again.
//
// Any goroutine may call it, after Open.
func (l *Log) RemoveBefore(position uint64) (segments int, bytes int64, err error) {
	l.removeMu.Lock()
	defer l.removeMu.Unlock()
	for {
		select {
		case <-l.done:
			return segments, bytes, l.endError()
		default:
		}
		if l.doomed == nil {
			if l.doomed = l.takeOldest(position); l.doomed == nil {
				return segments, bytes, nil
			}
		}
		path := l.doomed.path
		if err := l.o.FS.Remove(path); err != nil && !isGone(err) { // gone already: an earlier try did that
			return segments, bytes, fmt.Errorf("mmaplog: remove %s: %w", path, bare(err))
		}
		if err := l.o.FS.SyncDir(l.dir); err != nil {
			return segments, bytes, fmt.Errorf("mmaplog: sync of the directory after the removal of %s: %w", path, bare(err))
		}
		l.o.Logger.Debug("log segment removed", slog.Uint64("segment", l.geo.base(l.doomed.index)))
		l.doomed = nil
		l.stats.segmentsRemoved.Add(1)
		segments, bytes = segments+1, bytes+int64(l.geo.segmentBytes)
	}
}

// takeOldest takes the oldest segment out of the readers' table, if it may go; else nil. The last segment stays
// even when it is complete and synced, as it can be while the disk has no room for the next: without any
// segment the log would begin anew at position 0.
func (l *Log) takeOldest(position uint64) *segment {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	t := l.segments.Load()
	if len(t.list) < 2 {
		return nil
	}
	s := t.list[0]
	if l.geo.base(s.index+1) > position || s.index >= l.geo.segment(l.synced.Load()) {
		return nil
	}
	l.segments.Store(&segmentTable{first: t.first + 1, list: t.list[1:]})
	s.release()
	return s
}

// Space is how many bytes the file system of the data directory has free for us, and how many it has. Any goroutine
// may ask.
func (l *Log) Space() (free, total int64, err error) {
	free, total, err = l.o.FS.Space(l.o.Dir)
	if err != nil {
		err = fmt.Errorf("mmaplog: space of the disk: %w", err)
	}
	return free, total, err
}
