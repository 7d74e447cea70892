package client

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

const (
	defaultBatch        = 64
	defaultFinishWithin = 20 * time.Second
	defaultStopWithin   = 5 * time.Second
	// fetchAwait is how long a pop of a consumer waits at the broker.
	fetchAwait = 20 * time.Second
	// mostHeld is how many messages a consumer holds at most, those included that are handled and not yet settled or
	// told of: as many as the receipts that a registration may reclaim.
	mostHeld = protocol.MaxReclaimReceipts
)

// ConsumerOptions of Client.Consumer. The zero value is right for most.
type ConsumerOptions struct {
	// ConsumerID names the consumer in its group: whoever registers it later fences this one, and Run ends.
	// Default: random. ClientInfo is shown to people beside it. Default: that of the client.
	ConsumerID, ClientInfo string
	// Create makes group and topic if they are missing.
	Create bool
	// FilterTags and Start count when the group reads the topic for the first time; see PopOptions.
	FilterTags []string
	Start      Start

	// Workers is how many handlers run at once, at most 4,096. Default: 1.
	Workers int
	// Prefetch is how many messages are taken beyond those that are being handled. They wait under their
	// leases, which are renewed. Default: 0: no message is taken that no free worker starts at once.
	Prefetch int
	// Batch is the most messages of one call of RunBatch's handler, 1 to 256. Default: 64.
	Batch int

	// Invisible is the length of the leases. Default: the group's.
	Invisible time.Duration
	// NoRenewals leaves leases as they are.
	NoRenewals bool
	// ProgressTimeout cancels (ErrStalled) a handler that has not called Delivery.Progress for so long, ends the
	// renewals of its leases, and takes back what they have added: they end after Invisible. Default: none.
	ProgressTimeout time.Duration

	// FinishWithin is how long handlers may go on after the context of Run has ended. Then theirs are cancelled
	// (ErrShutdown). Default: 20 s; negative: at once.
	FinishWithin time.Duration
	// StopWithin is how long they get to return after that. Default: 5 s.
	StopWithin time.Duration

	// OnSettled is called once for each message that was handed to a handler: err is nil when what its outcome
	// asked for was done, else it says why not: a *StatusError with the broker's reason, ErrSessionLost ... It is
	// called by one goroutine, which no handler waits for; when it is 4,096 messages behind, no more are taken.
	OnSettled func(d *Delivery, err error)

	// Logger is told of what goes wrong. Default: the client's.
	Logger *slog.Logger
}

func (o ConsumerOptions) withDefaults(c *Client) ConsumerOptions {
	if o.ConsumerID == "" {
		o.ConsumerID = rand.Text()
	}
	o.Workers = min(max(o.Workers, 1), mostHeld)
	o.Prefetch = max(o.Prefetch, 0)
	if o.Batch == 0 {
		o.Batch = defaultBatch
	}
	if o.FinishWithin == 0 {
		o.FinishWithin = defaultFinishWithin
	}
	if o.StopWithin <= 0 {
		o.StopWithin = defaultStopWithin
	}
	if o.Logger == nil {
		o.Logger = c.link.opts.Logger
	}
	return o
}

// Consumer takes messages of a topic for a group and hands them to a handler, in a session that it opens, keeps
// and replaces when it is lost. It may be used by any number of goroutines.
type Consumer struct {
	client       *Client
	group, topic string
	opts         ConsumerOptions

	running atomic.Bool
	session atomic.Pointer[Session]
	stats   consumerCounters
}

// Consumer makes a consumer. It does nothing until Run or RunBatch.
func (c *Client) Consumer(group, topic string, o ConsumerOptions) *Consumer {
	return &Consumer{client: c, group: group, topic: topic, opts: o.withDefaults(c)}
}

// Session is the newest session of Run; nil before the first and after Run.
func (k *Consumer) Session() *Session { return k.session.Load() }

var errRunning = errors.New("leasemq: the consumer runs already")

// Run takes messages and calls h for each, ConsumerOptions.Workers at a time, until ctx ends. Leases are renewed
// at a third of their length, for 8 times, then 64 times ... as long, as far as the group's rules reach.
//
// When ctx ends, Run gives back what no handler has, waits for the handlers, first for FinishWithin, then, with
// their contexts cancelled, for StopWithin, settles what they have done, and unregisters. Then it returns nil;
// or a *HungError that names the handlers which have not returned; or why the broker could not be told. Before that it ends
// only for an error that another attempt would not mend: ErrSessionFenced (somebody else has registered the
// consumer id), ErrClosed, and refusals such as ErrInvalid, ErrTopicNotFound, ErrGroupNotFound. Everything
// else is tried again, and logged.
func (k *Consumer) Run(ctx context.Context, h Handler) error {
	if h == nil {
		return invalid(protocol.OpRegister, "no handler")
	}
	return k.run(ctx, 1, func(w *work) error { return h(w.ctx, w.jobs[0].d) })
}

// RunBatch is Run with a handler for up to ConsumerOptions.Batch messages at a time: as many as there are when a worker is
// free.
func (k *Consumer) RunBatch(ctx context.Context, h BatchHandler) error {
	if h == nil {
		return invalid(protocol.OpRegister, "no handler")
	}
	return k.run(ctx, k.opts.Batch, func(w *work) error {
		batch := make([]*Delivery, len(w.jobs))
		for i, j := range w.jobs {
			batch[i] = j.d
		}
		return h(w.ctx, batch)
	})
}

func (k *Consumer) run(ctx context.Context, batch int, call func(*work) error) error {
	if n := k.opts.Batch; n < 1 || n > protocol.MaxPopMessages {
		return invalid(protocol.OpPop, "batches of %d messages, 1 to %d are legal", n, protocol.MaxPopMessages)
	}
	if !k.running.CompareAndSwap(false, true) {
		return errRunning
	}
	defer k.running.Store(false)
	r := newRun(ctx, k, batch, call)
	r.start()
	return r.stop(r.serve(ctx))
}
