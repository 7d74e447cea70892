package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// MixedReport is what Mixed found: sending, and popping and acking, both flat out, over the same stretch of time.
type MixedReport struct {
	Send    SendReport    `json:"send"`
	Consume ConsumeReport `json:"consume"`
	Left    uint64        `json:"left"` // sent and not consumed when the time was over
}

// Mixed sends as fast as the broker takes it, while consumers pop and ack as fast as it gives.
func Mixed(ctx context.Context, send SendOptions, take ConsumeOptions) (report MixedReport, err error) {
	clients, err := dialAll(ctx, take.Addr, "leasemq bench mixed", take.Consumers)
	if err != nil {
		return report, err
	}
	defer closeAll(clients)
	sessions, err := subscribe(ctx, clients, take.Topic, take.Group, take.Queues)
	if sessions != nil {
		defer leave(ctx, clients[0], take.Group, sessions)
	}
	if err != nil {
		return report, err
	}
	taking, ended := context.WithCancel(ctx)
	defer ended()
	take.Messages = ^uint64(0) // until the sending has ended
	report.Consume = ConsumeReport{Size: take.Size, Batch: take.Batch, Consumers: take.Consumers, Window: take.Window}
	var consumed error
	var consuming sync.WaitGroup
	consuming.Go(func() { consumed = consume(taking, sessions, take, &report.Consume) })
	report.Send, err = Send(ctx, send)
	ended()
	consuming.Wait()
	if errors.Is(consumed, context.Canceled) && ctx.Err() == nil {
		consumed = nil
	}
	if n := report.Send.Messages; n > report.Consume.Messages {
		report.Left = n - report.Consume.Messages
	}
	if n := report.Send.Messages; err == nil && consumed == nil && report.Consume.Messages > n {
		err = fmt.Errorf("bench: %d messages were consumed of %d that were sent", report.Consume.Messages, n)
	}
	return report, errors.Join(err, consumed)
}
