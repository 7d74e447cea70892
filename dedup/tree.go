package dedup

import (
	"math/bits"

	"github.com/leasemq/leasemq/slab"
)

// tree is the chunks of one producer by their number: a tree of 64-way nodes that is never higher than its chunks are
// apart. It holds the numbers n with n >> (6 * height) == prefix, so a producer with a single chunk has no node
// at all, wherever its sequences are; and a root node has two children at least.
//
// Its shape is derived from the numbers in it. A ring would be smaller for a full window, but would have to grow with
// each producer, and could not hold for a while what a leap of the sequences has left behind.
type tree struct {
	prefix uint64
	root   uint32 // a chunk at height 0, else a node; 0: the tree is empty
	height uint32
}

const (
	fanBits   = 6
	fanMask   = 1<<fanBits - 1
	maxHeight = 10 // 60 bits: the number of a chunk is a sequence without its lowest four
)

type node struct {
	slot [1 << fanBits]uint32
	used uint64 // a bit for each slot that is not zero
}

// forest is the nodes of all trees.
type forest struct {
	nodes *slab.Slab[node]
}

func newForest() forest { return forest{nodes: slab.New[node]()} }

func (n *node) put(i uint64, v uint32) {
	n.slot[i] = v
	n.used |= 1 << i
}

// get is the chunk of a number, or zero.
func (f *forest) get(t *tree, number uint64) uint32 {
	if t.root == 0 || number>>(fanBits*t.height) != t.prefix {
		return 0
	}
	i := t.root
	for level := t.height; level > 0; {
		level--
		if i = f.nodes.At(i).slot[number>>(fanBits*level)&fanMask]; i == 0 {
			return 0
		}
	}
	return i
}

// set adds the chunk of a number that the tree does not hold.
func (f *forest) set(t *tree, number uint64, chunk uint32) {
	if t.root == 0 {
		*t = tree{prefix: number, root: chunk}
		return
	}
	for number>>(fanBits*t.height) != t.prefix {
		root := f.nodes.Alloc()
		f.nodes.Mut(root).put(t.prefix&fanMask, t.root)
		t.prefix, t.root, t.height = t.prefix>>fanBits, root, t.height+1
	}
	i := t.root
	for level := t.height - 1; level > 0; level-- {
		at := number >> (fanBits * level) & fanMask
		child := f.nodes.At(i).slot[at]
		if child == 0 {
			child = f.nodes.Alloc()
			f.nodes.Mut(i).put(at, child)
		}
		i = child
	}
	f.nodes.Mut(i).put(number&fanMask, chunk)
}

// removeLowest takes the chunk with the lowest number out of a tree that is not empty. next is the lowest number then,
// if there is one.
func (f *forest) removeLowest(t *tree) (chunk uint32, next uint64) {
	if t.height == 0 {
		chunk, *t = t.root, tree{}
		return chunk, 0
	}
	var path [maxHeight]uint32 // by level
	i := t.root
	for level := t.height; level > 0; {
		level--
		path[level] = i
		n := f.nodes.At(i)
		i = n.slot[bits.TrailingZeros64(n.used)]
	}
	chunk = i
	for level := 0; ; level++ {
		n := f.nodes.Mut(path[level])
		n.slot[bits.TrailingZeros64(n.used)] = 0
		n.used &= n.used - 1
		if n.used != 0 {
			break
		}
		f.nodes.Free(path[level]) // never the root: it has another child
	}
	for t.height > 0 {
		n := f.nodes.At(t.root)
		if n.used&(n.used-1) != 0 {
			break
		}
		at := bits.TrailingZeros64(n.used)
		child := n.slot[at]
		f.nodes.Free(t.root)
		t.prefix, t.root, t.height = t.prefix<<fanBits|uint64(at), child, t.height-1
	}
	return chunk, f.lowestNumber(t)
}

// lowestNumber is the lowest number of a tree that is not empty.
func (f *forest) lowestNumber(t *tree) uint64 {
	number, i := t.prefix, t.root
	for range t.height {
		n := f.nodes.At(i)
		at := bits.TrailingZeros64(n.used)
		number, i = number<<fanBits|uint64(at), n.slot[at]
	}
	return number
}

// lowest is the chunk with the lowest number, or zero.
func (f *forest) lowest(t *tree) uint32 {
	i := t.root
	for range t.height {
		n := f.nodes.At(i)
		i = n.slot[bits.TrailingZeros64(n.used)]
	}
	return i
}

// highest is the chunk with the highest number, or zero.
func (f *forest) highest(t *tree) uint32 {
	i := t.root
	for range t.height {
		n := f.nodes.At(i)
		i = n.slot[bits.Len64(n.used)-1]
	}
	return i
}

// walk calls visit with the chunks by number, and tells how many nodes the tree has.
func (f *forest) walk(t *tree, visit func(number uint64, chunk uint32)) (nodes int) {
	if t.root == 0 {
		return 0
	}
	return f.walkNode(t.root, t.height, t.prefix, visit)
}

func (f *forest) walkNode(i, height uint32, prefix uint64, visit func(number uint64, chunk uint32)) (nodes int) {
	if height == 0 {
		visit(prefix, i)
		return 0
	}
	nodes = 1
	for at, child := range f.nodes.At(i).slot {
		if child != 0 {
			nodes += f.walkNode(child, height-1, prefix<<fanBits|uint64(at), visit)
		}
	}
	return nodes
}
