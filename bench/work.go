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

// WorkOptions say how Work consumes. Fields that ConsumeOptions has, too, mean the same.
type WorkOptions struct {
	Addr      string
	Topic     string
	Group     string
	Queues    int
	Size      int
	Consumers int // connections, each with a client.Consumer
	Workers   int // handlers at once of each
	Prefetch  int
	Batch     int // 0: Run; else RunBatch with so many messages at most
	Messages  uint64
	Flushed   bool
}

// WorkReport is what Work found. A latency is the time from the start of a handler, which does nothing, until
// OnSettled is told that its ack was taken.
type WorkReport struct {
	Rate
	Redelivered uint64 `json:"redelivered"`
	Renewals    uint64 `json:"renewals"`
	Size        int    `json:"size"`
	Consumers   int    `json:"consumers"`
	Workers     int    `json:"workers"`
	Prefetch    int    `json:"prefetch"`
	Batch       int    `json:"batch"`
}

// workRun is the state of one Work.
type workRun struct {
	o       WorkOptions
	ended   context.CancelFunc
	settled atomic.Uint64
	endedAt atomic.Pointer[time.Time]
	first   firstError
}

// Work fills a topic and then measures how fast client.Consumers with handlers that do nothing get through it.
func Work(ctx context.Context, o WorkOptions) (WorkReport, error) {
	report := WorkReport{Size: o.Size, Consumers: o.Consumers, Workers: o.Workers, Prefetch: o.Prefetch, Batch: o.Batch}
	clients, err := dialAll(ctx, o.Addr, "leasemq bench work", o.Consumers)
	if err != nil {
		return report, err
	}
	defer closeAll(clients)
	sessions, err := subscribe(ctx, clients[:1], o.Topic, o.Group, o.Queues)
	if sessions != nil {
		defer leave(ctx, clients[0], o.Group, nil)
	}
	for _, s := range sessions {
		err = errors.Join(err, s.Close(ctx))
	}
	if err != nil {
		return report, err
	}
	if _, err := fill(ctx, clients[0], SendOptions{
		Addr: o.Addr, Topic: o.Topic, Queues: o.Queues, Size: o.Size, Batch: fillBatch,
		Producers: o.Consumers, Messages: o.Messages,
	}, o.Flushed); err != nil {
		return report, err
	}
	return report, work(ctx, clients, o, &report)
}

func work(ctx context.Context, clients []*client.Client, o WorkOptions, report *WorkReport) error {
	running, ended := context.WithCancel(ctx)
	defer ended()
	run := &workRun{o: o, ended: ended}
	takers := make([]workTaker, len(clients))
	var working sync.WaitGroup
	began := time.Now()
	for i, c := range clients {
		t := &takers[i]
		t.run = run
		t.consumer = c.Consumer(o.Group, o.Topic, client.ConsumerOptions{
			Workers: o.Workers, Prefetch: o.Prefetch, Batch: o.Batch, OnSettled: t.settled,
		})
		working.Go(func() { t.work(running) })
	}
	working.Wait()
	if run.endedAt.Load() == nil {
		now := time.Now()
		run.endedAt.Store(&now)
	}
	var whole Histogram
	var failed uint64
	for i := range takers {
		whole.Merge(&takers[i].whole)
		failed += takers[i].errors
		report.Redelivered += takers[i].redelivered
		report.Renewals += takers[i].consumer.Stats().Renewals
	}
	report.Rate = rateOf(&whole, failed, o.Size, run.endedAt.Load().Sub(began))
	if err := run.first.get(); err != nil {
		return err
	}
	return ctx.Err()
}

// workTaker is one consumer.
type workTaker struct {
	run      *workRun
	consumer *client.Consumer
	starts   sync.Map // *client.Delivery to time.Time

	// Of OnSettled, which is called by one goroutine; read when Run has returned.
	whole               Histogram
	errors, redelivered uint64
}

func (t *workTaker) work(ctx context.Context) {
	var err error
	if t.run.o.Batch > 0 {
		err = t.consumer.RunBatch(ctx, func(_ context.Context, batch []*client.Delivery) error {
			now := time.Now()
			for _, d := range batch {
				t.starts.Store(d, now)
			}
			return nil
		})
	} else {
		err = t.consumer.Run(ctx, func(_ context.Context, d *client.Delivery) error {
			t.starts.Store(d, time.Now())
			return nil
		})
	}
	if err != nil {
		t.run.first.set(fmt.Errorf("bench: work: %w", err))
		t.run.ended()
	}
}

func (t *workTaker) settled(d *client.Delivery, err error) {
	now := time.Now()
	began, _ := t.starts.LoadAndDelete(d)
	if err != nil {
		t.errors++
		return
	}
	if d.Attempt > 1 {
		t.redelivered++
	}
	t.whole.Record(now.Sub(began.(time.Time)), 1)
	if t.run.settled.Add(1) == t.run.o.Messages {
		t.run.endedAt.Store(&now)
		t.run.ended()
	}
}
