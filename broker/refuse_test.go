package broker

import (
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// refused sends a request and returns its status and detail.
func (c *conn) refused(code protocol.Opcode, flags protocol.Flags, body interface{ Append([]byte) []byte }) (protocol.Status, protocol.ErrorBody) {
	c.r.t.Helper()
	a := c.call(code, flags, body)
	var why protocol.ErrorBody
	if a.Status != protocol.OK && a.Status != protocol.Empty {
		if err := why.Decode(a.body); err != nil {
			c.r.t.Fatalf("%s: %v", a.Status, err)
		}
	}
	return a.Status, why
}

func TestReceiptsThatAreNotGood(t *testing.T) {
	// Given a message leased by one session of a group, and another session, and another group,
	r := newRig(t, nil)
	c := r.dial()
	a, b := c.register("g", "a"), c.register("g", "b")
	other := c.register("other", "a")
	c.sendBodies("jobs", "x")
	p := c.pop(popRequest(a.Session, "jobs", 1))
	good := receipts(&p)[0]
	// when a receipt with any bit flipped is presented, it is refused and nothing changes;
	var flipped [][]byte
	for bit := range len(good) * 8 {
		f := append([]byte(nil), good...)
		f[bit/8] ^= 1 << (bit % 8)
		flipped = append(flipped, f)
	}
	for _, res := range c.ack(a.Session, flipped...) {
		if res.Status != protocol.InvalidReceipt {
			t.Fatalf("flipped: %+v", res)
		}
	}
	// the same for one cut short, one too long, none, one of another session, one of another group;
	for _, bad := range [][]byte{good[:79], append(append([]byte(nil), good...), 0), nil} {
		if res := c.ack(a.Session, bad); res[0].Status != protocol.InvalidReceipt {
			t.Fatalf("%d bytes: %+v", len(bad), res)
		}
	}
	if res := c.ack(b.Session, good); res[0].Status != protocol.InvalidReceipt {
		t.Fatalf("another session: %+v", res)
	}
	if res := c.ack(other.Session, good); res[0].Status != protocol.InvalidReceipt {
		t.Fatalf("another group: %+v", res)
	}
	if res := c.change(other.Session, protocol.ChangeEntry{Receipt: good, Ordinal: 1, InvisibleMs: 1000}); res[0].Status != protocol.InvalidReceipt {
		t.Fatalf("another group: %+v", res)
	}
	// a batch of good and bad has a result for each, and a receipt may stand in it twice;
	res := c.ack(a.Session, flipped[3], good, good)
	if res[0].Status != protocol.InvalidReceipt || res[1].Status != protocol.OK || res[2].Status != protocol.OK {
		t.Fatalf("mixed: %+v", res)
	}
	// and the holder's own has settled the message.
	if p := c.pop(popRequest(b.Session, "jobs", 1)); len(p.Rows) != 0 || p.Leased != 0 {
		t.Fatalf("%d rows, %d leased", len(p.Rows), p.Leased)
	}
}

func TestValuesOutOfBounds(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "x")
	pop := func(change func(*protocol.PopRequest)) *protocol.PopRequest {
		p := popRequest(s.Session, "jobs", 1)
		change(p)
		return p
	}
	for name, x := range map[string]struct {
		req    *protocol.PopRequest
		status protocol.Status
		detail uint64
	}{
		"lease below 10 ms":     {pop(func(p *protocol.PopRequest) { p.InvisibleMs = 9 }), protocol.Invalid, protocol.MinInvisibleMs},
		"lease over 6 h":        {pop(func(p *protocol.PopRequest) { p.InvisibleMs = protocol.MaxInvisibleMs + 1 }), protocol.Invalid, protocol.MaxInvisibleMs},
		"no messages":           {pop(func(p *protocol.PopRequest) { p.Max = 0 }), protocol.Invalid, protocol.MaxPopMessages},
		"too many messages":     {pop(func(p *protocol.PopRequest) { p.Max = 257 }), protocol.Invalid, protocol.MaxPopMessages},
		"a start by time":       {pop(func(p *protocol.PopRequest) { p.Start = protocol.StartTime }), protocol.Unsupported, 0},
		"a topic that is not":   {pop(func(p *protocol.PopRequest) { p.Topic = "none" }), protocol.TopicNotFound, 0},
		"illegal characters":    {pop(func(p *protocol.PopRequest) { p.Topic = "a/b" }), protocol.Invalid, 0},
		"an unknown session":    {pop(func(p *protocol.PopRequest) { p.Session = 7 }), protocol.SessionNotFound, 0},
		"a slot that is not":    {pop(func(p *protocol.PopRequest) { p.Slot = 16 }), protocol.Invalid, protocol.MaxPopSlot},
		"a wait over 5 minutes": {pop(func(p *protocol.PopRequest) { p.AwaitMs = protocol.MaxAwaitMs + 1 }), protocol.Invalid, protocol.MaxAwaitMs},
	} {
		status, why := c.refused(protocol.OpPop, 0, x.req)
		if status != x.status || x.detail != 0 && why.Detail != x.detail {
			t.Errorf("%s: %s, detail %d (%s)", name, status, why.Detail, why.Message)
		}
	}
	c.pop(popRequest(s.Session, "jobs", 1))
	if status, _ := c.refused(protocol.OpPop, 0, pop(func(p *protocol.PopRequest) { p.FilterTags = []string{"red"} })); status != protocol.FilterConflict {
		t.Errorf("another filter: %s", status)
	}
	if status, _ := c.refused(0x7e, 0, nil); status != protocol.Unsupported {
		t.Errorf("unknown opcode: %s", status)
	}
	for _, code := range []protocol.Opcode{protocol.OpReject, protocol.OpPull, protocol.OpCommitOffset, protocol.OpQueryOffset, protocol.OpRecall} {
		if status, _ := c.refused(code, 0, nil); status != protocol.Unsupported {
			t.Errorf("%s: %s", code, status)
		}
	}
}

