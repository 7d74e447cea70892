package slab

import "testing"

// TestAViewStaysAsItWas: whatever is done to a slab that was frozen, its view shows what it held then, and the slab
// what it holds now.
func TestAViewStaysAsItWas(t *testing.T) {
	r := newRand(t)
	s := New[value]()
	model := map[uint32]value{}
	var live []uint32
	change := func(n int) {
		for range n {
			switch {
			case len(live) == 0 || r.IntN(100) < 55:
				i := s.Alloc()
				v := value{r.Uint64(), r.Uint64(), r.Uint64(), r.Uint32()}
				*s.Mut(i), model[i] = v, v
				live = append(live, i)
			case r.IntN(2) == 0:
				i := live[r.IntN(len(live))]
				s.Mut(i).a++
				v := model[i]
				v.a++
				model[i] = v
			default:
				k := r.IntN(len(live))
				i := live[k]
				live[k] = live[len(live)-1]
				live = live[:len(live)-1]
				s.Free(i)
				delete(model, i)
			}
		}
	}
	check := func(round int, s *Slab[value], model map[uint32]value) {
		t.Helper()
		n := 0
		for i := uint32(0); i < s.End(); i++ {
			if !s.Used(i) {
				continue
			}
			n++
			if v, ok := model[i]; !ok || *s.At(i) != v {
				t.Fatalf("round %d: %d holds %+v, want %+v (%t)", round, i, *s.At(i), v, ok)
			}
		}
		if n != len(model) || s.Len() != n {
			t.Fatalf("round %d: %d values, %d counted, want %d", round, n, s.Len(), len(model))
		}
	}
	for round := range 40 {
		change(r.IntN(8000))
		was := map[uint32]value{}
		for i, v := range model {
			was[i] = v
		}
		view := s.Freeze()
		change(r.IntN(8000))
		check(round, view, was)
		check(round, s, model)
		s.Thaw()
		check(round, s, model)
	}
}

func TestOnlyWhatIsChangedIsCopied(t *testing.T) {
	s := New[value]()
	for range 100_000 {
		s.Alloc()
	}
	s.Freeze()
	for range 3 {
		s.Mut(1).a++
		s.Mut(2).b++
		s.Mut(99_000).a++
	}
	if s.Copied() != 2 {
		t.Fatalf("%d pages were copied for changes on 2", s.Copied())
	}
	s.Thaw()
	s.Mut(50_000).a++
	if s.Copied() != 2 {
		t.Fatal("a page was copied after the view had ended")
	}
}

func TestAViewCannotBeChanged(t *testing.T) {
	s := New[value]()
	i := s.Alloc()
	v := s.Freeze()
	for what, change := range map[string]func(){
		"alloc": func() { v.Alloc() }, "mut": func() { v.Mut(i) }, "free": func() { v.Free(i) }, "freeze": func() { v.Freeze() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: a view was changed", what)
				}
			}()
			change()
		}()
	}
}

// BenchmarkMut is what a change costs: of a slab that is not frozen, of one that is, and of pages that must be copied; and
// what it costs to freeze a million values.
func BenchmarkMut(b *testing.B) {
	fill := func() *Slab[value] {
		s := New[value]()
		for range 1 << 20 {
			s.Alloc()
		}
		return s
	}
	b.Run("thawed", func(b *testing.B) {
		s := fill()
		for i := range uint32(b.N) {
			s.Mut(1+i*7919&(1<<20-1)).a++
		}
	})
	b.Run("frozen", func(b *testing.B) {
		s := fill()
		s.Freeze()
		for i := range uint32(1 << 20) {
			s.Mut(1+i).a++
		}
		b.ResetTimer()
		for i := range uint32(b.N) {
			s.Mut(1+i*7919&(1<<20-1)).a++
		}
	})
	b.Run("copied", func(b *testing.B) {
		s := fill()
		perPage := s.mask + 1
		s.Freeze()
		i := uint32(0)
		for b.Loop() {
			if i += perPage; i >= s.End() {
				b.StopTimer()
				s.Thaw()
				s.Freeze()
				i = 1
				b.StartTimer()
			}
			s.Mut(i).a++
		}
	})
	b.Run("freeze", func(b *testing.B) {
		s := fill()
		for b.Loop() {
			s.Freeze()
			s.Mut(1).a++
			s.Thaw()
		}
	})
}
