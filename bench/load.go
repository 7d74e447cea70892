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

// LoadOptions say what Load sends, and what is done with it.
type LoadOptions struct {
	Addr   string
	Topic  string // made with Queues queues if it is missing; nobody else may send to it meanwhile
	Group  string // made for the run and deleted afterwards; it must not be there
	Queues int
	Size   int // bytes of a body, at least loadHead + loadTail

	Rate      int // messages a second, in all
	Producers int // connections that send
	Duration  time.Duration
	Warm      time.Duration // at the beginning, of which no latency counts

	Consumers int // connections, each with a client.Consumer
	Workers   int // handlers at once of each
	Prefetch  int
	Invisible time.Duration // length of a lease; 0: the group's default
	// Work is how long a handler works on a message; nil: it returns at once. Every PauseEvery nothing of a consumer's handlers
	// moves for Pause, as when its process collects garbage or its machine stands still; 0: never.
	Work              func(*rand.Rand) time.Duration
	Pause, PauseEvery time.Duration

	// Patience is how long after the last send the last message may take until it is settled.
	Patience time.Duration
}

// LoadReport is what Load found. A latency is the time from the moment at which a message was to be sent, not that at which it
// was, until its first handler begins: so a stall of the broker or of the sender is not hidden.
type LoadReport struct {
	Rate
	Scheduled  int     `json:"scheduled_per_s"`
	Size       int     `json:"size"`
	Producers  int     `json:"producers"`
	Consumers  int     `json:"consumers"`
	Workers    int     `json:"workers"`
	Sent       uint64  `json:"sent"`    // acknowledged
	Settled    uint64  `json:"settled"` // messages of which an ack was taken
	Duplicates uint64  `json:"duplicates_handled"`
	Handovers  uint64  `json:"hand_overs"` // of these, by another consumer than the one before
	Renewals   uint64  `json:"renewals"`
	LeasesLost uint64  `json:"leases_lost"`
	HoldP50    float64 `json:"receive_to_ack_p50_us"` // from the start of a handler until its ack was taken
	HoldP99    float64 `json:"receive_to_ack_p99_us"`
	HoldMax    float64 `json:"receive_to_ack_max_us"`

	// These must be 0.
	Lost    uint64 `json:"lost"`          // acknowledged to the sender, and never settled
	Twice   uint64 `json:"settled_twice"` // an ack was taken of a message that was settled
	Corrupt uint64 `json:"corrupt"`       // a body that nobody sent
}

// Broken tells whether a promise was broken.
func (r *LoadReport) Broken() bool { return r.Lost+r.Twice+r.Corrupt+r.Errors > 0 }

