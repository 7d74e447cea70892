package mmaplog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// A scan gives the records that begin in its range, whichever boundaries are asked for; before Start and after.
func TestScan(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs, all := longLog(t, mode, false)
		r, _, err := openOnly(t, smallOptions(fs, mode))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Abort()
		scan := func(from, to uint64) []kept {
			t.Helper()
			k := &keeper{}
			if err := r.Scan(context.Background(), from, to, k.replay); err != nil {
				t.Fatalf("from %d to %d: %v", from, to, err)
			}
			return k.records
		}
		compare := func(i, j int, from, to uint64) {
			t.Helper()
			if sameRecords(t, scan(from, to), all[i:j]) != 0 {
				t.Fatalf("from %d to %d: records too many", from, to)
			}
		}
		froms := anchors(all)
		for i := range all {
			from := all[i].header.Position
			compare(i, i, from, from)
			compare(i, i+1, from, from+1)
			compare(i, i+1, from, froms[i].Position)
			compare(i, len(all), from, math.MaxUint64)
			compare(0, i, r.First(), from)
			compare(0, i+1, r.First(), from+8)
		}
		compare(0, 0, froms[len(all)-1].Position, math.MaxUint64)
		if end := r.SegmentEnd(5); end != minSegmentBytes || r.SegmentEnd(end) != 2*end {
			t.Fatalf("the first segment ends at %d", end)
		}
		// What is written in part only is not there yet.
		end := r.Written()
		for i, k := range all {
			for _, part := range []uint64{8, 64, uint64(len(k.raw))} {
				r.written.Store(k.end() - min(part, uint64(len(k.raw))))
				compare(0, i, r.First(), math.MaxUint64)
				if _, err := r.ReadHeader(k.header.Position); err == nil {
					t.Fatalf("the record at %d is not written and has a header", k.header.Position)
				}
			}
		}
		r.written.Store(end)
		f := r.Recovery()
		if err := r.Start(f.LastEpoch+1, f.LastLeaseMs, f.LastWallMs); err != nil {
			t.Fatal(err)
		}
		r.clock = f.LastLeaseMs
		for range 30 {
			r.add(5000)
		}
		r.commitAll()
		more := scan(froms[len(all)-1].Position, r.Written())
		if sameRecords(t, (&keeper{records: more}).own(), r.appended) != 0 {
			t.Fatal("records too many")
		}
	})
}

// A bad record ends a scan with its file and byte; fn and the context end it too.
func TestScanErrors(t *testing.T) {
	fs, all := longLog(t, IOStaged, true)
	r, _, err := openOnly(t, smallOptions(fs, IOStaged))
	if err != nil {
		t.Fatal(err)
	}
	ctx, first := context.Background(), r.First()
	var bad int
	for i, k := range all {
		if k.header.Position > minSegmentBytes && all[i+1].header.Type != codec.TypeSegmentEnd {
			bad = i + 1
			break
		}
	}
	at := all[bad].header.Position
	for name, c := range map[string]struct {
		damage func(b []byte)
		says   string
	}{
		"payload":  {func(b []byte) { b[200] ^= 1 }, "checksum"},
		"position": {func(b []byte) { b[17] ^= 1 }, "belongs to position"},
		"length":   {func(b []byte) { b[3] = 1 }, "cannot have"},
		"zeroes":   {func(b []byte) { clear(b[:64]) }, ""},
		"clock":    {func(b []byte) { reseal(b, func(h *codec.Header) { h.LeaseMs = 0 }) }, "lease clock falls"},
	} {
		var whole []byte
		fs.Poke(segmentPath(1), func(b []byte) { whole = bytes.Clone(b); c.damage(b[at-minSegmentBytes:]) })
		k := &keeper{}
		err := r.Scan(ctx, first, math.MaxUint64, k.replay)
		got, ok := errors.AsType[*RecordError](err)
		if !ok || got.File != segmentPath(1) || got.Position != at || got.Offset != int64(at-minSegmentBytes) || !strings.Contains(got.What, c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if sameRecords(t, k.records, all[:bad]) != 0 {
			t.Errorf("%s: %d records", name, len(k.records))
		}
		if h, err := r.ReadHeader(at); name != "clock" && !errors.As(err, &got) {
			t.Errorf("%s: header %+v, %v", name, h, err)
		}
		fs.Poke(segmentPath(1), func(b []byte) { copy(b, whole) })
	}
	for _, from := range []uint64{first + 8, first + 3, first - 8, 0} {
		err := r.Scan(ctx, from, math.MaxUint64, noRecord)
		if got, ok := errors.AsType[*RecordError](err); !ok || got.Position != from {
			t.Errorf("from %d: %v", from, err)
		}
	}
	for _, pos := range []uint64{r.Written(), 1 << 60, first + 8, 0} {
		if _, err := r.ReadHeader(pos); err == nil {
			t.Errorf("a header at %d", pos)
		}
	}
	broken := errors.New("enough")
	n := 0
	stop := func(Record) error {
		if n++; n == 3 {
			return broken
		}
		return nil
	}
	if err := r.Scan(ctx, first, math.MaxUint64, stop); !errors.Is(err, broken) || n != 3 || !strings.Contains(err.Error(), fmt.Sprint(all[2].header.Position)) {
		t.Errorf("after %d records: %v", n, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	n = 0
	err = r.Scan(ctx, first, math.MaxUint64, func(Record) error { n++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || n != 1 {
		t.Errorf("after %d records: %v", n, err)
	}
	r.Abort()
	if err := r.Scan(context.Background(), first, math.MaxUint64, noRecord); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// reseal changes the header of the record at the start of b and gives it the checksum that belongs to it.
func reseal(b []byte, change func(h *codec.Header)) {
	h := codec.ParseHeader(b)
	change(&h)
	assigned := h.Type.AssignedBytes()
	codec.Seal(b[:h.Length], &h, assigned, codec.Checksum(0, b[codec.HeaderBytes+assigned:h.Length]))
}

// While the log is appended to, a scan up to now gives whole records only, and all of them up to some point.
func TestScanWhileAppending(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		o := smallOptions(newMemFS(), mode)
		o.Policy, o.SegmentBytes, o.RingBytes = SyncInterval, 4<<20, 4<<20 // so that the writer's chunks tear records
		o.MaxUnsynced = 50_001                                             // at odd places
		r, _ := open(t, o)
		defer r.Abort()
		scans := make(chan error, 1)
		stop := make(chan struct{})
		go func() {
			for {
				next := r.First()
				written := r.Written()
				err := r.Scan(context.Background(), next, math.MaxUint64, func(rec Record) error {
					if rec.Header.Position != next {
						return fmt.Errorf("record at %d, expected %d", rec.Header.Position, next)
					}
					next += uint64(codec.Padded(len(rec.Raw)))
					if rec.Header.Type == codec.TypeSegmentEnd {
						next = r.geo.first(r.geo.segment(rec.Header.Position) + 1)
					}
					return nil
				})
				if err == nil && next+40_000 < written { // one record at most was not whole
					err = fmt.Errorf("the scan ended at %d, %d were written", next, written)
				}
				if err != nil {
					scans <- err
					return
				}
				select {
				case <-stop:
					scans <- nil
					return
				default:
				}
			}
		}()
		for range 120 {
			r.add(30_000)
			r.Kick()
		}
		r.commitAll()
		close(stop)
		if err := wait(t, scans); err != nil {
			t.Fatal(err)
		}
	})
}
