package dedup

import (
	"math/rand/v2"
	"testing"
)

// strict is a table that takes every violation for a failure.
func strict(t testing.TB, l Limits) *Table {
	table := New(l)
	table.OnViolation = func(what string) { t.Helper(); t.Fatal(what) }
	return table
}

func (t *Table) verdict(producer, sequence uint64) Verdict {
	v, _ := t.CheckSequence(producer, sequence)
	return v
}

func audit(t testing.TB, table *Table) {
	t.Helper()
	if err := table.Audit(); err != nil {
		t.Fatal(err)
	}
}

func TestARepeatedSequenceGetsThePlaceOfTheFirst(t *testing.T) {
	// Given a message of producer 7 with sequence 3, before 1 and 2 have come.
	table := strict(t, Limits{})
	table.ApplySequence(7, 3, placeOf(100), 1000)
	// When it is sent again, it is a duplicate, and gets the first place.
	if v, at := table.CheckSequence(7, 3); v != Duplicate || at != placeOf(100) {
		t.Fatalf("%s at %+v", v, at)
	}
	// Then those before it are no duplicates because they are smaller, nor are those of others because they are equal.
	for _, m := range [][2]uint64{{7, 1}, {7, 2}, {7, 4}, {8, 3}} {
		if v := table.verdict(m[0], m[1]); v != Fresh {
			t.Errorf("sequence %d of producer %d is %s", m[1], m[0], v)
		}
	}
}

func TestBelowTheWindowASequenceIsTooOld(t *testing.T) {
	table := strict(t, Limits{})
	table.ApplySequence(7, 4, placeOf(1), 0)
	table.ApplySequence(7, 5, placeOf(2), 0)
	// When the highest sequence is 65,536 above 4.
	table.ApplySequence(7, 4+window, placeOf(3), 0)
	// Then 4 is too old although it was stored, and so is 3, which was not; 5 is known still, and 6 can come still.
	for sequence, want := range map[uint64]Verdict{0: TooOld, 3: TooOld, 4: TooOld, 5: Duplicate, 6: Fresh, 4 + window: Duplicate, 5 + window: Fresh} {
		if v := table.verdict(7, sequence); v != want {
			t.Errorf("sequence %d is %s, want %s", sequence, v, want)
		}
	}
	audit(t, table)
}

// TestAWholeWindowIsKnown: 65,536 sequences that come in any order are all known for 15 minutes, and none beside them.
func TestAWholeWindowIsKnown(t *testing.T) {
	r := newRand(t)
	table := strict(t, Limits{})
	first := 1 + r.Uint64N(1<<40)
	order := r.Perm(window)
	for i, k := range order {
		table.ApplySequence(7, first+uint64(k), placeOf(uint64(k)), int64(i)*10*minuteMs/window)
	}
	audit(t, table)
	table.Age(15*minuteMs - 1)
	for k := range uint64(window) {
		if v, at := table.CheckSequence(7, first+k); v != Duplicate || at != placeOf(k) {
			t.Fatalf("sequence %d is %s at %+v", k, v, at)
		}
	}
	if v := table.verdict(7, first+window); v != Fresh || table.Sequences() != window {
		t.Fatalf("the next is %s, %d are known", v, table.Sequences())
	}
	// When twice that time has passed, with messages of another producer.
	for n := range int64(2 * window / perChunk) {
		table.ApplySequence(8, uint64(n+1), placeOf(1), 31*minuteMs+n/100)
	}
	// Then they are too old, every one, and their memory is free.
	for _, k := range []uint64{0, 1, window / 2, window - 1} {
		if v := table.verdict(7, first+k); v != TooOld {
			t.Errorf("sequence %d is %s", k, v)
		}
	}
	if v := table.verdict(7, first+window); v != Fresh || table.Sequences() != 2*window/perChunk {
		t.Fatalf("the next is %s, %d are known", v, table.Sequences())
	}
	audit(t, table)
}

