package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/client"
)

// sessionTimeout is short, and still long enough for a machine that is busy with other tests.
const (
	sessionTimeout = 2 * time.Second
	sessionLost    = sessionTimeout + sessionTimeout/3
)

func workersGroup(t *testing.T, c *client.Client, rules client.GroupRules) {
	t.Helper()
	rules.HeartbeatMs, rules.SessionTimeoutMs = uint32(sessionTimeout.Milliseconds()/5), uint32(sessionTimeout.Milliseconds())
	if err := c.CreateGroup(within(t), "workers", rules); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic(within(t), "jobs", 4); err != nil {
		t.Fatal(err)
	}
}

// startWorkers starts n worker processes that are gone when the test ends.
func startWorkers(t *testing.T, b *bench.Child, name string, n int, o bench.WorkerOptions) []*bench.WorkerChild {
	t.Helper()
	o.Addr, o.Group, o.Topic = b.Addr, "workers", "jobs"
	var list []*bench.WorkerChild
	for i := range n {
		o.ConsumerID = fmt.Sprintf("%s-%d", name, i)
		w, err := bench.StartWorker(o.ConsumerID, bench.WorkerCommand{}, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Kill() })
		list = append(list, w)
	}
	return list
}

// sendJobs sends n jobs of a length.
func sendJobs(t *testing.T, c *client.Client, n int, length time.Duration) {
	t.Helper()
	var jobs []*client.Message
	for i := range n {
		jobs = append(jobs, &client.Message{Body: fmt.Appendf(nil, "job-%d %v", i, length)})
	}
	if _, err := c.Producer(client.ProducerOptions{}).SendBatch(within(t), "jobs", jobs); err != nil {
		t.Fatal(err)
	}
}

// tally counts what the workers told of one kind of event, by job.
func tally(workers []*bench.WorkerChild, event string) map[string]int {
	n := map[string]int{}
	for _, w := range workers {
		events, _ := w.Events(0)
		for _, e := range events {
			if e.Event == event {
				n[e.Job]++
			}
		}
	}
	return n
}

