package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// history is a random story with crashes in it, held against what the users were told. It knows how answers are
// gated: every answer but that of a pop of first grants leaves only when its record is on disk, and a crash takes any
// number of records that are not.
type history struct {
	*story
	r       *rand.Rand
	durable int // records that no crash takes
	live    []holder
	of      map[uint64]holder // by session id
	handed  []Receipt

	// What the users know, by message.
	settledBy map[message]Receipt // whose ack was answered OK
	settledMs map[message]int64
	damaged   map[message]bool   // passed as unreadable, answered
	newest    map[message]uint64 // highest token handed out
}

type message struct {
	queue  uint16
	offset uint64
}

func messageOf(r Receipt) message { return message{r.Queue, r.Offset} }

func newHistory(t *testing.T, r *rand.Rand, queues int) *history {
	h := &history{
		story: newStory(t, queues), r: r, of: map[uint64]holder{},
		settledBy: map[message]Receipt{}, settledMs: map[message]int64{}, damaged: map[message]bool{}, newest: map[message]uint64{},
	}
	h.unaudited = true
	h.durable = h.mark()
	for range 3 {
		h.join()
	}
	return h
}

func (h *history) join() {
	by := h.session()
	h.live = append(h.live, by)
	h.of[by.id] = by
}

// answered tells whether an answer that waits for all records so far leaves before the next crash.
func (h *history) answered() bool {
	if h.r.IntN(12) == 0 {
		h.fall()
		return false
	}
	h.durable = h.mark()
	return true
}

// fall crashes: what is not durable is lost from some record on.
func (h *history) fall() {
	h.crash(h.durable + h.r.IntN(h.mark()-h.durable+1))
	h.durable = h.mark() // the new epoch is on disk before anything else
}

func (h *history) popSome() {
	by := h.live[h.r.IntN(len(h.live))]
	queue := uint16(h.r.IntN(len(h.messages)))
	again := h.at(queue).Ready > 0
	got := h.pop(by, queue, 1+h.r.IntN(4), 50+h.r.Int64N(2000))
	if len(got) == 0 || (again && !h.answered()) {
		return
	}
	for _, r := range got {
		m := messageOf(r)
		if r.Token <= h.newest[m] {
			h.t.Fatalf("%+v was granted with token %x after %x", m, r.Token, h.newest[m])
		}
		if by, ok := h.settledBy[m]; ok {
			h.t.Fatalf("%+v was granted by token %x, and settled by %x", m, r.Token, by.Token)
		}
		if h.damaged[m] {
			h.t.Fatalf("%+v was granted, and is unreadable", m)
		}
		h.newest[m] = r.Token
	}
	h.handed = append(h.handed, got...)
}

// receiptOf is some receipt whose session lives, a new one more often than not.
func (h *history) receiptOf() (Receipt, holder, bool) {
	for range 20 {
		n := len(h.handed)
		if n == 0 {
			break
		}
		if h.r.IntN(3) > 0 {
			n = min(n, 10)
		}
		r := h.handed[len(h.handed)-1-h.r.IntN(n)]
		for _, by := range h.live {
			if by.id == r.Session {
				return r, by, true
			}
		}
	}
	return Receipt{}, holder{}, false
}

func (h *history) ackSome() {
	r, _, ok := h.receiptOf()
	if !ok {
		return
	}
	v := h.ack(r)
	if h.answered() {
		h.told(r, v)
	}
}

// told holds the answer of an ack against what was answered before.
func (h *history) told(r Receipt, v Verdict) {
	m := messageOf(r)
	by, settled := h.settledBy[m]
	switch {
	case v.Status == protocol.OK && h.damaged[m]:
		h.t.Fatalf("%+v: OK to token %x, and it is unreadable", m, r.Token)
	case v.Status == protocol.OK && settled && by.Token != r.Token:
		h.t.Fatalf("%+v: OK to token %x after OK to %x", m, r.Token, by.Token)
	case v.Status == protocol.OK && !settled:
		h.settledBy[m], h.settledMs[m] = r, h.nowMs
	case v.Status == protocol.OK:
	case settled && v.Status == protocol.AlreadySettled && h.nowMs-min(r.GrantMs, h.settledMs[m]) >= memoryMs:
		// Whether it was this token is not known for ever: but never that it was not settled.
	case settled && by.Token == r.Token:
		h.t.Fatalf("%+v: token %x settled it, and is told %s %s", m, r.Token, v.Status, v.Reason)
	case v.Status == protocol.Stale && v.Reason == protocol.ReasonRegranted && v.Token <= r.Token:
		h.t.Fatalf("%+v: token %x is told of %x, which is no newer", m, r.Token, v.Token)
	case v.Status == protocol.Stale && v.Reason == protocol.ReasonReset:
		h.t.Fatalf("%+v: token %x is told that it was made anew", m, r.Token)
	}
}

