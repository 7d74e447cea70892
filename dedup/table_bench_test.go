package dedup

import (
	"encoding/binary"
	"testing"
	"time"
)

func benchTable(b testing.TB) *Table {
	t := New(Limits{})
	t.OnViolation = func(what string) { b.Fatal(what) }
	return t
}

// BenchmarkSequenceInOrder is a message of the one producer that sends, its window full: check and apply. The goal is
// 15 ns.
func BenchmarkSequenceInOrder(b *testing.B) {
	t := benchTable(b)
	at := placeOf(7)
	sequence := uint64(0)
	send := func() {
		sequence++
		if v, _ := t.CheckSequence(5, sequence); v != Fresh {
			b.Fatal(v)
		}
		t.ApplySequence(5, sequence, at, int64(sequence/1000))
	}
	for sequence < 2*window {
		send()
	}
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
}

// BenchmarkSequenceManyProducers is the same by 1,000 producers in turn, the table full.
func BenchmarkSequenceManyProducers(b *testing.B) {
	t := benchTable(b)
	at := placeOf(7)
	n := uint64(0)
	send := func() {
		n++
		producer, sequence := 1+n%1000, 1+n/1000
		if v, _ := t.CheckSequence(producer, sequence); v != Fresh {
			b.Fatal(v)
		}
		t.ApplySequence(producer, sequence, at, int64(n/1000))
	}
	for n < defaultSequences+window {
		send()
	}
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
}

// BenchmarkSequenceLeap is a full window and a leap that leaves it behind. leap-ns is the leap alone, a record that does
// as much as one can.
func BenchmarkSequenceLeap(b *testing.B) {
	t := benchTable(b)
	sequence, leaps := uint64(0), time.Duration(0)
	for b.Loop() {
		for range window {
			sequence++
			t.ApplySequence(5, sequence, Place{}, 0)
		}
		sequence += 1 << 30
		start := time.Now()
		t.ApplySequence(5, sequence, Place{}, 0)
		leaps += time.Since(start)
	}
	b.ReportMetric(float64(leaps.Nanoseconds())/float64(b.N), "leap-ns")
}

// BenchmarkUniqueKey is a message with a key of its own, while as many others are known: check and apply, and the
// eviction of one. The goal is 150 ns. The hash is computed before the section.
func BenchmarkUniqueKey(b *testing.B) {
	for _, known := range []struct {
		name string
		keys uint64
	}{{"100k", 100_000}, {"4M", defaultKeys - 1}} {
		b.Run(known.name, func(b *testing.B) {
			t := benchTable(b)
			at := placeOf(7)
			n := uint64(0)
			send := func() {
				n++
				h := KeyHash{n * 0x9e3779b97f4a7c15, n}
				if v, _ := t.CheckKey(3, h, int64(n)); v != Fresh {
					b.Fatal(v)
				}
				t.ApplyKey(3, h, at, int64(known.keys), int64(n))
			}
			for n < 2*known.keys {
				send()
			}
			b.ReportAllocs()
			for b.Loop() {
				send()
			}
		})
	}
}

// BenchmarkHash is the hash of a key of 36 bytes.
func BenchmarkHash(b *testing.B) {
	key := make([]byte, 36)
	b.ReportAllocs()
	for b.Loop() {
		binary.LittleEndian.PutUint64(key, Hash(key)[0])
	}
}
