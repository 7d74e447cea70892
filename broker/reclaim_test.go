package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// registration is a REGISTER of a consumer of group g.
func registration(consumer string, nonce byte, receipts ...[]byte) *protocol.RegisterRequest {
	return &protocol.RegisterRequest{Group: "g", ConsumerID: consumer, Nonce: [16]byte{nonce}, Receipts: receipts}
}

func (c *conn) registered(r *protocol.RegisterRequest) (a protocol.RegisterAnswer) {
	c.r.t.Helper()
	c.ok(protocol.OpRegister, protocol.FlagCreate, r, &a)
	return a
}

func TestReclaim(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	other := c.register("g", "other")
	s := c.registered(registration("worker", 1))
	for i := range 8 {
		c.sendBodies("jobs", fmt.Sprint(i))
	}
	// Given a session that held eight messages when it ended, of which it had acked, given back and failed one each,
	held := receipts(ptr(c.pop(popRequest(s.Session, "jobs", 8))))
	if len(held) != 8 {
		t.Fatalf("%d messages", len(held))
	}
	c.ack(s.Session, held[0])
	c.change(s.Session,
		protocol.ChangeEntry{Receipt: held[1], Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 600_000},
		protocol.ChangeEntry{Receipt: held[2], Ordinal: 1, Cause: protocol.CauseFailed, InvisibleMs: 600_000})
	stay := func() { c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: other.Session}, nil) }
	for range 13 {
		r.advance(time.Second)
		stay()
	}
	if a := c.call(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session}); a.Status != protocol.SessionNotFound {
		t.Fatal(a.Status)
	}
	// and of which another session took one since,
	taken := c.pop(popRequest(other.Session, "jobs", 1))
	takenAt := -1
	for i := range held {
		if fmt.Sprint(i) == c.bodyOf(&taken, 0) {
			takenAt = i
		}
	}
	// when the consumer comes back with its receipts, a forged and a short one, and one twice,
	forged := append([]byte(nil), held[7]...)
	forged[60] ^= 1
	request := registration("worker", 2, append(append([][]byte(nil), held...), forged, held[7][:40], held[7])...)
	request.Previous, request.ReclaimMs = s.Session, 120_000
	back := c.registered(request)
	// then it has what nobody was granted since, and is told why not of the rest.
	if back.MaxInvisibleMs != 6*3600*1000 || len(back.Reclaimed) != 11 {
		t.Fatalf("got %+v", back)
	}
	want := func(i int, status protocol.Status, reason protocol.Reason) {
		t.Helper()
		if x := back.Reclaimed[i]; x.Status != status || x.Reason != reason {
			t.Errorf("receipt %d: %s %s, want %s %s", i, x.Status, x.Reason, status, reason)
		}
	}
	want(0, protocol.AlreadySettled, protocol.ReasonSettled)
	want(1, protocol.Stale, protocol.ReasonReleased)
	want(2, protocol.Stale, protocol.ReasonReleased)
	want(8, protocol.InvalidReceipt, protocol.ReasonNone)
	want(9, protocol.InvalidReceipt, protocol.ReasonNone)
	leased := 0
	for i := 3; i < 8; i++ {
		if i == takenAt {
			want(i, protocol.Stale, protocol.ReasonRegranted)
			if back.Reclaimed[i].Token != taken.Rows[0].Token {
				t.Errorf("the newer token is %d, told is %d", taken.Rows[0].Token, back.Reclaimed[i].Token)
			}
			continue
		}
		want(i, protocol.OK, protocol.ReasonNone)
		leased++
		x := back.Reclaimed[i]
		if x.Attempt != 2 || x.RemainingMs != 120_000 || x.RenewalsLeft != 3 || x.Token <= taken.Rows[0].Token || len(x.Receipt) == 0 {
			t.Errorf("receipt %d: %+v", i, x)
		}
	}
	if leased != 4 {
		t.Errorf("%d leases were reclaimed", leased)
	}
	if x, y := back.Reclaimed[7], back.Reclaimed[10]; x.Token != y.Token || string(x.Receipt) != string(y.Receipt) {
		t.Errorf("one receipt twice: %+v and %+v", x, y)
	}
	// The repetition of the registration is told the same leases, and nothing more is granted.
	again := c.registered(request)
	for i := range again.Reclaimed {
		if x, y := back.Reclaimed[i], again.Reclaimed[i]; x.Status != y.Status || x.Token != y.Token || string(x.Receipt) != string(y.Receipt) {
			t.Errorf("receipt %d: first %+v, again %+v", i, x, y)
		}
	}
	// The old receipts are void, the new ones settle, also after a restart.
	if res := c.ack(back.Session, held[4]); res[0].Status == protocol.OK {
		t.Error("a receipt of the ended session settles")
	}
	r.restart()
	c = r.dial()
	for i := 3; i < 8; i++ {
		if i == takenAt {
			continue
		}
		if res := c.ack(back.Session, back.Reclaimed[i].Receipt); res[0].Status != protocol.OK {
			t.Errorf("ack of reclaimed %d: %+v", i, res)
		}
		if res := c.ack(back.Session, back.Reclaimed[i].Receipt); res[0].Status != protocol.OK {
			t.Errorf("repeated ack of reclaimed %d: %+v", i, res)
		}
		if res := c.ack(back.Session, held[i]); res[0].Status != protocol.AlreadySettled {
			t.Errorf("ack of %d by the receipt before: %+v", i, res)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// A worker that comes back does not fence who took its place; one that starts does.
func TestPreviousDoesNotFence(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	first := c.registered(registration("worker", 1))
	second := c.registered(registration("worker", 2))
	back := registration("worker", 3)
	back.Previous = first.Session
	if a := c.call(protocol.OpRegister, 0, back); a.Status != protocol.SessionFenced {
		t.Fatalf("got %s", a.Status)
	}
	c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: second.Session}, nil)
	// When the second one has left, the first may come back,
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: second.Session}, nil)
	third := c.registered(back)
	// and it may also come after a session that the broker still believes in.
	back = registration("worker", 4)
	back.Previous = third.Session
	fourth := c.registered(back)
	if a := c.call(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: third.Session}); a.Status != protocol.SessionFenced {
		t.Errorf("the session before got %s", a.Status)
	}
	if fourth.Session <= third.Session {
		t.Error("sessions do not grow")
	}
}

