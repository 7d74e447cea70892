// Package slab holds the broker's state: values without pointers, in pages of 4 KiB, named by index.
//
// Nothing in a page is a pointer, so the garbage collector has nothing to scan however many leases
// there are, and growing never copies what is there. Every store goes through Mut, which copies a page
// before its first change after the slab was frozen (freeze.go): so a snapshot can be written from a
// view of the state while the state goes on.
//
// A Slab is not safe for concurrent use: the broker's sequencing section owns it.
package slab

import (
	"fmt"
	"math/bits"
	"reflect"
	"unsafe"
)

// pageBytes is the most that a page holds. It is what a change may have to copy while there is a view, so it is small: a hold
// of the section that touches a thousand values in as many pages copies them in 2 to 3 ms.
const pageBytes = 4 << 10

// None is the index of nothing: slabs never hand it out.
const None uint32 = 0

// Slab is a growing array of T with a free list. T must not contain pointers.
type Slab[T any] struct {
	pages [][]T
	shift uint32
	mask  uint32
	next  uint32   // first index never handed out
	freed []uint32 // handed back, last in first out
	used  []uint64 // a bit for each index that is handed out
	live  uint32

	// See freeze.go.
	frozen bool     // Mut has to look: there is a view, or this is one
	view   *Slab[T] // nil: there is none
	shared []bool   // by page: the view reads it, so it is copied before it is changed
	spare  [][]T    // pages for copies
	copied int
}

// New makes an empty slab. Index 0 is reserved.
func New[T any]() *Slab[T] {
	var t T
	size := unsafe.Sizeof(t)
	if size == 0 || size > pageBytes {
		panic(fmt.Sprintf("slab: values of %d bytes", size))
	}
	if hasPointers(reflect.TypeFor[T]()) {
		panic(fmt.Sprintf("slab: %T contains pointers", t))
	}
	perPage := uint32(pageBytes / size)
	shift := uint32(bits.Len32(perPage) - 1) // the largest power of two that fits
	return &Slab[T]{shift: shift, mask: 1<<shift - 1, next: 1, used: make([]uint64, 1)}
}

// At is the value at i, to be read only.
func (s *Slab[T]) At(i uint32) *T {
	return &s.pages[i>>s.shift][i&s.mask]
}

// Mut is the value at i, to be changed. The pointer is good until the section is left; a pointer from At may
// no longer be the value afterwards.
func (s *Slab[T]) Mut(i uint32) *T {
	page := i >> s.shift
	if s.frozen {
		s.unshare(page)
	}
	return &s.pages[page][i&s.mask]
}

// Alloc hands out a zeroed value. Indexes are reused, the one that came back last first: the same calls
// give the same indexes, so that a replay numbers its state as the live run did.
func (s *Slab[T]) Alloc() uint32 {
	if s.frozen && s.view == nil {
		panic("slab: change of a view")
	}
	s.live++
	if n := len(s.freed); n > 0 {
		i := s.freed[n-1]
		s.freed = s.freed[:n-1]
		s.used[i/64] |= 1 << (i % 64)
		return i
	}
	i := s.next
	s.next++
	for int(i>>s.shift) >= len(s.pages) { // the first value of a slab may lie on its second page
		s.pages = append(s.pages, make([]T, s.mask+1))
	}
	if int(i/64) == len(s.used) {
		s.used = append(s.used, 0)
	}
	s.used[i/64] |= 1 << (i % 64)
	return i
}

// Free takes the value at i back and zeroes it. It panics when i is not handed out: two owners of one
// value would be state that no record can explain.
func (s *Slab[T]) Free(i uint32) {
	if !s.Used(i) {
		panic(fmt.Sprintf("slab: free of %d, which is not handed out", i))
	}
	s.used[i/64] &^= 1 << (i % 64)
	var zero T
	*s.Mut(i) = zero
	s.freed = append(s.freed, i)
	s.live--
}

// Used tells whether i is handed out.
func (s *Slab[T]) Used(i uint32) bool {
	return i < s.next && s.used[i/64]&(1<<(i%64)) != 0
}

// Len is the number of values handed out and not taken back.
func (s *Slab[T]) Len() int { return int(s.live) }

// End is one more than the highest index ever handed out.
func (s *Slab[T]) End() uint32 { return s.next }

// hasPointers tells whether values of type t hold anything that the garbage collector would have to look at.
func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return t.Len() > 0 && hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Chan, reflect.Func, reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice, reflect.String, reflect.UnsafePointer:
		return true
	}
	return false
}
