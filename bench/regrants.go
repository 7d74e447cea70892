package bench

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasemq/leasemq/client"
)

// Regrants holds a broker to its word on giving a message again to a group. It is told of every delivery and of
// what its holder did with it, and asks of each one that was not the first: what had ended the lease before?
//
// The deliveries of a message are put in the order of their tokens, which is the order in which the broker granted
// them. A delivery is legitimate if one of these is true of the one before it:
//
//  1. Expired: the lease may have ended by time. It lasts at least from before the pop was called for as long as the pop
//     asked, so what arrives sooner is too early. (The lease clock stands still while the broker is down: a
//     restart ends no lease, and only makes this rule more lenient than the broker.)
//  2. Released: its holder had begun to give it back, whether that was answered or not.
//  3. Session ended: its holder had begun to leave in order.
//  4. Lost in a kill: it was the first grant of the message (attempt 1) and belongs to an earlier run of the broker.
//     The answer to a pop of first grants alone may leave before its records are on their way to the disk. But no
//     other answer may: if an ack that was called after the delivery had arrived was answered OK by the same run,
//     then the log held the grant when that answer left, and the kill cannot have taken it.
//
// Nothing else ends a lease. An ack without an answer is no cause: it settles the message, or the lease goes on.
//
// Apart from that: a pop that was called after a delivery had arrived never brings the same message under the same or
// a lower token; and one body is never delivered as two different messages.
//
// A moment is the time since any common beginning, by the monotonic clock. What goroutines tell may come in any order. It may
// be used by any number of them.
type Regrants struct {
	mu       sync.Mutex
	newest   []uint32   // by number of the message: its delivery that was told last, as an index from 1
	list     []delivery // what was told
	left     map[uint32]time.Duration
	sessions uint32
	vouched  map[uint32]time.Duration // by epoch: when the newest ack that it answered OK was called
}

// DeliveryNote is what a consumer knows of a delivery.
type DeliveryNote struct {
	Number  uint64 // of the message, as Ledger gave it
	ID      client.MessageID
	Token   uint64
	Attempt int
	Session uint32        // as NewSession gave it
	Called  time.Duration // the moment before the pop was called
	Arrived time.Duration // the moment after it returned
	Lease   time.Duration // that the pop asked for
}

// delivery is a DeliveryNote as it is kept: there are millions.
type delivery struct {
	token           uint64
	id              client.MessageID
	called, arrived time.Duration
	released        time.Duration // the moment before it was given back; 0: it was not
	lease           time.Duration
	session         uint32
	before          uint32 // the delivery of the same message that was told before; 0: none
	attempt         uint32
}

// epoch is the run of the broker that granted it.
func (d *delivery) epoch() uint32 { return EpochOf(d.token) }

// EpochOf is the run of the broker that a token comes from.
func EpochOf(token uint64) uint32 { return uint32(token >> 32) }

// NewSession gives a session its number.
func (r *Regrants) NewSession() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions++
	return r.sessions
}

// Leaving: the holder is about to end its session.
func (r *Regrants) Leaving(session uint32, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == nil {
		r.left = map[uint32]time.Duration{}
	}
	r.left[session] = at
}

// Delivered notes a delivery and gives it a name for Releasing.
func (r *Regrants) Delivered(n DeliveryNote) (name uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uint64(len(r.newest)) <= n.Number {
		r.newest = append(r.newest, 0)
	}
	r.list = append(r.list, delivery{
		token: n.Token, id: n.ID, called: n.Called, arrived: n.Arrived, lease: n.Lease,
		session: n.Session, before: r.newest[n.Number], attempt: uint32(n.Attempt),
	})
	name = uint32(len(r.list))
	r.newest[n.Number] = name
	return name
}

// Releasing: the holder is about to give a delivery back.
func (r *Regrants) Releasing(name uint32, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list[name-1].released = at
}

// Vouched: an ack that was called at a moment was answered OK by the run with this epoch, from beginning to end.
func (r *Regrants) Vouched(epoch uint32, called time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.vouched == nil {
		r.vouched = map[uint32]time.Duration{}
	}
	r.vouched[epoch] = max(r.vouched[epoch], called)
}

// RegrantVerdict is what Regrants adds up to. All must-be-zero figures are in Broken.
type RegrantVerdict struct {
	Deliveries   uint64   `json:"deliveries"`
	AfterExpiry  uint64   `json:"again_after_expiry"` // deliveries of what had been delivered before, by cause
	AfterRelease uint64   `json:"again_after_release"`
	AfterSession uint64   `json:"again_after_session_end"`
	AfterKill    uint64   `json:"again_after_lost_first_grant"`
	WithoutCause uint64   `json:"again_without_cause"`
	StaleTokens  uint64   `json:"stale_tokens"`
	StoredTwice  uint64   `json:"stored_twice"`
	Examples     []string `json:"examples,omitempty"` // of what must be zero
}

// Broken tells whether the broker has broken a promise.
func (v *RegrantVerdict) Broken() bool { return v.WithoutCause+v.StaleTokens+v.StoredTwice > 0 }

const mostExamples = 10

func (v *RegrantVerdict) example(format string, args ...any) {
	if len(v.Examples) < mostExamples {
		v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
	}
}

// Verdict sums up.
func (r *Regrants) Verdict() RegrantVerdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := RegrantVerdict{Deliveries: uint64(len(r.list))}
	var of []*delivery
	for number, name := range r.newest {
		if name == 0 || r.list[name-1].before == 0 {
			continue
		}
		of = of[:0]
		for ; name != 0; name = r.list[name-1].before {
			of = append(of, &r.list[name-1])
		}
		r.judge(&v, uint64(number), of)
	}
	return v
}

// judge looks at the deliveries of one message.
func (r *Regrants) judge(v *RegrantVerdict, number uint64, of []*delivery) {
	slices.SortFunc(of, func(a, b *delivery) int {
		if a.token != b.token {
			if a.token < b.token {
				return -1
			}
			return 1
		}
		return int(a.arrived - b.arrived)
	})
	for i, d := range of {
		if slices.ContainsFunc(of[i+1:], func(e *delivery) bool { return e.arrived <= d.called }) ||
			i > 0 && of[i-1].token == d.token {
			v.StaleTokens++
			v.example("message %d: token %d after a higher one, or twice", number, d.token)
		}
		if d.id != of[0].id {
			v.StoredTwice++
			v.example("message %d: delivered as %v and as %v", number, of[0].id, d.id)
		}
	}
	for i, d := range of[1:] {
		before := of[i]
		switch {
		case before.released != 0 && before.released <= d.arrived:
			v.AfterRelease++
		case r.hadLeft(before.session, d.arrived):
			v.AfterSession++
		case d.arrived >= before.called+before.lease:
			v.AfterExpiry++
		case before.attempt == 1 && before.epoch() < d.epoch() && r.vouched[before.epoch()] < before.arrived:
			v.AfterKill++
		default:
			v.WithoutCause++
			v.example("message %d: token %d (attempt %d) arrived at %v under a lease of %v; token %d (attempt %d) came at %v",
				number, before.token, before.attempt, before.arrived, before.lease, d.token, d.attempt, d.arrived)
		}
	}
}

func (r *Regrants) hadLeft(session uint32, at time.Duration) bool {
	left, ok := r.left[session]
	return ok && left <= at
}
