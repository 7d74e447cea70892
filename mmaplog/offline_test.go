package mmaplog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// readAll scans a log offline from a position.
func readAll(t testing.TB, fs FS, from uint64) (Tail, []kept) {
	t.Helper()
	r, err := OpenReader(fs, "/data")
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{}
	tail, err := r.Scan(from, k.replay)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if tail.Records != int64(len(k.records)) {
		t.Fatalf("%d records, %+v", len(k.records), tail)
	}
	return tail, k.records
}

// A reader gives what is in the log and says how it ends, beside a running broker too, and changes nothing.
func TestReader(t *testing.T) {
	for _, clean := range []bool{true, false} {
		fs, all := longLog(t, IOStaged, clean)
		fs.SetFault(func(op, name string) error {
			if op != "open" && op != "read" {
				t.Errorf("%s of %s", op, name)
			}
			return nil
		})
		last := all[len(all)-1]
		tail, records := readAll(t, fs, 0)
		if sameRecords(t, records, all) != 0 {
			t.Fatal("records too many")
		}
		h := last.header
		want := Tail{End: last.end(), Records: int64(len(all)), Bytes: tail.Bytes, Clean: clean, Epoch: h.Epoch, LeaseMs: h.LeaseMs, WallMs: h.WallMs,
			Promise: tail.Promise}
		if tail != want || tail.Promise == 0 || tail.Bytes < 100_000 {
			t.Fatalf("%+v", tail)
		}
		r, err := OpenReader(fs, "/data")
		if err != nil {
			t.Fatal(err)
		}
		segments := r.Segments()
		if r.First() != 64 || r.SegmentBytes() != minSegmentBytes || len(segments) != len(segmentsIn(t, fs)) {
			t.Fatalf("%+v", segments)
		}
		for i, s := range segments {
			if s != (SegmentInfo{Base: uint64(i) * minSegmentBytes, Path: segmentPath(uint64(i)), Size: minSegmentBytes}) {
				t.Errorf("%+v", s)
			}
		}
		for i, k := range all {
			record, err := r.ReadRecord(k.header.Position)
			if err != nil || !bytes.Equal(record.Raw, k.raw) || record.Header != k.header {
				t.Fatal(err)
			}
			if i%5 == 0 {
				if _, records := readAll(t, fs, k.header.Position); sameRecords(t, records, all[i:]) != 0 {
					t.Fatalf("from %d: records too many", k.header.Position)
				}
			}
			found := &keeper{}
			if err := r.ScanBehind(k.header.Position, found.replay); err != nil || sameRecords(t, found.records, all[i:]) != 0 {
				t.Fatal(err)
			}
		}
		for _, bad := range []uint64{0, 8, 65, 72, last.end(), 1 << 40, 1<<64 - 8} {
			if _, err := r.ReadRecord(bad); err == nil {
				t.Errorf("a record at %d", bad)
			}
			if _, err := r.Scan(bad, noRecord); err == nil && bad != 0 && bad != 72 && bad != last.end() {
				t.Errorf("scanned from %d", bad)
			}
		}
		r.Close()
	}
	fs := newMemFS()
	live := filled(t, fs, IOMapped)
	defer live.Abort()
	live.RemoveBefore(3 * minSegmentBytes)
	tail, records := readAll(t, fs, 0)
	if tail.End != live.Appended() || records[0].header.Position != live.First() {
		t.Fatalf("beside a running log: %+v", tail)
	}
	r, _ := OpenReader(fs, "/data")
	if _, err := r.ReadRecord(64); !errors.Is(err, ErrRemoved) {
		t.Errorf("a removed position: %v", err)
	}
	if _, err := OpenReader(nil, filepath.Join(t.TempDir(), "none")); !os.IsNotExist(errors.Unwrap(err)) {
		t.Errorf("no directory: %v", err)
	}
}

