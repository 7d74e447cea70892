package mmaplog

import (
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
)

// segment is one file of the log, as readers see it: a read-only file that many may read at once.
//
// It is reference counted, so that it can be closed or removed while readers come: the log holds one reference,
// each read one more.
type segment struct {
	index uint64
	path  string
	file  File
	refs  atomic.Int64
}

func newSegment(index uint64, path string, file File) *segment {
	s := &segment{index: index, path: path, file: file}
	s.refs.Store(1)
	return s
}

// acquire takes a reference; false if the segment was closed or removed.
func (s *segment) acquire() bool {
	for {
		n := s.refs.Load()
		if n == 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release gives a reference back; the last one closes the file.
func (s *segment) release() {
	if s.refs.Add(-1) == 0 {
		s.file.Close()
	}
}

// readAt fills dst from the file, waiting for the disk if need be.
func (s *segment) readAt(dst []byte, off int64) error { return readFull(s.file, s.path, dst, off) }

// readNoWait fills dst with what is in memory; false if not all of it is.
func (s *segment) readNoWait(dst []byte, off int64) (bool, error) {
	for len(dst) > 0 {
		n, err := s.file.ReadNoWait(dst, off)
		switch {
		case err == ErrWouldBlock || (err == nil && n == 0):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("mmaplog: read %s at %d: %w", s.path, off, err)
		}
		dst, off = dst[n:], off+int64(n)
	}
	return true, nil
}

// segmentTable is the row of segments that can be read. A table is never changed, only replaced by another.
type segmentTable struct {
	first uint64 // number of the oldest segment
	list  []*segment
}

func (t *segmentTable) end() uint64 { return t.first + uint64(len(t.list)) }

// feeder is the writing side of a segment. There are two kinds with the same rules, and the same tests
// run on both:
//
//   - write brings bytes into the file, so that readers of the file see them and the death of the process
//     does not lose them. It may wait, in a system call.
//   - sync makes everything written in [from, to) durable, whatever else it may take along.
//   - after an error of either nothing may be written or synced any more.
//
// write: the writer goroutine. ahead: the populate goroutine. sync: the flusher, beside write. close: the
// flusher, once the writer has left the segment; ahead may run beside it.
type feeder interface {
	write(b []byte, off int64) error
	sync(from, to int64) error
	// ahead readies what will be written soon, up to off; returns the bytes readied.
	ahead(off int64) (int64, error)
	// readied is up to where ahead has come.
	readied() int64
	close() error
}

// newFeeder makes the writing side of an allocated segment file, and takes f over.
func newFeeder(mode IOMode, f File, path string, size int64) (feeder, error) {
	if mode == IOMapped {
		return newMappedFeeder(f, path, size)
	}
	return &stagedFeeder{file: f, path: path, size: size}, nil
}

// bare is err without the name of its file: one that is open keeps the name under which it was opened, and a
// segment was opened under a temporary one.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
