package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func views(t *testing.T, m *protocol.SendRequest) []codec.View {
	t.Helper()
	list := make([]codec.View, len(m.Messages))
	for i := range list {
		ok(t, list[i].Parse(m.Messages[i]))
	}
	return list
}

func TestSendCarriesEverything(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{Create: true})
		at := time.Date(2033, 5, 18, 3, 33, 20, 1_500_000, time.UTC)
		wait := going(func() SendResult {
			r, err := producer.Send(t.Context(), &Message{Topic: "orders", Tag: "paid", Key: "k", OrderKey: "o", UniqueKey: "u",
				Properties: []Property{{Name: "a", Value: "1"}, {Name: "b", Value: "2"}}, Body: []byte("hello"), Queue: new(6), DeliverAt: at})
			ok(t, err)
			return r
		})
		var m protocol.SendRequest
		r := p.expect(protocol.OpSend, &m)
		if m.Topic != "orders" || m.Queue != 6 || r.Flags != protocol.FlagCreate || len(m.Messages) != 1 {
			t.Errorf("got %+v, flags %d", m, r.Flags)
		}
		got := views(t, &m)[0].Message()
		if got.Tag != "paid" || got.Key != "k" || got.OrderKey != "o" || got.UniqueKey != "u" || string(got.Body) != "hello" ||
			len(got.Properties) != 2 || got.Properties[1] != (Property{Name: "b", Value: "2"}) ||
			!got.Delayed || !got.Calendar || got.DeliverAt != uint64(at.UnixMilli()+1) {
			t.Errorf("got %+v", got)
		}
		id := codec.NewMessageID(7, 99)
		p.answer(r, protocol.OK, &protocol.SendAnswer{Results: []protocol.SendResult{{Queue: 6, Offset: 12, MessageID: id, Handle: 5}}})
		if got := wait(); got != (SendResult{ID: id, Queue: 6, Offset: 12, Handle: 5}) {
			t.Errorf("got %+v", got)
		}
	})
}

func TestDelayIsRoundedUp(t *testing.T) {
	var x codec.Message
	ok(t, setDeliverAt(&x, &Message{Delay: 1500 * time.Microsecond}))
	if !x.Delayed || x.Calendar || x.DeliverAt != 2 {
		t.Errorf("got %+v", x)
	}
	for _, m := range []*Message{{Delay: -1}, {Delay: 1, DeliverAt: time.Now()}, {DeliverAt: time.Unix(-5, 0)}} {
		wantErr(t, setDeliverAt(&x, m), ErrInvalid)
	}
}

// A message that cannot be sent costs only itself its place in the batch.
func TestBatchResults(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{Compression: CompressNone})
		messages := []*Message{
			{Key: "0"}, {Tag: strings.Repeat("x", 300)}, {Key: "2"}, {Topic: "other"}, {Key: "4", Topic: "t"},
			{Body: body(protocol.MaxBodyBytes + 1)}, {Queue: new(-3)}, {Key: "7"},
		}
		type outcome struct {
			results []SendResult
			err     error
		}
		wait := going(func() outcome {
			r, err := producer.SendBatch(t.Context(), "t", messages)
			return outcome{r, err}
		})
		var m protocol.SendRequest
		r := p.expect(protocol.OpSend, &m)
		keys := ""
		for _, v := range views(t, &m) {
			keys += string(v.Key)
		}
		if keys != "0247" || m.Queue != protocol.AnyQueue {
			t.Errorf("sent %q to queue %d", keys, m.Queue)
		}
		p.answer(r, protocol.OK, &protocol.SendAnswer{Results: []protocol.SendResult{
			{Offset: 10}, {Offset: 12}, {Status: protocol.StoreFailed}, {Offset: 17}}})
		got := wait()
		for i, want := range []error{nil, ErrTooLarge, nil, ErrInvalid, ErrOutcomeUnknown, ErrTooLarge, ErrInvalid, nil} {
			if !errors.Is(got.results[i].Err, want) || (want == nil && got.results[i].Offset != uint64(10+i)) {
				t.Errorf("result %d: %+v, want %v", i, got.results[i], want)
			}
		}
		wantErr(t, got.err, ErrTooLarge)
		if !strings.Contains(got.err.Error(), "5 of 8") {
			t.Errorf("error %v", got.err)
		}
	})
}

