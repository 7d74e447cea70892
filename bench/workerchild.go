package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// WorkerCommand says how a worker process is started: a program that understands the arguments of
// `leasemq demo-worker`.
type WorkerCommand struct {
	Program string   // "": the running executable
	Args    []string // before those that WorkerOptions become
	Log     io.Writer
}

// WorkerChild is a worker that runs as a child process. Its methods may be called from any goroutine.
type WorkerChild struct {
	Name string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and everything that it wrote was read

	mu     sync.Mutex
	events []WorkerEvent
	watch  chan struct{} // closed with the next event
}

// StartWorker starts a worker process. The caller ends it with Kill or Stop.
func StartWorker(name string, command WorkerCommand, o WorkerOptions) (*WorkerChild, error) {
	if command.Program == "" {
		program, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("bench: the program to start a worker from: %w", err)
		}
		command.Program = program
	}
	args := append(append([]string(nil), command.Args...), "demo-worker", "--addr", o.Addr, "--group", o.Group, "--topic", o.Topic,
		"--consumer", o.ConsumerID, "--workers", strconv.Itoa(o.Workers), "--lease", o.Lease.String(), "--finish", o.FinishJobs.String())
	w := &WorkerChild{Name: name, cmd: exec.Command(command.Program, args...), done: make(chan struct{}), watch: make(chan struct{})}
	w.cmd.Stderr = command.Log
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: worker process: %w", err)
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: worker process: %w", err)
	}
	go w.follow(out)
	return w, nil
}

func (w *WorkerChild) follow(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var e WorkerEvent
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			e.At = time.Now()
			w.note(e)
		}
	}
	w.cmd.Wait()
	close(w.done)
	w.note(WorkerEvent{})
}

// note keeps an event and wakes who watches. One without a name only wakes.
func (w *WorkerChild) note(e WorkerEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Event != "" {
		w.events = append(w.events, e)
	}
	close(w.watch)
	w.watch = make(chan struct{})
}

// Events are those from the nth on, and a channel that is closed when there are more, or when the process has ended.
func (w *WorkerChild) Events(n int) ([]WorkerEvent, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]WorkerEvent(nil), w.events[min(n, len(w.events)):]...), w.watch
}

// Working are the jobs that have started and neither come to their end nor been cancelled.
func (w *WorkerChild) Working() map[string]WorkerEvent {
	events, _ := w.Events(0)
	jobs := map[string]WorkerEvent{}
	for _, e := range events {
		switch e.Event {
		case EventStart:
			jobs[e.Job] = e
		case EventDone, EventCancelled:
			delete(jobs, e.Job)
		}
	}
	return jobs
}

// PID is the number of the process.
func (w *WorkerChild) PID() int { return w.cmd.Process.Pid }

// Signal sends the process a signal: SIGSTOP freezes it, SIGCONT lets it go on, SIGTERM asks it to leave.
func (w *WorkerChild) Signal(s syscall.Signal) error {
	if err := w.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("bench: signal %v to worker process %d: %w", s, w.PID(), err)
	}
	return nil
}

// Kill ends the process as kill -9 does, and returns when it is gone.
func (w *WorkerChild) Kill() error {
	err := w.Signal(syscall.SIGKILL)
	<-w.done
	return err
}

// Stop asks the process to leave and waits for it; if it has not ended within patience it is killed, which is an error.
func (w *WorkerChild) Stop(patience time.Duration) error {
	if err := w.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-w.done:
		return nil
	case <-late.C:
		return errors.Join(fmt.Errorf("bench: worker process %d did not stop within %v", w.PID(), patience), w.Kill())
	}
}

// AwaitWorkers waits until is is true, which it asks whenever one of the workers has something to tell, or has
// ended.
func AwaitWorkers(ctx context.Context, workers []*WorkerChild, is func() bool) error {
	for {
		// The channels are taken before the look, so that nothing that comes after it is missed.
		news, stop := anyNews(workers)
		if is() {
			stop()
			return nil
		}
		select {
		case <-news:
			stop()
		case <-ctx.Done():
			stop()
			return context.Cause(ctx)
		}
	}
}

// anyNews is closed when one of the workers has news.
func anyNews(workers []*WorkerChild) (news <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	for _, w := range workers {
		_, watch := w.Events(0)
		go func() {
			select {
			case <-watch:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx.Done(), cancel
}
