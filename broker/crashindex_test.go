package broker

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/leasemq/leasemq/consumequeue"
)

// indexDisk is where the index files of a trial lie: on the machine's disk, with what a flush of each has made durable kept apart.
type indexDisk struct {
	mu      sync.Mutex
	durable map[string][]byte // by path; nil: the file is there and was never flushed
}

func newIndexDisk() *indexDisk { return &indexDisk{durable: map[string][]byte{}} }

type indexFile struct {
	consumequeue.File
	disk *indexDisk
	path string
}

func (d *indexDisk) open(path string, size int64) (consumequeue.File, error) {
	_, err := os.Stat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	f, err := consumequeue.OpenFile(path, size)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.durable[path]; !known || fresh {
		d.durable[path] = nil
	}
	return &indexFile{f, d, path}, nil
}

// Flush makes durable what was stored before it.
func (f *indexFile) Flush() error {
	stored := bytes.Clone(f.Bytes())
	if err := f.File.Flush(); err != nil {
		return err
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.durable[f.path] = stored
	return nil
}

// crash leaves of each file what was durable, and of the rest any set of sectors. A file that was never flushed may be gone.
func (d *indexDisk) crash(t testing.TB, rnd *rand.Rand) (lost int) {
	t.Helper()
	const sector = 512
	for _, path := range slices.Sorted(maps.Keys(d.durable)) {
		durable := d.durable[path]
		now, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			delete(d.durable, path)
			continue
		case err != nil:
			t.Fatal(err)
		case durable == nil && rnd.IntN(3) == 0:
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			delete(d.durable, path)
			lost++
			continue
		case durable == nil:
			durable = make([]byte, len(now))
		}
		now = append(now, make([]byte, consumequeue.FileBytes-len(now))...) // one that was harmed may be short
		for off := 0; off < len(now); off += sector {
			is, was := now[off:off+sector], durable[off:off+sector]
			if !bytes.Equal(is, was) && rnd.IntN(2) == 0 {
				copy(is, was)
				lost++
			}
		}
		if err := os.WriteFile(path, now, 0o644); err != nil {
			t.Fatal(err)
		}
		d.durable[path] = now
	}
	return lost
}
