package client

import (
	"context"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Start is where a group begins on a topic that it has not read before.
type Start uint8

const (
	StartEarliest = Start(protocol.StartEarliest)
	StartLatest   = Start(protocol.StartLatest)
)

// PopOptions of Session.Pop.
type PopOptions struct {
	Topic string

	// Max messages are taken at most, 1 to 256 (0: 1), and at most MaxBytes of records (0 is 1 MiB, the most),
	// but always one if there is one.
	Max      int
	MaxBytes int

	// Invisible is the length of the leases; 0: the group's default.
	Invisible time.Duration

	// Await is how long the broker waits for a message when there is none, at most 5 min; no longer than the
	// context of the call lives.
	Await time.Duration

	// FilterTags, Start and Create count when the group reads the topic for the first time. Tags: deliver only
	// messages with one of these; a later pop must name the same. Create: make the topic if it is missing.
	FilterTags []string
	Start      Start
	Create     bool
}

// popSlot numbers the pops of one slot, so that the broker can tell the next pop from a repetition, and learns
// whether the answer to the one before arrived. It is used by whoever took the slot's number out of
// Session.slots or lostSlots; a number is used up only by a pop that was sent.
type popSlot struct {
	sequence     uint64 // of the newest pop that was sent
	previousLost bool   // as that pop said
	lost         bool   // its answer did not come

	// The first of the pops in a row of which no answer came, the newest one included: which of them have reached
	// the broker is not known.
	lostFrom     uint64
	lostFromSaid bool // its previousLost
}

// next puts the number of the next pop into r.
func (p *popSlot) next(r *protocol.PopRequest) { r.Sequence, r.PreviousLost = p.sequence+1, p.lost }

// sent notes that r went out.
func (p *popSlot) sent(r *protocol.PopRequest, lost bool) {
	now := popSlot{sequence: r.Sequence, previousLost: r.PreviousLost, lost: lost}
	switch {
	case lost && p.lost:
		now.lostFrom, now.lostFromSaid = p.lostFrom, p.lostFromSaid
	case lost:
		now.lostFrom, now.lostFromSaid = r.Sequence, r.PreviousLost
	}
	*p = now
}

// unseen tells whether err says that the newest of the lost pops before r never reached the broker, and puts the number
// of the first that did not into r, for r to take its place. before is the slot as it was before r.
func (before popSlot) unseen(err error, r *protocol.PopRequest) bool {
	e, ok := err.(*StatusError)
	if !ok || e.Status != protocol.Invalid || !before.lost || e.Detail < before.lostFrom || e.Detail > before.sequence {
		return false
	}
	r.Sequence, r.PreviousLost = e.Detail, e.Detail > before.lostFrom || before.lostFromSaid
	return true
}

// Pop takes messages under leases. None is no error. Up to 16 pops of a session run at once; more wait.
//
// A pop is repeated by itself when a connection is lost, under the same pop id: it then gets the leases of the answer
// that was lost. When ctx ends first, messages that still come are given back, and what the broker may hold for
// an answer that was lost is given back by the next pop.
func (s *Session) Pop(ctx context.Context, o PopOptions) (*Batch, error) {
	request, err := s.popRequest(&o)
	if err != nil {
		return nil, err
	}
	if request.Slot, err = s.takeSlot(ctx); err != nil {
		return nil, err
	}
	defer s.freeSlot(request.Slot)
	before := s.slotStates[request.Slot]
	before.next(&request)
	b, err := s.popOnce(ctx, &request, &o)
	if before.unseen(err, &request) {
		b, err = s.popOnce(ctx, &request, &o)
	}
	s.heard(err)
	return b, err
}

// takeSlot waits for a free slot. One whose last answer was lost goes first: what the broker may hold for it is then
// given back.
func (s *Session) takeSlot(ctx context.Context) (slot uint8, err error) {
	select {
	case slot = <-s.lostSlots:
		return slot, nil
	default:
	}
	select {
	case slot = <-s.lostSlots:
	case slot = <-s.slots:
	case <-s.lost:
		err = s.Err()
	case <-ctx.Done():
		err = fmt.Errorf("leasemq: %s: %w", protocol.OpPop, ctx.Err())
	}
	return slot, err
}

func (s *Session) freeSlot(slot uint8) {
	if s.slotStates[slot].lost {
		s.lostSlots <- slot
	} else {
		s.slots <- slot
	}
}

// popOnce sends r and waits for its answer. The caller has r's slot.
func (s *Session) popOnce(ctx context.Context, r *protocol.PopRequest, o *PopOptions) (*Batch, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	r.AwaitMs = awaitMs(ctx, o.Await)
	var flags protocol.Flags
	if o.Create {
		flags = protocol.FlagCreate
	}
	l, slot := s.client.link, &s.slotStates[r.Slot]
	x := l.newCall(protocol.OpPop, flags, 1<<leastFrameClass)
	x.frame.b = r.Append(x.frame.b)
	x.orphan = s.giveBack
	owned, err := l.do(ctx, x)
	if !owned {
		slot.sent(r, true)
		return nil, err
	}
	defer l.free(x)
	if x.sent {
		slot.sent(r, err != nil && x.status == protocol.OK) // failed, and not by an answer
	}
	if err != nil {
		return nil, err
	}
	times := popTimes{grantedAfter: x.sentAt, arrivedAt: x.arrivedAt, waited: r.AwaitMs > 0}
	if times.waited && x.proof.After(x.sentAt) {
		times.grantedAfter = x.proof
	}
	b, err := newBatch(s, o.Topic, x.body, times)
	if err != nil {
		return nil, err
	}
	if n := len(b.Deliveries); n > 0 {
		s.mu.Lock()
		s.held += n
		s.progressAt = x.arrivedAt
		s.mu.Unlock()
	}
	return b, nil
}

// popRequest is the request for o, but for slot and await time.
func (s *Session) popRequest(o *PopOptions) (protocol.PopRequest, error) {
	switch {
	case o.Max < 0 || o.Max > protocol.MaxPopMessages:
		return protocol.PopRequest{}, invalid(protocol.OpPop, "a pop of %d messages, 1 to %d are legal", o.Max, protocol.MaxPopMessages)
	case o.MaxBytes < 0 || o.MaxBytes > protocol.MaxPopBytes:
		return protocol.PopRequest{}, invalid(protocol.OpPop, "a pop of %d bytes, limit %d", o.MaxBytes, protocol.MaxPopBytes)
	}
	invisible, err := wireMs(protocol.OpPop, "invisible time", o.Invisible)
	if err != nil {
		return protocol.PopRequest{}, err
	}
	if _, err := wireMs(protocol.OpPop, "await time", o.Await); err != nil {
		return protocol.PopRequest{}, err
	}
	r := protocol.PopRequest{
		Session: s.id, Topic: o.Topic, FilterTags: o.FilterTags,
		Max: uint16(max(o.Max, 1)), MaxBytes: uint32(o.MaxBytes), InvisibleMs: invisible,
		Start: uint8(o.Start), GroupVersion: s.GroupVersion(),
	}
	if err := r.Validate(); err != nil {
		return r, refused(protocol.OpPop, err)
	}
	return r, nil
}

// wireMs is d in milliseconds, rounded up.
func wireMs(op protocol.Opcode, what string, d time.Duration) (uint32, error) {
	ms := ceilMs(d)
	if ms < 0 || ms > 1<<32-1 {
		return 0, invalid(op, "%s of %v", what, d)
	}
	return uint32(ms), nil
}

// awaitMs is how long the broker is asked to wait: a little less than ctx lives, so that its answer still finds
// somebody.
func awaitMs(ctx context.Context, await time.Duration) uint32 {
	await = min(await, protocol.MaxAwaitMs*time.Millisecond)
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		await = min(await, left-min(left/10, 100*time.Millisecond))
	}
	return uint32(max(await.Milliseconds(), 0))
}

// giveBack releases the messages of a pop that nobody waited for, uncounted and visible at once.
func (s *Session) giveBack(x *call) {
	var answer protocol.PopAnswer
	if answer.Decode(x.body) != nil || len(answer.Rows) == 0 {
		return
	}
	request := protocol.ChangeInvisibleRequest{Session: s.id, Entries: make([]protocol.ChangeEntry, len(answer.Rows))}
	for i := range answer.Rows {
		request.Entries[i] = protocol.ChangeEntry{Receipt: answer.Rows[i].Receipt, Ordinal: 1, Cause: protocol.CausePostponed}
	}
	l := s.client.link
	c := l.newCall(protocol.OpChangeInvisible, 0, 1<<leastFrameClass)
	c.frame.b = request.Append(c.frame.b)
	l.forgetful(c)
}
