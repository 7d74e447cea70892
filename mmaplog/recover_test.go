package mmaplog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

func segmentPath(index uint64) string {
	return filepath.Join("/data", logDirName, segmentName(index*minSegmentBytes))
}

// logWith returns a file system with an unclean log of n records in segment 0, written in two commits: the
// promise in the records of the second covers all of the first.
func logWith(t *testing.T, mode IOMode, sizes ...int) (*memFS, []kept) {
	t.Helper()
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, mode))
	half := len(sizes) / 2
	for _, n := range sizes[:half] {
		r.add(n)
	}
	r.commitAll()
	for _, n := range sizes[half:] {
		r.add(n)
	}
	r.commitAll()
	r.Abort()
	return fs, r.appended
}

// A tail torn at any byte of the records that no promise covers is cut at the record it tears, and the
// log goes on from there.
func TestTornTail(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		rng := newRand(t)
		fs, all := logWith(t, mode, 20, 0, 50, 31, 7, 64)
		from, to := all[3].header.Position, all[5].end()
		for cut := from; cut < to; cut++ {
			for _, garbage := range []bool{false, true} {
				torn := fs.Clone()
				torn.Poke(segmentPath(0), func(b []byte) {
					clear(b[cut:])
					if garbage {
						for i := range b[cut:to] {
							b[int(cut)+i] = byte(rng.Uint32())
						}
					}
				})
				var want []kept
				torn.Poke(segmentPath(0), func(b []byte) {
					for _, k := range all {
						if !bytes.Equal(b[k.header.Position:][:len(k.raw)], k.raw) {
							break // the cut has changed it; a zero in the place of a zero has not
						}
						want = append(want, k)
					}
				})
				r, k := open(t, smallOptions(torn, mode))
				if sameRecords(t, k.own(), want) != 0 {
					t.Fatalf("cut at %d: too many records", cut)
				}
				if cut%5 != 0 {
					r.Abort()
					continue
				}
				r.add(10)
				r.commitAll()
				want = append(want, r.appended...)
				r.Abort()
				r, k = open(t, smallOptions(torn, mode))
				if sameRecords(t, k.own(), want) != 0 {
					t.Fatalf("cut at %d: too many records after going on", cut)
				}
				r.Abort()
			}
		}
	})
}

// One flipped bit anywhere either changes nothing that is read, or cuts only records that nothing
// promised, or is reported as damage. It never silently takes a promised record.
func TestBitFlips(t *testing.T) {
	fs, all := logWith(t, IOStaged, 20, 0, 50, 31, 7, 64)
	end := all[len(all)-1].end()
	bit := 0
	damaged, cut := 0, 0
	for off := range end + 100 {
		flipped := fs.Clone()
		flipped.Poke(segmentPath(0), func(b []byte) { b[off] ^= 1 << (bit % 8) })
		bit++
		var promise uint64 // newest that the flip left alone
		for _, k := range all {
			if off < k.header.Position || off >= k.header.Position+uint64(k.header.Length) {
				promise = max(promise, k.header.Synced)
			}
		}
		r, k, err := openOnly(t, smallOptions(flipped, IOStaged))
		if err != nil {
			damage, ok := errors.AsType[*DamageError](err)
			if !ok {
				t.Fatalf("byte %d: %v", off, err)
			}
			if off >= promise && off < end {
				t.Fatalf("byte %d lies behind the newest promise %d: %v", off, promise, err)
			}
			if damage.Position > off || off-damage.Position > 200 || damage.File != segmentPath(0) {
				t.Fatalf("byte %d: damage reported in %s at %d", off, damage.File, damage.Position)
			}
			damaged++
			continue
		}
		own := k.own()
		if len(own) < len(all) {
			cut++
		}
		sameRecords(t, all, own)
		for _, k := range all[len(own):] {
			if k.header.Position < promise {
				t.Fatalf("byte %d: record at %d is gone, %d was promised", off, k.header.Position, promise)
			}
		}
		r.Abort()
	}
	if damaged == 0 || cut == 0 {
		t.Fatalf("%d times damage, %d times a cut", damaged, cut)
	}
}

