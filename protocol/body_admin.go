package protocol

var (
	_ Body = (*CreateTopicRequest)(nil)
	_ Body = (*UpdateTopicRequest)(nil)
	_ Body = (*NameRequest)(nil)
	_ Body = (*ListTopicsAnswer)(nil)
	_ Body = (*GroupRules)(nil)
	_ Body = (*GroupRequest)(nil)
	_ Body = (*ListGroupsAnswer)(nil)
	_ Body = (*ShowGroupAnswer)(nil)
	_ Body = (*StatsAnswer)(nil)
)

func (m *CreateTopicRequest) Append(dst []byte) []byte {
	return appendShort(appendU32(appendU16(dst, m.Queues), m.UniqueKeyMs), m.Name)
}

func (m *CreateTopicRequest) Decode(b []byte) error {
	r := reader{b: b, body: "CREATE_TOPIC request"}
	m.Queues = r.u16("queues")
	m.UniqueKeyMs = r.u32("unique key ms")
	r.text("name", MaxWireNameBytes, &m.Name)
	return r.done()
}

func (m *UpdateTopicRequest) Append(dst []byte) []byte {
	return appendShort(appendU32(appendU16(dst, m.Queues), m.UniqueKeyMs), m.Name)
}

func (m *UpdateTopicRequest) Decode(b []byte) error {
	r := reader{b: b, body: "UPDATE_TOPIC request"}
	m.Queues = r.u16("queues")
	m.UniqueKeyMs = r.u32("unique key ms")
	r.text("name", MaxWireNameBytes, &m.Name)
	return r.done()
}

func (m *NameRequest) Append(dst []byte) []byte { return appendShort(dst, m.Name) }

func (m *NameRequest) Decode(b []byte) error {
	r := reader{b: b, body: "request by name"}
	r.text("name", MaxWireNameBytes, &m.Name)
	return r.done()
}

func (m *ListTopicsAnswer) Append(dst []byte) []byte {
	dst = appendCount(dst, len(m.Topics))
	for i := range m.Topics {
		topic := &m.Topics[i]
		dst = appendU32(dst, topic.ID)
		dst = appendU16(dst, topic.Queues)
		dst = appendU64(dst, topic.Messages)
		dst = appendU64(dst, topic.Sent)
		dst = appendU32(dst, topic.UniqueKeyMs)
		dst = appendShort(dst, topic.Name)
	}
	return dst
}

func (m *ListTopicsAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "LIST_TOPICS answer"}
	m.Topics = resize(m.Topics, r.count("topics", 27, 0))
	for i := range m.Topics {
		r.entry("topics", i)
		topic := &m.Topics[i]
		topic.ID = r.u32("id")
		topic.Queues = r.u16("queues")
		topic.Messages = r.u64("messages")
		topic.Sent = r.u64("sent")
		topic.UniqueKeyMs = r.u32("unique key ms")
		r.text("name", MaxWireNameBytes, &topic.Name)
	}
	return r.done()
}

// GroupRulesBytes is the length of encoded group rules.
const GroupRulesBytes = 52

func (m *GroupRules) Append(dst []byte) []byte {
	dst = appendU64(dst, m.MaxTotalMs)
	dst = appendU64(dst, m.HoldMs)
	dst = appendU32(dst, m.InvisibleMs)
	dst = appendU32(dst, m.MaxInvisibleMs)
	dst = appendU32(dst, m.HeartbeatMs)
	dst = appendU32(dst, m.SessionTimeoutMs)
	dst = appendU32(dst, m.BackOffMinMs)
	dst = appendU32(dst, m.BackOffMaxMs)
	dst = appendU32(dst, m.MaxInFlight)
	dst = appendU16(dst, m.MaxRenewals)
	dst = append(dst, byte(m.BackOff), m.MaxFailures, m.MaxExpiries, m.MaxSessionLosses)
	dst = appendBool(dst, m.Ordered)
	return appendBool(dst, m.Assigned)
}

func (m *GroupRules) Decode(b []byte) error {
	r := reader{b: b, body: "group rules"}
	r.rules(m)
	return r.done()
}

func (r *reader) rules(m *GroupRules) {
	m.MaxTotalMs = r.u64("max total ms")
	m.HoldMs = r.u64("hold ms")
	m.InvisibleMs = r.u32("invisible ms")
	m.MaxInvisibleMs = r.u32("max invisible ms")
	m.HeartbeatMs = r.u32("heartbeat ms")
	m.SessionTimeoutMs = r.u32("session timeout ms")
	m.BackOffMinMs = r.u32("back-off min ms")
	m.BackOffMaxMs = r.u32("back-off max ms")
	m.MaxInFlight = r.u32("max in flight")
	m.MaxRenewals = r.u16("max renewals")
	m.BackOff = BackOff(r.u8("back-off"))
	m.MaxFailures = r.u8("max failures")
	m.MaxExpiries = r.u8("max expiries")
	m.MaxSessionLosses = r.u8("max session losses")
	m.Ordered = r.bool("ordered")
	m.Assigned = r.bool("assigned")
}

