package dedup

import "github.com/leasemq/leasemq/slab"

// list is a doubly linked list of values of one slab, by index.
type list struct {
	head, tail uint32
}

// links is what a value holds that may be on a list. A value is on one list at most.
type links struct {
	prev, next uint32
}

func (l *links) linked() *links { return l }

// linked is a value that has links.
type linked[T any] interface {
	*T
	linked() *links
}

func pushBack[T any, P linked[T]](s *slab.Slab[T], l *list, i uint32) {
	e := P(s.Mut(i)).linked()
	e.prev, e.next = l.tail, 0
	if l.tail != 0 {
		P(s.Mut(l.tail)).linked().next = i
	} else {
		l.head = i
	}
	l.tail = i
}

func unlink[T any, P linked[T]](s *slab.Slab[T], l *list, i uint32) {
	e := P(s.Mut(i)).linked()
	if e.prev != 0 {
		P(s.Mut(e.prev)).linked().next = e.next
	} else {
		l.head = e.next
	}
	if e.next != 0 {
		P(s.Mut(e.next)).linked().prev = e.prev
	} else {
		l.tail = e.prev
	}
	e.prev, e.next = 0, 0
}
