package snapshot

import (
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// benchRow is about as long as that of a lease.
var benchRow = make([]byte, 72)

const benchRows = 100_000

// BenchmarkWrite writes a snapshot of a hundred thousand leases and publishes it, syncs included.
func BenchmarkWrite(b *testing.B) {
	s := newStore(b)
	b.SetBytes(int64(benchRows * len(benchRow)))
	b.ReportAllocs()
	for b.Loop() {
		w, err := s.Create(Head{Position: 64})
		if err != nil {
			b.Fatal(err)
		}
		for range benchRows {
			if err := w.Row(codec.RowMessage, benchRow); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Finish(); err != nil {
			b.Fatal(err)
		}
		if err := w.Publish(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads it, as a start does.
func BenchmarkRead(b *testing.B) {
	s := newStore(b)
	rows := make([]row, benchRows)
	for i := range rows {
		rows[i] = row{codec.RowMessage, benchRow}
	}
	put(b, s, Head{Position: 64}, rows)
	b.SetBytes(int64(benchRows * len(benchRow)))
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if _, err := s.Read(64, func(codec.RowKind, []byte) error { n++; return nil }); err != nil || n != benchRows {
			b.Fatalf("%d rows, %v", n, err)
		}
	}
}
