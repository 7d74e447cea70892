package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// limits are what HELLO told.
type limits struct {
	credit int // unanswered request bytes, headers included
	frame  int // bytes of a frame, header included
	body   int // bytes of a message body as stored
}

// mostReserve is how much of the credit at most is kept for urgent calls.
const mostReserve = 16 << 10

// ordinary is the part of the credit that calls which are not urgent may use: a heartbeat finds room
// however many sends are unanswered.
func (l *limits) ordinary() int { return l.credit - min(l.credit/16, mostReserve) }

// link owns every call from submit to its end, over any number of connections.
//
// Invariants:
//
//  1. A call is in exactly one of the lists (queued, parked) or in pending (in flight), or in neither (idle,
//     finished). Each submitted call is finished once, unless its owner takes it out of a list.
//  2. unanswered is the sum of the frame lengths in pending, abandoned calls included: at most the credit, or
//     one frame.
//  3. pending holds calls of the current connection only. A lost connection is detached after its reader and
//     its writer have ended, so that no goroutine reads a frame that a new connection puts a header into.
//  4. Within a list calls leave in the order in which they came; urgent ones leave before others. A call that
//     is sent again keeps its place: what is parked goes before ordinary, in the order of submission.
//
// mu guards the fields below it and the states of calls. Nothing is called and nothing blocks under it.
type link struct {
	addr   string
	opts   Options
	pushed func(protocol.SessionEnded) // by the reader; must not block
	began  func(epoch uint32)          // a connection to another start of the broker was made; must not block

	epoch uint32 // of the newest connection; the supervisor's

	ctx      context.Context // ends with close
	cancel   context.CancelFunc
	stopped  chan struct{} // closed when the supervisor has ended
	limits   atomic.Pointer[limits]
	patience atomic.Int64 // see watch; a time.Duration
	haste    atomic.Int64 // the shortest timeout of a live session, a time.Duration; 0: none lives
	draining atomic.Bool  // the broker of the newest connection said so
	calls    sync.Pool    // of *call; one a link, since the channels in them must not outlive a test's bubble

	mu         sync.Mutex
	conn       *conn // nil: none at the moment
	down       error // why there is none
	closed     bool
	urgent     callList
	ordinary   callList
	parked     callList // what waits for the next connection; see retry.go
	holding    bool     // what may be sent again is parked at once, until there is another connection
	turns      uint64   // given out
	retryTimer *time.Timer
	retryAt    time.Time // when retryTimer runs; zero: it does not
	pending    map[uint64]*call
	unanswered int
	lastID     uint64
}

// newLink connects to addr; the first attempt is the caller's to repeat.
func newLink(ctx context.Context, addr string, opts Options, pushed func(protocol.SessionEnded), began func(uint32)) (*link, error) {
	l := &link{addr: addr, opts: opts, pushed: pushed, began: began, stopped: make(chan struct{}), pending: make(map[uint64]*call)}
	l.calls.New = func() any { return &call{done: make(chan struct{}, 1)} }
	l.patience.Store(int64(opts.StallTimeout))
	l.ctx, l.cancel = context.WithCancel(context.Background())
	c, err := l.connect(ctx)
	if err != nil {
		l.cancel()
		return nil, err
	}
	l.epoch = c.epoch
	l.attach(c)
	go l.supervise(c)
	return l, nil
}

// newCall makes a call for a frame that the caller fills.
func (l *link) newCall(op protocol.Opcode, flags protocol.Flags, room int) *call {
	return l.callWith(protocol.Header{Opcode: op, Flags: flags}, newFrame(op, flags, room))
}

func (l *link) callWith(h protocol.Header, f *frame) *call {
	c := l.calls.Get().(*call)
	c.header, c.frame = h, f
	return c
}

// free gives c and its frame back. The caller owns c.
func (l *link) free(c *call) {
	c.frame.release()
	*c = call{done: c.done, send: protocol.SendAnswer{Results: c.send.Results[:0]}}
	l.calls.Put(c)
}

// submit queues c. It never blocks. On an error c is still the caller's and was not sent.
func (l *link) submit(c *call) error {
	if err := l.fits(c); err != nil {
		return err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.turns++
	c.turn = l.turns
	if l.holding && c.retryFor > 0 {
		l.park(c)
		l.mu.Unlock()
		return nil
	}
	c.state = callQueued
	l.list(c).pushBack(c)
	to := l.conn
	l.mu.Unlock()
	if to != nil {
		to.wakeWriter()
	}
	return nil
}

func (l *link) fits(c *call) error {
	if n, limit := len(c.frame.b), l.limits.Load().frame; n > limit {
		return &StatusError{Op: c.op(), Status: protocol.TooLarge, Detail: uint64(limit),
			Message: fmt.Sprintf("frame of %d bytes, limit %d", n, limit)}
	}
	return nil
}

func (l *link) list(c *call) *callList {
	if c.state == callParked {
		return &l.parked
	}
	if urgent(c.op()) {
		return &l.urgent
	}
	return &l.ordinary
}

// do submits c and waits for its end or for that of ctx. When owned is false c was abandoned and is not to be
// touched any more; its bytes may have reached the broker.
func (l *link) do(ctx context.Context, c *call) (owned bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, fmt.Errorf("leasemq: %s: %w", c.op(), err)
	}
	if err := l.submit(c); err != nil {
		return true, err
	}
	return l.wait(ctx, c)
}

