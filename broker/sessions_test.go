package broker

import (
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// TestCallsOfSessionsThatDoNotLive: each operation that names a session refuses one that is unknown, was silent for too long, was
// fenced, or has left, and says which.
func TestCallsOfSessionsThatDoNotLive(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	r.advance(time.Second)
	c.sendBodies("jobs", "a", "b", "c")
	type former struct {
		name    string
		session uint64
		receipt []byte
		status  protocol.Status
		reason  protocol.Reason
	}
	list := []former{{"unknown", 12345, nil, protocol.SessionNotFound, protocol.ReasonNone}}
	take := func(consumer string, status protocol.Status, reason protocol.Reason) uint64 {
		s := c.register("g", consumer)
		p := c.pop(popRequest(s.Session, "jobs", 1))
		list = append(list, former{consumer, s.Session, receipts(&p)[0], status, reason})
		return s.Session
	}
	// Given one session of each kind, which held a message,
	take("silent", protocol.SessionNotFound, protocol.ReasonSessionExpired)
	for range 13 {
		r.advance(time.Second)
	}
	take("fenced", protocol.SessionFenced, protocol.ReasonSessionFenced)
	c.register("g", "fenced")
	left := take("left", protocol.SessionNotFound, protocol.ReasonSessionLeft)
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: left}, nil)
	for _, when := range []string{"in the same run", "after a restart"} {
		r.advance(500 * time.Millisecond)
		for _, x := range list {
			receipt := x.receipt
			if receipt == nil {
				receipt = make([]byte, protocol.ReceiptBytes)
			}
			for code, request := range map[protocol.Opcode]interface{ Append([]byte) []byte }{
				protocol.OpHeartbeat:       &protocol.HeartbeatRequest{Session: x.session},
				protocol.OpPop:             popRequest(x.session, "jobs", 1),
				protocol.OpAck:             &protocol.AckRequest{Session: x.session, Entries: []protocol.AckEntry{{Receipt: receipt}}},
				protocol.OpChangeInvisible: &protocol.ChangeInvisibleRequest{Session: x.session, Entries: []protocol.ChangeEntry{{Receipt: receipt, Ordinal: 1}}},
				protocol.OpUnregister:      &protocol.UnregisterRequest{Session: x.session},
			} {
				// when it calls, then it is told why not,
				status, why := c.refused(code, 0, request)
				if code == protocol.OpUnregister && x.reason == protocol.ReasonSessionLeft {
					if status != protocol.OK { // the repetition of what was done
						t.Errorf("%s, %s, %s: %s", when, x.name, code, status)
					}
					continue
				}
				if status != x.status || why.Reason != x.reason || x.reason != protocol.ReasonNone && why.Detail < 500 {
					t.Errorf("%s, %s, %s: %s %s, %d ms ago (%s)", when, x.name, code, status, why.Reason, why.Detail, why.Message)
				}
			}
		}
		r.restart()
		c = r.dial()
	}
	// and nothing has changed: all that they held is there to be had.
	r.advance(5 * time.Second) // one was lost twice and waits a moment
	s := c.register("g", "another")
	if p := c.pop(popRequest(s.Session, "jobs", 5)); len(p.Rows) != 3 {
		t.Errorf("%d messages are left", len(p.Rows))
	}
}

// TestBatchOfGoodAndBadChanges: each entry has its own status.
func TestBatchOfGoodAndBadChanges(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "1", "2", "3", "4", "5")
	p := c.pop(popRequest(s.Session, "jobs", 5))
	got := receipts(&p)
	renew := func(receipt []byte, ordinal, ms uint32) protocol.ChangeEntry {
		return protocol.ChangeEntry{Receipt: receipt, Ordinal: ordinal, InvisibleMs: ms}
	}
	c.ack(s.Session, got[4])
	forged := append([]byte(nil), got[0]...)
	forged[50] ^= 4
	for i, want := range []struct {
		entry     protocol.ChangeEntry
		status    protocol.Status
		remaining uint32
	}{
		{renew(got[0], 1, 60_000), protocol.OK, 60_000},
		{renew(forged, 1, 60_000), protocol.InvalidReceipt, 0},
		{renew(got[1], 1, protocol.MaxInvisibleMs+1), protocol.Invalid, 0},
		{renew(got[1], 1, 9), protocol.Invalid, 0},
		{renew(got[1], 1, 5_000), protocol.OK, 5_000},             // shorter: exact
		{renew(got[2], 1, 0), protocol.OK, 0},                     // a release
		{renew(got[2], 1, 0), protocol.OK, 0},                     // repeated
		{renew(got[2], 2, 60_000), protocol.Stale, 0},             // and gone
		{renew(got[0], 1, 60_000), protocol.OK, 60_000},           // repeated: no budget spent
		{renew(got[0], 2, 120_000), protocol.OK, 120_000},         //
		{renew(got[0], 3, 180_000), protocol.OK, 180_000},         //
		{renew(got[0], 4, 240_000), protocol.RenewLimit, 180_000}, // the 4th
		{renew(got[4], 1, 60_000), protocol.AlreadySettled, 0},
		{renew(got[3][:40], 1, 60_000), protocol.InvalidReceipt, 0},
	} {
		// One by one and in one batch they come to the same; here one batch with a good one on each side.
		res := c.change(s.Session, renew(got[3], uint32(i)+1, 25_000), want.entry)
		if res[1].Status != want.status || res[1].RemainingMs != want.remaining {
			t.Errorf("entry %d: %+v, want %s, %d ms", i, res[1], want.status, want.remaining)
		}
		if res[0].Status != protocol.OK || res[0].RemainingMs != 25_000 {
			t.Errorf("the good one beside entry %d: %+v", i, res[0])
		}
	}
}
