package slab

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, as a failed run has printed it")

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// value is of a size that does not divide a page.
type value struct {
	a, b, c uint64
	d       uint32
}

func TestIndexZeroIsNeverHandedOut(t *testing.T) {
	s := New[value]()
	seen := map[uint32]bool{None: true}
	for range 10_000 {
		i := s.Alloc()
		if seen[i] {
			t.Fatalf("index %d was handed out twice", i)
		}
		seen[i] = true
	}
	if s.Len() != 10_000 || s.End() != 10_001 {
		t.Fatalf("%d values, end %d", s.Len(), s.End())
	}
}

// TestAgainstModel: any run of calls gives what a map would give, and every value handed out is zero.
func TestAgainstModel(t *testing.T) {
	r := newRand(t)
	s := New[value]()
	model := map[uint32]value{}
	var live []uint32
	for step := range 100_000 {
		grow := 60 - step/5000*3 // first it grows, then it shrinks
		switch {
		case len(live) == 0 || r.IntN(100) < grow:
			i := s.Alloc()
			if _, taken := model[i]; taken || i == None || i >= s.End() {
				t.Fatalf("step %d: handed out %d", step, i)
			}
			if *s.At(i) != (value{}) {
				t.Fatalf("step %d: %d holds %+v", step, i, *s.At(i))
			}
			v := value{r.Uint64(), r.Uint64(), r.Uint64(), r.Uint32()}
			*s.Mut(i) = v
			model[i] = v
			live = append(live, i)
		default:
			k := r.IntN(len(live))
			i := live[k]
			if *s.At(i) != model[i] {
				t.Fatalf("step %d: %d holds %+v, not %+v", step, i, *s.At(i), model[i])
			}
			s.Free(i)
			delete(model, i)
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
		}
		if s.Len() != len(model) {
			t.Fatalf("step %d: %d values, not %d", step, s.Len(), len(model))
		}
	}
	for i, v := range model {
		if *s.At(i) != v {
			t.Fatalf("%d holds %+v, not %+v", i, *s.At(i), v)
		}
	}
}

// TestIndexesComeBack: the one that came back last goes first, and nothing grows while there is one. The same calls
// give the same indexes: a replay must number its state as the live run did.
func TestIndexesComeBack(t *testing.T) {
	run := func() (got []uint32) {
		s := New[value]()
		for range 5000 {
			s.Alloc()
		}
		for _, i := range []uint32{7, 4999, 1} {
			s.Free(i)
		}
		end := s.End()
		for range 3 {
			got = append(got, s.Alloc())
		}
		if s.End() != end {
			t.Errorf("it grew to %d with indexes to give", s.End())
		}
		return append(got, s.Alloc())
	}
	got := run()
	for k, want := range []uint32{1, 4999, 7, 5001} {
		if got[k] != want {
			t.Errorf("index %d is %d, want %d", k, got[k], want)
		}
	}
	for k, again := range run() {
		if again != got[k] {
			t.Errorf("index %d is %d, then %d", k, got[k], again)
		}
	}
}

func TestFreedValuesAreZero(t *testing.T) {
	s := New[value]()
	i := s.Alloc()
	*s.Mut(i) = value{1, 2, 3, 4}
	s.Free(i)
	if *s.At(i) != (value{}) {
		t.Errorf("a freed value is %+v", *s.At(i))
	}
	if again := s.Alloc(); again != i || *s.At(again) != (value{}) {
		t.Errorf("%d is %+v", again, *s.At(again))
	}
}

// TestPointersStayGoodWhileItGrows: growing adds pages and never copies one.
func TestPointersStayGoodWhileItGrows(t *testing.T) {
	s := New[value]()
	perPage := int(s.mask) + 1
	var pointers []*value
	for k := range 10 * perPage {
		i := s.Alloc()
		p := s.Mut(i)
		p.a = uint64(k)
		pointers = append(pointers, p)
	}
	for k, p := range pointers {
		if p.a != uint64(k) || p != s.At(uint32(k+1)) {
			t.Fatalf("value %d moved", k)
		}
	}
}

