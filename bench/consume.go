package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

const (
	// fillBatch is the least number of messages of a request while the queues are filled; fillWindow how many
	// requests are in flight then. What is measured is the reading.
	fillBatch  = 64
	fillWindow = 8
	// consumeStall is after how long without a message a consuming run gives up.
	consumeStall = 30 * time.Second
	// idlePop is how long a pop waits when its taker has several topics to look at, and has found none of them to have something.
	idlePop = 5 * time.Millisecond
	// leavePatience is for taking leave of a broker that may be gone.
	leavePatience = 5 * time.Second
)

// consumeWorkload is `bench consume`.
type consumeWorkload struct{}

func (*consumeWorkload) About() About {
	return About{
		Name: "consume", Short: "Pop and ack as fast as the broker gives",
		Long: `Fills topics, waits until they are on the disk, and then starts the clock: pops batches over several connections and acks
each, while the next one is popped, until all are acked or, with --duration, so much time has passed. A latency is the time
from the start of a pop until its messages are acked. Round trips of heartbeats beside that are a lane of their own.`,
	}
}

func (*consumeWorkload) Flags(f *Flags) {
	f.Settings.Window, f.Settings.Messages = 2, 1_000_000
	f.Share(brokerSettings...)
	f.Share("batch", "consumers", "window", "compression", "duration", "messages", "warm-up", "leases")
}

func (*consumeWorkload) Run(ctx context.Context, run *Run) error {
	if run.Messages == 0 {
		return &SettingError{errors.New("--messages is too small")}
	}
	clients, err := dialAll(ctx, run.Addr, "leasemq bench consume", run.Consumers)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	taking, err := run.newTaking(ctx, clients)
	defer taking.leave(ctx)
	if err != nil {
		return err
	}
	filled, err := run.fill(ctx, run.Consumers, run.Messages, true)
	run.Extra("fill", filled)
	if err != nil {
		return err
	}
	defer taking.report(run)
	return run.besideHeartbeats(ctx, clients[0], func() error { return taking.run(ctx, run.Messages, run.until()) })
}

// taking pops and acks, raw: what a batch costs without a client.Consumer.
type taking struct {
	topics            []string
	batch             int
	group             string
	client            *client.Client
	sessions          []*client.Session
	takers            []*taker
	whole, pops, acks *Lane

	most     uint64 // messages; then the run ends
	taken    atomic.Uint64
	settled  atomic.Uint64
	popping  context.Context // ends when the last message is taken, or the time is over
	allTaken context.CancelFunc
	ended    context.CancelFunc // called by whoever settles the last message
	first    firstError
}

// taker is one of the Window goroutines of a consumer.
type taker struct {
	run               *taking
	session           *client.Session
	topics            []string // popped in turn
	turn              int
	whole, pops, acks *Recorder
	redelivered       uint64
	before            acking
	endedAt           time.Time // of the last ack
}

// newTaking prepares to consume over some connections, and makes lanes for it. The topics are read from where they end now.
// Take leave also of one that comes with an error.
func (run *Run) newTaking(ctx context.Context, clients []*client.Client) (*taking, error) {
	t := &taking{
		topics: run.topics(), batch: run.Batch, group: run.Group, client: clients[0],
		whole: run.Lane("pop_ack", true), pops: run.Lane("pop", false), acks: run.Lane("ack", false),
	}
	var err error
	if t.sessions, err = subscribe(ctx, clients, t.topics, t.group, run.Queues); err != nil {
		return t, err
	}
	takers := len(t.sessions) * run.Window
	for i, s := range t.sessions {
		for j := range run.Window {
			t.takers = append(t.takers, &taker{
				run: t, session: s, topics: roundOf(t.topics, i*run.Window+j, takers),
				whole: t.whole.Recorder(), pops: t.pops.Recorder(), acks: t.acks.Recorder(),
			})
		}
	}
	return t, nil
}

// roundOf is what taker i of n pops from in turn: one topic if there are enough takers for each, else all of them, so that nobody has
// more to do than others, beginning at another one than they do.
func roundOf(topics []string, i, n int) []string {
	if n >= len(topics) {
		return shareOf(topics, i, n)
	}
	at := i * len(topics) / n
	return slices.Concat(topics[at:], topics[:at])
}

// leave clears away what newTaking made.
func (t *taking) leave(ctx context.Context) {
	if t.sessions != nil {
		leave(ctx, t.client, t.group, t.sessions)
	}
}

// report puts counters and figures of its own into the run's report.
func (t *taking) report(run *Run) {
	var redelivered uint64
	for _, x := range t.takers {
		redelivered += x.redelivered
	}
	run.Count("redelivered", redelivered)
	pops, acks := t.pops.rate(), t.acks.rate()
	run.Extra("pop_p50_us", pops.P50)
	run.Extra("pop_p99_us", pops.P99)
	run.Extra("ack_p50_us", acks.P50)
	run.Extra("ack_p99_us", acks.P99)
}

