package netserver

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasemq/leasemq/protocol"
)

func TestConnectionsOverTheCapAreToldAndClosed(t *testing.T) {
	fx := start(t, Options{MaxConnections: 2}, &fake{})
	a, b := fx.greeted(), fx.greeted()
	third := fx.connect()
	third.send(request(protocol.OpHello, 1, nil)) // unread input must not cost it the GOODBYE
	third.expectGoodbye(protocol.TooManyConnections)
	_ = third.Close()
	for _, c := range []*client{a, b} {
		c.send(request(protocol.OpAck, 2, nil))
		c.expect(2, nil)
	}
	_ = a.Close()
	waitFor(t, "the first is gone", func() bool { return fx.Stats().Connections == 1 })
	fx.greeted()
	if st := fx.Stats(); st.Accepted != 3 || st.Refused != 1 || fx.fake.opens.Load() != 3 {
		t.Errorf("counted %+v, the handler saw %d", st, fx.fake.opens.Load())
	}
}

// Each refused connection that lingers holds a descriptor; only so many may.
func TestAFloodOfRefusedConnectionsDoesNotLinger(t *testing.T) {
	fx := start(t, Options{MaxConnections: 1}, &fake{})
	fx.greeted()
	var flood []*client
	for range 2 * maxLingeringRefusals {
		flood = append(flood, fx.connect()) // none of them closes
	}
	waitFor(t, "all were refused", func() bool { return fx.Stats().Refused == uint64(len(flood)) })
	fx.onLoop(func(*loop) {})
	if n := fx.Stats().Connections; n > 1+maxLingeringRefusals {
		t.Errorf("%d connections are open", n)
	}
	for _, c := range flood {
		c.expectGoodbye(protocol.TooManyConnections)
		_ = c.Close()
	}
	waitFor(t, "they are gone", func() bool { return fx.Stats().Connections == 1 })
	if n := fx.lingeringRefusals.Load(); n != 0 {
		t.Errorf("%d are still counted as lingering", n)
	}
}

// A burst of connections is spread over the loops, and each loop has a Handler of its own.
func TestConnectionsAreSpreadOverTheLoops(t *testing.T) {
	made := make(chan *fake, 4)
	o := Options{Loops: 2, NewHandler: func(func()) Handler {
		f := newFake(&fake{})
		made <- f
		return f
	}}
	fx := start(t, o, &fake{})
	for range 10 {
		fx.greeted()
	}
	if len(made) != 2 {
		t.Fatalf("%d handlers, want 2", len(made))
	}
	for range 2 {
		if n := (<-made).opens.Load(); n != 5 {
			t.Errorf("a loop has %d of 10 connections", n)
		}
	}
}

func TestTheCapFollowsTheFileLimit(t *testing.T) {
	for limit, want := range map[uint64]int{
		1: 1, 1024: 512, 2047: 1023, 2048: 1024, 4096: 3072, 11_024: 10_000, 1 << 20: 10_000, 1<<64 - 1: 10_000,
	} {
		if got := connectionCap(limit); got != want {
			t.Errorf("with %d files: %d connections, want %d", limit, got, want)
		}
	}
}

func TestTheFileLimitIsRaised(t *testing.T) {
	var l unix.Rlimit
	if got := raiseFileLimit(); unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || got != uint64(l.Cur) {
		t.Errorf("raised to %d, in force is %d", got, l.Cur)
	}
}

// With keep-alive set on the listener gnet reports "bad file descriptor" here.
func TestAPortInUseIsAClearError(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	addr := fx.Addr().String()
	_, err := Listen(Options{Listen: addr, NewHandler: func(func()) Handler { return &fake{} }})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen on a port in use: %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("the error does not say what is wrong: %v", err)
	}
	fx.greeted() // the first is unharmed
}

func TestOptionsThatCannotBe(t *testing.T) {
	newHandler := func(func()) Handler { return &fake{} }
	for name, o := range map[string]Options{
		"no handler":      {Listen: "127.0.0.1:0"},
		"no port":         {Listen: "127.0.0.1", NewHandler: newHandler},
		"unknown host":    {Listen: "no.such.host.invalid:0", NewHandler: newHandler},
		"somebody else's": {Listen: "192.0.2.1:0", NewHandler: newHandler},
		"hard cap":        {Listen: "127.0.0.1:0", NewHandler: newHandler, HighWater: 2, HardCap: 1},
	} {
		if s, err := Listen(o); err == nil {
			_ = s.Close()
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
	}
}

// EMFILE in accept ends gnet's engine, and Run returns nil. The server must not be silent about it. The limit on
// files is the process's, so this runs in a child.
func TestAnEngineThatEndsByItselfIsReported(t *testing.T) {
	if os.Getenv("NETSERVER_TEST_EMFILE") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "NETSERVER_TEST_EMFILE=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	fx := start(t, Options{MaxConnections: 1000}, &fake{})
	fx.greeted()
	// The clients' ends are made before the limit falls, so that what runs out is the server's side.
	var ends []int
	for range 60 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Skip(err)
		}
		ends = append(ends, fd)
	}
	limit := uint64(ends[len(ends)-1] + 10)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Skip(err)
	}
	for _, fd := range ends {
		sa := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: portOf(fx)}
		_ = unix.Connect(fd, sa)
	}
	select {
	case <-fx.Done():
	case <-time.After(patience):
		t.Fatal("not done")
	}
	if err := fx.Err(); !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("Err is %v", err)
	}
	if fx.fake.closes.Load() == 0 {
		t.Error("the handler was not told of the closes")
	}
}

func portOf(fx *fixture) int { return fx.Addr().(*net.TCPAddr).Port }