func TestMessagesThatAreNotTaken(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Limits.MaxBodyBytes = 1000 })
	c := r.dial()
	results := c.send("jobs",
		codec.Message{},                                         // empty is legal
		codec.Message{Body: make([]byte, 1001)},                 // too large
		codec.Message{Delayed: true, DeliverAt: 1},              // not served
		codec.Message{ProducerID: 5},                            // sequences begin at 1
		codec.Message{Body: make([]byte, 1000), OrderKey: "ok"}, // just right
	)
	want := []protocol.Status{protocol.OK, protocol.TooLarge, protocol.Unsupported, protocol.Invalid, protocol.OK}
	for i, res := range results {
		if res.Status != want[i] {
			t.Errorf("message %d: %s, want %s", i, res.Status, want[i])
		}
	}
	req := protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue, Messages: [][]byte{{1, 2, 3}}}
	var a protocol.SendAnswer
	c.ok(protocol.OpSend, 0, &req, &a)
	if a.Results[0].Status != protocol.Invalid {
		t.Errorf("bytes that are no message: %s", a.Results[0].Status)
	}
	req.ProducerID = 3
	if status, _ := c.refused(protocol.OpSend, 0, &req); status != protocol.Unsupported {
		t.Errorf("a producer id: %s", status)
	}
	req = protocol.SendRequest{Topic: "jobs", Queue: 8, Messages: req.Messages}
	if status, why := c.refused(protocol.OpSend, 0, &req); status != protocol.Invalid || why.Detail != 7 {
		t.Errorf("a queue that is not: %s, %d", status, why.Detail)
	}
}

