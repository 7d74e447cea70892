package client

import (
	"bytes"
	"context"
	"errors"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func TestRegister(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{ClientInfo: "test 1"})
		register := func(o RegisterOptions) func() *Session {
			return going(func() *Session {
				s, err := c.Register(t.Context(), "g", o)
				ok(t, err)
				return s
			})
		}
		wait := register(RegisterOptions{Create: true})
		var first, second protocol.RegisterRequest
		r := p.expect(protocol.OpRegister, &first)
		if r.Flags != protocol.FlagCreate || first.Group != "g" || len(first.ConsumerID) < 16 || first.ClientInfo != "test 1" {
			t.Errorf("got %+v, flags %d", first, r.Flags)
		}
		// The retry of a lost answer has the same nonce, so that it gets the same session.
		p.close()
		p = b.accept()
		r = p.expect(protocol.OpRegister, &second)
		if second.Nonce != first.Nonce || second.ConsumerID != first.ConsumerID || first.Nonce == [16]byte{} {
			t.Errorf("got %+v, then %+v", first, second)
		}
		p.answer(r, protocol.OK, registered(77))
		s := wait()
		if s.ID() != 77 || s.Generation() != 4 || s.Group() != "g" || s.ConsumerID() != first.ConsumerID ||
			s.Invisible() != 30*time.Second || s.Timeout() != 10*time.Second || s.GroupVersion() != 9 {
			t.Errorf("got %+v", s)
		}
		wait = register(RegisterOptions{ConsumerID: "me", ClientInfo: "mine"})
		r = p.expect(protocol.OpRegister, &second)
		if second.Nonce == first.Nonce || second.ConsumerID != "me" || second.ClientInfo != "mine" || r.Flags != 0 {
			t.Errorf("got %+v", second)
		}
		p.answer(r, protocol.OK, registered(78))
		wait()
		_, err := c.Register(t.Context(), "", RegisterOptions{})
		wantErr(t, err, ErrInvalid)
		_, err = c.Register(t.Context(), "g", RegisterOptions{ConsumerID: string(body(256))})
		wantErr(t, err, ErrInvalid)
	})
}

func TestRegisterRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		wait := going(func() error { _, err := c.Register(t.Context(), "g", RegisterOptions{}); return err })
		p.refuse(p.expect(protocol.OpRegister, nil), protocol.GroupNotFound, "g")
		wantErr(t, wait(), ErrGroupNotFound)
	})
}

// A session that nobody waits for any more is unregistered.
func TestAbandonedRegister(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		wait := going(func() error { _, err := c.Register(ctx, "g", RegisterOptions{}); return err })
		r := p.expect(protocol.OpRegister, nil)
		cancel()
		wantErr(t, wait(), context.Canceled)
		p.answer(r, protocol.OK, registered(81))
		var m protocol.UnregisterRequest
		p.answer(p.expect(protocol.OpUnregister, &m), protocol.OK, nil)
		if m.Session != 81 {
			t.Errorf("session %d", m.Session)
		}
		p.quiet()
	})
}

func TestHeartbeats(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		if got, want := time.Until(s.AliveUntil()), 9*time.Second; got != want {
			t.Errorf("alive for %v, want %v", got, want)
		}
		synctest.Wait()
		var profile strings.Builder
		pprof.Lookup("goroutine").WriteTo(&profile, 1)
		for _, label := range []string{`"consumer":"me"`, `"group":"g"`, `"session":"77"`} {
			if !strings.Contains(profile.String(), label) {
				t.Errorf("no goroutine has the label %s", label)
			}
		}
		last := time.Now()
		for i := range 5 {
			var m protocol.HeartbeatRequest
			r := p.expect(protocol.OpHeartbeat, &m)
			if since := time.Since(last); since != 3*time.Second {
				t.Errorf("heartbeat %d after %v", i, since)
			}
			if m.Session != 77 || m.GroupVersion != 9+uint64(i) || m.Held != 0 || m.ProgressMs != 0 || m.Timestamp != uint64(time.Now().UnixMilli()) {
				t.Errorf("got %+v", m)
			}
			last = time.Now()
			time.Sleep(500 * time.Millisecond) // the answer takes its time, the interval stays
			p.answer(r, protocol.OK, &protocol.HeartbeatAnswer{GroupVersion: m.GroupVersion + 1, LeasesLost: 2, Timestamp: m.Timestamp})
			synctest.Wait()
			if got := time.Until(s.AliveUntil()); got != 8500*time.Millisecond {
				t.Errorf("alive for %v", got)
			}
		}
		if s.LeasesLost() != 2 || s.Draining() {
			t.Errorf("%d leases lost, draining %v", s.LeasesLost(), s.Draining())
		}
		p.answer(p.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{Draining: true})
		synctest.Wait()
		if !s.Draining() {
			t.Error("not draining")
		}
	})
}

