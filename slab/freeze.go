package slab

// sparePages is how many pages of a slab are kept from one freeze to the next, for the copies: memory that was
// touched before is copied to several times as fast as memory that the system has to find first.
const sparePages = 1024

// Freeze gives a view of the slab as it is now: another goroutine may read it (At, Used, Len, End) while the owner goes on
// changing the slab, until Thaw. There is one view at a time. The view cannot be changed.
//
// It costs a copy of the page table and of a bit for each value; each page is copied once, when it is first changed.
func (s *Slab[T]) Freeze() *Slab[T] {
	if s.frozen {
		panic("slab: frozen twice")
	}
	v := &Slab[T]{
		shift: s.shift, mask: s.mask, next: s.next, live: s.live, frozen: true,
		pages: append([][]T(nil), s.pages...), used: append([]uint64(nil), s.used...),
	}
	if cap(s.shared) < len(s.pages) {
		s.shared = make([]bool, len(s.pages))
	}
	s.shared = s.shared[:len(s.pages)]
	for i := range s.shared {
		s.shared[i] = true
	}
	s.view, s.frozen, s.copied = v, true, 0
	return v
}

// Thaw ends the view, which nobody reads any more. Without one it does nothing.
func (s *Slab[T]) Thaw() {
	v := s.view
	if v == nil {
		return
	}
	s.view, s.frozen = nil, false
	for i, shared := range s.shared {
		if !shared && len(s.spare) < sparePages {
			s.spare = append(s.spare, v.pages[i])
		}
	}
	s.shared = s.shared[:0]
	v.pages = nil // whoever reads it still finds out
}

// Copied is how many pages were copied since the newest Freeze.
func (s *Slab[T]) Copied() int { return s.copied }

// unshare gives the slab a page of its own in place of one that the view reads, if that is so.
func (s *Slab[T]) unshare(page uint32) {
	if s.view == nil {
		panic("slab: change of a view")
	}
	if int(page) >= len(s.shared) || !s.shared[page] {
		return
	}
	var own []T
	if n := len(s.spare); n > 0 {
		own = s.spare[n-1]
		s.spare = s.spare[:n-1]
	} else {
		own = make([]T, s.mask+1)
	}
	copy(own, s.pages[page])
	s.pages[page] = own
	s.shared[page] = false
	s.copied++
}
