package broker

import (
	"github.com/leasemq/leasemq/protocol"
)

// An answer leaves when the log has committed everything that it depends on: its gate. One whose gate is
// reached goes straight into its connection's output buffer; the others wait, encoded, in a ring of
// their loop. Gates in the ring never fall, so that the log's progress releases a prefix of it.

const (
	chunkBytes = 64 << 10
	// ownBytes and more are kept in a buffer of their own.
	ownBytes = 16 << 10
)

// chunk is a buffer that several parked answers share.
type chunk struct {
	buf  []byte
	refs int
}

type parkedAnswer struct {
	gate    uint64
	conn    *connState
	frame   []byte
	chunk   *chunk // nil: the frame has a buffer of its own
	request uint64
	size    int
	code    protocol.Opcode
	push    bool
}

// parkedRing is the answers of one loop that wait for the log. Its loop owns it.
type parkedRing struct {
	items []parkedAnswer
	head  int
	chunk *chunk
	free  []*chunk
}

func (r *parkedRing) len() int { return len(r.items) - r.head }

// add parks a copy of a.frame.
func (r *parkedRing) add(a parkedAnswer) {
	if n := len(r.items); n > r.head {
		a.gate = max(a.gate, r.items[n-1].gate)
	}
	if len(a.frame) >= ownBytes {
		a.frame = append([]byte(nil), a.frame...)
	} else {
		if r.chunk == nil || len(r.chunk.buf)+len(a.frame) > cap(r.chunk.buf) {
			r.chunk = r.newChunk()
		}
		c := r.chunk
		at := len(c.buf)
		c.buf = append(c.buf, a.frame...)
		c.refs++
		a.frame, a.chunk = c.buf[at:], c
	}
	if r.head > 1024 && r.head*2 > len(r.items) {
		n := copy(r.items, r.items[r.head:])
		clear(r.items[n:])
		r.items, r.head = r.items[:n], 0
	}
	r.items = append(r.items, a)
}

func (r *parkedRing) newChunk() *chunk {
	if n := len(r.free); n > 0 {
		c := r.free[n-1]
		r.free = r.free[:n-1]
		return c
	}
	return &chunk{buf: make([]byte, 0, chunkBytes)}
}

// pop takes the first answer. Its frame is good until done is called.
func (r *parkedRing) pop() parkedAnswer {
	a := r.items[r.head]
	r.items[r.head] = parkedAnswer{}
	r.head++
	if r.head == len(r.items) {
		r.items, r.head = r.items[:0], 0
	}
	return a
}

func (r *parkedRing) done(a *parkedAnswer) {
	c := a.chunk
	if c == nil {
		return
	}
	if c.refs--; c.refs == 0 {
		c.buf = c.buf[:0]
		if c != r.chunk && len(r.free) < 64 {
			r.free = append(r.free, c)
		}
	}
}

// appendAnswer encodes the answer of an op.
func appendAnswer(dst []byte, o *op) []byte {
	at := len(dst)
	dst = protocol.BeginFrame(dst, protocol.Header{
		Opcode: o.code, Flags: protocol.FlagAnswer, Status: o.status, RequestID: o.request,
	})
	switch {
	case o.status != protocol.OK:
		dst = o.why.Append(dst)
	case o.code == protocol.OpSend:
		dst = protocol.AppendSendAnswerHead(dst, len(o.results))
		for i := range o.results {
			dst = protocol.AppendSendResult(dst, &o.results[i])
		}
	case o.code == protocol.OpAck || o.code == protocol.OpChangeInvisible:
		dst = protocol.AppendSettleAnswerHead(dst, len(o.settled))
		for i := range o.settled {
			dst = protocol.AppendSettleResult(dst, &o.settled[i])
		}
	default:
		dst = append(dst, o.body...)
	}
	protocol.EndFrame(dst, at)
	return dst
}

// appendError encodes an answer that is an error.
func appendError(dst []byte, code protocol.Opcode, request uint64, s protocol.Status, why *protocol.ErrorBody) []byte {
	at := len(dst)
	dst = protocol.BeginFrame(dst, protocol.Header{Opcode: code, Flags: protocol.FlagAnswer, Status: s, RequestID: request})
	dst = why.Append(dst)
	protocol.EndFrame(dst, at)
	return dst
}

