package broker

import (
	"fmt"

	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/protocol"
)

// The end

// drain has one more consumer of each group take and settle everything. What every message has counted is told
// by its rows, and nothing may be left.
func (d *lockstep) drain() {
	d.say("everything is drained")
	for _, group := range d.groups {
		x := &client{group: group, consumer: "drain"}
		for i := 0; i < 60 && d.unsettled(group); i++ {
			d.stepRegisterDrain(x)
			for _, topic := range d.topics {
				for n := 1; n > 0; {
					n = d.drainSome(x, topic)
				}
			}
			d.tick(500)
		}
		if d.unsettled(group) && d.m.groups[group].rules.BackOff != protocol.BackOffLevels {
			late := int64(0)
			for _, sub := range d.m.groups[group].subs {
				for _, e := range sub.entries {
					if e.state != modelSettled {
						late = max(late, e.endMs)
					}
				}
			}
			if late < d.m.nowMs {
				d.fail("messages are left in %s", group)
			}
		}
	}
}

func (d *lockstep) stepRegisterDrain(x *client) {
	if d.lives(x.session) {
		return
	}
	d.names++
	req := protocol.RegisterRequest{Group: x.group, ConsumerID: x.consumer}
	copy(req.Nonce[:], fmt.Sprint(d.names))
	d.register(x, req)
	d.settled()
}

func (d *lockstep) drainSome(x *client, topic string) int {
	had := len(d.receipts)
	d.pop(x, popRequest(x.session, topic, 256), false)
	req := &protocol.AckRequest{Session: x.session}
	for _, r := range d.receipts[had:] {
		if d.means[string(r.bytes)].session == x.session {
			req.Entries = append(req.Entries, protocol.AckEntry{Receipt: r.bytes})
		}
	}
	if len(req.Entries) == 0 {
		return 0
	}
	s, no := d.m.call(x.session)
	a := d.ask(protocol.OpAck, req)
	d.refused("ack", a, no)
	var got protocol.AckAnswer
	if err := got.Decode(a.body); err != nil {
		d.fail("ack: %v", err)
	}
	for i, e := range req.Entries {
		d.same("ack", got.Results[i], d.m.ack(s, d.means[string(e.Receipt)]))
	}
	d.settled()
	return len(req.Entries)
}

func (d *lockstep) unsettled(group string) bool {
	for topic, sub := range d.m.groups[group].subs {
		for q, queue := range d.m.topics[topic].queues {
			for offset := sub.starts[q]; offset < uint64(len(queue)); offset++ {
				if e := sub.entries[modelPlace{uint16(q), offset}]; e == nil || e.state != modelSettled {
					return true
				}
			}
		}
	}
	return false
}

// compare holds the state of the engine against the model's.
func (d *lockstep) compare() {
	d.commit()
	for name, g := range d.m.groups {
		for topic, sub := range g.subs {
			d.compareSub(name, topic, sub)
		}
		group, ok := d.e.fold.sessions.GroupNamed(name)
		if !ok || group.Version != g.version {
			d.fail("%s is at version %d, not %d", name, group.Version, g.version)
		}
	}
	for id, s := range d.m.sessions {
		got, ok := d.e.fold.sessions.Session(id)
		if !ok || got.Ended != (s.ended != protocol.ReasonNone) ||
			got.Ended && (endReason(got.Cause) != s.ended || got.EndedMs != s.endedMs) {
			d.fail("session %d is %+v, not %+v", id, got, s)
		}
		if got.Ended {
			continue
		}
		d.same("leases of a session", int(d.e.fold.leases.Held(got.Slot)), d.m.held(id))
		for n, slot := range s.slots {
			mark := d.e.fold.leases.PopMark(got.Slot, n)
			d.same("a pop slot", [2]uint64{mark.Sequence, mark.Token}, [2]uint64{slot.sequence, slot.token})
		}
	}
}

