package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// asyncFullBytes is the length at which a gathering request goes out though another one is in flight.
const asyncFullBytes = 64 << 10

// An entry has at least 20 bytes, so that a request of that length cannot have too many of them.
const _ = uint(protocol.MaxSendEntries - asyncFullBytes/20 - 1)

// async is the half of a Producer that batches by itself. The clock of a topic is its own traffic: a
// message that finds nothing in flight for its topic (and queue, if it asks for one) goes out at once;
// others gather until an answer for that topic comes, or 64 KiB are together. So a lone message waits
// for nothing, and batches grow as the broker slows.
//
// mu guards all. Invariants:
//
//  1. A lane with a gathering batch has at least one in flight, so that an answer will send it.
//  2. pending is the sum of the sizes of all messages taken and not answered.
//  3. live lists, oldest first, the batches of which a callback has not returned yet.
type async struct {
	mu         sync.Mutex
	maxPending int
	pending    int
	waiters    line // for room
	lanes      map[laneKey]*lane
	live       batchList
	lastID     uint64
	flushes    []*asyncFlush
	finished   []*asyncBatch // answered, callbacks not yet called
	delivering bool          // a goroutine is calling callbacks
	spare      []callbacks   // emptied, to be filled again
}

type callbacks []func(SendResult, error)

// mostSpare is how many emptied slices of callbacks are kept.
const mostSpare = 16

type laneKey struct {
	topic string
	queue int32
}

type lane struct {
	key       laneKey
	inFlight  int         // requests submitted and not answered
	gathering *asyncBatch // nil: none
}

// asyncBatch is one request made of messages of SendAsync.
type asyncBatch struct {
	lane       *lane
	call       *call
	countAt    int
	callbacks  callbacks
	size       int // what it adds to pending
	id         uint64
	prev, next *asyncBatch
	err        error // it could not be submitted
}

type asyncFlush struct {
	upTo uint64 // the newest batch it waits for
	done chan struct{}
}

func (a *async) init(maxPending int) {
	if maxPending <= 0 {
		maxPending = defaultMaxPending
	}
	a.maxPending = maxPending
	a.lanes = make(map[laneKey]*lane)
}

// SendAsync hands m over and returns; done (which may be nil) is called once with the outcome. While too many
// bytes (ProducerOptions.MaxPending) or 65,536 messages are unanswered it waits for room, at most as long as ctx
// lets it. On an error m was not taken and done is not called. Messages of one topic that ask for the same queue,
// or for none, are sent in the order in which they were taken, and sent again in that order
// (ProducerOptions.RetryFor) before what came behind them.
//
// Callbacks are called one at a time, on a goroutine of the producer. One that takes long delays the
// others, and what is finished meanwhile gathers in memory; it may call SendAsync, but not Flush.
func (p *Producer) SendAsync(ctx context.Context, m *Message, done func(SendResult, error)) error {
	if err := checkTopic(m.Topic); err != nil {
		return err
	}
	queue, err := m.queue()
	if err != nil {
		return err
	}
	var x codec.Message
	if err := p.stored(&x, m); err != nil {
		return err
	}
	size := entryBytes(m) - len(m.Body) + len(x.Body)
	a := &p.async
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := p.reserve(ctx, size); err != nil {
		return err
	}
	if p.link.ctx.Err() != nil {
		p.unreserve(size)
		return ErrClosed
	}
	key := laneKey{m.Topic, queue}
	l := a.lanes[key]
	if l == nil {
		l = &lane{key: key}
		a.lanes[key] = l
	}
	if err := p.gather(l, &x, size, done); err != nil {
		p.unreserve(size)
		return err
	}
	b := l.gathering
	if l.inFlight == 0 || len(b.call.frame.b) >= asyncFullBytes {
		p.launch(l)
	}
	return nil
}

// gather adds x to the gathering batch of l.
func (p *Producer) gather(l *lane, x *codec.Message, size int, done func(SendResult, error)) error {
	fresh := l.gathering == nil
	if fresh {
		l.gathering = p.newAsyncBatch(l, size)
	}
	b := l.gathering
	f := b.call.frame
	at := len(f.b)
	var err error
	if f.b, err = appendSendEntry(f.b, x); err != nil {
		if fresh {
			p.drop(l)
		}
		return err
	}
	if limit := p.link.limits.Load().frame; len(f.b) > limit {
		f.b = f.b[:at]
		if fresh {
			p.drop(l)
			return &StatusError{Op: protocol.OpSend, Status: protocol.TooLarge, Detail: uint64(limit),
				Message: fmt.Sprintf("a message of %d bytes, limit of a frame %d", size, limit)}
		}
		p.launch(l)
		return p.gather(l, x, size, done)
	}
	b.size += size
	b.callbacks = append(b.callbacks, done)
	return nil
}

func (p *Producer) newAsyncBatch(l *lane, size int) *asyncBatch {
	a := &p.async
	room := size + len(l.key.topic) + 128
	if l.inFlight > 0 {
		room += asyncFullBytes
	}
	c := p.newSend(room)
	a.lastID++
	b := &asyncBatch{lane: l, call: c, id: a.lastID}
	if n := len(a.spare); n > 0 {
		b.callbacks, a.spare = a.spare[n-1], a.spare[:n-1]
	}
	c.notify = func(*call) { p.answered(b) }
	c.frame.b, b.countAt = appendSendHead(c.frame.b, l.key.topic, l.key.queue)
	a.live.pushBack(b)
	return b
}

// drop takes back a batch that got no message.
func (p *Producer) drop(l *lane) {
	p.async.live.remove(l.gathering)
	p.link.free(l.gathering.call)
	l.gathering = nil
}

