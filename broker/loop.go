package broker

import (
	"sync"
	"sync/atomic"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Loop is the engine's half of one event loop of the network front: requests on their way into the
// section, answers that wait for the log. Every exported method runs on that loop; put may be called
// from anywhere.
//
// The frames of one network batch become ops, in order; Flush takes them through the section and answers
// them. Nothing is allocated for an op: they and what hangs on them are reused.
type Loop struct {
	e      *Engine
	wakeUp func()
	ops    []*op
	spare  []*op
	freed  []*op
	idle   []*waiter
	conns  map[*connState]struct{}
	parked parkedRing

	// pending is read after the log has moved: does anything here wait for it?
	pending atomic.Int64
	stalled atomic.Bool
	marked  atomic.Uint64 // newest marker round seen

	inboxMu sync.Mutex
	inbox   []inboxItem
	taken   []inboxItem
}

// inboxItem is something for a loop from another goroutine: an answered pop, a session that has ended,
// or, from a worker, what is to be done with what it has read.
type inboxItem struct {
	waiter *waiter
	ended  uint64
	reason protocol.Reason
	gate   uint64
	call   func()
}

// connState is what the engine knows of one connection. Its loop owns it, but for waiters, which the
// section owns.
type connState struct {
	peer       Peer
	loop       *Loop
	closed     bool
	gone       atomic.Bool  // closed, for workers
	peeks      atomic.Int32 // PEEKs that workers have still to answer
	unanswered int          // request bytes not answered yet
	sessions   map[uint64]struct{}
	waiters    []*waiter
	owed       int // bytes that the answers of waiters may have
}

// op is one request from its frame to its answer.
type op struct {
	code    protocol.Opcode
	request uint64
	create  bool
	size    int // of the frame
	worst   int // log bytes at worst
	conn    *connState
	session uint64 // that the connection speaks for afterwards

	sendRequest   *protocol.SendRequest
	ackRequest    *protocol.AckRequest
	changeRequest *protocol.ChangeInvisibleRequest
	popRequest    *protocol.PopRequest
	admin         any

	messages []message
	tickets  []ticket
	results  []protocol.SendResult
	settled  []protocol.SettleResult
	register protocol.RegisterAnswer
	pop      *waiter

	status protocol.Status
	why    protocol.ErrorBody
	body   []byte
	gate   uint64
	parked bool // answered later
}

func (o *op) refuse(s protocol.Status, detail uint64, message string) {
	o.status, o.why = s, protocol.ErrorBody{Message: message, Detail: detail}
}

// NewLoop makes the engine's half of an event loop. wake has Wake called on it soon; it may be called
// from any goroutine.
func (e *Engine) NewLoop(wake func()) *Loop {
	l := &Loop{e: e, wakeUp: wake, conns: map[*connState]struct{}{}}
	e.enter()
	defer e.leave()
	e.loops = append(e.loops, l)
	list := append([]*Loop(nil), e.loops...)
	e.loopList.Store(&list)
	return l
}

func (l *Loop) wake() { l.wakeUp() }

// wakeSoon wakes a loop when the section is left.
func (e *Engine) wakeSoon(l *Loop) {
	for _, x := range e.wakeSet {
		if x == l {
			return
		}
	}
	e.wakeSet = append(e.wakeSet, l)
}

func (e *Engine) wakeLoops() {
	for _, l := range *e.loopList.Load() {
		l.wake()
	}
}

// put hands an item to the loop. The caller sees to it that the loop is woken.
func (l *Loop) put(item inboxItem) {
	l.inboxMu.Lock()
	l.inbox = append(l.inbox, item)
	l.inboxMu.Unlock()
}

// Open begins a connection.
func (l *Loop) Open(p Peer) {
	c := &connState{peer: p, loop: l}
	p.SetContext(c)
	l.conns[c] = struct{}{}
}

// Close ends a connection. Pops that wait on it are forgotten. What was granted to it and not yet encoded
// goes back when that is tried; what was encoded and waits for its gate stays with its session.
func (l *Loop) Close(p Peer) {
	c, ok := p.Context().(*connState)
	if !ok || c.closed {
		return
	}
	c.closed = true
	c.gone.Store(true)
	delete(l.conns, c)
	l.e.enter()
	defer l.e.leave()
	for len(c.waiters) > 0 {
		l.e.unpark(c.waiters[0])
	}
}

// Drain answers the pops that wait on this loop's connections: the broker is stopping in order.
func (l *Loop) Drain() {
	e := l.e
	e.Drain()
	for c := range l.conns {
		out := c.peer.Out()
		at := len(out)
		out = protocol.BeginFrame(out, protocol.Header{Opcode: protocol.OpDrain, Flags: protocol.FlagPush})
		protocol.EndFrame(out, at)
		c.peer.SetOut(out)
	}
	func() {
		e.enter()
		defer e.leave()
		for c := range l.conns {
			e.refuseWaiters(c.waiters, protocol.Draining, protocol.ErrorBody{Message: "the broker is stopping"})
		}
	}()
	l.catchUp()
}

// Pending is the number of answers that this loop still owes.
func (l *Loop) Pending() int {
	l.inboxMu.Lock()
	n := len(l.inbox)
	l.inboxMu.Unlock()
	return l.parked.len() + n + int(l.e.work.pending.Load()+l.e.peeks.pending.Load())
}

// take is an op from the free list, or a new one.
func (l *Loop) take(c *connState, h protocol.Header, size int) *op {
	var o *op
	if n := len(l.freed); n > 0 {
		o = l.freed[n-1]
		l.freed = l.freed[:n-1]
	} else {
		o = &op{}
	}
	o.code, o.request, o.create = h.Opcode, h.RequestID, h.Flags&protocol.FlagCreate != 0
	o.size, o.conn = size, c
	o.worst, o.session, o.gate, o.parked = worstSmall, 0, 0, false
	o.status, o.why, o.body = protocol.OK, protocol.ErrorBody{}, o.body[:0]
	o.admin, o.pop = nil, nil
	o.messages, o.tickets = o.messages[:0], o.tickets[:0]
	return o
}

// Frame takes one frame. It is false when there is no room for what it asks for now.
func (l *Loop) Frame(p Peer, h protocol.Header, body []byte) bool {
	c := p.Context().(*connState)
	e := l.e
	size := protocol.HeaderBytes + len(body)
	if c.unanswered > 0 && c.unanswered+size > e.limits.CreditBytes {
		p.Fail(protocol.FlowViolation, "more unanswered request bytes than HELLO granted")
		return true
	}
	if h.Opcode == protocol.OpHeartbeat && l.heartbeat(c, h, body) {
		return true
	}
	if h.Opcode == protocol.OpHello {
		l.hello(c, h, body)
		return true
	}
	worst := worstOf(h.Opcode, body)
	oversize := int64(worst) > e.most(h.Opcode)
	if oversize {
		worst = 0
	}
	if !e.reserve(h.Opcode, worst) {
		l.stalled.Store(true)
		if !e.reserve(h.Opcode, worst) { // the log may have moved before it saw the flag
			return false
		}
	}
	o := l.take(c, h, size)
	o.worst = worst
	c.unanswered += size
	// Should decoding panic, the op is there all the same, and gives back what it was promised.
	o.status = protocol.Internal
	l.ops = append(l.ops, o)
	if oversize {
		o.refuse(protocol.TooLarge, uint64(e.most(h.Opcode)), "the request may need more of the log at once than there is")
	} else {
		l.decode(o, body)
	}
	return true
}

// worstOf is the most log bytes that a request can need.
func worstOf(code protocol.Opcode, request []byte) int {
	body := len(request)
	switch code {
	case protocol.OpSend:
		return body + protocol.SendCount(request)*(codec.HeaderBytes+codec.MessageAssignedBytes+codec.Align) + worstSmall
	case protocol.OpPop:
		return worstPop
	case protocol.OpAck:
		return body/protocol.ReceiptBytes*perSettle + worstSmall
	case protocol.OpChangeInvisible:
		return body/protocol.ReceiptBytes*perChange + worstSmall
	case protocol.OpRegister:
		return worstSessionID + body/protocol.ReceiptBytes*perReclaim
	case protocol.OpUnregister:
		return worstSessionID
	case protocol.OpCreateTopic, protocol.OpUpdateTopic, protocol.OpDeleteTopic, protocol.OpPurgeTopic,
		protocol.OpCreateGroup, protocol.OpUpdateGroup, protocol.OpDeleteGroup:
		return worstSmall
	}
	return 0
}

// share is how much of the ring a kind of request may fill: SENDs three quarters, everything else the rest.
func (e *Engine) share(code protocol.Opcode) int64 {
	ring := int64(e.log.RingBytes())
	if code == protocol.OpSend {
		return ring / 4 * 3
	}
	return ring
}

// most is the worst case of the largest request that is served: it must fit its share of the ring and, if
// it is a SEND, the one segment that is always kept ready.
func (e *Engine) most(code protocol.Opcode) int64 {
	if code == protocol.OpSend {
		return min(e.share(code), e.log.Recovery().SegmentBytes-worstSmall)
	}
	return e.share(code)
}

// reserve promises ring bytes to a request, so that it cannot find the ring full inside the section.
func (e *Engine) reserve(code protocol.Opcode, worst int) bool {
	if worst == 0 || e.failed.Load() {
		return true
	}
	total := e.reserved.Add(int64(worst))
	used := int64(e.log.RingBytes() - e.log.RingFree())
	if used+total <= e.share(code) && (code != protocol.OpSend || e.index.DirtyFree() > 0 && e.segmentReady(total)) {
		return true
	}
	e.reserved.Add(-int64(worst))
	return false
}

// claim promises ring bytes to what the section itself proposes: a parked pop, an expiry. It is asked inside
// the section; release gives them back after the append. The request being decided has its own promise.
func (e *Engine) claim(bytes int) bool {
	total := int(e.reserved.Add(int64(bytes))) - e.current
	if total <= e.log.RingFree() {
		return true
	}
	e.release(bytes)
	return false
}

func (e *Engine) release(bytes int) { e.reserved.Add(-int64(bytes)) }

// segmentReady tells whether bytes fit into what is allocated on disk. When the next segment is only late
// SENDs wait for it; when there is no space for it they are refused in the section.
func (e *Engine) segmentReady(bytes int64) bool {
	return e.log.DiskFull() || e.log.DiskFree() > bytes
}

// decode reads the body of a request. What is wrong with it becomes its answer.
func (l *Loop) decode(o *op, body []byte) {
	var err error
	switch o.code {
	case protocol.OpSend:
		if o.sendRequest == nil {
			o.sendRequest = new(protocol.SendRequest)
		}
		if err = o.sendRequest.Decode(body); err == nil {
			if err = o.sendRequest.Validate(); err == nil {
				l.prepareSend(o)
			}
		}
	case protocol.OpPop:
		if o.popRequest == nil {
			o.popRequest = new(protocol.PopRequest)
		}
		if err = o.popRequest.Decode(body); err == nil {
			if err = o.popRequest.Validate(); err == nil {
				l.preparePop(o)
			}
		}
	case protocol.OpAck:
		if o.ackRequest == nil {
			o.ackRequest = new(protocol.AckRequest)
		}
		if err = o.ackRequest.Decode(body); err == nil {
			if err = o.ackRequest.Validate(); err == nil {
				l.touch(o.conn, o.ackRequest.Session)
				l.prepareAck(o)
			}
		}
	case protocol.OpChangeInvisible:
		if o.changeRequest == nil {
			o.changeRequest = new(protocol.ChangeInvisibleRequest)
		}
		if err = o.changeRequest.Decode(body); err == nil {
			if err = o.changeRequest.Validate(); err == nil {
				l.touch(o.conn, o.changeRequest.Session)
				l.prepareChange(o)
			}
		}
	default:
		err = l.decodeAdmin(o, body)
	}
	o.status = protocol.OK
	if err != nil {
		o.status, o.why = protocol.Refusal(err)
	}
}

// body is what the rarer requests decode into.
type body interface{ Decode(b []byte) error }

func (l *Loop) decodeAdmin(o *op, b []byte) error {
	var r body
	switch o.code {
	case protocol.OpRegister:
		r = new(protocol.RegisterRequest)
	case protocol.OpHeartbeat:
		r = new(protocol.HeartbeatRequest)
	case protocol.OpUnregister:
		r = new(protocol.UnregisterRequest)
	case protocol.OpPeek:
		r = new(protocol.PeekRequest)
	case protocol.OpCreateTopic:
		r = new(protocol.CreateTopicRequest)
	case protocol.OpUpdateTopic:
		r = new(protocol.UpdateTopicRequest)
	case protocol.OpDeleteTopic, protocol.OpPurgeTopic, protocol.OpDeleteGroup, protocol.OpShowGroup:
		r = new(protocol.NameRequest)
	case protocol.OpCreateGroup, protocol.OpUpdateGroup:
		r = new(protocol.GroupRequest)
	case protocol.OpListTopics, protocol.OpListGroups, protocol.OpStats:
		if len(b) != 0 {
			return &protocol.RequestError{Status: protocol.Invalid, Message: "the request has no body"}
		}
		if o.code == protocol.OpStats {
			o.admin = processStats()
		}
		return nil
	default:
		return &protocol.RequestError{Status: protocol.Unsupported, Message: "opcode " + o.code.String() + " is not served"}
	}
	if err := r.Decode(b); err != nil {
		return err
	}
	o.admin = r
	if register, ok := r.(*protocol.RegisterRequest); ok {
		l.prepareRegister(o, register)
	}
	if v, ok := r.(interface{ Validate() error }); ok && o.code != protocol.OpUpdateGroup {
		return v.Validate()
	}
	return nil
}

func (l *Loop) preparePop(o *op) {
	r := o.popRequest
	l.touch(o.conn, r.Session)
	maxBytes := int(r.MaxBytes)
	if maxBytes == 0 || maxBytes > protocol.MaxPopBytes {
		maxBytes = protocol.MaxPopBytes
	}
	o.pop = l.newWaiter()
	*o.pop = waiter{
		conn: o.conn, request: o.request, size: o.size, session: r.Session,
		max: int(r.Max), maxBytes: maxBytes, awaitMs: int64(r.AwaitMs),
		slot: r.Slot, lost: r.PreviousLost, sequence: r.Sequence,
		result: popResult{rows: o.pop.result.rows[:0], terms: o.pop.result.terms[:0]},
	}
}

func (l *Loop) newWaiter() *waiter {
	if n := len(l.idle); n > 0 {
		w := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return w
	}
	return &waiter{}
}

// recycle takes back an answered pop that nobody else knows.
func (l *Loop) recycle(w *waiter) {
	if len(l.idle) < 64 {
		l.idle = append(l.idle, w)
	}
}

// touch notes a sign of life of a session, and that the connection speaks for it.
func (l *Loop) touch(c *connState, session uint64) {
	live, ok := l.e.fold.sessions.Live(session)
	if !ok || !live.Refresh(l.e.lease.fine(l.e.clock.Mono())) {
		return
	}
	l.speaksFor(c, session)
}

// maxConnSessions is how many sessions a connection is remembered to speak for.
const maxConnSessions = 1024

func (l *Loop) speaksFor(c *connState, session uint64) {
	if c.sessions == nil {
		c.sessions = map[uint64]struct{}{}
	}
	if _, ok := c.sessions[session]; !ok && len(c.sessions) < maxConnSessions {
		c.sessions[session] = struct{}{}
	}
}

// heartbeat answers a HEARTBEAT of a live session on the spot, without a lock and without a gate. Any other
// goes through the section and is told why.
func (l *Loop) heartbeat(c *connState, h protocol.Header, b []byte) bool {
	var r protocol.HeartbeatRequest
	if r.Decode(b) != nil || l.e.failed.Load() {
		return false
	}
	live, ok := l.e.fold.sessions.Live(r.Session)
	if !ok || !live.Refresh(l.e.lease.fine(l.e.clock.Mono())) {
		return false
	}
	l.speaksFor(c, r.Session)
	a := protocol.HeartbeatAnswer{
		GroupVersion: live.GroupVersion(), LeasesLost: live.LeasesLost(),
		Draining: l.e.draining.Load(), Timestamp: r.Timestamp,
	}
	out := c.peer.Out()
	at := len(out)
	out = protocol.BeginFrame(out, protocol.Header{Opcode: h.Opcode, Flags: protocol.FlagAnswer, RequestID: h.RequestID})
	out = a.Append(out)
	protocol.EndFrame(out, at)
	c.peer.SetOut(out)
	l.e.stats.heartbeats.Add(1)
	return true
}

// hello answers a HELLO.
func (l *Loop) hello(c *connState, h protocol.Header, b []byte) {
	var r protocol.HelloRequest
	o := l.take(c, h, 0)
	err := r.Decode(b)
	if err == nil {
		err = r.Validate()
	}
	if err != nil {
		o.status, o.why = protocol.Refusal(err)
	} else {
		a := protocol.HelloAnswer{
			Version: protocol.Version, BrokerID: "leasemq", Epoch: l.e.Epoch(),
			CreditBytes: uint32(l.e.limits.CreditBytes), MaxFrameBytes: protocol.MaxFrameBytes,
			MaxBodyBytes: uint32(l.e.limits.MaxBodyBytes),
		}
		o.body = a.Append(o.body[:0])
	}
	out := c.peer.Out()
	c.peer.SetOut(appendAnswer(out, o))
	l.freed = append(l.freed, o)
}
