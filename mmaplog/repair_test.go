package mmaplog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// damages are ways in which a log (longLog, clean) does not open, with the position up to which it is good and what Repair
// does about it: the segments that are moved or copied aside.
func damages(all []kept) map[string]damagedLog {
	at := func(pos uint64) uint64 {
		return all[slices.IndexFunc(all, func(k kept) bool { return k.header.Position >= pos })].header.Position
	}
	mid := at(minSegmentBytes + 20_000)
	return map[string]damagedLog{
		"hole": {mid, []uint64{5, 4, 3, 2, 1}, true,
			func(fs *memFS) { fs.Poke(segmentPath(1), func(b []byte) { b[mid-minSegmentBytes+100] ^= 1 }) }},
		"first record": {minSegmentBytes + 64, []uint64{5, 4, 3, 2, 1}, false,
			func(fs *memFS) { fs.Poke(segmentPath(1), func(b []byte) { clear(b[64:200]) }) }},
		"very first record": {64, []uint64{5, 4, 3, 2, 1, 0}, false,
			func(fs *memFS) { fs.Poke(segmentPath(0), func(b []byte) { clear(b[64:200]) }) }},
		"header": {2*minSegmentBytes + 64, []uint64{5, 4, 3, 2}, false,
			func(fs *memFS) { fs.Poke(segmentPath(2), func(b []byte) { b[3] ^= 1 }) }},
		"short": {minSegmentBytes + 64, []uint64{5, 4, 3, 2, 1}, false,
			func(fs *memFS) { fs.Cut(segmentPath(1), 40_003) }},
		"missing": {2*minSegmentBytes + 64, []uint64{5, 4}, false,
			func(fs *memFS) { fs.Remove(segmentPath(3)); fs.Remove(segmentPath(2)); fs.SyncDir("/data/log") }},
		"prepared one": {4*minSegmentBytes + 64, []uint64{5, 4}, false,
			func(fs *memFS) { fs.Poke(segmentPath(5), func(b []byte) { clear(b) }) }},
		"stray file": {all[len(all)-1].end(), []uint64{5, 1}, false, func(fs *memFS) {
			fs.Put("/data/log/00000000000000070000.log", []byte("what is this"))
		}},
	}
}

type damagedLog struct {
	at     uint64
	moved  []uint64 // segments, the last one first
	copied bool     // the last of them only in part
	do     func(fs *memFS)
}

