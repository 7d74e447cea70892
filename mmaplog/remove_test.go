package mmaplog

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// filled returns a running log of at least six complete segments, all of it synced and the next segment prepared.
func filled(t testing.TB, fs FS, mode IOMode) *rig {
	t.Helper()
	r, _ := open(t, smallOptions(fs, mode))
	for r.geo.segment(r.Appended()) < 6 {
		r.add(7000)
	}
	r.commitAll()
	poll(t, "the next segment", func() bool { return r.prepared.Load() == 8 })
	return r
}

// checkReads reads every record that was appended: those of removed segments are ErrRemoved, the others what they
// were.
func checkReads(t testing.TB, r *rig) {
	t.Helper()
	for _, want := range r.appended {
		pos, got := want.header.Position, make([]byte, len(want.raw))
		err := r.ReadAt(got, pos)
		_, tryErr := r.TryRead(make([]byte, len(want.raw)), pos)
		h, headerErr := r.ReadHeader(pos)
		scanErr := r.Scan(context.Background(), pos, pos+1, noRecord)
		for _, err := range []error{err, tryErr, headerErr, scanErr} {
			if gone := pos < r.First(); errors.Is(err, ErrRemoved) != gone || !gone && err != nil {
				t.Fatalf("position %d of a log that begins at %d: %v", pos, r.First(), err)
			}
		}
		if err == nil && (!bytes.Equal(got, want.raw) || h != want.header) {
			t.Fatalf("the record at %d is another one", pos)
		}
	}
}

// Segments go whole and oldest first, up to what was asked for, and never one that is still needed to go on.
func TestRemoveBefore(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		r := filled(t, fs, mode)
		for _, c := range []struct {
			position uint64
			removed  int
			first    uint64
		}{
			{0, 0, 0},
			{minSegmentBytes - 1, 0, 0},
			{minSegmentBytes, 1, 1},
			{minSegmentBytes, 0, 1},
			{r.SegmentEnd(2*minSegmentBytes + 100), 2, 3},
			{1 << 60, 3, 6}, // the one that is appended to stays
			{1 << 60, 0, 6},
		} {
			n, size, err := r.RemoveBefore(c.position)
			if err != nil || n != c.removed || size != int64(n)*minSegmentBytes {
				t.Fatalf("before %d: %d segments, %d bytes, %v", c.position, n, size, err)
			}
			if got := segmentsIn(t, fs); got[0] != c.first || r.First() != c.first*minSegmentBytes+64 {
				t.Fatalf("before %d: segments %d, the log begins at %d", c.position, got, r.First())
			}
			checkReads(t, r)
		}
		if s := r.Stats(); s.SegmentsRemoved != 6 || s.Segments != 2 {
			t.Fatalf("%+v", s)
		}
		free, total, err := r.Space()
		if err != nil || total != 1<<30 || free != total-2*minSegmentBytes {
			t.Fatalf("%d of %d bytes free, %v", free, total, err)
		}
		from := r.anchor()
		r.add(100)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.RemoveBefore(1 << 60); !errors.Is(err, ErrClosed) {
			t.Fatalf("after Close: %v", err)
		}
		again, k := open(t, beginAt(smallOptions(fs.Crash(newRand(t)), mode), from))
		defer again.Abort()
		if len(k.own()) != 1 || again.First() != r.First() {
			t.Fatalf("%d records, %+v", len(k.own()), again.Recovery())
		}
	})
}

