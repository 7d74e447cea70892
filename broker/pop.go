package broker

import (
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/protocol"
)

// popRow is one message of a pop's answer.
type popRow struct {
	offset   uint64
	position uint64
	size     uint32
	queue    uint16
	attempts uint16
	failures uint8
	expiries uint8
	losses   uint8
}

// popResult is what a pop was granted. Everything in it is known when the section is left; the bodies are
// read and the receipts made afterwards, in the loop.
type popResult struct {
	token    uint64
	grantMs  int64
	leaseMs  int64
	startMs  int64 // lease clock, read finely, from which leaseMs counts
	renewals uint16
	budgetMs int64
	leased   uint64
	waiting  uint64
	rows     []popRow
	terms    []leaseTerms // of each row, where they are not alike: of a repeated answer
}

// leaseTerms are what is left of one lease.
type leaseTerms struct {
	endMs    int64
	budgetMs int64
	renewals uint16
}

// popOutcome is how an attempt to serve a pop went.
type popOutcome uint8

const (
	popGranted popOutcome = iota
	popNothing
	popMore        // offsets were passed over and nothing was found yet: go on in another section
	popLoading     // the index is being loaded; OnLoad comes back
	popSessionFull // the session holds as much as it may
	popGone        // the session has ended
	popNoRoom      // the log's ring is full
)

// plan is the grant that is being put together. The section reuses it.
type plan struct {
	runs  []codec.GrantRun
	rows  []popRow
	bytes int
	pass  int // offsets passed without a grant
	again bool
	load  bool
}

// pop decides a POP. Its answer is in the waiter when done is true; else it has been parked.
func (e *Engine) pop(o *op) (done bool) {
	w, r := o.pop, o.popRequest
	if !e.openPop(o, w, r) {
		return true
	}
	nowMs := e.lease.fine(e.clock.Mono())
	w.dueMs = nowMs + w.awaitMs
	for range 64 { // each round passes over skipSlice offsets at most
		switch e.tryPop(w, nowMs) {
		case popGranted:
			return true
		case popMore:
			continue
		case popGone, popSessionFull:
			w.status = protocol.LimitExceeded
			w.refusal = protocol.ErrorBody{
				Message: "the session holds as many leases as it may", Detail: uint64(e.limits.LeasesPerSession),
			}
			w.gate = e.log.Appended()
			return true
		case popNoRoom:
			return e.parkNew(w, true)
		case popLoading:
			return e.parkNew(w, false)
		case popNothing:
			if w.awaitMs == 0 {
				e.answerEmpty(w)
				return true
			}
			return e.parkNew(w, false)
		}
		break
	}
	return e.parkNew(w, true)
}

// parkNew parks a pop that has just come, if it may wait. again: another section is to look at it.
func (e *Engine) parkNew(w *waiter, again bool) (done bool) {
	if why, over := e.parkedEnough(w); over {
		w.status, w.refusal, w.gate = protocol.LimitExceeded, why, e.log.Appended()
		return true
	}
	e.park(w)
	if again {
		e.markDirty(w.sub)
	}
	return false
}

// parkedEnough tells whether the session, or the connection, has as many pops waiting as it may.
func (e *Engine) parkedEnough(w *waiter) (why protocol.ErrorBody, over bool) {
	switch {
	case len(e.sessRun[w.sessSlot].waiters) > protocol.MaxPopSlot:
		return protocol.ErrorBody{Message: "pops of the session that wait", Detail: protocol.MaxPopSlot + 1}, true
	case w.conn.owed+w.maxBytes > maxOwed:
		return protocol.ErrorBody{Message: "bytes that the waiting pops of the connection may be answered with", Detail: maxOwed}, true
	}
	return why, false
}

