package timingwheel

import "testing"

// check recomputes what the wheel keeps incrementally and holds its invariants against it.
func (w *Wheel) check(t *testing.T) {
	t.Helper()
	length := 0
	walk := func(h uint32, each func(n *node)) (count uint32) {
		prev := h
		for i := w.node(h).next; i != h; i = w.node(i).next {
			n := w.node(i)
			if n.prev != prev {
				t.Fatalf("list %d: node %d has prev %d, not %d", h, i, n.prev, prev)
			}
			prev = i
			count++
			length++
			if each != nil {
				each(n)
			}
		}
		if w.node(h).prev != prev {
			t.Fatalf("list %d: head has prev %d, not %d", h, w.node(h).prev, prev)
		}
		return count
	}
	walk(due, nil)
	walk(late, nil)
	bound := func(least int64) func(n *node) {
		return func(n *node) {
			if n.deadline() < least {
				t.Fatalf("parked deadline %d below its bound %d", n.deadline(), least)
			}
			if n.deadline()>>spanShift <= w.pos>>spanShift {
				t.Fatalf("parked deadline %d within reach of %d", n.deadline(), w.pos)
			}
		}
	}
	walk(scan, bound(w.scanMin))
	walk(parked, bound(w.parkedMin))
	for l := range levels {
		from := w.pos>>(l*slotBits) + 1
		for d := range int64(slots) {
			slot := from + d
			h := head(l, slot)
			count := walk(h, func(n *node) {
				if d == slots-1 || n.deadline() < slot<<(l*slotBits) {
					t.Fatalf("level %d slot %d at %d: deadline %d", l, slot, w.pos, n.deadline())
				}
				if l > 0 && n.list() != h {
					t.Fatalf("level %d slot %d: entry says list %d", l, slot, n.list())
				}
			})
			if set := w.occupied[l][slot&slotMask/64]>>(slot&63)&1 != 0; set != (count > 0) {
				t.Fatalf("level %d slot %d: %d entries, occupied %v", l, slot, count, set)
			}
			if l > 0 && w.counts[l][slot&slotMask] != count {
				t.Fatalf("level %d slot %d: %d entries, counted %d", l, slot, count, w.counts[l][slot&slotMask])
			}
		}
	}
	if length != w.length {
		t.Fatalf("%d entries, Len %d", length, w.length)
	}
}
