package lease

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// countNodes counts the nodes of a tree and holds each against its own count.
func countNodes(x *radix, t *tree) (int, error) {
	if (t.root == 0) != (t.height == 0) {
		return 0, fmt.Errorf("root %d, height %d", t.root, t.height)
	}
	if t.height == 0 {
		return 0, nil
	}
	total := 0
	var count func(at, level uint32) error
	count = func(at, level uint32) error {
		total++
		n, used := x.nodes.At(at), uint32(0)
		for _, child := range n.slot {
			if child == 0 {
				continue
			}
			used++
			if level > 0 {
				if err := count(child, level-1); err != nil {
					return err
				}
			}
		}
		if used != n.used || used == 0 {
			return fmt.Errorf("a node of level %d counts %d, has %d", level, n.used, used)
		}
		return nil
	}
	err := count(t.root, t.height-1)
	return total, err
}

// forest is a radix with several trees and what they must hold.
type forest struct {
	t     testing.TB
	x     radix
	trees []tree
	model []map[uint64]uint32
}

func newForest(t testing.TB, trees int) *forest {
	f := &forest{t: t, x: newRadix(), trees: make([]tree, trees)}
	for range trees {
		f.model = append(f.model, map[uint64]uint32{})
	}
	return f
}

func (f *forest) set(i int, offset uint64, entry uint32) {
	f.x.set(uint32(i), &f.trees[i], offset, entry)
	f.model[i][offset] = entry
}

func (f *forest) remove(i int, offset uint64) {
	f.x.remove(uint32(i), &f.trees[i], offset)
	delete(f.model[i], offset)
}

func (f *forest) get(i int, offset uint64) {
	f.t.Helper()
	if got, want := f.x.get(uint32(i), &f.trees[i], offset), f.model[i][offset]; got != want {
		f.t.Fatalf("tree %d has %d at %d, not %d", i, got, offset, want)
	}
}

// check walks everything.
func (f *forest) check() {
	f.t.Helper()
	nodes := 0
	for i := range f.trees {
		n, err := countNodes(&f.x, &f.trees[i])
		if err != nil {
			f.t.Fatalf("tree %d: %v", i, err)
		}
		nodes += n
		var offsets []uint64
		f.x.walk(&f.trees[i], func(offset uint64, entry uint32) bool {
			if f.model[i][offset] != entry {
				f.t.Fatalf("tree %d has %d at %d, not %d", i, entry, offset, f.model[i][offset])
			}
			offsets = append(offsets, offset)
			return true
		})
		if len(offsets) != len(f.model[i]) || !slices.IsSorted(offsets) {
			f.t.Fatalf("tree %d has %d offsets in order: %t, not %d", i, len(offsets), slices.IsSorted(offsets), len(f.model[i]))
		}
	}
	if nodes != f.x.nodes.Len() {
		f.t.Fatalf("%d nodes in the trees, %d in the slab", nodes, f.x.nodes.Len())
	}
}

// oddOffset is one of any magnitude, near an edge of a node more often than not.
func oddOffset(r *rand.Rand) uint64 {
	switch r.IntN(5) {
	case 0:
		return uint64(r.IntN(300))
	case 1:
		return 1<<40 + uint64(r.IntN(300))
	case 2:
		return 1<<(fanBits*(1+r.IntN(10))) + uint64(r.IntN(3)) - 1
	case 3:
		return ^uint64(0) - uint64(r.IntN(100))
	default:
		return r.Uint64() >> r.IntN(64)
	}
}

func TestRadixAgainstMap(t *testing.T) {
	r := newRand(t)
	for range 20 {
		f := newForest(t, 3)
		var present [3][]uint64
		for range 5000 {
			i := r.IntN(3)
			switch op := r.IntN(100); {
			case op < 40:
				offset := oddOffset(r)
				if f.model[i][offset] == 0 {
					f.set(i, offset, 1+r.Uint32N(1000))
					present[i] = append(present[i], offset)
				}
			case op < 75 && len(present[i]) > 0:
				k := r.IntN(len(present[i]))
				f.remove(i, present[i][k])
				present[i][k] = present[i][len(present[i])-1]
				present[i] = present[i][:len(present[i])-1]
			case op < 95:
				f.get(i, oddOffset(r))
				if len(present[i]) > 0 {
					f.get(i, present[i][r.IntN(len(present[i]))])
				}
			case op < 97:
				f.check()
			case op == 97:
				f.x.drop(&f.trees[i])
				clear(f.model[i])
				present[i] = nil
			}
		}
		// When everything is taken out again, every node comes back.
		for i := range present {
			for _, offset := range present[i] {
				f.remove(i, offset)
			}
		}
		f.check()
		if f.x.nodes.Len() != 0 {
			t.Fatalf("%d nodes hold nothing", f.x.nodes.Len())
		}
	}
}

