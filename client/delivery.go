package client

import (
	"math"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// What Delivery and SettleResult give where there is no limit.
const (
	UnlimitedRenewals               = math.MaxInt
	UnlimitedBudget   time.Duration = math.MaxInt64
)

// Delivery is one message under a lease of a session. The exported fields do not change; the methods may be
// called by any number of goroutines.
type Delivery struct {
	StoredMessage

	Attempt int    // how many times the message was granted to the group, this time included
	Token   uint64 // the fencing token: strictly grows with each grant of the message
	Receipt []byte // names the lease

	// How earlier attempts ended.
	Failures, Expiries, SessionLosses int

	// Checkpoint is what an earlier holder left with a renewal; empty: nothing.
	Checkpoint []byte

	session *Session
	work    *work // that a Consumer does with it; set before the handler gets it

	// Guarded by session.mu.
	deadline     time.Time
	lease        time.Duration // the time that deadline was set from: the length of the lease, or of its newest renewal
	budget       time.Duration
	renewalsLeft int
	over         bool // settled, given back or known to be lost
	ordinal      uint32
	open         openChange
	changing     *changeRun // the call that changes the lease now
}

// Deadline is when the lease ends, by the local monotonic clock. It is counted from the moment the request
// was sent, so it lies before the broker's. Where the request waited at the broker (PopOptions.Await), it is counted
// from the newest moment that is known to lie before the answer, but from no earlier than a tenth of the
// remaining time before its arrival.
func (d *Delivery) Deadline() time.Time {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	return d.deadline
}

// RenewalsLeft is how many times the lease may still be extended; UnlimitedRenewals: any number.
func (d *Delivery) RenewalsLeft() int {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	return d.renewalsLeft
}

// Budget is by how much time the lease may still be extended in all; UnlimitedBudget: by any.
func (d *Delivery) Budget() time.Duration {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	return d.budget
}

// Progress tells the Consumer that handed the message out that its handler is at work: it begins
// ConsumerOptions.ProgressTimeout anew. The note is told with a stall. On a Delivery of Session.Pop it does nothing.
func (d *Delivery) Progress(note string) {
	if d.work == nil {
		return
	}
	s := d.work.noteProgress(d, note)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progressAt = time.Now()
}

// forget notes that the session does not hold d any more, without the broker's being asked.
func (d *Delivery) forget() {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	d.letGo()
}

// leaseTimes are the deadline and the length of the lease.
func (d *Delivery) leaseTimes() (deadline time.Time, length time.Duration) {
	d.session.mu.Lock()
	defer d.session.mu.Unlock()
	return d.deadline, d.lease
}

func renewals(n uint16) int {
	if n == protocol.UnlimitedRenewals {
		return UnlimitedRenewals
	}
	return int(n)
}

func budget(ms uint32) time.Duration {
	if ms == protocol.UnlimitedBudget {
		return UnlimitedBudget
	}
	return milliseconds(ms)
}

// letGo notes that the session no longer holds d. The caller holds session.mu.
func (d *Delivery) letGo() {
	if !d.over {
		d.over = true
		d.session.held--
	}
}
