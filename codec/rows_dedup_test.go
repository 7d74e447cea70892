package codec

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
)

var (
	_ stateRecord = (*ProducerRow)(nil)
	_ stateRecord = (*SequencesRow)(nil)
	_ stateRecord = (*UniqueKeyRow)(nil)
)

func dedupRows() []stateRecord {
	return []stateRecord{new(ProducerRow), new(SequencesRow), new(UniqueKeyRow)}
}

// randomRow sets m to legal random values: a sequence that is not known has no place.
func randomRow(r *rand.Rand, m stateRecord) {
	fill(r, reflect.ValueOf(m).Elem())
	if s, ok := m.(*SequencesRow); ok {
		for k := range s.Places {
			if s.Known>>k&1 == 0 {
				s.Places[k] = StoredPlace{}
			}
		}
	}
}

func TestDedupRowsRoundTrip(t *testing.T) {
	r := newRand(t)
	for _, kind := range dedupRows() {
		t.Run(typeName(kind), func(t *testing.T) {
			reused := like(kind)
			for range 200 {
				want := like(kind)
				randomRow(r, want)
				b := want.Append([]byte("before"))
				if !bytes.HasPrefix(b, []byte("before")) {
					t.Fatal("what was before was overwritten")
				}
				// A row that is reused must not keep anything of what it was.
				for _, got := range [...]stateRecord{like(kind), reused} {
					if err := got.Decode(b[len("before"):]); err != nil || !same(got, want) {
						t.Fatalf("%+v came back as %+v, %v", want, got, err)
					}
				}
			}
		})
	}
}

func TestEveryTruncatedDedupRowIsRefused(t *testing.T) {
	r := newRand(t)
	for _, kind := range dedupRows() {
		t.Run(typeName(kind), func(t *testing.T) {
			m := like(kind)
			randomRow(r, m)
			b := m.Append(nil)
			for n := range b {
				if err := like(kind).Decode(b[:n]); !errors.Is(err, ErrFields) {
					t.Fatalf("%d of %d bytes of %+v: %v", n, len(b), m, err)
				}
			}
			if err := like(kind).Decode(append(b, 0)); !errors.Is(err, ErrFields) {
				t.Fatalf("a byte too many: %v", err)
			}
		})
	}
}

// TestDedupRowBytes holds the layouts: these bytes were written once, and every later version must read and write them.
func TestDedupRowBytes(t *testing.T) {
	place := StoredPlace{Queue: 0x6162, Epoch: 0x71727374, Offset: 0x8182838485868788, Position: 0x9192939495969798}
	const placeHex = "6261" + "74737271" + "8887868584838281" + "9897969594939291"
	for _, v := range []struct {
		row  stateRecord
		want string
	}{
		{&ProducerRow{ID: 0x0102030405060708, Floor: 0x1112131415161718, Highest: 0x2122232425262728, LastMs: 0x3132333435363738},
			"0807060504030201" + "1817161514131211" + "2827262524232221" + "3837363534333231"},
		{&SequencesRow{Producer: 0x0102030405060708, First: 0x1112131415161710, NewestMs: 0x2122232425262728, QueuedMs: 0x3132333435363738,
			Known: 1<<15 | 1<<1, Places: [16]StoredPlace{1: place, 15: {Queue: 1, Epoch: 2, Offset: 3, Position: 4}}},
			"0807060504030201" + "1017161514131211" + "2827262524232221" + "3837363534333231" + "0280" + placeHex +
				"0100" + "02000000" + "0300000000000000" + "0400000000000000"},
		{&UniqueKeyRow{Topic: 0x01020304, Hash: [2]uint64{0x1112131415161718, 0x2122232425262728}, ExpiresMs: 0x3132333435363738, Place: place},
			"04030201" + "1817161514131211" + "2827262524232221" + "3837363534333231" + placeHex},
	} {
		if got := hex.EncodeToString(v.row.Append(nil)); got != v.want {
			t.Errorf("%s is written as\n%s, want\n%s", typeName(v.row), got, v.want)
		}
	}
	if RowProducer != 32 || RowSequences != 33 || RowUniqueKey != 34 {
		t.Error("the numbers of row kinds are part of the format")
	}
}