func TestReclaimRefused(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Limits.LeasesPerSession = 3 })
	c := r.dial()
	c.ok(protocol.OpCreateGroup, 0, &protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{MaxInvisibleMs: 60_000}}, nil)
	s := c.registered(registration("worker", 1))
	c.sendBodies("jobs", "a", "b", "c")
	c.sendBodies("gone", "x")
	held := receipts(ptr(c.pop(popRequest(s.Session, "jobs", 2))))
	gone := receipts(ptr(c.pop(popRequest(s.Session, "gone", 1))))[0]
	// A receipt of a session that lives is nobody else's; another group's is no receipt here.
	a := c.registered(registration("other", 2, held[0]))
	if a.Reclaimed[0].Status != protocol.InvalidReceipt {
		t.Errorf("got %+v", a.Reclaimed)
	}
	elsewhere := registration("worker", 3, held[0])
	elsewhere.Group = "g2"
	if a := c.registered(elsewhere); a.Reclaimed[0].Status != protocol.InvalidReceipt {
		t.Errorf("got %+v", a.Reclaimed)
	}
	// A lease that the group does not allow refuses the registration before it fences anybody.
	long := registration("worker", 4, held...)
	long.ReclaimMs = 60_001
	c.wantRefused(c.call(protocol.OpRegister, 0, long), protocol.Invalid, 60_000)
	c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session}, nil)
	// A registration that fences the holder may take its receipts over.
	c.ok(protocol.OpDeleteTopic, 0, &protocol.NameRequest{Name: "gone"}, nil)
	next := c.registered(registration("worker", 5, held[0], gone, held[1]))
	if x := next.Reclaimed; x[0].Status != protocol.OK || x[1].Status != protocol.TopicNotFound || x[2].Status != protocol.OK || x[0].Token != x[2].Token {
		t.Errorf("got %+v", x)
	}
	// No more than a session may hold.
	full := c.registered(registration("full", 6))
	c.sendBodies("jobs", "d", "e")
	more := receipts(ptr(c.pop(popRequest(full.Session, "jobs", 3))))
	if len(more) != 3 {
		t.Fatalf("popped %d", len(more))
	}
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: full.Session}, nil)
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: next.Session}, nil)
	all := c.registered(registration("full", 7, append(more, next.Reclaimed[0].Receipt, next.Reclaimed[2].Receipt)...))
	n := map[protocol.Status]int{}
	for _, x := range all.Reclaimed {
		n[x.Status]++
	}
	if n[protocol.OK] != 3 || n[protocol.LimitExceeded] != 2 {
		t.Errorf("got %v", n)
	}
}