// launch submits what l has gathered.
func (p *Producer) launch(l *lane) {
	b := l.gathering
	l.gathering = nil
	l.inFlight++
	putSendCount(b.call.frame.b, b.countAt, len(b.callbacks))
	if p.id != 0 {
		p.window.enter(b.call, len(b.callbacks))
		putNumbers(b.call.frame.b[b.countAt+countBytes:], b.call.number)
	}
	if b.err = p.link.submit(b.call); b.err != nil {
		p.retire(b)
	}
}

// answered is called by the link when b is finished.
func (p *Producer) answered(b *asyncBatch) {
	a := &p.async
	a.mu.Lock()
	defer a.mu.Unlock()
	p.retire(b)
	if b.lane.gathering != nil {
		p.launch(b.lane)
	}
}

// retire makes room for what comes after b and queues its callbacks.
func (p *Producer) retire(b *asyncBatch) {
	a := &p.async
	b.lane.inFlight--
	p.window.leave(b.call)
	a.giveBack(b.size)
	a.finished = append(a.finished, b)
	if !a.delivering {
		a.delivering = true
		go p.deliver()
	}
}

// deliver calls callbacks until there are none to be called.
func (p *Producer) deliver() {
	a := &p.async
	var batches []*asyncBatch
	for {
		a.mu.Lock()
		for _, b := range batches {
			a.live.remove(b)
			if len(a.spare) < mostSpare {
				a.spare = append(a.spare, b.callbacks)
			}
		}
		a.endFlushes()
		batches, a.finished = a.finished, batches[:0]
		if len(batches) == 0 {
			a.delivering = false
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		for _, b := range batches {
			p.callBack(b)
		}
	}
}

// callBack tells everybody who has a message in b.
func (p *Producer) callBack(b *asyncBatch) {
	c := b.call
	err := b.err
	if err == nil {
		err = c.err
	}
	if err == nil && len(c.send.Results) != len(b.callbacks) {
		err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, errResults)
	}
	for i, done := range b.callbacks {
		var r SendResult
		if r.Err = err; err == nil {
			r.set(&c.send.Results[i])
		}
		if done != nil {
			done(r, r.Err)
		}
	}
	p.link.free(c)
	clear(b.callbacks)
	b.call, b.callbacks = nil, b.callbacks[:0]
}

// Flush sends what has gathered, and waits until every message that SendAsync has taken before is answered and
// its callback has returned. It is not to be called from a callback.
func (p *Producer) Flush(ctx context.Context) error {
	a := &p.async
	a.mu.Lock()
	for _, l := range a.lanes {
		if l.gathering != nil {
			p.launch(l)
		}
	}
	f := &asyncFlush{upTo: a.lastID, done: make(chan struct{})}
	a.flushes = append(a.flushes, f)
	a.endFlushes()
	a.mu.Unlock()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	for i := range a.flushes {
		if a.flushes[i] == f {
			a.flushes = append(a.flushes[:i], a.flushes[i+1:]...)
			break
		}
	}
	a.mu.Unlock()
	return fmt.Errorf("leasemq: flush: %w", ctx.Err())
}

// endFlushes ends the flushes whose batches are all over.
func (a *async) endFlushes() {
	left := a.flushes[:0]
	for _, f := range a.flushes {
		if a.live.first != nil && a.live.first.id <= f.upTo {
			left = append(left, f)
			continue
		}
		close(f.done)
	}
	clear(a.flushes[len(left):])
	a.flushes = left
}

// reserve waits for room for one more message of so many bytes. It gives up mu while it waits.
func (p *Producer) reserve(ctx context.Context, size int) error {
	if p.id != 0 {
		if err := p.window.promise(ctx, 1); err != nil {
			return err
		}
	}
	err := p.async.reserve(ctx, size)
	if err != nil && p.id != 0 {
		p.window.takeBack(1)
	}
	return err
}

// unreserve is for a message that had room and is not sent.
func (p *Producer) unreserve(size int) {
	if p.id != 0 {
		p.window.takeBack(1)
	}
	p.async.giveBack(size)
}

// reserve waits for room for size more bytes; one message always has room when there is no other. It
// gives up mu while it waits.
func (a *async) reserve(ctx context.Context, size int) error {
	if len(a.waiters) == 0 && a.hasRoom(size) {
		a.pending += size
		return nil
	}
	if a.waiters.wait(ctx, &a.mu, size) {
		return nil
	}
	a.admit() // those behind it may need less
	return fmt.Errorf("leasemq: SendAsync: %d bytes are unanswered, the limit is %d: %w", a.pending, a.maxPending, ctx.Err())
}

func (a *async) hasRoom(size int) bool { return a.pending == 0 || a.pending+size <= a.maxPending }

func (a *async) giveBack(size int) {
	a.pending -= size
	a.admit()
}

func (a *async) admit() {
	for size, ok := a.waiters.next(); ok && a.hasRoom(size); size, ok = a.waiters.next() {
		a.pending += size
		a.waiters.letIn()
	}
}

// batchList is the list of live batches.
type batchList struct{ first, last *asyncBatch }

func (l *batchList) pushBack(b *asyncBatch) {
	b.prev = l.last
	if l.last == nil {
		l.first = b
	} else {
		l.last.next = b
	}
	l.last = b
}

func (l *batchList) remove(b *asyncBatch) {
	if b.prev == nil {
		l.first = b.next
	} else {
		b.prev.next = b.next
	}
	if b.next == nil {
		l.last = b.prev
	} else {
		b.next.prev = b.prev
	}
	b.prev, b.next = nil, nil
}
