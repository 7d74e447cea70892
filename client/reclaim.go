package client

import (
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Reclaimed is what became of one receipt of RegisterOptions.Reclaim.
type Reclaimed struct {
	// Err is nil when the message is leased to the session again. Else it is a *StatusError with the status and
	// reason that an ack would have got: ErrStale, ErrAlreadySettled, ErrInvalidReceipt ...
	Err error

	Receipt []byte // of the new lease
	Token   uint64 // of the new lease; after an error the newest one known, 0: unknown
	Attempt int

	Ago time.Duration // how long ago what the error's Reason names happened; 0: unknown

	session      *Session
	deadline     time.Time
	lease        time.Duration
	renewalsLeft int
	budget       time.Duration
}

// reclaims puts the receipts of o into r.
func reclaims(r *protocol.RegisterRequest, o *RegisterOptions) (err error) {
	if n := len(o.Reclaim); n > protocol.MaxReclaimReceipts {
		return invalid(protocol.OpRegister, "%d receipts to be reclaimed, limit %d", n, protocol.MaxReclaimReceipts)
	}
	for _, receipt := range o.Reclaim {
		if err := checkReceipt(protocol.OpRegister, receipt); err != nil {
			return err
		}
	}
	r.Receipts = o.Reclaim
	r.ReclaimMs, err = wireMs(protocol.OpRegister, "reclaimed lease", o.ReclaimFor)
	return err
}

// reclaimed are the results of answer, which has one for each receipt of request.
func reclaimed(s *Session, request *protocol.RegisterRequest, answer *protocol.RegisterAnswer, sentAt time.Time) []Reclaimed {
	if len(request.Receipts) == 0 {
		return nil
	}
	results := make([]Reclaimed, len(answer.Reclaimed))
	for i := range results {
		from := &answer.Reclaimed[i]
		results[i] = Reclaimed{Token: from.Token, Ago: time.Duration(from.AgoMs) * time.Millisecond, session: s}
		if from.Status != protocol.OK {
			results[i].Err = &StatusError{
				Op: protocol.OpRegister, Status: from.Status, Reason: from.Reason, Message: "reclaim of the lease",
				Token: from.Token, Ago: results[i].Ago,
			}
			continue
		}
		results[i].Receipt = append([]byte(nil), from.Receipt...)
		results[i].Attempt = int(from.Attempt)
		results[i].lease = milliseconds(from.RemainingMs)
		results[i].deadline = sentAt.Add(results[i].lease)
		results[i].renewalsLeft, results[i].budget = renewals(from.RenewalsLeft), budget(from.BudgetMs)
	}
	return results
}

// Reclaimed are the results of RegisterOptions.Reclaim, one for each receipt, in order.
func (s *Session) Reclaimed() []Reclaimed { return s.reclaimed }

// Delivery is the message of former under the reclaimed lease: an old handle of it refuses to be used with the
// new session. It is nil when the receipt was refused.
func (r *Reclaimed) Delivery(former *Delivery) *Delivery {
	if r.Err != nil {
		return nil
	}
	d := &Delivery{
		Attempt: r.Attempt, Token: r.Token, Receipt: r.Receipt,
		Failures: former.Failures, Expiries: former.Expiries, SessionLosses: former.SessionLosses,
		Checkpoint: former.Checkpoint,
		session:    r.session, deadline: r.deadline, lease: r.lease, renewalsLeft: r.renewalsLeft, budget: r.budget,
	}
	d.ID, d.Topic, d.Queue, d.Offset, d.BornAt = former.ID, former.Topic, former.Queue, former.Offset, former.BornAt
	d.view, d.err = former.view, former.err
	d.plain.Store(former.plain.Load())
	s := r.session
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held++
	s.progressAt = time.Now()
	return d
}
