package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	readyPatience = 60 * time.Second
	stopPatience  = 20 * time.Second
)

// process is a server that this program has started, in a process group of its own, so that what it starts goes with it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	mu  sync.Mutex
	log bytes.Buffer // the end of what it wrote
}

// Write keeps what the server writes, for the error when it fails.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log.Len() > 64<<10 {
		p.log.Reset()
	}
	return p.log.Write(b)
}

// launch starts a server and returns when something listens at addr.
func launch(ctx context.Context, addr string, env []string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	late := time.NewTimer(readyPatience)
	defer late.Stop()
	for {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			return p, nil
		}
		select {
		case <-p.done:
			return nil, p.failed("it ended at once")
		case <-late.C:
			return nil, errors.Join(p.failed("it does not listen"), p.stop())
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), p.stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *process) failed(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%s: %s:\n%s", p.cmd.Path, what, p.log.String())
}

// stop ends the server, and by force if it takes too long.
func (p *process) stop() error {
	group := -p.cmd.Process.Pid
	syscall.Kill(group, syscall.SIGTERM)
	late := time.NewTimer(stopPatience)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
	}
	syscall.Kill(group, syscall.SIGKILL)
	<-p.done
	return nil
}

// freeAddr is an address of the loopback interface at which nobody listens now.
func freeAddr() (addr string, port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", 0, err
	}
	defer l.Close()
	return l.Addr().String(), l.Addr().(*net.TCPAddr).Port, nil
}

// installed says how a program is got that is not on the PATH.
func installed(program, debianPackage string) (missing string) {
	if _, err := exec.LookPath(program); err != nil {
		return program + " is not installed (apt-get install " + debianPackage + ")"
	}
	return ""
}

// firstLine is the first line that a command prints.
func firstLine(name string, args ...string) string {
	out, _ := exec.Command(name, args...).CombinedOutput()
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return string(bytes.TrimSpace(line))
}