// TestPagesHoldPowersOfTwo: an index is split by shift and mask, and a page is never over its size.
func TestPagesHoldPowersOfTwo(t *testing.T) {
	check(t, New[[1]byte](), 1<<12)
	check(t, New[uint64](), 1<<9)
	check(t, New[value](), 1<<7)
	check(t, New[[260]byte](), 1<<3)
	check(t, New[[2<<10 + 1]byte](), 1)
	check(t, New[[4 << 10]byte](), 1)
}

func check[T any](t *testing.T, s *Slab[T], perPage int) {
	t.Helper()
	var v T
	if int(s.mask)+1 != perPage || 1<<s.shift != perPage || perPage*int(unsafe.Sizeof(v)) > pageBytes {
		t.Errorf("%T: %d a page, want %d", v, s.mask+1, perPage)
	}
	// Values on both sides of a page's end are different ones.
	for range 2*perPage + 1 {
		s.Alloc()
	}
	if len(s.pages) != (2*perPage+1)/perPage+1 {
		t.Errorf("%T: %d pages for %d values", v, len(s.pages), s.Len())
	}
	if s.At(uint32(perPage-1)) == s.At(uint32(perPage)) || s.At(uint32(perPage)) != &s.pages[1][0] {
		t.Errorf("%T: the second page does not begin at %d", v, perPage)
	}
}

func TestMisusePanics(t *testing.T) {
	type pointer struct{ _ *int }
	used := New[value]()
	for range 100 {
		used.Alloc()
	}
	used.Free(50)
	for name, misuse := range map[string]func(){
		"free of none":                 func() { used.Free(None) },
		"free of none, when empty":     func() { New[value]().Free(None) },
		"free of one never handed out": func() { used.Free(101) },
		"free of one far away":         func() { used.Free(1 << 31) },
		"free of one that is free":     func() { used.Free(50) },
		"a value far away":             func() { used.At(1 << 31) },
		"values of no size":            func() { New[struct{}]() },
		"values larger than a page":    func() { New[[4<<10 + 1]byte]() },
		"values with a pointer":        func() { New[pointer]() },
		"values with a string":         func() { New[[2]struct{ _ string }]() },
		"values with a slice":          func() { New[[]byte]() },
		"values with a map":            func() { New[map[int]int]() },
		"values with an interface":     func() { New[struct{ _ any }]() },
	} {
		t.Run(name, func(t *testing.T) {
			length := used.Len()
			defer func() {
				if recover() == nil {
					t.Error("nothing happened")
				}
				if used.Len() != length {
					t.Errorf("%d values, then %d", length, used.Len())
				}
			}()
			misuse()
		})
	}
}

// TestFreeInSteadyStateDoesNotAllocate: what is in use changes all the time, its number does not.
func TestFreeInSteadyStateDoesNotAllocate(t *testing.T) {
	s := New[value]()
	var ring [1000]uint32
	for k := range ring {
		ring[k] = s.Alloc()
	}
	s.Free(ring[0])
	ring[0] = s.Alloc()
	k := 0
	if n := testing.AllocsPerRun(10_000, func() {
		s.Free(ring[k%1000])
		ring[k%1000] = s.Alloc()
		k++
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkAllocFree(b *testing.B) {
	s := New[value]()
	var ring [1 << 16]uint32
	for k := range ring {
		ring[k] = s.Alloc()
	}
	k := 0
	for b.Loop() {
		i := &ring[k*31&(len(ring)-1)]
		s.Free(*i)
		*i = s.Alloc()
		k++
	}
}

func BenchmarkAt(b *testing.B) {
	s := New[value]()
	for range 1 << 16 {
		s.Alloc()
	}
	var sum uint64
	k := uint32(0)
	for b.Loop() {
		sum += s.At(1 + k&(1<<16-1)).a
		k += 31
	}
	_ = sum
}

func BenchmarkGrow(b *testing.B) {
	s := New[value]()
	for b.Loop() {
		s.Alloc()
	}
}
