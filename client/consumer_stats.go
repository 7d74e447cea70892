package client

import "sync/atomic"

// ConsumerStats counts what a Consumer has done since it was made.
type ConsumerStats struct {
	Popped  uint64 // messages taken
	Handled uint64 // messages whose handler has returned

	// What became of messages, as far as the broker has confirmed it.
	Acked      uint64 // duplicates included
	Duplicates uint64
	Failed     uint64
	Postponed  uint64
	Returned   uint64 // given back and counted nowhere: never begun, or cancelled

	Refused   uint64 // handled, but what the outcome asked for was not done
	Panics    uint64
	Cancelled uint64 // handlers whose context was cancelled
	Stalled   uint64 // of these: for lack of progress

	Renewals       uint64
	RenewalsFailed uint64
	LeasesLost     uint64 // leases that ended, by this side's clock or the broker's word, before the message was handled

	Sessions  uint64 // registered
	Reclaimed uint64 // messages that were leased to the next session again
}

// consumerCounters are the counters behind it.
type consumerCounters struct {
	popped, handled, acked, duplicates, failed, postponed, returned, refused, panics, cancelled, stalled,
	renewals, renewalsFailed, leasesLost, sessions, reclaimed atomic.Uint64
}

// Stats may be called at any time. The counters are read one after the other.
func (k *Consumer) Stats() ConsumerStats {
	c := &k.stats
	return ConsumerStats{
		Popped: c.popped.Load(), Handled: c.handled.Load(),
		Acked: c.acked.Load(), Duplicates: c.duplicates.Load(), Failed: c.failed.Load(),
		Postponed: c.postponed.Load(), Returned: c.returned.Load(),
		Refused: c.refused.Load(), Panics: c.panics.Load(), Cancelled: c.cancelled.Load(), Stalled: c.stalled.Load(),
		Renewals: c.renewals.Load(), RenewalsFailed: c.renewalsFailed.Load(), LeasesLost: c.leasesLost.Load(),
		Sessions: c.sessions.Load(), Reclaimed: c.reclaimed.Load(),
	}
}

// done counts an outcome that the broker has confirmed.
func (c *consumerCounters) done(kind outcomeKind) {
	switch kind {
	case outcomeAck:
		c.acked.Add(1)
	case outcomeDuplicate:
		c.acked.Add(1)
		c.duplicates.Add(1)
	case outcomeFailed:
		c.failed.Add(1)
	case outcomePostponed:
		c.postponed.Add(1)
	case outcomeReturned:
		c.returned.Add(1)
	}
}
