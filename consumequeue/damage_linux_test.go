package consumequeue

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What a start finds without reading everything, and what it leaves to the lookups.
func TestStartNoticesDamage(t *testing.T) {
	const end = FileEntries + 5000
	punch := func(off, n int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
			if errors.Is(err, unix.EOPNOTSUPP) {
				t.Skip("this file system can't make holes")
			}
			must(t, err)
		}
	}
	truncate := func(size, again int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			must(t, os.Truncate(path, size))
			must(t, os.Truncate(path, again))
		}
	}
	remove := func(t *testing.T, path string) { must(t, os.Remove(path)) }
	for name, c := range map[string]struct {
		number  uint64
		damage  func(*testing.T, string)
		missing uint64 // end: nothing
		later   bool   // found by a lookup
	}{
		"the first file is removed":             {0, remove, 0, false},
		"the second file is removed":            {1, remove, FileEntries, false},
		"truncated in the middle":               {0, truncate(300*EntryBytes+7, 300*EntryBytes+7), 300, false},
		"truncated, and given its size again":   {0, truncate(3*BlockBytes, FileBytes), 3 * BlockEntries, false},
		"the last file truncated in the middle": {1, truncate(2*BlockBytes, FileBytes), FileEntries + 2*BlockEntries, false},
		"truncated behind the entries":          {1, truncate(5000*EntryBytes, 5000*EntryBytes), end, false},
		"too long":                              {0, truncate(FileBytes+5000, FileBytes+5000), end, false},
		"a hole in the middle":                  {0, punch(10*BlockBytes, BlockBytes), 10 * BlockEntries, false},
		"a hole at the start":                   {0, punch(0, BlockBytes), 0, false},
		"a hole over the end":                   {1, punch(39*BlockBytes, 5*BlockBytes), FileEntries + 39*BlockEntries, false},
		"zeroes in the middle":                  {0, func(t *testing.T, path string) { overwrite(t, path, 10*BlockBytes, make([]byte, BlockBytes)) }, 10 * BlockEntries, true},
		"zeroes at the end": {1, func(t *testing.T, path string) {
			overwrite(t, path, 4999*EntryBytes, make([]byte, EntryBytes))
		}, end - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := damaged(t, func(s *section, dir string) { c.damage(t, file(dir, queueA, c.number)) })
			s.open()
			err := s.recover(func(k queueKey) uint64 { return s.ends[k] })
			incomplete, is := errors.AsType[*IncompleteError](err)
			switch {
			case c.missing == end || c.later:
				must(t, err)
				s.x.Start()
				if c.later {
					if e := s.peek(queueA, c.missing); e.Written() {
						t.Fatalf("%+v; the test wants it lost", e)
					}
					if holes := s.takeHoles(queueA); holes[0] != c.missing {
						t.Fatalf("OnHole was told of %v", holes)
					}
					s.repair(queueA, c.missing, c.missing+BlockEntries)
				}
			case !is || *incomplete != (IncompleteError{1, 0, c.missing, end}):
				t.Fatalf("%v, want offset %d missing", err, c.missing)
			default:
				s.x.Abort()
				s.open()
				must(t, s.recover(fromStart))
				s.x.Start()
			}
			s.lookup(queueA, 0)
			s.checkAll()
			must(t, s.x.Close())
			checkFiles(t, s)
		})
	}
}
