package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/broker/brokertest"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// house is a whole broker in a bubble.
type house struct {
	t      *testing.T
	engine *broker.Engine
	server *brokertest.Server
}

func inHouse(t *testing.T, f func(t *testing.T, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, err := broker.Open(broker.Options{
			Dir: t.TempDir(), IO: mmaplog.IOStaged, Fsync: mmaplog.SyncNever, SegmentBytes: 4 << 20, RingBytes: 4 << 20, Verify: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		h := &house{t, e, brokertest.New(e)}
		defer func() {
			h.server.Close()
			if err := errors.Join(e.Err(), e.Check(), e.Close()); err != nil {
				t.Error(err)
			}
		}()
		f(t, h)
	})
}

// line is the way of one client to the broker, which can be cut.
type line struct {
	server *brokertest.Server

	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func (l *line) dial(ctx context.Context, addr string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, errors.New("down")
	}
	c, err := l.server.Dial(ctx, addr)
	l.conns = append(l.conns, c)
	return c, err
}

func (l *line) set(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down = down; down {
		for _, c := range l.conns {
			c.Close()
		}
		l.conns = nil
	}
}

// process is a client with a way to the broker of its own. The test closes it.
func (h *house) process() (*client.Client, *line) {
	h.t.Helper()
	l := &line{server: h.server}
	c, err := client.Dial(h.t.Context(), "broker", client.Options{Dialer: l.dial})
	if err != nil {
		h.t.Fatal(err)
	}
	return c, l
}

func (h *house) send(c *client.Client, topic string, n int) {
	h.t.Helper()
	var messages []*client.Message
	for i := range n {
		messages = append(messages, &client.Message{Topic: topic, Body: fmt.Append(nil, i)})
	}
	if _, err := c.Producer(client.ProducerOptions{Create: true}).SendBatch(h.t.Context(), topic, messages); err != nil {
		h.t.Fatal(err)
	}
}

// running is a consumer that runs, and what OnSettled was told.
type running struct {
	*client.Consumer
	cancel context.CancelFunc
	ended  chan error

	mu   sync.Mutex
	told []error
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func (r *running) outcomes() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.told...)
}

func start(c *client.Client, o client.ConsumerOptions, h client.Handler) *running {
	r := &running{ended: make(chan error, 1)}
	o.Create = true
	o.OnSettled = func(_ *client.Delivery, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, err)
	}
	r.Consumer = c.Consumer("group", "jobs", o)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx, h) }()
	return r
}

// A job of ten minutes on a lease of thirty seconds, with three renewals, is done once; also when renewals
// or their answers get lost.
func TestALongJob(t *testing.T) {
	for _, x := range []struct {
		name   string
		lose   func(s *brokertest.Server)
		failed uint64
	}{
		{"", func(*brokertest.Server) {}, 0},
		{"two renewals in a row get lost", func(s *brokertest.Server) { s.Drop(brokertest.ToBroker, protocol.OpChangeInvisible, 2) }, 2},
		{"two answers in a row get lost", func(s *brokertest.Server) { s.Drop(brokertest.ToClients, protocol.OpChangeInvisible, 2) }, 2},
		{"an ack gets lost", func(s *brokertest.Server) { s.Drop(brokertest.ToBroker, protocol.OpAck, 1) }, 0},
		{"the answer to an ack gets lost", func(s *brokertest.Server) { s.Drop(brokertest.ToClients, protocol.OpAck, 1) }, 0},
		{"a pop's answer gets lost with its connection", func(s *brokertest.Server) {
			s.Drop(brokertest.ToClients, protocol.OpPop, 1)
			time.AfterFunc(5*time.Second, s.CutAll)
		}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			inHouse(t, func(t *testing.T, h *house) {
				c, _ := h.process()
				defer c.Close()
				h.send(c, "jobs", 1)
				x.lose(h.server)
				var handled atomic.Int32
				work := func(ctx context.Context, d *client.Delivery) error {
					handled.Add(1)
					select {
					case <-time.After(10 * time.Minute):
						return nil
					case <-ctx.Done():
						t.Errorf("cancelled: %v", context.Cause(ctx))
						return context.Cause(ctx)
					}
				}
				r := start(c, client.ConsumerOptions{Workers: 2}, work)
				time.Sleep(time.Hour)
				if got := r.outcomes(); len(got) != 1 || got[0] != nil || handled.Load() != 1 {
					t.Errorf("handled %d times, told %v", handled.Load(), got)
				}
				if got := r.Stats(); got.Acked != 1 || got.Renewals != 2 || got.RenewalsFailed != x.failed || got.Sessions != 1 {
					t.Errorf("got %+v", got)
				}
				r.stop(t)
			})
		})
	}
}

