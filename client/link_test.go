package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

func body(n int) []byte { return bytes.Repeat([]byte{'x'}, n) }

func TestHelloRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.bye = &goodbye{protocol.TooManyConnections, "at 10000"}
		_, err := Dial(t.Context(), "broker:1", Options{Dialer: b.dial})
		var status *StatusError
		if !errors.As(err, &status) || status.Status != protocol.TooManyConnections || status.Message != "at 10000" {
			t.Errorf("got %v", err)
		}
	})
}

func TestHelloUnanswered(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.mute = true
		began := time.Now()
		_, err := Dial(t.Context(), "broker:1", Options{Dialer: b.dial, ConnectTimeout: 4 * time.Second})
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestDialRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.refuse = errors.New("no route")
		_, err := Dial(t.Context(), "broker:1", Options{Dialer: b.dial})
		wantErr(t, err, b.refuse)
	})
}

func TestAnswersInAnyOrder(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		const n = 8
		var waits [n]func() string
		var requests [n]request
		for i := range n {
			waits[i] = going(func() string {
				g, err := c.ShowGroup(t.Context(), fmt.Sprintf("g%d", i))
				ok(t, err)
				return g.Name
			})
			requests[i] = p.expect(protocol.OpShowGroup, nil)
		}
		for i := n - 1; i >= 0; i-- {
			var name protocol.NameRequest
			ok(t, name.Decode(requests[i].body))
			p.answer(requests[i], protocol.OK, &protocol.ShowGroupAnswer{Name: name.Name})
		}
		for i := range n {
			if got := waits[i](); got != fmt.Sprintf("g%d", i) {
				t.Errorf("call %d got the answer for %s", i, got)
			}
		}
	})
}

// The credit counts whole frames. What does not fit waits until answers have made room.
func TestCredit(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.CreditBytes = 1000
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		var waits []func() error
		for range 5 {
			waits = append(waits, going(func() error {
				_, err := producer.Send(t.Context(), &Message{Topic: "t", Body: body(300)})
				return err
			}))
			synctest.Wait()
		}
		var open []request
		take := func(want int) {
			synctest.Wait()
			for len(p.frames) > 0 {
				open = append(open, <-p.frames)
			}
			bytes := 0
			for _, r := range open {
				bytes += protocol.HeaderBytes + len(r.body)
			}
			if len(open) != want || bytes > 1000 {
				t.Fatalf("%d frames of %d bytes unanswered, want %d frames within 1000 bytes", len(open), bytes, want)
			}
		}
		take(2)
		p.stored(open[0], 0)
		open = open[1:]
		take(2)
		for len(open) > 0 {
			p.stored(open[0], 0)
			open = open[1:]
			synctest.Wait()
			for len(p.frames) > 0 {
				open = append(open, <-p.frames)
			}
		}
		for _, wait := range waits {
			ok(t, wait())
		}
	})
}

// A frame longer than the credit goes when nothing is unanswered, and nothing goes beside it.
func TestFrameLongerThanTheCredit(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.CreditBytes = 500
		c, p := b.client(Options{})
		list := going(func() error { _, err := c.ListTopics(t.Context()); return err })
		first := p.expect(protocol.OpListTopics, nil)
		send := going(func() error {
			_, err := c.Producer(ProducerOptions{}).Send(t.Context(), &Message{Topic: "t", Body: body(2000)})
			return err
		})
		p.quiet()
		p.answer(first, protocol.OK, &protocol.ListTopicsAnswer{})
		ok(t, list())
		long := p.expect(protocol.OpSend, nil)
		list = going(func() error { _, err := c.ListTopics(t.Context()); return err })
		p.quiet()
		p.stored(long, 0)
		ok(t, send())
		p.answer(p.expect(protocol.OpListTopics, nil), protocol.OK, &protocol.ListTopicsAnswer{})
		ok(t, list())
	})
}

// Sends leave room in the credit for a heartbeat, which goes before those that wait.
func TestHeartbeatPassesSends(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.CreditBytes = 3740 // ten of the requests below are 3,700 bytes, a heartbeat is 56
		c, p := b.client(Options{})
		p.session(c)
		ctx, cancel := context.WithCancel(t.Context())
		var waits []func() error
		for range 20 {
			waits = append(waits, going(func() error {
				_, err := c.Producer(ProducerOptions{}).Send(ctx, &Message{Topic: "t", Body: body(300)})
				return err
			}))
		}
		synctest.Wait()
		for len(p.frames) > 0 {
			p.expect(protocol.OpSend, nil)
		}
		p.expect(protocol.OpHeartbeat, nil)
		cancel()
		for _, wait := range waits {
			wantErr(t, wait(), context.Canceled)
		}
	})
}

