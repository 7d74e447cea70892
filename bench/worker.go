package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/leasemq/leasemq/client"
)

// workStep is how often a job of a worker looks at its context.
const workStep = 20 * time.Millisecond

// WorkerOptions say what a worker process does.
type WorkerOptions struct {
	Addr       string
	Group      string
	Topic      string
	ConsumerID string        // "": random
	Workers    int           // jobs at once
	Lease      time.Duration // invisible time; 0: the group's default
	FinishJobs time.Duration // how long jobs may go on once the worker is told to stop; negative: not at all
}

// WorkerEvent is something that happened in a worker process: one line of JSON on its standard output.
type WorkerEvent struct {
	Event   string `json:"event"`
	Job     string `json:"job,omitempty"`
	Token   uint64 `json:"token,string,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Why     string `json:"why,omitempty"`

	At time.Time `json:"-"` // when the line was read
}

// The events of a worker. Each job has one start, then one of done and cancelled, then one of settled and refused; but
// one that is given back because the worker stops ends with cancelled.
const (
	EventStart     = "start"     // a handler began
	EventDone      = "done"      // it came to its end
	EventCancelled = "cancelled" // its context was cancelled before: Why is the cause
	EventSettled   = "settled"   // the broker took the ack, or what was asked for
	EventRefused   = "refused"   // it did not: Why says so
	EventEnded     = "ended"     // the worker stops: Why is the error, if there is one
)

// RunWorker takes jobs until ctx ends and tells out of each what becomes of it. A job's body is its name and, behind a
// space, how long it takes. A job that is cancelled because the worker leaves gives its message back. One that is cancelled
// for any other reason behaves as bad as can be: it takes itself for done, like one that has charged a card by
// then, and leaves it to the broker to tell whether that still counts.
func RunWorker(ctx context.Context, o WorkerOptions, out io.Writer) error {
	c, err := client.Dial(ctx, o.Addr, client.Options{ClientInfo: "leasemq demo worker"})
	if err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	defer c.Close()
	w := &worker{out: json.NewEncoder(out), cancelled: map[*client.Delivery]bool{}}
	consumer := c.Consumer(o.Group, o.Topic, client.ConsumerOptions{
		ConsumerID: o.ConsumerID, Create: true, Workers: o.Workers, Invisible: o.Lease,
		FinishWithin: o.FinishJobs, OnSettled: w.settled,
	})
	err = consumer.Run(ctx, w.work)
	w.say(WorkerEvent{Event: EventEnded, Why: text(err)})
	if err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	return nil
}

type worker struct {
	mu        sync.Mutex
	out       *json.Encoder
	cancelled map[*client.Delivery]bool // left by a job because the worker stops
}

func (w *worker) say(e WorkerEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out.Encode(e) // if nobody reads, nobody misses it
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// work is the handler.
func (w *worker) work(ctx context.Context, d *client.Delivery) error {
	body, err := d.Body()
	if err != nil {
		return err
	}
	name, length, _ := strings.Cut(string(body), " ")
	left, err := time.ParseDuration(length)
	if err != nil {
		return err
	}
	w.say(WorkerEvent{Event: EventStart, Job: name, Token: d.Token, Attempt: d.Attempt})
	step := time.NewTicker(workStep)
	defer step.Stop()
	for ; left > 0; left -= workStep {
		select {
		case <-ctx.Done():
		case <-step.C:
		}
		if ctx.Err() == nil {
			continue
		}
		cause := context.Cause(ctx)
		w.say(WorkerEvent{Event: EventCancelled, Job: name, Token: d.Token, Why: cause.Error()})
		if errors.Is(cause, client.ErrShutdown) {
			w.mu.Lock()
			w.cancelled[d] = true
			w.mu.Unlock()
			return cause
		}
		return nil
	}
	w.say(WorkerEvent{Event: EventDone, Job: name, Token: d.Token})
	return nil
}

// settled is told what the broker said to the outcome of a job.
func (w *worker) settled(d *client.Delivery, err error) {
	w.mu.Lock()
	given := w.cancelled[d]
	delete(w.cancelled, d)
	w.mu.Unlock()
	if given {
		return
	}
	body, _ := d.Body()
	name, _, _ := strings.Cut(string(body), " ")
	e := WorkerEvent{Event: EventSettled, Job: name, Token: d.Token}
	if err != nil {
		e.Event, e.Why = EventRefused, err.Error()
	}
	w.say(e)
}