// openPop resolves the names of a POP and makes what it may make: the topic, the subscription.
func (e *Engine) openPop(o *op, w *waiter, r *protocol.PopRequest) bool {
	refuse := func(s protocol.Status, detail uint64, message string) bool {
		w.status, w.refusal = s, protocol.ErrorBody{Message: message, Detail: detail}
		w.gate = e.log.Appended()
		return false
	}
	s, status, why := e.session(r.Session)
	if status != protocol.OK {
		w.status, w.refusal, w.gate = status, why, e.log.Appended()
		return false
	}
	w.session, w.sessSlot, w.group = s.ID, s.Slot, s.Group
	if expected, ok := e.numberPop(w); !ok {
		return refuse(protocol.Invalid, expected, "the pop's sequence is neither the newest of its slot nor the next one")
	}
	if e.draining.Load() {
		return refuse(protocol.Draining, 0, "the broker is stopping")
	}
	if w.repeats != 0 {
		return e.openRepetition(w, r, refuse)
	}
	if !e.diskFor(worstPop, grantReserve) {
		w.status, w.refusal, w.gate = protocol.StoreFull, e.noSpace("leases", worstPop, grantReserve), e.log.Appended()
		return false
	}
	g, _ := e.fold.sessions.GroupByID(s.Group)
	w.leaseMs = int64(r.InvisibleMs)
	if w.leaseMs == 0 {
		w.leaseMs = int64(g.Rules.InvisibleMs)
	}
	if w.leaseMs > int64(g.Rules.MaxInvisibleMs) {
		return refuse(protocol.Invalid, uint64(g.Rules.MaxInvisibleMs), "the invisible time is over the group's limit")
	}
	topicSlot, ok := e.fold.topics.names[r.Topic]
	if !ok {
		if !o.create {
			return refuse(protocol.TopicNotFound, 0, "no topic "+r.Topic)
		}
		var status protocol.Status
		if topicSlot, status, why = e.createTopic(r.Topic, defaultQueues, 0); status != protocol.OK {
			return refuse(status, why.Detail, why.Message)
		}
	}
	topicID := e.fold.topics.slab.At(topicSlot).id
	sub, ok := e.fold.leases.Find(g.ID, topicID)
	if ok {
		if !sameFilter(e.fold.leases.Filter(sub.Slot), r.FilterTags) {
			return refuse(protocol.FilterConflict, 0, "the group reads the topic with another tag filter")
		}
	} else if sub, status, why = e.subscribe(g.ID, topicSlot, r); status != protocol.OK {
		return refuse(status, why.Detail, why.Message)
	}
	w.sub, w.subID, w.topic = sub.Slot, sub.ID, topicID
	return true
}

// subscribe makes the subscription of a group's first pop of a topic.
func (e *Engine) subscribe(group, topicSlot uint32, r *protocol.PopRequest) (lease.Sub, protocol.Status, protocol.ErrorBody) {
	queues := e.fold.topics.queueOf[topicSlot]
	if e.fold.leases.Cursors()+len(queues) > e.limits.Cursors {
		return lease.Sub{}, protocol.LimitExceeded, protocol.ErrorBody{Message: "cursors (queues times groups)", Detail: uint64(e.limits.Cursors)}
	}
	rec := codec.Subscribe{
		Sub: e.fold.leases.NextID(), Group: group, Topic: e.fold.topics.slab.At(topicSlot).id,
		Filter: filterHashes(r.FilterTags), Starts: make([]uint64, len(queues)),
	}
	for i, q := range queues {
		rec.Starts[i] = e.fold.topics.queues.At(q).begin
		if r.Start == protocol.StartLatest {
			rec.Starts[i] = e.fold.topics.queues.At(q).next
		}
	}
	e.appendRecord(codec.TypeSubscribe, rec.Append(e.scratch.payload))
	e.fold.leases.Subscribe(&rec)
	sub, _ := e.fold.leases.Find(group, rec.Topic)
	e.addSubRun(sub.Slot, e.log.Appended())
	return sub, protocol.OK, protocol.ErrorBody{}
}

