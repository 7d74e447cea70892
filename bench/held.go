package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasemq/leasemq/client"
)

const (
	heldQueues  = 128       // each holds less than the default cap of a queue and group, 10,000, up to a million and more
	heldShare   = 4000      // leases of a session, whose default cap is 4,096
	heldClients = 4         // connections of the sessions
	heldFor     = time.Hour // a lease
)

// hold has sessions of a group of its own hold so many leases, of a topic of its own, until release is called.
func (run *Run) hold(ctx context.Context, leases int) (release func(), err error) {
	topic, group := run.Topic+"-held", run.Group+"-holders"
	fill := SendOptions{Addr: run.Addr, Topic: topic, Queues: heldQueues, Size: 100, Batch: fillBatch, Producers: heldClients, Messages: uint64(leases + leases/10)} // so that no session has to look for the last ones
	if _, err := Send(ctx, fill); err != nil {
		return nil, err
	}
	clients, err := dialAll(ctx, run.Addr, "leasemq bench, holding", heldClients)
	if err != nil {
		return nil, err
	}
	release = func() {
		leave(ctx, clients[0], group, nil)
		closeAll(clients)
	}
	if err := clients[0].CreateGroup(ctx, group, client.GroupRules{MaxInvisibleMs: uint32(heldFor.Milliseconds())}); err != nil {
		return release, fmt.Errorf("bench: group %s: %w", group, err)
	}
	if err := leaseAll(ctx, clients, (leases+heldShare-1)/heldShare, leases, heldGroup{group, topic, heldFor}); err != nil {
		return release, err
	}
	figures, err := figuresOf(ctx, clients[0])
	run.Count("leases_held", figures["leases"])
	return release, err
}

// heldGroup says whose leases they are.
type heldGroup struct {
	group, topic string
	invisible    time.Duration
}

// leaseAll has so many sessions take so many messages, and keep them.
func leaseAll(ctx context.Context, clients []*client.Client, sessions, leases int, g heldGroup) error {
	var working sync.WaitGroup
	var first firstError
	for i, c := range clients {
		working.Go(func() {
			for n := i; n < sessions; n += len(clients) {
				share := leases*(n+1)/sessions - leases*n/sessions
				if err := g.take(ctx, c, share); err != nil {
					first.set(err)
					return
				}
			}
		})
	}
	working.Wait()
	return errors.Join(first.get(), ctx.Err())
}

// take has a new session take messages.
func (g *heldGroup) take(ctx context.Context, c *client.Client, share int) error {
	s, err := c.Register(ctx, g.group, client.RegisterOptions{})
	if err != nil {
		return err
	}
	for share > 0 {
		batch, err := s.Pop(ctx, client.PopOptions{Topic: g.topic, Max: min(share, keepPop), Invisible: g.invisible, Await: 10 * time.Second})
		if err != nil {
			return fmt.Errorf("bench: pop: %w", err)
		}
		if len(batch.Deliveries) == 0 {
			return fmt.Errorf("bench: a session still wants %d messages, and gets none", share)
		}
		share -= len(batch.Deliveries)
		batch.Release()
	}
	return nil
}
