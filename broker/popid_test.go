package broker

import (
	"bytes"
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// numbered is a pop with a pop id.
func numbered(session uint64, slot uint8, sequence uint64, lost bool, max int) *protocol.PopRequest {
	r := popRequest(session, "jobs", max)
	r.Slot, r.Sequence, r.PreviousLost = slot, sequence, lost
	return r
}

// wantRefused wants an error answer with a status and a detail.
func (c *conn) wantRefused(a answer, s protocol.Status, detail uint64) {
	c.r.t.Helper()
	var why protocol.ErrorBody
	if err := why.Decode(a.body); a.Status != s || err != nil || why.Detail != detail {
		c.r.t.Fatalf("%s, detail %d (%q), want %s, detail %d", a.Status, why.Detail, why.Message, s, detail)
	}
}

func TestRepeatedPopGetsTheSameLeases(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "worker")
	c.sendBodies("jobs", "a", "b", "c", "d")
	// Given the answer to a pop, of which one message is acked and one renewed,
	first := c.pop(numbered(s.Session, 3, 1, false, 3))
	got := receipts(&first)
	c.ack(s.Session, got[0])
	c.change(s.Session, protocol.ChangeEntry{Receipt: got[1], Ordinal: 1, InvisibleMs: 60_000})
	r.advance(5 * time.Second)
	for _, when := range []string{"in the same run of the broker", "after a restart"} {
		// when the pop is repeated, over another connection,
		again := r.dial()
		p := again.pop(numbered(s.Session, 3, 1, false, 3))
		// then it gets what is left of these leases, each with its own rest, and nothing else.
		if len(p.Rows) != 2 {
			t.Fatalf("%s: %d rows", when, len(p.Rows))
		}
		for i, want := range []struct {
			body      string
			remaining uint32
			renewals  uint16
		}{{"b", 55_000, 2}, {"c", 25_000, 3}} {
			row := p.Rows[i]
			if again.bodyOf(&p, i) != want.body || !bytes.Equal(row.Receipt, got[i+1]) || row.Token != first.Rows[i+1].Token ||
				row.RemainingMs > want.remaining || row.RemainingMs < want.remaining-1000 || row.RenewalsLeft != want.renewals || row.Attempt != 1 {
				t.Errorf("%s: row %d is %q, %+v", when, i, again.bodyOf(&p, i), row)
			}
		}
		r.restart()
	}
	c = r.dial()
	// When everything of it is settled, the repetition is EMPTY; the next number gets what is new.
	c.ack(s.Session, got[1], got[2])
	if a := c.call(protocol.OpPop, 0, numbered(s.Session, 3, 1, false, 3)); a.Status != protocol.Empty {
		t.Errorf("nothing is left, and the repetition answers %s", a.Status)
	}
	if p := c.pop(numbered(s.Session, 3, 2, false, 3)); len(p.Rows) != 1 || c.bodyOf(&p, 0) != "d" {
		t.Errorf("the next pop got %d rows", len(p.Rows))
	}
}

func TestPreviousLostGivesBack(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "worker")
	other := c.register("g", "other")
	c.sendBodies("jobs", "a", "b", "c")
	// Given an answer of two messages, one of them known to have arrived since it was acked,
	p := c.pop(numbered(s.Session, 0, 1, false, 2))
	c.ack(s.Session, p.Rows[0].Receipt)
	// when the next pop says that it was lost,
	p2 := c.pop(numbered(s.Session, 0, 2, true, 1))
	// then the other message is back at once, uncounted, and goes first.
	if len(p2.Rows) != 1 || c.bodyOf(&p2, 0) != "b" || p2.Rows[0].Failures+p2.Rows[0].Expiries+p2.Rows[0].SessionLosses != 0 || p2.Rows[0].Attempt != 2 {
		t.Fatalf("got %+v", p2.Rows)
	}
	// A repetition of the release releases nothing more, and other slots and sessions keep theirs.
	p3 := c.pop(numbered(s.Session, 1, 1, true, 1))
	if len(p3.Rows) != 1 || c.bodyOf(&p3, 0) != "c" {
		t.Fatalf("got %+v", p3.Rows)
	}
	if p := c.pop(numbered(other.Session, 0, 1, true, 5)); len(p.Rows) != 0 {
		t.Errorf("another session got %d", len(p.Rows))
	}
	// A gap does not release what another number was granted.
	r.restart()
	c = r.dial()
	if a := c.call(protocol.OpPop, 0, numbered(s.Session, 0, 9, true, 5)); a.Status != protocol.Empty {
		t.Errorf("previous lost behind a gap answers %s", a.Status)
	}
	if res := c.ack(s.Session, p2.Rows[0].Receipt, p3.Rows[0].Receipt); res[0].Status != protocol.OK || res[1].Status != protocol.OK {
		t.Errorf("acks: %+v", res)
	}
}

