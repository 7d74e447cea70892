package client

import (
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// lossRule says what happens to a call that is unanswered when its connection is lost.
type lossRule uint8

const (
	lossRepeat  lossRule = iota // idempotent: repeated on the next connection
	lossUnknown                 // ErrOutcomeUnknown, beside ErrConnectionLost; a SEND that may be sent again is, see retry.go
)

func lossOf(op protocol.Opcode) lossRule {
	switch op {
	case protocol.OpSend,
		protocol.OpCreateTopic, protocol.OpUpdateTopic, protocol.OpPurgeTopic, protocol.OpDeleteTopic,
		protocol.OpCreateGroup, protocol.OpUpdateGroup, protocol.OpDeleteGroup:
		return lossUnknown
	}
	return lossRepeat
}

// urgent tells whether calls of op go before others: they keep sessions and leases alive, and must not
// wait behind what a producer has queued.
func urgent(op protocol.Opcode) bool {
	switch op {
	case protocol.OpHeartbeat, protocol.OpUnregister, protocol.OpAck, protocol.OpChangeInvisible:
		return true
	}
	return false
}

// keepsBody tells whether what is decoded from an answer points into it, so that the answer gets a
// buffer of its own.
func keepsBody(op protocol.Opcode) bool { return op == protocol.OpPop || op == protocol.OpPeek }

type callState uint8

const (
	callIdle     callState = iota // the caller's alone
	callQueued                    // in one of the link's lists
	callInFlight                  // in the link's pending map
	callParked                    // in the link's parked list: to be sent again, or held back with what is
	callFinished                  // answered or failed; about to be handed back
)

// call is one request and its answer. Its life: made by link.newCall, filled, submitted, finished by the
// reader or by the loss of its connection, read by its owner, given back with link.free.
//
// The owner is whoever submitted it, until it abandons it (its context ended); from then on it is the
// link's, which frees it when it is finished.
type call struct {
	// Set by the owner before submit.
	header protocol.Header // opcode and flags; the rest is put when it is sent
	frame  *frame
	answer protocol.Body // decoded into when the status is OK or EMPTY and there is a body; may be nil
	// notify is called when the call is finished, in place of the signal on done: by the reader, or by
	// whoever noticed the loss. It must not block.
	notify func(*call)
	// orphan is called when an abandoned call has been answered with OK, by the reader. It must not block.
	orphan func(*call)
	// retryFor is for how long after its first transmission a SEND is sent again; 0: never.
	retryFor time.Duration
	// over is called when the call has ended, before its owner hears of it and unless notify is set. It may block
	// for a lock and for nothing else.
	over func(*call)

	// The producer's, guarded by its lock: see window.
	number       uint64 // of its first message; 0: it is not in the window
	older, newer *call

	// Guarded by link.mu until finished.
	state      callState
	abandoned  bool
	sent       bool // its bytes may have reached a broker
	prev, next *call
	turn       uint64    // its place among all that were submitted
	retryUntil time.Time // set with sent
	setback    error     // why its newest attempt came to nothing
	doubt      bool      // an attempt may have been carried out
	left       bool      // its owner has left while it was being answered: it is not sent again

	// The outcome.
	sentAt    time.Time // when its newest transmission began
	arrivedAt time.Time // when its answer was read; POP only
	proof     time.Time // a moment known to lie before the answer was written; POP only
	status    protocol.Status
	body      []byte // where keepsBody
	err       error

	done chan struct{} // room for one signal

	send protocol.SendAnswer // kept for its slice
}

func (c *call) op() protocol.Opcode { return c.header.Opcode }

// callList is a queue of calls linked through themselves, so that a call can leave from the middle.
type callList struct{ first, last *call }

func (l *callList) empty() bool { return l.first == nil }

func (l *callList) pushBack(c *call) {
	c.prev, c.next = l.last, nil
	if l.last == nil {
		l.first = c
	} else {
		l.last.next = c
	}
	l.last = c
}

func (l *callList) pushFront(c *call) {
	c.prev, c.next = nil, l.first
	if l.first == nil {
		l.last = c
	} else {
		l.first.prev = c
	}
	l.first = c
}

func (l *callList) remove(c *call) {
	if c.prev == nil {
		l.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		l.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}
