package lease

import (
	"slices"
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// TestSessionEndReleasesEverything: one record, whichever queues its leases are of, and nobody else's.
func TestSessionEndReleasesEverything(t *testing.T) {
	for _, test := range []struct {
		cause  codec.EndCause
		losses uint8
	}{{codec.EndExpired, 1}, {codec.EndFenced, 1}, {codec.EndLeft, 0}} {
		s := newStory(t, 2)
		s.send(0, 4)
		s.send(1, 4)
		dead, alive := s.session(), s.session()
		s.pop(dead, 0, 2, 6*hour)
		s.pop(alive, 0, 2, 6*hour)
		s.pop(dead, 1, 3, 6*hour)
		// When the session ends, then its messages can be granted at once, however long their leases were.
		s.end(dead, test.cause, 0)
		if s.table.Held(dead.slot) != 0 || s.table.Held(alive.slot) != 2 {
			t.Errorf("the dead one holds %d, the other %d", s.table.Held(dead.slot), s.table.Held(alive.slot))
		}
		if a, b := s.at(0), s.at(1); a != (Position{Next: 4, Leased: 2, Waiting: 2, Ready: 2}) || b != (Position{Next: 3, Waiting: 3, Ready: 3}) {
			t.Errorf("%+v, %+v", a, b)
		}
		s.pop(alive, 1, 1, second)
		if g, ok := s.table.Granted(s.slot(), 1, 0); !ok || g.Losses != test.losses || g.Attempts != 2 || g.Failures != 0 || g.Expiries != 0 {
			t.Errorf("cause %d: %+v", test.cause, g)
		}
	}
}

// TestSessionEndWithBackOff: the record says when each message is visible again.
func TestSessionEndWithBackOff(t *testing.T) {
	s, worker, _ := leaseOfOne(t)
	s.end(worker, codec.EndExpired, 5*second)
	if p := s.at(0); p.Waiting != 1 || p.Ready != 0 {
		t.Errorf("%+v", p)
	}
	s.advance(5 * second)
	if p := s.at(0); p.Ready != 1 {
		t.Errorf("%+v", p)
	}
}

// TestHeldBy lists what a session holds, oldest first.
func TestHeldBy(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 5)
	worker, other := s.session(), s.session()
	got := s.pop(worker, 0, 3, hour)
	s.pop(other, 0, 1, hour)
	s.change(worker, got[1], Change{Ordinal: 1, Cause: protocol.CauseFailed})
	s.ack(got[2])
	s.advance(5 * second)
	s.pop(worker, 0, 1, hour) // the one that failed
	type lease struct {
		sub              uint32
		queue            uint16
		offset, token    uint64
		losses, failures uint8
	}
	var held []lease
	s.table.HeldBy(worker.slot, func(sub uint32, queue uint16, offset, token uint64, losses, failures uint8) {
		held = append(held, lease{sub, queue, offset, token, losses, failures})
	})
	want := []lease{{1, 0, 0, got[0].Token, 0, 0}, {1, 0, 1, got[0].Token + 2, 0, 1}}
	if !slices.Equal(held, want) || s.table.Held(worker.slot) != 2 {
		t.Errorf("%+v, want %+v", held, want)
	}
}

// TestSessionEndPreconditions: the record lists what the session holds, all of it and nothing else.
func TestSessionEndPreconditions(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 3)
	worker, other := s.session(), s.session()
	got := s.pop(worker, 0, 2, hour)
	foreign := s.pop1(other, hour)
	end := func(rs ...Receipt) *codec.SessionEnd {
		rec := &codec.SessionEnd{Session: worker.id, Cause: codec.EndLeft}
		for _, r := range rs {
			rec.Releases = append(rec.Releases, codec.ReleaseEntry{Sub: 1, Offset: r.Offset, Token: r.Token, AtMs: s.nowMs})
		}
		return rec
	}
	s.refuse("nothing of two", end(), worker)
	s.violate("one of two", end(got[0]), worker)
	if s.table.Held(worker.slot) != 1 {
		t.Errorf("it holds %d", s.table.Held(worker.slot))
	}
	s.violate("one that another holds", end(got[1], foreign), worker)
	if s.table.Held(worker.slot) != 0 || s.table.Held(other.slot) != 1 {
		t.Errorf("%d and %d are held", s.table.Held(worker.slot), s.table.Held(other.slot))
	}
	s.refuse("one that it has given back", end(got[0]), worker)
	s.append(end(), worker) // a session that holds nothing
}

