package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Connections break at random moments, before or after the broker has stored what came, and the broker drains and is
// started anew. Every message is stored once, those of a lane in their order, and every sender is told OK.
func TestSendsOverRandomLosses(t *testing.T) {
	repeated := 0
	for range 5 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		bubble(t, func(t *testing.T, b *fakeBroker) {
			repeated += sendsOverRandomLosses(t, b, rand.New(rand.NewPCG(seed, 2)))
		})
	}
	if repeated == 0 {
		t.Error("nothing came again: the test shows nothing")
	}
}

func sendsOverRandomLosses(t *testing.T, b *fakeBroker, rnd *rand.Rand) (repeated int) {
	const lanes, perLane, batches = 3, 400, 60
	b.hello.CreditBytes = 40_000
	c, err := Dial(t.Context(), "broker:1", Options{Dialer: b.dial})
	ok(t, err)
	defer c.Close()
	log := newSendLog(t)
	stop := make(chan struct{})
	served := going(func() (losses int) {
		for {
			select {
			case p := <-b.peers:
				log.serve(p, rnd, stop)
				losses++
			case <-stop:
				return losses
			}
		}
	})
	producer := c.Producer(ProducerOptions{MaxPending: 60_000})
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := range perLane {
				m := &Message{Topic: "t", Queue: new(lane), Key: fmt.Sprint(lane, ":", i), Body: body(500)}
				ok(t, producer.SendAsync(t.Context(), m, func(_ SendResult, err error) {
					if err != nil {
						t.Error(err)
					}
				}))
			}
		})
		all.Go(func() {
			for i := range batches {
				results, err := producer.SendBatch(t.Context(), "t", []*Message{{Key: fmt.Sprint("batch ", lane, " ", i)}, {Key: "second", Body: body(3000)}})
				if err != nil || results[0].ID == results[1].ID {
					t.Errorf("got %+v, %v", results, err)
				}
			}
		})
		all.Go(func() {
			for range batches { // whose contexts end whenever
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+lane*40)*time.Millisecond)
				began := time.Now()
				_, err := producer.Send(ctx, &Message{Topic: "t", Key: "short"})
				if err != nil && !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Duration(1+lane*40)*time.Millisecond {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	ok(t, producer.Flush(t.Context()))
	close(stop)
	t.Logf("%d losses, %d messages came again", served(), log.repeated)
	next, once := [lanes]int{}, map[string]bool{}
	for _, key := range log.stored {
		var lane, i int
		if n, _ := fmt.Sscanf(key, "%d:%d", &lane, &i); n == 2 {
			if i != next[lane] {
				t.Fatalf("message %d of lane %d where %d was due", i, lane, next[lane])
			}
			next[lane]++
		} else if key != "short" && key != "second" {
			if once[key] {
				t.Errorf("%s is there twice", key)
			}
			once[key] = true
		}
	}
	if next != [lanes]int{perLane, perLane, perLane} || len(once) != lanes*batches {
		t.Errorf("stored %d of the lanes and %d batches", next, len(once))
	}
	return log.repeated
}

// serve is one connection's life. Answers are kept back for a while and come in any order; those that are still there
// at its end are lost.
func (s *sendLog) serve(p *peer, rnd *rand.Rand, stop chan struct{}) {
	defer p.conn.Close()
	var kept []func()
	left, draining := 1+rnd.IntN(40), false
	for {
		var r request
		select {
		case r = <-p.frames:
		case <-time.After(time.Duration(1+rnd.IntN(300)) * time.Millisecond):
			if len(kept) == 0 { // as with a broker that drains
				return
			}
			for _, i := range rnd.Perm(len(kept)) {
				kept[i]()
			}
			kept = nil
			continue
		case <-stop:
			return
		}
		if left--; left == 0 {
			if draining = rnd.IntN(3) == 0; !draining {
				return
			}
		}
		if draining {
			p.refuse(r, protocol.Draining, "stopping")
			continue
		}
		answer := s.store(r)
		kept = append(kept, func() { p.answer(r, protocol.OK, answer) })
	}
}