func (d *lockstep) compareSub(group, topic string, sub *modelSub) {
	table := d.e.fold.leases
	g, _ := d.e.fold.sessions.GroupNamed(group)
	topicID := d.e.fold.topics.slab.At(d.e.fold.topics.names[topic]).id
	at, ok := table.Find(g.ID, topicID)
	if !ok || at.ID != sub.id {
		d.fail("the subscription of %s to %s is %d, not %d", group, topic, at.ID, sub.id)
	}
	leased, waiting := d.m.counts(group, topic)
	d.same("counts of a subscription", [2]uint64{at.Leased, at.Waiting}, [2]uint64{leased, waiting})
	for q, queue := range d.m.topics[topic].queues {
		pos := table.Position(at.Slot, uint16(q))
		ready := map[uint64]bool{}
		table.EachReady(at.Slot, uint16(q), func(offset uint64) bool {
			ready[offset] = true
			return true
		})
		passed := uint64(0)
		for offset := range uint64(len(queue)) {
			e := sub.entries[modelPlace{uint16(q), offset}]
			probe := lease.Receipt{
				Topic: topicID, Group: g.ID, Sub: sub.id, Queue: uint16(q), Offset: offset, ID: queue[offset].id,
			}
			if e != nil {
				probe.Token = e.token
			}
			d.compareMessage(at.Slot, &probe, e, ready[offset])
			if e != nil && e.state == modelSettled && offset < pos.Next {
				passed++
			}
		}
		if pos.Settled != passed {
			d.fail("%d messages of queue %d are settled, not %d", pos.Settled, q, passed)
		}
	}
}

// compareMessage compares one message of a group. The probe has the token that the model knows.
func (d *lockstep) compareMessage(slot uint32, probe *lease.Receipt, e *modelEntry, ready bool) {
	table := d.e.fold.leases
	differ := func(what string, got, want any) {
		d.fail("the message at %d:%d, %s:\n got %+v\nwant %+v", probe.Queue, probe.Offset, what, got, want)
	}
	if e == nil {
		if table.Known(slot, probe.Queue, probe.Offset) {
			differ("new", false, true)
		}
		return
	}
	got, leased := table.Granted(slot, probe.Queue, probe.Offset)
	if leased != (e.state == modelLeased) {
		differ("leased", leased, !leased)
	}
	if is := e.state == modelWaiting && e.ready > 0; ready != is {
		differ("ready", ready, is)
	}
	v := table.CheckAck(probe)
	var want lease.Verdict
	switch e.state {
	case modelLeased:
		is := lease.Granted{
			Token: e.token, Attempts: uint16(e.counts.attempts), Renewals: uint16(e.renewed), Ordinal: uint16(e.ordinal),
			Failures: uint8(e.counts.failures), Expiries: uint8(e.counts.expiries), Losses: uint8(e.counts.losses),
			EndMs: e.endMs, SinceMs: e.sinceMs,
		}
		if got != is {
			differ("the lease", got, is)
		}
		holder, _ := table.Holder(probe.Sub, probe.Queue, probe.Offset)
		if s := d.e.fold.sessions.SessionAt(holder).ID; s != e.session {
			differ("its holder", s, e.session)
		}
		want = lease.Verdict{Status: protocol.OK, Apply: true, Token: e.token}
	case modelWaiting:
		want = lease.Verdict{Status: protocol.Stale, Reason: e.why, Token: e.token, AtMs: e.sinceMs}
		switch e.why {
		case protocol.ReasonExpired:
			want = lease.Verdict{Status: protocol.OK, Apply: true, Late: true, Token: e.token}
		case protocol.ReasonSessionFenced, protocol.ReasonSessionLeft:
			want.Reason = protocol.ReasonSessionExpired // a receipt's session is asked for how it ended
		}
	case modelSettled:
		want = lease.Verdict{Status: protocol.OK, Token: e.token}
	}
	if v != want {
		differ("its ack", v, want)
	}
}