// subscribe makes the topics, if they are missing, and the group, opens a session on each connection, and the group's
// reading of the topics: behind what they hold already. The sessions are nil when there is no group to be
// deleted: when one of that name was there before, it is somebody else's.
func subscribe(ctx context.Context, clients []*client.Client, topics []string, group string, queues int) ([]*client.Session, error) {
	for _, topic := range topics {
		if _, err := needTopic(ctx, clients[0], topic, queues); err != nil {
			return nil, err
		}
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
	for _, topic := range topics {
		b, err := sessions[0].Pop(ctx, client.PopOptions{Topic: topic, Start: client.StartLatest})
		switch {
		case err != nil:
			return sessions, fmt.Errorf("bench: first pop of %s: %w", topic, err)
		case len(b.Deliveries) > 0:
			return sessions, fmt.Errorf("bench: topic %s is being sent to by somebody else", topic)
		}
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

// run pops and acks until so many messages are settled, or the time is over (zero: never), or ctx ends.
func (t *taking) run(ctx context.Context, most uint64, until time.Time) error {
	work, ended := context.WithCancel(ctx)
	defer ended()
	t.most, t.ended = most, ended
	t.popping, t.allTaken = context.WithCancel(work)
	defer t.allTaken()
	if !until.IsZero() {
		defer time.AfterFunc(time.Until(until), t.allTaken).Stop()
	}
	var working sync.WaitGroup
	for _, x := range t.takers {
		working.Go(func() { x.work(work) })
	}
	go t.watch(work)
	working.Wait()
	ended()
	if err := t.first.get(); err != nil {
		return err
	}
	return ctx.Err()
}

// watch ends a run in which nothing moves.
func (t *taking) watch(ctx context.Context) {
	for before := uint64(0); sleep(ctx, consumeStall) == nil; {
		now := t.settled.Load()
		if now == before {
			t.first.set(fmt.Errorf("bench: %d messages were acked, then none for %v", now, consumeStall))
			t.ended()
			return
		}
		before = now
	}
}

func (x *taker) work(ctx context.Context) {
	defer func() {
		for _, l := range []*Lane{x.run.whole, x.run.pops, x.run.acks} {
			l.End(x.endedAt)
		}
	}()
	err := x.rounds(ctx)
	if err == nil {
		err = x.settle(ctx)
	}
	if err != nil && ctx.Err() == nil {
		x.run.first.set(fmt.Errorf("bench: consume: %w", err))
		x.run.ended()
	}
}

// rounds pops until there is nothing more to be popped. The ack of the last batch may then still be under way.
func (x *taker) rounds(ctx context.Context) error {
	options := client.PopOptions{Max: min(x.run.batch, protocol.MaxPopMessages)}
	for empty := 0; x.run.popping.Err() == nil; {
		options.Topic = x.topics[x.turn]
		x.turn = (x.turn + 1) % len(x.topics)
		switch {
		case len(x.topics) == 1:
			options.Await = consumeStall
		case empty >= len(x.topics):
			options.Await = idlePop
		default:
			options.Await = 0
		}
		n, err := x.round(ctx, options)
		if err != nil {
			return err
		}
		if empty++; n > 0 {
			empty = 0
		}
	}
	return nil
}

// acking is a batch whose ack is under way.
type acking struct {
	batch         *client.Batch
	ack           *client.PendingAck
	began, popped time.Time
}

// round pops once, and has the batch acked while the next one is popped: so both requests go out in one write. It tells how many messages
// came.
func (x *taker) round(ctx context.Context, options client.PopOptions) (n int, err error) {
	began := time.Now()
	batch, err := x.session.Pop(x.run.popping, options)
	popped := time.Now()
	if failed := x.settle(ctx); failed != nil {
		return 0, failed
	}
	if err != nil {
		if x.run.popping.Err() != nil {
			return 0, nil // that is why
		}
		return 0, err
	}
	n = len(batch.Deliveries)
	if n == 0 {
		batch.Release()
		return 0, nil
	}
	for _, d := range batch.Deliveries {
		if err := d.Err(); err != nil {
			x.whole.Fail(1)
			return n, err
		}
		if d.Attempt > 1 {
			x.redelivered++
		}
	}
	x.before = acking{batch, x.session.BeginAck(batch.Deliveries...), began, popped}
	if x.run.taken.Add(uint64(n)) >= x.run.most {
		x.run.allTaken()
	}
	return n, nil
}

// settle waits for the ack that is under way.
func (x *taker) settle(ctx context.Context) error {
	b := x.before
	if b.ack == nil {
		return nil
	}
	x.before = acking{}
	n := len(b.batch.Deliveries)
	if _, err := b.ack.Wait(ctx); err != nil {
		if ctx.Err() == nil {
			x.whole.Fail(n)
		}
		return err
	}
	b.batch.Release()
	acked := time.Now()
	x.pops.Record(b.began, b.popped.Sub(b.began), n)
	x.acks.Record(b.began, acked.Sub(b.popped), n)
	x.whole.Record(b.began, acked.Sub(b.began), n)
	x.endedAt = acked
	if x.run.settled.Add(uint64(n)) >= x.run.most {
		x.run.ended()
	}
	return nil
}
