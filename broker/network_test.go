package broker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/netserver"
)

// served is an engine behind a real network.
type served struct {
	t      testing.TB
	o      broker.Options
	engine *broker.Engine
	server *netserver.Server
}

func serve(t testing.TB, loops int, change func(*broker.Options)) *served {
	s := &served{t: t, o: broker.Options{
		Dir: t.TempDir(), IO: mmaplog.IOStaged, Fsync: mmaplog.SyncAlways, SegmentBytes: 16 << 20, Verify: true,
	}}
	if change != nil {
		change(&s.o)
	}
	s.start(loops)
	t.Cleanup(s.stop)
	return s
}

func (s *served) start(loops int) {
	s.t.Helper()
	var err error
	if s.engine, err = broker.Open(s.o); err != nil {
		s.t.Fatal(err)
	}
	s.server, err = netserver.Listen(netserver.Options{
		Listen: "127.0.0.1:0", Loops: loops,
		NewHandler: func(wake func()) netserver.Handler { return s.engine.NewLoop(wake) },
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *served) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		s.t.Errorf("shutdown: %v", err)
	}
	if err := s.engine.Err(); err != nil {
		s.t.Errorf("the engine failed: %v", err)
	}
	if err := s.engine.Check(); err != nil {
		s.t.Error(err)
	}
	if err := s.engine.Close(); err != nil {
		s.t.Errorf("close: %v", err)
	}
}

func (s *served) dial(ctx context.Context) *client.Client {
	s.t.Helper()
	c, err := client.Dial(ctx, s.server.Addr().String(), client.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestManyAtOnce has several producers and consumers on several connections and two event loops work at
// the same time: every message that was acknowledged is settled exactly once.
func TestManyAtOnce(t *testing.T) {
	s := serve(t, 2, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	const producers, consumers, each = 3, 4, 600
	admin := s.dial(ctx)
	if err := admin.CreateTopic(ctx, "jobs", 5); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	settled := map[string]int{}
	left := producers * each
	done := make(chan struct{})
	var all sync.WaitGroup
	for p := range producers {
		all.Go(func() {
			producer := s.dial(ctx).Producer(client.ProducerOptions{})
			for i := range each {
				m := &client.Message{Topic: "jobs", Body: fmt.Appendf(nil, "%d/%d", p, i)}
				if i%3 == 0 {
					m.Key = fmt.Sprint(i)
				}
				if err := producer.SendAsync(ctx, m, func(_ client.SendResult, err error) {
					if err != nil {
						t.Errorf("send: %v", err)
					}
				}); err != nil {
					t.Errorf("send: %v", err)
				}
			}
			if err := producer.Flush(ctx); err != nil {
				t.Errorf("flush: %v", err)
			}
		})
	}
	for range consumers {
		all.Go(func() {
			session, err := s.dial(ctx).Register(ctx, "group", client.RegisterOptions{Create: true})
			if err != nil {
				t.Errorf("register: %v", err)
				return
			}
			for n := 0; ; n++ {
				select {
				case <-done:
					if err := session.Close(ctx); err != nil {
						t.Errorf("unregister: %v", err)
					}
					return
				default:
				}
				batch, err := session.Pop(ctx, client.PopOptions{Topic: "jobs", Max: 32, Await: 200 * time.Millisecond})
				if err != nil {
					t.Errorf("pop: %v", err)
					return
				}
				if n%7 == 3 && len(batch.Deliveries) > 0 { // some are given back
					if err := session.Release(ctx, batch.Deliveries[0], 0); err != nil {
						t.Errorf("release: %v", err)
					}
					batch.Deliveries = batch.Deliveries[1:]
				}
				if len(batch.Deliveries) == 0 {
					continue
				}
				if _, err := session.Ack(ctx, batch.Deliveries...); err != nil {
					t.Errorf("ack: %v", err)
					return
				}
				mu.Lock()
				for _, d := range batch.Deliveries {
					body, err := d.Body()
					if err != nil {
						t.Errorf("body: %v", err)
					}
					settled[string(body)]++
					if left--; left == 0 {
						close(done)
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(settled) != producers*each {
		t.Fatalf("%d of %d messages settled", len(settled), producers*each)
	}
	for body, n := range settled {
		if n != 1 {
			t.Errorf("%s was settled %d times", body, n)
		}
	}
}