func (h *history) changeSome() {
	r, by, ok := h.receiptOf()
	if !ok {
		return
	}
	x := Change{Ordinal: uint32(1 + h.r.IntN(2)), Cause: protocol.Cause(h.r.IntN(3))}
	if h.r.IntN(3) > 0 {
		x.InvisibleMs = 10 + h.r.Int64N(3000)
	}
	c := h.change(by, r, x)
	if !h.answered() || c.Status != protocol.OK {
		return
	}
	if winner, settled := h.settledBy[messageOf(r)]; settled {
		h.t.Fatalf("%+v: change by token %x is OK, and %x has settled it", messageOf(r), r.Token, winner.Token)
	}
}

func (h *history) endSome() {
	if len(h.live) < 3 {
		h.join()
		return
	}
	k := h.r.IntN(len(h.live))
	by := h.live[k]
	h.end(by, []codec.EndCause{codec.EndExpired, codec.EndFenced, codec.EndLeft}[h.r.IntN(3)], h.r.Int64N(2)*h.r.Int64N(2000))
	if h.answered() {
		h.live = append(h.live[:k], h.live[k+1:]...)
		h.join()
	}
}

func (h *history) damageSome() {
	by := h.live[h.r.IntN(len(h.live))]
	var rec *codec.Unreadable
	h.table.HeldBy(by.slot, func(sub uint32, queue uint16, offset, token uint64, _, _ uint8) {
		rec = &codec.Unreadable{Sub: sub, Queue: queue, Offset: offset, Token: token}
	})
	if rec == nil {
		return
	}
	h.append(rec, holder{})
	if h.answered() {
		h.damaged[message{rec.Queue, rec.Offset}] = true
	}
}

func (h *history) step() {
	switch op := h.r.IntN(1000); {
	case op < 80:
		h.send(uint16(h.r.IntN(len(h.messages))), 1+h.r.IntN(4))
	case op < 350:
		h.popSome()
	case op < 700:
		h.ackSome()
	case op < 850:
		h.changeSome()
	case op < 950:
		h.advance(h.r.Int64N(800))
	case op < 965:
		h.endSome()
	case op < 975:
		h.damageSome()
	case op < 980:
		h.advance(20 * hour)
	case op < 990:
		h.fall()
	}
}

// drain settles everything, as a group does that has all the time it needs.
func (h *history) drain() {
	for len(h.live) > 0 {
		h.end(h.live[0], codec.EndLeft, 0)
		h.live = h.live[1:]
	}
	h.durable = h.mark()
	h.join()
	h.advance(hour)
	for q := range h.messages {
		for {
			got := h.pop(h.live[0], uint16(q), 50, second)
			if len(got) == 0 {
				break
			}
			for _, r := range got {
				m := messageOf(r)
				if by, ok := h.settledBy[m]; ok {
					h.t.Fatalf("%+v was granted by token %x, and settled by %x", m, r.Token, by.Token)
				}
				v := h.ack(r)
				h.expectOK(fmt.Sprintf("ack of %+v", m), v)
				h.told(r, v)
			}
		}
		p, n := h.at(uint16(q)), uint64(len(h.messages[q]))
		if p.Next != n || p.Settled+p.Unreadable != n || p.Leased+p.Waiting+p.Ahead != 0 {
			h.t.Fatalf("queue %d of %d messages is at %+v", q, n, p)
		}
	}
	if n := h.table.Unsettled(); n != 0 {
		h.t.Fatalf("%d messages are unsettled", n)
	}
}

// TestHistories: through crashes at any record, an OK to an ack means that this token settled the message, for ever;
// what is settled is never granted again; tokens grow; and nothing is stuck.
func TestHistories(t *testing.T) {
	r := newRand(t)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	handed, crashes := 0, uint32(0)
	for round := range rounds {
		h := newHistory(t, r, 1+r.IntN(3))
		steps := 100 + r.IntN(400)
		for step := range steps {
			h.step()
			if step%16 == 0 {
				h.unaudited = false
				h.check()
				h.unaudited = true
			}
			if t.Failed() {
				t.Fatalf("round %d step %d", round, step)
			}
		}
		h.drain()
		h.unaudited = false
		h.check()
		handed += len(h.handed)
		crashes += h.epoch - 1
	}
	t.Logf("%d receipts, %d crashes", handed, crashes)
}