// What lay behind a cut does not come back when new records happen to reach its place. The good records of it are in a file beside.
func TestStaleBytesStayGone(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs, all := logWith(t, mode, 100, 100, 100, 100, 100, 100)
		torn := all[3]
		fs.Poke(segmentPath(0), func(b []byte) { clear(b[torn.header.Position:torn.end()]) }) // a hole; 4 and 5 lie behind it
		r, k := open(t, smallOptions(fs, mode))
		sameRecords(t, k.own(), all[:3])
		f := r.Recovery()
		if f.BytesCut == 0 || f.RecordsCut != 2 || len(f.Aside) != 1 || f.Aside[0] != segmentName(0)+".aside-1" {
			t.Fatalf("what was cut: %+v", f)
		}
		fs.Poke("/data/log/"+f.Aside[0], func(b []byte) {
			for _, k := range all[4:] {
				if h, _, _, err := codec.ReadRecord(b[k.header.Position:]); err != nil || h != k.header {
					t.Errorf("the copy has %+v at position %d (%v), want %+v", h, k.header.Position, err, k.header)
				}
			}
		})
		// The EPOCH record is 64 bytes; this one fills the hole exactly.
		hole := int(torn.end()-r.Appended()) - codec.HeaderBytes - codec.MessageAssignedBytes
		fill := r.add(hole)
		if fill.end() != all[4].header.Position {
			t.Fatalf("the new record ends at %d, the stale one begins at %d", fill.end(), all[4].header.Position)
		}
		r.commitAll()
		r.Abort()
		r, k = open(t, smallOptions(fs, mode))
		if more := sameRecords(t, k.own(), append(slices.Clone(all[:3]), fill)); more != 0 {
			t.Fatalf("%d stale records came back", more)
		}
		if f := r.Recovery(); f.RecordsCut != 0 || len(f.Aside) != 0 {
			t.Fatalf("there is nothing to be cut a second time: %+v", f)
		}
		r.Abort()
	})
}

// Segments behind the end go aside, by name, and the next recovery neither needs nor touches them.
func TestLaterSegmentsAside(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		o := smallOptions(fs, mode)
		o.Policy = SyncNever // so that no promise covers what is torn below
		r, _ := open(t, o)
		fs.SetFault(func(op, _ string) error {
			if op == "flush" {
				<-r.done // the disk takes no flush any more
				return errors.New("too late")
			}
			return nil
		})
		for range 60 {
			r.add(4000)
		}
		r.commitAll()
		r.Abort()
		fs.SetFault(nil)
		all := r.appended
		torn := slices.IndexFunc(all, func(k kept) bool { return k.header.Position > minSegmentBytes+minSegmentBytes/2 })
		fs.Poke(segmentPath(1), func(b []byte) { b[all[torn].header.Position-minSegmentBytes+70] ^= 1 })

		r, k := open(t, o)
		if sameRecords(t, k.own(), all[:torn]) != 0 {
			t.Fatal("records behind the tear")
		}
		aside := r.Recovery().Aside
		if len(aside) < 2 || aside[len(aside)-1] != segmentName(2*minSegmentBytes)+".aside-1" {
			t.Fatalf("moved aside: %q", aside)
		}
		want := slices.Clone(all[:torn])
		for range 60 {
			r.add(4000)
		}
		r.commitAll()
		want = append(want, r.appended...)
		r.Close()
		r, k = open(t, o)
		if sameRecords(t, k.own(), want) != 0 || len(r.Recovery().Aside) != 0 {
			t.Fatalf("second recovery: %+v", r.Recovery())
		}
		r.Abort()
		names, _ := fs.ReadDir("/data/log")
		if !slices.Contains(names, aside[0]) {
			t.Fatalf("%s is gone", aside[0])
		}
	})
}