// What is not synced stays, however complete; so does the last segment there is while the disk has no room for the next.
func TestRemoveLeavesWhatIsNeeded(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		o := smallOptions(fs, mode)
		o.Policy = SyncNever
		r, _ := open(t, o)
		poll(t, "the second segment", func() bool { return r.prepared.Load() == 2 })
		gate := make(chan struct{})
		fs.SetFault(func(op, _ string) error {
			if op == "flush" {
				<-gate
			}
			return nil
		})
		for r.geo.segment(r.Appended()) < 2 {
			r.add(7000)
		}
		r.commitAll()
		if n, _, err := r.RemoveBefore(1 << 60); n != 0 || err != nil {
			t.Fatalf("%d segments removed before they were synced, %v", n, err)
		}
		fs.SetFault(func(op, _ string) error {
			if op == "allocate" {
				return syscall.ENOSPC
			}
			return nil
		})
		close(gate)
		for {
			if rest := int(r.DiskFree()); rest > r.MaxRecord() {
				r.add(20000)
			} else if rest >= 104 {
				r.add(rest - 104) // and the segment is exactly full
			} else {
				break
			}
			r.commitAll()
		}
		h := kept{}.header
		h.LeaseMs, h.WallMs = r.clock, r.clock
		r.Next(&h, 200) // ends the last segment there is
		if err := r.Sync(); err != nil || r.geo.segment(r.Synced()) != r.prepared.Load() {
			t.Fatalf("synced %d, %v", r.Synced(), err)
		}
		from := r.anchor()
		if _, _, err := r.RemoveBefore(from.Position); err != nil {
			t.Fatal(err)
		}
		left := segmentsIn(t, fs)
		if len(left) != 1 || left[0]+1 != r.geo.segment(from.Position) {
			t.Fatalf("segments %d are left of a log that ends at %d", left, from.Position)
		}
		r.Abort()
		fs.SetFault(nil)
		again, k := open(t, beginAt(smallOptions(fs, mode), from))
		defer again.Abort()
		if len(k.own()) != 0 || again.Recovery().End != from.Position {
			t.Fatalf("%+v", again.Recovery())
		}
	})
}

// For every n: the nth operation of a removal fails. The error names the file, the log goes on, its segment can no longer be
// read, and the next try ends the work. Should the machine die in between, there is no gap.
func TestRemoveOperationFails(t *testing.T) {
	rng := newRand(t)
	for n := 0; ; n++ {
		fs := newMemFS()
		r := filled(t, fs, IOStaged)
		from := r.anchor()
		var count counter
		fs.SetFault(func(op, _ string) error {
			if (op == "remove" || op == "syncdir") && count.next() == n {
				return syscall.EIO
			}
			return nil
		})
		removed, _, err := r.RemoveBefore(5 * minSegmentBytes)
		if count.value() <= n {
			if n != 10 || err != nil || removed != 5 {
				t.Fatalf("%d operations, %d segments removed, %v", n, removed, err)
			}
			r.Abort()
			return
		}
		at := uint64(n / 2) // two operations for each
		if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), segmentPath(at)) || removed != int(at) {
			t.Fatalf("operation %d: %d removed, %v", n, removed, err)
		}
		if r.Err() != nil || r.First() != (at+1)*minSegmentBytes+64 {
			t.Fatalf("operation %d: the log begins at %d, %v", n, r.First(), r.Err())
		}
		checkReads(t, r)

		died := fs.Crash(rand.New(rand.NewPCG(rng.Uint64(), 0)))
		checkNoGap(t, died)
		after, _ := open(t, beginAt(smallOptions(died, IOStaged), from))
		after.Abort()

		again, _, err := r.RemoveBefore(0) // whatever it is asked for, what was begun is ended
		if err != nil || again != 1 || segmentsIn(t, fs)[0] != at+1 {
			t.Fatalf("operation %d: the second try removed %d, %v", n, again, err)
		}
		again, _, err = r.RemoveBefore(5 * minSegmentBytes)
		if err != nil || removed+1+again != 5 || r.Stats().SegmentsRemoved != 5 {
			t.Fatalf("operation %d: the third try removed %d, %v", n, again, err)
		}
		r.add(100)
		r.commitAll()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// For every n: the power fails at the nth operation of a removal. The next start finds an older or a younger first segment, and all
// behind the snapshot.
func TestRemoveInterrupted(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		rng := newRand(t)
		for n := range 10 {
			for range 8 {
				fs := newMemFS()
				r := filled(t, fs, mode)
				i := slices.IndexFunc(r.appended, func(k kept) bool { return k.header.Position > 5*minSegmentBytes+10000 })
				from := anchors(r.appended)[i]
				failed := failNth(fs, n, errPowerCut, "remove", "syncdir")
				if _, _, err := r.RemoveBefore(from.LastPosition); !errors.Is(err, errPowerCut) {
					t.Fatalf("operation %d: %v", n, err)
				}
				r.end(ErrClosed, nil)
				r.Abort()
				failed()
				died := fs.Crash(rng)
				checkNoGap(t, died)
				first := segmentsIn(t, died)[0]
				if first > 5 || first < uint64(n/2) { // those before were removed and the directory synced
					t.Fatalf("operation %d: the log begins with segment %d", n, first)
				}
				again, k := open(t, beginAt(smallOptions(died, mode), from))
				if sameRecords(t, k.own(), r.appended[i+1:]) != 0 {
					t.Fatal("records too many")
				}
				again.Abort()
			}
		}
	})
}

