package bench

import (
	"reflect"
	"testing"
	"time"

	"github.com/leasemq/leasemq/client"
)

// tokenOf is a token of the numbered run of the broker.
func tokenOf(run, n uint64) uint64 { return run<<32 | n }

const leaseOf = 2 * time.Second

// taken is a delivery of message 7 whose pop took from one second to the next.
func taken(token uint64, attempt int, second int) DeliveryNote {
	called := time.Duration(second) * time.Second
	return DeliveryNote{
		Number: 7, Token: token, Attempt: attempt, Session: 1,
		Called: called, Arrived: called + time.Second, Lease: leaseOf,
	}
}

func TestRegrants(t *testing.T) {
	type step = func(*Regrants)
	deliver := func(n DeliveryNote) step { return func(r *Regrants) { r.Delivered(n) } }
	release := func(n DeliveryNote, at time.Duration) step {
		return func(r *Regrants) { r.Releasing(r.Delivered(n), at) }
	}
	leave := func(at time.Duration) step { return func(r *Regrants) { r.Leaving(1, at) } }
	vouch := func(run uint32, at time.Duration) step { return func(r *Regrants) { r.Vouched(run, at) } }
	other := taken(tokenOf(1, 9), 2, 9)
	other.ID = client.MessageID{15: 1}

	for _, c := range []struct {
		name  string
		steps []step
		want  RegrantVerdict
	}{
		{"one delivery", []step{deliver(taken(tokenOf(1, 1), 1, 0))}, RegrantVerdict{Deliveries: 1}},
		{"again when the lease may have ended", []step{deliver(taken(tokenOf(1, 1), 1, 0)), deliver(taken(tokenOf(1, 2), 2, 1))},
			RegrantVerdict{Deliveries: 2, AfterExpiry: 1}},
		{"the same, told in the other order", []step{deliver(taken(tokenOf(1, 2), 2, 1)), deliver(taken(tokenOf(1, 1), 1, 0))},
			RegrantVerdict{Deliveries: 2, AfterExpiry: 1}},
		{"again too early", []step{deliver(taken(tokenOf(1, 1), 1, 0)), deliver(taken(tokenOf(1, 2), 2, 0))},
			RegrantVerdict{Deliveries: 2, WithoutCause: 1}},
		{"again after it was given back", []step{release(taken(tokenOf(1, 1), 1, 0), time.Second), deliver(taken(tokenOf(1, 2), 2, 0))},
			RegrantVerdict{Deliveries: 2, AfterRelease: 1}},
		{"again before it was given back", []step{release(taken(tokenOf(1, 1), 1, 0), time.Second+1), deliver(taken(tokenOf(1, 2), 2, 0))},
			RegrantVerdict{Deliveries: 2, WithoutCause: 1}},
		{"again after its holder left", []step{deliver(taken(tokenOf(1, 1), 1, 0)), leave(time.Second), deliver(taken(tokenOf(1, 2), 2, 0))},
			RegrantVerdict{Deliveries: 2, AfterSession: 1}},
		{"again before its holder left", []step{deliver(taken(tokenOf(1, 1), 1, 0)), leave(time.Second + 1), deliver(taken(tokenOf(1, 2), 2, 0))},
			RegrantVerdict{Deliveries: 2, WithoutCause: 1}},

		{"a first grant that a kill took", []step{deliver(taken(tokenOf(1, 1), 1, 0)), deliver(taken(tokenOf(2, 1), 1, 0))},
			RegrantVerdict{Deliveries: 2, AfterKill: 1}},
		{"a first grant before the last answer", []step{deliver(taken(tokenOf(1, 1), 1, 0)), vouch(1, time.Second), deliver(taken(tokenOf(2, 1), 1, 0))},
			RegrantVerdict{Deliveries: 2, WithoutCause: 1}},
		{"a first grant after the last answer", []step{deliver(taken(tokenOf(1, 1), 1, 0)), vouch(1, time.Second-1), deliver(taken(tokenOf(2, 1), 1, 0))},
			RegrantVerdict{Deliveries: 2, AfterKill: 1}},
		{"an answer of the next run vouches for nothing", []step{deliver(taken(tokenOf(1, 1), 1, 0)), vouch(2, time.Second), deliver(taken(tokenOf(2, 1), 1, 0))},
			RegrantVerdict{Deliveries: 2, AfterKill: 1}},
		{"a second grant that a kill took", []step{deliver(taken(tokenOf(1, 1), 2, 0)), deliver(taken(tokenOf(2, 1), 2, 0))},
			RegrantVerdict{Deliveries: 2, WithoutCause: 1}},

		{"an older token later", []step{deliver(taken(tokenOf(1, 2), 2, 0)), deliver(taken(tokenOf(1, 1), 1, 1))},
			RegrantVerdict{Deliveries: 2, StaleTokens: 1, WithoutCause: 1}},
		{"one token twice", []step{deliver(taken(tokenOf(1, 1), 1, 0)), deliver(taken(tokenOf(1, 1), 1, 9))},
			RegrantVerdict{Deliveries: 2, StaleTokens: 1, AfterExpiry: 1}},
		{"one body as two messages", []step{deliver(taken(tokenOf(1, 1), 1, 0)), deliver(other)},
			RegrantVerdict{Deliveries: 2, StoredTwice: 1, AfterExpiry: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Regrants
			for _, s := range c.steps {
				s(&r)
			}
			got := r.Verdict()
			if broken := c.want.Broken(); got.Broken() != broken || (len(got.Examples) > 0) != broken {
				t.Errorf("broken: %v, examples %q", got.Broken(), got.Examples)
			}
			got.Examples = nil
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}
