package mmaplog

import (
	"fmt"
	"io"
)

// stagedFeeder writes a segment with pwrite and syncs it with fdatasync, through one descriptor that is
// open from before the first write to after the last sync: a failed write-back is reported once, to the
// descriptors that were open when it failed.
type stagedFeeder struct {
	file File
	path string
	size int64
}

var _ feeder = (*stagedFeeder)(nil)

func (s *stagedFeeder) write(b []byte, off int64) error {
	n, err := s.file.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("mmaplog: write %s at %d: %w", s.path, off, bare(err))
	}
	return nil
}

func (s *stagedFeeder) sync(from, to int64) error {
	if err := s.file.Datasync(); err != nil {
		return fmt.Errorf("mmaplog: flush %s, bytes %d to %d: %w", s.path, from, to, bare(err))
	}
	return nil
}

func (s *stagedFeeder) ahead(int64) (int64, error) { return 0, nil }
func (s *stagedFeeder) readied() int64             { return s.size }
func (s *stagedFeeder) close() error               { return s.file.Close() }
