package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
)

// windowMessages is how far back the broker knows the messages of one producer: a number that lies further behind the
// newest one is answered with SEQ_TOO_OLD, whether it was stored or not.
const windowMessages = 65_536

// window numbers the messages of one producer, from 1. A message that is sent again keeps its number, by which the
// broker finds that it has it already; so no number may be given out that would push an unanswered one out of the
// broker's window.
//
// A number is given out when its request is submitted, not when its message is taken: so that numbers grow in the
// order in which requests leave, and what gathers for a lane does not hold up the window of all others.
//
// Invariants:
//
//  1. The open calls, oldest to newest, are those that were numbered and have not ended, by their first number.
//  2. The newest number given out, and as many more as are promised, lie less than windowMessages behind
//     the first number of the oldest call.
//
// mu is the producer's (async.mu), since a message of SendAsync needs room in both.
type window struct {
	mu             *sync.Mutex
	last           uint64 // given out
	promised       int    // numbers for messages that gather
	oldest, newest *call
	waiters        line
}

// newProducerID is random, so that no two producers share one; 0 would stand for none.
func newProducerID() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:])
		if id := binary.LittleEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

func (w *window) fits(n int) bool {
	used := w.promised
	if w.oldest != nil {
		used += int(w.last - w.oldest.number + 1)
	}
	return used+n <= windowMessages
}

// promise waits for room for n numbers. It gives up mu while it waits.
func (w *window) promise(ctx context.Context, n int) error {
	if len(w.waiters) == 0 && w.fits(n) {
		w.promised += n
		return nil
	}
	if w.waiters.wait(ctx, w.mu, n) {
		return nil
	}
	w.admit() // those behind it may need less
	return fmt.Errorf("leasemq: SEND: one of the last %d messages of this producer is unanswered: %w", windowMessages, ctx.Err())
}

// takeBack ends a promise of n numbers that were not given out.
func (w *window) takeBack(n int) {
	w.promised -= n
	w.admit()
}

// enter gives the n messages of c the numbers that were promised to them.
func (w *window) enter(c *call, n int) {
	w.promised -= n
	c.number = w.last + 1
	w.last += uint64(n)
	c.older = w.newest
	if w.newest == nil {
		w.oldest = c
	} else {
		w.newest.newer = c
	}
	w.newest = c
}

// leave is for a call that has ended; one that has no number, or has left, is passed over.
func (w *window) leave(c *call) {
	if c.number == 0 {
		return
	}
	if c.older == nil {
		w.oldest = c.newer
	} else {
		c.older.newer = c.newer
	}
	if c.newer == nil {
		w.newest = c.older
	} else {
		c.newer.older = c.older
	}
	c.number, c.older, c.newer = 0, nil, nil
	w.admit()
}

func (w *window) admit() {
	for n, ok := w.waiters.next(); ok && w.fits(n); n, ok = w.waiters.next() {
		w.promised += n
		w.waiters.letIn()
	}
}

// number waits for room and numbers the n messages of c, whose entries begin at entriesAt.
func (p *Producer) number(ctx context.Context, c *call, entriesAt, n int) error {
	if p.id == 0 {
		return nil
	}
	w := &p.window
	w.mu.Lock()
	if err := w.promise(ctx, n); err != nil {
		w.mu.Unlock()
		return err
	}
	w.enter(c, n)
	first := c.number
	w.mu.Unlock()
	putNumbers(c.frame.b[entriesAt:], first)
	return nil
}

// leave is window.leave for a call of Send or SendBatch.
func (p *Producer) leave(c *call) {
	if c.number == 0 {
		return
	}
	p.window.mu.Lock()
	p.window.leave(c)
	p.window.mu.Unlock()
}

// Where the sequence lies in a message that has one (codec.Message).
const (
	messageFlagsAt     = 1
	messageDelayedFlag = 1
	sequenceAt         = 16 + 8 // behind the lengths and the producer id
	deliverAtBytes     = 8      // before the producer id, where a message is delayed
)

// putNumbers numbers the entries of a SEND from first on.
func putNumbers(entries []byte, first uint64) {
	for at := 0; at < len(entries); first++ {
		n := int(binary.LittleEndian.Uint32(entries[at:]))
		message := entries[at+4 : at+4+n]
		place := sequenceAt
		if message[messageFlagsAt]&messageDelayedFlag != 0 {
			place += deliverAtBytes
		}
		binary.LittleEndian.PutUint64(message[place:], first)
		at += 4 + n
	}
}