// Given a log that goes on while it is read, then what the reader takes for the end is no damage, although later records promise
// more by the time that it looks behind.
func TestReaderBesideAppends(t *testing.T) {
	whole, all := longLog(t, IOStaged, true)
	from := all[slices.IndexFunc(all, func(k kept) bool { return k.header.Position > minSegmentBytes+30_000 })].header.Position
	for n := 0; ; n++ {
		fs := whole.Clone()
		var later []byte
		fs.Poke(segmentPath(1), func(b []byte) { later = bytes.Clone(b); clear(b[from-minSegmentBytes:]) })
		var reads counter
		fs.SetFault(func(op, _ string) error {
			if op == "read" && reads.next() == n {
				fs.Poke(segmentPath(1), func(b []byte) { copy(b, later) })
			}
			return nil
		})
		tail, records := readAll(t, fs, 0)
		if reads.value() <= n { // the records never came: it is a hole
			if n < 10 || tail.Damage == nil || tail.End != from {
				t.Fatalf("%d reads, %+v", n, tail)
			}
			return
		}
		if sameRecords(t, records, all) != 0 || tail.Damage != nil || !tail.Clean {
			t.Fatalf("before read %d: %+v", n, tail)
		}
	}
}

// verdict opens a copy of the log from from, and compares what Open and the offline reader make of it. It returns the
// error of Open, or the records.
func verdict(t *testing.T, fs *memFS, from From) ([]kept, error) {
	t.Helper()
	tail, records := readAll(t, fs, 0)
	r, k, err := openOnly(t, beginAt(smallOptions(fs, IOStaged), from))
	if err != nil {
		if damage, ok := errors.AsType[*DamageError](err); ok {
			switch {
			case tail.Damage == nil:
				t.Fatalf("Open finds damage, the reader does not: %v", err)
			case tail.Damage.File != damage.File || tail.Damage.Offset != damage.Offset:
				t.Fatalf("Open finds %v\nthe reader %v", damage, tail.Damage)
			}
		}
		return nil, err
	}
	defer r.Abort()
	f := r.Recovery()
	if tail.Damage != nil || tail.End != f.End || tail.Torn != (f.BytesCut > 0 || len(f.Aside) > 0) || tail.Clean != f.CleanStop {
		t.Fatalf("Open %+v\nthe reader %+v, %v", f, tail, tail.Damage)
	}
	if want := behindFrom(records, from); sameRecords(t, k.records, want) != 0 {
		t.Fatal("Open found more than the reader")
	}
	return k.records, nil
}

// shortLog is a small log that begins with segment 1, where the snapshot is that it returns, and ends in segment 2.
func shortLog(t *testing.T) (*memFS, From, []kept) {
	t.Helper()
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	overhead := codec.HeaderBytes + codec.MessageAssignedBytes
	r.add(int(minSegmentBytes) - int(r.Appended()) - endBytes - overhead)
	h := codec.Header{LeaseMs: r.clock, WallMs: r.clock}
	r.Next(&h, 100)
	if err := r.Sync(); err != nil {
		t.Fatal(err)
	}
	from := r.anchor() // the first of segment 1
	for _, n := range []int{20, 31, 0} {
		r.add(n)
		r.commitAll()
	}
	r.Next(&h, 65_000) // a short segment
	r.add(7)
	r.commitAll()
	for range 3 {
		r.add(64)
	}
	r.commitAll()
	r.RemoveBefore(minSegmentBytes)
	r.Abort()
	if got := segmentsIn(t, fs); got[0] != 1 || len(got) < 2 {
		t.Fatalf("segments %d", got)
	}
	_, records := readAll(t, fs, 0)
	return fs, from, records
}

