package broker

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// What clients do in a history, and how each answer is held against the model.

// Sending

func (d *lockstep) stepSend() {
	topic := one(d.rnd, d.topics...)
	req := &protocol.SendRequest{Topic: topic, Queue: protocol.AnyQueue}
	if d.rnd.IntN(2) == 0 {
		req.Queue = int32(d.rnd.IntN(len(d.m.topics[topic].queues)))
	}
	var bodies []string
	for range 1 + d.rnd.IntN(5) {
		d.names++
		body := fmt.Sprintf("%d-%s", d.names, strings.Repeat("x", d.rnd.IntN(80)))
		bodies = append(bodies, body)
		req.Messages = append(req.Messages, encoded(d.t, body))
	}
	d.say("%d messages to %s", len(bodies), topic)
	a := d.ask(protocol.OpSend, req)
	var got protocol.SendAnswer
	if a.Status != protocol.OK || got.Decode(a.body) != nil || len(got.Results) != len(bodies) {
		d.fail("send: %s", a.Status)
	}
	for i, r := range got.Results {
		if err := d.m.send(topic, r.Queue, r.Offset, r.MessageID, bodies[i]); r.Status != protocol.OK || err != nil {
			d.fail("send: %s %v", r.Status, err)
		}
		if req.Queue != protocol.AnyQueue && int32(r.Queue) != req.Queue || r.Queue != got.Results[0].Queue {
			d.fail("sent to queue %d", r.Queue)
		}
	}
	d.settled()
}

// Sessions

func (d *lockstep) stepRegister(x *client) {
	req := x.register
	if req.Group == "" || d.rnd.IntN(5) > 0 { // else the repetition of the newest one
		d.names++
		req = protocol.RegisterRequest{Group: x.group, ConsumerID: x.consumer}
		copy(req.Nonce[:], fmt.Sprint(d.names))
		if x.session != 0 && d.rnd.IntN(3) > 0 {
			req.Previous = x.session
			if d.rnd.IntN(6) == 0 {
				req.Previous -= uint64(d.rnd.IntN(3))
			}
		}
		if d.rnd.IntN(2) == 0 {
			of := x.session
			for range d.rnd.IntN(30) {
				r := d.pick()
				if r == nil {
					break
				}
				if len(req.Receipts) == 0 && !d.lives(r.session) && d.means[string(r.bytes)].group == x.group {
					of = r.session
				}
				if r.session == of || d.rnd.IntN(12) == 0 {
					req.Receipts = append(req.Receipts, d.bent(r.bytes))
				}
			}
			req.ReclaimMs = uint32(one(d.rnd, 0, 0, 0, 700, 3000, 3000, 5000, 30_000))
		}
	}
	for again := true; again; again = d.rnd.IntN(8) == 0 {
		d.register(x, req)
		d.settled()
	}
}

func (d *lockstep) register(x *client, req protocol.RegisterRequest) {
	want, no := d.m.register(&req)
	d.say("%s/%s registers, nonce %s, previous %d, %d receipts -> session %x %s",
		x.group, x.consumer, strings.TrimRight(string(req.Nonce[:]), "\x00"), req.Previous&0xffff, len(req.Receipts),
		want.Session, no.status)
	a := d.ask(protocol.OpRegister, &req)
	if d.refused("register", a, no) {
		return
	}
	var got protocol.RegisterAnswer
	if err := got.Decode(a.body); err != nil {
		d.fail("register: %v", err)
	}
	var meant []modelReceipt
	for _, r := range req.Receipts {
		meant = append(meant, d.means[string(r)])
	}
	var means []modelReceipt
	var err error
	want.Reclaimed, means, err = d.m.reclaim(d.m.sessions[want.Session], meant, req.ReclaimMs, got.Reclaimed)
	if err != nil {
		d.fail("register: %v\n%+v", err, got.Reclaimed)
	}
	for i := range want.Reclaimed {
		d.met[fmt.Sprintf("a receipt reclaimed %s %s", want.Reclaimed[i].Status, want.Reclaimed[i].Reason)]++
		if i < len(got.Reclaimed) && want.Reclaimed[i].Status == protocol.OK {
			d.got(got.Reclaimed[i].Receipt, means[i], true)
			got.Reclaimed[i].Receipt = nil
		}
	}
	if len(got.Reclaimed) == 0 {
		got.Reclaimed = nil
	}
	for i := range got.Reclaimed {
		if len(got.Reclaimed[i].Receipt) == 0 {
			got.Reclaimed[i].Receipt = nil
		}
	}
	d.same("register", got, want)
	if x.session != got.Session {
		x.session, x.slots = got.Session, [3]clientSlot{}
	}
	x.register = req
}

