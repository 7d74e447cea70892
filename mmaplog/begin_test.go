package mmaplog

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// longLog returns a log of several segments, all of it committed, with every record in it.
func longLog(t testing.TB, mode IOMode, clean bool) (*memFS, []kept) {
	t.Helper()
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, mode))
	for i := range 60 {
		r.add(3000 + 301*(i%9))
		if i%7 == 0 {
			r.commitAll()
		}
	}
	r.commitAll()
	poll(t, "the next segment", func() bool { return r.prepared.Load() == 6 })
	if clean {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	} else {
		r.Abort()
	}
	r, k, err := openOnly(t, smallOptions(fs.Clone(), mode))
	if err != nil {
		t.Fatal(err)
	}
	r.Abort()
	return fs, k.records
}

// Given a log of several segments, when replay begins behind any of its records, then exactly the records behind
// it are replayed, and the log goes on where it ended; the same with the segments before that removed.
func TestBeginAtEveryRecord(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		for _, clean := range []bool{true, false} {
			whole, all := longLog(t, mode, clean)
			last := all[len(all)-1].header
			for i, from := range anchors(all) {
				for _, trimmed := range []bool{false, true} {
					fs := whole.Clone()
					first := uint64(0)
					if trimmed {
						first = from.LastPosition / minSegmentBytes
						for n := range first {
							fs.Remove(segmentPath(n))
						}
					}
					r, k, err := openOnly(t, beginAt(smallOptions(fs, mode), from))
					if err != nil {
						t.Fatalf("behind record %d: %v", i, err)
					}
					if more := sameRecords(t, k.records, all[i+1:]); more != 0 {
						t.Fatalf("behind record %d: %d records too many", i, more)
					}
					f := r.Recovery()
					if f.From != from.Position || f.First != first*minSegmentBytes+64 || r.First() != f.First || f.Records != int64(len(all)-i-1) ||
						f.LastEpoch != last.Epoch || f.LastLeaseMs != last.LeaseMs || f.LastWallMs != last.WallMs ||
						f.CleanStop != clean || f.Promise < from.Position {
						t.Fatalf("behind record %d: %+v", i, f)
					}
					if position, crc := r.Last(); position != last.Position || crc != last.CRC {
						t.Fatalf("behind record %d: the last record is %d", i, position)
					}
					if i%9 == 0 {
						goOn(t, r, fs, mode, from, all[i+1:])
					}
					r.Abort()
				}
			}
		}
	})
}

// goOn starts a recovered log, appends to it, and expects what it recovered and that at the next start.
func goOn(t *testing.T, r *rig, fs *memFS, mode IOMode, from From, behind []kept) {
	t.Helper()
	f := r.Recovery()
	r.clock = f.LastLeaseMs
	if err := r.Start(f.LastEpoch+1, r.clock, f.LastWallMs); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r.add(5000)
	}
	r.commitAll()
	appended := r.appended
	r.Abort()
	again, k := open(t, beginAt(smallOptions(fs, mode), from))
	defer again.Abort()
	want := (&keeper{records: behind}).own()
	if sameRecords(t, k.own(), append(slices.Clone(want), appended...)) != 0 {
		t.Fatal("records too many after going on")
	}
}

// The record before a segment's closing record may stand for both, as far as the next segment's first one.
func TestBeginBehindClosingRecord(t *testing.T) {
	fs, all := longLog(t, IOStaged, false)
	i := slices.IndexFunc(all, func(k kept) bool { return k.header.Type == codec.TypeSegmentEnd })
	from := anchors(all)[i-1]
	from.Position = 64 + minSegmentBytes
	r, k, err := openOnly(t, beginAt(smallOptions(fs, IOStaged), from))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Abort()
	if sameRecords(t, k.records, all[i+1:]) != 0 {
		t.Fatal("records too many")
	}
}

// Given a full disk, so that the segment behind a complete one was never made, when a snapshot at the end of the log is
// what there is, then the log begins there.
func TestBeginWhereNoSegmentIsYet(t *testing.T) {
	whole, all := longLog(t, IOStaged, true)
	from := anchors(all)[slices.IndexFunc(all, func(k kept) bool { return k.header.Type == codec.TypeSegmentEnd })]
	for _, n := range segmentsIn(t, whole)[1:] {
		whole.Remove(segmentPath(n))
	}
	r, k := open(t, beginAt(smallOptions(whole, IOStaged), from))
	defer r.Abort()
	if len(k.records) != 0 || r.Recovery().End != from.Position || !r.Recovery().NextMissing {
		t.Fatalf("%d records, %+v", len(k.records), r.Recovery())
	}
}

