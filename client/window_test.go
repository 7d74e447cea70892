package client

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// The messages of a producer are numbered from 1, whichever way they are sent.
func TestNumbers(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		var id uint64
		expect := func(want ...uint64) {
			t.Helper()
			r := p.expect(protocol.OpSend, nil)
			from, list := numbers(t, r)
			if id == 0 {
				id = from
			}
			if from == 0 || from != id || !slices.Equal(list, want) {
				t.Errorf("producer %d, sequences %d, want %d, %d", from, list, id, want)
			}
			p.stored(r, 0)
		}
		batch := going(func() error {
			_, err := producer.SendBatch(t.Context(), "t", []*Message{{Key: "a", Tag: "x"}, {Tag: string(body(300))},
				{Body: body(10_000), Delay: time.Hour}, {DeliverAt: time.Unix(2e9, 0), Properties: []Property{{Name: "a", Value: "b"}}}})
			return err
		})
		expect(1, 2, 3)
		wantErr(t, batch(), ErrTooLarge) // the second, which has no number
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", UniqueKey: "u"}, nil))
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t", Delay: time.Second}, nil))
		ok(t, producer.SendAsync(t.Context(), &Message{Topic: "t"}, nil))
		expect(4)
		expect(5, 6)
		e, err := producer.Encode("t", []*Message{{}, {}})
		ok(t, err)
		for i := range uint64(2) { // each time other messages
			sent := going(func() error { _, err := producer.SendEncoded(t.Context(), e, nil); return err })
			expect(7+2*i, 8+2*i)
			ok(t, sent())
		}
		other := sending(c.Producer(ProducerOptions{}), t.Context(), &Message{Topic: "t"})
		r := p.expect(protocol.OpSend, nil)
		if from, list := numbers(t, r); from == 0 || from == id || !slices.Equal(list, []uint64{1}) {
			t.Errorf("another producer is %d, sequences %d", from, list)
		}
		p.stored(r, 0)
		_, err = other()
		ok(t, err)
		plain := sending(c.Producer(ProducerOptions{NotIdempotent: true}), t.Context(), &Message{Topic: "t", Key: "k"})
		var m protocol.SendRequest
		r = p.expect(protocol.OpSend, &m)
		if v := views(t, &m)[0]; v.ProducerID != 0 || string(v.Key) != "k" {
			t.Errorf("without numbers: %+v", v)
		}
		p.stored(r, 0)
		_, err = plain()
		ok(t, err)
		nothingLeft(t, producer)
	})
}

// SendEncoded is sent again with the numbers of this time.
func TestEncodedBatchIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		e, err := producer.Encode("t", []*Message{{Key: "a"}})
		ok(t, err)
		for i := range uint64(2) {
			sent := going(func() error { _, err := producer.SendEncoded(t.Context(), e, nil); return err })
			p.expect(protocol.OpSend, nil)
			p.close()
			p = b.accept()
			r := p.expect(protocol.OpSend, nil)
			if _, list := numbers(t, r); !slices.Equal(list, []uint64{1 + i}) {
				t.Errorf("sequences %d", list)
			}
			p.stored(r, i)
			ok(t, sent())
		}
		ctx, cancel := context.WithCancel(t.Context())
		sent := going(func() error { _, err := producer.SendEncoded(ctx, e, nil); return err })
		p.expect(protocol.OpSend, nil)
		cancel()
		wantErr(t, sent(), ErrOutcomeUnknown)
		p.close()
		b.accept().quiet()
		nothingLeft(t, producer)
	})
}

// As long as the oldest message is unanswered, no number is given out that would push it out of the broker's window,
// though everything behind it is answered.
func TestWindowOfSendAsync(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{StallTimeout: time.Hour})
		producer := c.Producer(ProducerOptions{MaxPending: 1 << 30})
		var oldest request
		taken, newest := 0, uint64(0)
		served := going(func() error {
			for newest < windowMessages {
				r := p.expect(protocol.OpSend, nil)
				_, list := numbers(t, r)
				if newest = list[len(list)-1]; list[0] == 1 {
					oldest = r
				} else {
					p.stored(r, 0)
				}
			}
			return nil
		})
		m := &Message{Topic: "t", Queue: new(0)}
		ok(t, producer.SendAsync(t.Context(), m, nil))
		*m.Queue = 1
		for taken = 1; taken < windowMessages; taken++ {
			ok(t, producer.SendAsync(t.Context(), m, nil))
		}
		ok(t, served())
		p.quiet()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantErr(t, producer.SendAsync(ctx, m, nil), context.DeadlineExceeded)
		_, err := producer.Send(ctx, m)
		wantErr(t, err, context.DeadlineExceeded)
		notErr(t, err, ErrOutcomeUnknown)
		// Those who wait are let in in turn when it is answered.
		waiting := sending(producer, t.Context(), m)
		behind := going(func() error { return producer.SendAsync(t.Context(), m, nil) })
		p.quiet()
		p.stored(oldest, 0)
		for n := 0; n < 2; {
			r := p.expect(protocol.OpSend, nil)
			_, list := numbers(t, r)
			n += len(list)
			p.stored(r, 0)
		}
		_, err = waiting()
		ok(t, err)
		ok(t, behind())
		ok(t, producer.Flush(t.Context()))
		nothingLeft(t, producer)
	})
}

