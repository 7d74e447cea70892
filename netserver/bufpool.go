package netserver

import "math/bits"

// bufpool keeps byte slices for the connections of one loop, so that an idle connection holds none and a
// busy one does not allocate. Loop-only.
//
// Slices lie in classes by the power of two below their capacity, 4 KiB to 4 MiB; larger ones are left to
// the garbage collector. A class keeps 2 MiB counted by that power of two (or one slice), so that a pool
// that has seen every size keeps less than 48 MiB.
type bufpool struct {
	classes [poolMaxBits - poolMinBits + 1][][]byte
}

const (
	poolMinBits    = 12
	poolMaxBits    = 22
	poolClassBytes = 2 << 20
)

// get returns an empty slice with a capacity of at least n.
func (b *bufpool) get(n int) []byte {
	class := max(bits.Len(uint(max(n, 1)-1)), poolMinBits)
	if class > poolMaxBits {
		return make([]byte, 0, n)
	}
	list := &b.classes[class-poolMinBits]
	if k := len(*list) - 1; k >= 0 {
		s := (*list)[k]
		(*list)[k] = nil
		*list = (*list)[:k]
		return s
	}
	return make([]byte, 0, 1<<class)
}

// put takes s back; nobody may use it after that.
func (b *bufpool) put(s []byte) {
	class := bits.Len(uint(cap(s))) - 1
	if class < poolMinBits || class > poolMaxBits {
		return
	}
	if list := &b.classes[class-poolMinBits]; len(*list) < max(1, poolClassBytes>>class) {
		*list = append(*list, s[:0])
	}
}
