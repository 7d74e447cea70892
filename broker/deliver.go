package broker

import (
	"cmp"
	"errors"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// After a pop has been decided its bodies are read and its receipts made, in the loop: from the log's ring
// or from what the system has in memory; what may have to wait for the disk is read by a worker. Bodies
// are checked before they are handed out; a bad one ends its lease uncounted.

// errCold says that a read would have to wait for the disk.
var errCold = errors.New("broker: not in memory")

// reader reads log bytes into dst. ok is false when that would have to wait for the disk.
type reader func(dst []byte, position uint64) (ok bool, err error)

// finishPop answers a pop.
func (l *Loop) finishPop(w *waiter) {
	c := w.conn
	if c.closed {
		if w.status == protocol.OK {
			l.e.takeBack(w)
		}
		l.recycle(w)
		return
	}
	out := c.peer.Room(l.e.popBytes(w))
	at := len(out)
	a := parkedAnswer{gate: w.gate, request: w.request, size: w.size, code: protocol.OpPop}
	if w.status != protocol.OK && w.status != protocol.Empty {
		l.deliver(c, appendError(out, a.code, a.request, w.status, &w.refusal), at, a)
		l.recycle(w)
		return
	}
	out, bad, err := l.e.appendPop(out, w, l.e.log.TryRead)
	switch {
	case err == nil && len(bad) == 0:
		l.deliver(c, out, at, a)
		l.recycle(w)
	default:
		// Rare: what is cold, or damaged, is for a worker.
		l.e.work.add(func() { l.e.finishSlowly(w) })
	}
}

// finishSlowly answers a pop from a worker: it may wait for the disk. What cannot be read, or is damaged, is
// told apart record by record before anything is passed.
func (e *Engine) finishSlowly(w *waiter) {
	read := func(dst []byte, position uint64) (bool, error) { return true, e.log.ReadAt(dst, position) }
	frame, bad, err := e.appendPop(make([]byte, 0, e.popBytes(w)), w, read)
	for err != nil || len(bad) > 0 {
		if e.passBad(w, e.findBad(w, read)) {
			return // nothing is left: it has been answered, or waits again
		}
		frame, bad, err = e.appendPop(nil, w, read)
	}
	l := w.conn.loop
	l.put(inboxItem{call: func() { l.sendFrame(w, frame) }})
	l.wake()
}

// badRow is a message of a pop that cannot be handed out.
type badRow struct {
	popRow
	misplaced bool // no record is there, or another one: the index may be wrong
	gone      bool // its segment was removed meanwhile: there is a copy
	why       string
}

// findBad reads the records of a pop one by one.
func (e *Engine) findBad(w *waiter, read reader) (bad []badRow) {
	for _, row := range w.result.rows {
		record := make([]byte, row.size)
		_, err := read(record, row.position)
		misplaced := false
		if err == nil {
			misplaced, err = checkRecord(w, &row, record)
		}
		if err != nil {
			gone := errors.Is(err, mmaplog.ErrRemoved)
			bad = append(bad, badRow{row, misplaced || gone, gone, err.Error()})
		}
	}
	return bad
}

// checkRecord says what is wrong with a record that the index gave for row. One that is damaged is that of row only if it still
// says so.
func checkRecord(w *waiter, row *popRow, record []byte) (misplaced bool, err error) {
	h, _, _, err := codec.ReadRecord(record)
	if h.Type != codec.TypeMessage && h.Type != codec.TypeCopy || h.Position != row.position || h.Length != row.size {
		return true, cmp.Or(err, errors.New("another record lies there"))
	}
	p := codec.ParseMessagePlace(record[codec.HeaderBytes:]) // as long as sound wants it
	if p.Topic != w.topic || p.Queue != row.queue || p.Offset != row.offset {
		return true, cmp.Or(err, errors.New("another message lies there"))
	}
	return false, err
}

// sendFrame sends an answer that a worker has made.
func (l *Loop) sendFrame(w *waiter, frame []byte) {
	if w.conn.closed {
		l.e.takeBack(w)
		return
	}
	out := w.conn.peer.Out()
	at := len(out)
	l.deliver(w.conn, append(out, frame...), at, parkedAnswer{gate: w.gate, request: w.request, size: w.size, code: protocol.OpPop})
}

// misplacedWaitMs is how long a message waits that the index does not find, while the index is mended.
const misplacedWaitMs = 5_000

// passBad takes what cannot be handed out from a pop: damaged messages are passed, those that only the index
// does not find are given back for a while. When nothing is left the pop is tried again. It is true when the
// caller has nothing more to do: the pop waits again, or has been answered.
func (e *Engine) passBad(w *waiter, bad []badRow) (finished bool) {
	e.enter()
	defer e.leave()
	if e.failed.Load() {
		w.status, w.refusal, w.gate = protocol.StoreFailed, storeFailed, 0
		e.hand(w)
		return true
	}
	bad = slices.DeleteFunc(bad, func(b badRow) bool { return b.gone && e.findCopy(w, &b) })
	for i := range bad {
		e.passRow(w, &bad[i])
	}
	w.result.drop(func(r *popRow) bool {
		return slices.ContainsFunc(bad, func(b badRow) bool { return b.queue == r.queue && b.offset == r.offset })
	})
	w.gate = e.log.Appended()
	e.settleDown(nil)
	if len(w.result.rows) > 0 {
		return false
	}
	if e.superseded(w) {
		w.status, w.refusal = protocol.Superseded, protocol.ErrorBody{Message: "a later pop of the slot took its place"}
		e.hand(w)
		return true
	}
	nowMs := e.lease.fine(e.clock.Mono())
	switch outcome := e.tryPop(w, nowMs); {
	case outcome == popGranted:
		return false
	case outcome == popGone:
		e.answerGone(w)
		e.hand(w)
	case (w.dueMs > nowMs || outcome != popNothing) && !w.conn.gone.Load():
		e.park(w)
		e.markDirty(w.sub)
	default:
		e.answerEmpty(w)
		e.hand(w)
	}
	return true
}

// answerGone tells a pop whose session or subscription went while a worker had it what parked ones are told then.
func (e *Engine) answerGone(w *waiter) {
	_, w.status, w.refusal = e.session(w.session)
	w.gate = e.log.Appended()
	if w.status != protocol.OK {
		return
	}
	w.status = protocol.Empty // after a purge: it asks again, and finds the new subscription
	if _, there := e.fold.topics.ids[w.topic]; !there {
		w.status, w.refusal = protocol.TopicNotFound, protocol.ErrorBody{Message: "the topic was deleted"}
	}
}

// findCopy has a row read from the copy of its message that retention has made. It is false when there is none.
func (e *Engine) findCopy(w *waiter, bad *badRow) bool {
	queueSlot, ok := e.fold.topics.queueSlot(w.topic, bad.queue)
	if !ok {
		return false
	}
	entry, ok := e.fold.topics.copyAt(queueSlot, bad.offset)
	if !ok || entry.Position == bad.position {
		return false
	}
	for i := range w.result.rows {
		if row := &w.result.rows[i]; row.queue == bad.queue && row.offset == bad.offset {
			row.position, row.size = entry.Position, entry.Size
		}
	}
	return true
}

// drop takes rows out.
func (res *popResult) drop(out func(*popRow) bool) {
	kept := 0
	for i := range res.rows {
		if out(&res.rows[i]) {
			continue
		}
		res.rows[kept] = res.rows[i]
		if len(res.terms) > 0 {
			res.terms[kept] = res.terms[i]
		}
		kept++
	}
	res.rows = res.rows[:kept]
	res.terms = res.terms[:min(kept, len(res.terms))]
}

// passRow ends the lease of one message that cannot be handed out, uncounted.
func (e *Engine) passRow(w *waiter, row *badRow) {
	got, ok := e.fold.leases.Granted(w.sub, row.queue, row.offset)
	if !ok || got.Token != w.result.token || e.subRun[w.sub].id != w.subID || !e.claim(worstSmall) {
		return // it stays as it is, and comes again when its lease is over
	}
	defer e.release(worstSmall)
	if row.misplaced && e.isLost(w.topic, row.queue, row.offset) {
		row.misplaced = false
	}
	if row.misplaced {
		e.stats.indexHoles.Add(1)
		rec := &e.scratch.change
		*rec = codec.Change{Sub: w.subID, Session: w.session, Entries: append(rec.Entries[:0], codec.ChangeEntry{
			Queue: row.queue, Kind: codec.ChangeTaken,
			Offset: row.offset, Token: got.Token, AtMs: e.lease.now() + misplacedWaitMs,
		})}
		e.flushChange(rec)
	} else {
		e.stats.unreadable.Add(1)
		rec := codec.Unreadable{Sub: w.subID, Queue: row.queue, Offset: row.offset, Token: got.Token}
		e.appendRecord(codec.TypeUnreadable, rec.Append(e.scratch.payload))
		e.fold.leases.Unreadable(&rec)
		e.freed(w.subID, row.queue, w.session)
	}
	topic, group, bad := w.topic, w.group, *row
	e.later(func() {
		what := "a message is damaged and was passed"
		if bad.misplaced {
			what = "the queue index names the wrong record; it is mended from the log"
			e.indexWrong(topic, bad.queue)
		}
		e.logger.Error(what, "topic", topic, "queue", bad.queue, "offset", bad.offset,
			"position", bad.position, "group", group, "why", bad.why)
	})
}

// takeBack gives back, uncounted, what was granted to a pop whose connection is gone: nobody knows of it.
func (e *Engine) takeBack(w *waiter) {
	e.enter()
	defer e.leave()
	if e.failed.Load() || e.subRun[w.sub].id != w.subID || w.sequence != 0 {
		return // one with a number is asked for again, or given back by the next
	}
	if s, ok := e.fold.sessions.Session(w.session); !ok || s.Ended {
		return
	}
	rec := &e.scratch.change
	*rec = codec.Change{Sub: w.subID, Session: w.session, Entries: rec.Entries[:0]}
	for _, row := range w.result.rows {
		got, ok := e.fold.leases.Granted(w.sub, row.queue, row.offset)
		if ok && got.Token == w.result.token {
			rec.Entries = append(rec.Entries, codec.ChangeEntry{
				Queue: row.queue, Kind: codec.ChangeTaken, Offset: row.offset, Token: w.result.token,
			})
		}
	}
	if worst := len(rec.Entries)*perChange + worstSmall; e.claim(worst) {
		e.flushChange(rec)
		e.release(worst)
	}
	e.settleDown(nil)
}

// popBytes is how long the answer of a pop gets at most while it is made, what lies between its records included.
func (e *Engine) popBytes(w *waiter) int {
	rows := w.result.rows
	n := protocol.HeaderBytes + protocol.PopAnswerHeadBytes(len(rows), 0)
	most := n
	for first := 0; first < len(rows); {
		k, span, useful := e.span(rows[first:])
		most = max(most, n+span)
		n += useful
		first += k
	}
	return most
}

// appendPop encodes the answer of a pop, bodies and all. bad lists rows whose record is damaged; err is
// errCold or why a read failed. In both cases what it returns is not to be used.
func (e *Engine) appendPop(dst []byte, w *waiter, read reader) (_ []byte, bad []popRow, err error) {
	rows := w.result.rows
	if w.status == protocol.Empty {
		rows = nil
	}
	// The lease has run since it was given, if the bodies had to be waited for.
	nowMs := e.lease.fine(e.clock.Mono())
	remainingMs := uint32(max(w.result.leaseMs-max(nowMs-w.result.startMs, 0), 0))
	at := len(dst)
	head := protocol.PopAnswerHeadBytes(len(rows), 0)
	dst = slices.Grow(dst, protocol.HeaderBytes+head)
	dst = protocol.BeginFrame(dst, protocol.Header{
		Opcode: protocol.OpPop, Flags: protocol.FlagAnswer, Status: w.status, RequestID: w.request,
	})
	bodyAt := len(dst)
	dst = dst[:bodyAt+head]
	recordsAt := len(dst)
	for first := 0; first < len(rows); {
		n, span, useful := e.span(rows[first:])
		start := rows[first].position
		from := len(dst)
		dst = slices.Grow(dst, span)[:from+span]
		ok, err := read(dst[from:], start)
		if err == nil && !ok {
			err = errCold
		}
		if err != nil {
			return dst[:at], nil, err
		}
		if useful < span { // leave out what lies between
			dst = dst[:from+compact(dst[from:], rows[first:first+n], start)]
		}
		place := from
		for i := first; i < first+n; i++ {
			row := &rows[i]
			terms := leaseTerms{renewals: w.result.renewals, budgetMs: w.result.budgetMs}
			if len(w.result.terms) > 0 {
				terms = w.result.terms[i]
				remainingMs = uint32(max(terms.endMs-nowMs, 0))
			}
			if !e.putRow(dst[bodyAt:], i, w, row, dst[place:place+int(row.size)], uint32(place-recordsAt), remainingMs, &terms) {
				bad = append(bad, *row)
			}
			place += codec.Padded(int(row.size))
		}
		first += n
	}
	protocol.PutPopAnswerHead(dst[bodyAt:], w.result.leased, w.result.waiting, len(rows), 0, uint32(len(dst)-recordsAt))
	protocol.EndFrame(dst, at)
	return dst, bad, nil
}

// span is how many rows one read takes, its bytes, and how many of them are asked for: a run of records,
// or one that others lie between, if they are not too many. Reads stay inside a segment.
func (e *Engine) span(rows []popRow) (n, bytes, useful int) {
	start := rows[0].position
	end := start + uint64(codec.Padded(int(rows[0].size)))
	useful = int(end - start)
	for n = 1; n < len(rows); n++ {
		row := &rows[n]
		size := codec.Padded(int(row.size))
		if row.position < end || !e.log.SameSegment(start, row.position) {
			break
		}
		if all := int(row.position-start) + size; all > spanFactor*(useful+size) || all > maxSpan {
			break
		}
		end = row.position + uint64(size)
		useful += size
	}
	return n, int(end - start), useful
}

// compact moves the records of rows to the front of b, which begins at position start, and tells their length.
func compact(b []byte, rows []popRow, start uint64) int {
	to := 0
	for i := range rows {
		size := codec.Padded(int(rows[i].size))
		from := int(rows[i].position - start)
		copy(b[to:to+size], b[from:from+size])
		to += size
	}
	return to
}

// putRow checks a record and writes its row. It is false when the record is not the one that the index names.
func (e *Engine) putRow(body []byte, i int, w *waiter, row *popRow, record []byte, offset, remainingMs uint32, terms *leaseTerms) bool {
	if _, err := checkRecord(w, row, record); err != nil {
		return false
	}
	p := codec.ParseMessagePlace(record[codec.HeaderBytes:])
	r := lease.Receipt{
		Topic: w.topic, Group: w.group, Sub: w.subID, Queue: row.queue, Session: w.session,
		Offset: row.offset, ID: p.ID, Token: w.result.token, GrantMs: w.result.grantMs,
	}
	receipt := protocol.LeaseRowReceipt(body, i)
	e.key.Append(receipt[:0], &r)
	protocol.PutLeaseRow(body, i, &protocol.LeaseRow{
		RecordOffset: offset, RecordLength: row.size, Token: w.result.token, Attempt: uint32(row.attempts),
		RemainingMs: remainingMs, RenewalsLeft: terms.renewals,
		Failures: row.failures, Expiries: row.expiries, SessionLosses: row.losses,
		BudgetMs: uint32(min(terms.budgetMs, 1<<32-1)), Receipt: receipt,
	})
	return true
}
