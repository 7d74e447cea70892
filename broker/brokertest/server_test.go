package brokertest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, f func(t *testing.T, s *Server, c *client.Client)) {
	synctest.Test(t, func(t *testing.T) {
		e, err := broker.Open(broker.Options{
			Dir: t.TempDir(), IO: mmaplog.IOStaged, Fsync: mmaplog.SyncNever, SegmentBytes: 1 << 20, RingBytes: 1 << 20, Verify: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		s := New(e)
		c, err := client.Dial(t.Context(), "anywhere", client.Options{Dialer: s.Dial})
		if err != nil {
			t.Fatal(err)
		}
		f(t, s, c)
		c.Close()
		s.Close()
		s.Close() // again
		if _, err := s.Dial(t.Context(), ""); err == nil {
			t.Error("connected to a closed server")
		}
		if err := errors.Join(e.Err(), e.Check(), e.Close()); err != nil {
			t.Error(err)
		}
	})
}

func send(t *testing.T, c *client.Client, n int) {
	t.Helper()
	p := c.Producer(client.ProducerOptions{Create: true, Compression: client.CompressNone})
	for range n {
		if _, err := p.Send(t.Context(), &client.Message{Topic: "t", Body: make([]byte, 10_000)}); err != nil {
			t.Fatal(err)
		}
	}
}

// Given a served engine, when a client works with it, then time is the bubble's: a lease of an hour ends after one.
func TestLeasesInFakeTime(t *testing.T) {
	serve(t, func(t *testing.T, s *Server, c *client.Client) {
		send(t, c, 200) // more than the ring holds at once
		session, err := c.Register(t.Context(), "g", client.RegisterOptions{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		batch, err := session.Pop(t.Context(), client.PopOptions{Topic: "t", Max: 256, MaxBytes: 1 << 20, Invisible: time.Hour})
		if err != nil || len(batch.Deliveries) < 90 {
			t.Fatalf("%d messages, %v", len(batch.Deliveries), err)
		}
		if _, err := session.Ack(t.Context(), batch.Deliveries[1:]...); err != nil {
			t.Fatal(err)
		}
		rest, err := session.Pop(t.Context(), client.PopOptions{Topic: "t", Max: 256})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Ack(t.Context(), rest.Deliveries...); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for {
			again, err := session.Pop(t.Context(), client.PopOptions{Topic: "t", Await: 5 * time.Minute, Max: 256})
			if err != nil {
				t.Fatal(err)
			}
			if len(again.Deliveries) == 0 {
				continue
			}
			if took := time.Since(began); took < time.Hour || took > time.Hour+5*time.Second || again.Deliveries[0].ID != batch.Deliveries[0].ID {
				t.Errorf("%s came after %v", again.Deliveries[0].ID, took)
			}
			break
		}
		if err := session.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Given rules, frames get lost or are held up as they say, in their direction, and no others.
func TestDropAndHold(t *testing.T) {
	serve(t, func(t *testing.T, s *Server, c *client.Client) {
		stats := func(within time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_, err := c.Stats(ctx)
			return err
		}
		for _, to := range []Direction{ToBroker, ToClients} {
			s.Drop(to, protocol.OpStats, 2)
			for range 2 {
				if err := stats(time.Second); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("lost: %v", err)
				}
			}
			if err := stats(time.Second); err != nil {
				t.Error(err)
			}
			s.Drop(to, protocol.OpStats, -1)
			for range 5 {
				if err := stats(time.Second); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("lost: %v", err)
				}
			}
			s.Pass(to, protocol.OpStats)
			if err := stats(time.Second); err != nil {
				t.Error(err)
			}
			s.Hold(to, protocol.OpStats)
			began, done := time.Now(), make(chan error, 1)
			go func() { done <- stats(time.Minute) }()
			time.Sleep(10 * time.Second)
			if _, err := c.ListTopics(t.Context()); err != nil { // overtakes it
				t.Error(err)
			}
			s.Pass(to, protocol.OpStats)
			if err := <-done; err != nil || time.Since(began) != 10*time.Second {
				t.Errorf("held up: %v after %v", err, time.Since(began))
			}
		}
	})
}

// Given open calls, when all connections are cut, then clients come back, and what may be repeated is.
func TestCutAll(t *testing.T) {
	serve(t, func(t *testing.T, s *Server, c *client.Client) {
		s.Drop(ToClients, protocol.OpStats, 1)
		done := make(chan error, 1)
		go func() { _, err := c.Stats(t.Context()); done <- err }()
		synctest.Wait()
		s.CutAll()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Given a connection that does not begin with HELLO, then it is told so and ended.
func TestHelloIsRequired(t *testing.T) {
	serve(t, func(t *testing.T, s *Server, _ *client.Client) {
		nc, err := s.Dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		b := protocol.BeginFrame(nil, protocol.Header{Opcode: protocol.OpStats, RequestID: 1})
		protocol.EndFrame(b, 0)
		if _, err := nc.Write(b); err != nil {
			t.Fatal(err)
		}
		f, err := readFrame(nc)
		if err != nil || f.header.Opcode != protocol.OpGoodbye || f.header.Status != protocol.HelloRequired {
			t.Errorf("got %+v, %v", f.header, err)
		}
		if _, err := readFrame(nc); err == nil {
			t.Error("the connection goes on")
		}
	})
}