// TestNoAnswerIsWrong: whatever is evicted, a sequence that was stored is never Fresh, and one that was not is never a
// Duplicate; and while the limits hold, one that is young and in the window is always known.
func TestNoAnswerIsWrong(t *testing.T) {
	r := newRand(t)
	for round, limit := range []int{0, 200, 5000} {
		table := strict(t, Limits{Sequences: limit})
		type stored struct {
			place Place
			atMs  int64
		}
		known := map[[2]uint64]stored{}
		highest := map[uint64]uint64{}
		nowMs, tooOld := int64(0), 0
		for n := range uint64(60_000) {
			nowMs += r.Int64N(100)
			producer := 1 + r.Uint64N(5)
			sequence := highest[producer] + 1
			switch r.IntN(8) {
			case 0, 1:
				sequence -= min(sequence, r.Uint64N(300))
			case 2:
				sequence -= min(sequence, r.Uint64N(2*window))
			case 3:
				sequence += r.Uint64N(500) >> r.IntN(10)
			}
			v, at := table.CheckSequence(producer, sequence)
			was, ok := known[[2]uint64{producer, sequence}]
			switch {
			case v == Duplicate && (!ok || at != was.place), v == Fresh && ok, v == Full:
				t.Fatalf("round %d: sequence %d of producer %d is %s at %+v; stored: %t at %+v", round, sequence, producer, v, at, ok, was.place)
			case v == TooOld && limit == 0 && ok && nowMs-was.atMs < 15*minuteMs && sequence+window > highest[producer]:
				t.Fatalf("round %d: sequence %d of producer %d is too old after %d ms, the highest is %d", round, sequence, producer, nowMs-was.atMs, highest[producer])
			case v == TooOld:
				tooOld++
			case v == Fresh:
				table.ApplySequence(producer, sequence, placeOf(n), nowMs)
				known[[2]uint64{producer, sequence}] = stored{placeOf(n), nowMs}
				highest[producer] = max(highest[producer], sequence)
			}
		}
		audit(t, table)
		if limit > 0 && table.Sequences() > limit || tooOld == 0 {
			t.Fatalf("round %d: %d sequences, %d answers too old", round, table.Sequences(), tooOld)
		}
	}
}

// TestAYoungChunkBelowAnOldOne: eviction raises the floor, so an old chunk waits for a younger one below it.
func TestAYoungChunkBelowAnOldOne(t *testing.T) {
	table := strict(t, Limits{})
	table.ApplySequence(7, 100, placeOf(1), 0)
	table.ApplySequence(7, 5, placeOf(2), 10*minuteMs)
	table.Age(20 * minuteMs)
	if v := table.verdict(7, 5); v != Duplicate {
		t.Fatalf("after ten minutes sequence 5 is %s", v)
	}
	table.Age(26 * minuteMs)
	table.Age(36 * minuteMs)
	if a, b := table.verdict(7, 5), table.verdict(7, 100); a != TooOld || b != TooOld || table.Sequences() != 0 {
		t.Fatalf("when both are old they are %s and %s", a, b)
	}
	if v := table.verdict(7, 101); v != Fresh {
		t.Fatalf("the next sequence is %s", v)
	}
	audit(t, table)
}

// TestWhatIsEvictedForRoom: the oldest goes, however young, and is too old from then on.
func TestWhatIsEvictedForRoom(t *testing.T) {
	table := strict(t, Limits{Sequences: 64})
	for n := range uint64(4) {
		for sequence := uint64(16); sequence < 32; sequence++ {
			table.ApplySequence(1+n, sequence, placeOf(sequence), 0)
		}
	}
	if n := table.Sequences(); n != 64 {
		t.Fatalf("%d sequences", n)
	}
	table.ApplySequence(9, 1, placeOf(1), 0)
	if n, v, kept := table.Sequences(), table.verdict(1, 31), table.verdict(2, 16); n != 49 || v != TooOld || kept != Duplicate {
		t.Fatalf("%d sequences; the oldest is %s, the next %s", n, v, kept)
	}
	// Sequences that lie far apart take a chunk each, of which there are 16.
	for n := range uint64(40) {
		table.ApplySequence(10, 1+n*perChunk, placeOf(1), 0)
	}
	if n := table.chunks.Len(); n > 16 {
		t.Fatalf("%d chunks", n)
	}
	audit(t, table)
}

func TestAProducerIsRememberedForADay(t *testing.T) {
	table := strict(t, Limits{})
	table.ApplySequence(7, 50, placeOf(1), 0)
	table.Age(15 * minuteMs)
	table.Age(24*hourMs - 1)
	if v := table.verdict(7, 50); v != TooOld || table.Producers() != 1 {
		t.Fatalf("within a day, sequence 50 is %s", v)
	}
	table.Age(24 * hourMs)
	if v := table.verdict(7, 50); v != Fresh || table.Producers() != 0 {
		t.Fatalf("after a day, sequence 50 is %s", v)
	}
	audit(t, table)
}

func TestTooManyProducers(t *testing.T) {
	table := New(Limits{Producers: 2})
	table.ApplySequence(1, 10, placeOf(1), 0)
	table.ApplySequence(2, 10, placeOf(2), minuteMs)
	// Given two that have sequences, there is no room for a third, and its record does nothing.
	if v := table.verdict(3, 1); v != Full {
		t.Fatalf("a third producer is %s", v)
	}
	before := table.Hash()
	table.ApplySequence(3, 1, placeOf(3), minuteMs)
	if table.Violations() != 1 || table.Hash() != before {
		t.Fatal("a record that did not fit was applied")
	}
	// When the sequences of the first are old, it makes room, and is forgotten: its sequences are free again.
	table.Age(15 * minuteMs)
	if v := table.verdict(3, 1); v != Fresh {
		t.Fatalf("a third producer is %s, although one is idle", v)
	}
	table.ApplySequence(3, 1, placeOf(3), 15*minuteMs)
	if a, b := table.verdict(2, 10), table.verdict(1, 10); a != Duplicate || b != Full {
		t.Fatalf("the second is %s, the first %s", a, b)
	}
	audit(t, table)
}

