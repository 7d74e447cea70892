package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/leasemq/leasemq/client"
)

const (
	handoverTopic = "jobs"
	handoverGroup = "workers"

	// jobLength and jobEvery keep a quarter of the workers' hands busy, so that what comes back finds a free one.
	jobLength = 400 * time.Millisecond
	jobEvery  = 30 * time.Millisecond
	hands     = 16 // jobs at once of a worker
	busyWith  = 3  // jobs that a worker is in the middle of when something happens to it
	// leaveBound is how long it may take until the jobs of a worker that leaves in order are with others.
	leaveBound = 100 * time.Millisecond
)

// HandoverOptions say how Handover goes about it.
type HandoverOptions struct {
	Broker    ChildOptions
	Worker    WorkerCommand
	Lease     time.Duration // of the workers: long, since it must not matter
	Heartbeat time.Duration
	Timeout   time.Duration // of their sessions
	Say       func(string)  // is told what happens
}

// Handed is what became of the jobs that a worker was in the middle of.
type Handed struct {
	Jobs    int     `json:"jobs"`
	FirstMs float64 `json:"first_ms"` // until the first one ran at another worker
	LastMs  float64 `json:"last_ms"`  // until the last one did
	BoundMs float64 `json:"bound_ms"`
}

// Late tells whether a hand-over took longer than it may.
func (h *Handed) Late() bool { return h.Jobs == 0 || h.LastMs > h.BoundMs }

// HandoverReport is what Handover found.
type HandoverReport struct {
	LeaseS float64 `json:"lease_s"`
	Sent   int     `json:"sent"`

	Killed Handed `json:"killed"` // with kill -9
	Frozen Handed `json:"frozen"` // with SIGSTOP, continued after it was lost
	Left   Handed `json:"left"`   // in order

	Cancelled int    `json:"frozen_cancelled"` // jobs of the frozen worker whose context was cancelled when it went on
	CancelWhy string `json:"frozen_cancelled_why"`
	Refused   int    `json:"frozen_refused"` // late acks of it that the broker refused
	RefuseWhy string `json:"frozen_refused_why"`
	LateTaken int    `json:"frozen_late_acks_taken"` // and those that it took: must be none
	Lost      int    `json:"lost"`
	Twice     int    `json:"settled_twice"`
}

// Broken tells whether a promise was broken.
func (r *HandoverReport) Broken() bool {
	return r.Killed.Late() || r.Frozen.Late() || r.Left.Late() || r.Lost+r.Twice+r.LateTaken > 0 ||
		r.Cancelled == 0 || r.Refused == 0
}

// handover is one run of Handover.
type handover struct {
	o      HandoverOptions
	client *client.Client
	addr   string

	workers []*WorkerChild

	mu     sync.Mutex
	sent   int
	unsent error
}

// Handover starts a broker and three workers on long leases and feeds them with jobs. One worker is killed in the
// middle of its jobs, one is frozen and goes on when its session is long lost, one leaves in order; each time
// it is measured how long it takes until others work on the same jobs. In the end every job must be settled, once.
func Handover(ctx context.Context, o HandoverOptions) (report HandoverReport, err error) {
	broker, err := StartChild(ctx, o.Broker)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, broker.Stop(stopPatience)) }()
	h := &handover{o: o, addr: broker.Addr}
	if h.client, err = client.Dial(ctx, broker.Addr, client.Options{}); err != nil {
		return report, err
	}
	defer h.client.Close()
	if err := h.prepare(ctx); err != nil {
		return report, err
	}
	defer h.killAll()
	feeding, stop := context.WithCancel(ctx)
	var feeder sync.WaitGroup
	feeder.Go(func() { h.feed(feeding) })
	defer feeder.Wait()
	defer stop()

	report.LeaseS = o.Lease.Seconds()
	if err := h.acts(ctx, &report); err != nil {
		return report, err
	}
	stop()
	feeder.Wait()
	return report, h.settle(ctx, &report)
}