// However late an answer is, the next heartbeat is 50 ms away, and they do not pile up.
func TestHeartbeatsAfterALateAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		p.session(c)
		r := p.expect(protocol.OpHeartbeat, nil)
		// Something else is answered all the while, so that the connection is not given up.
		for range 10 {
			time.Sleep(time.Second)
			wait := going(func() error { _, err := c.Stats(t.Context()); return err })
			p.answer(p.expect(protocol.OpStats, nil), protocol.OK, &protocol.StatsAnswer{})
			ok(t, wait())
		}
		p.quiet()
		p.answer(r, protocol.OK, &protocol.HeartbeatAnswer{})
		answered := time.Now()
		p.answer(p.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
		if got := time.Since(answered); got != 50*time.Millisecond {
			t.Errorf("the next one after %v", got)
		}
		p.expect(protocol.OpHeartbeat, nil)
		if got := time.Since(answered); got != 3050*time.Millisecond {
			t.Errorf("the one after it at %v", got)
		}
	})
}

func TestHeartbeatIntervalHasAFloor(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		wait := going(func() error { _, err := c.Register(t.Context(), "g", RegisterOptions{}); return err })
		p.answer(p.expect(protocol.OpRegister, nil), protocol.OK, &protocol.RegisterAnswer{Session: 1})
		ok(t, wait())
		began := time.Now()
		for range 10 {
			p.answer(p.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
		}
		if got := time.Since(began); got != 500*time.Millisecond {
			t.Errorf("10 heartbeats in %v", got)
		}
	})
}

// A heartbeat whose connection was lost goes out again on the next one, and its time counts from there.
func TestHeartbeatIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		p.expect(protocol.OpHeartbeat, nil)
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		time.Sleep(time.Second)
		b.set(func() { b.refuse = nil })
		next := b.accept()
		r := next.expect(protocol.OpHeartbeat, nil)
		sentAt := time.Now()
		time.Sleep(200 * time.Millisecond)
		next.answer(r, protocol.OK, &protocol.HeartbeatAnswer{})
		synctest.Wait()
		if got := s.AliveUntil().Sub(sentAt); got != 9*time.Second {
			t.Errorf("alive for %v from its transmission", got)
		}
		if s.Err() != nil {
			t.Errorf("lost: %v", s.Err())
		}
	})
}

// A connection that swallows heartbeats is given up while the session can still be saved.
func TestHeartbeatOnASilentConnection(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		p.answer(p.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
		synctest.Wait()
		alive := s.AliveUntil()
		p.expect(protocol.OpHeartbeat, nil)
		// What else is under way does not change it.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		waits := []func() error{
			going(func() error { _, err := s.Pop(ctx, PopOptions{Topic: "t", Await: time.Minute}); return err }),
			going(func() error {
				_, err := c.Producer(ProducerOptions{NotIdempotent: true}).Send(ctx, &Message{Topic: "t"})
				return err
			}),
		}
		next := b.accept()
		next.answer(next.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
		if left := time.Until(alive); left < time.Second {
			t.Errorf("saved %v before its end", left)
		}
		wantErr(t, waits[1](), ErrConnectionLost)
		next.answer(next.expect(protocol.OpPop, nil), protocol.Empty, &protocol.PopAnswer{}) // repeated
		ok(t, waits[0]())
		if s.Err() != nil {
			t.Error(s.Err())
		}
	})
}

