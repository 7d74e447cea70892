package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
)

// sendWorkload is `bench send`.
type sendWorkload struct{ flags FlagSet }

func (*sendWorkload) About() About {
	return About{
		Name: "send", Short: "Send batches, flat out or at a rate",
		Long: `Sends batches over several connections. A latency is that of a request, from the call until the answer; with --rate, from
the moment at which the request was due, so that a stall is not hidden. Where the broker answers before it flushes, the
clock stops when the last message is on the disk; what was answered a second is reported, too. Round trips of heartbeats
beside the sends are a lane of their own.`,
	}
}

func (w *sendWorkload) Flags(f *Flags) {
	w.flags = f.FlagSet
	f.Settings.Window, f.Settings.Duration = 8, 5*time.Second
	f.Share(brokerSettings...)
	f.Share("batch", "producers", "window", "compression", "rate", "duration", "messages", "warm-up", "leases")
}

func (w *sendWorkload) Run(ctx context.Context, run *Run) error {
	if run.Messages > 0 && !w.flags.Changed("duration") {
		run.Duration = 0 // so many, however long it takes
	}
	if run.Messages == 0 && run.Duration == 0 {
		return &SettingError{errors.New("--duration or --messages is needed")}
	}
	lane := run.Lane("send", true)
	clients, err := dialAll(ctx, run.Addr, "leasemq bench send", run.Producers)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	s, err := run.newSending(ctx, clients, lane)
	if err != nil {
		return err
	}
	return run.besideHeartbeats(ctx, clients[0], func() error {
		if err := s.run(ctx, run.pacer()); err != nil {
			return err
		}
		return run.flush(ctx, clients[0], lane)
	})
}

// sending sends batches.
type sending struct {
	lane    *Lane
	senders []*sender
	sent    atomic.Uint64 // acknowledged, the warm-up included
	first   firstError
}

// sender is one of the Window goroutines of a producer.
type sender struct {
	run      *sending
	producer *client.Producer
	record   *Recorder
	topics   []string
	encoded  []*client.EncodedBatch // one for each topic, sent in turn
	turn     int
	messages []*client.Message
	results  []client.SendResult
}

// newSending prepares to send from some clients, and makes the topics. Each request is encoded once and sent again and again.
func (run *Run) newSending(ctx context.Context, clients []*client.Client, lane *Lane) (*sending, error) {
	for _, topic := range run.topics() {
		if _, err := needTopic(ctx, clients[0], topic, run.Queues); err != nil {
			return nil, err
		}
	}
	s := &sending{lane: lane}
	body := run.body(run.Size, 1)
	senders := len(clients) * run.Window
	for i, c := range clients {
		p := c.Producer(run.producerOptions())
		for j := range run.Window {
			x := &sender{run: s, producer: p, record: lane.Recorder(), results: make([]client.SendResult, 0, run.Batch)}
			for range run.Batch {
				x.messages = append(x.messages, &client.Message{Body: body})
			}
			x.topics = shareOf(run.topics(), i*run.Window+j, senders)
			for _, topic := range x.topics {
				encoded, err := p.Encode(topic, x.messages)
				if err != nil {
					return nil, fmt.Errorf("bench: a request of %d messages of %d bytes: %w", run.Batch, run.Size, err)
				}
				x.encoded = append(x.encoded, encoded)
			}
			s.senders = append(s.senders, x)
		}
	}
	return s, nil
}

// shareOf is what worker i of n has of some topics: one if there are more workers than topics, else every n-th.
func shareOf(topics []string, i, n int) (share []string) {
	if n >= len(topics) {
		return []string{topics[i%len(topics)]}
	}
	for ; i < len(topics); i += n {
		share = append(share, topics[i])
	}
	return share
}

// run sends what p says, and ends the lane's clock with the last answer, or with the end of p. The error is the first that a sender ran into.
func (s *sending) run(ctx context.Context, p *pacer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var working sync.WaitGroup
	for _, x := range s.senders {
		working.Go(func() {
			if err := x.work(ctx, p); err != nil && ctx.Err() == nil {
				s.first.set(fmt.Errorf("bench: send: %w", err))
				cancel() // a rate with failures in it says nothing
			}
		})
	}
	working.Wait()
	if err := s.first.get(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.lane.End(p.end())
	return nil
}

// work sends one request after the other.
func (x *sender) work(ctx context.Context, p *pacer) error {
	ended := time.Time{}
	defer func() { x.run.lane.End(ended) }()
	for now := time.Now(); ; {
		due, n := p.next(now, len(x.messages))
		if n == 0 {
			return nil
		}
		if p.rate > 0 {
			if err := sleep(ctx, due.Sub(now)); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		batch, err := x.next(n)
		if err == nil {
			x.results, err = x.producer.SendEncoded(ctx, batch, x.results[:0])
		}
		if err != nil {
			if ctx.Err() == nil {
				x.record.Fail(n)
			}
			return err
		}
		now = time.Now()
		x.record.Record(due, now.Sub(due), n)
		x.run.sent.Add(uint64(n))
		ended = now
	}
}

// next is the request for n messages: the next topic's, or one of its own for the rest of a number of messages.
func (x *sender) next(n int) (*client.EncodedBatch, error) {
	i := x.turn
	x.turn = (i + 1) % len(x.encoded)
	if n < len(x.messages) {
		return x.producer.Encode(x.topics[i], x.messages[:n])
	}
	return x.encoded[i], nil
}

// fill sends messages over connections of its own, several requests at once, and, if that is asked for, waits until they are
// on the disk. What it takes is no part of what a run measures.
func (run *Run) fill(ctx context.Context, connections int, messages uint64, flushed bool) (Rate, error) {
	clients, err := dialAll(ctx, run.Addr, "leasemq bench fill", connections)
	if err != nil {
		return Rate{}, err
	}
	defer closeAll(clients)
	load := &Run{Settings: run.Settings}
	load.Window, load.Batch = fillWindow, max(run.Batch, fillBatch)
	lane := newLane("fill", run.Size)
	s, err := load.newSending(ctx, clients, lane)
	if err != nil {
		return Rate{}, err
	}
	began := time.Now()
	lane.begin(began)
	if err := s.run(ctx, newPacer(began, time.Time{}, 0, messages)); err != nil {
		return lane.rate(), err
	}
	if flushed {
		if _, err := run.flushedBy(ctx, clients[0]); err != nil && !errors.Is(err, errNoFlush) {
			return lane.rate(), err
		}
	}
	return lane.rate(), nil
}

// SendOptions say what Send sends.
type SendOptions struct {
	Addr      string
	Topic     string // made with Queues queues if it is missing
	Queues    int
	Size      int // bytes of a body
	Batch     int // messages of a request, at least
	Producers int // connections
	Messages  uint64
}

// Send sends so many messages as fast as the broker takes them.
func Send(ctx context.Context, o SendOptions) (Rate, error) {
	run := &Run{Settings: DefaultSettings(), Addr: o.Addr}
	run.Topic, run.Queues, run.Size, run.Batch = o.Topic, o.Queues, o.Size, o.Batch
	return run.fill(ctx, o.Producers, o.Messages, false)
}
