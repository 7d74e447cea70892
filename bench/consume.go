package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
)

const (
	// fillBatch is the least number of messages of a request while the queues are filled; fillWindow how many
	// requests are in flight then. What is measured is the reading.
	fillBatch  = 64
	fillWindow = 8
	// consumeStall is after how long without a message Consume gives up.
	consumeStall = 30 * time.Second
	// calmPatience is how long the broker has at most to bring the filled messages to the disk before the clock starts.
	calmPatience = 30 * time.Second
	calmEvery    = 50 * time.Millisecond
	// leavePatience is for taking leave of a broker that may be gone.
	leavePatience = 5 * time.Second
)

// ConsumeOptions say what Consume pops.
type ConsumeOptions struct {
	Addr      string
	Topic     string // made with Queues queues if it is missing
	Group     string // made for the run and deleted afterwards; it must not be there
	Queues    int
	Size      int    // bytes of a body
	Batch     int    // messages of a pop and of an ack, 1 to 256
	Consumers int    // connections, each with a session of its own
	Window    int    // pops that a consumer has out, each followed by its ack
	Messages  uint64 // sent before the clock starts
	// Flushed waits, before the clock starts, until what was filled is on the disk.
	Flushed bool
}

// ConsumeReport is what Consume found. A latency is the time from the start of a pop until its messages are
// acked, counted for each of them; PopP99 and AckP99 tell of the two halves.
type ConsumeReport struct {
	Rate
	PopP50      float64 `json:"pop_p50_us"`
	PopP99      float64 `json:"pop_p99_us"`
	AckP50      float64 `json:"ack_p50_us"`
	AckP99      float64 `json:"ack_p99_us"`
	Redelivered uint64  `json:"redelivered"`
	Size        int     `json:"size"`
	Batch       int     `json:"batch"`
	Consumers   int     `json:"consumers"`
	Window      int     `json:"window"`
	Fill        Rate    `json:"fill"`
}

// taker is one of the Window goroutines of a consumer.
type taker struct {
	run               *consumeRun
	session           *client.Session
	whole, pops, acks Histogram
	errors            uint64
	redelivered       uint64
	before            acking
}

type consumeRun struct {
	o        ConsumeOptions
	begun    chan struct{}
	taken    atomic.Uint64
	settled  atomic.Uint64
	ended    context.CancelFunc // called by whoever settles the last message
	popping  context.Context    // ends when the last message is taken
	allTaken context.CancelFunc
	endedAt  atomic.Pointer[time.Time]
	first    firstError
}

// Consume fills a topic and then measures how fast it is popped and acked.
func Consume(ctx context.Context, o ConsumeOptions) (ConsumeReport, error) {
	report := ConsumeReport{Size: o.Size, Batch: o.Batch, Consumers: o.Consumers, Window: o.Window}
	clients, err := dialAll(ctx, o.Addr, "leasemq bench consume", o.Consumers)
	if err != nil {
		return report, err
	}
	defer closeAll(clients)
	sessions, err := subscribe(ctx, clients, o.Topic, o.Group, o.Queues)
	if sessions != nil {
		defer leave(ctx, clients[0], o.Group, sessions)
	}
	if err != nil {
		return report, err
	}
	report.Fill, err = fill(ctx, clients[0], SendOptions{
		Addr: o.Addr, Topic: o.Topic, Queues: o.Queues, Size: o.Size, Batch: max(o.Batch, fillBatch),
		Producers: o.Consumers, Messages: o.Messages,
	}, o.Flushed)
	if err != nil {
		return report, err
	}
	return report, consume(ctx, sessions, o, &report)
}

// fill sends what is to be consumed, and, if that is asked for, waits until it is on the disk.
func fill(ctx context.Context, c *client.Client, o SendOptions, flushed bool) (Rate, error) {
	o.Window = fillWindow
	filled, err := Send(ctx, o)
	if err == nil && flushed {
		err = calm(ctx, c)
	}
	return filled.Rate, err
}

// subscribe makes the topic, if it is missing, and the group, opens a session on each connection, and the group's
// reading of the topic: behind what the topic holds already. The sessions are nil when there is no group to be
// deleted: when one of that name was there before, it is somebody else's.
func subscribe(ctx context.Context, clients []*client.Client, topic, group string, queues int) ([]*client.Session, error) {
	if _, err := needTopic(ctx, clients[0], topic, queues); err != nil {
		return nil, err
	}
	if err := clients[0].CreateGroup(ctx, group, client.GroupRules{}); err != nil {
		return nil, fmt.Errorf("bench: group %s: %w", group, err)
	}
	sessions := make([]*client.Session, 0, len(clients))
	for _, c := range clients {
		s, err := c.Register(ctx, group, client.RegisterOptions{})
		if err != nil {
			return sessions, fmt.Errorf("bench: group %s: %w", group, err)
		}
		sessions = append(sessions, s)
	}
	b, err := sessions[0].Pop(ctx, client.PopOptions{Topic: topic, Start: client.StartLatest})
	switch {
	case err != nil:
		return sessions, fmt.Errorf("bench: first pop of %s: %w", topic, err)
	case len(b.Deliveries) > 0:
		return sessions, fmt.Errorf("bench: topic %s is being sent to by somebody else", topic)
	}
	return sessions, nil
}

