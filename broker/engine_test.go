package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

func TestSendPopAckAcrossRestart(t *testing.T) {
	// Given three messages of which two are leased and one of these is acked,
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "worker")
	c.sendBodies("jobs", "a", "b", "c")
	p := c.pop(popRequest(s.Session, "jobs", 2))
	if len(p.Rows) != 2 || c.bodyOf(&p, 0) != "a" || c.bodyOf(&p, 1) != "b" {
		t.Fatalf("popped %d rows", len(p.Rows))
	}
	got := receipts(&p)
	if res := c.ack(s.Session, got[0]); res[0].Status != protocol.OK {
		t.Fatalf("ack: %v", res)
	}
	// when the broker is killed and started again,
	r.restart()
	c = r.dial()
	// then the leased one can still be acked by its holder, the acked one again,
	if res := c.ack(s.Session, got...); res[0].Status != protocol.OK || res[1].Status != protocol.OK {
		t.Fatalf("ack after the restart: %v", res)
	}
	// and only the third is there to be popped.
	p = c.pop(popRequest(s.Session, "jobs", 10))
	if len(p.Rows) != 1 || c.bodyOf(&p, 0) != "c" {
		t.Fatalf("popped %d rows after the restart", len(p.Rows))
	}
}

func TestLeaseExpiresAndIsGrantedAgain(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "worker")
	c.sendBodies("jobs", "a")
	req := popRequest(s.Session, "jobs", 1)
	req.InvisibleMs = 2000
	p := c.pop(req)
	old := receipts(&p)
	beat := func() {
		c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session}, nil)
	}
	r.advance(1900 * time.Millisecond)
	beat()
	if p := c.pop(popRequest(s.Session, "jobs", 1)); len(p.Rows) != 0 {
		t.Fatal("granted before the lease was over")
	}
	r.advance(1200 * time.Millisecond) // the lease is over, and the wait behind it
	p = c.pop(popRequest(s.Session, "jobs", 1))
	if len(p.Rows) != 1 || p.Rows[0].Attempt != 2 || p.Rows[0].Expiries != 1 || p.Rows[0].Token <= 0 {
		t.Fatalf("rows %+v", p.Rows)
	}
	if res := c.ack(s.Session, old[0]); res[0].Status != protocol.Stale || res[0].Reason != protocol.ReasonRegranted || res[0].Token != p.Rows[0].Token {
		t.Fatalf("ack of the former holder: %+v", res)
	}
	if res := c.ack(s.Session, receipts(&p)...); res[0].Status != protocol.OK {
		t.Fatalf("ack of the holder: %+v", res)
	}
	if res := c.ack(s.Session, old[0]); res[0].Status != protocol.AlreadySettled {
		t.Fatalf("ack of the former holder after the settling: %+v", res)
	}
}

func TestParkedPopIsServed(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "worker")
	req := popRequest(s.Session, "jobs", 10)
	req.AwaitMs = 60_000
	id := c.start(protocol.OpPop, protocol.FlagCreate, req)
	r.commit()
	if _, ok := c.peekAnswer(id); ok {
		t.Fatal("answered with nothing there")
	}
	c.sendBodies("jobs", "a")
	p := c.popped(c.wait(id))
	if len(p.Rows) != 1 || c.bodyOf(&p, 0) != "a" {
		t.Fatalf("%d rows", len(p.Rows))
	}
	// One that nothing comes for is answered EMPTY when its time is over.
	req.AwaitMs = 1000
	id = c.start(protocol.OpPop, 0, req)
	r.advance(900 * time.Millisecond)
	if _, ok := c.peekAnswer(id); ok {
		t.Fatal("answered before its time")
	}
	r.advance(200 * time.Millisecond)
	if a := c.wait(id); a.Status != protocol.Empty {
		t.Fatalf("status %s", a.Status)
	}
}

func TestSilentSessionLosesItsLeases(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	a, b := c.register("g", "a"), c.register("g", "b")
	c.sendBodies("jobs", "x")
	req := popRequest(a.Session, "jobs", 1)
	req.InvisibleMs = protocol.MaxInvisibleMs
	p := c.pop(req)
	if len(p.Rows) != 1 {
		t.Fatal("nothing popped")
	}
	wait := popRequest(b.Session, "jobs", 1)
	wait.AwaitMs = 60_000
	id := c.start(protocol.OpPop, 0, wait)
	for range 13 {
		r.advance(time.Second)
		c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: b.Session}, nil)
	}
	q := c.popped(c.wait(id))
	if len(q.Rows) != 1 || q.Rows[0].SessionLosses != 1 || q.Rows[0].Token <= p.Rows[0].Token {
		t.Fatalf("rows %+v", q.Rows)
	}
	if a := c.call(protocol.OpAck, 0, &protocol.AckRequest{Session: a.Session, Entries: []protocol.AckEntry{{Receipt: p.Rows[0].Receipt}}}); a.Status != protocol.SessionNotFound {
		t.Fatalf("ack by the lost session: %s", a.Status)
	}
}

// However many pops of a connection wait: one that can be served is.
func TestPopBesideManyThatWait(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	c.sendBodies("full", "x")
	waits := 0
	for i := 0; ; i++ {
		s := c.register("g", fmt.Sprint(i))
		req := popRequest(s.Session, "empty", 1)
		req.AwaitMs = 60_000
		id := c.start(protocol.OpPop, protocol.FlagCreate, req)
		r.commit()
		if a, ok := c.peekAnswer(id); ok {
			if a.Status != protocol.LimitExceeded || waits == 0 {
				t.Fatalf("pop %d: %s", i, a.Status)
			}
			break
		}
		waits++
	}
	s := c.register("g", "last")
	req := popRequest(s.Session, "full", 1)
	req.AwaitMs = 60_000
	if p := c.pop(req); len(p.Rows) != 1 {
		t.Errorf("%d messages, beside %d pops that wait", len(p.Rows), waits)
	}
	if a := c.call(protocol.OpPop, 0, popRequest(s.Session, "full", 1)); a.Status != protocol.Empty {
		t.Errorf("one that does not wait: %s", a.Status)
	}
}