func TestBatchIsSplit(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		b.hello.CreditBytes = 64 << 10 // so requests of at most 16 KiB
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{Compression: CompressNone})
		var messages []*Message
		for i := range 40 {
			messages = append(messages, &Message{Key: string(rune('A' + i)), Body: body(1000)})
		}
		messages[20].Queue = new(3)
		messages[30].Body = body(20_000)
		wait := going(func() []SendResult {
			results, err := producer.SendBatch(t.Context(), "t", messages)
			ok(t, err)
			return results
		})
		next := 0
		frames := 0
		for next < len(messages) {
			var m protocol.SendRequest
			r := p.expect(protocol.OpSend, &m)
			frames++
			if n := protocol.HeaderBytes + len(r.body); n > 16<<10 && len(m.Messages) > 1 {
				t.Errorf("a frame of %d bytes", n)
			}
			if (m.Queue == 3) != (next == 20) {
				t.Errorf("message %d to queue %d", next, m.Queue)
			}
			p.stored(r, uint64(next))
			for _, v := range views(t, &m) {
				if string(v.Key) != messages[next].Key {
					t.Errorf("message %d is %q", next, v.Key)
				}
				next++
			}
		}
		for i, r := range wait() {
			if r.Offset != uint64(i) {
				t.Errorf("result %d: %+v", i, r)
			}
		}
		if frames > 7 {
			t.Errorf("%d frames", frames)
		}
	})
}

func TestBatchOfMoreThanTheMostEntries(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		messages := make([]*Message, 5000)
		for i := range messages {
			messages[i] = new(Message)
		}
		wait := going(func() []SendResult {
			results, err := c.Producer(ProducerOptions{}).SendBatch(t.Context(), "t", messages)
			ok(t, err)
			return results
		})
		p.stored(p.expect(protocol.OpSend, nil), 0)
		p.stored(p.expect(protocol.OpSend, nil), 4096)
		if r := wait(); r[4999].Offset != 4999 {
			t.Errorf("got %+v", r[4999])
		}
	})
}

func TestSendRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{NotIdempotent: true})
		for _, x := range []struct {
			status protocol.Status
			want   error
		}{{protocol.TopicNotFound, ErrTopicNotFound}, {protocol.StoreFailed, ErrOutcomeUnknown}, {protocol.StoreFull, ErrStoreFull}} {
			wait := going(func() error { _, err := producer.Send(t.Context(), &Message{Topic: "t"}); return err })
			p.refuse(p.expect(protocol.OpSend, nil), x.status, "because")
			err := wait()
			wantErr(t, err, x.want)
			if !strings.Contains(err.Error(), "because") {
				t.Errorf("error %v", err)
			}
		}
		// An answer that fits the layout but not the request says nothing.
		wait := going(func() error { _, err := producer.Send(t.Context(), &Message{Topic: "t"}); return err })
		p.answer(p.expect(protocol.OpSend, nil), protocol.OK, &protocol.SendAnswer{Results: make([]protocol.SendResult, 2)})
		wantErr(t, wait(), ErrOutcomeUnknown)
		wait = going(func() error { _, err := producer.Send(t.Context(), &Message{Topic: "t"}); return err })
		p.answer(p.expect(protocol.OpSend, nil), protocol.OK, &protocol.RegisterAnswer{})
		wantErr(t, wait(), ErrOutcomeUnknown)
		_, err := producer.Send(t.Context(), &Message{Topic: "a b"})
		wantErr(t, err, ErrInvalid)
		results, err := producer.SendBatch(t.Context(), "t", nil)
		if len(results) != 0 || err != nil {
			t.Errorf("no messages: %v, %v", results, err)
		}
		p.quiet()
	})
}

func TestEncodedBatch(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{NotIdempotent: true})
		e, err := producer.Encode("t", []*Message{{Key: "a"}, {Key: "b"}})
		ok(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		wait := going(func() error { _, err := producer.SendEncoded(ctx, e, nil); return err })
		r := p.expect(protocol.OpSend, nil)
		cancel()
		wantErr(t, wait(), ErrOutcomeUnknown, context.Canceled)
		for i := range 3 {
			wait := going(func() []SendResult {
				results, err := producer.SendEncoded(t.Context(), e, nil)
				ok(t, err)
				return results
			})
			again := p.expect(protocol.OpSend, nil)
			if !bytes.Equal(again.body, r.body) || again.RequestID == r.RequestID {
				t.Error("another request")
			}
			p.stored(again, uint64(10*i))
			if got := wait(); len(got) != 2 || got[1].Offset != uint64(10*i+1) {
				t.Errorf("got %+v", got)
			}
		}
		p.stored(r, 0)
		_, err = producer.Encode("t", nil)
		wantErr(t, err, ErrInvalid)
		_, err = producer.Encode("t", []*Message{{Tag: strings.Repeat("x", 300)}})
		wantErr(t, err, ErrTooLarge)
	})
}