func TestFrameOverTheLimitIsRefusedHere(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.MaxFrameBytes = 1000
		c, p := b.client(Options{})
		_, err := c.Producer(ProducerOptions{}).Send(t.Context(), &Message{Topic: "t", Body: body(1000)})
		wantErr(t, err, ErrTooLarge)
		notErr(t, err, ErrOutcomeUnknown)
		err = c.Producer(ProducerOptions{}).SendAsync(t.Context(), &Message{Topic: "t", Body: body(1000)}, nil)
		wantErr(t, err, ErrTooLarge)
		p.quiet()
	})
}

// Calls that gather while a write is under way leave in one write.
func TestWritesAreCoalesced(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		end, gate := b.conns[0], make(chan struct{})
		end.set(func() { end.gate = gate; end.writes = 0 })
		var waits []func() error
		for range 51 {
			waits = append(waits, going(func() error { _, err := c.Stats(t.Context()); return err }))
			synctest.Wait() // the first one is being written
		}
		end.set(func() { end.gate = nil })
		close(gate)
		for range 51 {
			p.answer(p.expect(protocol.OpStats, nil), protocol.OK, &protocol.StatsAnswer{})
		}
		for _, wait := range waits {
			ok(t, wait())
		}
		end.set(func() {
			if end.writes != 2 {
				t.Errorf("%d writes for 51 calls", end.writes)
			}
		})
	})
}

func TestAnswerToNothingEndsTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		wait := going(func() error { _, err := c.Stats(t.Context()); return err })
		r := p.expect(protocol.OpStats, nil)
		wrong := r
		wrong.RequestID += 5
		p.answer(wrong, protocol.OK, &protocol.StatsAnswer{})
		next := b.accept()
		next.answer(next.expect(protocol.OpStats, nil), protocol.OK, &protocol.StatsAnswer{})
		ok(t, wait())
	})
}

func TestContextEndsAWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Producer(ProducerOptions{}).Send(ctx, &Message{Topic: "t"})
		wantErr(t, err, context.DeadlineExceeded, ErrOutcomeUnknown)
		_, err = c.Producer(ProducerOptions{}).Send(ctx, &Message{Topic: "t"})
		wantErr(t, err, context.DeadlineExceeded)
		notErr(t, err, ErrOutcomeUnknown)
		// The late answer finds nobody and harms nobody.
		p.stored(p.expect(protocol.OpSend, nil), 0)
		wait := going(func() error { _, err := c.Stats(t.Context()); return err })
		p.answer(p.expect(protocol.OpStats, nil), protocol.OK, &protocol.StatsAnswer{})
		ok(t, wait())
	})
}

// An abandoned call counts against the credit until it is answered.
func TestAbandonedCallKeepsItsCredit(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.CreditBytes = 600
		c, p := b.client(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		send := going(func() error {
			_, err := c.Producer(ProducerOptions{}).Send(ctx, &Message{Topic: "t", Body: body(400)})
			return err
		})
		r := p.expect(protocol.OpSend, nil)
		cancel()
		wantErr(t, send(), context.Canceled, ErrOutcomeUnknown)
		send = going(func() error {
			_, err := c.Producer(ProducerOptions{}).Send(t.Context(), &Message{Topic: "t", Body: body(400)})
			return err
		})
		p.quiet()
		p.stored(r, 0)
		p.stored(p.expect(protocol.OpSend, nil), 1)
		ok(t, send())
	})
}

func TestStatusErrors(t *testing.T) {
	for _, x := range []struct {
		op     protocol.Opcode
		status protocol.Status
		is     []error
		isNot  []error
	}{
		{protocol.OpSend, protocol.TopicNotFound, []error{ErrTopicNotFound}, []error{ErrOutcomeUnknown}},
		{protocol.OpSend, protocol.StoreFailed, []error{ErrStoreFailed, ErrOutcomeUnknown}, nil},
		{protocol.OpSend, protocol.Internal, []error{ErrOutcomeUnknown}, nil},
		{protocol.OpSend, protocol.Status(999), []error{ErrOutcomeUnknown}, nil},
		{protocol.OpAck, protocol.StoreFailed, []error{ErrStoreFailed}, []error{ErrOutcomeUnknown}},
		{protocol.OpDeleteTopic, protocol.StoreFailed, []error{ErrOutcomeUnknown}, nil},
		{protocol.OpSend, protocol.Draining, []error{ErrDraining}, []error{ErrOutcomeUnknown}},
		{protocol.OpSend, protocol.StoreFull, []error{ErrStoreFull}, []error{ErrStoreFailed}},
		{protocol.OpPop, protocol.GroupNotFound, []error{ErrGroupNotFound}, nil},
		{protocol.OpPop, protocol.Unsupported, []error{ErrUnsupported}, nil},
	} {
		var err error = &StatusError{Op: x.op, Status: x.status, Message: "why"}
		wantErr(t, err, x.is...)
		for _, not := range x.isNot {
			notErr(t, err, not)
		}
		if text := err.Error(); !strings.Contains(text, x.status.String()) || !strings.Contains(text, x.op.String()) {
			t.Errorf("text %q", text)
		}
	}
}
