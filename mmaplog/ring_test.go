package mmaplog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	mmap "github.com/edsrzf/mmap-go"

	"github.com/leasemq/leasemq/codec"
)

func mapReadOnly(t *testing.T) []byte {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := mmap.Map(f, mmap.RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Unmap() })
	return m
}

// While the disk hangs the ring fills, to the last byte that RingFree gave, and no further; when the
// disk goes on all of it is free again.
func TestBackPressure(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		o := smallOptions(fs, mode)
		o.SegmentBytes = 1 << 20
		r, _ := open(t, o)
		defer r.Abort()
		gate := make(chan struct{})
		defer func() { close(gate) }()
		if r.RingFree() != r.RingBytes() {
			t.Fatalf("%d of %d bytes free at rest", r.RingFree(), r.RingBytes())
		}
		for range 5 { // several laps
			shut := gate
			fs.SetFault(func(op, _ string) error {
				if op == "flush" || op == "write" || op == "populate" {
					<-shut
				}
				return nil
			})
			for r.RingFree() >= 1000 {
				before := r.RingFree()
				r.add(500)
				r.Kick()
				if used := before - r.RingFree(); used > codec.Padded(604)+endBytes {
					t.Fatalf("a record of 604 bytes took %d", used)
				}
			}
			last := r.add(r.RingFree() - 104)
			if r.RingFree() != 0 {
				t.Fatalf("%d bytes free", r.RingFree())
			}
			if got := make([]byte, len(last.raw)); r.ReadAt(got, last.header.Position) != nil || !bytes.Equal(got, last.raw) {
				t.Fatal("read from the full ring")
			}
			fs.SetFault(nil)
			close(gate)
			gate = make(chan struct{})
			r.commitAll()
			if r.RingFree() != r.RingBytes() {
				t.Fatalf("%d of %d bytes free afterwards", r.RingFree(), r.RingBytes())
			}
		}
	})
}

// Appending more than RingFree is a mistake of the caller, found at once.
func TestRingOverrunPanics(t *testing.T) {
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	defer r.Abort()
	gate := make(chan struct{})
	defer close(gate)
	fs.SetFault(func(op, _ string) error {
		if op == "write" {
			<-gate
		}
		return nil
	})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	for range 100 {
		h := codec.Header{Type: codec.TypeClock, LeaseMs: r.clock}
		r.Append(&h, nil, make([]byte, 5000), 0)
	}
}

// Readers get the very bytes that were appended, whether they still find them in the ring, on their way
// out of it, or in the file, while the section overwrites the ring behind them.
func TestReadsDuringOverwrite(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		o := Options{Dir: t.TempDir(), IO: mode, Policy: SyncNever, SegmentBytes: minSegmentBytes, RingBytes: minRingBytes, Logger: quietLogger()}
		r, _ := open(t, o)
		defer r.Abort()
		const records = 6000
		todo := make([]chan kept, 2)
		var readers sync.WaitGroup
		var fromMemory, blocked counter
		for i := range todo {
			todo[i] = make(chan kept, 600) // so readers lag by about the ring
			readers.Go(func() {
				for k := range todo[i] {
					got := make([]byte, len(k.raw))
					ok, err := r.TryRead(got, k.header.Position)
					if err != nil {
						t.Errorf("try to read %d: %v", k.header.Position, err)
						return
					}
					if ok {
						fromMemory.next()
					} else {
						blocked.next()
						if err := r.ReadAt(got, k.header.Position); err != nil {
							t.Errorf("read %d: %v", k.header.Position, err)
							return
						}
					}
					if !bytes.Equal(got, k.raw) {
						t.Errorf("read %d: other bytes", k.header.Position)
						return
					}
				}
			})
		}
		rng := newRand(t)
		for i := range records {
			k := r.add(rng.IntN(700))
			r.Kick()
			select {
			case todo[i%2] <- k:
			default:
			}
		}
		for i := range todo {
			close(todo[i])
		}
		readers.Wait()
		if fromMemory.value() == 0 {
			t.Fatal("nothing was read without waiting")
		}
	})
}

