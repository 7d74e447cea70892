package mmaplog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

const (
	retryFirst = 20 * time.Millisecond
	retryMost  = 2 * time.Second
)

// runPreallocator keeps one segment ready ahead of the one that is appended to, so that the writer finds
// it. A disk without room is no failure: DiskFull tells the broker, and the next try may work.
func (l *Log) runPreallocator() {
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	backoff := retryFirst
	for {
		for l.appended.Load() >= l.prepareAt.Load() {
			index := l.prepared.Load()
			err := l.prepareSegment(index)
			if err == nil {
				if l.full.Swap(false) {
					l.o.Logger.Info("the next log segment could be allocated again", slog.Uint64("segment", l.geo.base(index)))
				}
				backoff = retryFirst
				l.progress.raise()
				l.o.OnRoom()
				continue
			}
			if !IsShortage(err) {
				l.fail(err)
				return
			}
			if !l.full.Swap(true) {
				l.o.Logger.Error("the next log segment could not be allocated: sends are refused until it can",
					slog.Uint64("segment", l.geo.base(index)), slog.Any("error", err))
				l.o.OnRoom()
			}
			if l.closing.Load() {
				l.giveUp(l.geo.first(index), err) // a broker that wants to stop does not wait for room
			}
			retry.Reset(backoff)
			backoff = min(2*backoff, retryMost)
			break
		}
		select {
		case <-l.prepare:
			if l.full.Load() && !l.closing.Load() {
				select { // every append raises prepare now; the back-off stands
				case <-retry.C:
				case <-l.done:
					return
				}
			}
		case <-retry.C:
		case <-l.done:
			return
		}
	}
}

// prepareSegment makes a segment file: under a temporary name it is allocated, gets its header and is
// synced; then it is renamed, and the directory synced. So a file with a segment's name is a whole, durable segment.
// An
// error for which IsShortage holds may be tried again; after any other the state of the directory is unknown.
func (l *Log) prepareSegment(index uint64) error {
	began := time.Now()
	base, size := l.geo.base(index), int64(l.geo.segmentBytes)
	path := filepath.Join(l.dir, segmentName(base))
	tmp := path + tmpSuffix
	f, err := newSegmentFile(l.o.FS, tmp, base, size)
	if err != nil {
		return err
	}
	if err := l.o.FS.Rename(tmp, path); err != nil {
		f.Close()
		return fmt.Errorf("mmaplog: new segment: %w", errors.Join(err, l.o.FS.Remove(tmp)))
	}
	if err := l.o.FS.SyncDir(l.dir); err != nil {
		f.Close()
		// Not even a full disk may be retried here: the name may be durable or not.
		return fmt.Errorf("mmaplog: new segment %s: sync of the directory failed: %v", path, err)
	}
	if err := l.adoptSegment(index, path, f); err != nil {
		return err
	}
	l.stats.segmentsMade.Add(1)
	l.o.Logger.Debug("log segment prepared", slog.Uint64("segment", base), slog.Duration("took", time.Since(began)))
	return nil
}

// newSegmentFile makes an allocated, durable segment file without records, under the temporary name tmp; on an
// error there is none.
func newSegmentFile(fs FS, tmp string, base uint64, size int64) (File, error) {
	f, err := fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("mmaplog: new segment: %w", err)
	}
	err = func() error {
		if err := f.Allocate(0, size); err != nil {
			return err
		}
		var head [segmentHeaderBytes]byte
		putSegmentHeader(head[:], size, base)
		if _, err := f.WriteAt(head[:], 0); err != nil {
			return err
		}
		return f.Sync()
	}()
	if err != nil {
		return nil, fmt.Errorf("mmaplog: new segment %s: %w", tmp, errors.Join(err, f.Close(), fs.Remove(tmp)))
	}
	return f, nil
}

// adoptSegment makes a segment that is durable on disk part of the log: w, open for writing, becomes its
// feeder; readers get a file of their own. It takes w over.
func (l *Log) adoptSegment(index uint64, path string, w File) error {
	feeder, err := newFeeder(l.mode, w, path, int64(l.geo.segmentBytes))
	if err != nil {
		return err
	}
	r, err := l.o.FS.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		feeder.close()
		return fmt.Errorf("mmaplog: %w", err)
	}
	l.segMu.Lock()
	defer l.segMu.Unlock()
	l.addSegment(newSegment(index, path, r))
	l.feeders[index] = feeder
	l.segmentsExist(index + 1)
	return nil
}

// addSegment puts a segment into the readers' table. Under segMu.
func (l *Log) addSegment(s *segment) {
	old := l.segments.Load()
	if old.end() != s.index {
		panic(fmt.Sprintf("mmaplog: segment %d added to a table of %d to %d", s.index, old.first, old.end()))
	}
	l.segments.Store(&segmentTable{first: old.first, list: append(old.list[:len(old.list):len(old.list)], s)})
}

// segmentsExist notes the number of the first segment that is still to be made, and from which position on
// it is wanted.
func (l *Log) segmentsExist(end uint64) {
	l.prepareAt.Store(l.geo.base(max(end, 1) - 1))
	l.prepared.Store(end)
}
