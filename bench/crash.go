package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/codec"
)

const (
	crashTopic = "demo"
	crashGroup = "demo"

	// crashLease is short, so that what consumers held without knowing it, because the answer died with the
	// broker, is back before the run is over.
	crashLease = 2 * time.Second
	crashAwait = 250 * time.Millisecond
	// crashPopMax is above what a producer sends at once, so that consumers catch up after the outage.
	crashPopMax = 256
	// drainPatience is how long the group may take at the end until nothing is left: the lease, the back-off
	// after it, and much more.
	drainPatience = 15 * time.Second
	// stopPatience is for the orderly stop of the broker at the end.
	stopPatience = 10 * time.Second

	crashBodyBytes = 4 + 8 + 8 // the least
)

// CrashOptions say how Crash goes about it.
type CrashOptions struct {
	Broker    ChildOptions // its Dir is kept across the kill
	Queues    int
	Producers int           // each sends a batch, waits for its answer, sends the next
	Consumers int           // each pops, acks, pops again
	Batch     int           // messages of a send
	Size      int           // bytes of a body
	Before    time.Duration // of traffic until the kill
	After     time.Duration // of traffic from the moment the broker is back
	Say       func(string)  // is told what happens, and every half second how far it is
}

// CrashReport is what Crash found. A latency is end to end: from before a send until the message's first
// delivery, the outage included.
type CrashReport struct {
	Verdict
	MessagesPerS float64 `json:"msgs_per_s"` // sent, delivered and acked, from the first send to the last ack, outage included
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	Seconds      float64 `json:"seconds"`
	OutageS      float64 `json:"outage_s"`  // from the kill until clients could connect again
	LeftOver     bool    `json:"left_over"` // the group still had something when patience ended: it counts as lost
}

// crashRun is the state of one Crash.
type crashRun struct {
	o      CrashOptions
	ledger Ledger
	epoch  time.Time // of the times in the bodies
	sent   context.Context
	stop   context.CancelFunc // ends sent: no further batch is begun
	empty  context.Context
	drain  context.CancelFunc // ends empty: nothing is left to be taken
	quiet  atomic.Bool        // every send has been answered
	idle   atomic.Int64       // consumers that found the group empty when it was quiet
	last   atomic.Int64       // ns from epoch to the newest ack

	mu        sync.Mutex
	latencies Histogram
	first     firstError
}

// Crash starts a broker, has producers and consumers work with it, kills it without warning in the middle, starts
// it again on the same directory and port, and lets the work go on. Then it lets the group run dry and reads the
// ledger.
func Crash(ctx context.Context, o CrashOptions) (CrashReport, error) {
	if o.Size < crashBodyBytes {
		return CrashReport{}, fmt.Errorf("bench: a body of %d bytes, at least %d are needed", o.Size, crashBodyBytes)
	}
	broker, err := StartChild(ctx, o.Broker)
	if err != nil {
		return CrashReport{}, err
	}
	defer func() { broker.Kill() }()
	o.Say(fmt.Sprintf("broker runs as process %d, listens on %s", broker.PID(), broker.Addr))
	o.Broker.Listen = broker.Addr

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := &crashRun{o: o, epoch: time.Now()}
	run.sent, run.stop = context.WithCancel(ctx)
	run.empty, run.drain = context.WithCancel(ctx)
	producers, consumers, err := run.start(ctx, broker.Addr)
	if err != nil {
		return CrashReport{}, err
	}
	defer func() {
		cancel()
		producers.Wait()
		consumers.Wait()
	}()
	var report CrashReport
	if err := run.pass(o.Before); err != nil {
		return report, err
	}
	if broker, err = run.outage(ctx, broker, &report); err != nil {
		return report, err
	}
	if err := run.pass(o.After); err != nil {
		return report, err
	}
	run.stop()
	producers.Wait()
	run.quiet.Store(true)
	o.Say("no more sends; consumers take what is left")
	report.LeftOver = !run.awaitEmpty(ctx)
	run.drain()
	consumers.Wait()
	if err := errors.Join(run.first.get(), ctx.Err()); err != nil {
		return report, err
	}
	run.sum(&report)
	o.Say("stopping the broker in order")
	return report, broker.Stop(stopPatience)
}