func (d *lockstep) stepUnregister(x *client) {
	if x.session == 0 {
		return
	}
	d.say("%s/%s unregisters", x.group, x.consumer)
	for again := true; again; again = d.rnd.IntN(4) == 0 {
		no := d.m.unregister(x.session)
		d.refused("unregister", d.ask(protocol.OpUnregister, &protocol.UnregisterRequest{Session: x.session}), no)
		d.settled()
	}
}

func (d *lockstep) beat(x *client) {
	if x.session == 0 {
		return
	}
	want, no := d.m.heartbeat(x.session)
	want.Timestamp = d.rnd.Uint64()
	a := d.ask(protocol.OpHeartbeat, &protocol.HeartbeatRequest{Session: x.session, Timestamp: want.Timestamp})
	if d.refused("heartbeat", a, no) {
		return
	}
	var got protocol.HeartbeatAnswer
	if err := got.Decode(a.body); err != nil {
		d.fail("heartbeat: %v", err)
	}
	d.same("heartbeat", got, want)
}

// Taking messages

func (d *lockstep) stepPop() {
	x := one(d.rnd, d.clients...)
	if !d.lives(x.session) && d.rnd.IntN(4) > 0 {
		d.stepRegister(x)
	}
	if x.session == 0 {
		return
	}
	topic := one(d.rnd, d.topics...)
	req := popRequest(x.session, topic, one(d.rnd, 1, 1, 2, 3, 5, 20, 256))
	req.InvisibleMs = uint32(one(d.rnd, 0, 10, 500, 1500, 4000, 8000))
	if d.rnd.IntN(10) == 0 {
		req.MaxBytes = uint32(100 + d.rnd.IntN(800))
	}
	if d.rnd.IntN(3) == 0 {
		req.AwaitMs = uint32(1 + d.rnd.IntN(4000))
	}
	if d.rnd.IntN(6) == 0 {
		req.Start = protocol.StartLatest
	}
	slot := &x.slots[d.rnd.IntN(len(x.slots))]
	switch p := d.rnd.IntN(20); {
	case p < 5: // no pop id
	case p < 9 && slot.sequence > 0:
		*req = slot.request
		if d.rnd.IntN(10) == 0 {
			req.Topic = topic
		}
	case p < 10:
		req.Slot, req.Sequence = d.slotOf(x, slot), max(slot.sequence+uint64(d.rnd.IntN(6)), 2)-2+uint64(d.rnd.IntN(2))
	default:
		req.Slot, req.Sequence = d.slotOf(x, slot), slot.sequence+1
		req.PreviousLost = slot.lost || d.rnd.IntN(8) == 0
	}
	if req.Sequence == 0 {
		req.PreviousLost = false
	}
	lost := d.rnd.IntN(6) == 0
	d.pop(x, req, lost)
	if lost && req.Sequence == 0 && d.rnd.IntN(2) == 0 {
		d.pop(x, req, false)
	}
}

func (d *lockstep) lives(session uint64) bool {
	s := d.m.sessions[session]
	return s != nil && s.ended == protocol.ReasonNone
}

func (d *lockstep) slotOf(x *client, slot *clientSlot) uint8 {
	for i := range x.slots {
		if &x.slots[i] == slot {
			return uint8(i * 7)
		}
	}
	panic("not a slot of the client")
}

