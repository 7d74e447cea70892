package client

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// sendLog is what a broker keeps of SENDs, over all connections: each (producer, sequence) once.
type sendLog struct {
	t *testing.T

	mu       sync.Mutex
	stored   []string // keys, in order
	repeated int
	results  map[[2]uint64]protocol.SendResult
}

func newSendLog(t *testing.T) *sendLog {
	return &sendLog{t: t, results: make(map[[2]uint64]protocol.SendResult)}
}

// store does what r asks for, and returns the answer for whoever wants to send it.
func (s *sendLog) store(r request) *protocol.SendAnswer {
	var m protocol.SendRequest
	if err := m.Decode(r.body); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := new(protocol.SendAnswer)
	for _, b := range m.Messages {
		var v codec.View
		if err := v.Parse(b); err != nil || v.ProducerID == 0 || v.Sequence == 0 {
			s.t.Errorf("producer %d, sequence %d, %v", v.ProducerID, v.Sequence, err)
		}
		name := [2]uint64{v.ProducerID, v.Sequence}
		result, there := s.results[name]
		if there {
			s.repeated++
		} else {
			n := uint64(len(s.stored))
			result = protocol.SendResult{Queue: 3, Offset: n, MessageID: codec.NewMessageID(7, n)}
			s.results[name] = result
			s.stored = append(s.stored, string(v.Key))
		}
		answer.Results = append(answer.Results, result)
	}
	return answer
}

// sending starts a Send and lets it leave.
func sending(p *Producer, ctx context.Context, m *Message) (wait func() (SendResult, error)) {
	type outcome struct {
		r   SendResult
		err error
	}
	o := going(func() outcome { r, err := p.Send(ctx, m); return outcome{r, err} })
	synctest.Wait()
	return func() (SendResult, error) { x := o(); return x.r, x.err }
}

// numbers are the producer and the sequences of a SEND.
func numbers(t *testing.T, r request) (producer uint64, sequences []uint64) {
	t.Helper()
	var m protocol.SendRequest
	ok(t, m.Decode(r.body))
	for _, v := range views(t, &m) {
		producer = v.ProducerID
		sequences = append(sequences, v.Sequence)
	}
	return producer, sequences
}

// nothingLeft fails if the producer or its link still know of a call.
func nothingLeft(t *testing.T, p *Producer) {
	t.Helper()
	synctest.Wait()
	p.async.mu.Lock()
	defer p.async.mu.Unlock()
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	w := &p.window
	if w.oldest != nil || w.newest != nil || w.promised != 0 || len(w.waiters) != 0 || p.async.pending != 0 || p.async.live.first != nil {
		t.Errorf("left: window %+v, %d bytes pending", w, p.async.pending)
	}
	if !p.link.parked.empty() || len(p.link.pending) != 0 {
		t.Errorf("left: %d calls in flight, parked %t", len(p.link.pending), !p.link.parked.empty())
	}
}

// The broker has stored the message and its answer is lost: it comes again with the same bytes, and the sender gets
// the result of the first time.
func TestLostAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		log := newSendLog(t)
		wait := sending(producer, t.Context(), &Message{Topic: "t", Key: "a", Body: body(100), Delay: 0})
		first := p.expect(protocol.OpSend, nil)
		want := log.store(first).Results[0]
		b.set(func() { b.hello.Epoch = 8 }) // it was started anew, and knows the numbers all the same
		p.close()
		next := b.accept()
		again := next.expect(protocol.OpSend, nil)
		if !bytes.Equal(again.body, first.body) {
			t.Error("another body")
		}
		next.answer(again, protocol.OK, log.store(again))
		r, err := wait()
		if err != nil || r.ID != want.MessageID || r.Offset != want.Offset || r.Queue != 3 {
			t.Errorf("got %+v, %v, want %+v", r, err, want)
		}
		if !slices.Equal(log.stored, []string{"a"}) || log.repeated != 1 {
			t.Errorf("stored %v, %d repeated", log.stored, log.repeated)
		}
		next.quiet()
		nothingLeft(t, producer)
	})
}

// A connection that breaks again and again under the same request.
func TestLostAgainAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		wait := sending(producer, t.Context(), &Message{Topic: "t"})
		first := p.expect(protocol.OpSend, nil)
		for range 8 {
			p.close()
			p = b.accept()
			if again := p.expect(protocol.OpSend, nil); !bytes.Equal(again.body, first.body) {
				t.Error("another body")
			} else if first.RequestID == again.RequestID {
				t.Error("the request id of before")
			} else {
				first = again
			}
		}
		p.stored(first, 5)
		if r, err := wait(); err != nil || r.Offset != 5 {
			t.Errorf("got %+v, %v", r, err)
		}
		nothingLeft(t, producer)
	})
}

