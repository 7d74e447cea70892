package mmaplog

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// mappedFeeder writes a segment by storing into a mapping and syncs it with ranged msync.
//
// A store that faults stops the whole process at the next garbage collection until the disk has answered,
// a system call only its own goroutine. So the pages are readied by system calls: a goroutine of its own
// runs ahead of the writer by PopulateAhead (not further: it dirties what it readies, and the kernel
// write-protects again what it has written back), and the writer calls populate once more for the very
// pages that it is about to store to, which costs little where they are ready.
//
// The file's descriptor is closed once it is mapped; the mapping keeps the file.
type mappedFeeder struct {
	m     Mapping
	path  string
	size  int64
	ready atomic.Int64 // populated up to here, at least once

	mu     sync.Mutex // ahead against close
	closed bool
}

var _ feeder = (*mappedFeeder)(nil)

func newMappedFeeder(f File, path string, size int64) (feeder, error) {
	m, err := f.Map()
	if closeErr := f.Close(); err == nil && closeErr != nil {
		m.Unmap()
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("mmaplog: map %s: %w", path, err)
	}
	return &mappedFeeder{m: m, path: path, size: size}, nil
}

func (s *mappedFeeder) write(b []byte, off int64) error {
	if err := s.m.Populate(off, int64(len(b))); err != nil {
		return fmt.Errorf("mmaplog: ready %s at %d: %w", s.path, off, err)
	}
	if end := off + int64(len(b)); s.ready.Load() < end {
		s.ready.Store(end) // racing with ahead loses nothing but a system call
	}
	if err := store(s.m.Bytes()[off:off+int64(len(b))], b); err != nil {
		return fmt.Errorf("mmaplog: store into %s at %d: %w", s.path, off, err)
	}
	return nil
}

// store copies b to dst, a mapping, and turns the signal of a store that the medium refused into an
// error. What was copied by then is unknown.
func store(dst, b []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface {
				error
				Addr() uintptr
			})
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("the page at offset %d of the copy could not be stored to (input/output error)",
				fault.Addr()-address(dst))
		}
	}()
	copy(dst, b)
	return nil
}

func (s *mappedFeeder) sync(from, to int64) error {
	if err := s.m.Flush(from, to-from); err != nil {
		return fmt.Errorf("mmaplog: flush %s, bytes %d to %d: %w", s.path, from, to, bare(err))
	}
	return nil
}

func (s *mappedFeeder) ahead(off int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, to := s.ready.Load(), min(off, s.size)
	if s.closed || from >= to {
		return 0, nil
	}
	if err := s.m.Populate(from, to-from); err != nil {
		return 0, fmt.Errorf("mmaplog: ready %s at %d: %w", s.path, from, err)
	}
	s.ready.Store(to)
	return to - from, nil
}

func (s *mappedFeeder) readied() int64 { return s.ready.Load() }

func (s *mappedFeeder) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.m.Unmap()
}
