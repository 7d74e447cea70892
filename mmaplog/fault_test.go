package mmaplog

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/leasemq/leasemq/mmaplog/crashfs"
)

// For every n: the nth operation of the disk fails. Nothing that was committed is lost, the failure is
// latched and told once, and no position moves after it.
func TestNthOperationFails(t *testing.T) {
	for name, c := range map[string]struct {
		err error
		ops []string
	}{
		"short write":      {&crashfs.ShortWrite{Err: syscall.EIO}, []string{"write"}},
		"write error":      {syscall.EIO, []string{"write", "populate"}},
		"flush error":      {syscall.EIO, []string{"flush", "sync"}},
		"directory error":  {syscall.EIO, []string{"rename", "syncdir", "open", "map", "remove"}},
		"allocation error": {syscall.EIO, []string{"allocate"}},
	} {
		t.Run(name, func(t *testing.T) {
			eachIO(t, func(t *testing.T, mode IOMode) {
				for _, policy := range []Policy{SyncAlways, SyncInterval} {
					for n := 0; nthFails(t, mode, policy, n, c.err, c.ops); n++ {
						if n == 500 {
							t.Fatal("no end of operations")
						}
					}
				}
			})
		})
	}
}

// nthFails is one round; false when fewer than n operations happened.
func nthFails(t *testing.T, mode IOMode, policy Policy, n int, fault error, ops []string) bool {
	t.Helper()
	fs := newMemFS()
	failed := failNth(fs, n, fault, ops...)
	o := smallOptions(fs, mode)
	o.Policy = policy
	var failures atomic.Int32
	o.OnFail = func(error) { failures.Add(1) }
	r, _, err := tryOpen(t, o)
	if err != nil {
		if !failed() {
			t.Fatalf("operation %d: open: %v", n, err)
		}
		return true
	}
	for range 60 {
		if r.Err() != nil || r.RingFree() < 5000 {
			break
		}
		r.add(4000)
		r.Kick()
	}
	all := r.appended
	err = r.Sync()
	if err == nil {
		err = r.Close()
	} else {
		before := [...]uint64{r.Written(), r.Synced()}
		if again := r.Sync(); again == nil {
			t.Fatalf("operation %d: a second Sync succeeded after %v", n, err)
		}
		if after := [...]uint64{r.Written(), r.Synced()}; after != before {
			t.Fatalf("operation %d: positions moved after the failure: %v, %v", n, before, after)
		}
		r.Abort()
	}
	hit := failed()
	if latched := r.Err(); latched != nil && failures.Load() != 1 || latched == nil && failures.Load() != 0 {
		t.Fatalf("operation %d: OnFail ran %d times for %v", n, failures.Load(), latched)
	}
	if err != nil && !hit {
		t.Fatalf("operation %d: %v", n, err)
	}
	safe := r.Committed()
	again, k := open(t, o)
	defer again.Abort()
	own := k.own()
	sameRecords(t, all, own)
	if len(own) < len(all) && all[len(own)].end() <= safe {
		t.Fatalf("operation %d: the record at %d is gone, committed was %d", n, all[len(own)].header.Position, safe)
	}
	return hit
}

// A full disk refuses sends, loses nothing, and is over when there is room again.
func TestDiskFull(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		r, _ := open(t, smallOptions(fs, mode))
		poll(t, "the second segment", func() bool { return r.prepared.Load() == 2 })
		full := func(op, _ string) error {
			if op == "allocate" {
				return syscall.ENOSPC
			}
			return nil
		}
		fs.SetFault(full)
		for r.geo.segment(r.section.head) == 0 {
			if r.DiskFull() {
				t.Fatal("full before another segment was needed")
			}
			r.add(2000)
		}
		r.commitAll()
		poll(t, "DiskFull", r.DiskFull)
		if names, _ := fs.ReadDir("/data/log"); len(names) != 2 {
			t.Fatalf("the failed attempt left something: %q", names)
		}
		for r.DiskFree() >= 3000 {
			before := r.DiskFree()
			r.add(2000)
			if after := r.DiskFree(); before-after != 2104 {
				t.Fatalf("a record of 2104 bytes took %d", before-after)
			}
		}
		r.commitAll() // what was allocated can be used up
		inside := r.add(int(r.DiskFree()) - 104)
		if r.DiskFree() != 0 || r.geo.segment(inside.header.Position) != 1 {
			t.Fatalf("%d free behind the record at %d", r.DiskFree(), inside.header.Position)
		}
		r.commitAll()
		beyond := r.add(100) // the broker should not; nothing is lost
		r.Kick()
		if r.Err() != nil || r.DiskFree() != 0 {
			t.Fatalf("%v, %d bytes free", r.Err(), r.DiskFree())
		}
		fs.SetFault(nil)
		r.until(func() bool { return r.Committed() >= beyond.end() })
		poll(t, "DiskFull to end", func() bool { return !r.DiskFull() })
		all := r.appended
		r.Close()
		again, k := open(t, smallOptions(fs, mode))
		sameRecords(t, k.own(), all)
		again.Abort()
	})
}

// Close on a full disk ends, says so, and keeps what fits.
func TestCloseOnFullDisk(t *testing.T) {
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	poll(t, "the second segment", func() bool { return r.prepared.Load() == 2 })
	fs.SetFault(func(op, _ string) error {
		if op == "allocate" {
			return syscall.ENOSPC
		}
		return nil
	})
	var fits []kept
	for r.geo.segment(r.section.head) < 2 {
		if k := r.add(3000); r.geo.segment(k.header.Position) < 2 {
			fits = append(fits, k)
		}
		r.Kick()
	}
	if err := r.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("close: %v", err)
	}
	fs.SetFault(nil)
	again, k := open(t, smallOptions(fs, IOStaged))
	sameRecords(t, k.own(), fits)
	again.Abort()
}

// Start on a full disk fails; the directory can be used later.
func TestStartOnFullDisk(t *testing.T) {
	fs := newMemFS()
	failNth(fs, 0, syscall.ENOSPC, "allocate")
	if _, _, err := tryOpen(t, smallOptions(fs, IOStaged)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("error %v", err)
	}
	fs.SetFault(nil)
	r, _ := open(t, smallOptions(fs, IOStaged))
	r.Abort()
}

// A store that the medium refuses is an error of the writer, not the end of the process.
func TestStoreFaultIsAnError(t *testing.T) {
	ro := mapReadOnly(t)
	if err := store(ro[100:200], make([]byte, 100)); err == nil {
		t.Fatal("no error")
	}
	if err := store(make([]byte, 8), make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
}
