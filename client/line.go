package client

import (
	"context"
	"sync"
)

// line is callers that wait for room, first come first served. It is guarded by the lock of the room, whose owner
// lets them in as far as there is some.
type line []*lineWaiter

type lineWaiter struct {
	size int
	room chan struct{} // closed when the room is the waiter's
}

// wait joins the end of l and gives up mu while it waits. False: ctx ended before there was room.
func (l *line) wait(ctx context.Context, mu *sync.Mutex, size int) bool {
	w := &lineWaiter{size: size, room: make(chan struct{})}
	*l = append(*l, w)
	mu.Unlock()
	select {
	case <-w.room:
		mu.Lock()
		return true
	case <-ctx.Done():
	}
	mu.Lock()
	for i, other := range *l {
		if other == w {
			*l = append((*l)[:i], (*l)[i+1:]...)
			return false
		}
	}
	return true // the room came first
}

// next is what the first in line asks for.
func (l line) next() (size int, ok bool) {
	if len(l) == 0 {
		return 0, false
	}
	return l[0].size, true
}

// letIn gives the first in line its room.
func (l *line) letIn() {
	close((*l)[0].room)
	*l = (*l)[1:]
}