// pop sends one POP. lost: its answer does not reach the client.
func (d *lockstep) pop(x *client, req *protocol.PopRequest, lost bool) {
	p := &modelPop{}
	verdict, no, again := d.m.pop(req, p)
	d.say("%s/%s pops %d (%d bytes) of %s, sequence %d of slot %d, previous lost %v, awaits %d ms, lease %d ms (request %d): %s",
		x.group, x.consumer, req.Max, req.MaxBytes, req.Topic, req.Sequence, req.Slot, req.PreviousLost, req.AwaitMs,
		req.InvisibleMs, d.next+1,
		[]string{"refused", "repeated", "open"}[verdict])
	c := one(d.rnd, d.conns...)
	p.request = c.start(protocol.OpPop, 0, req)
	if req.Sequence > 0 && (verdict != popRefused || no.status == protocol.LimitExceeded) {
		x.slots[req.Slot/7] = clientSlot{req.Sequence, lost, *req}
	}
	switch {
	case verdict == popRefused:
		d.refused("pop", c.wait(p.request), no)
	case verdict == popRepeats:
		d.met["a pop repeated"]++
		d.repeated(x, req.Topic, again, c.wait(p.request))
	case d.m.available(p) > 0:
		a := c.wait(p.request)
		if d.refused("pop", a, no); a.Status != protocol.OK {
			d.fail("pop: %s, %d were to be had", a.Status, d.m.available(p))
		}
		got := d.popAnswer(a)
		d.granted(p, x, &got, lost)
	case req.AwaitMs == 0:
		a := c.wait(p.request)
		if d.refused("pop", a, no); a.Status != protocol.Empty {
			d.fail("pop: %s, nothing was to be had", a.Status)
		}
		got := d.popAnswer(a)
		d.empty(p, &got)
	default:
		d.m.parked = append(d.m.parked, p)
		d.parked = append(d.parked, &parked{p, c, x, lost})
	}
	d.settled()
}

func (d *lockstep) popAnswer(a answer) (p protocol.PopAnswer) {
	if err := p.Decode(a.body); err != nil {
		d.fail("pop: %v", err)
	}
	return p
}

// rows takes the records of an answer apart.
func (d *lockstep) rows(got *protocol.PopAnswer) (rows []modelRow) {
	for i := range got.Rows {
		_, assigned, payload, err := codec.ReadRecord(got.Record(i))
		var v codec.View
		if err == nil {
			err = v.Parse(payload)
		}
		if err != nil {
			d.fail("pop: %v", err)
		}
		at := codec.ParseMessagePlace(assigned)
		rows = append(rows, modelRow{
			got.Rows[i], modelPlace{at.Queue, at.Offset}, at.ID, string(v.Body), codec.Padded(int(got.Rows[i].RecordLength)),
		})
	}
	return rows
}

// told compares rows, without what depends on where things lie, and tells the broker's.
func (d *lockstep) told(got []modelRow, want []protocol.LeaseRow) {
	var told []protocol.LeaseRow
	for _, r := range got {
		row := r.LeaseRow
		row.RecordOffset, row.RecordLength, row.Receipt, row.Checkpoint = 0, 0, nil, nil
		told = append(told, row)
	}
	d.same("the rows of a pop", told, want)
}

func (d *lockstep) granted(p *modelPop, x *client, got *protocol.PopAnswer, lost bool) {
	rows := d.rows(got)
	want, err := d.m.grant(p, rows)
	if err != nil {
		d.fail("pop %d: %v", p.request, err)
	}
	d.met["messages granted"] += len(rows)
	d.told(rows, want)
	d.empty(p, got)
	for _, r := range rows {
		d.say("  granted %v with token %x", r.at, r.Token&0xffff_ffff)
		d.got(r.Receipt, d.meaning(x.group, p, &r), !lost)
	}
}