// Every byte of a log flipped, and every truncation and every torn tail of it, with its beginning removed and from
// snapshots in it. Open refuses, naming the place, or cuts off what nothing promised; it never takes back a record that another one
// promised. The offline reader agrees.
func TestEveryByteFromSnapshot(t *testing.T) {
	whole, first, all := shortLog(t)
	froms := append([]From{first}, anchors(all)...)
	seen := map[string]int{}
	check := func(what string, fs *memFS, from From, changed func(k kept) bool, file string) {
		t.Helper()
		var promise uint64 // newest of those that still stand
		for _, k := range all {
			if !changed(k) {
				promise = max(promise, k.header.Synced)
			}
		}
		want := behindFrom(all, from)
		records, err := verdict(t, fs, from)
		damage, damaged := errors.AsType[*DamageError](err)
		anchor, wrong := errors.AsType[*AnchorError](err)
		switch {
		case damaged && damage.File != file, wrong && (anchor.File != file || anchor.Position != from.LastPosition):
			t.Fatalf("%s: %v", what, err)
		case wrong && !slices.ContainsFunc(all, func(k kept) bool { return k.header.Position == from.LastPosition && changed(k) }):
			t.Fatalf("%s: the last record is good: %v", what, err)
		case damaged:
			seen["damage"]++
		case wrong:
			seen["anchor"]++
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		default:
			sameRecords(t, want, records)
			for _, k := range want[len(records):] {
				seen["cut"]++
				if k.header.Position < promise {
					t.Fatalf("%s: the record at %d is gone, %d was promised", what, k.header.Position, promise)
				}
			}
			if len(records) == len(want) {
				seen["nothing"]++
			}
		}
	}
	step := uint64(1)
	if testing.Short() {
		step = 5
	}
	picks := []From{first, froms[2], froms[len(froms)-3]}
	for n := uint64(1); n <= 2; n++ {
		used := uint64(0)
		for _, k := range all {
			if k.header.Position/minSegmentBytes == n {
				used = k.end() - n*minSegmentBytes
			}
		}
		for off := uint64(0); off < used+16; off += step {
			at := n*minSegmentBytes + off
			from := picks[int(off)%len(picks)]
			fs := whole.Clone()
			fs.Poke(segmentPath(n), func(b []byte) { b[off] ^= 1 << (off % 8) })
			hit := func(k kept) bool { return at >= k.header.Position && at < k.header.Position+uint64(len(k.raw)) }
			if !slices.ContainsFunc(behindFrom(all, From{Position: from.LastPosition}), hit) && off >= segmentHeaderBytes {
				// Below the snapshot nothing is read: the reader sees more than Open then.
				r, k, err := openOnly(t, beginAt(smallOptions(fs, IOStaged), from))
				if err != nil {
					t.Fatalf("byte %d below the snapshot: %v", off, err)
				}
				sameRecords(t, k.records, behindFrom(all, from))
				r.Abort()
				continue
			}
			check(fmt.Sprintf("byte %d of segment %d flipped", off, n), fs, from, hit, segmentPath(n))

			fs = whole.Clone()
			fs.Poke(segmentPath(n), func(b []byte) { clear(b[off:]) })
			check(fmt.Sprintf("segment %d zeroed from byte %d", n, off), fs, first, func(k kept) bool {
				return k.header.Position/minSegmentBytes == n && !bytes.Equal(k.raw, fs.Files()[segmentPath(n)][k.header.Position%minSegmentBytes:][:len(k.raw)])
			}, segmentPath(n))

			fs = whole.Clone()
			fs.Cut(segmentPath(n), int(off))
			if _, err := verdict(t, fs, first); err == nil || !strings.Contains(err.Error(), segmentPath(n)) {
				t.Fatalf("segment %d truncated to %d bytes: %v", n, off, err)
			}
		}
	}
	for _, what := range []string{"damage", "anchor", "cut", "nothing"} {
		if seen[what] == 0 {
			t.Errorf("no %s among %v", what, seen)
		}
	}
}