// An anchor that the log does not have is refused, by file and position, before anything is replayed or changed.
func TestWrongAnchor(t *testing.T) {
	fs, all := longLog(t, IOStaged, false)
	froms := anchors(all)
	mid := slices.IndexFunc(all, func(k kept) bool { return k.header.Position > 5*minSegmentBytes/4 })
	end := slices.IndexFunc(all, func(k kept) bool { return k.header.Type == codec.TypeSegmentEnd })
	last := segmentsIn(t, fs)
	behind := (last[len(last)-1] + 1) * minSegmentBytes
	for name, c := range map[string]struct {
		i      int
		change func(f *From)
		file   uint64
		says   string
	}{
		"checksum":            {mid, func(f *From) { f.LastCRC++ }, 1, "checksum"},
		"epoch":               {mid, func(f *From) { f.Epoch++ }, 1, "epoch"},
		"lease clock":         {mid, func(f *From) { f.LeaseMs-- }, 1, "clocks"},
		"wall clock":          {mid, func(f *From) { f.WallMs++ }, 1, "clocks"},
		"not a record":        {mid, func(f *From) { f.LastPosition += 8 }, 1, "a record cannot have"},
		"odd last":            {mid, func(f *From) { f.LastPosition += 3 }, 1, "no record can begin"},
		"in a header":         {mid, func(f *From) { f.LastPosition = minSegmentBytes + 8 }, 1, "no record can begin"},
		"too far":             {mid, func(f *From) { f.Position += 8 }, 1, "is followed by"},
		"not far enough":      {mid, func(f *From) { f.Position -= 8 }, 1, "is followed by"},
		"next segment":        {mid, func(f *From) { f.Position = 2*minSegmentBytes + 64 }, 1, "is followed by"},
		"two segments on":     {mid, func(f *From) { f.Position = 3*minSegmentBytes + 64 }, 99, "no record at position"},
		"behind itself":       {mid, func(f *From) { f.LastPosition = f.Position }, 99, "no record at position"},
		"inside a closed one": {end, func(f *From) { f.Position = f.LastPosition + 64 }, 0, "is followed by"},
		"odd position":        {mid, func(f *From) { f.Position += 4 }, 99, "no record can begin"},
		"in no segment":       {mid, func(f *From) { f.Position, f.LastPosition = behind+64+8, behind-64 }, 99, "the last segment ends"},
		"far behind":          {mid, func(f *From) { f.Position = 1 << 50 }, 99, "the last segment ends"},
		"nothing is there":    {len(all) - 1, func(f *From) { f.LastPosition, f.Position = f.Position, f.Position+64 }, last[len(last)-1], "0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			from := froms[c.i]
			c.change(&from)
			file := "/data/log"
			if c.file != 99 {
				file = segmentPath(c.file)
			}
			if name == "nothing is there" {
				file = segmentPath(all[len(all)-1].header.Position / minSegmentBytes)
			}
			_, k, err := openOnly(t, beginAt(smallOptions(fs.Clone(), IOStaged), from))
			got, ok := errors.AsType[*AnchorError](err)
			if !ok || got.File != file || !strings.Contains(got.What, c.says) {
				t.Fatalf("error %v in %q", err, file)
			}
			if k != nil {
				t.Fatal("something was replayed")
			}
		})
	}
	_, _, err := openOnly(t, beginAt(smallOptions(newMemFS(), IOStaged), froms[0]))
	if _, ok := errors.AsType[*AnchorError](err); !ok {
		t.Fatalf("a log without files: %v", err)
	}
}

// Begin sees what files there are, may read records, and its error is that of Open.
func TestFound(t *testing.T) {
	fs, all := longLog(t, IOStaged, false)
	fs.Remove(segmentPath(0))
	from := anchors(all)[slices.IndexFunc(all, func(k kept) bool { return k.header.Type == codec.TypeSegmentEnd })]
	calls := 0
	broken := errors.New("no snapshot can be read")
	o := smallOptions(fs, IOStaged)
	o.Begin = func(f *Found) (From, error) {
		calls++
		segments := segmentsIn(t, fs)
		if f.First != minSegmentBytes+64 || f.End != (segments[len(segments)-1]+1)*minSegmentBytes || f.SegmentBytes != minSegmentBytes {
			t.Errorf("%+v", f)
		}
		for _, k := range all {
			h, err := f.ReadHeader(k.header.Position)
			switch {
			case k.header.Position < f.First && !errors.Is(err, ErrRemoved), k.header.Position >= f.First && (err != nil || h != k.header):
				t.Errorf("record at %d: %+v, %v", k.header.Position, h, err)
			}
		}
		for _, bad := range []uint64{f.First + 8, f.First + 1, f.First - 64, f.End, f.End + 64, 1 << 63, all[len(all)-1].end()} {
			if _, err := f.ReadHeader(bad); err == nil || errors.Is(err, ErrRemoved) != (bad < f.First-64) {
				t.Errorf("position %d: %v", bad, err)
			} else if _, ok := errors.AsType[*RecordError](err); !ok && bad >= f.First-64 {
				t.Errorf("position %d: %v", bad, err)
			}
		}
		if calls == 1 {
			return From{}, broken
		}
		return from, nil // its last record went with its segment
	}
	if _, _, err := openOnly(t, o); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	r, k, err := openOnly(t, o)
	if err != nil || calls != 2 || len(k.records) == 0 || k.records[0].header.Position != minSegmentBytes+64 {
		t.Fatal(err, calls)
	}
	r.Abort()
	calls = 0
	o.FS = newMemFS()
	o.Begin = func(f *Found) (From, error) {
		calls++
		if _, err := f.ReadHeader(64); f.First != 0 || f.End != 0 || err == nil {
			t.Errorf("a log without files: %+v, %v", f, err)
		}
		return From{}, nil
	}
	r, _ = open(t, o)
	if f := r.Recovery(); calls != 1 || f.First != 64 || f.From != 0 {
		t.Fatalf("%d calls, %+v", calls, f)
	}
	r.Abort()
}

