package client

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// stage is a fake broker's side of a running consumer. It sorts what arrives by opcode, and answers
// heartbeats by itself unless the test mutes them.
type stage struct {
	t *testing.T
	b *fakeBroker
	c *Client
	p *peer
	k *Consumer

	cancel context.CancelFunc
	wait   func() error
	began  time.Time

	mu      sync.Mutex
	mute    bool
	by      map[protocol.Opcode]chan request
	settled []told
}

const (
	pops     = protocol.OpPop
	acks     = protocol.OpAck
	changes  = protocol.OpChangeInvisible
	sessions = protocol.OpRegister
	leaves   = protocol.OpUnregister
)

// stageFor is a client with a consumer that does not run yet.
func stageFor(t *testing.T, b *fakeBroker, o ConsumerOptions) *stage {
	s := &stage{t: t, b: b, by: map[protocol.Opcode]chan request{}}
	for _, op := range []protocol.Opcode{pops, acks, changes, sessions, leaves, protocol.OpHeartbeat} {
		s.by[op] = make(chan request, 10_000)
	}
	s.c, s.p = b.client(Options{})
	go s.sort(s.p)
	if o.ConsumerID == "" {
		o.ConsumerID = "me"
	}
	if o.OnSettled == nil {
		o.OnSettled = func(d *Delivery, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.settled = append(s.settled, told{d, err})
		}
	}
	s.k = s.c.Consumer("g", "t", o)
	return s
}

// reconnected takes the client's next connection.
func (s *stage) reconnected() {
	s.p = s.b.accept()
	go s.sort(s.p)
}

func (s *stage) sort(p *peer) {
	for {
		select {
		case r := <-p.frames:
			s.mu.Lock()
			mute := s.mute
			s.mu.Unlock()
			if r.Opcode == protocol.OpHeartbeat && !mute {
				p.answer(r, protocol.OK, &protocol.HeartbeatAnswer{GroupVersion: 9})
				continue
			}
			s.by[r.Opcode] <- r
		case <-p.gone:
			return
		}
	}
}

func (s *stage) setMute(mute bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute = mute
}

// run starts Run with h and answers its registration.
func (s *stage) run(h Handler) *stage {
	s.t.Helper()
	s.starts(func(ctx context.Context) error { return s.k.Run(ctx, h) })
	s.register(77)
	return s
}

func (s *stage) runBatch(h BatchHandler) *stage {
	s.t.Helper()
	s.starts(func(ctx context.Context) error { return s.k.RunBatch(ctx, h) })
	s.register(77)
	return s
}

// within is what comes out of c. In a bubble in which nothing comes of it time would run for ever.
func within[T any](c <-chan T) T {
	select {
	case x := <-c:
		return x
	case <-time.After(7 * time.Hour):
		panic("nothing came")
	}
}

type testKey struct{}

func (s *stage) starts(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), testKey{}, "value"))
	s.cancel, s.began = cancel, time.Now()
	s.t.Cleanup(cancel)
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	s.wait = func() error { return within(result) }
}

func (s *stage) expect(op protocol.Opcode, into protocol.Body) request {
	s.t.Helper()
	select {
	case r := <-s.by[op]:
		if into != nil {
			if err := into.Decode(r.body); err != nil {
				s.t.Fatal(err)
			}
		}
		return r
	case <-time.After(2 * time.Hour):
		s.t.Fatalf("no %s came", op)
		return request{}
	}
}

// quiet fails if a request of op has come that was not expected.
func (s *stage) quiet(ops ...protocol.Opcode) {
	s.t.Helper()
	synctest.Wait()
	for _, op := range ops {
		if n := len(s.by[op]); n > 0 {
			s.t.Fatalf("%d unexpected %s", n, op)
		}
	}
}

// register answers the next REGISTER with a session of 3 s and 10 s, and leases of 30 s.
func (s *stage) register(id uint64, reclaimed ...protocol.Reclaimed) protocol.RegisterRequest {
	s.t.Helper()
	var m protocol.RegisterRequest
	r := s.expect(sessions, &m)
	answer := registered(id)
	answer.MaxInvisibleMs = 6 * 60 * 60 * 1000
	answer.Reclaimed = reclaimed
	s.p.answer(r, protocol.OK, answer)
	return m
}

// give answers the next pop with a message for each body. The receipts begin with the body.
func (s *stage) give(bodies ...string) protocol.PopRequest {
	s.t.Helper()
	return s.giveRows(nil, bodies...)
}