// An orderly stop leaves nothing to rewrite but its own record, and a prepared segment stays in place; the death of
// the process leaves what no promise covers.
func TestCleanStop(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		o := smallOptions(fs, mode)
		o.Policy = SyncInterval
		for life, clean := range []bool{true, false, true, true, false} {
			r, _ := open(t, o)
			f := r.Recovery()
			if life > 0 {
				wasClean := []bool{true, false, true, true, false}[life-1]
				if f.CleanStop != wasClean || wasClean != (f.BytesRewritten <= endBytes) {
					t.Fatalf("life %d: %+v", life, f)
				}
			}
			if len(f.Aside) != 0 || f.BytesCut != 0 {
				t.Fatalf("life %d: %+v", life, f)
			}
			for range 3 {
				r.add(2000)
			}
			if clean {
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				r.commitAll()
				r.Abort()
			}
		}
	})
}

// Anything behind a CLEAN_STOP record makes it count for nothing.
func TestCleanStopNotLast(t *testing.T) {
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	r.add(10)
	r.Close()
	end := r.Appended()
	fs.Poke(segmentPath(0), func(b []byte) { b[end+100] = 1 })
	r, _ = open(t, smallOptions(fs, IOStaged))
	defer r.Abort()
	if f := r.Recovery(); f.CleanStop || f.BytesCut != 101 {
		t.Fatalf("%+v", f)
	}
}

// Directories and headers that cannot come from a crash are refused, with the file and what to do.
func TestDamagedDirectory(t *testing.T) {
	made := func() *memFS {
		fs := newMemFS()
		r, _ := open(t, smallOptions(fs, IOStaged))
		for range 60 {
			r.add(4000)
		}
		r.Close()
		return fs
	}
	whole := made()
	for name, damage := range map[string]struct {
		do   func(fs *memFS)
		file string
		says string
	}{
		"header flipped":   {func(fs *memFS) { fs.Poke(segmentPath(1), func(b []byte) { b[20] ^= 4 }) }, segmentPath(1), "checksum of the segment header"},
		"header zeroed":    {func(fs *memFS) { fs.Poke(segmentPath(2), func(b []byte) { clear(b[:64]) }) }, segmentPath(2), "does not begin like"},
		"missing inside":   {func(fs *memFS) { fs.Remove(segmentPath(1)) }, segmentPath(1), "missing"},
		"missing at start": {func(fs *memFS) { fs.Remove(segmentPath(0)) }, segmentPath(0), "missing"},
		"swapped": {func(fs *memFS) {
			fs.Rename(segmentPath(1), "/x")
			fs.Rename(segmentPath(2), segmentPath(1))
			fs.Rename("/x", segmentPath(2))
		}, segmentPath(1), "belongs to the segment"},
		"short": {func(fs *memFS) { fs.Cut(segmentPath(1), 1000) }, segmentPath(1), "1000 bytes"},
		"empty": {func(fs *memFS) { fs.Cut(segmentPath(1), 0) }, segmentPath(1), "0 bytes"},
		"record zeroed": {func(fs *memFS) { fs.Poke(segmentPath(1), func(b []byte) { clear(b[5000:6000]) }) }, segmentPath(1),
			"everything below position"},
		"segment zeroed": {func(fs *memFS) { fs.Poke(segmentPath(1), func(b []byte) { clear(b[64:]) }) }, segmentPath(1),
			"the records stop"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := whole.Clone()
			damage.do(fs)
			before, _ := fs.ReadDir("/data/log")
			_, _, err := openOnly(t, smallOptions(fs, IOStaged))
			got, ok := errors.AsType[*DamageError](err)
			if !ok || got.File != damage.file {
				t.Fatalf("error %v", err)
			}
			for _, part := range []string{damage.says, damage.file, "Copy the data directory", "`leasemq log verify`", "`leasemq log repair`",
				"restore the file from a backup"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in %q", part, err)
				}
			}
			if after, _ := fs.ReadDir("/data/log"); !slices.Equal(before, after) {
				t.Errorf("recovery changed the directory: %q", after)
			}
		})
	}
}