// A log without its beginning opens only from a snapshot that needs nothing of what is missing.
func TestLogWithoutItsBeginning(t *testing.T) {
	whole, all := longLog(t, IOStaged, false)
	whole.Remove(segmentPath(0))
	whole.Remove(segmentPath(1))
	froms := anchors(all)
	for name, c := range map[string]struct {
		from    From
		missing uint64
		says    string
	}{
		"no snapshot":         {From{}, 1, "no snapshot covers it"},
		"a snapshot too old":  {froms[1], 0, "needs it from position"},
		"one segment too old": {froms[slices.IndexFunc(all, func(k kept) bool { return k.header.Position > minSegmentBytes+5000 })], 1, "needs it from position"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := openOnly(t, beginAt(smallOptions(whole.Clone(), IOStaged), c.from))
			damage, ok := errors.AsType[*DamageError](err)
			if !ok || damage.File != segmentPath(c.missing) || !strings.Contains(damage.What, c.says) {
				t.Fatalf("error %v", err)
			}
		})
	}
	covered := froms[slices.IndexFunc(all, func(k kept) bool { return k.header.Position > 2*minSegmentBytes+64 })]
	gap := whole.Clone()
	gap.Remove(segmentPath(3))
	_, _, err := openOnly(t, beginAt(smallOptions(gap, IOStaged), covered))
	if damage, ok := errors.AsType[*DamageError](err); !ok || damage.File != segmentPath(3) {
		t.Fatalf("a gap: %v", err)
	}
	r, _, err := openOnly(t, beginAt(smallOptions(whole, IOStaged), covered))
	if err != nil {
		t.Fatal(err)
	}
	r.Abort()
}

// A segment of a newer format is refused as such: neither damage nor a case for a backup; and nothing is changed.
func TestNewerFormat(t *testing.T) {
	for _, n := range []uint64{0, 2} {
		fs, _ := longLog(t, IOStaged, true)
		fs.OpenFile(segmentPath(9)+tmpSuffix, 0x42, 0)
		fs.Poke(segmentPath(1), func(b []byte) { b[3] ^= 1 }) // whatever else is wrong
		fs.Poke(segmentPath(n), func(b []byte) {
			b[8] = 2
			clear(b[12:16])
			sum := codec.Checksum(0, b[:64])
			b[12], b[13], b[14], b[15] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		})
		before, _ := fs.ReadDir("/data/log")
		_, _, err := openOnly(t, smallOptions(fs, IOStaged))
		version, ok := errors.AsType[*VersionError](err)
		if !ok || *version != (VersionError{segmentPath(n), 2, 1}) {
			t.Fatalf("error %v", err)
		}
		for _, part := range []string{segmentPath(n), "version 2", "up to 1"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %q", part, err)
			}
		}
		if strings.Contains(err.Error(), "damage") || strings.Contains(err.Error(), "backup") {
			t.Errorf("misleading: %v", err)
		}
		if after, _ := fs.ReadDir("/data/log"); !slices.Equal(before, after) {
			t.Errorf("the directory was changed: %q", after)
		}
		reader, err := OpenReader(fs, "/data")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reader.Scan(0, noRecord); !errors.As(err, &version) {
			t.Errorf("scan: %v", err)
		}
		if _, err := Repair(fs, "/data", 64); !errors.As(err, &version) {
			t.Errorf("repair: %v", err)
		}
	}
}

// The rewriting of what may not be on the disk does not go below the snapshot.
func TestRewriteBeginsAtSnapshot(t *testing.T) {
	fs := newMemFS()
	o := smallOptions(fs, IOStaged)
	o.Policy = SyncInterval
	r, _ := open(t, o)
	for range 10 {
		r.add(1000) // none of them promises more than the epoch record
	}
	if err := r.Sync(); err != nil {
		t.Fatal(err)
	}
	from := r.anchor()
	r.add(500)
	r.commitAll()
	r.Abort()
	r, k, err := openOnly(t, beginAt(smallOptions(fs, IOStaged), from))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Abort()
	f := r.Recovery()
	if want := int64(f.End - from.Position); len(k.own()) != 1 || f.BytesRewritten != want || f.Promise != from.Position {
		t.Fatalf("expected %d bytes rewritten: %+v", want, f)
	}
}
