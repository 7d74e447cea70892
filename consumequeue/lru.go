package consumequeue

import "container/list"

// lru keeps the most recently used values. It is not safe for concurrent use.
type lru[K comparable, V any] struct {
	max   int
	byKey map[K]*list.Element
	order list.List // of lruItem, most recently used first
}

type lruItem[K comparable, V any] struct {
	key   K
	value V
}

func newLRU[K comparable, V any](max int) *lru[K, V] {
	return &lru[K, V]{max: max, byKey: map[K]*list.Element{}}
}

func (l *lru[K, V]) get(k K) (v V, ok bool) {
	e := l.byKey[k]
	if e == nil {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*lruItem[K, V]).value, true
}

// put adds a value that is not there, and gives the one that has to go for it, if any.
func (l *lru[K, V]) put(k K, v V) (gone V, over bool) {
	l.byKey[k] = l.order.PushFront(&lruItem[K, V]{k, v})
	if l.order.Len() <= l.max {
		return gone, false
	}
	return l.remove(l.order.Back().Value.(*lruItem[K, V]).key)
}

func (l *lru[K, V]) remove(k K) (v V, ok bool) {
	e := l.byKey[k]
	if e == nil {
		return v, false
	}
	delete(l.byKey, k)
	return l.order.Remove(e).(*lruItem[K, V]).value, true
}

// removeIf removes what match says, and gives it to gone.
func (l *lru[K, V]) removeIf(match func(K) bool, gone func(V)) {
	for k := range l.byKey {
		if match(k) {
			v, _ := l.remove(k)
			gone(v)
		}
	}
}
