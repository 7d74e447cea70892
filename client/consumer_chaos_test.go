package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker/brokertest"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

// ledger is what the handlers of a chaos test know of each message.
type ledger struct {
	t    *testing.T
	seed uint64

	mu      sync.Mutex
	rnd     *rand.Rand
	running map[client.MessageID]int
	said    map[*client.Delivery]bool // that the work is done
	settled map[client.MessageID]int
	told    int
	refused map[client.MessageID][]error
}

// chance is a random number below n.
func (l *ledger) chance(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rnd.IntN(n)
}

// handle works for a while, and stops when it is told to.
func (l *ledger) handle(ctx context.Context, d *client.Delivery) (err error) {
	l.mu.Lock()
	if l.running[d.ID]++; l.running[d.ID] > 1 {
		l.t.Errorf("seed %d: two handlers have %s, attempt %d", l.seed, d.ID, d.Attempt)
	}
	work, fate := time.Duration(l.rnd.IntN(120_000))*time.Millisecond, l.rnd.IntN(10)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running[d.ID]--
		l.said[d] = err == nil
	}()
	timer := time.NewTimer(work)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch fate {
	case 0:
		return errors.New("no luck")
	case 1:
		return client.ErrPostpone(time.Second)
	}
	return nil
}

func (l *ledger) onSettled(d *client.Delivery, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done, known := l.said[d]
	if !known {
		l.t.Errorf("seed %d: told twice of %s, or before its handler returned", l.seed, d.ID)
	}
	delete(l.said, d)
	if l.told++; done && err == nil {
		l.settled[d.ID]++
	}
	if done && err != nil {
		l.refused[d.ID] = append(l.refused[d.ID], err)
	}
}

// trouble breaks lines, loses frames and holds them up for half an hour, and then mends everything.
func (l *ledger) trouble(s *brokertest.Server, lines []*line) {
	ops := []protocol.Opcode{protocol.OpHeartbeat, protocol.OpAck, protocol.OpChangeInvisible, protocol.OpRegister, protocol.OpPop}
	for end := time.Now().Add(30 * time.Minute); time.Now().Before(end); {
		time.Sleep(time.Duration(l.chance(20_000)) * time.Millisecond)
		way, op, to := lines[l.chance(len(lines))], ops[l.chance(len(ops))], brokertest.Direction(l.chance(2))
		within := time.Duration(l.chance(25_000)) * time.Millisecond
		switch l.chance(4) {
		case 0:
			way.set(true)
			time.Sleep(within)
			way.set(false)
		case 1:
			s.CutAll()
		case 2:
			s.Drop(to, op, 1+l.chance(3))
		case 3:
			if op == protocol.OpPop {
				continue // on a real connection nothing overtakes a pop or its answer, and deadlines are reckoned from that
			}
			s.Hold(to, op)
			time.Sleep(within)
			s.Pass(to, op)
		}
	}
	for _, op := range ops {
		s.Pass(brokertest.ToBroker, op)
		s.Pass(brokertest.ToClients, op)
	}
	s.CutAll() // what was dropped would else be waited for
}

// Whatever happens to connections and frames: a handler that obeys its context never works on a message at the same
// time as another one, each message is settled once, and OnSettled is told once of each hand-out.
func TestConsumersInTrouble(t *testing.T) {
	for range 3 {
		inHouse(t, func(t *testing.T, h *house) {
			seed := rand.Uint64()
			l := &ledger{
				t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), running: map[client.MessageID]int{},
				said: map[*client.Delivery]bool{}, settled: map[client.MessageID]int{}, refused: map[client.MessageID][]error{},
			}
			const n = 300
			admin, _ := h.process()
			defer admin.Close()
			if err := admin.CreateGroup(t.Context(), "group", client.GroupRules{
				MaxFailures: 255, MaxExpiries: 255, MaxSessionLosses: 255, BackOff: protocol.BackOffFixed, BackOffMinMs: 1000,
			}); err != nil {
				t.Fatal(err)
			}
			h.send(admin, "jobs", n)
			var lines []*line
			var all sync.WaitGroup
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			var consumers []*client.Consumer
			for i := range 3 {
				c, way := h.process()
				defer c.Close()
				lines = append(lines, way)
				k := c.Consumer("group", "jobs", client.ConsumerOptions{Workers: 4, Prefetch: 3 * i, Create: true, OnSettled: l.onSettled})
				consumers = append(consumers, k)
				all.Go(func() {
					if err := k.Run(ctx, l.handle); err != nil {
						t.Errorf("seed %d: Run: %v", seed, err)
					}
				})
			}
			l.trouble(h.server, lines)
			for deadline := time.Now().Add(time.Hour); ; time.Sleep(time.Minute) {
				l.mu.Lock()
				done := len(l.settled)
				l.mu.Unlock()
				if done == n {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("seed %d: %d of %d messages are settled", seed, done, n)
					for id, errs := range l.refused {
						if l.settled[id] == 0 {
							t.Logf("%s: %v", id, errs)
						}
					}
					break
				}
			}
			stop()
			all.Wait()
			for id, times := range l.settled {
				if times != 1 {
					t.Errorf("seed %d: %s was settled %d times", seed, id, times)
				}
			}
			if len(l.said) > 0 {
				t.Errorf("seed %d: %d hand-outs were not told of", seed, len(l.said))
			}
			for i, k := range consumers {
				t.Logf("consumer %d: %+v", i, k.Stats())
			}
		})
	}
}