// deliver sends the frame that lies in its connection's output buffer from at on, or parks it.
func (l *Loop) deliver(c *connState, out []byte, at int, a parkedAnswer) {
	switch {
	case a.gate <= l.e.log.Committed():
	case !l.e.failed.Load():
		a.conn, a.frame = c, out[at:]
		l.parked.add(a)
		l.pending.Store(int64(l.parked.len()))
		l.e.log.WantSync(a.gate)
		return
	case a.push:
		return
	default: // what it says will never be committed
		out = appendError(out[:at], a.code, a.request, protocol.StoreFailed, &storeFailed)
	}
	c.peer.SetOut(out)
	c.unanswered -= a.size
}

// answer answers an op that has been decided.
func (l *Loop) answer(o *op) {
	if o.parked {
		return
	}
	if o.pop != nil && o.status == protocol.OK {
		l.finishPop(o.pop)
		return
	}
	if o.pop != nil {
		l.recycle(o.pop)
	}
	c := o.conn
	if c.closed {
		return
	}
	if o.session != 0 {
		l.speaksFor(c, o.session)
	}
	if o.code == protocol.OpRegister && o.status == protocol.OK {
		l.finishRegister(o)
	}
	out := c.peer.Out()
	at := len(out)
	l.deliver(c, appendAnswer(out, o), at, parkedAnswer{gate: o.gate, request: o.request, size: o.size, code: o.code})
}

// release sends the answers that the log has caught up with.
func (l *Loop) release() {
	committed := l.e.log.Committed()
	failed := l.e.failed.Load()
	for l.parked.len() > 0 && (failed || l.parked.items[l.parked.head].gate <= committed) {
		a := l.parked.pop()
		if !a.conn.closed {
			out := a.conn.peer.Out()
			switch {
			case !failed:
				out = append(out, a.frame...)
			case !a.push:
				out = appendError(out, a.code, a.request, protocol.StoreFailed, &storeFailed)
			}
			a.conn.peer.SetOut(out)
			a.conn.unanswered -= a.size
		}
		l.parked.done(&a)
	}
	l.pending.Store(int64(l.parked.len()))
}

var storeFailed = protocol.ErrorBody{Message: "the store failed and the broker goes down; the outcome is unknown"}

// Flush takes the requests of a network batch through the section and answers them.
func (l *Loop) Flush(p Peer) {
	// The requests are taken first, so that none is decided twice, or after its bytes are gone, should
	// something panic: the front then closes the connection and goes on with the next one.
	ops := l.ops
	l.ops = l.spare[:0]
	l.spare = ops
	defer l.giveBack(ops)
	for len(ops) > 0 && ops[0].conn.peer != p { // left by a batch that was never flushed
		l.giveBack(ops[:1])
		ops = ops[1:]
	}
	for done := 0; done < len(ops); {
		done += l.decideSome(ops[done:])
	}
	for _, o := range ops {
		l.answer(o)
		l.forget(o)
	}
	// The log may have moved between a look at its position and the answer's being parked. It reads
	// pending after it has moved, so one of the two sees the other.
	l.release()
}

// giveBack returns what requests that were not decided had been promised.
func (l *Loop) giveBack(ops []*op) {
	for _, o := range ops {
		if o.worst > 0 {
			l.e.reserved.Add(-int64(o.worst))
			o.worst = 0
		}
	}
}

// keptBytes is the largest answer whose buffer an op keeps for the next.
const keptBytes = 64 << 10

// forget puts an op that is answered on the free list.
func (l *Loop) forget(o *op) {
	if cap(o.body) > keptBytes {
		o.body = nil
	}
	l.freed = append(l.freed, o)
}

// decideSome decides requests in one hold of the section, until they have sectionEntries entries, and
// tells how many it decided.
func (l *Loop) decideSome(ops []*op) (n int) {
	e := l.e
	e.enter()
	defer e.leave()
	if e.failed.Load() {
		for _, o := range ops {
			o.status, o.why = protocol.StoreFailed, storeFailed
			// Parked before a panic cut its hold of the section short: it is answered with the waiters.
			o.parked = o.pop != nil && o.pop.id != 0
		}
		e.failWaiters()
		return len(ops)
	}
	// What the log has committed meanwhile is visible to these requests, but those who waited come first.
	e.settleDown(l)
	for entries := 0; n < len(ops) && entries < sectionEntries; n++ {
		o := ops[n]
		before := e.log.Appended()
		if o.status == protocol.OK {
			entries += o.weight()
			e.current = o.worst
			e.decide(o)
			e.current = 0
		}
		if o.worst > 0 { // after what it appended can be seen, so that it counts at least once
			e.reserved.Add(-int64(o.worst))
			o.worst = 0
			if e.log.Appended() == before {
				e.wakeStalled() // nothing will be committed that would
			}
		}
	}
	e.settleDown(l)
	return n
}

