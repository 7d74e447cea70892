package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/client"
)

// fail ends the run because of something that neither producers nor consumers know how to go on from.
func (run *crashRun) fail(err error) {
	run.first.set(err)
	run.stop()
	run.drain()
}

// produce sends a batch, tells the ledger what became of it, and sends the next.
func (run *crashRun) produce(ctx context.Context, p *client.Producer) {
	n := run.o.Batch
	memory := make([]client.Message, n)
	messages := make([]*client.Message, n)
	for i := range messages {
		messages[i] = &memory[i]
	}
	var results []client.SendResult
	for run.sent.Err() == nil {
		first := run.ledger.Reserve(n)
		sentAt := time.Since(run.epoch)
		for i, m := range messages {
			m.Body = appendCrashBody(m.Body[:0], run.o.Size, first+uint64(i), sentAt)
		}
		// Not under run.sent: what is on its way when the sends end gets its answer.
		results, _ = p.SendBatchInto(ctx, crashTopic, messages, results[:0])
		for i := range results {
			switch err := results[i].Err; {
			case err == nil:
				run.ledger.Acknowledged(first + uint64(i))
			case errors.Is(err, client.ErrOutcomeUnknown) || ctx.Err() != nil:
				// The ledger takes it for unknown until it is told.
			default:
				run.ledger.Refused(first + uint64(i))
				run.fail(fmt.Errorf("bench: a send was refused: %w", err))
			}
		}
	}
}

// consume pops and acks until nothing is left. The session outlives the broker; only if it has ended all the same is
// there a new one.
func (run *crashRun) consume(ctx context.Context, c *client.Client) {
	idle := false
	for run.empty.Err() == nil {
		s, err := c.Register(ctx, crashGroup, client.RegisterOptions{})
		if err != nil {
			if ctx.Err() == nil {
				run.fail(fmt.Errorf("bench: register: %w", err))
			}
			return
		}
		run.consumeWith(ctx, s, &idle)
	}
}

// consumeWith is consume with one session. idle is set when this consumer has found the group empty.
func (run *crashRun) consumeWith(ctx context.Context, s *client.Session, idle *bool) {
	options := client.PopOptions{Topic: crashTopic, Max: crashPopMax, Invisible: crashLease, Await: crashAwait}
	for run.empty.Err() == nil && s.Err() == nil {
		quiet := run.quiet.Load() // before the pop: one that is out while sends go on may miss the last of them
		batch, err := s.Pop(ctx, options)
		if err != nil {
			if errors.Is(err, client.ErrConnectionLost) || s.Err() != nil || ctx.Err() != nil {
				continue
			}
			run.fail(fmt.Errorf("bench: pop: %w", err))
			return
		}
		if n := len(batch.Deliveries); n > 0 {
			run.work(ctx, s, batch)
			continue
		}
		if quiet && batch.Leased == 0 && batch.Waiting == 0 && !*idle {
			*idle = true
			run.idle.Add(1)
		}
		if run.idle.Load() == int64(run.o.Consumers) {
			run.drain()
		}
	}
}

// work looks at what a pop brought and acks it.
func (run *crashRun) work(ctx context.Context, s *client.Session, batch *client.Batch) {
	defer batch.Release()
	now := time.Since(run.epoch)
	numbers := make([]uint64, len(batch.Deliveries))
	run.mu.Lock()
	for i, d := range batch.Deliveries {
		body, err := d.Body()
		number, sentAt, ok := parseCrashBody(body, run.o.Size)
		if err != nil || !ok {
			run.ledger.Damaged()
			numbers[i] = ^uint64(0)
			continue
		}
		numbers[i] = number
		if run.ledger.Delivered(number, d.Token) {
			run.latencies.Record(now-sentAt, 1)
		}
	}
	run.mu.Unlock()
	results, _ := s.Ack(ctx, batch.Deliveries...)
	for i := range results {
		if results[i].Err == nil {
			run.ledger.Acked(numbers[i], batch.Deliveries[i].Token)
		} else {
			run.ledger.AckRefused()
		}
	}
	run.last.Store(int64(time.Since(run.epoch)))
}