// logFiles are the segments of a log directory with their bytes; and of what lies aside every good record.
func logFiles(t testing.TB, fs *memFS) (segments map[string][]byte, aside map[uint64]bool) {
	t.Helper()
	segments, aside = map[string][]byte{}, map[uint64]bool{}
	for path, content := range fs.Files() {
		name, n, isAside := strings.Cut(filepath.Base(path), asideMark)
		base, ok := parseSegmentName(name)
		switch {
		case filepath.Dir(path) != "/data/log" || !ok:
		case !isAside:
			segments[path] = bytes.Clone(content)
		case strings.HasSuffix(n, tmpSuffix): // a copy that was not finished
		default:
			s := segmentScan{file: bytes.NewReader(content), base: base, size: int64(len(content))}
			if _, err := s.look(64, func(r Record) error { aside[r.Header.Position] = true; return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	return segments, aside
}

// Whatever a log does not open for: Repair, at the end that Scan finds, makes one that opens and has exactly the records before that. All
// that lay behind is still there, aside, and the report says so.
func TestRepair(t *testing.T) {
	whole, all := longLog(t, IOStaged, true)
	for name, c := range damages(all) {
		t.Run(name, func(t *testing.T) {
			fs := whole.Clone()
			c.do(fs)
			tail, before := readAll(t, fs, 0)
			if name == "prepared one" {
				tail.End, before = c.at, behindFrom(all, From{})[:slices.IndexFunc(all, func(k kept) bool { return k.header.Position >= c.at })]
			}
			if tail.Damage == nil || tail.End != c.at {
				t.Fatalf("%+v, %v", tail, tail.Damage)
			}
			behind := &keeper{}
			r, _ := OpenReader(fs, "/data")
			if err := r.ScanBehind(c.at, behind.replay); err != nil {
				t.Fatal(err)
			}
			report, err := Repair(fs, "/data", c.at)
			if err != nil {
				t.Fatal(err)
			}
			var promise uint64
			for _, k := range behind.records {
				if k.header.Synced > c.at {
					promise = max(promise, k.header.Synced)
				}
			}
			if report.At != c.at || report.Records != len(behind.records) || report.Promise != promise || len(report.Moved) != len(c.moved) {
				t.Fatalf("%+v; expected %d records and promise %d", report, len(behind.records), promise)
			}
			records, size := 0, int64(0)
			for i, m := range report.Moved {
				n := c.moved[len(c.moved)-1-i]
				if m.Copied != (i == 0 && c.copied) || m.Aside != m.Segment+".aside-1" || m.Segment != segmentPath(n) && name != "stray file" {
					t.Errorf("%+v", m)
				}
				records, size = records+m.Records, size+m.Bytes
			}
			if records != report.Records || size != report.Bytes || (size > 0) != (records > 0) {
				t.Errorf("%+v", report)
			}
			_, aside := logFiles(t, fs)
			for _, k := range behind.records {
				if !aside[k.header.Position] {
					t.Errorf("the record at %d is gone", k.header.Position)
				}
			}
			died := fs.Crash(newRand(t)) // all of it was made durable
			again, k := open(t, smallOptions(died, IOStaged))
			if sameRecords(t, k.records, before) != 0 || again.Recovery().End != c.at || again.Recovery().BytesCut != 0 {
				t.Fatalf("%d records, %+v", len(k.records), again.Recovery())
			}
			for range 20 {
				again.add(9000)
			}
			again.commitAll()
			appended := again.appended
			again.Abort()
			again, k = open(t, smallOptions(died, IOStaged))
			if sameRecords(t, k.own(), append((&keeper{records: before}).own(), appended...)) != 0 {
				t.Fatal("records too many")
			}
			again.Abort()
		})
	}
}

// For every n: the power fails at the nth operation of a repair. Run again it ends in the same log, and no good record is lost.
func TestRepairInterrupted(t *testing.T) {
	whole, all := longLog(t, IOStaged, true)
	cases := damages(all)
	cases["emptied"] = damagedLog{at: 2*minSegmentBytes + 64, do: func(fs *memFS) {
		fs.Remove(segmentPath(0))
		fs.Remove(segmentPath(1))
		fs.SyncDir("/data/log")
		fs.Poke(segmentPath(2), func(b []byte) { clear(b[64:128]) })
	}}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rng := newRand(t)
			damaged := whole.Clone()
			c.do(damaged)
			straight := damaged.Clone()
			if _, err := Repair(straight, "/data", c.at); err != nil {
				t.Fatal(err)
			}
			want, wantAside := logFiles(t, straight)
			for n := 0; ; n++ {
				fs := damaged.Clone()
				failed := failNth(fs, n, errPowerCut, "open", "write", "sync", "zero", "allocate", "rename", "remove", "syncdir")
				_, err := Repair(fs, "/data", c.at)
				if !failed() {
					if n < 2*len(c.moved) || err != nil {
						t.Fatalf("only %d operations, %v", n, err)
					}
					return
				}
				if err == nil {
					t.Fatalf("operation %d failed, and the repair did not", n)
				}
				for range 3 {
					after := fs.Crash(rand.New(rand.NewPCG(rng.Uint64(), 0)))
					if _, err := Repair(after, "/data", c.at); err != nil {
						t.Fatalf("interrupted at operation %d: %v", n, err)
					}
					got, aside := logFiles(t, after)
					for path, b := range want {
						if !bytes.Equal(got[path], b) {
							t.Fatalf("interrupted at operation %d: %s has other bytes", n, path)
						}
					}
					if len(got) != len(want) {
						t.Fatalf("interrupted at operation %d: %d segments, expected %d", n, len(got), len(want))
					}
					for pos := range wantAside {
						if !aside[pos] {
							t.Fatalf("interrupted at operation %d: the record at %d is gone", n, pos)
						}
					}
					if _, err := Repair(after, "/data", c.at); err != nil {
						t.Fatalf("a repair too many: %v", err)
					}
				}
			}
		})
	}
}

// The oldest segment of a log without its beginning stays, empty: otherwise the log would begin anew at position 0, and
// no snapshot fit it.
func TestRepairOldestSegment(t *testing.T) {
	fs, from, _ := shortLog(t)
	fs.Poke(segmentPath(1), func(b []byte) { b[0] = 'X' })
	report, err := Repair(fs, "/data", minSegmentBytes+64)
	if err != nil || report.Records < 7 || !report.Moved[0].Copied {
		t.Fatalf("%+v, %v", report, err)
	}
	r, k := open(t, beginAt(smallOptions(fs, IOStaged), from))
	defer r.Abort()
	if len(k.records) != 0 || r.Recovery().End != from.Position || r.Recovery().Fresh {
		t.Fatalf("%+v", r.Recovery())
	}
}

// A log that a snapshot covers is repaired where it is damaged behind that, whatever is damaged below.
func TestRepairBehindSnapshot(t *testing.T) {
	fs, all := longLog(t, IOStaged, true)
	i := slices.IndexFunc(all, func(k kept) bool { return k.header.Position > 2*minSegmentBytes+10_000 })
	from, cut := anchors(all)[i], all[i+5].header.Position
	fs.Poke(segmentPath(1), func(b []byte) { clear(b[64:20_000]) })
	fs.Poke(segmentPath(2), func(b []byte) { clear(b[64:5_000]); b[cut%minSegmentBytes+70] ^= 1 })
	if tail, _ := readAll(t, fs, from.Position); tail.End != cut || tail.Damage == nil {
		t.Fatalf("%+v", tail)
	}
	if _, err := Repair(fs, "/data", cut); err != nil {
		t.Fatal(err)
	}
	r, k, err := openOnly(t, beginAt(smallOptions(fs, IOStaged), from))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Abort()
	if sameRecords(t, k.records, all[i+1:i+5]) != 0 {
		t.Fatal("records too many")
	}
}

// Cuts that would leave a log that does not open are refused, and nothing is changed; so is a log that is in use.
func TestRepairRefuses(t *testing.T) {
	whole, all := longLog(t, IOStaged, true)
	header := func(fs *memFS) { fs.Poke(segmentPath(2), func(b []byte) { b[3] ^= 1 }) }
	gap := func(fs *memFS) { fs.Remove(segmentPath(2)) }
	nothing := func(*memFS) {}
	last := all[len(all)-1]
	for name, c := range map[string]struct {
		do   func(*memFS)
		at   uint64
		says string
	}{
		"inside a record":      {nothing, all[3].header.Position + 8, "no good record ends there"},
		"odd":                  {nothing, all[3].header.Position + 1, "no record can begin"},
		"in a header":          {nothing, minSegmentBytes + 8, "no record can begin"},
		"behind the end":       {nothing, last.end() + 64, "no good record ends there"},
		"behind all":           {nothing, 6*minSegmentBytes + 72, "the last segment before it ends"},
		"far behind":           {nothing, 9*minSegmentBytes + 64, "the last segment before it ends"},
		"behind a bad header":  {header, 3*minSegmentBytes + 64, fmt.Sprint("cut it at position ", 2*minSegmentBytes+64)},
		"beside a bad header":  {header, 2*minSegmentBytes + 128, fmt.Sprint("cut it at position ", 2*minSegmentBytes+64)},
		"behind a gap":         {gap, 3*minSegmentBytes + 64, fmt.Sprint("cut it at position ", 2*minSegmentBytes+64)},
		"before the beginning": {func(fs *memFS) { fs.Remove(segmentPath(0)) }, 64, "begins at position"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := whole.Clone()
			c.do(fs)
			before, _ := logFiles(t, fs)
			_, err := Repair(fs, "/data", c.at)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v", err)
			}
			after, _ := logFiles(t, fs)
			if len(after) != len(before) {
				t.Fatalf("%d files, there were %d", len(after), len(before))
			}
			for path, b := range before {
				if !bytes.Equal(after[path], b) {
					t.Fatalf("%s was changed", path)
				}
			}
		})
	}
	fs := newMemFS()
	r := filled(t, fs, IOStaged)
	defer r.Abort()
	_, err := Repair(fs, "/data", r.Appended())
	if locked, ok := errors.AsType[*LockedError](err); !ok || locked.Dir != "/data" {
		t.Fatalf("beside a running log: %v", err)
	}
	dir := t.TempDir()
	if _, err := Repair(nil, dir, 64); err == nil {
		t.Fatal("repaired a directory without a log")
	}
	if _, err := os.Stat(filepath.Join(dir, lockName)); !os.IsNotExist(err) {
		t.Fatalf("a lock file was left there: %v", err)
	}
}