// wait is the second half of do.
func (l *link) wait(ctx context.Context, c *call) (owned bool, err error) {
	select {
	case <-c.done:
		return true, c.err
	case <-ctx.Done():
		return l.abandon(ctx.Err(), c)
	}
}

// abandon ends the owner's wait for c because of why.
func (l *link) abandon(why error, c *call) (owned bool, err error) {
	op := c.op()
	l.mu.Lock()
	switch c.state {
	case callQueued, callParked:
		l.list(c).remove(c)
		c.state = callIdle
		owned = true
	case callInFlight:
		c.abandoned = true
	default:
		c.left = true
		l.mu.Unlock()
		<-c.done
		return true, c.err
	}
	// A call that waits to be sent again has left doubt or not; one in flight does.
	doubt, setback, down := c.doubt || !owned, c.setback, l.down
	l.mu.Unlock()
	switch {
	case doubt && setback != nil:
		err = fmt.Errorf("leasemq: %s: %w (%w): %w", op, ErrOutcomeUnknown, setback, why)
	case doubt && lossOf(op) == lossUnknown:
		err = fmt.Errorf("leasemq: %s: %w: %w", op, ErrOutcomeUnknown, why)
	case owned && down != nil:
		err = fmt.Errorf("leasemq: %s: no connection to %s (%w): %w", op, l.addr, down, why)
	default:
		err = fmt.Errorf("leasemq: %s: %w", op, why)
	}
	return owned, err
}

// mostWriteBytes is about how much goes into one write.
const mostWriteBytes = 256 << 10

// take moves the calls that may be sent now from the lists to pending and appends their frames to
// frames, each with a reference for the writer. (Not the calls: they may be over before the write is.)
func (l *link) take(to *conn, frames []*frame) []*frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != to {
		return frames
	}
	lim := l.limits.Load()
	var now time.Time
	for bytes := 0; bytes < mostWriteBytes; {
		c, credit := l.urgent.first, lim.credit
		if c == nil {
			c, credit = l.ordinary.first, lim.ordinary()
		}
		if c == nil {
			break
		}
		n := len(c.frame.b)
		if l.unanswered > 0 && l.unanswered+n > credit {
			break
		}
		l.list(c).remove(c)
		if now.IsZero() {
			now = time.Now()
		}
		l.lastID++
		c.header.RequestID, c.header.BodyLen = l.lastID, uint32(n-protocol.HeaderBytes)
		c.header.Put(c.frame.b)
		if !c.sent {
			c.retryUntil = now.Add(c.retryFor)
		}
		c.state, c.sent, c.sentAt = callInFlight, true, now
		l.pending[l.lastID] = c
		l.unanswered += n
		bytes += n
		c.frame.retain()
		frames = append(frames, c.frame)
	}
	return frames
}

// claim takes the call that h answers out of pending. From then on it ends with this answer.
func (l *link) claim(from *conn, h protocol.Header) (*call, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.pending[h.RequestID]
	if c == nil {
		return nil, fmt.Errorf("leasemq: the broker answered request %d (%s), which is not open", h.RequestID, h.Opcode)
	}
	if c.op() != h.Opcode {
		return nil, fmt.Errorf("leasemq: the broker answered the %s request %d with %s", c.op(), h.RequestID, h.Opcode)
	}
	delete(l.pending, h.RequestID)
	l.unanswered -= len(c.frame.b)
	c.state = callFinished
	if !l.urgent.empty() || !l.ordinary.empty() {
		from.wakeWriter()
	}
	return c, nil
}

// finish hands the finished c back to whoever waits for it.
func (l *link) finish(c *call) {
	switch {
	case c.abandoned:
		if c.orphan != nil && c.err == nil && c.status == protocol.OK {
			c.orphan(c)
		}
		if c.over != nil {
			c.over(c)
		}
		l.free(c)
	case c.notify != nil:
		c.notify(c)
	default:
		if c.over != nil {
			c.over(c)
		}
		c.done <- struct{}{}
	}
}

// supervise runs one connection after the other until the link is closed.
func (l *link) supervise(c *conn) {
	defer close(l.stopped)
	var wait backOff
	for c != nil {
		began := time.Now()
		err := c.run()
		if time.Since(began) >= maxBackOff {
			wait.reset()
		}
		l.detach(c, err)
		if l.ctx.Err() == nil {
			l.opts.Logger.Warn("connection lost", "broker", l.addr, "error", err)
		}
		c = l.reconnect(&wait)
	}
	l.failQueued()
}

