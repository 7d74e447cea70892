package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// busy is a table with something of everything: young and old chunks, gaps, idle producers, keys of several topics and
// of one that was dropped.
func busy(t testing.TB, r *rand.Rand) (table *Table, nowMs int64) {
	table = strict(t, Limits{Sequences: 3000, Producers: 200, Keys: 3000})
	send := func(producer, sequence uint64) {
		if v, _ := table.CheckSequence(producer, sequence); v == Fresh {
			table.ApplySequence(producer, sequence, placeOf(r.Uint64()), nowMs)
		}
	}
	for n := range uint64(10) {
		send(1000+n, 70_000*n+5)
	}
	for n := range 5000 {
		nowMs += r.Int64N(secondMs)
		send(1+r.Uint64N(uint64(1+n/50)), 1+uint64(n)+r.Uint64N(100))
		topic, h := uint32(1+r.IntN(5)), Hash(fmt.Append(nil, r.IntN(4000)))
		if v, _ := table.CheckKey(topic, h, nowMs); v == Fresh {
			table.ApplyKey(topic, h, placeOf(r.Uint64()), 1+r.Int64N(10*minuteMs), nowMs)
		}
	}
	table.DropTopic(3)
	return table, nowMs
}

// TestAViewIsWrittenWhileTheTableGoesOn by another goroutine; what is loaded is the table as it was frozen.
func TestAViewIsWrittenWhileTheTableGoesOn(t *testing.T) {
	r := newRand(t)
	table, nowMs := busy(t, r)
	if table.idle.head == 0 || table.dropped == 0 || table.Sequences() == 0 || table.Keys() == 0 {
		t.Fatalf("the table lacks something: %d idle, %d dropped, %d sequences, %d keys", table.idle.head, table.dropped, table.Sequences(), table.Keys())
	}
	for range 3 {
		want := table.Hash()
		view := table.Freeze()
		var loaded *Table
		var wait sync.WaitGroup
		wait.Go(func() { loaded = load(t, view, table.limits) })
		for n := range uint64(3000) {
			nowMs += r.Int64N(500)
			if v, _ := table.CheckSequence(1+n%90, 6000+n); v == Fresh {
				table.ApplySequence(1+n%90, 6000+n, placeOf(n), nowMs)
			}
			h := Hash(fmt.Append(nil, "new ", n, nowMs))
			if v, _ := table.CheckKey(2, h, nowMs); v == Fresh {
				table.ApplyKey(2, h, placeOf(n), minuteMs, nowMs)
			}
		}
		wait.Wait()
		table.Thaw()
		if loaded.Hash() != want || table.Hash() == want {
			t.Fatal("what was loaded is not what was frozen, or the table did not go on")
		}
		audit(t, loaded)
		audit(t, table)
	}
}

// TestNoChangeReachesAView: whichever change is the first after a freeze, the rows are what they were.
func TestNoChangeReachesAView(t *testing.T) {
	r := newRand(t)
	table, nowMs := busy(t, r)
	table.OnViolation = nil // some records do not fit
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for round := range rounds {
		view := table.Freeze()
		want := rowsOf(t, view)
		for range 1 + r.IntN(3) {
			nowMs += r.Int64N(20 * secondMs)
			switch op := r.IntN(10); {
			case op < 4:
				producer := 1 + r.Uint64N(120)
				highest := uint64(5000)
				if slot := table.slotOf(producer); slot != 0 {
					highest = table.producers.At(slot).highest
				}
				table.ApplySequence(producer, highest+r.Uint64N(40)-20, placeOf(1), nowMs)
			case op < 7:
				table.ApplyKey(uint32(1+r.IntN(5)), KeyHash{r.Uint64(), 1}, placeOf(1), 10*minuteMs, nowMs)
			case op < 9:
				table.Age(nowMs)
			case r.IntN(10) == 0:
				table.DropTopic(uint32(1 + r.IntN(5)))
			}
		}
		if got := rowsOf(t, view); !sameRows(got, want) {
			t.Fatalf("round %d: a change was seen in the view", round)
		}
		table.Thaw()
	}
	audit(t, table)
}

// TestNoMoveReachesAView: a chunk that goes to the end of the queue, because it is full or too young, leaves the view
// as it is, on whichever page its neighbours are.
func TestNoMoveReachesAView(t *testing.T) {
	const producers = 160 // chunks on three pages
	for _, move := range []string{"full", "too young"} {
		table := strict(t, Limits{})
		for id := uint64(1); id <= producers; id++ {
			for sequence := uint64(16); sequence < 31; sequence++ {
				table.ApplySequence(id, sequence, placeOf(id), 0)
			}
		}
		for id := uint64(1); id <= producers; id++ {
			table.ApplySequence(id, 1, placeOf(id), 10*minuteMs)
		}
		for id := uint64(1); id <= producers; id++ {
			view := table.Freeze()
			want, moves := rowsOf(t, view), table.queue.tail
			if move == "full" {
				table.ApplySequence(producers+1-id, 31, placeOf(id), 10*minuteMs) // each from the middle of the queue
			} else {
				table.Age(20 * minuteMs)
			}
			if id < producers/evictPerRecord && table.queue.tail == moves {
				t.Fatalf("%s: nothing moved", move)
			}
			if got := rowsOf(t, view); !sameRows(got, want) {
				t.Fatalf("%s, producer %d: the move was seen in the view", move, id)
			}
			table.Thaw()
		}
		audit(t, table)
	}
}

