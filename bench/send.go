package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
)

// SendOptions say what Send sends.
type SendOptions struct {
	Addr      string
	Topic     string // made with Queues queues if it is missing
	Queues    int
	Size      int // bytes of a body
	Batch     int // messages of a request
	Producers int // connections
	Window    int // requests that a producer has in flight

	// Send ends when Duration has passed or Messages were sent, whichever is not zero and comes first.
	Duration time.Duration
	Messages uint64
}

// SendReport is what Send found. A latency is that of a request, from before it is handed to the client until
// its answer is there, counted for each of its messages.
type SendReport struct {
	Rate
	Size      int `json:"size"`
	Batch     int `json:"batch"`
	Producers int `json:"producers"`
	Window    int `json:"window"`
}

// sender is one of the Window goroutines of a producer.
type sender struct {
	run       *sendRun
	producer  *client.Producer
	messages  []*client.Message
	encoded   *client.EncodedBatch
	results   []client.SendResult
	latencies Histogram
	errors    uint64
	endedAt   time.Time
}

type sendRun struct {
	o     SendOptions
	begun chan struct{} // closed when the clock starts
	until time.Time     // zero: no end by time
	left  atomic.Int64  // messages to be sent; only with Messages
	first firstError
}

// Send sends as fast as the broker takes it. The error is the first that a sender ran into, or why none could begin.
func Send(ctx context.Context, o SendOptions) (SendReport, error) {
	report := SendReport{Size: o.Size, Batch: o.Batch, Producers: o.Producers, Window: o.Window}
	clients, err := dialAll(ctx, o.Addr, "leasemq bench send", o.Producers)
	if err != nil {
		return report, err
	}
	defer closeAll(clients)
	if _, err := needTopic(ctx, clients[0], o.Topic, o.Queues); err != nil {
		return report, err
	}
	run := &sendRun{o: o, begun: make(chan struct{})}
	run.left.Store(int64(o.Messages))
	var senders []*sender
	body := noise(o.Size, 1)
	for _, c := range clients {
		p := c.Producer(client.ProducerOptions{Compression: client.CompressNone})
		for range o.Window {
			s, err := newSender(run, p, body)
			if err != nil {
				return report, err
			}
			senders = append(senders, s)
		}
	}
	var working sync.WaitGroup
	for _, s := range senders {
		working.Go(func() { s.work(ctx) })
	}
	began := time.Now()
	if o.Duration > 0 {
		run.until = began.Add(o.Duration)
	}
	close(run.begun)
	working.Wait()

	var all Histogram
	var errors uint64
	ended := began
	for _, s := range senders {
		all.Merge(&s.latencies)
		errors += s.errors
		if s.endedAt.After(ended) {
			ended = s.endedAt
		}
	}
	report.Rate = rateOf(&all, errors, o.Size, ended.Sub(began))
	return report, run.first.get()
}

func newSender(run *sendRun, p *client.Producer, body []byte) (*sender, error) {
	s := &sender{run: run, producer: p, results: make([]client.SendResult, 0, run.o.Batch)}
	for range run.o.Batch {
		s.messages = append(s.messages, &client.Message{Body: body})
	}
	var err error
	if s.encoded, err = p.Encode(run.o.Topic, s.messages); err != nil {
		return nil, fmt.Errorf("bench: a request of %d messages of %d bytes: %w", run.o.Batch, run.o.Size, err)
	}
	return s, nil
}

// work sends one request after the other. It ends at the first error: a rate with failures in it says nothing.
func (s *sender) work(ctx context.Context) {
	<-s.run.begun
	for now := time.Now(); ; {
		n, err := s.next(now)
		if n == 0 || err != nil || ctx.Err() != nil {
			s.note(0, err)
			return
		}
		s.results, err = s.producer.SendEncoded(ctx, s.encoded, s.results[:0])
		answered := time.Now()
		if err != nil {
			s.note(n, err)
			return
		}
		s.latencies.Record(answered.Sub(now), n)
		s.endedAt, now = answered, answered
	}
}

// next is how many messages the next request has; 0: no more. It sees to it that encoded has as many.
func (s *sender) next(now time.Time) (int, error) {
	if !s.run.until.IsZero() && !now.Before(s.run.until) {
		return 0, nil
	}
	n := len(s.messages)
	if s.run.o.Messages == 0 {
		return n, nil
	}
	left := int(s.run.left.Add(-int64(n))) + n
	if left >= n {
		return n, nil
	}
	if left <= 0 {
		return 0, nil
	}
	var err error
	s.encoded, err = s.producer.Encode(s.run.o.Topic, s.messages[:left])
	return left, err
}

// note keeps what went wrong; a request that the end of the run cut off did not.
func (s *sender) note(n int, err error) {
	if err == nil {
		return
	}
	s.errors += uint64(n)
	s.run.first.set(fmt.Errorf("bench: send: %w", err))
}
