package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

// natsEnv makes this program the NATS server: its value is the port, natsDir the directory, natsSync whether every write is synced.
const (
	natsEnv     = "PEERS_NATS_PORT"
	natsDirEnv  = "PEERS_NATS_DIR"
	natsSyncEnv = "PEERS_NATS_SYNC"
)

// serveNATS runs a NATS server until SIGTERM.
func serveNATS(port string) error {
	o := &server.Options{Host: "127.0.0.1", JetStream: true, StoreDir: os.Getenv(natsDirEnv), NoSigs: true}
	if _, err := fmt.Sscan(port, &o.Port); err != nil {
		return err
	}
	if os.Getenv(natsSyncEnv) != "" {
		o.SyncAlways = true // "sync_interval: always"
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

const (
	natsAsync   = "async publish"
	natsFast    = "fast batch"
	natsFetch   = "fetch"
	natsConsume = "consume"
)

type natsPeer struct{}

func (natsPeer) name() string    { return "NATS JetStream" }
func (natsPeer) missing() string { return "" }
func (natsPeer) version() string {
	return "nats-server " + server.VERSION + ", nats.go " + nats.Version
}

func (natsPeer) warms() bool { return false }

func (natsPeer) install(context.Context) error { return nil }

func (natsPeer) durability(flushed bool) string {
	if flushed {
		return "before the answer"
	}
	return "every 2 min"
}

func (natsPeer) ways(w workload) []string {
	switch {
	case w.takes && w.sends:
		return []string{natsAsync + ", " + natsConsume}
	case w.takes:
		return []string{natsFetch, natsConsume}
	case w.single:
		return []string{"publish"}
	}
	return []string{natsAsync, natsFast}
}

func (natsPeer) start(ctx context.Context, dir string, flushed bool) (broker, error) {
	addr, port, err := freeAddr()
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	env := []string{fmt.Sprintf("%s=%d", natsEnv, port), natsDirEnv + "=" + dir}
	if flushed {
		env = append(env, natsSyncEnv+"=1")
	}
	p, err := launch(ctx, addr, env, program)
	if err != nil {
		return nil, err
	}
	return &natsRunning{p, addr}, nil
}

type natsRunning struct {
	*process
	addr string
}

func (r *natsRunning) dial() (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect("nats://"+r.addr, nats.NoReconnect())
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(postWindow))
	return nc, js, err
}

func (r *natsRunning) prepare(ctx context.Context, queue string) error {
	nc, js, err := r.dial()
	if err != nil {
		return err
	}
	defer nc.Close()
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: queue, Subjects: []string{queue}, Storage: jetstream.FileStorage, AllowBatchPublish: true,
	})
	if err != nil {
		return err
	}
	_, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: natsWorkers, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 64 << 10, AckWait: 5 * time.Minute,
	})
	return err
}

const natsWorkers = "workers"

func (r *natsRunning) left(ctx context.Context, queue string) (int64, bool, error) {
	nc, js, err := r.dial()
	if err != nil {
		return 0, true, err
	}
	defer nc.Close()
	c, err := js.Consumer(ctx, queue, natsWorkers)
	if err != nil {
		return 0, true, err
	}
	i := c.CachedInfo()
	return int64(i.NumPending) + int64(i.NumAckPending), true, nil
}

type natsProducer struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	queue string
	way   string
	fast  jetstreamext.FastPublisher
	async []jetstream.PubAckFuture
}

func (r *natsRunning) producer(_ context.Context, queue, way string) (producer, error) {
	nc, js, err := r.dial()
	if err != nil {
		return nil, err
	}
	return &natsProducer{nc: nc, js: js, queue: queue, way: way}, nil
}

func (p *natsProducer) post(bodies [][]byte) error {
	for _, b := range bodies {
		if p.way == natsFast {
			if err := p.add(b); err != nil {
				return err
			}
			continue
		}
		for {
			f, err := p.js.PublishAsync(p.queue, b)
			if errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				continue
			}
			if err != nil {
				return err
			}
			p.async = append(p.async, f)
			break
		}
	}
	return p.reap(len(p.async) - postWindow)
}

// reap looks at the outcome of the oldest n messages.
func (p *natsProducer) reap(n int) error {
	if n < postBatch {
		return nil
	}
	for _, f := range p.async[:n] {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		}
	}
	p.async = append(p.async[:0], p.async[n:]...)
	return nil
}

// add adds a message to the fast batch; its server tells how many may be on the way, two times 256 here.
func (p *natsProducer) add(b []byte) (err error) {
	if p.fast == nil {
		p.fast, err = jetstreamext.NewFastPublisher(p.js, jetstreamext.FastPublishFlowControl{Flow: postWindow / 2, MaxOutstandingAcks: 2})
		if err != nil {
			return err
		}
	}
	_, err = p.fast.Add(p.queue, b)
	return err
}

func (p *natsProducer) flush() error {
	if p.fast != nil {
		_, err := p.fast.Close(context.Background())
		p.fast = nil
		return err
	}
	for _, f := range p.async {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		}
	}
	p.async = p.async[:0]
	return nil
}

func (p *natsProducer) one(body []byte) error {
	_, err := p.js.Publish(context.Background(), p.queue, body)
	return err
}

func (p *natsProducer) close() { p.nc.Close() }

type natsConsumer struct {
	nc  *nats.Conn
	c   jetstream.Consumer
	way string
}

func (r *natsRunning) consumer(ctx context.Context, queue, way string) (consumer, error) {
	nc, js, err := r.dial()
	if err != nil {
		return nil, err
	}
	c, err := js.Consumer(ctx, queue, natsWorkers)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &natsConsumer{nc, c, way}, nil
}

func (c *natsConsumer) drain(ctx context.Context, take func([]byte)) error {
	var err error
	if c.way == natsFetch {
		err = c.fetch(ctx, take)
	} else {
		err = c.consume(ctx, take)
	}
	return errors.Join(err, c.nc.Flush()) // the acks have no answer: this is when the server has read them
}

func (c *natsConsumer) fetch(ctx context.Context, take func([]byte)) error {
	for ctx.Err() == nil {
		batch, err := c.c.Fetch(takeBatch, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			take(m.Data())
			if err := m.Ack(); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
			return err
		}
	}
	return nil
}

func (c *natsConsumer) consume(ctx context.Context, take func([]byte)) error {
	var failed atomic.Pointer[error]
	running, err := c.c.Consume(func(m jetstream.Msg) {
		take(m.Data())
		if err := m.Ack(); err != nil {
			failed.Store(&err)
		}
	}, jetstream.PullMaxMessages(postWindow))
	if err != nil {
		return err
	}
	<-ctx.Done()
	running.Stop()
	<-running.Closed()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *natsConsumer) close() { c.nc.Close() }