// forge writes a record with a good checksum behind the log's end.
func forge(fs *memFS, pos uint64, change func(h *codec.Header)) {
	fs.Poke(segmentPath(0), func(b []byte) {
		h := codec.Header{Type: codec.TypeClock, Epoch: 9, Position: pos, LeaseMs: 1 << 40}
		change(&h)
		codec.Seal(b[pos:pos+codec.HeaderBytes], &h, 0, 0)
	})
}

// Good records that contradict the ones before them.
func TestContradictions(t *testing.T) {
	whole, all := logWith(t, IOStaged, 40, 40, 40, 40)
	end := all[3].end()
	for name, c := range map[string]struct {
		change  func(h *codec.Header)
		damage  bool
		records int
	}{
		"good":           {func(h *codec.Header) {}, false, 1},
		"lower epoch":    {func(h *codec.Header) { h.Epoch = 0 }, false, 0},
		"lease clock":    {func(h *codec.Header) { h.LeaseMs = 0 }, true, 0},
		"promise ahead":  {func(h *codec.Header) { h.Synced = end + 8 }, true, 0},
		"other position": {func(h *codec.Header) { h.Position += 8 }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			fs := whole.Clone()
			forge(fs, end, c.change)
			r, k, err := openOnly(t, smallOptions(fs, IOStaged))
			if _, ok := errors.AsType[*DamageError](err); ok != c.damage {
				t.Fatalf("error %v", err)
			}
			if err == nil {
				if more := sameRecords(t, k.records[len(k.records)-c.records-4:], all); more != c.records {
					t.Fatalf("%d records more, expected %d", more, c.records)
				}
				r.Abort()
			}
		})
	}
}

// A record behind the tear that promises nothing beyond it is part of the torn tail; one that does is
// evidence of damage, wherever it lies.
func TestPromiseBehindTheEnd(t *testing.T) {
	whole, all := logWith(t, IOStaged, 40, 40, 40, 40)
	end := all[3].end()
	for _, at := range []uint64{end + 8, end + 4096, minSegmentBytes - 64} {
		for _, promise := range []uint64{0, end, end + 1} {
			fs := whole.Clone()
			forge(fs, at, func(h *codec.Header) { h.Synced = promise })
			r, _, err := openOnly(t, smallOptions(fs, IOStaged))
			damage, ok := errors.AsType[*DamageError](err)
			if ok != (promise > end) || (err != nil && !ok) {
				t.Fatalf("record at %d with promise %d: %v", at, promise, err)
			}
			if ok && (damage.Position != end || damage.Promise != promise || damage.Offset != int64(end)) {
				t.Fatalf("%+v", damage)
			}
			if err == nil {
				r.Abort()
			}
		}
	}
}

// A segment whose name was not durable when the broker died is taken over only with a durable name.
func TestNamesAreMadeDurable(t *testing.T) {
	fs := newMemFS()
	fs.SetFault(func(op, _ string) error {
		if op == "syncdir" && fs.Has(segmentPath(1)) {
			return errors.New("killed here")
		}
		return nil
	})
	r, _, err := openOnly(t, smallOptions(fs, IOStaged))
	if err != nil {
		t.Fatal(err)
	}
	r.Start(1, 0, 0) // perhaps in time
	wait(t, r.done)
	r.Abort() // the process dies; the name is there, and not durable
	fs.SetFault(func(op, name string) error {
		if op == "allocate" && strings.HasPrefix(name, segmentName(2*minSegmentBytes)) {
			return syscall.ENOSPC // no third segment, whose making would sync the directory
		}
		return nil
	})
	r, _ = open(t, smallOptions(fs, IOStaged))
	for r.geo.segment(r.Appended()) < 1 {
		r.add(5000)
	}
	r.add(5000)
	r.commitAll()
	all := r.appended
	r.Abort()
	fs.ForgetNames() // the power fails; nothing of the directory that was not synced survives
	r, k := open(t, smallOptions(fs.Crash(newRand(t)), IOStaged))
	defer r.Abort()
	sameRecords(t, k.own(), all)
}