// Everything of a lane goes out again in its order, and before what came later.
func TestAsyncOrderOverRetries(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{Compression: CompressNone})
		var o outcomes
		full := func(name string) { async1(t, producer, "t", name, asyncFullBytes, &o) }
		for _, name := range []string{"a", "b", "c", "d"} {
			full(name)
		}
		async1(t, producer, "t", "gathers", 10, &o)
		async1(t, producer, "u", "other lane", 10, &o)
		for _, name := range []string{"a", "b", "c", "d", "other lane"} {
			r, list := keys(t, p)
			if !slices.Equal(list, []string{name}) {
				t.Fatalf("sent %v, want %s", list, name)
			}
			if name == "b" {
				p.stored(r, 0) // which also sends what gathers
			}
		}
		if _, list := keys(t, p); !slices.Equal(list, []string{"gathers"}) {
			t.Fatalf("sent %v", list)
		}
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		full("new")
		if got := o.all(); !slices.Equal(got, []string{"b"}) {
			t.Fatalf("callbacks %v", got)
		}
		b.set(func() { b.refuse = nil })
		next := b.accept()
		for _, want := range []string{"a", "c", "d", "other lane", "gathers", "new"} {
			r, list := keys(t, next)
			if !slices.Equal(list, []string{want}) {
				t.Fatalf("sent %v, want %s", list, want)
			}
			next.stored(r, 0)
		}
		if got := o.all(); !slices.Equal(got, []string{"b", "a", "c", "d", "other lane", "gathers", "new"}) {
			t.Errorf("callbacks %v", got)
		}
		nothingLeft(t, producer)
	})
}

// What is answered before a loss does not come again; the rest does, in its order, over loss after loss.
func TestSeveralSendsInFlightAreRepeatedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		waits := map[string]func() (SendResult, error){}
		for _, name := range []string{"a", "b", "c"} {
			waits[name] = sending(producer, t.Context(), &Message{Topic: "t", Key: name})
		}
		for _, x := range []struct {
			sent     []string
			answered string
		}{{[]string{"a", "b", "c"}, "b"}, {[]string{"a", "c"}, ""}, {[]string{"a", "c"}, "a"}, {[]string{"c"}, "c"}} {
			for _, name := range x.sent {
				r, list := keys(t, p)
				if !slices.Equal(list, []string{name}) {
					t.Fatalf("sent %v, want %s", list, name)
				}
				if name == x.answered {
					p.stored(r, 0)
					_, err := waits[name]()
					ok(t, err)
				}
			}
			p.quiet()
			p.close()
			p = b.accept()
		}
		p.quiet()
		nothingLeft(t, producer)
	})
}

// A broker that is going down answers all that comes. What may be sent again is held back for the next one, where it
// leaves in its order; what may not goes on.
func TestBrokerGoingDown(t *testing.T) {
	for _, status := range []protocol.Status{protocol.Draining, protocol.StoreFailed, protocol.Internal} {
		bubble(t, func(t *testing.T, b *fakeBroker) {
			c, p := b.client(Options{})
			producer := c.Producer(ProducerOptions{Compression: CompressNone})
			var o outcomes
			for _, name := range []string{"a", "b", "c"} {
				async1(t, producer, "t", name, asyncFullBytes, &o)
			}
			var sent []request
			for range 3 {
				r, _ := keys(t, p)
				sent = append(sent, r)
			}
			p.refuse(sent[1], status, "going down") // in whatever order
			p.refuse(sent[0], status, "going down")
			synctest.Wait()
			async1(t, producer, "t", "d", asyncFullBytes, &o)
			p.quiet()
			stats := going(func() error { _, err := c.Stats(t.Context()); return err })
			p.answer(p.expect(protocol.OpStats, nil), protocol.OK, &protocol.StatsAnswer{})
			ok(t, stats())
			plain := sending(c.Producer(ProducerOptions{NotIdempotent: true}), t.Context(), &Message{Topic: "t"})
			p.refuse(p.expect(protocol.OpSend, nil), status, "going down")
			_, err := plain()
			if err == nil || errors.Is(err, ErrOutcomeUnknown) == (status == protocol.Draining) {
				t.Errorf("%s: without numbers %v", status, err)
			}
			time.Sleep(20 * time.Second) // its clients have time to settle what they have
			if got := o.all(); len(got) != 0 {
				t.Errorf("%s: callbacks %v", status, got)
			}
			b.set(func() { b.hello.Epoch = 8 })
			p.close()
			next := b.accept()
			for i, name := range []string{"a", "b", "c", "d"} {
				r, list := keys(t, next)
				if !slices.Equal(list, []string{name}) || i < 3 && !bytes.Equal(r.body, sent[i].body) {
					t.Fatalf("%s: sent %v, want %s", status, list, name)
				}
				next.stored(r, uint64(i))
			}
			if got := o.all(); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
				t.Errorf("%s: callbacks %v", status, got)
			}
			// Nothing is held back any more.
			async1(t, producer, "t", "e", 10, &o)
			r, _ := keys(t, next)
			next.stored(r, 4)
			nothingLeft(t, producer)
		})
	}
}

// What is being sent again counts as unanswered: SendAsync waits behind it, and so does Flush.
func TestRetriesArePending(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{MaxPending: 1000})
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", Body: body(800)}, nil))
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		began := time.Now()
		more := going(func() time.Duration {
			ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", Body: body(800)}, nil))
			return time.Since(began)
		})
		flush := going(func() time.Duration { ok(t, producer.Flush(t.Context())); return time.Since(began) })
		time.Sleep(30 * time.Second)
		b.set(func() { b.refuse = nil })
		next := b.accept()
		next.stored(next.expect(protocol.OpSend, nil), 0)
		if more, flush := more(), flush(); more < 30*time.Second || flush < 30*time.Second {
			t.Errorf("waited %v and %v", more, flush)
		}
		next.stored(next.expect(protocol.OpSend, nil), 1)
		ok(t, producer.Flush(t.Context()))
		nothingLeft(t, producer)
	})
}