// The reasons that a receipt of an ended session gets, with the newest token.
func TestReceiptsOfAnEndedSession(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	r.advance(time.Second)
	s := c.register("g", "first")
	c.sendBodies("jobs", "a", "b")
	held := receipts(ptr(c.pop(popRequest(s.Session, "jobs", 2))))
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: s.Session}, nil)
	next := c.register("g", "second")
	r.advance(time.Second)
	res := c.ack(next.Session, held...)
	if x := res[0]; x.Status != protocol.Stale || x.Reason != protocol.ReasonSessionLeft || x.Token == 0 || x.AgoMs < 900 {
		t.Errorf("not granted since: %+v", x)
	}
	p := c.pop(popRequest(next.Session, "jobs", 1))
	res = c.ack(next.Session, held...)
	newer := 0
	for _, x := range res {
		if x.Status == protocol.Stale && x.Token == p.Rows[0].Token {
			newer++
		}
	}
	if newer != 1 {
		t.Errorf("granted since: %+v", res)
	}
	c.ack(next.Session, p.Rows[0].Receipt)
	settled := 0
	for _, x := range c.ack(next.Session, held...) {
		if x.Status == protocol.AlreadySettled && x.Reason == protocol.ReasonSettled && x.Token == p.Rows[0].Token {
			settled++
		}
	}
	if settled != 1 {
		t.Errorf("settled since: %+v", res)
	}
}

// A crash takes the grants from the log while their receipts are out, and the session ends before it comes back.
func TestReclaimOfALostGrant(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.registered(registration("worker", 1))
	c.pop(popRequest(s.Session, "jobs", 1)) // makes the subscription
	c.sendBodies("jobs", "a", "b", "c")
	r.commit()
	end := r.e.Log().Appended()
	held := receipts(ptr(c.pop(popRequest(s.Session, "jobs", 3))))
	if len(held) != 3 {
		t.Fatalf("popped %d", len(held))
	}
	r.commit()
	r.e.Abort()
	r.cut(end)
	r.open()
	c = r.dial()
	for range 14 {
		r.advance(time.Second)
	}
	other := c.register("g", "other")
	taken := c.pop(popRequest(other.Session, "jobs", 1)) // one of them is granted to somebody else meanwhile
	back := c.registered(registration("worker", 2, held...))
	var mine [][]byte
	for i, x := range back.Reclaimed {
		switch {
		case x.Status == protocol.OK:
			mine = append(mine, x.Receipt)
		case x.Status != protocol.Stale || x.Reason != protocol.ReasonRegranted || x.Token != taken.Rows[0].Token:
			t.Errorf("receipt %d: %+v", i, x)
		}
	}
	if len(mine) != 2 {
		t.Fatalf("reclaimed %d", len(mine))
	}
	c.sendBodies("jobs", "d")
	if p := c.pop(popRequest(other.Session, "jobs", 5)); len(p.Rows) != 1 || c.bodyOf(&p, 0) != "d" {
		t.Errorf("the other one got %d", len(p.Rows))
	}
	for range 2 {
		for i, x := range c.ack(back.Session, mine...) {
			if x.Status != protocol.OK {
				t.Errorf("ack of %d: %+v", i, x)
			}
		}
	}
	for i, x := range c.ack(back.Session, held...) {
		if x.Status == protocol.OK {
			t.Errorf("ack of %d by the lost receipt: %+v", i, x)
		}
	}
}
