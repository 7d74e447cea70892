package client

import (
	"context"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// SettleResult is the outcome of one entry of Ack or ChangeInvisible.
type SettleResult struct {
	Err error // nil: done. ErrStale, ErrAlreadySettled, ErrInvalidReceipt, ErrRenewLimit ... as *StatusError

	Token        uint64        // the newest fencing token known; 0: unknown
	Ago          time.Duration // how long ago what the error's Reason names happened; 0: unknown
	Remaining    time.Duration // of the lease, or until a released message is visible
	RenewalsLeft int           // UnlimitedRenewals: any number
	Budget       time.Duration // by which the lease may still be extended in all; UnlimitedBudget: any
}

// AckEntry names a lease to be settled by its receipt.
type AckEntry = protocol.AckEntry

// Ack settles messages: the group never gets them again. There is one result for each, in order; the error
// is nil if all were settled, else the first one's. An ack is repeated by itself when a connection is lost, and
// may be repeated by the caller.
func (s *Session) Ack(ctx context.Context, deliveries ...*Delivery) ([]SettleResult, error) {
	return s.BeginAck(deliveries...).Wait(ctx)
}

// BeginAck is the first half of Ack: it sends the ack and does not wait for the answer, so that a loop can pop its next batch
// meanwhile; what is sent at about the same time goes out, and is answered, in one piece. Every PendingAck is to be
// waited for: that an ack was sent does not say that the messages are settled.
func (s *Session) BeginAck(deliveries ...*Delivery) *PendingAck {
	p := &PendingAck{deliveries: deliveries}
	entries := make([]protocol.AckEntry, len(deliveries))
	for i, d := range deliveries {
		entries[i].Receipt = d.Receipt
	}
	p.begin(s, entries)
	return p
}

// PendingAck is an ack that was sent. It belongs to one goroutine.
type PendingAck struct {
	deliveries []*Delivery
	run        settleRun
	err        error // why nothing was sent
	over       bool  // Wait has returned
}

// begin sends the ack of entries.
func (p *PendingAck) begin(s *Session, entries []AckEntry) {
	for i := range entries {
		if p.err = checkReceipt(protocol.OpAck, entries[i].Receipt); p.err != nil {
			p.over = true
			return
		}
	}
	p.run = settleRun{session: s, op: protocol.OpAck, results: make([]SettleResult, len(entries))}
	p.run.begin(func(dst []byte, from, to int) []byte {
		request := protocol.AckRequest{Session: s.id, Entries: entries[from:to]}
		return request.Append(dst)
	})
}

// Wait returns what Ack would. The deliveries of the ack are not to be released before that. When ctx ends first the outcome
// is unknown, and the ack may be repeated. A second call returns the same again.
func (p *PendingAck) Wait(ctx context.Context) ([]SettleResult, error) {
	if p.over {
		return p.run.results, p.err
	}
	p.over = true
	p.run.end(ctx)
	p.err = firstRefusal(p.run.results)
	s := p.run.session
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range p.deliveries {
		s.noteAck(d, p.run.results[i].Err)
	}
	return p.run.results, p.err
}

// noteAck notes what an ack of d ended with. The caller holds s.mu.
func (s *Session) noteAck(d *Delivery, err error) {
	if leaseOver(err) && d.session == s {
		d.letGo()
	}
}

// AckReceipts is Ack for leases known by their receipts, and for telling the broker that the work was found done
// already (AckEntry.Duplicate).
func (s *Session) AckReceipts(ctx context.Context, entries []AckEntry) ([]SettleResult, error) {
	var p PendingAck
	p.begin(s, entries)
	return p.Wait(ctx)
}

func checkReceipt(op protocol.Opcode, receipt []byte) error {
	if n := len(receipt); n == 0 || n > protocol.MaxFieldBytes {
		return invalid(op, "a receipt of %d bytes, 1 to %d are legal", n, protocol.MaxFieldBytes)
	}
	return nil
}

// leaseOver tells whether an ack that ended with err leaves nothing to be held.
func leaseOver(err error) bool {
	if err == nil {
		return true
	}
	e, ok := err.(*StatusError)
	if !ok {
		return false
	}
	switch e.Status {
	case protocol.Stale, protocol.AlreadySettled, protocol.InvalidReceipt, protocol.TopicNotFound:
		return true
	}
	return false
}

func firstRefusal(results []SettleResult) error {
	failed, first := 0, error(nil)
	for i := range results {
		if err := results[i].Err; err != nil {
			if failed++; first == nil {
				first = err
			}
		}
	}
	if failed == 0 || len(results) == 1 {
		return first
	}
	return fmt.Errorf("%d of %d entries: %w", failed, len(results), first)
}

// settleRun carries one ACK or CHANGE_INVISIBLE out, in as many requests as the limit of entries asks for.
type settleRun struct {
	session *Session
	op      protocol.Opcode
	results []SettleResult

	parts []settlePart
}

type settlePart struct {
	from, to int
	call     *call
	answer   protocol.ChangeInvisibleAnswer // ACK answers have the same layout
	err      error

	sent    bool // it may have reached the broker
	decided bool // the broker has said what became of it
	sentAt  time.Time
}

// begin submits the requests. encode appends the body for a part of the entries.
func (r *settleRun) begin(encode func(dst []byte, from, to int) []byte) {
	s, l := r.session, r.session.client.link
	if err := s.Err(); err != nil {
		for i := range r.results {
			r.results[i].Err = err
		}
		return
	}
	n := len(r.results)
	r.parts = make([]settlePart, 0, (n+protocol.MaxAckEntries-1)/protocol.MaxAckEntries)
	for from := 0; from < n; from += protocol.MaxAckEntries {
		r.parts = append(r.parts, settlePart{from: from, to: min(from+protocol.MaxAckEntries, n)})
		p := &r.parts[len(r.parts)-1]
		p.call = l.newCall(r.op, 0, 1<<13)
		p.call.frame.b = encode(p.call.frame.b, p.from, p.to)
		p.call.answer = &p.answer
		p.err = l.submit(p.call)
	}
}

// end waits for the answers.
func (r *settleRun) end(ctx context.Context) {
	for i := range r.parts {
		r.collect(ctx, &r.parts[i])
	}
}

func (r *settleRun) collect(ctx context.Context, p *settlePart) {
	l := r.session.client.link
	owned, err := true, p.err
	if err == nil {
		owned, err = l.wait(ctx, p.call)
	}
	if owned {
		p.sent, p.sentAt = p.call.sent, p.call.sentAt
		p.decided = p.call.status != 0 || err == nil
		l.free(p.call)
	} else {
		p.sent = true
	}
	p.call = nil
	if err == nil && len(p.answer.Results) != p.to-p.from {
		err = fmt.Errorf("leasemq: broken answer of the broker: %d results for %d entries", len(p.answer.Results), p.to-p.from)
	}
	out := r.results[p.from:p.to]
	if err != nil {
		p.err = err
		r.session.heard(err)
		for i := range out {
			out[i].Err = err
		}
		return
	}
	for i := range out {
		from := &p.answer.Results[i]
		out[i] = SettleResult{
			Token: from.Token, Ago: time.Duration(from.AgoMs) * time.Millisecond,
			Remaining: milliseconds(from.RemainingMs), RenewalsLeft: renewals(from.RenewalsLeft), Budget: budget(from.BudgetMs),
		}
		if from.Status != protocol.OK {
			out[i].Err = &StatusError{Op: r.op, Status: from.Status, Reason: from.Reason, Token: from.Token, Ago: out[i].Ago}
		}
	}
	r.session.mu.Lock()
	r.session.progressAt = time.Now()
	r.session.mu.Unlock()
}
