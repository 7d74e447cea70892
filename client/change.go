package client

import (
	"context"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Cause says why a lease is changed.
type Cause = protocol.Cause

const (
	CauseRenew     = protocol.CauseRenew     // extend or shorten it
	CauseFailed    = protocol.CauseFailed    // give the message back: the attempt failed
	CausePostponed = protocol.CausePostponed // give the message back: not now
)

// Change is one entry of Session.ChangeInvisible.
type Change struct {
	// Delivery is the lease to be changed, and what the answer says of it is noted there. For one of which
	// only the receipt is at hand, Receipt and Ordinal name it: 1 for the first change of a grant, then 2 ...,
	// the same again for a repetition.
	Delivery *Delivery
	Receipt  []byte
	Ordinal  uint32

	Cause Cause
	// Invisible is for how long from now the message stays invisible. CauseRenew: the new rest of the lease (0
	// gives the message back, visible now). CausePostponed: the delay. CauseFailed: 0 is the group's back-off,
	// more replaces it.
	Invisible time.Duration
	Reason    string // for people; at most 255 bytes are kept
}

// An ordinal makes a change idempotent: the broker carries out the next one, answers the newest one again, and
// refuses all others. So the changes of one lease are made one after the other, and one whose answer was lost
// leaves a doubt: its ordinal is used up or it is not. The doubt is resolved by making the very same
// change again, before any other one.

// openChange is a change of a lease that was sent and of which the outcome is not known.
type openChange struct {
	is          bool
	cause       Cause
	invisibleMs uint32
	reason      string
}

// changeRun marks the deliveries of one ChangeInvisible as being changed.
type changeRun struct {
	over chan struct{}
}

// ChangeInvisible extends leases or gives messages back. There is one result for each change, in order;
// the error is nil if all were done, else the first one's. It is repeated by itself when a connection is lost.
// Calls for the same delivery go one after the other. After an error that leaves the outcome open, calling
// again is safe, with the same change or with another one.
func (s *Session) ChangeInvisible(ctx context.Context, changes []Change) ([]SettleResult, error) {
	entries := make([]protocol.ChangeEntry, len(changes))
	for i := range changes {
		if err := s.changeEntry(&changes[i], &entries[i]); err != nil {
			return nil, err
		}
	}
	run, err := s.beginChange(ctx, changes)
	if err != nil {
		return nil, err
	}
	defer s.endChange(run, changes)
	if err := s.resolve(ctx, changes, entries); err != nil {
		return nil, err
	}
	s.mu.Lock()
	for i := range changes {
		if d := changes[i].Delivery; d != nil {
			entries[i].Ordinal = d.ordinal + 1
		}
	}
	s.mu.Unlock()
	results := s.change(ctx, entries, func(i int) *Delivery { return changes[i].Delivery })
	return results, firstRefusal(results)
}

// changeEntry checks x and sets e to it, but for the ordinal of a delivery.
func (s *Session) changeEntry(x *Change, e *protocol.ChangeEntry) error {
	*e = protocol.ChangeEntry{Receipt: x.Receipt, Ordinal: x.Ordinal, Cause: x.Cause, Reason: x.Reason}
	if d := x.Delivery; d != nil {
		if d.session != s {
			return invalid(protocol.OpChangeInvisible, "a delivery of another session")
		}
		e.Receipt = d.Receipt
	} else if x.Ordinal == 0 {
		return invalid(protocol.OpChangeInvisible, "ordinal 0: the first change of a grant has 1")
	}
	var err error
	if e.InvisibleMs, err = wireMs(protocol.OpChangeInvisible, "invisible time", x.Invisible); err != nil {
		return err
	}
	return checkReceipt(protocol.OpChangeInvisible, e.Receipt)
}

// beginChange waits until nobody else changes any of the deliveries, and takes them all at once.
func (s *Session) beginChange(ctx context.Context, changes []Change) (*changeRun, error) {
	run := &changeRun{over: make(chan struct{})}
	for {
		other, err := s.tryBegin(run, changes)
		if err != nil {
			return nil, err
		}
		if other == nil {
			return run, nil
		}
		select {
		case <-other.over:
		case <-ctx.Done():
			return nil, fmt.Errorf("leasemq: %s: an earlier change of the same delivery is under way: %w", protocol.OpChangeInvisible, ctx.Err())
		}
	}
}

// tryBegin marks all deliveries as run's, or returns another run that has one of them.
func (s *Session) tryBegin(run *changeRun, changes []Change) (*changeRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range changes {
		d := changes[i].Delivery
		if d == nil {
			continue
		}
		if other := d.changing; other != nil {
			for _, taken := range changes[:i] {
				if taken.Delivery != nil {
					taken.Delivery.changing = nil
				}
			}
			if other == run {
				return nil, invalid(protocol.OpChangeInvisible, "two changes of the same delivery")
			}
			return other, nil
		}
		d.changing = run
	}
	return nil, nil
}

func (s *Session) endChange(run *changeRun, changes []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range changes {
		if d := changes[i].Delivery; d != nil {
			d.changing = nil
		}
	}
	close(run.over)
}

// resolve repeats the changes whose outcome is open, where the new one is not the same: else the new one would
// be taken for its repetition, or its ordinal for a gap.
func (s *Session) resolve(ctx context.Context, changes []Change, entries []protocol.ChangeEntry) error {
	var again []protocol.ChangeEntry
	var of []*Delivery
	s.mu.Lock()
	for i := range changes {
		d := changes[i].Delivery
		if d == nil || !d.open.is || (d.open.cause == entries[i].Cause && d.open.invisibleMs == entries[i].InvisibleMs) {
			continue
		}
		again = append(again, protocol.ChangeEntry{
			Receipt: d.Receipt, Ordinal: d.ordinal + 1,
			Cause: d.open.cause, InvisibleMs: d.open.invisibleMs, Reason: d.open.reason,
		})
		of = append(of, d)
	}
	s.mu.Unlock()
	if len(again) == 0 {
		return nil
	}
	results := s.change(ctx, again, func(i int) *Delivery { return of[i] })
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range of {
		if d.open.is {
			return fmt.Errorf("leasemq: %s: the outcome of an earlier change is still open: %w", protocol.OpChangeInvisible, results[i].Err)
		}
	}
	return nil
}

// change sends entries and notes in the deliveries what became of them.
func (s *Session) change(ctx context.Context, entries []protocol.ChangeEntry, delivery func(int) *Delivery) []SettleResult {
	results := make([]SettleResult, len(entries))
	run := settleRun{session: s, op: protocol.OpChangeInvisible, results: results}
	run.begin(func(dst []byte, from, to int) []byte {
		request := protocol.ChangeInvisibleRequest{Session: s.id, Entries: entries[from:to]}
		return request.Append(dst)
	})
	run.end(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range run.parts {
		p := &run.parts[i]
		for j := p.from; j < p.to; j++ {
			if d := delivery(j); d != nil {
				d.noteChange(p, &entries[j], &results[j])
			}
		}
	}
	return results
}

// noteChange notes the outcome of a change. The caller holds session.mu.
func (d *Delivery) noteChange(p *settlePart, e *protocol.ChangeEntry, r *SettleResult) {
	switch {
	case p.err != nil && p.decided && !outcomeOpen(p.err):
		return // refused as a whole; a doubt about an earlier transmission stays
	case p.err != nil:
		if p.sent {
			d.open = openChange{true, e.Cause, e.InvisibleMs, e.Reason}
		}
		return
	}
	d.open = openChange{}
	switch {
	case r.Err == nil && e.Cause == CauseRenew && e.InvisibleMs > 0:
		d.ordinal = e.Ordinal
		d.deadline, d.lease = p.sentAt.Add(r.Remaining), r.Remaining
		d.renewalsLeft, d.budget = r.RenewalsLeft, r.Budget
	case r.Err == nil:
		d.ordinal = e.Ordinal
		d.letGo()
	case leaseOver(r.Err):
		d.letGo()
	}
}

// outcomeOpen tells whether a refusal of the broker leaves it open whether the change was made.
func outcomeOpen(err error) bool {
	e, ok := err.(*StatusError)
	return !ok || e.Status == protocol.StoreFailed || e.Status == protocol.Internal
}

// Extend makes the lease of d end after the time given from now.
func (s *Session) Extend(ctx context.Context, d *Delivery, invisible time.Duration) error {
	return s.changeOne(ctx, Change{Delivery: d, Cause: CauseRenew, Invisible: invisible})
}

// Release gives d back: not now, but after delay. No failure is counted.
func (s *Session) Release(ctx context.Context, d *Delivery, delay time.Duration) error {
	return s.changeOne(ctx, Change{Delivery: d, Cause: CausePostponed, Invisible: delay})
}

// Fail gives d back: the attempt failed. It is counted, and the message is visible again after the group's
// back-off.
func (s *Session) Fail(ctx context.Context, d *Delivery, reason string) error {
	return s.changeOne(ctx, Change{Delivery: d, Cause: CauseFailed, Reason: reason})
}

func (s *Session) changeOne(ctx context.Context, x Change) error {
	_, err := s.ChangeInvisible(ctx, []Change{x})
	return err
}
