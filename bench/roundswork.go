package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasemq/leasemq/client"
)

const (
	workGroup = "workers"
	keepGroup = "keepers"

	// sendsPerS is how many messages a producer sends in a second: enough for a segment a second or so, little enough
	// that the groups keep up on a small machine.
	sendsPerS     = 5000
	mostSend      = 64
	mostSendBytes = 512

	workPop   = 64
	workLease = 2 * time.Second
	popAwait  = 100 * time.Millisecond
	// Of so many messages, attempts or batches a worker mistreats one.
	forgetOneOf = 400 // leaves it until its lease ends
	returnOneOf = 200 // gives it back
	leaveOneOf  = 150 // leaves in order with a whole batch in its hands
	hasteOneOf  = 4   // waits only shortly for the answer of an ack
	ackHaste    = 15 * time.Millisecond

	// A keeper holds one message of so many, for so long, under long leases.
	keepPop   = 256
	keepLease = 10 * time.Minute
	keepOneOf = 500
	keepMost  = 400
	keepFor   = 8 * time.Second
)

// produce sends a batch, tells the ledgers what became of it, and sends the next when it is time.
func (r *rounds) produce(ctx context.Context, c *client.Client, random *rand.Rand) {
	p := c.Producer(client.ProducerOptions{})
	var results []client.SendResult
	due := time.Now()
	for r.sending.Err() == nil {
		messages := make([]*client.Message, 1+random.IntN(mostSend))
		first := r.reserve(len(messages))
		for i := range messages {
			size := crashBodyBytes + random.IntN(mostSendBytes-crashBodyBytes)
			messages[i] = &client.Message{Body: appendCrashBody(nil, size, first+uint64(i), r.now())}
		}
		called := r.now()
		// Not under sending: what is on its way when the sends end gets its answer.
		results, _ = p.SendBatchInto(ctx, roundsTopic, messages, results[:0])
		for i := range results {
			number := first + uint64(i)
			switch err := results[i].Err; {
			case err == nil:
				r.workers.Acknowledged(number)
				r.keepers.Acknowledged(number)
				r.sends.Add(1)
				r.answered(called)
			case errors.Is(err, client.ErrOutcomeUnknown) || ctx.Err() != nil:
				// The ledgers take it for unknown until they are told.
			default:
				r.workers.Refused(number)
				r.keepers.Refused(number)
				r.fail(fmt.Errorf("bench: a send was refused: %w", err))
			}
		}
		due = due.Add(time.Duration(len(messages)) * time.Second / sendsPerS)
		if late := time.Since(due); late > 0 {
			due = due.Add(late) // what an outage took is not made up for
		}
		r.pace(due)
	}
}

// pace waits until a moment, and for a group that is far behind.
func (r *rounds) pace(due time.Time) {
	for wait := time.Until(due); ; wait = workStep {
		select {
		case <-time.After(wait):
		case <-r.sending.Done():
			return
		}
		if sent := r.sends.Load(); !r.workers.behind(sent) && !r.keepers.behind(sent) {
			return
		}
	}
}

// reserve gives messages the same numbers in both ledgers.
func (r *rounds) reserve(n int) uint64 {
	r.reserving.Lock()
	defer r.reserving.Unlock()
	r.keepers.Reserve(n)
	return r.workers.Reserve(n)
}

// holder is a session of one consumer.
type holder struct {
	r       *rounds
	book    *book
	random  *rand.Rand
	session *client.Session
	number  uint32 // of the session
	lease   time.Duration
}

// held is a message that a holder has.
type held struct {
	*client.Delivery
	number uint64
	name   uint32 // in Regrants
	until  time.Time
}

// hold opens a session. It is nil when the end has come.
func (r *rounds) hold(ctx context.Context, c *client.Client, group string, b *book, random *rand.Rand, lease time.Duration) *holder {
	s, err := c.Register(ctx, group, client.RegisterOptions{})
	if err != nil {
		if ctx.Err() == nil {
			r.fail(fmt.Errorf("bench: register: %w", err))
		}
		return nil
	}
	return &holder{r: r, book: b, random: random, session: s, number: b.leases.NewSession(), lease: lease}
}

// leave ends the session in order, which gives back what it holds.
func (h *holder) leave(ctx context.Context) {
	h.book.leases.Leaving(h.number, h.r.now())
	if err := h.session.Close(ctx); err != nil && ctx.Err() == nil {
		h.r.fail(fmt.Errorf("bench: a session could not leave: %w", err))
	}
}

// lost notes a session that ended by itself: no outage here is as long as its timeout.
func (h *holder) lost() {
	h.book.leases.Leaving(h.number, 0)
	h.r.sessionsLost.Add(1)
}

// pop takes messages. After the last send it notes whether the group had nothing left.
func (h *holder) pop(ctx context.Context, most int) []held {
	r := h.r
	quiet := r.quiet.Load() // before the pop: one that is out while sends go on may miss the last of them
	called := r.now()
	batch, err := h.session.Pop(ctx, client.PopOptions{Topic: roundsTopic, Max: most, Invisible: h.lease, Await: popAwait})
	if err != nil {
		if !errors.Is(err, client.ErrConnectionLost) && h.session.Err() == nil && ctx.Err() == nil {
			r.fail(fmt.Errorf("bench: pop: %w", err))
		}
		return nil
	}
	arrived := r.now()
	r.answered(called)
	if quiet && len(batch.Deliveries) == 0 && batch.Leased == 0 && batch.Waiting == 0 {
		h.book.once.Do(func() { close(h.book.empty) })
	}
	taken := make([]held, 0, len(batch.Deliveries))
	for _, d := range batch.Deliveries {
		body, err := d.Body()
		number, _, ok := parseCrashBody(body, len(body))
		if err != nil || !ok || !h.book.known(number) {
			h.book.Damaged()
			continue
		}
		h.book.Delivered(number, d.Token)
		taken = append(taken, held{Delivery: d, number: number, name: h.book.leases.Delivered(DeliveryNote{
			Number: number, ID: d.ID, Token: d.Token, Attempt: d.Attempt, Session: h.number,
			Called: called, Arrived: arrived, Lease: h.lease,
		})})
	}
	return taken
}

