package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/netserver"
)

// held is a delivery and whose it is.
type held struct {
	*client.Delivery
	session *client.Session
}

// popOne takes one message; with invisible 0 for as long as the group says.
func popOne(t *testing.T, c *client.Client, group, topic string, invisible time.Duration) (*client.Session, held) {
	t.Helper()
	s, err := c.Register(within(t), group, client.RegisterOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	return s, popAgain(t, s, topic, invisible)
}

func popAgain(t *testing.T, s *client.Session, topic string, invisible time.Duration) held {
	t.Helper()
	batch, err := s.Pop(within(t), client.PopOptions{Topic: topic, Invisible: invisible, Await: patience / 2})
	if err != nil || len(batch.Deliveries) != 1 {
		t.Fatalf("pop gave %v, %v", batch, err)
	}
	return held{batch.Deliveries[0], s}
}

func TestLeasesSurviveKill(t *testing.T) {
	const lease = 10 * time.Minute
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "t", "--queues", "1")
	at(t, b, "acked\nheld\nshort\n", "send", "--topic", "t")
	c := dial(t, b)
	s, acked := popOne(t, c, "g", "t", lease)
	if _, err := s.Ack(within(t), acked.Delivery); err != nil {
		t.Fatal(err)
	}
	kept := popAgain(t, s, "t", lease)
	short := popAgain(t, s, "t", 500*time.Millisecond)
	renew := client.Change{Receipt: kept.Receipt, Ordinal: 1, Cause: client.CauseRenew, Invisible: 2 * lease}
	if _, err := s.ChangeInvisible(within(t), []client.Change{renew}); err != nil {
		t.Fatal(err)
	}
	// Any gated call has its answer only when the grants above are committed.
	if _, err := c.ListTopics(within(t)); err != nil {
		t.Fatal(err)
	}
	b = restart(t, b)

	// The same session, over a new connection: the short lease ends by time, the long one keeps the rest of its own.
	again := popAgain(t, s, "t", lease)
	if body, _ := again.Body(); string(body) != "short" || again.Attempt != 2 || again.Token <= short.Token {
		t.Errorf("after the restart came %q, attempt %d, token %d after %d", body, again.Attempt, again.Token, short.Token)
	}
	results, err := s.ChangeInvisible(within(t), []client.Change{renew}) // done already: the same answer again
	if err != nil || results[0].Remaining > 2*lease || results[0].Remaining < lease {
		t.Errorf("the renewed lease has %v left (%v)", results[0].Remaining, err)
	}
	if _, err := s.Ack(within(t), kept.Delivery); err != nil {
		t.Errorf("the holder cannot ack after the restart: %v", err)
	}
	if _, err := s.Ack(within(t), again.Delivery); err != nil {
		t.Error(err)
	}
	if left := at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty"); left.stdout != "" {
		t.Errorf("acked messages came back: %q", left.stdout)
	}
}

func TestSecondBrokerOnADirectory(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	_, err := bench.StartChild(within(t), bench.ChildOptions{Dir: b.Dir})
	if err == nil || !strings.Contains(err.Error(), "exit status 1") ||
		!strings.Contains(err.Error(), fmt.Sprintf("in use by another leasemq broker (pid %d)", b.PID())) {
		t.Errorf("a second broker says: %v", err)
	}
	at(t, b, "x\n", "send", "--topic", "t") // the first one is well
}

func TestPortInUse(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	dir := t.TempDir()
	_, err := bench.StartChild(within(t), bench.ChildOptions{Dir: dir, Listen: b.Addr})
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), b.Addr+" is in use by another process") {
		t.Errorf("a broker on a port in use says: %v", err)
	}
	startBroker(t, dir, "") // its directory is well
}

func TestOrderlyStop(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "x\n", "send", "--topic", "t")
	c := dial(t, b)
	s, err := c.Register(within(t), "waiting", client.RegisterOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	parked := make(chan struct{})
	go func() {
		// The first pop makes the subscription, so that the second one has nothing to wait for but messages.
		_, err := s.Pop(within(t), client.PopOptions{Topic: "t", Start: client.StartLatest})
		close(parked)
		if err == nil {
			_, err = s.Pop(within(t), client.PopOptions{Topic: "t", Await: patience})
		}
		waits <- err
	}()
	<-parked
	awaitStat(t, dial(t, b), "pops_parked", 1)
	if err := b.Stop(patience); err != nil {
		t.Fatal(err)
	}
	if code := b.ExitCode(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if err := <-waits; !errors.Is(err, client.ErrDraining) && !errors.Is(err, client.ErrConnectionLost) {
		t.Errorf("the waiting pop ended with %v", err)
	}
	b = startBroker(t, b.Dir, b.Addr)
	if log := b.LastLines(); !strings.Contains(log, "clean_stop=true") {
		t.Errorf("the next start does not know of a clean stop:\n%s", log)
	}
	b = restart(t, b)
	if log := b.LastLines(); !strings.Contains(log, "clean_stop=false") {
		t.Errorf("the start after a kill takes it for a clean stop:\n%s", log)
	}
}

// awaitStat asks the broker until a figure has a value.
func awaitStat(t *testing.T, c *client.Client, name string, want uint64) {
	t.Helper()
	for ctx := within(t); ; {
		stats, err := c.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(stats, func(s client.Stat) bool { return s.Name == name && s.Value == want }) {
			return
		}
	}
}

// brokenStore is an engine that has failed, idleFront a network with a loop that hangs.
type brokenStore struct{ failed chan struct{} }

func (s brokenStore) Failed() <-chan struct{} { return s.failed }
func (s brokenStore) Close() error            { panic("a store that failed must not be written to") }
func (s brokenStore) Err() error {
	return fmt.Errorf("%w: fdatasync: input/output error", broker.ErrStoreFailed)
}

type hungFront struct{ done chan struct{} }

func (f hungFront) Shutdown(context.Context) error { select {} }
func (f hungFront) Done() <-chan struct{}          { return f.done }
func (f hungFront) Err() error                     { return netserver.ErrEnded }

func TestFailedStoreEndsTheBroker(t *testing.T) {
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := brokenStore{make(chan struct{})}
	close(s.failed)
	if err := serve(context.Background(), s, hungFront{}, logger); exitCode(err) != exitStoreFailed {
		t.Errorf("serve returned %v", err)
	}
	stopping, stop := context.WithCancel(context.Background())
	stop()
	if err := serve(stopping, s, hungFront{}, logger); exitCode(err) != exitStoreFailed {
		t.Errorf("while stopping, serve returned %v", err)
	}
}

func TestNetworkThatEndsByItselfEndsTheBroker(t *testing.T) {
	f := hungFront{make(chan struct{})}
	close(f.done)
	if err := serve(context.Background(), brokenStore{}, f, slog.Default()); exitCode(err) != exitStoreFailed {
		t.Errorf("serve returned %v", err)
	}
}

// freeAddr is an address of the loopback interface at which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
