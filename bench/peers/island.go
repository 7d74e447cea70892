package main

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// island is a network of its own, with a loopback interface and nothing else: for a server that can't be told at which address to listen.
// It lives as long as the one thread that is in it. Its methods may be called from any goroutine, until close.
type island struct{ calls chan func() }

// newIsland wants root.
func newIsland() (*island, error) {
	i := &island{make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function, since nobody else could use it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- fmt.Errorf("a network of its own: %w", err)
			return
		}
		if err := raiseLoopback(); err != nil {
			made <- err
			return
		}
		made <- nil
		for call := range i.calls {
			call()
		}
	}()
	return i, <-made
}

func raiseLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("loopback interface: %w", err)
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("loopback interface: %w", err)
	}
	return nil
}

// in calls f on the thread that is in the network: sockets and processes that f makes are in it, too.
func (i *island) in(f func()) {
	done := make(chan struct{})
	i.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// dial connects to an address, not a name: that would be looked up by another thread.
func (i *island) dial(ctx context.Context, addr string) (c net.Conn, err error) {
	i.in(func() { c, err = new(net.Dialer).DialContext(ctx, "tcp", addr) })
	return c, err
}

func (i *island) close() { close(i.calls) }