func TestPopNumbersThatAreWrong(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "worker")
	c.sendBodies("jobs", "a", "b", "c")
	c.sendBodies("other", "x")
	c.pop(numbered(s.Session, 0, 5, false, 1)) // a slot not used since the start takes any number
	for _, q := range []uint64{1, 4, 7, 100} {
		c.wantRefused(c.call(protocol.OpPop, 0, numbered(s.Session, 0, q, false, 1)), protocol.Invalid, 6)
	}
	wrong := numbered(s.Session, 0, 5, false, 1)
	wrong.Topic = "other"
	c.wantRefused(c.call(protocol.OpPop, 0, wrong), protocol.Invalid, 6)
	wrong.Topic = "unknown"
	c.wantRefused(c.call(protocol.OpPop, 0, wrong), protocol.TopicNotFound, 0)
	// EMPTY uses a number up, and its repetition is a new pop.
	c.pop(numbered(s.Session, 0, 6, false, 5))
	if a := c.call(protocol.OpPop, 0, numbered(s.Session, 0, 7, false, 1)); a.Status != protocol.Empty {
		t.Fatal(a.Status)
	}
	c.sendBodies("jobs", "d")
	if p := c.pop(numbered(s.Session, 0, 7, false, 1)); len(p.Rows) != 1 || c.bodyOf(&p, 0) != "d" {
		t.Errorf("the repetition of an empty pop got %d", len(p.Rows))
	}
	c.wantRefused(c.call(protocol.OpPop, 0, numbered(s.Session, 0, 9, false, 1)), protocol.Invalid, 8)
	// A pop that is refused for another reason uses its number up, too.
	refused := numbered(s.Session, 0, 8, false, 1)
	refused.Topic = "unknown"
	c.wantRefused(c.call(protocol.OpPop, 0, refused), protocol.TopicNotFound, 0)
	if a := c.call(protocol.OpPop, 0, numbered(s.Session, 0, 9, false, 1)); a.Status != protocol.Empty {
		t.Error(a.Status)
	}
	// After a restart what was answered EMPTY is forgotten, and only what is below the newest grant is wrong.
	r.restart()
	c = r.dial()
	c.wantRefused(c.call(protocol.OpPop, 0, numbered(s.Session, 0, 6, false, 1)), protocol.Invalid, 8)
	if a := c.call(protocol.OpPop, 0, numbered(s.Session, 0, 10, false, 1)); a.Status != protocol.Empty {
		t.Error(a.Status)
	}
	c.wantRefused(c.call(protocol.OpPop, 0, numbered(s.Session, 0, 12, false, 1)), protocol.Invalid, 11)
}

func TestPopThatWaitsIsSuperseded(t *testing.T) {
	for _, x := range []struct {
		name     string
		sequence uint64
	}{{"by its twin", 1}, {"by the next one", 2}} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t, nil)
			c, c2 := r.dial(), r.dial()
			s := c.register("g", "worker")
			c.sendBodies("jobs", "first")
			c.pop(popRequest(s.Session, "jobs", 1))
			waits := numbered(s.Session, 2, 1, false, 1)
			waits.AwaitMs = 60_000
			id := c.start(protocol.OpPop, 0, waits)
			elsewhere := numbered(s.Session, 4, 1, false, 1)
			elsewhere.AwaitMs = 60_000
			last := c.start(protocol.OpPop, 0, elsewhere)
			again := numbered(s.Session, 2, x.sequence, false, 1)
			again.AwaitMs = 60_000
			id2 := c2.start(protocol.OpPop, 0, again)
			if a := c.wait(id); a.Status != protocol.Superseded {
				t.Errorf("the one that waited got %s", a.Status)
			}
			c.sendBodies("jobs", "second", "third")
			if p := c2.popped(c2.wait(id2)); len(p.Rows) != 1 {
				t.Errorf("the one that took its place got %d", len(p.Rows))
			}
			if p := c.popped(c.wait(last)); len(p.Rows) != 1 {
				t.Errorf("another slot got %d", len(p.Rows))
			}
		})
	}
}

// The answer of a pop that waited is lost with its connection.
func TestAnswerOfAParkedPopIsLost(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "worker")
	c.sendBodies("jobs", "a")
	c.pop(popRequest(s.Session, "jobs", 1))
	waits := numbered(s.Session, 0, 1, false, 1)
	waits.AwaitMs = 60_000
	lost := r.dial()
	lost.start(protocol.OpPop, 0, waits)
	c.sendBodies("jobs", "b")
	r.commit()
	r.loop.Close(lost)
	c2 := r.dial()
	if p := c2.pop(numbered(s.Session, 0, 1, false, 1)); len(p.Rows) != 1 || c2.bodyOf(&p, 0) != "b" || p.Rows[0].Attempt != 1 {
		t.Errorf("got %+v", p.Rows)
	}
}

// The end of a session takes its pop numbers along: the next session in its place begins anew.
func TestPopNumbersEndWithTheSession(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	c.sendBodies("jobs", "a", "b")
	for range 3 {
		s := c.register("g", "worker")
		p := c.pop(numbered(s.Session, 0, 1, false, 1))
		if len(p.Rows) != 1 {
			t.Fatalf("got %d", len(p.Rows))
		}
		if n := r.e.fold.leases.Marks(); n != 1 {
			t.Errorf("%d pop slots are remembered", n)
		}
		c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: s.Session}, nil)
		if n := r.e.fold.leases.Marks(); n != 0 {
			t.Errorf("%d pop slots are remembered of no session", n)
		}
	}
}