// Consumers that join move no lease that runs.
func TestConsumersJoinWhileLeasesRun(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		const n = 1000
		c, _ := h.process()
		defer c.Close()
		h.send(c, "jobs", n)
		held := make(chan *client.Delivery, n)
		finish := make(chan struct{})
		first := start(c, client.ConsumerOptions{Workers: n, Invisible: 10 * time.Minute, NoRenewals: true}, func(ctx context.Context, d *client.Delivery) error {
			held <- d
			<-finish
			return nil
		})
		var deliveries []*client.Delivery
		var deadlines []time.Time
		for range n {
			d := <-held
			deliveries, deadlines = append(deliveries, d), append(deadlines, d.Deadline())
		}
		var others []*running
		for range 5 {
			p, _ := h.process()
			defer p.Close()
			others = append(others, start(p, client.ConsumerOptions{Workers: 100}, func(_ context.Context, d *client.Delivery) error {
				t.Errorf("%s was granted again, attempt %d", d.ID, d.Attempt)
				return nil
			}))
			time.Sleep(10 * time.Second)
		}
		time.Sleep(time.Until(deadlines[0]) - time.Second) // up to the very end of the leases
		for i, d := range deliveries {
			if !d.Deadline().Equal(deadlines[i]) {
				t.Fatalf("a deadline moved by %v", d.Deadline().Sub(deadlines[i]))
			}
		}
		close(finish)
		time.Sleep(time.Minute)
		if got := first.Stats(); got.Acked != n || got.Refused != 0 || got.Cancelled != 0 {
			t.Errorf("got %+v", got)
		}
		for _, r := range append(others, first) {
			r.stop(t)
		}
	})
}

// Two processes with one consumer id: the newer one has it, for good.
func TestTwoConsumersOfOneID(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		a, _ := h.process()
		defer a.Close()
		b, _ := h.process()
		defer b.Close()
		h.send(a, "jobs", 1)
		begun := make(chan error, 10)
		work := func(ctx context.Context, d *client.Delivery) error {
			begun <- nil
			<-ctx.Done()
			return context.Cause(ctx)
		}
		older := start(a, client.ConsumerOptions{ConsumerID: "one"}, work)
		<-begun
		newer := start(b, client.ConsumerOptions{ConsumerID: "one"}, work)
		if err := <-older.ended; !errors.Is(err, client.ErrSessionFenced) {
			t.Errorf("the older one ended with %v", err)
		}
		<-begun // its message is the newer one's at once
		if got := older.outcomes(); len(got) != 1 || !errors.Is(got[0], client.ErrSessionLost) {
			t.Errorf("told %v", got)
		}
		session := newer.Session()
		time.Sleep(10 * time.Minute)
		if newer.Session() != session || session.Err() != nil || older.Stats().Sessions != 1 || newer.Stats().Sessions != 1 {
			t.Errorf("sessions change: %+v, %+v", older.Stats(), newer.Stats())
		}
		newer.stop(t)
	})
}

// The older one loses its session by silence, and comes back when the newer one has taken over.
func TestAnOlderConsumerComesBack(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		a, way := h.process()
		defer a.Close()
		b, _ := h.process()
		defer b.Close()
		idle := func(context.Context, *client.Delivery) error { return nil }
		older := start(a, client.ConsumerOptions{ConsumerID: "one"}, idle)
		time.Sleep(time.Second)
		way.set(true)
		time.Sleep(time.Minute)
		newer := start(b, client.ConsumerOptions{ConsumerID: "one"}, idle)
		time.Sleep(time.Second)
		session := newer.Session()
		way.set(false)
		if err := <-older.ended; !errors.Is(err, client.ErrSessionFenced) {
			t.Errorf("the older one ended with %v", err)
		}
		time.Sleep(10 * time.Minute)
		if newer.Session() != session || session.Err() != nil || newer.Stats().Sessions != 1 {
			t.Errorf("the newer one lost its session: %+v", newer.Stats())
		}
		h.send(b, "jobs", 1)
		time.Sleep(time.Second)
		if newer.Stats().Acked != 1 {
			t.Errorf("got %+v", newer.Stats())
		}
		newer.stop(t)
	})
}