func TestSessionLost(t *testing.T) {
	for _, x := range []struct {
		name string
		tell func(p *peer, s *Session)
		want error
	}{
		{"heartbeat: not found", func(p *peer, s *Session) {
			p.refuse(p.expect(protocol.OpHeartbeat, nil), protocol.SessionNotFound, "expired")
		}, ErrSessionNotFound},
		{"heartbeat: fenced", func(p *peer, s *Session) {
			p.refuse(p.expect(protocol.OpHeartbeat, nil), protocol.SessionFenced, "")
		}, ErrSessionFenced},
		{"push: expired", func(p *peer, s *Session) {
			p.push(protocol.OpSessionEnded, protocol.OK, &protocol.SessionEnded{Session: 77, Reason: protocol.ReasonSessionExpired})
		}, ErrSessionNotFound},
		{"push: fenced", func(p *peer, s *Session) {
			p.push(protocol.OpSessionEnded, protocol.OK, &protocol.SessionEnded{Session: 78, Reason: protocol.ReasonSessionExpired})
			p.push(protocol.OpSessionEnded, protocol.OK, &protocol.SessionEnded{Session: 77, Reason: protocol.ReasonSessionFenced})
		}, ErrSessionFenced},
		{"pop", func(p *peer, s *Session) {
			wait := going(func() error { _, err := s.Pop(p.t.Context(), PopOptions{Topic: "t"}); return err })
			p.refuse(p.expect(protocol.OpPop, nil), protocol.SessionFenced, "")
			wantErr(p.t, wait(), ErrSessionFenced)
		}, ErrSessionFenced},
		{"ack", func(p *peer, s *Session) {
			wait := going(func() error {
				_, err := s.AckReceipts(p.t.Context(), []AckEntry{{Receipt: []byte{1}}})
				return err
			})
			p.refuse(p.expect(protocol.OpAck, nil), protocol.SessionNotFound, "")
			wantErr(p.t, wait(), ErrSessionNotFound)
		}, ErrSessionNotFound},
	} {
		t.Run(x.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *fakeBroker) {
				c, p := b.client(Options{})
				s := p.session(c)
				select {
				case <-s.Lost():
					t.Fatal("lost already")
				default:
				}
				x.tell(p, s)
				<-s.Lost()
				wantErr(t, s.Err(), x.want)
				// Nothing more goes out for it.
				_, err := s.Pop(t.Context(), PopOptions{Topic: "t"})
				wantErr(t, err, x.want)
				_, err = s.AckReceipts(t.Context(), []AckEntry{{Receipt: []byte{1}}})
				wantErr(t, err, x.want)
				_, err = s.ChangeInvisible(t.Context(), []Change{{Receipt: []byte{1}, Ordinal: 1}})
				wantErr(t, err, x.want)
				ok(t, s.Close(t.Context()))
				time.Sleep(time.Minute)
				p.quiet()
			})
		})
	}
}

// Other refusals of a heartbeat are no verdict on the session.
func TestHeartbeatRefusedOtherwise(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		p.refuse(p.expect(protocol.OpHeartbeat, nil), protocol.StoreFailed, "")
		p.answer(p.expect(protocol.OpHeartbeat, nil), protocol.OK, &protocol.HeartbeatAnswer{})
		ok(t, s.Err())
	})
}

func TestSessionClose(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		wait := going(func() error { return s.Close(t.Context()) })
		p.expect(protocol.OpUnregister, nil)
		// Lost, and repeated: the broker knows the session no more.
		p.close()
		p = b.accept()
		p.push(protocol.OpSessionEnded, protocol.OK, &protocol.SessionEnded{Session: 77, Reason: protocol.ReasonSessionLeft})
		var m protocol.UnregisterRequest
		p.refuse(p.expect(protocol.OpUnregister, &m), protocol.SessionNotFound, "")
		ok(t, wait())
		if m.Session != 77 {
			t.Errorf("session %d", m.Session)
		}
		<-s.Lost()
		wantErr(t, s.Err(), ErrClosed)
		time.Sleep(time.Minute)
		p.quiet()

		// A broker that cannot be told does not keep the heartbeats going.
		s = p.session(c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, s.Close(ctx), context.DeadlineExceeded)
		p.expect(protocol.OpUnregister, nil)
		wantErr(t, s.Err(), ErrClosed)
		if n := len(c.sessions); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// A heartbeat tells what is held, and since when nothing happened to it.
func TestHeartbeatTellsWhatIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		batch := p.popped(s, messageRecord(t, 0, codec.Message{}), messageRecord(t, 1, codec.Message{}), messageRecord(t, 2, codec.Message{}))
		var m protocol.HeartbeatRequest
		vitals := func(held, progressMs uint32) {
			t.Helper()
			p.answer(p.expect(protocol.OpHeartbeat, &m), protocol.OK, &protocol.HeartbeatAnswer{})
			if m.Held != held || m.ProgressMs != progressMs {
				t.Errorf("%d held, progress %d ms ago; want %d, %d", m.Held, m.ProgressMs, held, progressMs)
			}
		}
		vitals(3, 3000)
		time.Sleep(time.Second)
		wait := going(func() error { _, err := s.Ack(t.Context(), batch.Deliveries[0], batch.Deliveries[1]); return err })
		p.settled(p.expect(protocol.OpAck, nil), protocol.SettleResult{}, protocol.SettleResult{Status: protocol.Stale, Reason: protocol.ReasonRegranted})
		wantErr(t, wait(), ErrStale)
		vitals(1, 2000)
		wait = going(func() error { return s.Release(t.Context(), batch.Deliveries[2], 0) })
		p.settled(p.expect(protocol.OpChangeInvisible, nil), protocol.SettleResult{})
		ok(t, wait())
		vitals(0, 0)
	})
}