func sameRows(a, b []row) bool {
	return slices.EqualFunc(a, b, func(a, b row) bool { return a.kind == b.kind && bytes.Equal(a.bytes, b.bytes) })
}

func TestAnEmptyTableHasNoRows(t *testing.T) {
	table := New(Limits{})
	if rows := rowsOf(t, table.Freeze()); len(rows) != 0 {
		t.Fatalf("%d rows", len(rows))
	}
	table.Thaw()
	table.Thaw() // without a view it does nothing
	if err := New(Limits{}).Loaded(); err != nil {
		t.Fatal(err)
	}
}

// TestRowsEndWithTheFirstError of the one who writes them.
func TestRowsEndWithTheFirstError(t *testing.T) {
	table, _ := busy(t, newRand(t))
	all := len(rowsOf(t, table.Freeze()))
	full := errors.New("disk full")
	for _, stop := range []int{1, all / 3, all - 1, all} {
		n := 0
		err := table.freezeAnew().Rows(func(_ codec.RowKind, row []byte) error {
			if n++; n == stop {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) || n != stop {
			t.Fatalf("%d rows of %d, %v", n, stop, err)
		}
	}
}

func (t *Table) freezeAnew() *View {
	t.Thaw()
	return t.Freeze()
}

// TestHashSeesEverything: any field of any row that is different makes another hash, or is refused.
func TestHashSeesEverything(t *testing.T) {
	table := strict(t, Limits{})
	table.ApplySequence(7, 100, placeOf(1), 1000)
	table.ApplySequence(7, 3, placeOf(2), 2000)
	table.ApplySequence(8, 5, placeOf(3), 2000)
	table.ApplyKey(1, Hash([]byte("a")), placeOf(4), 1000, 2000)
	table.ApplyKey(1, Hash([]byte("b")), placeOf(5), 1000, 2000)
	want := table.Hash()
	rows := rowsOf(t, table.Freeze())
	hash := func(rows []row) (h uint64, ok bool) {
		loaded := New(Limits{})
		for _, r := range rows {
			if loaded.Load(r.kind, r.bytes) != nil {
				return 0, false
			}
		}
		return loaded.Hash(), loaded.Loaded() == nil
	}
	if h, ok := hash(rows); h != want || !ok {
		t.Fatal("the rows are another table")
	}
	for i := range rows {
		for at := range rows[i].bytes {
			for bit := range 8 {
				changed := slices.Clone(rows)
				changed[i].bytes = bytes.Clone(rows[i].bytes)
				changed[i].bytes[at] ^= 1 << bit
				if h, ok := hash(changed); h == want && ok {
					t.Fatalf("row %d, byte %d, bit %d: the hash does not see it", i, at, bit)
				}
			}
		}
		for k := range i {
			// The order of two busy producers says nothing; every other order does.
			swapped := slices.Clone(rows)
			swapped[i], swapped[k] = swapped[k], swapped[i]
			if h, ok := hash(swapped); h == want && ok && rows[i].kind != codec.RowProducer {
				t.Fatalf("rows %d and %d: the hash does not see their order", k, i)
			}
		}
	}
}

// TestRowsThatContradictEachOther are refused, by the row or at the end.
func TestRowsThatContradictEachOther(t *testing.T) {
	producer := func(id, floor, highest uint64) row {
		r := codec.ProducerRow{ID: id, Floor: floor, Highest: highest, LastMs: 1000}
		return row{codec.RowProducer, r.Append(nil)}
	}
	sequences := func(id, first uint64, known uint16) row {
		r := codec.SequencesRow{Producer: id, First: first, Known: known, NewestMs: 1000, QueuedMs: 1000}
		return row{codec.RowSequences, r.Append(nil)}
	}
	late := codec.SequencesRow{Producer: 7, First: 16, Known: 1, NewestMs: 1001}
	key := codec.UniqueKeyRow{Topic: 1, Hash: KeyHash{1, 2}, ExpiresMs: 5}
	aKey := row{codec.RowUniqueKey, key.Append(nil)}
	for _, test := range []struct {
		name string
		rows []row
		ok   bool
	}{
		{"nothing wrong", []row{producer(6, 9, 9), producer(7, 3, 17), sequences(7, 0, 0xfff0), sequences(7, 16, 3), aKey}, true},
		{"at the end of numbers", []row{producer(7, ^uint64(0)-window, ^uint64(0)), sequences(7, ^uint64(15), 0x8000)}, true},
		{"producer 0", []row{producer(0, 1, 1)}, false},
		{"a producer twice", []row{producer(7, 1, 1), producer(7, 1, 1)}, false},
		{"a producer without messages", []row{producer(7, 0, 0)}, false},
		{"a floor above the highest", []row{producer(7, 2, 1)}, false},
		{"a floor too low", []row{producer(7, 0, window+1), sequences(7, window, 2)}, false},
		{"an idle producer with a window", []row{producer(7, 3, 17)}, false},
		{"a producer whose highest is not there", []row{producer(7, 3, 18), sequences(7, 16, 3)}, false},
		{"sequences above the highest", []row{producer(7, 3, 16), sequences(7, 16, 3)}, false},
		{"sequences of nobody", []row{producer(7, 3, 17), sequences(8, 16, 3)}, false},
		{"sequences that begin anywhere", []row{producer(7, 3, 17), sequences(7, 15, 4)}, false},
		{"no sequences", []row{producer(7, 3, 3), sequences(7, 0, 0)}, false},
		{"sequence 0", []row{producer(7, 0, 1), sequences(7, 0, 3)}, false},
		{"sequences twice", []row{producer(7, 3, 17), sequences(7, 16, 3), sequences(7, 16, 3)}, false},
		{"sequences newer than their producer", []row{producer(7, 3, 16), {codec.RowSequences, late.Append(nil)}}, false},
		{"only old sequences", []row{producer(7, 17, 17), sequences(7, 0, 8)}, false},
		{"a key twice", []row{aKey, aKey}, false},
		{"a producer behind sequences", []row{producer(7, 3, 16), sequences(7, 16, 1), producer(8, 1, 1)}, false},
		{"sequences behind a key", []row{producer(7, 3, 16), aKey, sequences(7, 16, 1)}, false},
		{"an unknown kind", []row{{99, nil}}, false},
		{"no kind", []row{{0, nil}}, false},
		{"a row cut off", []row{{codec.RowUniqueKey, aKey.bytes[:30]}}, false},
	} {
		table := New(Limits{})
		var err error
		for _, r := range test.rows {
			if err == nil {
				err = table.Load(r.kind, r.bytes)
			}
		}
		if err == nil {
			err = table.Loaded()
		}
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
		if err == nil {
			audit(t, table)
		}
	}
	table := strict(t, Limits{})
	table.ApplySequence(7, 1, placeOf(1), 0)
	if err := table.Load(codec.RowUniqueKey, aKey.bytes); err == nil {
		t.Error("a row was loaded into a table that was not empty")
	}
}

// TestATableThatWasLoadedWithLowerLimits shrinks to them as records come.
func TestATableThatWasLoadedWithLowerLimits(t *testing.T) {
	r := newRand(t)
	table, nowMs := busy(t, r)
	limits := Limits{Sequences: 100, Producers: 10, Keys: 50}
	loaded := load(t, table.Freeze(), limits)
	for n := range uint64(2000) {
		nowMs += 10 * secondMs
		if v, _ := loaded.CheckSequence(1+n%100, 10_000+n); v == Fresh {
			loaded.ApplySequence(1+n%100, 10_000+n, placeOf(n), nowMs)
		}
		if v, _ := loaded.CheckKey(9, KeyHash{n, n}, nowMs); v == Fresh {
			loaded.ApplyKey(9, KeyHash{n, n}, placeOf(n), minuteMs, nowMs)
		}
	}
	if loaded.Violations() != 0 || loaded.Sequences() > 100 || loaded.Producers() > 10 || loaded.Keys() > 50 {
		t.Fatalf("%d sequences, %d producers, %d keys", loaded.Sequences(), loaded.Producers(), loaded.Keys())
	}
	audit(t, loaded)
}

// FuzzLoad: whatever the rows say, they are refused or make a table that holds together and goes on.
func FuzzLoad(f *testing.F) {
	table := strict(f, Limits{})
	table.ApplySequence(7, 100, placeOf(1), 1000)
	table.ApplySequence(7, 3, placeOf(2), 2000)
	table.ApplyKey(1, Hash([]byte("a")), placeOf(4), 1000, 2000)
	table.ApplyKey(2, Hash([]byte("b")), placeOf(5), 1000, 2000)
	var all []byte
	for _, r := range rowsOf(f, table.Freeze()) {
		all = append(append(all, byte(r.kind), byte(len(r.bytes))), r.bytes...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		table := New(Limits{Sequences: 40, Producers: 3, Keys: 3})
		for len(b) >= 2 {
			kind, n := codec.RowKind(b[0]), min(int(b[1]), len(b)-2)
			if table.Load(kind, b[2:2+n]) != nil {
				return
			}
			b = b[2+n:]
		}
		if table.Loaded() != nil {
			return
		}
		for n := range int64(20) {
			if err := table.Audit(); err != nil {
				t.Fatal(err)
			}
			if v, _ := table.CheckSequence(7, 101+uint64(n)); v == Fresh {
				table.ApplySequence(7, 101+uint64(n), placeOf(1), n*hourMs)
			}
			if v, _ := table.CheckKey(1, KeyHash{1, uint64(n)}, n*hourMs); v == Fresh {
				table.ApplyKey(1, KeyHash{1, uint64(n)}, placeOf(1), hourMs, n*hourMs)
			}
		}
		if table.Violations() != 0 {
			t.Fatal("what was fresh did not fit")
		}
	})
}