// A body begins with when it was due, in ns since the start, and its number; it ends with the CRC-32C of what lies before.
const (
	loadHead = 16
	loadTail = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// loadRun is one run of Load.
type loadRun struct {
	o      LoadOptions
	began  time.Time
	filler []byte // what stands between head and tail

	sent   atomic.Uint64
	failed atomic.Uint64
	first  firstError

	// By the number of a message.
	seen []atomic.Uint32 // the consumer that handled it last, counted from 1; 0: none yet
	done []atomic.Bool   // settled

	settled, duplicates, handovers, twice, corrupt atomic.Uint64
	allSent                                        atomic.Bool
	ended                                          context.CancelFunc
}

// Load sends at a fixed rate, and has consumers with handlers work on what comes, as programs do it (client.Consumer).
func Load(ctx context.Context, o LoadOptions) (LoadReport, error) {
	report := LoadReport{
		Scheduled: o.Rate, Size: o.Size, Producers: o.Producers, Consumers: o.Consumers, Workers: o.Workers,
	}
	if o.Size < loadHead+loadTail || o.Rate < 1 || o.Producers < 1 || o.Consumers < 1 || o.Workers < 1 || o.Duration <= 0 {
		return report, fmt.Errorf("bench: a load of %d/s for %v, of %d bytes (at least %d), from %d connections to %d consumers with %d workers",
			o.Rate, o.Duration, o.Size, loadHead+loadTail, o.Producers, o.Consumers, o.Workers)
	}
	producers, err := dialAll(ctx, o.Addr, "leasemq bench", o.Producers)
	if err != nil {
		return report, err
	}
	defer closeAll(producers)
	consumers, err := dialAll(ctx, o.Addr, "leasemq bench", o.Consumers)
	if err != nil {
		return report, err
	}
	defer closeAll(consumers)
	sessions, err := subscribe(ctx, consumers[:1], o.Topic, o.Group, o.Queues)
	if sessions != nil {
		defer leave(ctx, producers[0], o.Group, nil)
	}
	for _, s := range sessions {
		err = errors.Join(err, s.Close(ctx))
	}
	if err != nil {
		return report, err
	}
	total := o.total()
	run := &loadRun{
		o: o, filler: noise(o.Size-loadHead-loadTail, 3),
		seen: make([]atomic.Uint32, total), done: make([]atomic.Bool, total),
	}
	return report, run.run(ctx, producers, consumers, &report)
}

// total is how many messages the run sends.
func (o *LoadOptions) total() int { return dueBy(o.Rate, o.Duration) }

// dueBy is how many messages fit into a time; message n, counted from 0, is due when n of them do.
func dueBy(rate int, at time.Duration) int { return int(float64(rate) * at.Seconds()) }

func (run *loadRun) run(ctx context.Context, producers, consumers []*client.Client, report *LoadReport) error {
	working, ended := context.WithCancel(ctx)
	defer ended()
	run.ended = ended
	// The consumers are there before the first message is due.
	run.began = time.Now().Add(loadLead)
	takers := make([]*loadTaker, len(consumers))
	var taking, sending sync.WaitGroup
	for i, c := range consumers {
		takers[i] = newLoadTaker(run, i, c)
		taking.Go(func() { takers[i].work(working) })
		taking.Go(func() { takers[i].pauses(working) })
	}
	for i, c := range producers {
		sending.Go(func() { run.send(working, i, c.Producer(client.ProducerOptions{Compression: client.CompressNone})) })
	}
	sending.Wait()
	sentFor := max(time.Since(run.began), time.Nanosecond)
	run.allSent.Store(true)
	run.checkEnd()
	late := time.NewTimer(run.o.Patience)
	defer late.Stop()
	select {
	case <-working.Done():
	case <-late.C:
		ended()
	}
	taking.Wait()
	run.report(takers, sentFor, report)
	if err := run.first.get(); err != nil {
		return err
	}
	return ctx.Err()
}

// loadLead is how long consumers have to be there before the first message is due.
const loadLead = 200 * time.Millisecond

// sendTick is how often a sender looks for what is due.
const sendTick = 250 * time.Microsecond

// send sends every Producers-th message when it is due.
func (run *loadRun) send(ctx context.Context, lane int, p *client.Producer) {
	body := make([]byte, run.o.Size)
	copy(body[loadHead:], run.filler)
	answered := func(_ client.SendResult, err error) {
		if err != nil {
			run.failed.Add(1)
			run.first.set(fmt.Errorf("bench: send: %w", err))
			return
		}
		run.sent.Add(1)
	}
	sleep(ctx, time.Until(run.began))
	for number, total := lane, run.o.total(); number < total && ctx.Err() == nil; {
		for due := dueBy(run.o.Rate, time.Since(run.began)) + 1; number < min(due, total); number += run.o.Producers {
			at := time.Duration(float64(number) / float64(run.o.Rate) * float64(time.Second))
			seal(body, at, uint64(number))
			if err := p.SendAsync(ctx, &client.Message{Topic: run.o.Topic, Body: body}, answered); err != nil {
				if ctx.Err() == nil {
					run.first.set(fmt.Errorf("bench: send: %w", err))
					run.ended()
				}
				return
			}
		}
		time.Sleep(sendTick)
	}
	if err := p.Flush(ctx); err != nil && ctx.Err() == nil {
		run.first.set(fmt.Errorf("bench: %w", err))
	}
}

// seal writes the head and the tail of a body. (SendAsync copies it.)
func seal(body []byte, due time.Duration, number uint64) {
	binary.LittleEndian.PutUint64(body, uint64(due))
	binary.LittleEndian.PutUint64(body[8:], number)
	tail := len(body) - loadTail
	binary.LittleEndian.PutUint32(body[tail:], crc32.Checksum(body[:tail], castagnoli))
}

// open reads a body; ok is false when it is not one of this run.
func (run *loadRun) open(body []byte) (due time.Duration, number uint64, ok bool) {
	tail := len(body) - loadTail
	if len(body) != run.o.Size || binary.LittleEndian.Uint32(body[tail:]) != crc32.Checksum(body[:tail], castagnoli) {
		return 0, 0, false
	}
	number = binary.LittleEndian.Uint64(body[8:])
	return time.Duration(binary.LittleEndian.Uint64(body)), number, number < uint64(len(run.seen))
}

// checkEnd ends the run when all that was acknowledged is settled.
func (run *loadRun) checkEnd() {
	if run.allSent.Load() && run.settled.Load() >= run.sent.Load() {
		run.ended()
	}
}

func (run *loadRun) report(takers []*loadTaker, sentFor time.Duration, r *LoadReport) {
	var first, hold Histogram
	for _, t := range takers {
		first.Merge(&t.first)
		hold.Merge(&t.hold)
		stats := t.consumer.Stats()
		r.Renewals += stats.Renewals
		r.LeasesLost += stats.LeasesLost
	}
	r.Sent, r.Settled = run.sent.Load(), run.settled.Load()
	r.Rate = rateOf(&first, run.failed.Load(), run.o.Size, sentFor)
	r.MessagesPerS = float64(r.Sent) / sentFor.Seconds() // the warm-up included, of which no latency counts
	r.MBPerS = r.MessagesPerS * float64(run.o.Size) / 1e6
	r.Messages = r.Sent
	r.Duplicates, r.Handovers, r.Twice, r.Corrupt = run.duplicates.Load(), run.handovers.Load(), run.twice.Load(), run.corrupt.Load()
	r.HoldP50, r.HoldP99, r.HoldMax = microseconds(hold.Quantile(0.5)), microseconds(hold.Quantile(0.99)), microseconds(hold.Max())
	if r.Sent > r.Settled {
		r.Lost = r.Sent - r.Settled
	}
}

// loadTaker is one consumer of Load.
type loadTaker struct {
	run      *loadRun
	number   uint32 // from 1
	consumer *client.Consumer
	moving   sync.RWMutex // held for writing while nothing moves
	starts   sync.Map     // *client.Delivery to the time.Time at which its handler began; not of those that failed

	mu     sync.Mutex
	random *rand.Rand
	first  Histogram // due until first handled
	hold   Histogram // handler's start until acked
}

func newLoadTaker(run *loadRun, i int, c *client.Client) *loadTaker {
	t := &loadTaker{run: run, number: uint32(i + 1), random: rand.New(rand.NewPCG(uint64(i), 4))}
	t.consumer = c.Consumer(run.o.Group, run.o.Topic, client.ConsumerOptions{
		Workers: run.o.Workers, Prefetch: run.o.Prefetch, Invisible: run.o.Invisible, OnSettled: t.settled,
	})
	return t
}

func (t *loadTaker) work(ctx context.Context) {
	if err := t.consumer.Run(ctx, t.handle); err != nil && ctx.Err() == nil {
		t.run.first.set(fmt.Errorf("bench: consumer: %w", err))
		t.run.ended()
	}
}

// pauses keeps the handlers from moving now and then.
func (t *loadTaker) pauses(ctx context.Context) {
	if t.run.o.Pause <= 0 || t.run.o.PauseEvery <= 0 {
		return
	}
	tick := time.NewTicker(t.run.o.PauseEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.moving.Lock()
			sleep(ctx, t.run.o.Pause)
			t.moving.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (t *loadTaker) handle(ctx context.Context, d *client.Delivery) error {
	now := time.Now()
	t.starts.Store(d, now)
	err := t.workOn(ctx, d, now)
	if err != nil {
		t.starts.Delete(d)
	}
	return err
}

func (t *loadTaker) workOn(ctx context.Context, d *client.Delivery, now time.Time) error {
	body, err := d.Body()
	if err != nil {
		t.run.corrupt.Add(1)
		return err
	}
	due, number, ok := t.run.open(body)
	if !ok {
		t.run.corrupt.Add(1)
		return nil // it would only come again
	}
	switch before := t.run.seen[number].Swap(t.number); {
	case before == 0:
		t.latency(now.Sub(t.run.began)-due, due)
	default:
		t.run.duplicates.Add(1)
		if before != t.number {
			t.run.handovers.Add(1)
		}
	}
	if t.run.o.Work != nil {
		t.mu.Lock()
		long := t.run.o.Work(t.random)
		t.mu.Unlock()
		if err := sleep(ctx, long); err != nil {
			return err
		}
	}
	t.moving.RLock()
	defer t.moving.RUnlock()
	return ctx.Err()
}

func (t *loadTaker) latency(d, due time.Duration) {
	if due < t.run.o.Warm {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.first.Record(d, 1)
}

// sleep waits, or says why ctx has ended before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *loadTaker) settled(d *client.Delivery, err error) {
	now := time.Now()
	began, acked := t.starts.LoadAndDelete(d)
	body, bad := d.Body()
	if !acked || err != nil || bad != nil {
		return
	}
	_, number, ok := t.run.open(body)
	if !ok {
		return
	}
	if t.run.done[number].Swap(true) {
		t.run.twice.Add(1)
		return
	}
	t.mu.Lock()
	t.hold.Record(now.Sub(began.(time.Time)), 1)
	t.mu.Unlock()
	t.run.settled.Add(1)
	t.run.checkEnd()
}
