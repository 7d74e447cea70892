package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/client"
)

// ours is leasemq itself, built from the sources that this module lies in.
type ours struct{ program string }

func (ours) name() string           { return "leasemq" }
func (ours) missing() string        { return "" }
func (o ours) version() string      { return firstLine(o.program, "version") }
func (ours) ways(workload) []string { return []string{""} }

func (ours) warms() bool { return false }

func (ours) install(context.Context) error { return nil }

func (ours) durability(flushed bool) string {
	if flushed {
		return "before the answer"
	}
	return "every 100 ms"
}

func build(root, program string) error {
	c := exec.Command("go", "build", "-o", program, "./cmd/leasemq")
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

func (o ours) start(ctx context.Context, dir string, flushed bool) (broker, error) {
	policy := "interval"
	if flushed {
		policy = "always"
	}
	child, err := bench.StartChild(ctx, bench.ChildOptions{Program: o.program, Dir: dir, Args: []string{"--fsync", policy}})
	if err != nil {
		return nil, err
	}
	return &oursRunning{child}, nil
}

type oursRunning struct{ child *bench.Child }

func (r *oursRunning) stop() error { return r.child.Stop(stopPatience) }

func (r *oursRunning) dial(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, r.child.Addr, client.Options{ClientInfo: "peers"})
}

// oursQueues is the number of queues of a topic, the broker's default.
const oursQueues = 8

const oursGroup = "workers"

func (r *oursRunning) prepare(ctx context.Context, queue string) error {
	c, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.CreateTopic(ctx, queue, oursQueues); err != nil {
		return err
	}
	if err := c.CreateGroup(ctx, oursGroup, client.GroupRules{}); err != nil {
		return err
	}
	s, err := c.Register(ctx, oursGroup, client.RegisterOptions{})
	if err != nil {
		return err
	}
	if _, err = s.Pop(ctx, client.PopOptions{Topic: queue, Start: client.StartEarliest}); err != nil {
		return err
	}
	return s.Close(ctx)
}

func (r *oursRunning) left(ctx context.Context, queue string) (int64, bool, error) {
	c, err := r.dial(ctx)
	if err != nil {
		return 0, true, err
	}
	defer c.Close()
	topics, err := c.ListTopics(ctx)
	if err != nil {
		return 0, true, err
	}
	group, err := c.ShowGroup(ctx, oursGroup)
	if err != nil {
		return 0, true, err
	}
	var n int64
	for _, t := range topics {
		if t.Name == queue {
			n += int64(t.Sent)
		}
	}
	for _, at := range group.Cursors { // a queue that nobody has popped from has none
		n += int64(at.Leased) + int64(at.Waiting) - int64(at.Next)
	}
	return n, true, nil
}

// oursProducer sends requests of postBatch messages from a few goroutines, each of which waits for its answer.
type oursProducer struct {
	client   *client.Client
	producer *client.Producer
	queue    string

	work    chan []*client.Message
	senders sync.WaitGroup
	pending sync.WaitGroup
	mu      sync.Mutex
	err     error
}

func (r *oursRunning) producer(ctx context.Context, queue, _ string) (producer, error) {
	c, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &oursProducer{
		client: c, queue: queue, work: make(chan []*client.Message),
		producer: c.Producer(client.ProducerOptions{Compression: client.CompressNone}),
	}
	for range postWindow / postBatch {
		p.senders.Go(p.send)
	}
	return p, nil
}

func (p *oursProducer) send() {
	var results []client.SendResult
	for messages := range p.work {
		var err error
		results, err = p.producer.SendBatchInto(context.Background(), p.queue, messages, results[:0])
		p.note(err)
		p.pending.Done()
	}
}

func (p *oursProducer) note(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

func (p *oursProducer) post(bodies [][]byte) error {
	if len(bodies) < postBatch/4 { // a paced sender: messages go out as they come, gathered by the client
		for _, b := range bodies {
			m := &client.Message{Topic: p.queue, Body: b}
			err := p.producer.SendAsync(context.Background(), m, func(_ client.SendResult, err error) { p.note(err) })
			if err != nil {
				return err
			}
		}
		return nil
	}
	for len(bodies) > 0 {
		n := min(len(bodies), postBatch)
		memory, messages := make([]client.Message, n), make([]*client.Message, n)
		for i := range n {
			memory[i].Body = bodies[i]
			messages[i] = &memory[i]
		}
		p.pending.Add(1)
		p.work <- messages
		bodies = bodies[n:]
	}
	return nil
}

func (p *oursProducer) flush() error {
	err := p.producer.Flush(context.Background())
	p.pending.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(err, p.err)
}

func (p *oursProducer) one(body []byte) error {
	_, err := p.producer.Send(context.Background(), &client.Message{Topic: p.queue, Body: body})
	return err
}

func (p *oursProducer) close() {
	close(p.work)
	p.senders.Wait()
	p.client.Close()
}

type oursConsumer struct {
	client  *client.Client
	session *client.Session
	queue   string
}

func (r *oursRunning) consumer(ctx context.Context, queue, _ string) (consumer, error) {
	c, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	s, err := c.Register(ctx, oursGroup, client.RegisterOptions{})
	if err != nil {
		c.Close()
		return nil, err
	}
	return &oursConsumer{c, s, queue}, nil
}

// oursTakers is how many pops a consumer has out: as many messages as others have in flight.
const oursTakers = postWindow / takeBatch

func (c *oursConsumer) drain(ctx context.Context, take func([]byte)) error {
	errs := make(chan error, oursTakers)
	for range oursTakers {
		go func() { errs <- c.takeAll(ctx, take) }()
	}
	var all error
	for range oursTakers {
		all = errors.Join(all, <-errs)
	}
	return all
}

func (c *oursConsumer) takeAll(ctx context.Context, take func([]byte)) error {
	var ack *client.PendingAck
	var before *client.Batch
	settle := func() error {
		if ack == nil {
			return nil
		}
		_, err := ack.Wait(context.Background())
		before.Release()
		ack = nil
		return err
	}
	for {
		batch, err := c.session.Pop(ctx, client.PopOptions{Topic: c.queue, Max: takeBatch, Await: 10 * time.Second})
		if failed := settle(); failed != nil {
			return failed
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if len(batch.Deliveries) == 0 {
			continue
		}
		for _, d := range batch.Deliveries {
			body, err := d.Body()
			if err != nil {
				return err
			}
			take(body)
		}
		ack, before = c.session.BeginAck(batch.Deliveries...), batch
	}
}

func (c *oursConsumer) close() {
	c.session.Close(context.Background())
	c.client.Close()
}
