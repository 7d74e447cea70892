package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Without numbers a SEND that was under way is not repeated; one that had not left goes on the next connection.
func TestLossWithSendsWithoutNumbers(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.CreditBytes = 600
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{NotIdempotent: true})
		first := going(func() error {
			_, err := producer.Send(t.Context(), &Message{Topic: "t", Key: "1", Body: body(400)})
			return err
		})
		p.expect(protocol.OpSend, nil)
		second := going(func() error {
			_, err := producer.Send(t.Context(), &Message{Topic: "t", Key: "2", Body: body(400)})
			return err
		})
		p.quiet()
		p.close()
		err := first()
		wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost)
		next := b.accept()
		var m protocol.SendRequest
		r := next.expect(protocol.OpSend, &m)
		var view codec.View
		ok(t, view.Parse(m.Messages[0]))
		if string(view.Key) != "2" {
			t.Errorf("message %q was sent on the new connection", view.Key)
		}
		next.stored(r, 0)
		ok(t, second())
		next.quiet()
	})
}

func TestIdempotentCallsAreRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		batch := p.popped(s, messageRecord(t, 0, codec.Message{}), messageRecord(t, 1, codec.Message{}))
		ack := going(func() error { _, err := s.Ack(t.Context(), batch.Deliveries[0]); return err })
		change := going(func() error { return s.Extend(t.Context(), batch.Deliveries[1], time.Minute) })
		stats := going(func() error { _, err := c.Stats(t.Context()); return err })
		peek := going(func() error { _, err := c.Peek(t.Context(), "t", 0, 0, 1); return err })
		synctest.Wait()
		before := map[protocol.Opcode]string{}
		for range 4 {
			r := <-p.frames
			before[r.Opcode] = string(r.body)
		}
		p.close()
		next := b.accept()
		synctest.Wait()
		for range 4 {
			r := <-next.frames
			if string(r.body) != before[r.Opcode] {
				t.Errorf("%s was repeated with another body", r.Opcode)
			}
			switch r.Opcode {
			case protocol.OpStats:
				next.answer(r, protocol.OK, &protocol.StatsAnswer{})
			case protocol.OpPeek:
				next.answer(r, protocol.OK, &protocol.PeekAnswer{})
			default:
				next.settled(r, protocol.SettleResult{RemainingMs: 60_000})
			}
		}
		for _, wait := range []func() error{ack, change, stats, peek} {
			ok(t, wait())
		}
		next.quiet()
	})
}

// Repeated calls keep their order, and go before those that were queued later.
func TestRepeatedCallsKeepTheirOrder(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		show := func(name string) func() error {
			wait := going(func() error { _, err := c.ShowGroup(t.Context(), name); return err })
			synctest.Wait()
			return wait
		}
		waits := []func() error{show("a"), show("b"), show("c")}
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		waits = append(waits, show("d"))
		b.set(func() { b.refuse = nil })
		next := b.accept()
		for _, want := range []string{"a", "b", "c", "d"} {
			var m protocol.NameRequest
			r := next.expect(protocol.OpShowGroup, &m)
			if m.Name != want {
				t.Errorf("got %s, want %s", m.Name, want)
			}
			next.answer(r, protocol.OK, &protocol.ShowGroupAnswer{})
		}
		for _, wait := range waits {
			ok(t, wait())
		}
	})
}

// A call that nobody waits for any more is not repeated.
func TestAbandonedCallIsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Stats(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		p.expect(protocol.OpStats, nil)
		p.close()
		b.accept().quiet()
	})
}

func TestLossWithAdminCalls(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		waits := []func() error{
			going(func() error { return c.CreateTopic(t.Context(), "t", 1) }),
			going(func() error { return c.UpdateTopic(t.Context(), "t", 2) }),
			going(func() error { return c.DeleteTopic(t.Context(), "t") }),
			going(func() error { return c.PurgeTopic(t.Context(), "t") }),
			going(func() error { return c.CreateGroup(t.Context(), "g", GroupRules{}) }),
			going(func() error { return c.UpdateGroup(t.Context(), "g", GroupRules{}) }),
			going(func() error { return c.DeleteGroup(t.Context(), "g") }),
		}
		synctest.Wait()
		p.close()
		for _, wait := range waits {
			wantErr(t, wait(), ErrOutcomeUnknown, ErrConnectionLost)
		}
		b.accept().quiet()
	})
}

// What the broker said with its last frame is in the error of every call that was under way.
func TestGoodbye(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		send := going(func() error {
			_, err := c.Producer(ProducerOptions{NotIdempotent: true}).Send(t.Context(), &Message{Topic: "t"})
			return err
		})
		p.expect(protocol.OpSend, nil)
		b.set(func() { b.refuse = errors.New("down") })
		p.push(protocol.OpGoodbye, protocol.FlowViolation, &protocol.ErrorBody{Message: "9 bytes too many"})
		err := send()
		wantErr(t, err, ErrOutcomeUnknown, ErrConnectionLost)
		var status *StatusError
		if !errors.As(err, &status) || status.Status != protocol.FlowViolation || status.Message != "9 bytes too many" {
			t.Errorf("got %v", err)
		}
		// So is why there is no connection, in that of a call that waited for one.
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Stats(ctx)
		wantErr(t, err, context.DeadlineExceeded, b.refuse)
		if !strings.Contains(err.Error(), "broker:1") {
			t.Errorf("no address in %q", err)
		}
	})
}