// A job that has finished behind a partition which cost the session is acked in the next one; unless somebody
// else was granted its message, who then has it alone.
func TestAJobBehindAPartition(t *testing.T) {
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken %v", taken), func(t *testing.T) {
			inHouse(t, func(t *testing.T, h *house) {
				a, way := h.process()
				defer a.Close()
				b, _ := h.process()
				defer b.Close()
				h.send(b, "jobs", 1)
				var handled atomic.Int32
				began := make(chan *client.Delivery, 10)
				work := func(ctx context.Context, d *client.Delivery) error {
					handled.Add(1)
					began <- d
					time.Sleep(40 * time.Second) // whatever its context says
					return nil
				}
				first := start(a, client.ConsumerOptions{}, work)
				<-began
				way.set(true)
				time.Sleep(20 * time.Second)
				var second *running
				if taken {
					second = start(b, client.ConsumerOptions{}, work)
					if d := <-began; d.Attempt != 2 || d.SessionLosses != 1 {
						t.Errorf("attempt %d, %d losses", d.Attempt, d.SessionLosses)
					}
				}
				way.set(false)
				time.Sleep(2 * time.Minute)
				got := first.outcomes()
				switch {
				case len(got) != 1:
					t.Errorf("told %v", got)
				case taken && (!errors.Is(got[0], client.ErrSessionLost) || !errors.Is(got[0], client.ErrStale)):
					t.Errorf("told %v", got)
				case !taken && (got[0] != nil || handled.Load() != 1 || first.Stats().Reclaimed != 1):
					t.Errorf("told %v, handled %d times, %+v", got, handled.Load(), first.Stats())
				}
				if taken {
					if got := second.outcomes(); len(got) != 1 || got[0] != nil {
						t.Errorf("the second was told %v", got)
					}
					second.stop(t)
				}
				first.stop(t)
			})
		})
	}
}

// Silence that does not last costs handlers their contexts, but nobody the session.
func TestHeldHeartbeats(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		c, _ := h.process()
		defer c.Close()
		h.send(c, "jobs", 1)
		ended := make(chan error, 1)
		r := start(c, client.ConsumerOptions{}, func(ctx context.Context, d *client.Delivery) error {
			if d.Attempt > 1 {
				return nil
			}
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		})
		time.Sleep(time.Second)
		h.server.Hold(brokertest.ToClients, protocol.OpHeartbeat)
		began := time.Now()
		var cause error
		for cause == nil {
			select {
			case cause = <-ended:
			case <-time.After(time.Second):
				if _, err := c.Stats(t.Context()); err != nil { // the connection is alive
					t.Fatal(err)
				}
			}
		}
		if took := time.Since(began); !errors.Is(cause, client.ErrSessionLost) || took > 10*time.Second {
			t.Errorf("cancelled after %v: %v", took, cause)
		}
		h.server.Pass(brokertest.ToClients, protocol.OpHeartbeat)
		time.Sleep(time.Minute)
		if got := r.Stats(); got.Sessions != 1 || got.Acked != 1 || got.Failed != 0 || got.Returned != 1 {
			t.Errorf("got %+v", got)
		}
		r.stop(t)
	})
}

// A program may have many consumers on one connection, all of them waiting: each is served.
func TestManyConsumersOnOneClient(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		c, _ := h.process()
		defer c.Close()
		const n = 100
		ctx, cancel := context.WithCancel(t.Context())
		var handled atomic.Int64
		var running sync.WaitGroup
		topic := func(i int) string { return fmt.Sprint("topic-", i) }
		for i := range n {
			k := c.Consumer("group", topic(i), client.ConsumerOptions{Create: true})
			running.Go(func() {
				if err := k.Run(ctx, func(context.Context, *client.Delivery) error { handled.Add(1); return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * time.Second) // all of them wait
		for i := range n {
			h.send(c, topic(i), 1)
		}
		time.Sleep(time.Second)
		if handled.Load() != n {
			t.Errorf("%d of %d messages were handled", handled.Load(), n)
		}
		cancel()
		running.Wait()
	})
}