func (s *stage) giveRows(change func(*protocol.LeaseRow), bodies ...string) protocol.PopRequest {
	s.t.Helper()
	var m protocol.PopRequest
	r := s.expect(pops, &m)
	var records [][]byte
	for i, x := range bodies {
		records = append(records, messageRecord(s.t, uint64(i), codec.Message{Body: []byte(x)}))
	}
	answer := popAnswer(records...)
	for i := range answer.Rows {
		row := &answer.Rows[i]
		row.Receipt = append([]byte(bodies[i]), make([]byte, protocol.ReceiptBytes-len(bodies[i]))...)
		row.BudgetMs = 18 * 60 * 60 * 1000
		if change != nil {
			change(row)
		}
	}
	s.p.answer(r, protocol.OK, answer)
	return m
}

// acked answers the next ACK with OK, and tells what was in it.
func (s *stage) acked(results ...protocol.SettleResult) (receipts []string) {
	s.t.Helper()
	var m protocol.AckRequest
	r := s.expect(acks, &m)
	for i := range m.Entries {
		receipts = append(receipts, name(m.Entries[i].Receipt))
		if len(results) <= i {
			results = append(results, protocol.SettleResult{})
		}
	}
	s.p.settled(r, results...)
	return receipts
}

// changed is the next CHANGE_INVISIBLE, which must have n entries.
func (s *stage) changed(n int) (request, []protocol.ChangeEntry) {
	s.t.Helper()
	var m protocol.ChangeInvisibleRequest
	r := s.expect(changes, &m)
	if len(m.Entries) != n {
		s.t.Fatalf("%d changes, want %d: %+v", len(m.Entries), n, m.Entries)
	}
	return r, m.Entries
}

// renewal expects a renewal of one lease to so many ms, so long after the one before.
func (s *stage) renewal(since time.Time, after time.Duration, ordinal uint32, ms uint32) request {
	s.t.Helper()
	r, e := s.changed(1)
	if got := time.Since(since); got != after {
		s.t.Errorf("a renewal after %v, want %v", got, after)
	}
	if e[0].Cause != CauseRenew || e[0].Ordinal != ordinal || e[0].InvisibleMs != ms {
		s.t.Errorf("got %+v, want ordinal %d, %d ms", e[0], ordinal, ms)
	}
	return r
}

func renewed(ms uint32, left uint16) protocol.SettleResult {
	return protocol.SettleResult{RemainingMs: ms, RenewalsLeft: left, BudgetMs: 12 * 60 * 60 * 1000}
}

// given answers the next CHANGE_INVISIBLE of one entry with OK, and tells what it was.
func (s *stage) given() protocol.ChangeEntry {
	s.t.Helper()
	r, e := s.changed(1)
	s.p.settled(r, protocol.SettleResult{})
	return e[0]
}

// told is what OnSettled was called with since the last time.
func (s *stage) told() []told {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.settled
	s.settled = nil
	return list
}

// toldOnce is what OnSettled said of one message.
func (s *stage) toldOnce() error {
	s.t.Helper()
	list := s.told()
	if len(list) != 1 {
		s.t.Fatalf("OnSettled was called %d times: %v", len(list), list)
	}
	return list[0].err
}

// stats are the counters when everything is done that can be done now.
func (s *stage) stats() ConsumerStats {
	synctest.Wait()
	return s.k.Stats()
}

// stop ends Run in order and tells what it returned.
func (s *stage) stop() error {
	s.t.Helper()
	s.cancel()
	s.p.answer(s.expect(leaves, nil), protocol.OK, nil)
	return s.wait()
}

// name is what a receipt begins with.
func name(receipt []byte) string { return strings.TrimRight(string(receipt), "\x00") }

func text(d *Delivery) string {
	b, _ := d.Body()
	return string(b)
}

// held is a handler that waits until the test says what it returns, or, unless it is stubborn, for the end
// of its context, the cause of which it returns.
type held struct {
	begun  chan *Delivery
	result chan error
	ended  chan error // causes
	ctx    chan context.Context
	deaf   bool
}

func newHeld() *held {
	return &held{make(chan *Delivery, 100), make(chan error), make(chan error, 100), make(chan context.Context, 100), false}
}

// returns has one of the handlers that run return err.
func (h *held) returns(err error) {
	select {
	case h.result <- err:
	case <-time.After(2 * time.Hour):
		panic("no handler is running")
	}
}

func (h *held) handle(ctx context.Context, d *Delivery) error {
	h.begun <- d
	h.ctx <- ctx
	done := ctx.Done()
	for {
		select {
		case err := <-h.result:
			return err
		case <-done:
			h.ended <- context.Cause(ctx)
			if !h.deaf {
				return context.Cause(ctx)
			}
			done = nil
		}
	}
}