// Readers beside a removal get what was there, or ErrRemoved, and nothing else; a scan that has a segment goes on in it.
func TestReadersDuringRemoval(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		for _, dir := range []string{"/data", t.TempDir()} {
			o := smallOptions(nil, mode)
			o.Dir = dir
			if dir == "/data" {
				o.FS = newMemFS()
			}
			r, _ := open(t, o)
			for r.geo.segment(r.Appended()) < 12 {
				r.add(5000)
			}
			r.commitAll()
			all := slices.Clone(r.appended)
			gone := func(err error) bool { return errors.Is(err, ErrRemoved) }
			var group sync.WaitGroup
			stop := make(chan struct{})
			for w := range 3 {
				group.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 9))
					for range 1 << 20 {
						select {
						case <-stop:
							return
						default:
						}
						want := all[rng.IntN(len(all))]
						got := make([]byte, len(want.raw))
						if w == 0 {
							if ok, err := r.TryRead(got, want.header.Position); err != nil && !gone(err) {
								t.Error(err)
							} else if !ok {
								continue
							}
						} else if err := r.ReadAt(got, want.header.Position); gone(err) {
							continue
						} else if err != nil {
							t.Error(err)
						}
						if !bytes.Equal(got, want.raw) {
							t.Errorf("the record at %d is another one", want.header.Position)
						}
					}
				})
			}
			group.Go(func() {
				for range 1 << 20 {
					select {
					case <-stop:
						return
					default:
					}
					if err := r.Scan(context.Background(), r.First(), r.Written(), noRecord); err != nil && !gone(err) {
						t.Error(err)
					}
				}
			})
			for n := range uint64(12) {
				// When a scan reads the segment it is removed under it, and is read to its end.
				rest := 0
				err := r.Scan(context.Background(), r.geo.first(n), r.geo.base(n+1), func(Record) error {
					if rest == 0 {
						if got, _, err := r.RemoveBefore(r.geo.base(n + 1)); got != 1 || err != nil {
							t.Errorf("segment %d: %d removed, %v", n, got, err)
						}
					}
					rest++
					return nil
				})
				if err != nil || rest < 5 {
					t.Errorf("segment %d: %d records, %v", n, rest, err)
				}
			}
			close(stop)
			group.Wait()
			checkReads(t, r)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Switching between the two kinds of segment at restarts, with segments removed in each life.
func TestSwitchIOWithRemoval(t *testing.T) {
	fs := newMemFS()
	var all []kept
	var from From
	for i := range 8 {
		mode := []IOMode{IOStaged, IOMapped}[i%2]
		r, k := open(t, beginAt(smallOptions(fs, mode), from))
		if sameRecords(t, k.own(), behindFrom(all, from)) != 0 {
			t.Fatal("records too many")
		}
		for range 30 {
			r.add(3000)
		}
		r.commitAll()
		from = r.anchor()
		for range 15 {
			r.add(3000)
		}
		r.commitAll()
		all = append(all, r.appended...)
		if n, _, err := r.RemoveBefore(from.LastPosition); err != nil || i > 0 && n == 0 {
			t.Fatalf("life %d: %d segments removed, %v", i, n, err)
		}
		if i%3 == 0 {
			r.Abort()
		} else if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		checkNoGap(t, fs)
	}
}

// Close waits for a removal that is on its way: it still needs the directory lock.
func TestCloseWaitsForRemoval(t *testing.T) {
	fs := newMemFS()
	r := filled(t, fs, IOStaged)
	reached, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fs.SetFault(func(op, _ string) error {
		if op == "remove" {
			once.Do(func() { close(reached) })
			<-gate
		}
		return nil
	})
	removed := make(chan error)
	go func() {
		_, _, err := r.RemoveBefore(2 * minSegmentBytes)
		removed <- err
	}()
	wait(t, reached)
	closed := make(chan error)
	go func() { closed <- r.Close() }()
	wait(t, r.done)
	for range 1000 {
		runtime.Gosched() // all that Close does but wait
	}
	select {
	case <-closed:
		t.Fatal("closed beside a removal")
	default:
	}
	if _, err := fs.Lock("/data/" + lockName); err == nil {
		t.Fatal("the lock was given back beside a removal")
	}
	close(gate)
	if err := wait(t, removed); !errors.Is(err, ErrClosed) { // the second segment
		t.Fatal(err)
	}
	if err := wait(t, closed); err != nil || segmentsIn(t, fs)[0] != 1 {
		t.Fatal(err, segmentsIn(t, fs))
	}
}