func TestDrainPush(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		p.push(protocol.OpDrain, protocol.OK, nil)
		p.push(protocol.Opcode(0x8e), protocol.OK, nil) // of a newer broker
		synctest.Wait()
		if !c.Draining() {
			t.Error("not draining")
		}
		p.close()
		b.accept()
		synctest.Wait()
		if c.Draining() {
			t.Error("draining on a new connection")
		}
	})
}

func TestReclaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		s := p.session(c)
		held := p.popped(s, messageRecord(t, 1, codec.Message{Body: []byte("one")}), messageRecord(t, 2, codec.Message{})).Deliveries
		wait := going(func() *Session {
			again, err := c.Register(t.Context(), "g", RegisterOptions{
				After: s, Reclaim: [][]byte{held[0].Receipt, held[1].Receipt}, ReclaimFor: time.Minute,
			})
			ok(t, err)
			return again
		})
		var m protocol.RegisterRequest
		r := p.expect(protocol.OpRegister, &m)
		if m.Previous != 77 || m.ConsumerID != "me" || m.ReclaimMs != 60_000 || len(m.Receipts) != 2 || !bytes.Equal(m.Receipts[1], held[1].Receipt) {
			t.Errorf("got %+v", m)
		}
		answer := registered(78)
		answer.MaxInvisibleMs = 3_600_000
		answer.Reclaimed = []protocol.Reclaimed{
			{Status: protocol.OK, Token: 9, Attempt: 3, RemainingMs: 60_000, RenewalsLeft: 2, BudgetMs: 1000, Receipt: []byte("new")},
			{Status: protocol.Stale, Reason: protocol.ReasonRegranted, Token: 8, AgoMs: 1500},
		}
		p.answer(r, protocol.OK, answer)
		again := wait()
		if again.MaxInvisible() != time.Hour || again.ConsumerID() != "me" {
			t.Errorf("most %v, consumer %q", again.MaxInvisible(), again.ConsumerID())
		}
		got := again.Reclaimed()
		wantErr(t, got[1].Err, ErrStale)
		if got[1].Token != 8 || got[1].Ago != 1500*time.Millisecond || got[1].Delivery(held[1]) != nil {
			t.Errorf("got %+v", got[1])
		}
		ok(t, got[0].Err)
		d := got[0].Delivery(held[0])
		if body, _ := d.Body(); string(body) != "one" || d.Attempt != 3 || d.Token != 9 || string(d.Receipt) != "new" || d.RenewalsLeft() != 2 || d.ID != held[0].ID {
			t.Errorf("got %+v", d)
		}
		if left := time.Until(d.Deadline()); left > time.Minute || left < time.Minute-time.Second {
			t.Errorf("%v left", left)
		}
		acked := going(func() error { _, err := again.Ack(t.Context(), d); return err })
		var ack protocol.AckRequest
		r = p.expect(protocol.OpAck, &ack)
		if ack.Session != 78 || string(ack.Entries[0].Receipt) != "new" {
			t.Errorf("got %+v", ack)
		}
		p.settled(r, protocol.SettleResult{})
		ok(t, acked())
	})
}

func TestReclaimRefusesHere(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		for _, o := range []RegisterOptions{
			{Reclaim: [][]byte{nil}}, {Reclaim: [][]byte{make([]byte, 256)}},
			{Reclaim: make([][]byte, protocol.MaxReclaimReceipts+1)}, {ReclaimFor: -time.Minute}, {ReclaimFor: 7 * time.Hour},
		} {
			_, err := c.Register(t.Context(), "g", o)
			wantErr(t, err, ErrInvalid)
		}
		p.quiet()
	})
}

// While a session lives the client does not wait so long between two attempts to connect, nor in one of them, that the
// broker would take the session for lost although it is there again.
func TestReconnectInTimeForTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		wait := going(func() *Session {
			s, err := c.Register(t.Context(), "g", RegisterOptions{})
			ok(t, err)
			return s
		})
		p.answer(p.expect(protocol.OpRegister, nil), protocol.OK, &protocol.RegisterAnswer{Session: 7, HeartbeatMs: 1000, TimeoutMs: 3000})
		s := wait()
		b.set(func() { b.refuse = errors.New("down") })
		p.close()
		time.Sleep(time.Minute)
		b.set(func() { b.refuse, b.mute = nil, true })
		time.Sleep(time.Minute)
		var dials []time.Time
		b.set(func() { dials = b.dials; b.mute = false })
		for i := range dials[1:] {
			// A quarter of the timeout between two attempts, and half of it in one that is not answered.
			if gap := dials[i+1].Sub(dials[i]); i > 0 && gap > 2250*time.Millisecond {
				t.Errorf("%v between two attempts", gap)
			}
		}
		b.accept()
		s.end(ErrClosed)
	})
}