// ack settles what is held. Some acks are given little time, so that those around a kill stay without an answer.
func (h *holder) ack(ctx context.Context, all []held) {
	if len(all) == 0 {
		return
	}
	r := h.r
	deliveries := make([]*client.Delivery, len(all))
	for i := range all {
		deliveries[i] = all[i].Delivery
	}
	in := ctx
	if !r.quiet.Load() && h.random.IntN(hasteOneOf) == 0 {
		var cancel context.CancelFunc
		in, cancel = context.WithTimeout(ctx, ackHaste)
		defer cancel()
	}
	epoch, called := r.epoch.Load(), r.now()
	results, _ := h.session.Ack(in, deliveries...)
	var unknown []held
	for i := range results {
		switch err := results[i].Err; {
		case err == nil:
			h.book.Acked(all[i].number, all[i].Token)
			h.book.done.Add(1)
			r.acks.Add(1)
			r.answered(called)
			if epoch != 0 && r.epoch.Load() == epoch {
				h.book.leases.Vouched(epoch, called)
				epoch = 0 // once is enough
			}
		case errors.Is(err, client.ErrStale) || errors.Is(err, client.ErrAlreadySettled):
			h.book.AckRefused()
		default:
			h.book.AckUnknown(all[i].number, all[i].Token)
			h.book.done.Add(1)
			unknown = append(unknown, all[i])
		}
	}
	if in != ctx && h.session.Err() == nil && h.random.IntN(2) == 0 {
		h.ack(ctx, unknown) // the other half is left to what the first one did
	}
}

// giveBack releases a message, visible at once.
func (h *holder) giveBack(ctx context.Context, m *held) {
	h.book.leases.Releasing(m.name, h.r.now())
	h.session.Release(ctx, m.Delivery, 0) // whatever it is answered: the lease may be over
}

// work takes messages and settles most of them, until the end.
func (r *rounds) work(ctx context.Context, c *client.Client, random *rand.Rand) {
	for r.ending.Err() == nil {
		h := r.hold(ctx, c, workGroup, &r.workers, random, workLease)
		if h == nil {
			return
		}
		for r.ending.Err() == nil && h.session.Err() == nil {
			taken := h.pop(ctx, workPop)
			if !r.quiet.Load() && len(taken) > 0 && random.IntN(leaveOneOf) == 0 {
				break
			}
			acks := taken[:0]
			for i := range taken {
				switch {
				case r.quiet.Load() || taken[i].Attempt > 1:
					acks = append(acks, taken[i])
				case random.IntN(forgetOneOf) == 0:
				case random.IntN(returnOneOf) == 0:
					h.giveBack(ctx, &taken[i])
				default:
					acks = append(acks, taken[i])
				}
			}
			h.ack(ctx, acks)
		}
		if h.session.Err() != nil && ctx.Err() == nil {
			h.lost()
			continue
		}
		h.leave(ctx)
	}
}

// keep takes messages, settles most of them at once, and holds some for long, through kills and starts.
func (r *rounds) keep(ctx context.Context, c *client.Client, random *rand.Rand) {
	for r.ending.Err() == nil {
		h := r.hold(ctx, c, keepGroup, &r.keepers, random, keepLease)
		if h == nil {
			return
		}
		left := h.keepUntilQuiet(ctx)
		if h.session.Err() != nil && ctx.Err() == nil {
			h.lost()
			continue
		}
		h.ack(ctx, left)
		// What an answer that never came brought is held by the session until it leaves: these leases are long.
		h.leave(ctx)
		if r.quiet.Load() {
			break
		}
	}
	for r.ending.Err() == nil {
		h := r.hold(ctx, c, keepGroup, &r.keepers, random, workLease)
		if h == nil {
			return
		}
		for r.ending.Err() == nil && h.session.Err() == nil {
			h.ack(ctx, h.pop(ctx, keepPop))
		}
		if h.session.Err() != nil && ctx.Err() == nil {
			h.lost()
			continue
		}
		h.leave(ctx)
	}
}

// keepUntilQuiet returns what is held when the sends have ended.
func (h *holder) keepUntilQuiet(ctx context.Context) (keeping []held) {
	r := h.r
	for r.ending.Err() == nil && h.session.Err() == nil && !r.quiet.Load() {
		taken := h.pop(ctx, keepPop)
		acks := make([]held, 0, len(taken))
		for i := range taken {
			if h.random.IntN(keepOneOf) == 0 && len(keeping) < keepMost {
				taken[i].until = time.Now().Add(keepFor)
				keeping = append(keeping, taken[i])
				continue
			}
			acks = append(acks, taken[i])
		}
		for len(keeping) > 0 && time.Now().After(keeping[0].until) {
			acks = append(acks, keeping[0])
			keeping = keeping[1:]
		}
		h.ack(ctx, acks)
	}
	return keeping
}
