package client

import (
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Batch is the answer to one pop: the deliveries, and the one buffer that they all point into.
type Batch struct {
	// Deliveries may be none: nothing became visible in time.
	Deliveries []*Delivery

	// Leased is how many messages of the topic the group holds under leases, these included; Waiting how many
	// wait for a back-off or a postponement.
	Leased, Waiting uint64

	body   []byte
	memory []Delivery
	answer protocol.PopAnswer
}

// Bodies of POP and PEEK answers, by the power of two in their capacity. They are filled again only after
// Batch.Release, and have no room to spare, since most are not: so one is used again only where it happens to be
// long enough, which it is for a consumer whose batches are all alike.
var bodyPools [mostFrameClass + 1]sync.Pool

var batches = sync.Pool{New: func() any { return new(Batch) }}

func newBody(n int) []byte {
	if class := bits.Len(uint(n)) - 1; class >= leastFrameClass && class <= mostFrameClass {
		if b, _ := bodyPools[class].Get().(*[]byte); b != nil && cap(*b) >= n {
			return (*b)[:n]
		}
	}
	return make([]byte, n)
}

// Release gives the memory of the batch back for the next pops. It need not be called. After it, nothing that
// came with the batch may be touched: no delivery, body or receipt.
func (b *Batch) Release() {
	if class := bits.Len(uint(cap(b.body))) - 1; class >= leastFrameClass && class <= mostFrameClass {
		body := b.body[:0]
		bodyPools[class].Put(&body)
	}
	clear(b.memory)
	clear(b.Deliveries)
	b.body, b.Deliveries = nil, b.Deliveries[:0]
	b.answer = protocol.PopAnswer{Rows: b.answer.Rows[:0]}
	batches.Put(b)
}

// popTimes are what is known of the time of a POP answer.
type popTimes struct {
	grantedAfter time.Time // a moment before the grants
	arrivedAt    time.Time
	waited       bool // the request may have waited at the broker
}

// leaseStart is the moment from which remaining, as told by the answer, is counted; see Delivery.Deadline.
func (t popTimes) leaseStart(remaining time.Duration) time.Time {
	if recent := t.arrivedAt.Add(-remaining / 10); t.waited && recent.After(t.grantedAfter) {
		return recent
	}
	return t.grantedAfter
}

// newBatch decodes the body of a POP answer. A record that is damaged costs its own delivery its contents
// (StoredMessage.Err); a body that its layout does not allow is an error.
func newBatch(s *Session, topic string, body []byte, times popTimes) (*Batch, error) {
	b := batches.Get().(*Batch)
	if err := b.answer.Decode(body); err != nil {
		return nil, fmt.Errorf("leasemq: broken answer of the broker: %w", err)
	}
	b.body, b.Leased, b.Waiting = body, b.answer.Leased, b.answer.Waiting
	n := len(b.answer.Rows)
	if n > cap(b.memory) {
		b.memory = make([]Delivery, n)
	}
	b.memory = b.memory[:n]
	if n > cap(b.Deliveries) {
		b.Deliveries = make([]*Delivery, 0, n)
	}
	for i := range b.memory {
		d, row := &b.memory[i], &b.answer.Rows[i]
		d.session = s
		d.read(protocol.OpPop, topic, b.answer.Record(i))
		d.Token, d.Attempt = row.Token, int(row.Attempt)
		d.Receipt, d.Checkpoint = row.Receipt, row.Checkpoint
		d.Failures, d.Expiries, d.SessionLosses = int(row.Failures), int(row.Expiries), int(row.SessionLosses)
		d.renewalsLeft, d.budget = renewals(row.RenewalsLeft), budget(row.BudgetMs)
		remaining := milliseconds(row.RemainingMs)
		d.deadline, d.lease = times.leaseStart(remaining).Add(remaining), remaining
		b.Deliveries = append(b.Deliveries, d)
	}
	return b, nil
}
