package netserver

// inbound holds bytes that a connection has sent and that are not parsed yet: half a frame, or frames that
// had to wait. Loop-only; the zero value is empty and holds no memory.
//
// Invariants:
//
//  1. Bytes handed out by bytes stay as they are until compact or release, whatever is added: adding
//     appends behind them or moves to a new array and leaves the old one to the garbage collector. (The
//     frames of a batch point into it until their Flush.)
//  2. Room is taken for bytes that have arrived, never for a length that a header merely claims.
type inbound struct {
	buf   []byte
	start int // of the first unparsed byte in buf
}

func (in *inbound) len() int      { return len(in.buf) - in.start }
func (in *inbound) bytes() []byte { return in.buf[in.start:] }

// skip marks the first n bytes as parsed.
func (in *inbound) skip(n int) { in.start += n }

// add appends b.
func (in *inbound) add(b []byte, pool *bufpool) {
	if need := len(in.buf) + len(b); need > cap(in.buf) {
		grown := pool.get(max(in.len()+len(b), 2*in.len()))
		grown = append(grown, in.bytes()...)
		in.buf, in.start = grown, 0
	}
	in.buf = append(in.buf, b...)
}

// fill moves bytes from the front of b until n bytes are held or b is empty, and returns what is left of b.
func (in *inbound) fill(n int, b []byte, pool *bufpool) []byte {
	if k := min(n-in.len(), len(b)); k > 0 {
		in.add(b[:k], pool)
		b = b[k:]
	}
	return b
}

// compact gives back what is parsed: the whole buffer when nothing else is held, else the room for it, but
// only when that is at least half (so that a frame at a time out of many does not move the others each time).
func (in *inbound) compact(pool *bufpool) {
	switch {
	case in.len() == 0:
		in.release(pool)
	case in.start >= in.len():
		in.buf = in.buf[:copy(in.buf, in.bytes())]
		in.start = 0
	}
}

// release drops everything.
func (in *inbound) release(pool *bufpool) {
	if in.buf != nil {
		pool.put(in.buf)
	}
	*in = inbound{}
}
