package broker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/client"
)

// TestConsumersOverTheNetwork has consumers of both kinds share a topic over a real network. Every message is
// settled once, though some fail first and some are postponed, and every Run ends in order.
func TestConsumersOverTheNetwork(t *testing.T) {
	s := serve(t, 2, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	const n = 1000
	admin := s.dial(ctx)
	if err := admin.CreateTopic(ctx, "jobs", 4); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateGroup(ctx, "group", client.GroupRules{BackOffMinMs: 10, BackOffMaxMs: 10}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	settled := map[string]int{}
	done := make(chan struct{})
	outcome := func(d *client.Delivery) error {
		switch {
		case d.Attempt == 1 && d.Offset%10 == 3:
			return errors.New("not the first time")
		case d.Attempt == 1 && d.Offset%10 == 7:
			return client.ErrPostpone(10 * time.Millisecond)
		}
		return nil
	}
	o := client.ConsumerOptions{
		Workers: 4, Prefetch: 32, Batch: 16,
		OnSettled: func(d *client.Delivery, err error) {
			if err != nil {
				t.Errorf("%s: %v", d.ID, err)
			}
			if outcome(d) != nil {
				return
			}
			body, _ := d.Body()
			mu.Lock()
			defer mu.Unlock()
			if settled[string(body)]++; len(settled) == n {
				close(done)
			}
		},
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for i := range 4 {
		k := s.dial(ctx).Consumer("group", "jobs", o)
		all.Go(func() {
			var err error
			if i%2 == 0 {
				err = k.Run(running, func(_ context.Context, d *client.Delivery) error { return outcome(d) })
			} else {
				err = k.RunBatch(running, func(_ context.Context, batch []*client.Delivery) error {
					e := &client.BatchError{Errs: make([]error, len(batch))}
					for i, d := range batch {
						e.Errs[i] = outcome(d)
					}
					return e
				})
			}
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	producer := admin.Producer(client.ProducerOptions{})
	for i := range n {
		if err := producer.SendAsync(ctx, &client.Message{Topic: "jobs", Body: fmt.Append(nil, i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := producer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-ctx.Done():
		mu.Lock()
		t.Errorf("%d of %d messages are settled", len(settled), n)
		mu.Unlock()
	}
	stop()
	all.Wait()
	for body, times := range settled {
		if times != 1 {
			t.Errorf("%s was settled %d times", body, times)
		}
	}
}