// start makes topic and group and sets everybody to work.
func (run *crashRun) start(ctx context.Context, addr string) (producers, consumers *sync.WaitGroup, err error) {
	clients, err := dialAll(ctx, addr, "leasemq demo", run.o.Producers+run.o.Consumers)
	if err != nil {
		return nil, nil, err
	}
	if _, err = needTopic(ctx, clients[0], crashTopic, run.o.Queues); err == nil {
		err = clients[0].CreateGroup(ctx, crashGroup, client.GroupRules{InvisibleMs: uint32(crashLease.Milliseconds())})
	}
	if err != nil {
		closeAll(clients)
		return nil, nil, err
	}
	producers, consumers = new(sync.WaitGroup), new(sync.WaitGroup)
	for i, c := range clients {
		if i < run.o.Producers {
			producers.Go(func() {
				defer c.Close()
				run.produce(ctx, c.Producer(client.ProducerOptions{}))
			})
			continue
		}
		consumers.Go(func() {
			defer c.Close()
			run.consume(ctx, c)
		})
	}
	return producers, consumers, nil
}

// pass lets time pass and says how far everybody is.
func (run *crashRun) pass(d time.Duration) error {
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-end.C:
			return run.first.get()
		case <-run.sent.Done():
			return errors.Join(run.first.get(), run.sent.Err())
		case <-tick.C:
			run.sayProgress()
		}
	}
}

func (run *crashRun) sayProgress() {
	run.o.Say(fmt.Sprintf("%5.1f s  %9d acknowledged  %9d delivered  %9d acked", time.Since(run.epoch).Seconds(),
		run.ledger.acknowledged.Load(), run.ledger.delivered.Load(), run.ledger.acked.Load()))
}

// outage kills the broker and starts it again.
func (run *crashRun) outage(ctx context.Context, broker *Child, report *CrashReport) (*Child, error) {
	run.o.Say(fmt.Sprintf("kill -9 %d", broker.PID()))
	killed := time.Now()
	if err := broker.Kill(); err != nil {
		return broker, err
	}
	again, err := StartChild(ctx, run.o.Broker)
	if err != nil {
		return broker, err
	}
	outage := time.Since(killed)
	report.OutageS = outage.Seconds()
	run.o.Say(fmt.Sprintf("broker is back after %.2f s as process %d", outage.Seconds(), again.PID()))
	return again, nil
}

// awaitEmpty waits until every consumer has found the group empty; false when it takes too long.
func (run *crashRun) awaitEmpty(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	select {
	case <-run.empty.Done():
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (run *crashRun) sum(report *CrashReport) {
	report.Verdict = run.ledger.Verdict()
	report.P50 = microseconds(run.latencies.Quantile(0.5))
	report.P99 = microseconds(run.latencies.Quantile(0.99))
	report.Seconds = time.Duration(run.last.Load()).Seconds()
	report.MessagesPerS = float64(report.Acked) / max(report.Seconds, 1e-9)
}

// appendCrashBody makes the body of a message: a checksum of the rest, the number, the moment, filling.
func appendCrashBody(b []byte, size int, number uint64, sentAt time.Duration) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint64(b, uint64(sentAt))
	for len(b)-at < size {
		b = append(b, byte(number)+byte(len(b)-at))
	}
	binary.LittleEndian.PutUint32(b[at:], codec.Checksum(0, b[at+4:]))
	return b
}

func parseCrashBody(b []byte, size int) (number uint64, sentAt time.Duration, ok bool) {
	if len(b) != size || binary.LittleEndian.Uint32(b) != codec.Checksum(0, b[4:]) {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(b[4:]), time.Duration(binary.LittleEndian.Uint64(b[12:])), true
}