// What stands where in a directory that no broker left like that.
func TestReaderProblems(t *testing.T) {
	whole, all := longLog(t, IOStaged, true)
	end := func(n uint64) uint64 { return n*minSegmentBytes + 64 }
	for name, c := range map[string]struct {
		do   func(fs *memFS)
		end  uint64
		file string
		says string
	}{
		"header":  {func(fs *memFS) { fs.Poke(segmentPath(2), func(b []byte) { b[5] ^= 1 }) }, end(2), segmentPath(2), "does not begin like"},
		"first":   {func(fs *memFS) { fs.Poke(segmentPath(0), func(b []byte) { b[20] ^= 1 }) }, end(0), segmentPath(0), "checksum"},
		"short":   {func(fs *memFS) { fs.Cut(segmentPath(1), 30_001) }, end(1), segmentPath(1), "30001 bytes"},
		"long":    {func(fs *memFS) { fs.Cut(segmentPath(1), minSegmentBytes+3) }, end(1), segmentPath(1), "65539 bytes"},
		"empty":   {func(fs *memFS) { fs.Cut(segmentPath(3), 0) }, end(3), segmentPath(3), "0 bytes"},
		"missing": {func(fs *memFS) { fs.Remove(segmentPath(1)); fs.Remove(segmentPath(2)) }, end(1), segmentPath(1), "missing"},
		"behind":  {func(fs *memFS) { fs.Poke(segmentPath(5), func(b []byte) { clear(b[:64]) }) }, all[len(all)-1].end(), segmentPath(5), "does not begin"},
		"stray": {func(fs *memFS) { fs.Put("/data/log/00000000000000070000.log", make([]byte, 100)) }, all[len(all)-1].end(),
			"/data/log/00000000000000070000.log", "does not begin"},
		"far": {func(fs *memFS) {
			fs.Put("/data/log/18446744073709486080.log", make([]byte, minSegmentBytes))
		}, all[len(all)-1].end(),
			"/data/log/18446744073709486080.log", "does not begin"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := whole.Clone()
			c.do(fs)
			tail, records := readAll(t, fs, 0)
			if tail.Damage == nil || tail.Damage.File != c.file || !strings.Contains(tail.Damage.What, c.says) || tail.End != c.end || tail.Torn || tail.Clean {
				t.Fatalf("%+v: %v", tail, tail.Damage)
			}
			sameRecords(t, all, records)
			r, _ := OpenReader(fs, "/data")
			if !slices.ContainsFunc(r.Segments(), func(s SegmentInfo) bool { return s.Problem != "" }) {
				t.Errorf("%+v", r.Segments())
			}
			if _, _, err := openOnly(t, smallOptions(fs, IOStaged)); !errors.As(err, new(*DamageError)) {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

// Bytes that the disk cannot read are damage: what lies around them is found.
func TestReaderUnreadable(t *testing.T) {
	fs, all := longLog(t, IOStaged, true)
	bad := slices.IndexFunc(all, func(k kept) bool { return k.header.Position > minSegmentBytes+20_000 && len(k.raw) > salvagePage+64 })
	broken := &brokenFS{FS: fs, name: segmentPath(1),
		at: (int64(all[bad].header.Position-minSegmentBytes) + 64 + salvagePage) &^ (salvagePage - 1)} // of a page that begins in that record
	tail, records := readAll(t, broken, 0)
	if sameRecords(t, records, all[:bad]) != 0 || tail.Damage == nil || tail.End != all[bad].header.Position {
		t.Fatalf("%d records, %+v", len(records), tail)
	}
	if tail.Damage.Promise == 0 || tail.BehindRecords < len(all)-bad-3 {
		t.Fatalf("%+v, %v", tail, tail.Damage)
	}
	// In what follows the last record nothing is lost, but the broker would not start either.
	broken.name, broken.at = segmentPath(4), int64(all[len(all)-1].end()%minSegmentBytes)+9000
	tail, records = readAll(t, broken, 0)
	if sameRecords(t, records, all) != 0 || tail.Damage == nil || !strings.Contains(tail.Damage.What, "cannot be read") {
		t.Fatalf("%+v, %v", tail, tail.Damage)
	}
}

// brokenFS has one byte of one file that cannot be read.
type brokenFS struct {
	FS
	name string
	at   int64
}

type brokenFile struct {
	File
	at int64
}

func (b *brokenFS) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	f, err := b.FS.OpenFile(name, flag, perm)
	if err != nil || name != b.name {
		return f, err
	}
	return &brokenFile{f, b.at}, nil
}

func (f *brokenFile) ReadAt(b []byte, off int64) (int, error) {
	if off <= f.at && f.at < off+int64(len(b)) {
		n, _ := f.File.ReadAt(b[:f.at-off], off)
		return n, syscall.EIO
	}
	return f.File.ReadAt(b, off)
}

// FuzzReader reads arbitrary bytes in files of arbitrary names. Nothing panics, memory stays bounded, what is given out fits together, and
// where the reader says that a log can be cut Repair makes one that opens.
func FuzzReader(f *testing.F) {
	fs := newMemFS()
	r, err := Open(smallOptions(fs, IOStaged), noRecord)
	if err != nil {
		f.Fatal(err)
	}
	r.Start(1, 5, 5)
	r.Close()
	seg := fs.Files()[segmentPath(0)][:300]
	f.Add(seg, seg, uint64(0), uint64(1), uint16(0))
	f.Add(seg, []byte{}, uint64(0), uint64(3), uint16(64))
	f.Add(seg, bytes.Repeat([]byte{0xff}, 200), uint64(7), uint64(1<<48), uint16(128))
	f.Add([]byte("leasemqL"), seg, uint64(1<<63), uint64(5), uint16(9))
	f.Fuzz(func(t *testing.T, a, b []byte, baseA, baseB uint64, whole uint16) {
		fs := newMemFS()
		for i, data := range [][]byte{a, b} {
			base := []uint64{baseA, baseB}[i]
			if whole&(1<<(i+8)) == 0 {
				base *= minSegmentBytes
			}
			data = bytes.Clone(data)
			if whole&(1<<i) == 0 { // the fuzzer cannot guess a header and a size
				data = append(data, make([]byte, max(0, minSegmentBytes-len(data)))...)[:minSegmentBytes]
				putSegmentHeader(data, minSegmentBytes, base)
			}
			name := filepath.Join("/data/log", segmentName(base))
			fs.Put(name, data)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := OpenReader(fs, "/data")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.Segments()
		next := r.First()
		tail, err := r.Scan(0, func(rec Record) error {
			if rec.Header.Position != next || len(rec.Raw) != int(rec.Header.Length) {
				t.Fatalf("%+v at %d", rec.Header, next)
			}
			if again, err := r.ReadRecord(next); err != nil || !bytes.Equal(again.Raw, rec.Raw) {
				t.Fatal(err)
			}
			next += uint64(codec.Padded(len(rec.Raw)))
			if rec.Header.Type == codec.TypeSegmentEnd {
				next = r.geo.first(r.geo.segment(rec.Header.Position) + 1)
			}
			return nil
		})
		if errors.As(err, new(*VersionError)) {
			return
		}
		if err != nil || tail.End != next {
			t.Fatalf("%v, %+v", err, tail)
		}
		for _, pos := range []uint64{baseA, baseB, tail.End, tail.End + 8, 1<<64 - 64} {
			r.ReadRecord(pos)
			r.Scan(pos, noRecord)
			r.ScanBehind(pos, noRecord)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
			t.Fatalf("%d bytes allocated", used)
		}
		if _, err := Repair(fs, "/data", tail.End); err != nil {
			t.Fatalf("repair at %d: %v", tail.End, err)
		}
		o := smallOptions(fs, IOStaged)
		o.Begin = func(f *Found) (From, error) {
			if f.First <= minSegmentBytes {
				return From{}, nil
			}
			return From{Position: f.First, LastPosition: f.First - 128}, nil
		}
		l, err := Open(o, noRecord)
		if err != nil {
			t.Fatalf("after a repair at %d: %v", tail.End, err)
		}
		if got := l.Recovery(); got.Records != tail.Records {
			t.Fatalf("%+v\n%+v", got, tail)
		}
		l.Abort()
	})
}
