package mmaplog

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
)

// BenchmarkAppend appends messages of 1 KiB from one goroutine, in sections of 64, waiting for the ring where it is
// full, and counts until the last one is committed.
func BenchmarkAppend(b *testing.B) {
	for _, policy := range []Policy{SyncInterval, SyncAlways, SyncNever} {
		for _, io := range []IOMode{IOStaged, IOMapped} {
			b.Run(fmt.Sprintf("%s/%s", policy, io), func(b *testing.B) { benchAppend(b, policy, io) })
		}
	}
}

func benchAppend(b *testing.B, policy Policy, io IOMode) {
	moved := newSignal()
	var commits atomic.Int64
	l, err := Open(Options{Dir: b.TempDir(), IO: io, Policy: policy, Logger: quietLogger(),
		OnCommit: func() { commits.Add(1); moved.raise() }}, func(Record) error { return nil })
	if err != nil {
		b.Fatal(err)
	}
	defer l.Abort()
	if err := l.Start(1, 0, 0); err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 1024-codec.HeaderBytes-codec.MessageAssignedBytes)
	for i := range payload {
		payload[i] = byte(i * 31)
	}
	sum := codec.Checksum(0, payload)
	assigned := make([]byte, codec.MessageAssignedBytes)
	const batch = 64
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	var inside time.Duration
	for left := b.N; left > 0; left -= batch {
		for l.RingFree() < batch*1024 {
			<-moved
		}
		t := time.Now()
		for range min(batch, left) {
			h := codec.Header{Type: codec.TypeMessage}
			l.Append(&h, assigned, payload, sum)
		}
		inside += time.Since(t)
		l.Kick()
	}
	for l.Committed() < l.Appended() {
		<-moved
	}
	b.StopTimer()
	s := l.Stats()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
	b.ReportMetric(float64(inside.Nanoseconds())/float64(b.N), "section-ns/op")
	if s.Flushes > 0 {
		b.ReportMetric(float64(s.FlushedBytes)/float64(s.Flushes)/1e6, "MB/flush")
		b.ReportMetric(float64(s.FlushTime.Milliseconds())/float64(s.Flushes), "ms/flush")
	}
}

// BenchmarkSection is what an append of 1 KiB costs inside the caller's lock: no writer runs beside it.
func BenchmarkSection(b *testing.B) {
	for _, ring := range []int{1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("ring%dM", ring>>20), func(b *testing.B) {
			l, err := Open(Options{Dir: b.TempDir(), IO: IOStaged, RingBytes: ring, Logger: quietLogger()}, func(Record) error { return nil })
			if err != nil {
				b.Fatal(err)
			}
			defer l.Abort()
			if err := l.Start(1, 0, 0); err != nil {
				b.Fatal(err)
			}
			l.stop()
			l.section.closed = false
			l.ring.fill(0, uint64(ring))
			payload := make([]byte, 1024-codec.HeaderBytes-codec.MessageAssignedBytes)
			assigned := make([]byte, codec.MessageAssignedBytes)
			b.SetBytes(1024)
			for b.Loop() {
				h := codec.Header{Type: codec.TypeMessage}
				l.Append(&h, assigned, payload, 0)
				l.written.Store(l.section.head)
				l.ring.tail.Store(l.section.ringHead)
			}
		})
	}
}

// BenchmarkOpen recovers a log of 512 MiB in messages of 1 KiB that lies in the page cache.
func BenchmarkOpen(b *testing.B) {
	o := Options{Dir: b.TempDir(), IO: IOStaged, Policy: SyncNever, Logger: quietLogger()}
	moved := newSignal()
	o.OnCommit = moved.raise
	l, err := Open(o, func(Record) error { return nil })
	if err != nil {
		b.Fatal(err)
	}
	if err := l.Start(1, 0, 0); err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 1024-codec.HeaderBytes-codec.MessageAssignedBytes)
	sum := codec.Checksum(0, payload)
	assigned := make([]byte, codec.MessageAssignedBytes)
	for range 512 << 10 {
		for l.RingFree() < 1024 {
			l.Kick()
			<-moved
		}
		h := codec.Header{Type: codec.TypeMessage}
		l.Append(&h, assigned, payload, sum)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(512 << 20)
	for b.Loop() {
		n := 0
		l, err := Open(o, func(Record) error { n++; return nil })
		if err != nil || n < 512<<10 {
			b.Fatal(n, err)
		}
		l.Close()
	}
}

// BenchmarkOneAtATime is the time from an append to its commit when nothing else goes on.
func BenchmarkOneAtATime(b *testing.B) {
	for _, policy := range []Policy{SyncInterval, SyncAlways} {
		for _, io := range []IOMode{IOStaged, IOMapped} {
			b.Run(fmt.Sprintf("%s/%s", policy, io), func(b *testing.B) {
				moved := newSignal()
				l, err := Open(Options{Dir: b.TempDir(), IO: io, Policy: policy, Logger: quietLogger(), OnCommit: moved.raise},
					func(Record) error { return nil })
				if err != nil {
					b.Fatal(err)
				}
				defer l.Abort()
				if err := l.Start(1, 0, 0); err != nil {
					b.Fatal(err)
				}
				payload := make([]byte, 1024-codec.HeaderBytes)
				sum := codec.Checksum(0, payload)
				var took []time.Duration
				for b.Loop() {
					began := time.Now()
					h := codec.Header{Type: codec.TypeClock}
					l.Append(&h, nil, payload, sum)
					l.Kick()
					for l.Committed() < l.Appended() {
						<-moved
					}
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			})
		}
	}
}