func (h *handover) prepare(ctx context.Context) error {
	rules := client.GroupRules{
		HeartbeatMs: uint32(h.o.Heartbeat.Milliseconds()), SessionTimeoutMs: uint32(h.o.Timeout.Milliseconds()),
	}
	if err := h.client.CreateGroup(ctx, handoverGroup, rules); err != nil {
		return err
	}
	if err := h.client.CreateTopic(ctx, handoverTopic, 4); err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := h.start(name); err != nil {
			return err
		}
	}
	return nil
}

func (h *handover) start(name string) error {
	w, err := StartWorker(name, h.o.Worker, WorkerOptions{
		Addr: h.addr, Group: handoverGroup, Topic: handoverTopic, ConsumerID: "worker-" + name,
		Workers: hands, Lease: h.o.Lease, FinishJobs: -1,
	})
	if err != nil {
		return err
	}
	h.workers = append(h.workers, w)
	return nil
}

func (h *handover) killAll() {
	for _, w := range h.workers {
		w.Kill()
	}
}

// feed sends jobs until ctx ends.
func (h *handover) feed(ctx context.Context) {
	producer := h.client.Producer(client.ProducerOptions{})
	every := time.NewTicker(jobEvery)
	defer every.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		body := fmt.Sprintf("job-%d %v", n, jobLength)
		// Once begun it is waited for: a send whose outcome is unknown cannot be counted.
		_, err := producer.Send(context.WithoutCancel(ctx), &client.Message{Topic: handoverTopic, Body: []byte(body)})
		h.mu.Lock()
		if err != nil {
			h.unsent = err
			h.mu.Unlock()
			return
		}
		h.sent++
		h.mu.Unlock()
	}
}

// acts carries out what happens to the three workers.
func (h *handover) acts(ctx context.Context, r *HandoverReport) (err error) {
	a, b, c := h.workers[0], h.workers[1], h.workers[2]
	lost := h.o.Timeout + h.o.Timeout/3
	h.o.Say(fmt.Sprintf("three workers take jobs under leases of %v; a session is lost after %v of silence", h.o.Lease, h.o.Timeout))

	if err := h.busy(ctx, a); err != nil {
		return err
	}
	at := time.Now()
	if err := a.Kill(); err != nil {
		return err
	}
	h.o.Say(fmt.Sprintf("worker a was killed with -9 in the middle of %d jobs", len(a.Working())))
	if r.Killed, err = h.handed(ctx, a, at, lost+time.Second); err != nil {
		return err
	}
	if err := h.start("d"); err != nil {
		return err
	}

	if err := h.busy(ctx, b); err != nil {
		return err
	}
	at = time.Now()
	if err := b.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	h.o.Say("worker b was frozen with SIGSTOP in the middle of its jobs")
	if r.Frozen, err = h.handed(ctx, b, at, lost+time.Second); err != nil {
		return err
	}
	if err := sleep(ctx, time.Until(at.Add(lost+time.Second))); err != nil {
		return err
	}
	mine := b.Working()
	if err := b.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	h.o.Say(fmt.Sprintf("worker b goes on after %.1f s, as if nothing had been", time.Since(at).Seconds()))
	if err := h.awake(ctx, b, mine, r); err != nil {
		return err
	}

	if err := h.busy(ctx, c); err != nil {
		return err
	}
	at = time.Now()
	if err := c.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	h.o.Say("worker c leaves in order, and does not finish its jobs")
	r.Left, err = h.handed(ctx, c, at, leaveBound)
	return err
}

// await waits until is is true, which it asks whenever a worker has something to tell.
func (h *handover) await(ctx context.Context, patience time.Duration, what string, is func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("bench: waited %v in vain until %s", patience, what))
	defer cancel()
	var unsent error
	err := AwaitWorkers(ctx, h.workers, func() bool {
		h.mu.Lock()
		unsent = h.unsent
		h.mu.Unlock()
		return unsent != nil || is()
	})
	return errors.Join(err, unsent)
}

const actPatience = 30 * time.Second