func (d *lockstep) meaning(group string, p *modelPop, r *modelRow) modelReceipt {
	return modelReceipt{
		authentic: true, group: group, topic: p.topic, sub: d.m.groups[group].subs[p.topic].id,
		session: p.session, at: r.at, message: r.id, token: r.Token,
	}
}

// got notes a receipt and what it means; known: its holder got to know it.
func (d *lockstep) got(b []byte, means modelReceipt, known bool) {
	if old, ok := d.bytesOf[means]; ok {
		if old != string(b) {
			d.fail("another receipt of the same lease of %v", means.at)
		}
	} else if _, ok := d.means[string(b)]; ok {
		d.fail("the same receipt for another lease, of %v", means.at)
	}
	d.bytesOf[means], d.means[string(b)] = string(b), means
	if known {
		d.receipts = append(d.receipts, &receipt{bytes: bytes.Clone(b), session: means.session})
	}
}

// repeated holds the repetition of an answer against the leases that should be in it.
func (d *lockstep) repeated(x *client, topic string, leases map[modelPlace]*modelEntry, a answer) {
	d.refused("the repetition of a pop", a, modelRefusal{})
	got := d.popAnswer(a)
	rows := d.rows(&got)
	if len(rows) != len(leases) || len(rows) == 0 && a.Status != protocol.Empty {
		d.fail("%s: the repetition of a pop has %d rows, not %d", a.Status, len(rows), len(leases))
	}
	var want []protocol.LeaseRow
	for _, r := range rows {
		e := leases[r.at]
		if e == nil {
			d.fail("the repetition of a pop has the message at %v", r.at)
		}
		delete(leases, r.at)
		want = append(want, d.m.row(d.m.groups[x.group], e))
		d.got(r.Receipt, d.meaning(x.group, &modelPop{topic: topic, session: x.session}, &r), true)
	}
	d.told(rows, want)
	leased, waiting := d.m.counts(x.group, topic)
	d.same("counts of a pop", [2]uint64{got.Leased, got.Waiting}, [2]uint64{leased, waiting})
}

// empty holds what an answer tells of the topic against the model.
func (d *lockstep) empty(p *modelPop, got *protocol.PopAnswer) {
	leased, waiting := d.m.counts(d.m.sessions[p.session].group, p.topic)
	d.same("counts of a pop", [2]uint64{got.Leased, got.Waiting}, [2]uint64{leased, waiting})
}

// Settling and renewing

// pick is a receipt, rather a young one.
func (d *lockstep) pick() *receipt {
	if n := len(d.receipts); n > 0 {
		if d.rnd.IntN(3) > 0 {
			return d.receipts[n-1-d.rnd.IntN(min(n, 15))]
		}
		return d.receipts[d.rnd.IntN(n)]
	}
	return nil
}

// bent is a receipt, sometimes truncated or forged.
func (d *lockstep) bent(b []byte) []byte {
	switch d.rnd.IntN(60) {
	case 0:
		return b[:d.rnd.IntN(len(b))]
	case 1:
		b = bytes.Clone(b)
		b[d.rnd.IntN(len(b))] ^= 1 << d.rnd.IntN(8)
		if _, ok := d.means[string(b)]; ok {
			d.fail("a forgery is a receipt")
		}
	}
	return b
}

// batch picks receipts, mostly those of the session of the first.
func (d *lockstep) batch() (session uint64, list []*receipt) {
	for range one(d.rnd, 1, 1, 1, 2, 3, 8) {
		r := d.pick()
		if r == nil {
			return 0, nil
		}
		for range 3 {
			if len(list) == 0 && !d.lives(r.session) {
				r = d.pick()
			}
		}
		if len(list) == 0 || r.session == session || d.rnd.IntN(10) == 0 {
			list = append(list, r)
			session = list[0].session
		}
	}
	if d.rnd.IntN(12) == 0 { // presented by somebody else
		session = one(d.rnd, d.clients...).session
	}
	if d.rnd.IntN(8) == 0 {
		list = append(list, list[0])
	}
	return session, list
}