// leave clears away what the run made, as far as the broker still lets it.
func leave(ctx context.Context, c *client.Client, group string, sessions []*client.Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
	defer cancel()
	for _, s := range sessions {
		s.Close(ctx)
	}
	c.DeleteGroup(ctx, group)
}

// calm waits until the broker's log is on the disk up to where it is now: the writing back of what was filled
// is no part of what is measured.
func calm(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, calmPatience)
	defer cancel()
	appended := uint64(0)
	for {
		stats, err := c.Stats(ctx)
		if err != nil {
			return fmt.Errorf("bench: stats: %w", err)
		}
		figures := make(map[string]uint64, len(stats))
		for _, s := range stats {
			figures[s.Name] = s.Value
		}
		if appended == 0 {
			appended = figures["log_appended"]
		}
		if figures["log_synced"] >= appended {
			return nil
		}
		select {
		case <-time.After(calmEvery):
		case <-ctx.Done():
			return fmt.Errorf("bench: the filled messages are not on the disk yet: %w", context.Cause(ctx))
		}
	}
}

func consume(ctx context.Context, sessions []*client.Session, o ConsumeOptions, report *ConsumeReport) error {
	work, ended := context.WithCancel(ctx)
	defer ended()
	run := &consumeRun{o: o, begun: make(chan struct{}), ended: ended}
	run.popping, run.allTaken = context.WithCancel(work)
	defer run.allTaken()
	var takers []*taker
	var working sync.WaitGroup
	for _, s := range sessions {
		for range o.Window {
			t := &taker{run: run, session: s}
			takers = append(takers, t)
			working.Go(func() { t.work(work) })
		}
	}
	began := time.Now()
	close(run.begun)
	go run.watch(work)
	working.Wait()
	ended()

	if run.endedAt.Load() == nil {
		now := time.Now()
		run.endedAt.Store(&now)
	}
	var whole, pops, acks Histogram
	var failed uint64
	for _, t := range takers {
		whole.Merge(&t.whole)
		pops.Merge(&t.pops)
		acks.Merge(&t.acks)
		failed += t.errors
		report.Redelivered += t.redelivered
	}
	report.Rate = rateOf(&whole, failed, o.Size, run.endedAt.Load().Sub(began))
	report.PopP50, report.PopP99 = microseconds(pops.Quantile(0.5)), microseconds(pops.Quantile(0.99))
	report.AckP50, report.AckP99 = microseconds(acks.Quantile(0.5)), microseconds(acks.Quantile(0.99))
	if err := run.first.get(); err != nil {
		return err
	}
	return ctx.Err()
}

// watch ends a run in which nothing moves.
func (run *consumeRun) watch(ctx context.Context) {
	tick := time.NewTicker(consumeStall)
	defer tick.Stop()
	for before := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := run.settled.Load()
		if now == before {
			run.first.set(fmt.Errorf("bench: %d of %d messages were acked, then none for %v", now, run.o.Messages, consumeStall))
			run.ended()
			return
		}
		before = now
	}
}

func (t *taker) work(ctx context.Context) {
	<-t.run.begun
	options := client.PopOptions{Topic: t.run.o.Topic, Max: t.run.o.Batch, Await: consumeStall}
	for t.run.popping.Err() == nil {
		if err := t.round(ctx, options); err != nil && ctx.Err() == nil {
			t.run.first.set(fmt.Errorf("bench: consume: %w", err))
			t.run.ended()
			return
		}
	}
}

// acking is a batch whose ack is under way.
type acking struct {
	batch         *client.Batch
	ack           *client.PendingAck
	began, popped time.Time
}

// round pops once, and has the batch acked while the next one is popped: so both requests go out in one write.
func (t *taker) round(ctx context.Context, options client.PopOptions) error {
	began := time.Now()
	batch, err := t.session.Pop(t.run.popping, options)
	popped := time.Now()
	if failed := t.settle(ctx); failed != nil {
		return failed
	}
	if err != nil {
		if t.run.popping.Err() != nil {
			return nil // all are taken
		}
		return err
	}
	n := len(batch.Deliveries)
	for _, d := range batch.Deliveries {
		if err := d.Err(); err != nil {
			t.errors++
			return err
		}
		if d.Attempt > 1 {
			t.redelivered++
		}
	}
	t.before = acking{batch, t.session.BeginAck(batch.Deliveries...), began, popped}
	if t.run.taken.Add(uint64(n)) >= t.run.o.Messages {
		t.run.allTaken()
		return t.settle(ctx)
	}
	return nil
}

// settle waits for the ack that is under way.
func (t *taker) settle(ctx context.Context) error {
	x := t.before
	if x.ack == nil {
		return nil
	}
	t.before = acking{}
	n := len(x.batch.Deliveries)
	if _, err := x.ack.Wait(ctx); err != nil {
		if ctx.Err() == nil {
			t.errors += uint64(n)
		}
		return err
	}
	x.batch.Release()
	acked := time.Now()
	t.pops.Record(x.popped.Sub(x.began), n)
	t.acks.Record(acked.Sub(x.popped), n)
	t.whole.Record(acked.Sub(x.began), n)
	if t.run.settled.Add(uint64(n)) >= t.run.o.Messages {
		t.run.endedAt.CompareAndSwap(nil, &acked)
		t.run.ended()
	}
	return nil
}