// The last words are heard though writing failed first.
func TestGoodbyeAfterAFailedWrite(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		broken := errors.New("broken pipe")
		b.conns[0].set(func() { b.conns[0].fail = broken })
		send := going(func() error {
			_, err := c.Producer(ProducerOptions{NotIdempotent: true}).Send(t.Context(), &Message{Topic: "t"})
			return err
		})
		synctest.Wait()
		p.push(protocol.OpGoodbye, protocol.SlowConsumer, &protocol.ErrorBody{Message: "slow"})
		var status *StatusError
		if err := send(); !errors.As(err, &status) || status.Status != protocol.SlowConsumer {
			t.Errorf("got %v", err)
		}
		b.accept()
		b.conns[1].set(func() { b.conns[1].fail = broken })
		_, err := c.Producer(ProducerOptions{NotIdempotent: true}).Send(t.Context(), &Message{Topic: "t"})
		wantErr(t, err, ErrOutcomeUnknown, broken)
	})
}

// Attempts to connect are 50 ms to 5 s apart, and not at the same moments in every client.
func TestReconnectBackOff(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		_, p := b.client(Options{})
		b.set(func() { b.refuse = errors.New("down") })
		lostAt := time.Now()
		p.close()
		time.Sleep(2 * time.Minute) // of the fake clock
		b.mu.Lock()
		dials := append([]time.Time{lostAt}, b.dials[1:]...)
		b.mu.Unlock()
		different := map[time.Duration]bool{}
		longest := time.Duration(0)
		for i := range len(dials) - 1 {
			wait := dials[i+1].Sub(dials[i])
			if wait < 50*time.Millisecond || wait > 5*time.Second {
				t.Errorf("attempt %d after %v", i+1, wait)
			}
			if i == 0 && wait > 150*time.Millisecond {
				t.Errorf("the first attempt after %v", wait)
			}
			different[wait] = true
			longest = max(longest, wait)
		}
		if len(dials) < 20 || len(different) < len(dials)/2 || longest < time.Second {
			t.Errorf("%d attempts, %d different waits, longest %v", len(dials)-1, len(different), longest)
		}
		b.set(func() { b.refuse = nil })
		b.accept()
	})
}

// A network that swallows everything is noticed.
func TestStalledConnectionIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{StallTimeout: 20 * time.Second})
		began := time.Now()
		stats := going(func() error { _, err := c.Stats(t.Context()); return err })
		p.expect(protocol.OpStats, nil)
		next := b.accept()
		if took := time.Since(began); took < 20*time.Second || took > 23*time.Second {
			t.Errorf("given up after %v", took)
		}
		next.answer(next.expect(protocol.OpStats, nil), protocol.OK, &protocol.StatsAnswer{})
		ok(t, stats())
		// An idle connection, and one with nothing but waiting pops, is not stalled.
		s := next.session(c)
		pop := going(func() error {
			_, err := s.Pop(t.Context(), PopOptions{Topic: "t", Await: 5 * time.Minute})
			return err
		})
		r := next.expect(protocol.OpPop, nil)
		for range 20 {
			next.answer(next.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
		}
		next.answer(r, protocol.Empty, &protocol.PopAnswer{})
		ok(t, pop())
		if len(b.peers) > 0 {
			t.Error("connected again")
		}
	})
}

func TestCloseWithCallsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.CreditBytes = 700
		c, p := b.client(Options{})
		s := p.session(c)
		producer := c.Producer(ProducerOptions{})
		pop := going(func() error { _, err := s.Pop(t.Context(), PopOptions{Topic: "t", Await: time.Minute}); return err })
		p.expect(protocol.OpPop, nil)
		sent := going(func() error { _, err := producer.Send(t.Context(), &Message{Topic: "t", Body: body(300)}); return err })
		p.expect(protocol.OpSend, nil)
		queued := going(func() error { _, err := producer.Send(t.Context(), &Message{Topic: "t", Body: body(300)}); return err })
		stats := going(func() error { _, err := c.Stats(t.Context()); return err })
		async := make(chan error, 1)
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t"}, func(_ SendResult, err error) { async <- err }))
		synctest.Wait()
		ok(t, c.Close())
		wantErr(t, pop(), ErrConnectionLost, ErrClosed)
		wantErr(t, sent(), ErrOutcomeUnknown, ErrClosed)
		err := queued()
		wantErr(t, err, ErrClosed)
		notErr(t, err, ErrOutcomeUnknown)
		wantErr(t, stats(), ErrClosed)
		wantErr(t, <-async, ErrClosed)
		wantErr(t, s.Err(), ErrClosed)
		_, err = c.Stats(t.Context())
		wantErr(t, err, ErrClosed)
		wantErr(t, producer.SendAsync(t.Context(), &Message{Topic: "t"}, nil), ErrClosed)
		_, err = c.Register(t.Context(), "g", RegisterOptions{})
		wantErr(t, err, ErrClosed)
		ok(t, producer.Flush(t.Context()))
		ok(t, c.Close())
	})
}

func TestCloseWhileDisconnected(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		stats := going(func() error { _, err := c.Stats(t.Context()); return err })
		time.Sleep(time.Minute)
		ok(t, c.Close())
		wantErr(t, stats(), ErrClosed)
	})
}

// The limits of a broker that came back with lower ones hold for what waits.
func TestLowerLimitsAfterReconnect(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		send := going(func() error {
			_, err := c.Producer(ProducerOptions{}).Send(t.Context(), &Message{Topic: "t", Body: body(3000)})
			return err
		})
		synctest.Wait()
		b.set(func() { b.refuse, b.hello.MaxFrameBytes = nil, 2000 })
		wantErr(t, send(), ErrTooLarge)
		b.accept().quiet()
	})
}