func (d *lockstep) stepAck() {
	session, list := d.batch()
	if list == nil {
		return
	}
	req := &protocol.AckRequest{Session: session}
	for _, r := range list {
		req.Entries = append(req.Entries, protocol.AckEntry{Receipt: d.bent(r.bytes), Duplicate: d.rnd.IntN(9) == 0})
	}
	for again := true; again; again = d.rnd.IntN(6) == 0 { // the answer was lost
		s, no := d.m.call(session)
		d.say("session %x acks", session)
		a := d.ask(protocol.OpAck, req)
		if d.refused("ack", a, no) {
			break
		}
		var got protocol.AckAnswer
		if err := got.Decode(a.body); err != nil {
			d.fail("ack: %v", err)
		}
		for i, x := range req.Entries {
			r := d.means[string(x.Receipt)]
			d.say("  %s%v token %x: %s %s", r.topic, r.at, r.token&0xffff_ffff, got.Results[i].Status, got.Results[i].Reason)
			if d.waits(r) && got.Results[i].Status == protocol.OK {
				d.met["late ack"]++
			}
			d.sameEntry("ack", i, got.Results[i], d.m.ack(s, r), d.m.lostToken(r.token))
		}
		d.settled()
	}
}

// waits tells whether the message of r waits.
func (d *lockstep) waits(r modelReceipt) bool {
	if !r.authentic {
		return false
	}
	_, e, _ := d.m.find(r)
	return e != nil && e.state == modelWaiting
}

// sameEntry compares the result of one entry.
func (d *lockstep) sameEntry(what string, i int, got, want protocol.SettleResult, lost bool) {
	d.met[fmt.Sprintf("%s of an entry %s %s", what, got.Status, got.Reason)]++
	if lost && got.Status == protocol.OK {
		d.met[what+" of a grant lost in a crash"]++
	}
	d.same(fmt.Sprintf("%s of entry %d", what, i), got, want)
}

func (d *lockstep) stepChange() {
	session, list := d.batch()
	if list == nil {
		return
	}
	req := &protocol.ChangeInvisibleRequest{Session: session}
	for _, r := range list {
		x := protocol.ChangeEntry{Receipt: d.bent(r.bytes)}
		x.Ordinal = max(r.ordinal+uint32(one(d.rnd, 1, 1, 1, 1, 1, 1, 0, 0, 2, 3)), 1) - uint32(d.rnd.IntN(20)/19)
		x.Cause = one(d.rnd, protocol.CauseRenew, protocol.CauseRenew, protocol.CauseRenew, protocol.CauseFailed, protocol.CausePostponed)
		x.InvisibleMs = uint32(one(d.rnd, 0, 0, 0, 10, 400, 400, 1500, 3000, 3000, 5000, 5000, 5000, 5, 19_000, 21_000,
			protocol.MaxInvisibleMs))
		req.Entries = append(req.Entries, x)
	}
	for again := true; again; again = d.rnd.IntN(6) == 0 {
		s, no := d.m.call(session)
		d.say("session %x changes", session)
		a := d.ask(protocol.OpChangeInvisible, req)
		if d.refused("change", a, no) {
			break
		}
		var got protocol.ChangeInvisibleAnswer
		if err := got.Decode(a.body); err != nil {
			d.fail("change: %v", err)
		}
		for i := range req.Entries {
			x := &req.Entries[i]
			r := d.means[string(x.Receipt)]
			res := got.Results[i]
			d.say("  %s%v token %x: ordinal %d, %s, %d ms: %s %s", r.topic, r.at, r.token&0xffff_ffff, x.Ordinal, x.Cause,
				x.InvisibleMs, res.Status, res.Reason)
			want := d.m.change(s, r, x)
			if want.Status == protocol.Invalid {
				res.BudgetMs = 0 // the limit that the request is over, or nothing
			}
			d.sameEntry("change", i, res, want, d.m.lostToken(r.token))
			if res.Status == protocol.OK {
				list[i].ordinal = max(list[i].ordinal, x.Ordinal)
			}
		}
		d.settled()
	}
}
