package broker

import (
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/protocol"
)

// Pop ids. A pop that carries one (slot and sequence) can be repeated when its answer was lost, and the one after
// it says whether it was. What a slot was granted last is part of the state (lease.PopMark). The newest
// sequence that came is not, since one that was answered EMPTY leaves no record: a slot that was not used since the start takes any
// higher sequence for the next.

// numberPop decides what the number of w means: a repetition (w.repeats is set), the next pop, or nonsense. The
// pop of the slot that still waits is replaced. The number is used up by whatever comes of the pop.
func (e *Engine) numberPop(w *waiter) (expected uint64, ok bool) {
	if w.sequence == 0 {
		return 0, true
	}
	run := &e.sessRun[w.sessSlot]
	run.seen = fit(run.seen, uint32(w.slot))
	seen := run.seen[w.slot]
	mark := e.fold.leases.PopMark(w.sessSlot, w.slot)
	newest := max(seen, mark.Sequence)
	if w.sequence < max(newest, 1) || w.sequence > newest+1 && seen != 0 {
		return newest + 1, false
	}
	run.seen[w.slot] = w.sequence
	e.supersede(w)
	switch {
	case w.sequence == mark.Sequence:
		w.repeats, w.subID = mark.Token, mark.Sub
	case w.lost && w.sequence == mark.Sequence+1:
		e.giveBackLost(w, mark)
	}
	return 0, true
}

// supersede answers the pop that waits in the slot of w.
func (e *Engine) supersede(w *waiter) {
	for _, other := range e.sessRun[w.sessSlot].waiters {
		if other.slot == w.slot && other.sequence != 0 {
			e.refuseWaiters([]*waiter{other}, protocol.Superseded,
				protocol.ErrorBody{Message: "a later pop of the slot took its place", Detail: w.sequence})
			return // there is one at most
		}
	}
}

// superseded tells whether the slot of w has gone on without it.
func (e *Engine) superseded(w *waiter) bool {
	if w.sequence == 0 {
		return false
	}
	run := &e.sessRun[w.sessSlot]
	if int(w.slot) < len(run.seen) && run.seen[w.slot] > w.sequence {
		return true
	}
	for _, other := range run.waiters {
		if other != w && other.slot == w.slot && other.sequence != 0 {
			return true
		}
	}
	return false
}

// giveBackLost releases, uncounted, what a pop was granted whose answer was lost.
func (e *Engine) giveBackLost(w *waiter, mark lease.PopMark) {
	rec := &e.scratch.change
	*rec = codec.Change{Sub: mark.Sub, Session: w.session, Entries: rec.Entries[:0]}
	e.fold.leases.EachOf(w.sessSlot, mark.Token, func(queue uint16, offset uint64, _ lease.Granted) {
		rec.Entries = append(rec.Entries, codec.ChangeEntry{Queue: queue, Kind: codec.ChangeTaken, Offset: offset, Token: mark.Token})
	})
	if len(rec.Entries) > 0 {
		e.stats.popsGivenBack.Add(uint64(len(rec.Entries)))
		w.wholly = true
		e.flushChange(rec)
	}
}

// openRepetition resolves the names of a pop that asks for an answer again.
func (e *Engine) openRepetition(w *waiter, r *protocol.PopRequest, refuse func(protocol.Status, uint64, string) bool) bool {
	w.awaitMs = 0 // what it was given is known at once
	slot, ok := e.fold.leases.SlotOf(w.subID)
	topicSlot, known := e.fold.topics.names[r.Topic]
	switch {
	case !known:
		return refuse(protocol.TopicNotFound, 0, "no topic "+r.Topic)
	case !ok:
		return e.openGone(w)
	}
	sub := e.fold.leases.At(slot)
	if sub.Topic != e.fold.topics.slab.At(topicSlot).id {
		return refuse(protocol.Invalid, w.sequence+1, "the pop's sequence was used for another topic")
	}
	w.sub, w.topic = slot, sub.Topic
	return true
}

// openGone makes EMPTY the answer: the topic was made anew since, and its leases went with it.
func (e *Engine) openGone(w *waiter) bool {
	w.status, w.gate = protocol.Empty, e.log.Appended()
	return false
}

// repeat gives w what is left of the leases of the answer that it asks for again.
func (e *Engine) repeat(w *waiter, nowMs int64) popOutcome {
	table := e.fold.leases
	g, _ := e.fold.sessions.GroupByID(w.group)
	res := &w.result
	res.rows, res.terms = res.rows[:0], res.terms[:0]
	cold := false
	table.EachOf(w.sessSlot, w.repeats, func(queue uint16, offset uint64, l lease.Granted) {
		entry, ok := e.entryOf(e.fold.topics.queueOf[e.fold.topics.ids[w.topic]][queue], offset)
		switch {
		case !ok:
			cold = true
			return
		case !e.sound(entry):
			e.indexHole(w, queue, offset)
			return
		}
		res.rows = append(res.rows, popRow{
			offset: offset, position: entry.Position, size: entry.Size, queue: queue,
			attempts: l.Attempts, failures: l.Failures, expiries: l.Expiries, losses: l.Losses,
		})
		terms := leaseTerms{endMs: l.EndMs}
		terms.renewals, terms.budgetMs = lease.Budget(g.Rules, l.Renewals, l.EndMs, l.SinceMs)
		res.terms = append(res.terms, terms)
		res.grantMs = l.SinceMs
	})
	switch run := &e.subRun[w.sub]; {
	case cold && !run.loading:
		run.loading = true
		e.loading = append(e.loading, w.sub)
		return popLoading
	case cold:
		return popLoading
	case len(res.rows) == 0:
		return popNothing
	}
	sub := table.At(w.sub)
	res.token, res.leased, res.waiting = w.repeats, sub.Leased, sub.Waiting
	w.status, w.gate = protocol.OK, e.log.Appended()
	e.stats.popsRepeated.Add(1)
	return popGranted
}