// busy returns when w is in the middle of jobs that will take a while.
func (h *handover) busy(ctx context.Context, w *WorkerChild) error {
	return h.await(ctx, actPatience, "worker "+w.Name+" was busy", func() bool {
		young := 0
		for _, e := range w.Working() {
			if time.Since(e.At) < jobLength/2 {
				young++
			}
		}
		return young >= busyWith
	})
}

// handed waits until every job that w was in the middle of at a moment runs elsewhere.
func (h *handover) handed(ctx context.Context, w *WorkerChild, at time.Time, bound time.Duration) (Handed, error) {
	out := Handed{BoundMs: ms(bound)}
	err := h.await(ctx, bound+actPatience, "the jobs of worker "+w.Name+" ran elsewhere", func() bool {
		jobs := h.heldAt(w, at)
		out.Jobs, out.FirstMs, out.LastMs = len(jobs), 0, 0
		for job := range jobs {
			began, ok := h.elsewhere(w, job, at)
			if !ok {
				return false
			}
			took := ms(began.Sub(at))
			out.LastMs = max(out.LastMs, took)
			if out.FirstMs == 0 || took < out.FirstMs {
				out.FirstMs = took
			}
		}
		return out.Jobs > 0
	})
	return out, err
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// heldAt are the jobs that w had begun by a moment and did not bring to an end.
func (h *handover) heldAt(w *WorkerChild, at time.Time) map[string]bool {
	events, _ := w.Events(0)
	jobs := map[string]bool{}
	for _, e := range events {
		switch {
		case e.Event == EventStart && e.At.Before(at):
			jobs[e.Job] = true
		case e.Event == EventDone:
			delete(jobs, e.Job)
		}
	}
	return jobs
}

// elsewhere is when another worker began a job after a moment.
func (h *handover) elsewhere(w *WorkerChild, job string, at time.Time) (began time.Time, ok bool) {
	for _, other := range h.workers {
		if other == w {
			continue
		}
		events, _ := other.Events(0)
		for _, e := range events {
			if e.Event == EventStart && e.Job == job && e.At.After(at) && (!ok || e.At.Before(began)) {
				began, ok = e.At, true
			}
		}
	}
	return began, ok
}

// awake waits until the frozen worker has heard of each of its jobs that they are not its own any more.
func (h *handover) awake(ctx context.Context, w *WorkerChild, jobs map[string]WorkerEvent, r *HandoverReport) error {
	return h.await(ctx, actPatience, "worker "+w.Name+" heard that it had been lost", func() bool {
		events, _ := w.Events(0)
		heard := 0
		r.Cancelled, r.Refused, r.LateTaken = 0, 0, 0
		for _, e := range events {
			if mine, ok := jobs[e.Job]; !ok || mine.Token != e.Token {
				continue
			}
			switch e.Event {
			case EventCancelled:
				r.Cancelled++
				r.CancelWhy = e.Why
			case EventRefused:
				heard++
				r.Refused++
				r.RefuseWhy = e.Why
			case EventSettled:
				heard++
				r.LateTaken++
			}
		}
		return heard >= len(jobs)
	})
}

// settle waits until the group has nothing left and counts.
func (h *handover) settle(ctx context.Context, r *HandoverReport) error {
	r.Sent = h.sent
	var settled uint64
	for deadline := time.Now().Add(drainPatience); ; {
		group, err := h.client.ShowGroup(ctx, handoverGroup)
		if err != nil {
			return err
		}
		settled = 0
		for i := range group.Cursors {
			settled += group.Cursors[i].Settled
		}
		if settled >= uint64(h.sent) || time.Now().After(deadline) {
			break
		}
		if err := sleep(ctx, workStep); err != nil {
			return err
		}
	}
	r.Lost = h.sent - int(settled)
	for _, w := range h.workers {
		if err := w.Stop(stopPatience); err != nil {
			return err
		}
	}
	times := map[string]int{}
	for _, w := range h.workers {
		events, _ := w.Events(0)
		for _, e := range events {
			if e.Event == EventSettled {
				times[e.Job]++
			}
		}
	}
	for n := range maps.Values(times) {
		r.Twice += max(n-1, 0)
	}
	return nil
}