func TestRecordsThatDoNotFit(t *testing.T) {
	table := New(Limits{})
	told := 0
	table.OnViolation = func(string) { told++ }
	table.ApplySequence(7, 100_000, placeOf(1), 0)
	before := table.Hash()
	for i, m := range [][2]uint64{{0, 1}, {7, 0}, {8, 0}, {7, 100_000}, {7, 100_000 - window}} {
		table.ApplySequence(m[0], m[1], placeOf(2), 0)
		if table.Hash() != before || told != i+1 || table.Violations() != uint64(i+1) {
			t.Errorf("sequence %d of producer %d: %d violations, %d told of", m[1], m[0], table.Violations(), told)
		}
	}
}

// TestALeapIsFreedInSteps: what a leap leaves behind is out of sight at once, and no record frees more than its share.
func TestALeapIsFreedInSteps(t *testing.T) {
	table := strict(t, Limits{})
	for sequence := uint64(1); sequence <= window; sequence++ {
		table.ApplySequence(7, sequence, placeOf(1), 0)
	}
	behind, sent := window/perChunk+1, 0
	for first := uint64(1) << 50; behind > 0; sent++ {
		before := table.chunks.Len()
		table.ApplySequence(7, first+uint64(sent), placeOf(1), 0)
		if v := table.verdict(7, window); v != TooOld {
			t.Fatalf("behind the leap a sequence is %s", v)
		}
		freed := before - table.chunks.Len()
		if sent%perChunk == 0 {
			freed++ // a chunk was made
		}
		if freed != min(evictPerRecord, behind) {
			t.Fatalf("%d of %d chunks were freed by one record", freed, behind)
		}
		behind -= freed
	}
	if table.Sequences() != sent {
		t.Fatalf("%d sequences, want %d", table.Sequences(), sent)
	}
	audit(t, table)
}

// TestTree holds trees against maps, for numbers near and far.
func TestTree(t *testing.T) {
	r := newRand(t)
	for range 300 {
		f := newForest()
		var x tree
		known := map[uint64]uint32{}
		base, spread := r.Uint64()>>(4+r.IntN(60)), r.IntN(60)
		for step := range uint32(200) {
			number := (base + r.Uint64()>>4>>spread) & (1<<60 - 1)
			if got := f.get(&x, number); got != known[number] {
				t.Fatalf("%d is at %d, want %d", number, got, known[number])
			}
			if len(known) > 0 && r.IntN(2) == 0 {
				removeLowest(t, &f, &x, known)
			} else if known[number] == 0 {
				known[number] = step + 1
				f.set(&x, number, step+1)
			}
		}
		for len(known) > 0 {
			removeLowest(t, &f, &x, known)
		}
		if x != (tree{}) || f.nodes.Len() != 0 {
			t.Fatalf("an empty tree is %+v with %d nodes", x, f.nodes.Len())
		}
	}
}

func removeLowest(t *testing.T, f *forest, x *tree, known map[uint64]uint32) {
	t.Helper()
	low, high := ^uint64(0), uint64(0)
	for number := range known {
		low, high = min(low, number), max(high, number)
	}
	if f.lowestNumber(x) != low || f.lowest(x) != known[low] || f.highest(x) != known[high] {
		t.Fatalf("%d to %d, want %d to %d", f.lowest(x), f.highest(x), known[low], known[high])
	}
	want := known[low]
	delete(known, low)
	chunk, next := f.removeLowest(x)
	if chunk != want || len(known) > 0 && f.get(x, next) != known[next] || f.get(x, low) != 0 && len(known) > 0 {
		t.Fatalf("%d is next to %d", next, low)
	}
}

// TestNothingIsAllocated while messages come and go at the limits.
func TestNothingIsAllocated(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	table := New(Limits{Sequences: 5000, Keys: 500})
	highest := map[uint64]uint64{}
	for n := range uint64(50) {
		highest[n+1] = 0
	}
	n := uint64(0)
	send := func() {
		n++
		producer := 1 + r.Uint64N(50)
		sequence := highest[producer] + 1 + r.Uint64N(3)
		if v, _ := table.CheckSequence(producer, sequence); v == Fresh {
			table.ApplySequence(producer, sequence, placeOf(n), int64(n)*1000)
			highest[producer] = sequence
		}
		h := KeyHash{r.Uint64N(600), 1}
		if v, _ := table.CheckKey(uint32(n%3), h, int64(n)*1000); v == Fresh {
			table.ApplyKey(uint32(n%3), h, placeOf(n), 400_000, int64(n)*1000)
		}
	}
	for range 100_000 {
		send()
	}
	if a := testing.AllocsPerRun(100_000, send); a > 0 {
		t.Fatalf("%v allocations a message", a)
	}
	if table.Violations() != 0 {
		t.Fatal(table.Violations())
	}
	audit(t, table)
}