// TestRadixDenseRun is the common life of a queue: offsets come at the end and go near the beginning.
func TestRadixDenseRun(t *testing.T) {
	r := newRand(t)
	for _, start := range []uint64{0, 4000, 1<<36 - 5000, 1 << 40} {
		f := newForest(t, 1)
		begin, end := start, start
		for range 20_000 {
			if end-begin < 1000 || r.IntN(2) == 0 {
				f.set(0, end, uint32(end)|1)
				end++
			} else {
				f.remove(0, begin)
				begin++
			}
			if r.IntN(100) == 0 {
				f.get(0, begin+r.Uint64N(end-begin))
				f.get(0, end)
			}
		}
		f.check()
		// A dense run costs little more than a 64th of a node for each.
		if most := int(end-begin)/64 + 2 + maxHeight; f.x.nodes.Len() > most {
			t.Fatalf("%d nodes for %d offsets from %d", f.x.nodes.Len(), end-begin, begin)
		}
		for ; begin < end; begin++ {
			f.remove(0, begin)
		}
		f.check()
		if f.x.nodes.Len() != 0 || f.trees[0] != (tree{}) {
			t.Fatalf("%d nodes left, tree %+v", f.x.nodes.Len(), f.trees[0])
		}
	}
}

// TestRadixStragglers: one that stays for days costs a node a level, not what lies between.
func TestRadixStragglers(t *testing.T) {
	f := newForest(t, 1)
	f.set(0, 5, 1)
	f.set(0, 1<<40, 2)
	f.check()
	if f.x.nodes.Len() > 2*7 {
		t.Fatalf("%d nodes for two offsets", f.x.nodes.Len())
	}
	f.remove(0, 5)
	f.check()
	f.get(0, 5)
	f.get(0, 1<<40)
	f.remove(0, 1<<40)
	if f.x.nodes.Len() != 0 {
		t.Fatalf("%d nodes left", f.x.nodes.Len())
	}
}

// TestRadixFirstOffsetIsHuge: an empty tree is made as high as it must be, without a path to offset 0 that
// nothing would ever give back.
func TestRadixFirstOffsetIsHuge(t *testing.T) {
	for _, offset := range []uint64{1 << 40, ^uint64(0), 64, 63} {
		f := newForest(t, 1)
		for range 3 {
			f.set(0, offset, 1)
			f.check()
			f.get(0, offset)
			f.get(0, offset-1)
			f.get(0, 0)
			f.remove(0, offset)
			if f.x.nodes.Len() != 0 {
				t.Fatalf("offset %d: %d nodes left", offset, f.x.nodes.Len())
			}
		}
	}
}

func TestRadixWalkStops(t *testing.T) {
	f := newForest(t, 1)
	for _, offset := range []uint64{1, 70, 5000, 1 << 30} {
		f.set(0, offset, 1)
	}
	var seen []uint64
	f.x.walk(&f.trees[0], func(offset uint64, _ uint32) bool {
		seen = append(seen, offset)
		return offset != 5000
	})
	if !slices.Equal(seen, []uint64{1, 70, 5000}) {
		t.Fatalf("walked %d", seen)
	}
}

// TestRadixRefusesTwoAtOneOffset: the caller has lost count, and going on would lose a message.
func TestRadixRefusesTwoAtOneOffset(t *testing.T) {
	f := newForest(t, 1)
	f.set(0, 3, 1)
	defer func() {
		if recover() == nil {
			t.Error("two entries at one offset")
		}
	}()
	f.set(0, 3, 2)
}

func BenchmarkRadixDense(b *testing.B) {
	b.Run("set+remove", func(b *testing.B) {
		x, t := newRadix(), tree{}
		at := uint64(1 << 30)
		for b.Loop() {
			x.set(1, &t, at, 1)
			if at >= 1<<30+10_000 {
				x.remove(1, &t, at-10_000)
			}
			at++
		}
	})
	b.Run("get", func(b *testing.B) {
		x, t := newRadix(), tree{}
		for i := range uint64(1 << 16) {
			x.set(1, &t, 1<<30+i, 1)
		}
		sum, i := uint32(0), uint64(0)
		for b.Loop() {
			sum += x.get(1, &t, 1<<30+i&(1<<16-1))
			i++
		}
		_ = sum
	})
	b.Run("get at random", func(b *testing.B) {
		x, t := newRadix(), tree{}
		for i := range uint64(1 << 16) {
			x.set(1, &t, 1<<30+i, 1)
		}
		sum, i := uint32(0), uint64(0)
		for b.Loop() {
			sum += x.get(1, &t, 1<<30+(i*40503)&(1<<16-1))
			i++
		}
		_ = sum
	})
}
