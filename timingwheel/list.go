package timingwheel

import "fmt"

// Lists are circular and doubly linked through node indexes. Each list has a head, which is itself a node; the heads
// have the first indexes, and id n of the caller has index n + listSpace.
const (
	due       uint32 = 1 // deadline at or before pos, to be fired by the running Advance
	late      uint32 = 2 // deadline was past when scheduled, to be fired by the next Advance
	scan      uint32 = 3 // parked entries that are being looked through
	parked    uint32 = 4 // deadlines beyond the levels
	firstSlot uint32 = 8 // slot s of level l is list firstSlot + l*slots + s

	listCount = firstSlot + levels*slots
	listBits  = 10
	listSpace = 1 << listBits

	// counted is the first list whose length is kept. A list is counted only if its entries never change lists
	// by splice, which leaves the list's name in the entries stale.
	counted = firstSlot + slots

	maxID = 1<<32 - 1 - listSpace
)

const _ = uint(listSpace - listCount) // the names of all lists fit into listBits

const (
	chunkShift = 12
	chunkMask  = 1<<chunkShift - 1
)

// chunk is 64 KiB of nodes.
type chunk [1 << chunkShift]node

// node is the link of one id. It is scheduled if next is not 0.
type node struct {
	next, prev uint32
	when       int64 // deadline << listBits | the list that it was put in
}

func (n *node) deadline() int64 { return n.when >> listBits }

func (n *node) setDeadline(d int64) { n.when = d<<listBits | n.when&(listSpace-1) }

func (n *node) list() uint32 { return uint32(n.when & (listSpace - 1)) }

func (w *Wheel) node(i uint32) *node { return &w.nodes[i>>chunkShift][i&chunkMask] }

// index is where the node of id lies, made if need be.
func (w *Wheel) index(id uint32) uint32 {
	if id == 0 || id > maxID {
		panic(fmt.Sprintf("timingwheel: id %d", id))
	}
	i := id + listSpace
	c := int(i >> chunkShift)
	for c >= len(w.nodes) {
		w.nodes = append(w.nodes, nil)
	}
	if w.nodes[c] == nil {
		w.nodes[c] = new(chunk)
	}
	return i
}

// find is the node of id, nil if there never was one.
func (w *Wheel) find(id uint32) *node {
	if id == 0 || id > maxID {
		return nil
	}
	i := id + listSpace
	c := int(i >> chunkShift)
	if c >= len(w.nodes) || w.nodes[c] == nil {
		return nil
	}
	return &w.nodes[c][i&chunkMask]
}

func (w *Wheel) empty(h uint32) bool { return w.node(h).next == h }

// link appends node i to list h.
func (w *Wheel) link(i uint32, n *node, h uint32, deadline int64) {
	hd := w.node(h)
	n.when = deadline<<listBits | int64(h)
	n.next, n.prev = h, hd.prev
	w.node(hd.prev).next = i
	hd.prev = i
	if h >= counted {
		w.counts[(h-firstSlot)/slots][(h-firstSlot)%slots]++
	}
}

// unlink takes n out of whichever list it is in.
func (w *Wheel) unlink(n *node) {
	w.node(n.prev).next = n.next
	w.node(n.next).prev = n.prev
	if h := n.next; h == n.prev && h >= firstSlot {
		// Only the head is left.
		w.occupied[(h-firstSlot)/slots].clear((h - firstSlot) % slots)
	}
	if h := n.list(); h >= counted {
		w.counts[(h-firstSlot)/slots][(h-firstSlot)%slots]--
	}
	n.next = 0
}

// splice moves all of list from to the end of list to. REQUIRES: from is not a counted list.
func (w *Wheel) splice(from, to uint32) {
	f, t := w.node(from), w.node(to)
	if f.next == from {
		return
	}
	w.node(t.prev).next = f.next
	w.node(f.next).prev = t.prev
	w.node(f.prev).next = to
	t.prev = f.prev
	f.next, f.prev = from, from
}
