package mmaplog

import (
	"errors"
	"fmt"
)

// ErrRemoved is wrapped by the answer to reads of positions whose segment was removed.
var ErrRemoved = errors.New("mmaplog: no longer in the log")

func removed(pos, first uint64) error {
	return fmt.Errorf("%w: position %d; the log begins at %d", ErrRemoved, pos, first)
}

// TryRead fills dst with the log's bytes from pos on, without waiting for the disk: from the ring while they
// are there, else from what the page cache holds. False: it would wait, ReadAt does. The range must lie in
// one segment and end at or below Appended. ErrRemoved: its segment was removed.
func (l *Log) TryRead(dst []byte, pos uint64) (bool, error) {
	return l.read(dst, pos, (*segment).readNoWait)
}

// ReadAt is TryRead that waits for the disk.
func (l *Log) ReadAt(dst []byte, pos uint64) error {
	_, err := l.read(dst, pos, func(s *segment, dst []byte, off int64) (bool, error) {
		return true, s.readAt(dst, off)
	})
	return err
}

// SameSegment says whether two positions lie in the same segment, so that one read can cover both.
func (l *Log) SameSegment(a, b uint64) bool { return l.geo.segment(a) == l.geo.segment(b) }

func (l *Log) read(dst []byte, pos uint64, file func(*segment, []byte, int64) (bool, error)) (bool, error) {
	if len(dst) == 0 {
		return true, nil
	}
	end := pos + uint64(len(dst))
	if end > l.appended.Load() || l.geo.segment(pos) != l.geo.segment(end-1) {
		return false, fmt.Errorf("mmaplog: read of positions %d to %d: they must lie in one segment and below %d",
			pos, end, l.appended.Load())
	}
	if t := l.segments.Load(); l.geo.segment(pos) < t.first {
		return false, removed(pos, l.geo.first(t.first)) // whatever the ring still holds
	}
	for len(dst) > 0 {
		if at, ok := l.place(pos); ok && l.ring.get(dst, at) {
			return true, nil
		}
		// The first byte has left the ring, so it was written; perhaps not all of the range was.
		written := l.written.Load()
		if written <= pos {
			return false, fmt.Errorf("mmaplog: position %d is neither in the ring nor written (%d)", pos, written)
		}
		n := min(uint64(len(dst)), written-pos)
		ok, err := l.readFile(dst[:n], pos, file)
		if !ok || err != nil {
			return false, err
		}
		dst, pos = dst[n:], pos+n
	}
	return true, nil
}

func (l *Log) readFile(dst []byte, pos uint64, read func(*segment, []byte, int64) (bool, error)) (bool, error) {
	s, err := l.segmentOf(pos)
	if err != nil {
		return false, err
	}
	defer s.release()
	return read(s, dst, l.geo.offset(pos))
}

// segmentOf is the segment in which a position lies, which must have been written, with a reference that the caller
// gives back.
func (l *Log) segmentOf(pos uint64) (*segment, error) {
	for index := l.geo.segment(pos); ; {
		t := l.segments.Load()
		switch {
		case index < t.first:
			return nil, removed(pos, l.geo.first(t.first))
		case index >= t.end():
			return nil, ErrClosed
		}
		if s := t.list[index-t.first]; s.acquire() {
			return s, nil
		} // it was taken out since the table was loaded: the next one says why
	}
}
