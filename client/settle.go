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
	entries := make([]protocol.AckEntry, len(deliveries))
	for i, d := range deliveries {
		entries[i].Receipt = d.Receipt
	}
	results, err := s.AckReceipts(ctx, entries)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range deliveries {
		if i < len(results) {
			s.noteAck(d, results[i].Err)
		}
	}
	return results, err
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
	for i := range entries {
		if err := checkReceipt(protocol.OpAck, entries[i].Receipt); err != nil {
			return nil, err
		}
	}
	results := make([]SettleResult, len(entries))
	run := settleRun{session: s, op: protocol.OpAck, results: results, encode: func(dst []byte, from, to int) []byte {
		request := protocol.AckRequest{Session: s.id, Entries: entries[from:to]}
		return request.Append(dst)
	}}
	run.do(ctx)
	return results, firstRefusal(results)
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
	encode  func(dst []byte, from, to int) []byte // the body for a part of the entries

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

func (r *settleRun) do(ctx context.Context) {
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
		p.call.frame.b = r.encode(p.call.frame.b, p.from, p.to)
		p.call.answer = &p.answer
		p.err = l.submit(p.call)
	}
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
