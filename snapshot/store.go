package snapshot

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/leasemq/leasemq/mmaplog"
)

const (
	suffix    = ".snap"
	tmpSuffix = ".tmp"
	asideMark = ".aside-"
)

// Store is a directory of snapshots. Its methods are called by one goroutine at a time.
type Store struct {
	fs  mmaplog.FS
	dir string
}

// NewStore names the directory; Open makes it.
func NewStore(fs mmaplog.FS, dir string) *Store { return &Store{fs, dir} }

// Open makes the directory if it is missing, and removes what an earlier start has left unfinished.
func (s *Store) Open() error {
	if err := s.fs.MkdirAll(s.dir); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if err := s.fs.SyncDir(filepath.Dir(s.dir)); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	names, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, suffix+tmpSuffix) {
			if err := s.fs.Remove(filepath.Join(s.dir, name)); err != nil {
				return fmt.Errorf("snapshot: unfinished file of an earlier start: %w", err)
			}
		}
	}
	return nil
}

// Path is the file of the snapshot at a position.
func (s *Store) Path(position uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%020d%s", position, suffix))
}

func parseName(name string) (position uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	position, err := strconv.ParseUint(digits, 10, 64)
	return position, err == nil
}

// List names the snapshots by position, newest first. Whether they are good is not looked at.
func (s *Store) List() ([]uint64, error) {
	names, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	var list []uint64
	for _, name := range names {
		if p, ok := parseName(name); ok {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	return list, nil
}

// Remove deletes a snapshot that newer ones have made useless.
func (s *Store) Remove(position uint64) error {
	err := s.fs.Remove(s.Path(position))
	if err == nil {
		err = s.fs.SyncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// SetAside renames a snapshot that does not belong to this log, and tells its new name.
func (s *Store) SetAside(position uint64) (string, error) {
	names, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return "", fmt.Errorf("snapshot: %w", err)
	}
	path := s.Path(position)
	for n := 1; ; n++ {
		aside := filepath.Base(path) + asideMark + strconv.Itoa(n)
		if slices.Contains(names, aside) {
			continue
		}
		err := s.fs.Rename(path, filepath.Join(s.dir, aside))
		if err == nil {
			err = s.fs.SyncDir(s.dir)
		}
		if err != nil {
			return "", fmt.Errorf("snapshot: set aside: %w", err)
		}
		return aside, nil
	}
}