// TestUnreadable: the message is passed, uncounted, and nobody is given it again.
func TestUnreadable(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 2)
	worker := s.session()
	r := s.pop1(worker, 30*second)
	s.append(&codec.Unreadable{Sub: 1, Offset: r.Offset, Token: r.Token}, holder{})
	if got, want := s.at(0), (Position{Next: 1, Unreadable: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if s.table.Held(worker.slot) != 0 || s.table.Unsettled() != 0 {
		t.Error("it is leased still")
	}
	s.advance(hour)
	if got := s.pop(worker, 0, 5, second); len(got) != 1 || got[0].Offset != 1 {
		t.Errorf("%+v", got)
	}
}

// TestNoReceiptSettlesAnUnreadableMessage: OK to an ack means that this token settled it. A receipt of an earlier
// grant, when its bytes were good, and one of the same grant, handed out by an answer before, are told that it is over.
func TestNoReceiptSettlesAnUnreadableMessage(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1)
	worker := s.session()
	old := s.pop1(worker, 30*second)
	s.advance(40 * second) // expired: a late ack would be good
	r := s.pop1(worker, 30*second)
	s.append(&codec.Unreadable{Sub: 1, Offset: r.Offset, Token: r.Token}, holder{})
	for _, r := range []Receipt{old, r} {
		v := s.ack(r)
		s.expect("ack", v, protocol.AlreadySettled, protocol.ReasonSettled)
		if v.Apply {
			t.Errorf("%+v", v)
		}
		c := s.change(worker, r, Change{Ordinal: 1, InvisibleMs: hour})
		s.expect("change", c.Verdict, protocol.AlreadySettled, protocol.ReasonSettled)
	}
	// Its memory goes like that of a settled one, and the horizon goes with it.
	s.send(0, 2)
	s.ack(s.pop1(worker, second))
	s.nowMs += 25 * hour
	s.ack(s.pop1(worker, second))
	if s.table.entries.Len() != 0 {
		t.Errorf("%d entries", s.table.entries.Len())
	}
	s.expect("ack, forgotten", s.ack(old), protocol.AlreadySettled, protocol.ReasonSettled)
	s.expect("ack, forgotten", s.ack(r), protocol.AlreadySettled, protocol.ReasonSettled)
}

func TestUnreadablePreconditions(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 2)
	worker := s.session()
	r := s.pop1(worker, 30*second)
	for name, bad := range map[string]*codec.Unreadable{
		"another subscription": {Sub: 2, Token: r.Token},
		"another token":        {Sub: 1, Token: r.Token + 1},
		"never granted":        {Sub: 1, Offset: 1, Token: r.Token},
	} {
		s.refuse(name, bad, holder{})
	}
	s.release(worker, r, 1)
	s.refuse("given back", &codec.Unreadable{Sub: 1, Token: r.Token}, holder{})
}

// TestGrowTopic: queues that are added to a topic get cursors in every subscription of it, from offset 0 on.
func TestGrowTopic(t *testing.T) {
	s := newStory(t, 1)
	s.append(&codec.Subscribe{Sub: 2, Group: 1, Topic: someTopic, Starts: []uint64{50}}, holder{})
	s.append(&codec.Subscribe{Sub: 3, Group: someGroup, Topic: 1, Starts: []uint64{0}}, holder{})
	s.append(grown{someTopic, 3}, holder{})
	s.messages = append(s.messages, nil, nil)
	for sub, want := range map[uint32]int{1: 3, 2: 3, 3: 1} {
		slot, _ := s.table.SlotOf(sub)
		if n := s.table.Queues(slot); n != want {
			t.Errorf("subscription %d has %d queues, want %d", sub, n, want)
		}
	}
	slot, _ := s.table.SlotOf(2)
	if a, b := s.table.Position(slot, 0), s.table.Position(slot, 2); a.Next != 50 || b != (Position{}) {
		t.Errorf("%+v, %+v", a, b)
	}
	s.send(2, 1)
	if got := s.pop(s.session(), 2, 1, second); len(got) != 1 {
		t.Error("nothing from the new queue")
	}
	s.append(grown{someTopic, 2}, holder{}) // never fewer
	if n := s.table.Queues(s.slot()); n != 3 {
		t.Errorf("%d queues", n)
	}
}

// TestDrop: everything of a topic, or of a group, is forgotten, in whatever state it is; nothing else.
func TestDrop(t *testing.T) {
	for name, drop := range map[string]dropped{"topic": {topic: someTopic}, "group": {group: someGroup}} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t, 2)
			other := &codec.Subscribe{Sub: 2, Group: someGroup + 1, Topic: someTopic + 1, Starts: []uint64{0}}
			s.append(other, holder{})
			s.send(0, 6)
			worker := s.session()
			got := s.pop(worker, 0, 6, 30*second)
			s.release(worker, got[0], 1)                                                                          // ready
			s.change(worker, got[1], Change{Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 2 * second}) // waiting
			s.ack(got[2])
			s.release(worker, got[3], 1)
			s.ack(s.pop1(worker, 30*second)) // offset 0, remembered
			_, number := s.table.Number()
			s.append(&codec.Grant{Sub: 2, Number: number + 1, DeadlineMs: s.nowMs + second, Runs: []codec.GrantRun{{Kind: codec.RunNew, Count: 1}}}, worker)

			s.append(drop, holder{})
			if _, ok := s.table.Find(someGroup, someTopic); ok {
				t.Error("it is there still")
			}
			if n := s.table.Held(worker.slot); n != 1 || s.table.entries.Len() != 1 || s.table.wheel.Len() != 1 || s.table.Cursors() != 1 {
				t.Errorf("%d held, %d entries, %d timers, %d cursors", n, s.table.entries.Len(), s.table.wheel.Len(), s.table.Cursors())
			}
			s.expect("ack", s.ack(got[4]), protocol.Stale, protocol.ReasonReset)
			// The pair can be read anew, as another incarnation; the old receipts mean nothing to it.
			again := &codec.Subscribe{Sub: s.table.NextID(), Group: someGroup, Topic: someTopic, Starts: make([]uint64, 2)}
			s.append(again, holder{})
			sub, ok := s.table.Find(someGroup, someTopic)
			if !ok || sub.ID != 3 || sub.Leased+sub.Waiting != 0 || s.table.Position(sub.Slot, 0) != (Position{}) {
				t.Errorf("%+v %t", sub, ok)
			}
			s.expect("ack", s.ack(got[4]), protocol.Stale, protocol.ReasonReset)
			s.advance(hour)
		})
	}
}
