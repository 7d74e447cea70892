package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// readyMark is what stands before the address in the line that a broker logs when clients can connect.
const readyMark = "listening on "

// keptLines of what a child wrote last go into the error when it ends unasked.
const keptLines = 12

// ChildOptions say how a broker process is started.
type ChildOptions struct {
	Program string   // "": the running executable
	Listen  string   // "": a free port of the loopback interface
	Dir     string   // data directory
	Command []string // of Program; nil: broker
	Args    []string // further flags of the command
	Log     io.Writer
}

// Child is a broker that runs as a child process. Its methods may be called from any goroutine.
type Child struct {
	Addr string // where it listens
	Dir  string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and err is set
	err  error

	mu    sync.Mutex
	lines []string
}

// StartChild starts a broker and returns when clients can connect. If ctx ends first the child is killed. The
// caller ends it with Kill or Stop.
func StartChild(ctx context.Context, o ChildOptions) (*Child, error) {
	if o.Program == "" {
		program, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("bench: the program to start a broker from: %w", err)
		}
		o.Program = program
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Command == nil {
		o.Command = []string{"broker"}
	}
	args := slices.Concat(o.Command, []string{"--listen", o.Listen, "--data", o.Dir}, o.Args)
	c := &Child{Dir: o.Dir, cmd: exec.Command(o.Program, args...), done: make(chan struct{})}
	log, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: broker process: %w", err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: broker process: %w", err)
	}
	ready := make(chan string, 1)
	go c.follow(log, ready, o.Log)
	select {
	case c.Addr = <-ready:
		return c, nil
	case <-c.done:
		return nil, c.endError()
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("bench: the broker is not ready: %w", context.Cause(ctx)), c.Kill())
	}
}

// follow reads what the child logs until it ends.
func (c *Child) follow(log io.Reader, ready chan<- string, to io.Writer) {
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadString('\n')
		if to != nil {
			io.WriteString(to, line)
		}
		if line = strings.TrimSpace(line); line != "" {
			c.keep(line)
		}
		if _, addr, found := strings.Cut(line, readyMark); found {
			if end := strings.IndexAny(addr, "\" "); end >= 0 {
				addr = addr[:end]
			}
			select {
			case ready <- addr:
			default:
			}
		}
		if err != nil {
			break
		}
	}
	c.err = c.cmd.Wait()
	close(c.done)
}

func (c *Child) keep(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == keptLines {
		c.lines = append(c.lines[:0], c.lines[1:]...)
	}
	c.lines = append(c.lines, line)
}

// endError says how a process that has ended came to its end.
func (c *Child) endError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("bench: the broker process ended (%s):\n  %s", c.cmd.ProcessState, strings.Join(c.lines, "\n  "))
}

// PID is the number of the process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// ExitCode is that of the ended process; -1 if a signal ended it.
func (c *Child) ExitCode() int {
	<-c.done
	return c.cmd.ProcessState.ExitCode()
}

// LastLines are the last lines that the process logged.
func (c *Child) LastLines() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// Signal sends the process a signal: SIGSTOP freezes it, SIGCONT lets it go on.
func (c *Child) Signal(s syscall.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("bench: signal %v to broker process %d: %w", s, c.PID(), err)
	}
	return nil
}

// Kill ends the process as kill -9 does, and returns when it is gone. It is no error if it was gone before.
func (c *Child) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("bench: kill of broker process %d: %w", c.PID(), err)
	}
	<-c.done
	return nil
}

// Stop asks the process to stop in order and waits for it. It is an error if it does not end with
// exit code 0, or not within patience: then it is killed.
func (c *Child) Stop(patience time.Duration) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(fmt.Errorf("bench: stop of broker process %d: %w", c.PID(), err), c.Kill())
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-c.done:
	case <-late.C:
		return errors.Join(fmt.Errorf("bench: broker process %d did not stop within %v", c.PID(), patience), c.Kill())
	}
	if c.err != nil {
		return c.endError()
	}
	return nil
}