// reconnect connects again and again until it has succeeded; nil when the link was closed meanwhile.
func (l *link) reconnect(wait *backOff) *conn {
	timer := time.NewTimer(wait.within(l.mostWait()))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return nil
		}
		c, err := l.connect(l.ctx)
		if err == nil {
			if !l.attach(c) {
				return nil
			}
			if c.epoch != l.epoch {
				l.epoch = c.epoch
				l.began(c.epoch)
			}
			l.opts.Logger.Info("connected again", "broker", l.addr)
			return c
		}
		l.mu.Lock()
		l.down = err
		l.mu.Unlock()
		timer.Reset(wait.within(l.mostWait()))
	}
}

// mostWait is the longest wait between two attempts to connect: a broker that is there again must hear of a live
// session before it would take it for lost.
func (l *link) mostWait() time.Duration {
	if haste := time.Duration(l.haste.Load()); haste > 0 {
		return min(maxBackOff, haste/4)
	}
	return maxBackOff
}

// connectTimeout limits one attempt to connect. While a session lives it is no longer than the session has: an attempt
// made while the network was down may be stuck in the waits of the kernel when the network is there again.
func (l *link) connectTimeout() time.Duration {
	if haste := time.Duration(l.haste.Load()); haste > 0 {
		return min(l.opts.ConnectTimeout, max(haste/2, leastConnectTimeout))
	}
	return l.opts.ConnectTimeout
}

// attach makes c the connection that calls go over; false when the link was closed.
func (l *link) attach(c *conn) bool {
	l.limits.Store(&c.limits)
	l.draining.Store(false)
	var refused []*call
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		c.close()
		return false
	}
	l.conn, l.down = c, nil
	l.unpark()
	for _, list := range []*callList{&l.urgent, &l.ordinary} {
		for x, next := list.first, (*call)(nil); x != nil; x = next {
			next = x.next
			if err := l.fits(x); err != nil {
				list.remove(x)
				x.state, x.err = callFinished, x.withDoubt(err)
				refused = append(refused, x)
			}
		}
	}
	l.mu.Unlock()
	for _, x := range refused {
		l.finish(x)
	}
	return true
}

// detach ends the use of c, whose goroutines have ended because of err, and decides about each call
// that it leaves unanswered.
func (l *link) detach(c *conn, err error) {
	lost := fmt.Errorf("%w: %w", ErrConnectionLost, err)
	l.mu.Lock()
	l.conn, l.down = nil, err
	open := make([]*call, 0, len(l.pending))
	for _, x := range l.pending {
		open = append(open, x)
	}
	// Newest first: each repeated one is put in front of those that were sent after it.
	slices.SortFunc(open, func(a, b *call) int { return cmp.Compare(b.header.RequestID, a.header.RequestID) })
	clear(l.pending)
	l.unanswered = 0
	over, now := open[:0], time.Now()
	for _, x := range open {
		switch {
		case x.abandoned || l.closed:
		case x.retries(now):
			x.doubt, x.setback = true, lost
			l.park(x)
			continue
		case lossOf(x.op()) == lossRepeat:
			x.state = callQueued
			l.list(x).pushFront(x)
			continue
		}
		x.state = callFinished
		over = append(over, x)
	}
	l.mu.Unlock()
	slices.Reverse(over)
	for _, x := range over {
		if x.err = lost; lossOf(x.op()) == lossUnknown {
			x.err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, lost)
		}
		l.finish(x)
	}
}

// failQueued ends the calls that still waited when the link was closed.
func (l *link) failQueued() {
	l.mu.Lock()
	if l.retryTimer != nil {
		l.retryTimer.Stop()
	}
	var over []*call
	for _, list := range []*callList{&l.urgent, &l.parked, &l.ordinary} {
		for !list.empty() {
			x := list.first
			list.remove(x)
			x.state = callFinished
			over = append(over, x)
		}
	}
	l.mu.Unlock()
	for _, x := range over {
		x.err = x.withDoubt(ErrClosed)
		l.finish(x)
	}
}

// setPatience says how long a request that the broker answers at once may be unanswered while nothing is
// heard from the broker.
func (l *link) setPatience(d time.Duration) {
	l.patience.Store(int64(d))
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c != nil {
		c.watchdog.Reset(l.watchEvery())
	}
}

// watchEvery is how often the watchdog of a connection looks.
func (l *link) watchEvery() time.Duration { return time.Duration(l.patience.Load()) / 8 }

// stalled tells whether a request that the broker answers without waiting for anything has been
// unanswered since before the moment given.
func (l *link) stalled(before time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.pending {
		if c.op() != protocol.OpPop && c.sentAt.Before(before) {
			return true
		}
	}
	return false
}

// close ends the connection and every call, and returns when the goroutines of the link have ended.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	c := l.conn
	l.mu.Unlock()
	l.cancel()
	if c != nil {
		c.fail(ErrClosed)
	}
	<-l.stopped
}

// simple is a call whose answer is decoded into answer (nil: it has no body), with nothing else to it.
// answer is not touched after an error.
func (l *link) simple(ctx context.Context, op protocol.Opcode, flags protocol.Flags, request, answer protocol.Body) error {
	c := l.newCall(op, flags, 1<<leastFrameClass)
	if request != nil {
		c.frame.b = request.Append(c.frame.b)
	}
	c.answer = answer
	owned, err := l.do(ctx, c)
	if owned {
		l.free(c)
	}
	return err
}
