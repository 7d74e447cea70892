package lease

import "github.com/leasemq/leasemq/slab"

// radix maps queue offsets to entries: a tree of 64-way nodes from one slab, one tree a cursor.
//
// A dense run of offsets costs 4.2 bytes each, a single straggler one node a level; nothing is ever
// rehashed, so no insert stalls. A tree of height h covers offsets below 64^h. Entry 0 means absent, so
// a zero slot is an empty one at every level.
type radix struct {
	nodes *slab.Slab[node]
	// The leaf touched last, because callers walk runs of neighbours. Zero leaf: none.
	lastTree uint32
	lastKey  uint64
	lastLeaf uint32
}

type node struct {
	slot [64]uint32 // children, or entries in a leaf
	used uint32
}

// tree is where a cursor keeps its radix. id tells trees apart in the cache of radix; it is the index of
// the cursor.
type tree struct {
	root   uint32
	height uint32
}

const (
	fanBits   = 6
	fanMask   = 1<<fanBits - 1
	maxHeight = 11 // 66 bits
)

func newRadix() radix { return radix{nodes: slab.New[node]()} }

// covers tells whether offset lies below 64^height.
func covers(height uint32, offset uint64) bool {
	return height == maxHeight || offset>>(fanBits*height) == 0
}

// get is the entry at offset, or zero.
func (x *radix) get(id uint32, t *tree, offset uint64) uint32 {
	key := offset >> fanBits
	if x.lastLeaf != 0 && x.lastTree == id && x.lastKey == key {
		return x.nodes.At(x.lastLeaf).slot[offset&fanMask]
	}
	if t.height == 0 || !covers(t.height, offset) {
		return 0
	}
	n := t.root
	for level := t.height - 1; level > 0; level-- {
		if n = x.nodes.At(n).slot[offset>>(fanBits*level)&fanMask]; n == 0 {
			return 0
		}
	}
	x.lastTree, x.lastKey, x.lastLeaf = id, key, n
	return x.nodes.At(n).slot[offset&fanMask]
}

// set puts entry (not zero) at offset, which must be empty.
func (x *radix) set(id uint32, t *tree, offset uint64, entry uint32) {
	key := offset >> fanBits
	leaf := x.lastLeaf
	if leaf == 0 || x.lastTree != id || x.lastKey != key {
		leaf = x.grow(t, offset)
		x.lastTree, x.lastKey, x.lastLeaf = id, key, leaf
	}
	n := x.nodes.Mut(leaf)
	if n.slot[offset&fanMask] != 0 {
		panic("lease: two entries at one offset")
	}
	n.slot[offset&fanMask] = entry
	n.used++
}

// grow makes the path to the leaf of offset and returns the leaf.
func (x *radix) grow(t *tree, offset uint64) uint32 {
	if t.height == 0 { // at once as high as it must be: no node is ever left empty
		for t.height = 1; !covers(t.height, offset); {
			t.height++
		}
		t.root = x.nodes.Alloc()
	}
	for !covers(t.height, offset) {
		up := x.nodes.Alloc()
		n := x.nodes.Mut(up)
		n.slot[0], n.used = t.root, 1
		t.root = up
		t.height++
	}
	at := t.root
	for level := t.height - 1; level > 0; level-- {
		i := offset >> (fanBits * level) & fanMask
		child := x.nodes.At(at).slot[i]
		if child == 0 {
			child = x.nodes.Alloc()
			n := x.nodes.Mut(at)
			n.slot[i] = child
			n.used++
		}
		at = child
	}
	return at
}

// remove empties offset, which must hold an entry, and gives back the nodes that are left empty.
func (x *radix) remove(id uint32, t *tree, offset uint64) {
	if x.lastLeaf != 0 && x.lastTree == id && x.lastKey == offset>>fanBits {
		if n := x.nodes.Mut(x.lastLeaf); n.used > 1 {
			n.slot[offset&fanMask] = 0
			n.used--
			return
		}
	}
	var path [maxHeight]uint32
	at := t.root
	for level := t.height - 1; ; level-- {
		path[level] = at
		if level == 0 {
			break
		}
		at = x.nodes.At(at).slot[offset>>(fanBits*level)&fanMask]
	}
	for level := uint32(0); level < t.height; level++ {
		n := x.nodes.Mut(path[level])
		n.slot[offset>>(fanBits*level)&fanMask] = 0
		if n.used--; n.used > 0 {
			return
		}
		if path[level] == x.lastLeaf {
			x.lastLeaf = 0
		}
		x.nodes.Free(path[level])
	}
	*t = tree{}
}

// walk calls visit for every entry, in order of offset, until it returns false.
func (x *radix) walk(t *tree, visit func(offset uint64, entry uint32) bool) {
	if t.height > 0 {
		x.walkNode(t.root, t.height-1, 0, visit)
	}
}

// walkNode is walk below one node. Its depth is at most maxHeight.
func (x *radix) walkNode(at, level uint32, base uint64, visit func(uint64, uint32) bool) bool {
	n := x.nodes.At(at)
	for i, child := range n.slot {
		if child == 0 {
			continue
		}
		offset := base | uint64(i)<<(fanBits*level)
		if level == 0 {
			if !visit(offset, child) {
				return false
			}
		} else if !x.walkNode(child, level-1, offset, visit) {
			return false
		}
	}
	return true
}

// drop gives back every node of t.
func (x *radix) drop(t *tree) {
	if t.height > 0 {
		x.dropNode(t.root, t.height-1)
	}
	x.lastLeaf = 0
	*t = tree{}
}

func (x *radix) dropNode(at, level uint32) {
	if level > 0 {
		for _, child := range x.nodes.At(at).slot {
			if child != 0 {
				x.dropNode(child, level-1)
			}
		}
	}
	x.nodes.Free(at)
}