func filterHashes(tags []string) []uint64 {
	hashes := make([]uint64, 0, len(tags))
	for _, tag := range tags {
		hashes = append(hashes, codec.TagHash(tag))
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

func sameFilter(have []uint64, tags []string) bool {
	if len(tags) == 0 {
		return len(have) == 0
	}
	return slices.Equal(have, filterHashes(tags))
}

// tryPop grants w what it can have now. The session is checked again, although its end has taken its
// parked pops away: a worker may have had this one.
func (e *Engine) tryPop(w *waiter, nowMs int64) popOutcome {
	if e.sessRun[w.sessSlot].id != w.session || e.subRun[w.sub].id != w.subID {
		return popGone
	}
	if w.repeats != 0 {
		return e.repeat(w, nowMs)
	}
	held := int(e.fold.leases.Held(w.sessSlot))
	most := min(w.max, e.limits.LeasesPerSession-held)
	if most <= 0 {
		return popSessionFull
	}
	if !e.diskFor(worstPop, grantReserve) || !e.claim(worstPop) {
		return popNoRoom
	}
	defer e.release(worstPop)
	p := &e.plan
	p.runs, p.rows, p.bytes, p.pass, p.again, p.load = p.runs[:0], p.rows[:0], 0, 0, false, false
	run := &e.subRun[w.sub]
	queues := e.fold.leases.Queues(w.sub)
	for i := 0; i < queues && len(p.rows) < most && len(p.runs) < maxGrantRuns; i++ {
		q := (run.turn + i) % queues
		if word := q / 64; word >= len(run.active) || run.active[word]&(1<<(q%64)) == 0 {
			continue
		}
		if e.planQueue(w, p, uint16(q), most) {
			run.active[q/64] &^= 1 << (q % 64)
		}
		if p.bytes >= w.maxBytes {
			break
		}
	}
	run.turn = (run.turn + 1) % max(queues, 1)
	if p.load && !run.loading {
		run.loading = true
		e.loading = append(e.loading, w.sub)
	}
	if len(p.runs) > 0 {
		e.grant(w, p, nowMs)
	}
	switch {
	case len(p.rows) > 0:
		return popGranted
	case p.pass > 0:
		return popMore
	case p.load:
		return popLoading
	}
	return popNothing
}

// planQueue adds to the plan what a queue has for w. It is true when the queue has nothing more that
// could be granted before something happens that marks it active again.
func (e *Engine) planQueue(w *waiter, p *plan, q uint16, most int) (exhausted bool) {
	qSlot := e.fold.topics.queueOf[e.fold.topics.ids[w.topic]][q]
	pos := e.fold.leases.Position(w.sub, q)
	// What came back goes first: it has waited longest, and no cap holds it.
	exhausted = pos.Ready == 0 || e.planReady(w, p, q, qSlot, most)
	return e.planNew(w, p, q, qSlot, &pos, most) && exhausted
}

// planReady plans what came back. It is false when it left some.
func (e *Engine) planReady(w *waiter, p *plan, q uint16, qSlot uint32, most int) (exhausted bool) {
	hole := false
	exhausted = true
	e.fold.leases.EachReady(w.sub, q, func(offset uint64) bool {
		entry, ok := e.entryOf(qSlot, offset)
		if !ok { // the rest is looked at when this has been loaded
			p.load, exhausted = true, false
			return false
		}
		if !e.sound(entry) {
			if !hole { // one is enough to have the queue mended
				e.indexHole(w, q, offset)
			}
			hole = true
			return true
		}
		exhausted = p.take(w, q, codec.RunAgain, offset, entry, most)
		return exhausted
	})
	return exhausted
}

// planNew plans what has not been granted before, as far as the caps let it. It is true when there is no more, or a cap holds the
// rest whose easing marks the queue active.
func (e *Engine) planNew(w *waiter, p *plan, q uint16, qSlot uint32, pos *lease.Position, most int) (exhausted bool) {
	table, run := e.fold.leases, &e.queueRun[qSlot]
	g, _ := e.fold.sessions.GroupByID(w.group)
	leased, unsettled := pos.Leased, int(pos.Leased)+int(pos.Waiting)
	for _, r := range p.rows {
		if r.queue == q {
			leased++
		}
	}
	for offset := pos.Next; offset < run.visible; offset++ {
		if leased >= g.Rules.MaxInFlight || unsettled >= e.limits.UnsettledQueue {
			return true // settling marks the queue active
		}
		if table.Unsettled()+len(p.rows) >= e.limits.Unsettled {
			e.capped = true // settling anywhere goes on here
			return false
		}
		if len(p.runs) >= maxGrantRuns || p.pass >= skipSlice {
			return false
		}
		if pos.Ahead > 0 && table.Known(w.sub, q, offset) {
			p.passed(q, codec.RunKnown, offset)
			continue
		}
		entry, ok := entryAt(run.index, offset)
		if !ok {
			p.load = true
			return false
		}
		if !e.sound(entry) {
			e.indexHole(w, q, offset)
			return true
		}
		// Of one that is lost nobody knows the tag.
		if entry.Flags&entryLost == 0 && !table.Accepts(w.sub, entry.TagHash) {
			p.passed(q, codec.RunSkipped, offset)
			continue
		}
		if !p.take(w, q, codec.RunNew, offset, entry, most) {
			return false
		}
		leased++
		unsettled++
	}
	return true
}

// entryOf finds where a message lies: in the index, or, when retention has moved it, by its copy. ok is false when it has to
// be loaded first.
func (e *Engine) entryOf(queueSlot uint32, offset uint64) (consumequeue.Entry, bool) {
	if offset < e.fold.topics.queues.At(queueSlot).begin {
		entry, _ := e.fold.topics.copyAt(queueSlot, offset)
		return entry, true // one that is not there is not sound
	}
	return entryAt(e.queueRun[queueSlot].index, offset)
}

// entryAt finds an index entry in what is in memory. ok is false when it has to be loaded first.
func entryAt(index *consumequeue.Queue, offset uint64) (consumequeue.Entry, bool) {
	b, ok := index.Block(offset)
	if !ok {
		return consumequeue.Entry{}, false
	}
	return b.Entries[offset-b.First], true
}

// indexHole reports an index entry that its file has lost. The message is in the log, so it is not passed: it
// waits until the index was mended from there. Then there is an entry, whatever the log has: see lostEntry.
func (e *Engine) indexHole(w *waiter, q uint16, offset uint64) {
	topic, first := w.topic, e.stats.indexHoles.Add(1)%1000 == 1
	e.later(func() {
		e.indexWrong(topic, q)
		if first {
			e.logger.Error("the queue index has lost an entry; it is mended from the log", "topic", topic, "queue", q, "offset", offset)
		}
	})
}

// sound tells whether an index entry can be true.
func (e *Engine) sound(entry consumequeue.Entry) bool {
	size := uint64(entry.Size)
	return entry.Written() && size >= codec.HeaderBytes+codec.MessageAssignedBytes && size <= uint64(e.log.MaxRecord()) &&
		entry.Position < e.log.Appended() && size <= e.log.Appended()-entry.Position && e.log.SameSegment(entry.Position, entry.Position+size-1)
}

// take adds a message to the plan unless the answer is full. One message always fits.
func (p *plan) take(w *waiter, q uint16, kind codec.RunKind, offset uint64, entry consumequeue.Entry, most int) bool {
	if len(p.rows) >= most || len(p.runs) >= maxGrantRuns {
		return false
	}
	size := codec.Padded(int(entry.Size))
	if len(p.rows) > 0 && p.bytes+size > w.maxBytes {
		return false
	}
	p.bytes += size
	p.rows = append(p.rows, popRow{offset: offset, position: entry.Position, size: entry.Size, queue: q, attempts: 1})
	if kind == codec.RunAgain {
		p.again = true
	}
	p.run(q, kind, offset)
	return true
}

// passed adds an offset that the cursor passes without a grant.
func (p *plan) passed(q uint16, kind codec.RunKind, offset uint64) {
	p.pass++
	p.run(q, kind, offset)
}

func (p *plan) run(q uint16, kind codec.RunKind, offset uint64) {
	if n := len(p.runs); n > 0 {
		if last := &p.runs[n-1]; last.Queue == q && last.Kind == kind && last.Offset+uint64(last.Count) == offset {
			last.Count++
			return
		}
	}
	p.runs = append(p.runs, codec.GrantRun{Queue: q, Kind: kind, Count: 1, Offset: offset})
}

// grant appends and applies the GRANT record of the plan and fills the outcome of w.
func (e *Engine) grant(w *waiter, p *plan, nowMs int64) {
	table := e.fold.leases
	epoch, number := e.grantNumber()
	g, _ := e.fold.sessions.GroupByID(w.group)
	leaseMs := w.leaseMs
	if g.Rules.MaxTotalMs > 0 {
		leaseMs = min(leaseMs, int64(g.Rules.MaxTotalMs))
	}
	rec := &e.scratch.grant
	*rec = codec.Grant{
		Sub: w.subID, Number: number, Session: w.session, DeadlineMs: nowMs + leaseMs,
		PopSequence: w.sequence, PopSlot: w.slot, Lost: w.lost, Runs: p.runs,
	}
	h := e.appendRecord(codec.TypeGrant, rec.Append(e.scratch.payload))
	e.fold.grant(&h, rec)
	if len(p.rows) == 0 {
		return
	}
	res := &w.result
	res.rows = append(res.rows[:0], p.rows...)
	res.token = uint64(epoch)<<32 | uint64(rec.Number)
	res.grantMs, res.leaseMs, res.startMs = h.LeaseMs, leaseMs, nowMs
	res.renewals, res.budgetMs = lease.Budget(g.Rules, 0, rec.DeadlineMs, h.LeaseMs)
	sub := table.At(w.sub)
	res.leased, res.waiting = sub.Leased, sub.Waiting
	w.status = protocol.OK
	if !p.again && !w.wholly {
		// A first grant may be told before its record is on disk: should it be lost, the receipt proves it.
		w.gate = max(e.sessRun[w.sessSlot].gate, e.subRun[w.sub].gate, e.gates[w.group], e.epochGate)
	} else {
		w.gate = e.log.Appended()
		for i := range res.rows {
			row := &res.rows[i]
			if got, ok := table.Granted(w.sub, row.queue, row.offset); ok {
				row.attempts, row.failures, row.expiries, row.losses = got.Attempts, got.Failures, got.Expiries, got.Losses
			}
		}
	}
	e.stats.popped.Add(uint64(len(res.rows)))
	if p.again {
		for i := range res.rows {
			if res.rows[i].attempts > 1 {
				e.stats.redelivered.Add(1)
			}
		}
	}
}

// grantNumber is the number of the next GRANT record, and its epoch.
func (e *Engine) grantNumber() (epoch, number uint32) {
	epoch, number = e.fold.leases.Number()
	if number == ^uint32(0)-1 {
		e.newEpoch()
		epoch, number = e.fold.leases.Number()
	}
	return epoch, number + 1
}