func TestUnfinishedFilesGo(t *testing.T) {
	fs, all := logWith(t, IOStaged, 40, 40)
	fs.OpenFile(segmentPath(7)+tmpSuffix, 0x42, 0)
	r, k := open(t, smallOptions(fs, IOStaged))
	defer r.Abort()
	sameRecords(t, k.own(), all)
	if got := r.Recovery().TempRemoved; len(got) != 1 {
		t.Fatalf("removed %q", got)
	}
}

// A replay that fails stops Open and says where.
func TestReplayError(t *testing.T) {
	fs, all := logWith(t, IOStaged, 40, 40, 40, 40)
	broken := errors.New("no such topic")
	_, err := Open(smallOptions(fs, IOStaged), func(r Record) error {
		if r.Header.Position == all[2].header.Position {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), fmt.Sprint(all[2].header.Position)) {
		t.Fatalf("error %v", err)
	}
	r, _ := open(t, smallOptions(fs, IOStaged)) // the lock was given back
	r.Abort()
}

// A recovery that is interrupted at any of its operations can be run again, with the same outcome.
func TestRecoveryIsRestartable(t *testing.T) {
	rng := newRand(t)
	fs := newMemFS()
	o := smallOptions(fs, IOStaged)
	o.Policy = SyncNever
	r, _ := open(t, o)
	fs.SetFault(func(op, _ string) error {
		if op == "flush" {
			<-r.done
			return errors.New("too late")
		}
		return nil
	})
	for range 60 {
		r.add(4000)
	}
	r.commitAll()
	r.Abort()
	fs.SetFault(nil)
	all := r.appended
	fs.Poke(segmentPath(1), func(b []byte) { clear(b[30000:34000]) })
	torn := slices.IndexFunc(all, func(k kept) bool { return k.end() > minSegmentBytes+30000 })

	for n := 0; ; n++ {
		try := fs.Clone()
		failed := failNth(try, n, errors.New("power cut"), "write", "sync", "zero", "rename", "syncdir", "open")
		o.FS = try
		if r, _, err := openOnly(t, o); err == nil {
			r.Abort()
		}
		if !failed() {
			if n < 10 {
				t.Fatalf("only %d operations", n)
			}
			return
		}
		after := try.Crash(rand.New(rand.NewPCG(rng.Uint64(), 0)))
		o.FS = after
		r, k := open(t, o)
		if sameRecords(t, k.own(), all[:torn]) != 0 {
			t.Fatalf("interrupted at operation %d: records behind the tear", n)
		}
		r.Abort()
	}
}

// failNth makes the nth operation of the given kinds fail, and all after it. It returns whether it
// came to that.
func failNth(fs *memFS, n int, err error, ops ...string) func() bool {
	var count counter
	fs.SetFault(func(op, _ string) error {
		if slices.Contains(ops, op) && count.next() >= n {
			return err
		}
		return nil
	})
	return func() bool { fs.SetFault(nil); return count.value() > n }
}

// TestLastSegmentsRemoved: nothing on the disk tells what files held that are gone, but that one is gone shows.
func TestLastSegmentsRemoved(t *testing.T) {
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	for range 60 {
		r.add(4000)
	}
	r.Close()
	names, err := fs.ReadDir("/data/log")
	if err != nil || len(names) < 4 {
		t.Fatalf("%v, %v", names, err)
	}
	for i := 2; i < len(names); i++ {
		fs.Remove(segmentPath(uint64(i)))
	}
	r, _ = open(t, smallOptions(fs, IOStaged))
	if !r.Recovery().NextMissing {
		t.Error("two segments are there, the second complete, and nothing is missing")
	}
	r.Close()
	r, _ = open(t, smallOptions(fs, IOStaged))
	if r.Recovery().NextMissing {
		t.Error("a segment is missing after an orderly stop")
	}
	r.Close()
}
