package consumequeue

// queueList holds the queues with an open tail, those that were appended to longest ago first. The order is as exact as
// Index.clock, so that a busy queue is moved a few times a second and not with every append. The section owns it.
type queueList struct {
	first, last *Queue
}

func (l *queueList) append(q *Queue) {
	q.prev, q.next = l.last, nil
	if l.last != nil {
		l.last.next = q
	} else {
		l.first = q
	}
	l.last = q
}

func (l *queueList) remove(q *Queue) {
	if q.prev != nil {
		q.prev.next = q.next
	} else {
		l.first = q.next
	}
	if q.next != nil {
		q.next.prev = q.prev
	} else {
		l.last = q.prev
	}
	q.prev, q.next = nil, nil
}
