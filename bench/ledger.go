package bench

import (
	"sync"
	"sync/atomic"
)

// Ledger holds a broker to its word. Every message has a number, and the ledger is told of each what the broker
// promised and what it did: acknowledged (the send was answered OK), delivered under a fencing token,
// acked (the ack was answered OK). In the end, when the group has nothing left to take, Verdict says which
// promises were broken.
//
// What it may conclude:
//
//   - A message that was acknowledged must be acked in the end. One of which the sender does not know (the
//     answer was lost) may be there or not.
//   - A message whose ack was answered OK for token t is settled: no delivery may have a token above t, and
//     none may come twice under one token. A delivery with a token below t proves nothing: it was granted
//     before, and only its receiver was slow to say so. So the order in which goroutines tell the ledger does
//     not matter.
//   - An ack that got no answer may have settled the message or not. If nothing came under a higher token, it
//     did.
//   - A message that was refused must never be delivered.
//
// It may be used by any number of goroutines.
type Ledger struct {
	mu      sync.Mutex
	entries []ledgerEntry

	// Running totals, for progress; read without the lock.
	acknowledged, delivered, acked atomic.Uint64
	damaged, refusedAcks           atomic.Uint64
}

type ledgerEntry struct {
	outcome    sendOutcome
	twice      bool // delivered twice under one token
	deliveries uint16
	newest     uint64 // highest token of a delivery
	acked      uint64 // lowest token of an ack that was answered OK; 0: none
	unanswered uint64 // highest token of an ack that got no answer; 0: none
}

type sendOutcome uint8

const (
	outcomeUnknown sendOutcome = iota
	outcomeAcknowledged
	outcomeRefused
)

// Reserve gives n new messages their numbers, from the one returned on. What becomes of them is unknown until it
// is told.
func (l *Ledger) Reserve(n int) (first uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = uint64(len(l.entries))
	l.entries = append(l.entries, make([]ledgerEntry, n)...)
	return first
}

// Acknowledged: the send of the message was answered OK.
func (l *Ledger) Acknowledged(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[number].outcome = outcomeAcknowledged
	l.acknowledged.Add(1)
}

// Refused: the broker said that the message was not stored.
func (l *Ledger) Refused(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[number].outcome = outcomeRefused
}

// Delivered: a pop brought the message under a token. first tells whether it was the first time.
func (l *Ledger) Delivered(number, token uint64) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number >= uint64(len(l.entries)) {
		l.damaged.Add(1)
		return false
	}
	e := &l.entries[number]
	switch {
	case e.deliveries == 0 || token > e.newest:
		e.newest = token
	case token == e.newest:
		e.twice = true
	}
	if e.deliveries < 1<<16-1 {
		e.deliveries++
	}
	if first = e.deliveries == 1; first {
		l.delivered.Add(1)
	}
	return first
}

// Damaged: a pop brought something that was never sent.
func (l *Ledger) Damaged() { l.damaged.Add(1) }

// Acked: the ack of the delivery with this token was answered OK.
func (l *Ledger) Acked(number, token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number >= uint64(len(l.entries)) {
		return // counted as damaged when it was delivered
	}
	e := &l.entries[number]
	if e.acked == 0 {
		e.acked = token
		l.acked.Add(1)
	}
	e.acked = min(e.acked, token)
}

// AckUnknown: the ack of the delivery with this token got no answer.
func (l *Ledger) AckUnknown(number, token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number < uint64(len(l.entries)) {
		e := &l.entries[number]
		e.unanswered = max(e.unanswered, token)
	}
}

// AckRefused: the ack of a delivery was refused, so the message has to come again, or was settled by another.
func (l *Ledger) AckRefused() { l.refusedAcks.Add(1) }

// Verdict is what the ledger adds up to. All must-be-zero figures are in Broken.
type Verdict struct {
	Acknowledged uint64 `json:"acknowledged"` // messages whose send was answered OK
	Unknown      uint64 `json:"unknown"`      // whose send got no answer
	UnknownKept  uint64 `json:"unknown_kept"` // of these: stored all the same
	Refused      uint64 `json:"refused"`
	Delivered    uint64 `json:"delivered"`                    // messages that came at least once
	Again        uint64 `json:"delivered_again"`              // further deliveries of messages that were not acked yet
	Acked        uint64 `json:"acked"`                        // messages whose ack was answered OK
	RefusedAcks  uint64 `json:"acks_refused"`                 // acks that came too late
	UnknownAcks  uint64 `json:"acks_unknown,omitempty"`       // messages that had an ack without an answer
	UnknownTaken uint64 `json:"acks_unknown_taken,omitempty"` // of these: settled by it, as nothing came later
	Lost         uint64 `json:"lost"`                         // acknowledged, and never acked although nothing is left to take
	AfterAck     uint64 `json:"redelivered_acked"`            // delivered again although an ack had been answered OK
	TwiceGranted uint64 `json:"same_token_twice"`             // delivered twice under one fencing token
	Phantoms     uint64 `json:"refused_delivered"`            // delivered although the send was refused
	Damaged      uint64 `json:"damaged"`                      // deliveries of something that was never sent
}

// Broken tells whether the broker has broken a promise.
func (v *Verdict) Broken() bool {
	return v.Lost+v.AfterAck+v.TwiceGranted+v.Phantoms+v.Damaged > 0
}

// Verdict sums up. It is asked when the group has nothing left: what is acknowledged and not acked counts as lost.
func (l *Ledger) Verdict() Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := Verdict{Damaged: l.damaged.Load(), RefusedAcks: l.refusedAcks.Load()}
	for i := range l.entries {
		v.add(&l.entries[i])
	}
	return v
}

func (v *Verdict) add(e *ledgerEntry) {
	came := e.deliveries > 0
	switch e.outcome {
	case outcomeAcknowledged:
		v.Acknowledged++
		if e.acked == 0 && !e.settledUnknown() {
			v.Lost++
		}
	case outcomeUnknown:
		v.Unknown++
		if came {
			v.UnknownKept++
		}
	case outcomeRefused:
		v.Refused++
		if came {
			v.Phantoms++
		}
	}
	if e.acked != 0 {
		v.Acked++
	}
	if !came {
		return
	}
	if e.unanswered != 0 {
		v.UnknownAcks++
	}
	if e.settledUnknown() {
		v.UnknownTaken++
	}
	v.Delivered++
	again := uint64(e.deliveries - 1)
	if e.twice {
		v.TwiceGranted++
	}
	if e.acked != 0 && e.newest > e.acked {
		v.AfterAck++
		again--
	}
	v.Again += again
}

// settledUnknown tells whether only an ack without an answer can have settled the message.
func (e *ledgerEntry) settledUnknown() bool {
	return e.acked == 0 && e.unanswered != 0 && e.newest <= e.unanswered
}