// On the machine's own file system; with a full disk, and with bytes that cannot be read.
func TestRepairOnDisk(t *testing.T) {
	o := Options{Dir: t.TempDir(), IO: IOStaged, SegmentBytes: minSegmentBytes, RingBytes: minRingBytes, Logger: quietLogger()}
	r, _ := open(t, o)
	for range 30 {
		r.add(5000)
		r.commitAll()
	}
	r.Close()
	bad := r.appended[15]
	base := bad.header.Position / minSegmentBytes * minSegmentBytes
	path := filepath.Join(o.Dir, logDirName, segmentName(base))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), int64(bad.header.Position-base)+1000); err != nil {
		t.Fatal(err)
	}
	f.Close()
	_, err = Open(o, noRecord)
	damage, ok := errors.AsType[*DamageError](err)
	if !ok || damage.Position != bad.header.Position {
		t.Fatalf("error %v", err)
	}
	if _, err := Repair(&fullFS{OS}, o.Dir, damage.Position); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("on a full disk: %v", err)
	}
	if _, err = Open(o, noRecord); err.Error() != damage.Error() {
		t.Fatalf("after a repair on a full disk: %v", err)
	}
	broken := &brokenFS{FS: OS, name: path, at: int64(bad.header.Position-base) + 4000}
	report, err := Repair(broken, o.Dir, damage.Position)
	if err != nil || report.Records < 12 || report.Promise <= damage.Position {
		t.Fatalf("%+v, %v", report, err)
	}
	again, k := open(t, o)
	defer again.Abort()
	if sameRecords(t, k.own(), r.appended[:15]) != 0 {
		t.Fatal("records too many")
	}
	if free, total, err := again.Space(); err != nil || free <= 0 || total < free {
		t.Fatal(free, total, err)
	}
}

// fullFS has no room for a byte.
type fullFS struct{ FS }

type fullFile struct{ File }

func (f *fullFS) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	return &fullFile{file}, err
}

func (fullFile) WriteAt([]byte, int64) (int, error) { return 0, syscall.ENOSPC }