// weight is what a request counts in a hold of the section. One that walks over everything has a hold to itself.
func (o *op) weight() int {
	switch o.code {
	case protocol.OpListTopics, protocol.OpListGroups, protocol.OpShowGroup, protocol.OpStats,
		protocol.OpUpdateGroup, protocol.OpDeleteGroup, protocol.OpDeleteTopic, protocol.OpPurgeTopic, protocol.OpUpdateTopic:
		return sectionEntries
	}
	return 1 + len(o.messages) + len(o.tickets)
}

// wakeStalled has loops that refused a frame try again.
func (e *Engine) wakeStalled() {
	for _, l := range e.loops {
		if l.stalled.Load() {
			e.wakeSoon(l)
		}
	}
}

// decide decides one request. Its answer depends on everything appended so far, whatever it says.
func (e *Engine) decide(o *op) {
	switch o.code {
	case protocol.OpSend:
		e.send(o)
	case protocol.OpPop:
		if o.parked = !e.pop(o); !o.parked && o.pop.status != protocol.OK && o.pop.status != protocol.Empty {
			o.status, o.why = o.pop.status, o.pop.refusal
		}
	case protocol.OpAck:
		e.ack(o)
	case protocol.OpChangeInvisible:
		e.change(o)
	default:
		e.decideAdmin(o)
	}
	o.gate = e.log.Appended()
}

func (e *Engine) decideAdmin(o *op) {
	switch o.code {
	case protocol.OpRegister:
		e.register(o, o.admin.(*protocol.RegisterRequest))
	case protocol.OpHeartbeat: // of a session that does not live; or the engine was asked twice at once
		r := o.admin.(*protocol.HeartbeatRequest)
		if _, status, why := e.session(r.Session); status != protocol.OK {
			o.status, o.why = status, why
		} else {
			a := protocol.HeartbeatAnswer{Draining: e.draining.Load(), Timestamp: r.Timestamp}
			o.body = a.Append(o.body[:0])
		}
	case protocol.OpUnregister:
		e.unregister(o, o.admin.(*protocol.UnregisterRequest))
	case protocol.OpPeek:
		e.peek(o, o.admin.(*protocol.PeekRequest))
	case protocol.OpCreateTopic:
		e.createTopicCall(o, o.admin.(*protocol.CreateTopicRequest))
	case protocol.OpUpdateTopic:
		e.updateTopic(o, o.admin.(*protocol.UpdateTopicRequest))
	case protocol.OpDeleteTopic:
		e.deleteTopic(o, o.admin.(*protocol.NameRequest))
	case protocol.OpPurgeTopic:
		e.purgeTopic(o, o.admin.(*protocol.NameRequest))
	case protocol.OpListTopics:
		e.listTopics(o)
	case protocol.OpCreateGroup:
		e.createGroupCall(o, o.admin.(*protocol.GroupRequest))
	case protocol.OpUpdateGroup:
		e.updateGroup(o, o.admin.(*protocol.GroupRequest))
	case protocol.OpDeleteGroup:
		e.deleteGroup(o, o.admin.(*protocol.NameRequest))
	case protocol.OpListGroups:
		e.listGroups(o)
	case protocol.OpShowGroup:
		e.showGroup(o, o.admin.(*protocol.NameRequest))
	case protocol.OpStats:
		e.statsCall(o)
	}
}

// settleDown ends every hold of the section: what is committed becomes visible, and nobody who waits is
// left beside something that can be given to him. What is over its share goes on in another hold.
func (e *Engine) settleDown(l *Loop) {
	if e.failed.Load() {
		e.failWaiters()
		return
	}
	more := e.dispatchTo(e.log.Committed())
	if len(e.gone) > 0 {
		e.giveUpTo(e.log.Committed())
	}
	if e.serve(serveSlice) || more {
		e.todo.Store(true)
		if l == nil && len(e.loops) > 0 {
			l = e.loops[0]
		}
		if l != nil {
			e.wakeSoon(l)
		}
	}
}

