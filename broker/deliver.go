package broker

import (
	"errors"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/lease"
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
	out := c.peer.Out()
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

// finishSlowly answers a pop from a worker: it may wait for the disk.
func (e *Engine) finishSlowly(w *waiter) {
	for {
		frame, bad, err := e.appendPop(nil, w, func(dst []byte, position uint64) (bool, error) {
			return true, e.log.ReadAt(dst, position)
		})
		if err == nil && len(bad) == 0 {
			l := w.conn.loop
			l.put(inboxItem{call: func() { l.sendFrame(w, frame) }})
			l.wake()
			return
		}
		if err != nil {
			e.logger.Error("messages cannot be read", "topic", w.topic, "session", w.session, "error", err)
			bad = w.result.rows // none of a span that cannot be read can be delivered
		}
		e.passUnreadable(w, bad)
	}
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

// passUnreadable passes messages whose stored bytes are damaged and takes them out of the answer.
func (e *Engine) passUnreadable(w *waiter, bad []popRow) {
	bad = slices.Clone(bad)
	e.enter()
	defer e.leave()
	for _, row := range bad {
		if e.room() < worstSmall {
			break // it stays leased, and comes again when its lease is over
		}
		if got, ok := e.fold.leases.Granted(w.sub, row.queue, row.offset); ok && got.Token == w.result.token && e.subRun[w.sub].id == w.subID {
			rec := codec.Unreadable{Sub: w.subID, Queue: row.queue, Offset: row.offset, Token: w.result.token}
			e.appendRecord(codec.TypeUnreadable, rec.Append(e.scratch.payload))
			e.fold.leases.Unreadable(&rec)
			e.stats.unreadable.Add(1)
			e.logger.Error("a message is damaged and was passed", "topic", w.topic, "queue", row.queue,
				"offset", row.offset, "position", row.position, "group", w.group)
		}
	}
	w.result.rows = slices.DeleteFunc(w.result.rows, func(r popRow) bool {
		return slices.ContainsFunc(bad, func(b popRow) bool { return b.queue == r.queue && b.offset == r.offset })
	})
	if len(w.result.rows) == 0 {
		w.status = protocol.Empty
	}
	w.gate = e.log.Appended()
	e.settleDown(nil)
}

// takeBack gives back, uncounted, what was granted to a pop whose connection is gone: nobody knows of it.
func (e *Engine) takeBack(w *waiter) {
	e.enter()
	defer e.leave()
	if e.failed.Load() || e.subRun[w.sub].id != w.subID {
		return
	}
	if s, ok := e.fold.sessions.Session(w.session); !ok || s.Ended {
		return
	}
	rec := &e.scratch.change
	*rec = codec.Change{Sub: w.subID, Session: w.session, Entries: rec.Entries[:0]}
	for _, row := range w.result.rows {
		got, ok := e.fold.leases.Granted(w.sub, row.queue, row.offset)
		if ok && got.Token == w.result.token && got.Renewals == 0 {
			rec.Entries = append(rec.Entries, codec.ChangeEntry{
				Queue: row.queue, Kind: codec.ChangeReleased, Ordinal: 1, Offset: row.offset, Token: w.result.token,
			})
		}
	}
	if e.room() > len(rec.Entries)*perChange+worstSmall {
		e.flushChange(rec)
	}
	e.settleDown(nil)
}

// appendPop encodes the answer of a pop, bodies and all. bad lists rows whose record is damaged; err is
// errCold or why a read failed. In both cases what it returns is not to be used.
func (e *Engine) appendPop(dst []byte, w *waiter, read reader) (_ []byte, bad []popRow, err error) {
	rows := w.result.rows
	if w.status == protocol.Empty {
		rows = nil
	}
	total := 0
	for i := range rows {
		total += codec.Padded(int(rows[i].size))
	}
	at := len(dst)
	head := protocol.PopAnswerHeadBytes(len(rows), 0)
	dst = slices.Grow(dst, protocol.HeaderBytes+head+total+total/2)
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
			if !e.putRow(dst[bodyAt:], i, w, row, dst[place:place+int(row.size)], uint32(place-recordsAt)) {
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
func (e *Engine) putRow(body []byte, i int, w *waiter, row *popRow, record []byte, offset uint32) bool {
	h, assigned, _, err := codec.ReadRecord(record)
	if err != nil || h.Type != codec.TypeMessage || h.Position != row.position {
		return false
	}
	p := codec.ParseMessagePlace(assigned)
	if p.Topic != w.topic || p.Queue != row.queue || p.Offset != row.offset {
		return false
	}
	r := lease.Receipt{
		Topic: w.topic, Group: w.group, Sub: w.subID, Queue: row.queue, Session: w.session,
		Offset: row.offset, ID: p.ID, Token: w.result.token, GrantMs: w.result.grantMs,
	}
	receipt := protocol.LeaseRowReceipt(body, i)
	e.key.Append(receipt[:0], &r)
	protocol.PutLeaseRow(body, i, &protocol.LeaseRow{
		RecordOffset: offset, RecordLength: row.size, Token: w.result.token, Attempt: uint32(row.attempts),
		RemainingMs: uint32(w.result.leaseMs), RenewalsLeft: w.result.renewals,
		Failures: row.failures, Expiries: row.expiries, SessionLosses: row.losses,
		BudgetMs: uint32(min(w.result.budgetMs, 1<<32-1)), Receipt: receipt,
	})
	return true
}