// A read that begins in the file and ends in the ring is put together from both.
func TestReadAcross(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		o := smallOptions(fs, mode)
		o.SegmentBytes = 1 << 20
		r, _ := open(t, o)
		defer r.Abort()
		first := r.add(2000)
		for r.RingFree() > 3000 {
			r.add(2000)
		}
		r.commitAll()
		gate := make(chan struct{})
		defer close(gate)
		fs.SetFault(func(op, _ string) error {
			if op == "write" || op == "populate" {
				<-gate
			}
			return nil
		})
		for r.RingFree() > 3000 { // overwrites the first lap, and stays unwritten
			r.add(2000)
			r.Kick()
		}
		if at, _ := r.place(first.header.Position); r.ring.holds(at) || r.Written() >= r.Appended() {
			t.Fatal("the ring still holds everything")
		}
		got := make([]byte, r.Appended()-first.header.Position)
		if ok, err := r.TryRead(got, first.header.Position); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for _, k := range r.appended {
			if !bytes.HasPrefix(got[k.header.Position-first.header.Position:], k.raw) {
				t.Fatalf("record at %d differs", k.header.Position)
			}
		}
	})
}

func TestReadLimits(t *testing.T) {
	r, _ := open(t, smallOptions(newMemFS(), IOStaged))
	k := r.add(100)
	for range 40 {
		r.add(3000)
	}
	r.commitAll()
	b := make([]byte, 100)
	if err := r.ReadAt(b, r.Appended()-50); err == nil {
		t.Error("a read beyond the end")
	}
	if err := r.ReadAt(b, minSegmentBytes-50); err == nil {
		t.Error("a read across segments")
	}
	if r.SameSegment(k.header.Position, minSegmentBytes) || !r.SameSegment(k.header.Position, minSegmentBytes-1) {
		t.Error("SameSegment")
	}
	r.Close()
	if _, err := r.readFile(b, k.header.Position, (*segment).readNoWait); !errors.Is(err, ErrClosed) {
		t.Errorf("read from a closed log: %v", err)
	}
	if err := r.Sync(); err != nil {
		t.Errorf("everything is durable, and Sync says %v", err)
	}
}

// The ring's memory comes as it is used: an idle log has little, a busy one soon has all, ahead of its head.
func TestRingFillsAsItIsUsed(t *testing.T) {
	o := smallOptions(newMemFS(), IOStaged)
	o.RingBytes, o.SegmentBytes, o.Policy = 32<<20, 4<<20, SyncNever
	r, _ := open(t, o)
	defer r.Abort()
	if got := r.ring.filled.Load(); got > ringAheadBytes+ringStepBytes {
		t.Fatalf("%d bytes filled at the start", got)
	}
	for r.ring.filled.Load() < r.ring.size {
		r.add(1 << 20)
		r.Kick()
		poll(t, "the ring to be filled ahead", func() bool {
			return r.ring.filled.Load() >= min(r.ring.size, r.ring.reserved.Load()+ringAheadBytes-ringStepBytes)
		})
		if r.Appended() > 2*r.ring.size {
			t.Fatal("the ring is never filled")
		}
	}
}

// The ring gives out only bytes that stayed what they were during the copy, however close behind the
// section comes.
func TestRingGetOrNothing(t *testing.T) {
	r, err := newRing(minRingBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer r.unmap()
	const block = 4096
	stop := make(chan struct{})
	var section sync.WaitGroup
	section.Go(func() {
		b := make([]byte, block)
		for at := uint64(0); ; at += block {
			select {
			case <-stop:
				return
			default:
			}
			for i := range b {
				b[i] = byte(at / block)
			}
			r.reserve(at + block)
			r.put(at, b)
		}
	})
	got := make([]byte, 16*block)
	good, gone := 0, 0
	for good < 2000 || gone < 100 {
		oldest := r.reserved.Load() + r.margin
		if oldest < 2*r.size {
			continue
		}
		at := (oldest - r.size + block) &^ (block - 1)
		if !r.get(got, at) {
			gone++
			continue
		}
		good++
		for i, b := range got {
			if want := byte((at + uint64(i)) / block); b != want {
				t.Fatalf("byte %d of a read at %d is %d, expected %d", i, at, b, want)
			}
		}
	}
	close(stop)
	section.Wait()
}

// Positions of long ago are read from their files, though their places in the tables of the ring have
// been used again many times.
func TestReadLongAgo(t *testing.T) {
	r, _ := open(t, smallOptions(newMemFS(), IOStaged))
	defer r.Abort()
	for range 5 * len(r.places) {
		for range 3 {
			r.add(20000)
		}
		r.commitAll()
	}
	if got := int(r.geo.segment(r.Appended())); got < 3*len(r.places) {
		t.Fatalf("only %d segments for %d places", got, len(r.places))
	}
	for _, k := range r.appended {
		got := make([]byte, len(k.raw))
		if ok, err := r.TryRead(got, k.header.Position); !ok || err != nil || !bytes.Equal(got, k.raw) {
			t.Fatalf("read of %d: %v, %v", k.header.Position, ok, err)
		}
	}
}