// What a producer compresses, a consumer gets as it was.
func TestCompressionRoundTrip(t *testing.T) {
	random := make([]byte, 6000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	for _, x := range []struct {
		name    string
		options ProducerOptions
		body    []byte
		want    codec.Compression
	}{
		{"default", ProducerOptions{}, body(5000), codec.Zstd},
		{"at the threshold", ProducerOptions{}, body(4096), codec.None},
		{"zstd", ProducerOptions{Compression: CompressZstd, CompressAbove: 100}, body(101), codec.Zstd},
		{"s2", ProducerOptions{Compression: CompressS2}, body(5000), codec.S2},
		{"none", ProducerOptions{Compression: CompressNone}, body(5000), codec.None},
		{"does not shrink", ProducerOptions{}, random, codec.None},
		{"shrinks below the limit", ProducerOptions{}, body(protocol.MaxBodyBytes + 1), codec.Zstd},
		{"the most", ProducerOptions{}, body(codec.MaxDecompressed), codec.Zstd},
	} {
		t.Run(x.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *fakeBroker) {
				c, p := b.client(Options{})
				wait := going(func() error {
					_, err := c.Producer(x.options).Send(t.Context(), &Message{Topic: "t", Body: x.body})
					return err
				})
				var m protocol.SendRequest
				r := p.expect(protocol.OpSend, &m)
				if got := views(t, &m)[0].Compression; got != x.want {
					t.Errorf("compression %d, want %d", got, x.want)
				}
				p.stored(r, 0)
				ok(t, wait())
				batch := p.popped(p.session(c), payloadRecord(0, m.Messages[0]))
				for range 2 {
					got, err := batch.Deliveries[0].Body()
					if err != nil || !bytes.Equal(got, x.body) {
						t.Errorf("%d bytes, %v", len(got), err)
					}
				}
			})
		})
	}
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, _ := b.client(Options{})
		_, err := c.Producer(ProducerOptions{}).Send(t.Context(), &Message{Topic: "t", Body: body(codec.MaxDecompressed + 1)})
		wantErr(t, err, ErrTooLarge)
	})
}

func TestHostileCompressedBodies(t *testing.T) {
	packed := codec.Message{Body: body(5000)}
	ok(t, packed.Compress(codec.Zstd))
	for name, m := range map[string]codec.Message{
		"no zstd":               {Compression: codec.Zstd, RawBytes: 100, Body: []byte("not zstd at all")},
		"no s2":                 {Compression: codec.S2, RawBytes: 100, Body: []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 1}},
		"claims less":           {Compression: codec.Zstd, RawBytes: 4999, Body: packed.Body},
		"claims more":           {Compression: codec.Zstd, RawBytes: 5001, Body: packed.Body},
		"claims the most":       {Compression: codec.Zstd, RawBytes: codec.MaxDecompressed, Body: packed.Body},
		"empty":                 {Compression: codec.Zstd, RawBytes: 10},
		"the other's":           {Compression: codec.S2, RawBytes: 5000, Body: packed.Body},
		"claims nothing at all": {Compression: codec.Zstd, Body: packed.Body},
	} {
		b, err := newBatch(new(Session), "t", popAnswer(messageRecord(t, 0, m)).Append(nil), popTimes{})
		ok(t, err)
		if got, err := b.Deliveries[0].Body(); err == nil {
			t.Errorf("%s: %d bytes and no error", name, len(got))
		}
	}
	// What claims more than the limit is damaged already.
	payload, err := packed.Append(nil)
	ok(t, err)
	binary.LittleEndian.PutUint32(payload[12:], codec.MaxDecompressed+1)
	b, err := newBatch(new(Session), "t", popAnswer(payloadRecord(0, payload)).Append(nil), popTimes{})
	ok(t, err)
	if b.Deliveries[0].Err() == nil {
		t.Error("no error")
	}
}

func TestConcurrentSends(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		producer := c.Producer(ProducerOptions{})
		stop := make(chan struct{})
		served := going(func() error {
			for {
				select {
				case r := <-p.frames:
					p.stored(r, 0)
				case <-stop:
					return nil
				}
			}
		})
		var waits []func() error
		for range 8 {
			waits = append(waits, going(func() error {
				for range 50 {
					if _, err := producer.SendBatch(t.Context(), "t", []*Message{{Body: body(100)}, {Body: body(7000)}}); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		for _, wait := range waits {
			ok(t, wait())
		}
		close(stop)
		served()
		synctest.Wait()
		if n := c.link.unanswered; n != 0 || len(c.link.pending) != 0 {
			t.Errorf("%d bytes and %d calls are left", n, len(c.link.pending))
		}
	})
}
