package broker

import (
	"cmp"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// createTopic appends and applies the record of a new topic.
func (e *Engine) createTopic(name string, queues uint16, uniqueKeyMs uint32) (slot uint32, status protocol.Status, why protocol.ErrorBody) {
	if err := protocol.CheckName("topic", name); err != nil {
		status, why = protocol.Refusal(err)
		return 0, status, why
	}
	t := e.fold.topics
	if len(t.ids) >= e.limits.Topics {
		return 0, protocol.LimitExceeded, protocol.ErrorBody{Message: "topics", Detail: uint64(e.limits.Topics)}
	}
	if t.queues.Len()+int(queues) > e.limits.Queues {
		return 0, protocol.LimitExceeded, protocol.ErrorBody{Message: "queues of all topics", Detail: uint64(e.limits.Queues)}
	}
	if !e.diskFor(worstSmall, grantReserve) {
		return 0, protocol.StoreFull, e.noSpace("new state", worstSmall, grantReserve)
	}
	rec := codec.Topic{
		Op: codec.OpCreate, ID: t.nextID, Queues: queues, UniqueKeyMs: cmp.Or(uniqueKeyMs, protocol.DefaultUniqueKeyMs), Name: []byte(name),
	}
	e.appendRecord(codec.TypeTopic, rec.Append(e.scratch.payload))
	e.fold.topic(&rec)
	slot = t.ids[rec.ID]
	e.topicRun = fit(e.topicRun, slot)
	e.topicRun[slot] = topicRun{}
	e.addTopicRun(slot)
	return slot, protocol.OK, protocol.ErrorBody{}
}

func (e *Engine) createTopicCall(o *op, r *protocol.CreateTopicRequest) {
	if _, taken := e.fold.topics.names[r.Name]; taken {
		o.refuse(protocol.TopicExists, 0, "the topic exists")
		return
	}
	_, o.status, o.why = e.createTopic(r.Name, r.Queues, r.UniqueKeyMs)
}

func (e *Engine) updateTopic(o *op, r *protocol.UpdateTopicRequest) {
	t := e.fold.topics
	slot, ok := t.names[r.Name]
	if !ok {
		o.refuse(protocol.TopicNotFound, 0, "no topic "+r.Name)
		return
	}
	have := t.slab.At(slot).queues
	queues := cmp.Or(r.Queues, have)
	uniqueKeyMs := cmp.Or(r.UniqueKeyMs, t.slab.At(slot).uniqueKeyMs)
	more := int(queues) - int(have)
	switch {
	case more < 0:
		o.refuse(protocol.Invalid, uint64(have), "a topic never has fewer queues than before")
		return
	case more == 0 && uniqueKeyMs == t.slab.At(slot).uniqueKeyMs:
		return
	case t.queues.Len()+more > e.limits.Queues:
		o.refuse(protocol.LimitExceeded, uint64(e.limits.Queues), "queues of all topics")
		return
	case e.fold.leases.Cursors()+more*len(e.topicRun[slot].subs) > e.limits.Cursors:
		o.refuse(protocol.LimitExceeded, uint64(e.limits.Cursors), "cursors (queues times groups)")
		return
	case !e.diskFor(worstSmall, grantReserve):
		o.status, o.why = protocol.StoreFull, e.noSpace("new state", worstSmall, grantReserve)
		return
	}
	rec := codec.Topic{Op: codec.OpUpdate, ID: t.slab.At(slot).id, Queues: queues, UniqueKeyMs: uniqueKeyMs, Name: []byte(r.Name)}
	e.appendRecord(codec.TypeTopic, rec.Append(e.scratch.payload))
	e.fold.topic(&rec)
	e.addTopicRun(slot)
}

func (e *Engine) deleteTopic(o *op, r *protocol.NameRequest) {
	t := e.fold.topics
	slot, ok := t.names[r.Name]
	if !ok {
		o.refuse(protocol.TopicNotFound, 0, "no topic "+r.Name)
		return
	}
	id := t.slab.At(slot).id
	subs, queues := e.topicRun[slot].subs, t.queueOf[slot]
	for _, q := range queues {
		e.queueRun[q] = queueRun{}
	}
	rec := codec.Topic{Op: codec.OpDelete, ID: id, Name: []byte(r.Name)}
	e.appendRecord(codec.TypeTopic, rec.Append(e.scratch.payload))
	e.fold.topic(&rec)
	for _, sub := range subs { // their answers depend on the record
		e.dropSubRun(sub, protocol.TopicNotFound, "the topic was deleted")
	}
	e.topicRun[slot] = topicRun{}
	e.gone = append(e.gone, goneRun{topic: id, drop: true, end: e.log.Appended()})
	e.lookAtAll()
	e.vacated.Store(true)
}

// purgeTopic lets go of everything that a topic has. What groups hold of it is void, and they go on behind it.
func (e *Engine) purgeTopic(o *op, r *protocol.NameRequest) {
	t := e.fold.topics
	slot, ok := t.names[r.Name]
	if !ok {
		o.refuse(protocol.TopicNotFound, 0, "no topic "+r.Name)
		return
	}
	subs := e.topicRun[slot].subs
	rec := codec.Topic{Op: codec.OpPurge, ID: t.slab.At(slot).id, Queues: t.slab.At(slot).queues, Name: []byte(r.Name)}
	e.appendRecord(codec.TypeTopic, rec.Append(e.scratch.payload))
	for _, sub := range subs { // they ask again, and find the new subscription
		for _, w := range e.waitersOf(sub) {
			e.unpark(w)
			e.answerEmpty(w)
			e.hand(w)
		}
		e.subRun[sub] = subRun{}
	}
	e.fold.topic(&rec)
	e.topicRun[slot].subs = nil
	for _, sub := range e.fold.leases.SubsOf(rec.ID) {
		e.addSubRun(sub, e.log.Appended())
	}
	for _, q := range t.queueOf[slot] {
		e.giveUp(q, t.queues.At(q).begin)
	}
	e.lookAtAll()
	e.vacated.Store(true)
}

// dropSubRun answers who waits for a subscription that is gone.
func (e *Engine) dropSubRun(slot uint32, s protocol.Status, message string) {
	e.refuseWaiters(e.waitersOf(slot), s, protocol.ErrorBody{Message: message})
	e.subRun[slot] = subRun{}
}

func (e *Engine) listTopics(o *op) {
	var a protocol.ListTopicsAnswer
	t := e.fold.topics
	for _, slot := range t.sorted() {
		x := t.slab.At(slot)
		info := protocol.TopicInfo{Name: t.name(slot), ID: x.id, Queues: x.queues, UniqueKeyMs: x.uniqueKeyMs}
		for _, q := range t.queueOf[slot] {
			info.Messages += t.queues.At(q).next - t.queues.At(q).begin
			info.Sent += t.queues.At(q).next
		}
		a.Topics = append(a.Topics, info)
	}
	o.body = a.Append(o.body[:0])
}

func rulesRecord(r protocol.GroupRules) codec.Rules {
	return codec.Rules{
		InvisibleMs: r.InvisibleMs, MaxInvisibleMs: r.MaxInvisibleMs, MaxRenewals: r.MaxRenewals, MaxTotalMs: r.MaxTotalMs,
		HeartbeatMs: r.HeartbeatMs, SessionTimeoutMs: r.SessionTimeoutMs,
		BackOff: uint8(r.BackOff), BackOffMinMs: r.BackOffMinMs, BackOffMaxMs: r.BackOffMaxMs,
		MaxFailures: r.MaxFailures, MaxExpiries: r.MaxExpiries, MaxSessionLosses: r.MaxSessionLosses,
		MaxInFlight: r.MaxInFlight, HoldMs: r.HoldMs,
	}
}

func rulesAnswer(r *codec.Rules) protocol.GroupRules {
	return protocol.GroupRules{
		InvisibleMs: r.InvisibleMs, MaxInvisibleMs: r.MaxInvisibleMs, MaxRenewals: r.MaxRenewals, MaxTotalMs: r.MaxTotalMs,
		HeartbeatMs: r.HeartbeatMs, SessionTimeoutMs: r.SessionTimeoutMs,
		BackOff: protocol.BackOff(r.BackOff), BackOffMinMs: r.BackOffMinMs, BackOffMaxMs: r.BackOffMaxMs,
		MaxFailures: r.MaxFailures, MaxExpiries: r.MaxExpiries, MaxSessionLosses: r.MaxSessionLosses,
		MaxInFlight: r.MaxInFlight, HoldMs: r.HoldMs,
	}
}

// createGroup appends and applies the record of a new group.
func (e *Engine) createGroup(name string, rules protocol.GroupRules) (protocol.Status, protocol.ErrorBody) {
	rules = rules.WithDefaults()
	err := protocol.CheckName("group", name)
	if err == nil {
		err = rules.Validate()
	}
	if err != nil {
		return protocol.Refusal(err)
	}
	if len(e.fold.sessions.Groups()) >= e.limits.Groups {
		return protocol.LimitExceeded, protocol.ErrorBody{Message: "groups", Detail: uint64(e.limits.Groups)}
	}
	if !e.diskFor(worstSmall, grantReserve) {
		return protocol.StoreFull, e.noSpace("new state", worstSmall, grantReserve)
	}
	e.writeGroup(&codec.Group{
		Op: codec.OpCreate, ID: e.fold.sessions.NextGroupID(), Rules: rulesRecord(rules), Name: []byte(name),
	})
	return protocol.OK, protocol.ErrorBody{}
}

func (e *Engine) writeGroup(rec *codec.Group) {
	h := e.appendRecord(codec.TypeGroup, rec.Append(e.scratch.payload))
	e.fold.group(&h, rec)
	e.gates[rec.ID] = e.log.Appended()
}

func (e *Engine) createGroupCall(o *op, r *protocol.GroupRequest) {
	if _, taken := e.fold.sessions.GroupNamed(r.Name); taken {
		o.refuse(protocol.GroupExists, 0, "the group exists")
		return
	}
	o.status, o.why = e.createGroup(r.Name, r.Rules)
}

func (e *Engine) updateGroup(o *op, r *protocol.GroupRequest) {
	g, ok := e.fold.sessions.GroupNamed(r.Name)
	if !ok {
		o.refuse(protocol.GroupNotFound, 0, "no group "+r.Name)
		return
	}
	rules := r.Rules.Merge(rulesAnswer(g.Rules))
	if err := rules.Validate(); err != nil {
		o.status, o.why = protocol.Refusal(err)
		return
	}
	if !e.diskFor(worstSmall, grantReserve) {
		o.status, o.why = protocol.StoreFull, e.noSpace("new state", worstSmall, grantReserve)
		return
	}
	e.writeGroup(&codec.Group{Op: codec.OpUpdate, ID: g.ID, Rules: rulesRecord(rules), Name: []byte(r.Name)})
	for _, slot := range e.fold.leases.Subs() { // a cap may have been raised
		if sub := e.fold.leases.At(slot); sub.Group == g.ID {
			for q := range e.fold.leases.Queues(slot) {
				e.markActive(slot, uint16(q))
			}
		}
	}
}

func (e *Engine) deleteGroup(o *op, r *protocol.NameRequest) {
	g, ok := e.fold.sessions.GroupNamed(r.Name)
	if !ok {
		o.refuse(protocol.GroupNotFound, 0, "no group "+r.Name)
		return
	}
	if g.Live > 0 {
		// Ending many sessions in one hold is not bounded, and deleting what is in use is never meant.
		o.refuse(protocol.Invalid, uint64(g.Live), "the group has live sessions")
		return
	}
	var subs []uint32
	for _, slot := range e.fold.leases.Subs() {
		if sub := e.fold.leases.At(slot); sub.Group == g.ID {
			subs = append(subs, slot)
			if t, ok := e.fold.topics.ids[sub.Topic]; ok {
				e.topicRun[t].subs = removeSlot(e.topicRun[t].subs, slot)
			}
		}
	}
	e.writeGroup(&codec.Group{Op: codec.OpDelete, ID: g.ID, Name: []byte(r.Name)})
	delete(e.gates, g.ID)
	for _, slot := range subs {
		e.dropSubRun(slot, protocol.GroupNotFound, "the group was deleted")
	}
}

func removeSlot(list []uint32, slot uint32) []uint32 {
	for i, s := range list {
		if s == slot {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}

func (e *Engine) listGroups(o *op) {
	var a protocol.ListGroupsAnswer
	at := map[uint32]int{}
	for _, id := range e.fold.sessions.Groups() {
		g, _ := e.fold.sessions.GroupByID(id)
		at[id] = len(a.Groups)
		a.Groups = append(a.Groups, protocol.GroupSummary{Name: e.fold.sessions.GroupName(id), ID: id, Sessions: g.Live})
	}
	for _, slot := range e.fold.leases.Subs() {
		sub := e.fold.leases.At(slot)
		if i, ok := at[sub.Group]; ok {
			a.Groups[i].Leased += sub.Leased
			a.Groups[i].Waiting += sub.Waiting
		}
	}
	o.body = a.Append(o.body[:0])
}

// Rows of a SHOW_GROUP answer, so that it stays below the frame limit; what is left off is counted in it.
const (
	maxShownSessions = 4096
	maxShownCursors  = 16 << 10
)

func (e *Engine) showGroup(o *op, r *protocol.NameRequest) {
	g, ok := e.fold.sessions.GroupNamed(r.Name)
	if !ok {
		o.refuse(protocol.GroupNotFound, 0, "no group "+r.Name)
		return
	}
	a := protocol.ShowGroupAnswer{Name: r.Name, ID: g.ID, Version: g.Version, Rules: rulesAnswer(g.Rules)}
	if g.Live == 0 {
		a.IdleMs = uint64(max(e.wallMs(e.clock.Mono())-g.IdleMs, 0))
	}
	nowMs := e.lease.now()
	for _, id := range e.fold.sessions.LiveOf(g.ID) {
		if len(a.Sessions) == maxShownSessions {
			a.SessionsLeftOff++
			continue
		}
		s, _ := e.fold.sessions.Session(id)
		info := protocol.SessionInfo{Session: id, Leases: e.fold.leases.Held(s.Slot)}
		info.ConsumerID, info.ClientInfo = e.fold.sessions.Names(s.Slot)
		if live, ok := e.fold.sessions.Live(id); ok {
			seen, _ := live.Seen()
			info.SilentMs = uint32(max(nowMs-seen, 0))
		}
		a.Sessions = append(a.Sessions, info)
	}
	for _, slot := range e.fold.leases.Subs() {
		sub := e.fold.leases.At(slot)
		if sub.Group != g.ID {
			continue
		}
		topicSlot := e.fold.topics.ids[sub.Topic]
		for q, qSlot := range e.fold.topics.queueOf[topicSlot] {
			if len(a.Cursors) == maxShownCursors {
				a.CursorsLeftOff++
				continue
			}
			pos := e.fold.leases.Position(slot, uint16(q))
			a.Cursors = append(a.Cursors, protocol.CursorInfo{
				Topic: e.fold.topics.name(topicSlot), Queue: uint16(q), Next: pos.Next,
				End: e.fold.topics.queues.At(qSlot).next, Leased: uint64(pos.Leased), Waiting: uint64(pos.Waiting),
				Settled: pos.Settled, Skipped: pos.Skipped, Dropped: pos.Dropped,
			})
		}
	}
	o.body = a.Append(o.body[:0])
}
