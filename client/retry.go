package client

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// A SEND of numbered messages may be sent again: the broker knows the numbers and answers with what it did the first
// time. So the link does that by itself, with the bytes as they were, until it has an answer or call.retryFor is over.
//
// What has come to nothing waits in link.parked for the next connection. A broker that is draining or going down
// answers what comes behind with the same refusal, or not at all; so at the first such answer
// everything that may be sent again is held back with it, and leaves in its old order (call.turn) when there is a new
// connection. Thus nothing of a lane overtakes what was taken before it: each connection carries a lane's
// unanswered requests from the first one on.
//
// An attempt leaves doubt when the broker may have carried it out: its connection was lost, or the answer was
// STORE_FAILED or INTERNAL. From then on only OK and the word on a single message are certain; a refusal of the
// whole request says what became of this attempt and nothing of the one before. DRAINING leaves no doubt.

// leastRetryTick is the shortest time between two looks at calls whose time may be over, however many there are.
const leastRetryTick = 100 * time.Millisecond

// retries tells whether x may be sent again at now.
func (x *call) retries(now time.Time) bool { return x.retryFor > 0 && now.Before(x.retryUntil) }

// park makes x wait for the next connection. The caller holds mu.
func (l *link) park(x *call) {
	x.state = callParked
	l.parked.pushBack(x)
	if x.sent {
		l.lookAt(x.retryUntil)
	}
}

// hold parks everything that may be sent again until there is another connection. The caller holds mu.
func (l *link) hold() {
	if l.holding {
		return
	}
	l.holding = true
	for x, next := l.ordinary.first, (*call)(nil); x != nil; x = next {
		next = x.next
		if x.retryFor > 0 {
			l.ordinary.remove(x)
			l.park(x)
		}
	}
}

// unpark puts what was parked before everything else, in its old order. The caller holds mu.
func (l *link) unpark() {
	l.holding = false
	var parked []*call
	for !l.parked.empty() {
		x := l.parked.first
		l.parked.remove(x)
		parked = append(parked, x)
	}
	slices.SortFunc(parked, func(a, b *call) int { return cmp.Compare(b.turn, a.turn) })
	for _, x := range parked {
		x.state = callQueued
		l.ordinary.pushFront(x)
	}
}

// answered finishes x, or parks it when it is to be sent again.
func (l *link) answered(x *call) {
	if x.retryFor > 0 && x.err != nil {
		if l.again(x) {
			return
		}
		x.err = x.withDoubt(x.err)
	}
	l.finish(x)
}

// again parks x if its answer is one of a broker that is going down.
func (l *link) again(x *call) bool {
	doubt := false
	switch x.status {
	case protocol.StoreFailed, protocol.Internal:
		doubt = true
	case protocol.Draining:
	default:
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.abandoned || x.left || !x.retries(time.Now()) {
		return false
	}
	x.doubt = x.doubt || doubt
	x.setback, x.err = x.err, nil
	l.hold()
	l.park(x)
	return true
}

// withDoubt is err, the end of x, beside ErrOutcomeUnknown where an earlier attempt may have been carried out.
func (x *call) withDoubt(err error) error {
	if !x.doubt || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: it was sent before and not answered (%w), then: %w", ErrOutcomeUnknown, x.setback, err)
}

// lookAt has expire run at a moment, or before. The caller holds mu.
func (l *link) lookAt(at time.Time) {
	if !l.retryAt.IsZero() && !at.Before(l.retryAt) {
		return
	}
	l.retryAt = at
	if l.retryTimer == nil {
		l.retryTimer = time.AfterFunc(time.Until(at), l.expire)
	} else {
		l.retryTimer.Reset(time.Until(at))
	}
}

// expire ends the calls that wait to be sent again and whose time is over. Those in flight wait for their answer.
func (l *link) expire() {
	var over []*call
	l.mu.Lock()
	l.retryAt = time.Time{}
	now := time.Now()
	var earliest time.Time
	for _, list := range []*callList{&l.parked, &l.ordinary} {
		for x, next := list.first, (*call)(nil); x != nil; x = next {
			next = x.next
			switch {
			case !x.sent || x.retryFor == 0:
			case !x.retries(now):
				list.remove(x)
				x.state = callFinished
				over = append(over, x)
			case earliest.IsZero() || x.retryUntil.Before(earliest):
				earliest = x.retryUntil
			}
		}
	}
	if !earliest.IsZero() {
		if soonest := now.Add(leastRetryTick); earliest.Before(soonest) {
			earliest = soonest
		}
		l.lookAt(earliest)
	}
	l.mu.Unlock()
	slices.SortFunc(over, func(a, b *call) int { return cmp.Compare(a.turn, b.turn) })
	for _, x := range over {
		if x.err = x.setback; x.doubt {
			x.err = fmt.Errorf("%w: sent again for %v: %w", ErrOutcomeUnknown, x.retryFor, x.setback)
		}
		l.finish(x)
	}
}