func awaitWorkers(t *testing.T, workers []*bench.WorkerChild, what string, is func() bool) {
	t.Helper()
	if err := bench.AwaitWorkers(within(t), workers, is); err != nil {
		for _, w := range workers {
			events, _ := w.Events(0)
			t.Logf("worker %s: %+v", w.Name, events)
		}
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

func signalAll(t *testing.T, workers []*bench.WorkerChild, s syscall.Signal) {
	t.Helper()
	for _, w := range workers {
		if err := w.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
}

// let passes time that something must last.
func let(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(within(t), d)
	defer cancel()
	<-ctx.Done()
}

// wantSettled wants n messages settled, once each, and nothing left.
func wantSettled(t *testing.T, c *client.Client, workers []*bench.WorkerChild, n int) {
	t.Helper()
	g, err := c.ShowGroup(within(t), "workers")
	if err != nil {
		t.Fatal(err)
	}
	var settled, left uint64
	for _, x := range g.Cursors {
		settled += x.Settled
		left += x.Leased + x.Waiting
	}
	if settled != uint64(n) || left != 0 {
		t.Errorf("%d of %d are settled, %d are left", settled, n, left)
	}
	by := tally(workers, bench.EventSettled)
	if len(by) != n {
		t.Errorf("workers settled %d of %d jobs", len(by), n)
	}
	for job, times := range by {
		if times != 1 {
			t.Errorf("%s was settled %d times", job, times)
		}
	}
}

// A broker that stands still is nobody's fault but its own.
func TestBrokerStoppedForTenSessionTimeouts(t *testing.T) {
	if testing.Short() {
		t.Skip("stops a broker for twenty seconds")
	}
	// Given workers in the middle of jobs, under leases shorter than the stop that will come,
	b := startBroker(t, t.TempDir(), "")
	c := dial(t, b)
	const lease = 4 * time.Second
	workersGroup(t, c, client.GroupRules{InvisibleMs: uint32(lease.Milliseconds()), MaxInvisibleMs: uint32(lease.Milliseconds())})
	workers := startWorkers(t, b, "w", 2, bench.WorkerOptions{Workers: 3})
	const jobs = 6
	sendJobs(t, c, jobs, time.Hour)
	awaitWorkers(t, workers, "all jobs run", func() bool { return len(tally(workers, bench.EventStart)) == jobs })
	before, err := c.ShowGroup(within(t), "workers")
	if err != nil {
		t.Fatal(err)
	}
	// when the broker is stopped for ten session timeouts,
	if err := b.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitWorkers(t, workers, "their own clocks stop the jobs", func() bool { return len(tally(workers, bench.EventCancelled)) == jobs })
	let(t, 10*sessionTimeout)
	if err := b.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// then no session is lost and no lease is over: the late acks are taken, of the first grant of each job,
	awaitWorkers(t, workers, "the acks are taken", func() bool { return len(tally(workers, bench.EventSettled)) == jobs })
	wantSettled(t, c, workers, jobs)
	stats, err := c.Stats(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats {
		if slices.Contains([]string{"sessions_ended", "leases_expired", "messages_redelivered", "acks_late"}, s.Name) && s.Value != 0 {
			t.Errorf("%s: %d", s.Name, s.Value)
		}
	}
	// and the sessions are those from before, and go on.
	after, err := c.ShowGroup(within(t), "workers")
	if err != nil {
		t.Fatal(err)
	}
	for i := range before.Sessions {
		if len(after.Sessions) != len(before.Sessions) || after.Sessions[i].Session != before.Sessions[i].Session {
			t.Fatalf("sessions before %+v, after %+v", before.Sessions, after.Sessions)
		}
	}
	sendJobs(t, c, 1, time.Millisecond)
	awaitWorkers(t, workers, "the next job is done", func() bool { return len(tally(workers, bench.EventDone)) == 1 })
}

// Workers that stand still lose their jobs to others, are told so when they go on, and settle nothing twice; also when the broker
// restarts meanwhile.
func TestFrozenWorkers(t *testing.T) {
	for _, x := range []struct {
		workers int
		restart bool
	}{{1, false}, {50, true}} {
		t.Run(fmt.Sprintf("%d, restart %t", x.workers, x.restart), func(t *testing.T) {
			n := x.workers
			if testing.Short() {
				n = min(n, 6)
			}
			// Given workers in the middle of two jobs each, under leases of an hour,
			b := startBroker(t, t.TempDir(), "")
			c := dial(t, b)
			workersGroup(t, c, client.GroupRules{})
			frozen := startWorkers(t, b, "frozen", n, bench.WorkerOptions{Workers: 2, Lease: time.Hour})
			awaitStat(t, c, "sessions", uint64(n))
			jobs := 2 * n
			sendJobs(t, c, jobs, 2*time.Second)
			awaitWorkers(t, frozen, "all jobs run", func() bool { return len(tally(frozen, bench.EventStart)) == jobs })
			// when all of them are frozen for longer than it takes to lose their sessions,
			signalAll(t, frozen, syscall.SIGSTOP)
			if x.restart {
				b = restart(t, b)
				c = dial(t, b)
			}
			others := startWorkers(t, b, "other", 1+n/10, bench.WorkerOptions{Workers: 30, Lease: time.Hour})
			let(t, sessionLost+time.Second)
			working := map[string]bool{} // what the frozen ones have in their hands
			for _, w := range frozen {
				for job := range w.Working() {
					working[job] = true
				}
			}
			if len(working) == 0 {
				t.Fatal("no worker is frozen in the middle of a job")
			}
			awaitWorkers(t, others, "their jobs run elsewhere", func() bool {
				run := tally(others, bench.EventStart)
				for job := range working {
					if run[job] == 0 {
						return false
					}
				}
				return true
			})
			// and go on,
			signalAll(t, frozen, syscall.SIGCONT)
			// then each of their acks is refused, and they are told why.
			// (One that somebody else has lost meanwhile may be theirs again; once they have settled it, nobody else can.)
			awaitWorkers(t, frozen, "they hear of it", func() bool {
				refused, settled := tally(frozen, bench.EventRefused), tally(frozen, bench.EventSettled)
				for job := range working {
					if refused[job]+settled[job] == 0 {
						return false
					}
				}
				return len(refused) > 0
			})
			for _, w := range frozen {
				events, _ := w.Events(0)
				for _, e := range events {
					if e.Event == bench.EventRefused && !strings.Contains(e.Why, "STALE") && !strings.Contains(e.Why, "ALREADY_SETTLED") {
						t.Errorf("%s: refused because %s", w.Name, e.Why)
					}
				}
			}
			all := append(slices.Clone(frozen), others...)
			awaitWorkers(t, all, "all is settled", func() bool { return len(tally(all, bench.EventSettled)) == jobs })
			wantSettled(t, c, all, jobs)
		})
	}
}
