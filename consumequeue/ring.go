package consumequeue

// ring holds the idle blocks and chooses which of them to give back, by CLOCK: a hand goes round, passes once over
// those looked up since it came by last, and takes the first other. The section owns it.
type ring struct {
	hand   *Block
	length int
}

// mostPasses bounds the work of one choice. A hand that met only blocks in use for so long takes the next.
const mostPasses = 16

// insert puts b where the hand comes last.
func (r *ring) insert(b *Block) {
	if r.hand == nil {
		b.prev, b.next = b, b
		r.hand = b
	} else {
		b.prev, b.next = r.hand.prev, r.hand
		b.prev.next, b.next.prev = b, b
	}
	b.inRing = true
	r.length++
}

func (r *ring) remove(b *Block) {
	if b.next == b {
		r.hand = nil
	} else {
		b.prev.next, b.next.prev = b.next, b.prev
		if r.hand == b {
			r.hand = b.next
		}
	}
	b.prev, b.next = nil, nil
	b.inRing = false
	r.length--
}

// take removes the block that is missed least.
func (r *ring) take() *Block {
	for range mostPasses {
		if !r.hand.used || r.hand.queue.dropped.Load() {
			break
		}
		r.hand.used = false
		r.hand = r.hand.next
	}
	b := r.hand
	r.remove(b)
	return b
}