func TestReleases(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	c.ok(protocol.OpUpdateGroup, 0, &protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{BackOff: protocol.BackOffFixed, BackOffMinMs: 2000}}, nil)
	c.sendBodies("jobs", "x")
	pop := func() ([]byte, bool) {
		p := c.pop(popRequest(s.Session, "jobs", 1))
		if len(p.Rows) == 0 {
			return nil, false
		}
		return receipts(&p)[0], true
	}
	beat := func(d time.Duration) {
		for ; d > 0; d -= time.Second {
			r.advance(min(d, time.Second))
			c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session}, nil)
		}
	}
	// Zero: visible at once; the receipt is void.
	got, _ := pop()
	if res := c.change(s.Session, protocol.ChangeEntry{Receipt: got, Ordinal: 1}); res[0].Status != protocol.OK {
		t.Fatalf("release: %+v", res)
	}
	if res := c.ack(s.Session, got); res[0].Status != protocol.Stale || res[0].Reason != protocol.ReasonReleased {
		t.Fatalf("ack after the release: %+v", res)
	}
	// Failed: back after the group's wait. The repetition is the same answer, and no second failure.
	got, ok := pop()
	if !ok {
		t.Fatal("a released message is not there")
	}
	failed := protocol.ChangeEntry{Receipt: got, Ordinal: 1, Cause: protocol.CauseFailed}
	first, again := c.change(s.Session, failed), c.change(s.Session, failed)
	if first[0].Status != protocol.OK || first[0] != again[0] || first[0].RemainingMs != 2000 {
		t.Fatalf("failed: %+v, again %+v", first, again)
	}
	beat(1900 * time.Millisecond)
	if _, ok := pop(); ok {
		t.Fatal("back before its wait was over")
	}
	beat(200 * time.Millisecond)
	p := c.pop(popRequest(s.Session, "jobs", 1))
	if len(p.Rows) != 1 || p.Rows[0].Failures != 1 || p.Rows[0].Attempt != 3 {
		t.Fatalf("rows %+v", p.Rows)
	}
	// Postponed: back when it says, counted nowhere.
	c.change(s.Session, protocol.ChangeEntry{Receipt: receipts(&p)[0], Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 5000})
	beat(4900 * time.Millisecond)
	if _, ok := pop(); ok {
		t.Fatal("back before it was postponed to")
	}
	beat(300 * time.Millisecond)
	if p = c.pop(popRequest(s.Session, "jobs", 1)); len(p.Rows) != 1 || p.Rows[0].Failures != 1 || p.Rows[0].Expiries != 0 {
		t.Fatalf("rows %+v", p.Rows)
	}
}

func TestRenewals(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "x")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	if p.Rows[0].RenewalsLeft != 3 || p.Rows[0].RemainingMs != protocol.DefaultInvisibleMs {
		t.Fatalf("row %+v", p.Rows[0])
	}
	renew := func(ordinal, ms uint32) protocol.SettleResult {
		return c.change(s.Session, protocol.ChangeEntry{Receipt: receipts(&p)[0], Ordinal: ordinal, InvisibleMs: ms})[0]
	}
	if res := renew(2, 60_000); res.Status != protocol.Stale || res.Reason != protocol.ReasonOrdinal {
		t.Fatalf("an ordinal left out: %+v", res)
	}
	for i := range uint32(3) {
		if res := renew(i+1, 60_000*(i+1)); res.Status != protocol.OK || res.RenewalsLeft != uint16(2-i) || res.RemainingMs != 60_000*(i+1) {
			t.Fatalf("renewal %d: %+v", i+1, res)
		}
	}
	if res := renew(4, 600_000); res.Status != protocol.RenewLimit || res.RemainingMs != 180_000 {
		t.Fatalf("the 4th renewal: %+v", res)
	}
	if res := renew(4, 5_000); res.Status != protocol.OK || res.RemainingMs != 5_000 {
		t.Fatalf("shorter is allowed: %+v", res)
	}
	if res := renew(5, protocol.MaxInvisibleMs+1); res.Status != protocol.Invalid {
		t.Fatalf("over the limit: %+v", res)
	}
	for range 6 {
		r.advance(time.Second)
		c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session}, nil)
	}
	if res := renew(5, 5_000); res.Status != protocol.Stale || res.Reason != protocol.ReasonExpired || res.AgoMs == 0 {
		t.Fatalf("after the expiry: %+v", res)
	}
	if res := c.ack(s.Session, receipts(&p)...); res[0].Status != protocol.OK {
		t.Fatalf("the late ack of the newest holder: %+v", res)
	}
}