func (m *GroupRequest) Append(dst []byte) []byte {
	return appendShort(m.Rules.Append(dst), m.Name)
}

func (m *GroupRequest) Decode(b []byte) error {
	r := reader{b: b, body: "group request"}
	r.rules(&m.Rules)
	r.text("name", MaxWireNameBytes, &m.Name)
	return r.done()
}

func (m *ListGroupsAnswer) Append(dst []byte) []byte {
	dst = appendCount(dst, len(m.Groups))
	for i := range m.Groups {
		group := &m.Groups[i]
		dst = appendU32(dst, group.ID)
		dst = appendU32(dst, group.Sessions)
		dst = appendU64(dst, group.Leased)
		dst = appendU64(dst, group.Waiting)
		dst = appendShort(dst, group.Name)
	}
	return dst
}

func (m *ListGroupsAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "LIST_GROUPS answer"}
	m.Groups = resize(m.Groups, r.count("groups", 25, 0))
	for i := range m.Groups {
		r.entry("groups", i)
		group := &m.Groups[i]
		group.ID = r.u32("id")
		group.Sessions = r.u32("sessions")
		group.Leased = r.u64("leased")
		group.Waiting = r.u64("waiting")
		r.text("name", MaxWireNameBytes, &group.Name)
	}
	return r.done()
}

func (m *ShowGroupAnswer) Append(dst []byte) []byte {
	dst = appendU32(dst, m.ID)
	dst = appendU64(dst, m.Version)
	dst = appendU64(dst, m.IdleMs)
	dst = m.Rules.Append(dst)
	dst = appendShort(dst, m.Name)
	dst = appendU32(dst, m.SessionsLeftOff)
	dst = appendCount(dst, len(m.Sessions))
	for i := range m.Sessions {
		session := &m.Sessions[i]
		dst = appendU64(dst, session.Session)
		dst = appendU32(dst, session.Leases)
		dst = appendU32(dst, session.SilentMs)
		dst = appendShort(dst, session.ConsumerID)
		dst = appendText(dst, session.ClientInfo)
	}
	dst = appendU32(dst, m.CursorsLeftOff)
	dst = appendCount(dst, len(m.Cursors))
	for i := range m.Cursors {
		cursor := &m.Cursors[i]
		dst = appendU16(dst, cursor.Queue)
		dst = appendU64(dst, cursor.Next)
		dst = appendU64(dst, cursor.End)
		dst = appendU64(dst, cursor.Leased)
		dst = appendU64(dst, cursor.Waiting)
		dst = appendU64(dst, cursor.Settled)
		dst = appendU64(dst, cursor.Skipped)
		dst = appendU64(dst, cursor.Dropped)
		dst = appendShort(dst, cursor.Topic)
	}
	return dst
}

func (m *ShowGroupAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "SHOW_GROUP answer"}
	m.ID = r.u32("id")
	m.Version = r.u64("version")
	m.IdleMs = r.u64("idle ms")
	r.rules(&m.Rules)
	r.text("name", MaxWireNameBytes, &m.Name)
	m.SessionsLeftOff = r.u32("sessions left off")
	m.Sessions = resize(m.Sessions, r.count("sessions", 18, 0))
	for i := range m.Sessions {
		r.entry("sessions", i)
		session := &m.Sessions[i]
		session.Session = r.u64("session")
		session.Leases = r.u32("leases")
		session.SilentMs = r.u32("silent ms")
		r.text("consumer id", MaxFieldBytes, &session.ConsumerID)
		r.text("client info", MaxFieldBytes, &session.ClientInfo)
	}
	r.list = ""
	m.CursorsLeftOff = r.u32("cursors left off")
	m.Cursors = resize(m.Cursors, r.count("cursors", 59, 0))
	for i := range m.Cursors {
		r.entry("cursors", i)
		cursor := &m.Cursors[i]
		cursor.Queue = r.u16("queue")
		cursor.Next = r.u64("next")
		cursor.End = r.u64("end")
		cursor.Leased = r.u64("leased")
		cursor.Waiting = r.u64("waiting")
		cursor.Settled = r.u64("settled")
		cursor.Skipped = r.u64("skipped")
		cursor.Dropped = r.u64("dropped")
		r.text("topic", MaxWireNameBytes, &cursor.Topic)
	}
	return r.done()
}

func (m *StatsAnswer) Append(dst []byte) []byte {
	dst = appendCount(dst, len(m.Stats))
	for i := range m.Stats {
		dst = appendU64(dst, m.Stats[i].Value)
		dst = appendShort(dst, m.Stats[i].Name)
	}
	return dst
}

func (m *StatsAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "STATS answer"}
	m.Stats = resize(m.Stats, r.count("stats", 9, 0))
	for i := range m.Stats {
		r.entry("stats", i)
		m.Stats[i].Value = r.u64("value")
		r.text("name", MaxFieldBytes, &m.Stats[i].Name)
	}
	return r.done()
}