func (e *Engine) failWaiters() {
	for _, w := range e.waiters.byID {
		if w != nil {
			e.unpark(w)
			w.status, w.refusal, w.gate = protocol.StoreFailed, storeFailed, 0
			e.hand(w)
		}
	}
}

// Wake does what others have left for this loop: pops to be served because the log has moved, answers
// that it releases, news.
func (l *Loop) Wake() {
	l.stalled.Store(false) // the front tries stalled connections again after this
	l.catchUp()
}

// catchUp is Wake for who does not try stalled connections again.
func (l *Loop) catchUp() {
	e := l.e
	if e.todo.Swap(false) || e.waiting.Load() > 0 && (e.failed.Load() || e.log.Committed() > e.dispatched.Load()) {
		e.advance(l)
	}
	l.readInbox()
	if round := e.markerRound.Load(); round > l.marked.Load() {
		l.mark()
		l.marked.Store(round)
	}
	l.release()
}

// advance is a hold of the section for its own sake.
func (e *Engine) advance(l *Loop) {
	e.enter()
	defer e.leave()
	e.loaded()
	e.settleDown(l)
}

// loaded has the subscriptions looked at that waited for the index.
func (e *Engine) loaded() {
	for _, slot := range e.loading {
		e.subRun[slot].loading = false
		if e.subRun[slot].id != 0 {
			e.markDirty(slot)
		}
	}
	e.loading = e.loading[:0]
}

// mark is this loop's part of a marker round: sessions whose connections may still have something unread
// are not silent.
func (l *Loop) mark() {
	suspects := l.e.suspected.Load()
	if suspects == nil {
		return
	}
	nowMs := l.e.lease.fine(l.e.clock.Mono())
	for c := range l.conns {
		for id := range c.sessions {
			if _, ok := (*suspects)[id]; !ok {
				continue
			}
			if !c.peer.Backlogged() {
				break
			}
			if live, ok := l.e.fold.sessions.Live(id); ok {
				live.Refresh(nowMs)
			}
		}
	}
}

// readInbox handles what other goroutines and other loops' sections have put there.
func (l *Loop) readInbox() {
	l.inboxMu.Lock()
	l.taken, l.inbox = l.inbox, l.taken[:0]
	l.inboxMu.Unlock()
	for i := range l.taken {
		item := l.taken[i]
		l.taken[i] = inboxItem{}
		switch {
		case item.waiter != nil:
			l.finishPop(item.waiter)
		case item.call != nil:
			item.call()
		case item.ended != 0:
			l.sessionEnded(&item)
		}
	}
	l.taken = l.taken[:0]
}

// sessionEnded tells the connections that spoke for a session that it is over.
func (l *Loop) sessionEnded(item *inboxItem) {
	body := protocol.SessionEnded{Session: item.ended, Reason: item.reason}
	for c := range l.conns {
		if _, ok := c.sessions[item.ended]; !ok {
			continue
		}
		delete(c.sessions, item.ended)
		out := c.peer.Out()
		at := len(out)
		out = protocol.BeginFrame(out, protocol.Header{Opcode: protocol.OpSessionEnded, Flags: protocol.FlagPush})
		out = body.Append(out)
		protocol.EndFrame(out, at)
		l.deliver(c, out, at, parkedAnswer{gate: item.gate, code: protocol.OpSessionEnded, push: true})
	}
}

// onCommit is called by the log after committed has moved.
func (e *Engine) onCommit() {
	loops := *e.loopList.Load()
	serve := e.waiting.Load() > 0
	for i, l := range loops {
		if l.pending.Load() > 0 || l.stalled.Load() || serve && i == 0 {
			l.wake()
		}
	}
}

// onSegment is called by the log when another segment is there, or cannot be had. Senders may fill several before the
// steward looks at the disk again.
func (e *Engine) onSegment() {
	_ = e.disk.look(e.log) // the steward tells of an error
	e.onRoom()
}

// onRoom has everybody look again who waits for room.
func (e *Engine) onRoom() {
	for _, l := range *e.loopList.Load() {
		if l.stalled.Load() {
			l.wake()
		}
	}
}

// onLoad is called by the index when blocks have been loaded, or written.
func (e *Engine) onLoad() {
	e.todo.Store(true)
	if loops := *e.loopList.Load(); len(loops) > 0 {
		loops[0].wake()
	}
	e.onRoom()
}
