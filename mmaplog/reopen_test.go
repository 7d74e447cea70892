package mmaplog

import (
	"bytes"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// What was appended comes back, over several segments, on the machine's own file system.
func TestReopen(t *testing.T) {
	for _, policy := range []Policy{SyncAlways, SyncInterval, SyncNever} {
		t.Run(string(policy), func(t *testing.T) {
			eachIO(t, func(t *testing.T, mode IOMode) {
				rng := newRand(t)
				o := Options{Dir: t.TempDir(), IO: mode, Policy: policy, SegmentBytes: minSegmentBytes, RingBytes: minRingBytes, Logger: quietLogger()}
				var all []kept
				for life := range 3 {
					r, k := open(t, o)
					if sameRecords(t, k.own(), all) != 0 {
						t.Fatalf("life %d: more records than were appended", life)
					}
					if f := r.Recovery(); f.Fresh != (life == 0) || f.CleanStop != (life > 0) || f.BytesRewritten > endBytes {
						t.Fatalf("life %d: %+v", life, f)
					}
					for range 100 {
						r.add(rng.IntN(6000))
						if rng.IntN(10) == 0 {
							r.Kick()
						}
					}
					r.commitAll()
					all = append(all, r.appended...)
					for _, want := range r.appended {
						got := make([]byte, len(want.raw))
						if err := r.ReadAt(got, want.header.Position); err != nil || !bytes.Equal(got, want.raw) {
							t.Fatalf("read of %d: %v", want.header.Position, err)
						}
					}
					if s := r.Stats(); s.Segments < 4 {
						t.Fatalf("only %d segments", s.Segments)
					}
					if err := r.Close(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// A record as long as a segment allows, and one that ends exactly where the closing record must begin.
func TestSegmentFitsExactly(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		o := smallOptions(newMemFS(), mode)
		r, _ := open(t, o)
		overhead := codec.HeaderBytes + codec.MessageAssignedBytes
		rest := int(r.geo.segmentBytes) - int(r.geo.offset(r.section.head)) - endBytes
		first := r.add(rest - overhead)
		if !r.SameSegment(first.header.Position, first.end()-1) || r.geo.offset(first.end()) != minSegmentBytes-endBytes {
			t.Fatalf("record ends at %d", first.end())
		}
		long := r.add(r.MaxRecord() - overhead)
		if long.header.Position != r.geo.first(1) {
			t.Fatalf("the longest record lies at %d", long.header.Position)
		}
		r.add(0)
		r.commitAll()
		want := r.appended
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		again, k := open(t, o)
		sameRecords(t, k.own(), want)
		again.Abort()
	})
}

// Next foretells the position, and ends the segment when the record does not fit.
func TestNext(t *testing.T) {
	r, _ := open(t, smallOptions(newMemFS(), IOStaged))
	defer r.Abort()
	for i := range 50 {
		n := 500 * i
		h := codec.Header{LeaseMs: r.clock, WallMs: r.clock}
		want := r.Next(&h, codec.HeaderBytes+codec.MessageAssignedBytes+n)
		if got := r.add(n); got.header.Position != want {
			t.Fatalf("record at %d, Next said %d", got.header.Position, want)
		}
	}
}

// The segment size is that of the directory; another one in the options is not an error.
func TestSegmentSizeStays(t *testing.T) {
	o := smallOptions(newMemFS(), IOStaged)
	r, _ := open(t, o)
	r.add(100)
	r.Close()
	o.SegmentBytes = 4 * minSegmentBytes
	r, _ = open(t, o)
	defer r.Abort()
	if got := r.Recovery().SegmentBytes; got != minSegmentBytes {
		t.Fatalf("segment size %d", got)
	}
}

// Switching between the two kinds of segment at a restart changes nothing.
func TestSwitchIO(t *testing.T) {
	fs := newMemFS()
	var all []kept
	for i := range 6 {
		mode := IOStaged
		if i%2 == 1 {
			mode = IOMapped
		}
		r, k := open(t, smallOptions(fs, mode))
		sameRecords(t, k.own(), all)
		for range 30 {
			r.add(3000)
		}
		r.commitAll()
		all = append(all, r.appended...)
		if i%3 == 0 {
			r.Abort()
		} else if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	r, _ := open(t, Options{Dir: t.TempDir(), IO: IOStaged, Policy: SyncNever, RingBytes: 16 << 20, Logger: quietLogger()})
	defer r.Abort()
	payload, assigned, dst := make([]byte, 900), make([]byte, codec.MessageAssignedBytes), make([]byte, 900)
	h := codec.Header{Type: codec.TypeMessage, LeaseMs: 1}
	first := r.Append(&h, assigned, payload, codec.Checksum(0, payload))
	if err := r.Sync(); err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(1000, func() {
		r.Append(&h, assigned, payload, 0)
		if ok, err := r.TryRead(dst, h.Position); !ok || err != nil {
			t.Error(ok, err)
		}
		r.Kick()
	})
	if n != 0 {
		t.Errorf("%v allocations an append, read and kick", n)
	}
	if n := testing.AllocsPerRun(100, func() { r.readFile(dst, first, (*segment).readNoWait) }); n != 0 {
		t.Errorf("%v allocations a read from the page cache", n)
	}
}
