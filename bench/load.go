package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
)

// handling says what consumers do with what a load sends them.
type handling struct {
	workers   int // handlers at once of each consumer
	prefetch  int
	invisible time.Duration // length of a lease; 0: the group's default
	// work is how long a handler works on a message; nil: it returns at once. Every pauseEvery nothing of a consumer's handlers
	// moves for pause, as when its process collects garbage or its machine stands still; 0: never.
	work              func(*rand.Rand) time.Duration
	pause, pauseEvery time.Duration
	// patience is how long after the last send the last message may take until it is settled.
	patience time.Duration
}

// A body begins with when it was due, in ns since the start, and its number; it ends with the CRC-32C of what lies before.
const (
	loadHead = 16
	loadTail = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// load is one run in which messages are sent when they are due, and consumers with handlers work on what comes, as programs do
// it (client.Consumer). Each message has a number, and is followed until it is settled.
type load struct {
	*Run
	handling
	filler []byte // what stands between head and tail

	sending, toHandler, hold *Lane

	sent  atomic.Uint64
	first firstError

	// By the number of a message.
	seen []atomic.Uint32 // the consumer that handled it last, counted from 1; 0: none yet
	done []atomic.Bool   // settled

	settled, redelivered, duplicates, handovers, twice, corrupt atomic.Uint64

	lastFirst atomic.Int64 // when the last message came to its first handler, in ns since the beginning

	allSent atomic.Bool
	ended   context.CancelFunc
}

// load makes a load of the run's settings, and reports it.
func (run *Run) load(ctx context.Context, h handling) error {
	if run.Size < loadHead+loadTail || run.Rate < 1 || run.Duration <= 0 || h.workers < 1 || h.prefetch < 0 {
		return &SettingError{fmt.Errorf("--rate, --duration, --workers or --prefetch is too small, or --size is below %d", loadHead+loadTail)}
	}
	l := &load{
		Run: run, handling: h, filler: run.body(run.Size-loadHead-loadTail, 3),
		toHandler: run.Lane("send_to_handler", true), sending: run.Lane("send", false), hold: run.Lane("receive_to_ack", false),
	}
	producers, err := dialAll(ctx, run.Addr, "leasemq bench", run.Producers)
	if err != nil {
		return err
	}
	defer closeAll(producers)
	consumers, err := dialAll(ctx, run.Addr, "leasemq bench", run.Consumers)
	if err != nil {
		return err
	}
	defer closeAll(consumers)
	// The group begins to read where the topics end now.
	sessions, err := subscribe(ctx, consumers[:1], run.topics(), run.Group, run.Queues)
	if sessions != nil {
		defer leave(ctx, producers[0], run.Group, nil)
	}
	for _, s := range sessions {
		err = errors.Join(err, s.Close(ctx))
	}
	if err != nil {
		return err
	}
	total := dueBy(run.Rate, run.WarmUp+run.Duration)
	l.seen, l.done = make([]atomic.Uint32, total), make([]atomic.Bool, total)
	return l.run(ctx, producers, consumers)
}

func (l *load) run(ctx context.Context, producers, consumers []*client.Client) error {
	working, ended := context.WithCancel(ctx)
	defer ended()
	l.ended = ended
	l.Begin(loadLead) // the consumers are there before the first message is due
	takers := make([]*loadTaker, max(len(consumers), l.Topics))
	var taking, sending sync.WaitGroup
	for i := range takers {
		takers[i] = newLoadTaker(l, i, consumers[i%len(consumers)])
		taking.Go(func() { takers[i].consume(working) })
		taking.Go(func() { takers[i].pauses(working) })
	}
	for i, c := range producers {
		sending.Go(func() { l.send(working, i, c.Producer(l.producerOptions())) })
	}
	sending.Wait()
	l.sending.End(time.Now())
	if working.Err() == nil {
		allDue := l.began.Add(dueAt(uint64(len(l.seen)), l.Rate))
		l.sending.End(allDue)
		l.toHandler.End(allDue)
	}
	l.allSent.Store(true)
	l.checkEnd()
	select {
	case <-working.Done():
	case <-time.After(l.patience):
		ended()
	}
	l.toHandler.End(l.began.Add(time.Duration(l.lastFirst.Load())))
	l.hold.End(time.Now())
	taking.Wait()
	l.report(takers)
	if err := l.first.get(); err != nil {
		return err
	}
	return ctx.Err()
}

// loadLead is how long consumers have to be there before the first message is due.
const loadLead = 200 * time.Millisecond

// sendTick is how often a sender looks for what is due.
const sendTick = 250 * time.Microsecond

// send sends every Producers-th message when it is due.
func (l *load) send(ctx context.Context, producer int, p *client.Producer) {
	body := make([]byte, l.Size)
	copy(body[loadHead:], l.filler)
	record, topics := l.sending.Recorder(), l.topics()
	if sleep(ctx, time.Until(l.began)) != nil {
		return
	}
	for number, total := producer, len(l.seen); number < total && ctx.Err() == nil; {
		for due := dueBy(l.Rate, time.Since(l.began)+1); number < min(due, total); number += l.Producers {
			at := dueAt(uint64(number), l.Rate)
			seal(body, at, uint64(number))
			message := client.Message{Topic: topics[number%len(topics)], Body: body}
			if err := p.SendAsync(ctx, &message, l.answered(record, at)); err != nil {
				if ctx.Err() == nil {
					record.Fail(1)
					l.fail(fmt.Errorf("bench: send: %w", err))
				}
				return
			}
		}
		time.Sleep(sendTick)
	}
	if err := p.Flush(ctx); err != nil && ctx.Err() == nil {
		l.fail(fmt.Errorf("bench: %w", err))
	}
}

// answered is told of the answer to the message that was due at a moment.
func (l *load) answered(record *Recorder, at time.Duration) func(client.SendResult, error) {
	return func(_ client.SendResult, err error) {
		if err != nil {
			record.Fail(1)
			l.first.set(fmt.Errorf("bench: send: %w", err))
			return
		}
		due := l.began.Add(at)
		record.Record(due, time.Since(due), 1)
		l.sent.Add(1)
	}
}

// fail ends the run.
func (l *load) fail(err error) {
	l.first.set(err)
	l.ended()
}

// seal writes the head and the tail of a body. (SendAsync copies it.)
func seal(body []byte, due time.Duration, number uint64) {
	binary.LittleEndian.PutUint64(body, uint64(due))
	binary.LittleEndian.PutUint64(body[8:], number)
	tail := len(body) - loadTail
	binary.LittleEndian.PutUint32(body[tail:], crc32.Checksum(body[:tail], castagnoli))
}

// open reads a body; ok is false when it is not one of this run.
func (l *load) open(body []byte) (due time.Duration, number uint64, ok bool) {
	tail := len(body) - loadTail
	if len(body) != l.Size || binary.LittleEndian.Uint32(body[tail:]) != crc32.Checksum(body[:tail], castagnoli) {
		return 0, 0, false
	}
	number = binary.LittleEndian.Uint64(body[8:])
	return time.Duration(binary.LittleEndian.Uint64(body)), number, number < uint64(len(l.seen))
}

// checkEnd ends the run when all that was acknowledged is settled.
func (l *load) checkEnd() {
	if l.allSent.Load() && l.settled.Load() >= l.sent.Load() {
		l.ended()
	}
}

func (l *load) report(takers []*loadTaker) {
	var renewals, lost, sessions uint64
	for _, t := range takers {
		stats := t.consumer.Stats()
		renewals += stats.Renewals
		lost += stats.LeasesLost
		sessions += stats.Sessions
	}
	sent, settled := l.sent.Load(), l.settled.Load()
	l.Count("sent", sent)
	l.Count("settled", settled)
	l.Count("redelivered", l.redelivered.Load())
	l.Count("duplicates_handled", l.duplicates.Load())
	l.Count("hand_overs", l.handovers.Load())
	l.Count("renewals", renewals)
	l.Count("leases_lost", lost)
	l.Count("sessions", sessions)
	l.MustBeZero("lost", sent-min(settled, sent))
	l.MustBeZero("settled_twice", l.twice.Load())
	l.MustBeZero("corrupt", l.corrupt.Load())
	l.MustBeZero("send_errors", l.sending.rate().Errors)
	hold := l.hold.rate()
	l.Extra("scheduled_per_s", l.Rate)
	l.Extra("workers", l.workers)
	l.Extra("receive_to_ack_p50_us", hold.P50)
	l.Extra("receive_to_ack_p99_us", hold.P99)
	l.Extra("receive_to_ack_max_us", hold.Max)
}