// A batch of more messages than the window has is sent in parts, of which the later ones wait for the earlier ones.
func TestWindowOfSendBatch(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		messages := make([]*Message, windowMessages+5000)
		for i := range messages {
			messages[i] = new(Message)
		}
		wait := going(func() []SendResult {
			results, err := producer.SendBatch(t.Context(), "t", messages)
			ok(t, err)
			return results
		})
		var parts []request
		for range windowMessages / protocol.MaxSendEntries {
			parts = append(parts, p.expect(protocol.OpSend, nil))
		}
		p.quiet()
		for i, r := range parts[1:] { // all but the first: no room comes of it
			p.stored(r, uint64(i+1)*protocol.MaxSendEntries)
		}
		p.quiet()
		// The connection is lost, and what is unanswered comes again before what waits.
		p.close()
		p = b.accept()
		r := p.expect(protocol.OpSend, nil)
		if _, list := numbers(t, r); list[0] != 1 {
			t.Errorf("sequence %d came first", list[0])
		}
		p.quiet()
		p.stored(r, 0)
		for first := uint64(windowMessages); first < uint64(len(messages)); first += protocol.MaxSendEntries {
			r := p.expect(protocol.OpSend, nil)
			if _, list := numbers(t, r); list[0] != first+1 {
				t.Errorf("sequence %d, want %d", list[0], first+1)
			}
			p.stored(r, first)
		}
		for i, r := range wait() {
			if r.Offset != uint64(i) {
				t.Fatalf("result %d: %+v", i, r)
			}
		}
		nothingLeft(t, producer)
	})
}

// A batch that waits for room ends with its context: the parts that did not leave were not stored.
func TestWindowAndContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		messages := make([]*Message, windowMessages+1)
		for i := range messages {
			messages[i] = new(Message)
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait := going(func() []SendResult { results, _ := producer.SendBatch(ctx, "t", messages); return results })
		first := p.expect(protocol.OpSend, nil)
		synctest.Wait()
		cancel()
		results := wait()
		wantErr(t, results[0].Err, ErrOutcomeUnknown, context.Canceled)
		wantErr(t, results[windowMessages].Err, context.Canceled)
		notErr(t, results[windowMessages].Err, ErrOutcomeUnknown)
		p.stored(first, 0)
		p.close()
		b.accept().quiet()
		nothingLeft(t, producer)
	})
}

// A batch that gives up waiting for room does not hold up a message behind it that needs less.
func TestWindowGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		messages := make([]*Message, windowMessages)
		for i := range messages {
			messages[i] = new(Message)
		}
		most := going(func() error { _, err := producer.SendBatch(t.Context(), "t", messages[:windowMessages-10]); return err })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		long := going(func() error { _, err := producer.SendBatch(ctx, "t", messages[:11]); return err })
		synctest.Wait()
		short := sending(producer, t.Context(), &Message{Topic: "t", Key: "short"})
		for range windowMessages / protocol.MaxSendEntries {
			p.expect(protocol.OpSend, nil)
		}
		p.quiet()
		cancel()
		wantErr(t, long(), context.Canceled)
		synctest.Wait()
		r, list := keys(t, p)
		if !slices.Equal(list, []string{"short"}) {
			t.Errorf("sent %d messages", len(list))
		}
		p.stored(r, 0)
		_, err := short()
		ok(t, err)
		ok(t, c.Close())
		wantErr(t, most(), ErrOutcomeUnknown, ErrClosed)
		nothingLeft(t, producer)
	})
}

// putNumbers knows where codec puts a sequence.
func TestPutNumbers(t *testing.T) {
	var entries []byte
	var err error
	list := []codec.Message{{}, {Delayed: true, DeliverAt: 7}, {Delayed: true, Calendar: true, DeliverAt: 8}, {Tag: "t", Key: "k", OrderKey: "o", UniqueKey: "u", Body: body(50)}}
	for i := range list {
		list[i].ProducerID = 1<<64 - 1
		entries, err = appendSendEntry(entries, &list[i])
		ok(t, err)
	}
	const first = 1<<32 + 5
	putNumbers(entries, first)
	for i := range list {
		want := list[i]
		want.Sequence = first + uint64(i)
		b, err := appendSendEntry(nil, &want)
		ok(t, err)
		if len(entries) < len(b) || string(entries[:len(b)]) != string(b) {
			t.Fatalf("message %d is not as if it had been encoded with its number", i)
		}
		entries = entries[len(b):]
	}
	if len(entries) != 0 {
		t.Errorf("%d bytes are left", len(entries))
	}
}
