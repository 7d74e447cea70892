package protocol

// Body is what every request, answer and push but the empty ones has.
type Body interface {
	Append(dst []byte) []byte
	Decode(b []byte) error
}

var (
	_ Body = (*HelloRequest)(nil)
	_ Body = (*HelloAnswer)(nil)
	_ Body = (*RegisterRequest)(nil)
	_ Body = (*RegisterAnswer)(nil)
	_ Body = (*HeartbeatRequest)(nil)
	_ Body = (*HeartbeatAnswer)(nil)
	_ Body = (*UnregisterRequest)(nil)
	_ Body = (*SessionEnded)(nil)
	_ Body = (*ErrorBody)(nil)
)

// reclaimedLeast is the length of an entry of RegisterAnswer.Reclaimed without its receipt.
const reclaimedLeast = 34

func (m *HelloRequest) Append(dst []byte) []byte {
	dst = append(dst, m.MinVersion, m.MaxVersion)
	dst = appendU64(dst, m.Features)
	dst = appendMedium(dst, m.Auth)
	return appendText(dst, m.ClientInfo)
}

func (m *HelloRequest) Decode(b []byte) error {
	r := reader{b: b, body: "HELLO request"}
	m.MinVersion = r.u8("min version")
	m.MaxVersion = r.u8("max version")
	m.Features = r.u64("features")
	m.Auth = r.medium("auth", 1<<16-1)
	r.text("client info", MaxFieldBytes, &m.ClientInfo)
	return r.done()
}

func (m *HelloAnswer) Append(dst []byte) []byte {
	dst = append(dst, m.Version)
	dst = appendU64(dst, m.Features)
	dst = appendU32(dst, m.Epoch)
	dst = appendU32(dst, m.CreditBytes)
	dst = appendU32(dst, m.MaxFrameBytes)
	dst = appendU32(dst, m.MaxBodyBytes)
	return appendShort(dst, m.BrokerID)
}

func (m *HelloAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "HELLO answer"}
	m.Version = r.u8("version")
	m.Features = r.u64("features")
	m.Epoch = r.u32("epoch")
	m.CreditBytes = r.u32("credit bytes")
	m.MaxFrameBytes = r.u32("max frame bytes")
	m.MaxBodyBytes = r.u32("max body bytes")
	r.text("broker id", MaxFieldBytes, &m.BrokerID)
	return r.done()
}

func (m *RegisterRequest) Append(dst []byte) []byte {
	dst = append(dst, m.Nonce[:]...)
	dst = appendU64(dst, m.Previous)
	dst = appendU32(dst, m.ReclaimMs)
	dst = appendShort(dst, m.Group)
	dst = appendShort(dst, m.ConsumerID)
	dst = appendText(dst, m.ClientInfo)
	dst = appendCount(dst, len(m.Receipts))
	for _, receipt := range m.Receipts {
		dst = appendShort(dst, receipt)
	}
	return dst
}

func (m *RegisterRequest) Decode(b []byte) error {
	r := reader{b: b, body: "REGISTER request"}
	copy(m.Nonce[:], r.take("nonce", NonceBytes))
	m.Previous = r.u64("previous")
	m.ReclaimMs = r.u32("reclaim ms")
	r.text("group", MaxWireNameBytes, &m.Group)
	r.text("consumer id", MaxFieldBytes, &m.ConsumerID)
	r.text("client info", MaxFieldBytes, &m.ClientInfo)
	m.Receipts = resize(m.Receipts, r.count("receipts", 1, MaxReclaimReceipts))
	for i := range m.Receipts {
		r.entry("receipts", i)
		m.Receipts[i] = r.short("receipt")
	}
	return r.done()
}

func (m *RegisterAnswer) Append(dst []byte) []byte {
	dst = appendU64(dst, m.Session)
	dst = appendU64(dst, m.Generation)
	dst = appendU64(dst, m.GroupVersion)
	dst = appendU32(dst, m.HeartbeatMs)
	dst = appendU32(dst, m.TimeoutMs)
	dst = appendU32(dst, m.InvisibleMs)
	dst = appendU32(dst, m.MaxInvisibleMs)
	dst = appendCount(dst, len(m.Reclaimed))
	for i := range m.Reclaimed {
		x := &m.Reclaimed[i]
		dst = appendU16(dst, uint16(x.Status))
		dst = append(dst, byte(x.Reason))
		dst = appendU64(dst, x.Token)
		dst = appendU64(dst, x.AgoMs)
		dst = appendU32(dst, x.Attempt)
		dst = appendU32(dst, x.RemainingMs)
		dst = appendU32(dst, x.BudgetMs)
		dst = appendU16(dst, x.RenewalsLeft)
		dst = appendShort(dst, x.Receipt)
	}
	return dst
}

func (m *RegisterAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "REGISTER answer"}
	m.Session = r.u64("session")
	m.Generation = r.u64("generation")
	m.GroupVersion = r.u64("group version")
	m.HeartbeatMs = r.u32("heartbeat ms")
	m.TimeoutMs = r.u32("timeout ms")
	m.InvisibleMs = r.u32("invisible ms")
	m.MaxInvisibleMs = r.u32("max invisible ms")
	m.Reclaimed = resize(m.Reclaimed, r.count("reclaimed", reclaimedLeast, MaxReclaimReceipts))
	for i := range m.Reclaimed {
		r.entry("reclaimed", i)
		x := &m.Reclaimed[i]
		x.Status = Status(r.u16("status"))
		x.Reason = Reason(r.u8("reason"))
		x.Token = r.u64("token")
		x.AgoMs = r.u64("ago ms")
		x.Attempt = r.u32("attempt")
		x.RemainingMs = r.u32("remaining ms")
		x.BudgetMs = r.u32("budget ms")
		x.RenewalsLeft = r.u16("renewals left")
		x.Receipt = r.short("receipt")
	}
	return r.done()
}

func (m *HeartbeatRequest) Append(dst []byte) []byte {
	dst = appendU64(dst, m.Session)
	dst = appendU64(dst, m.GroupVersion)
	dst = appendU64(dst, m.Timestamp)
	dst = appendU32(dst, m.Held)
	return appendU32(dst, m.ProgressMs)
}

func (m *HeartbeatRequest) Decode(b []byte) error {
	r := reader{b: b, body: "HEARTBEAT request"}
	m.Session = r.u64("session")
	m.GroupVersion = r.u64("group version")
	m.Timestamp = r.u64("timestamp")
	m.Held = r.u32("held")
	m.ProgressMs = r.u32("progress ms")
	return r.done()
}

func (m *HeartbeatAnswer) Append(dst []byte) []byte {
	dst = appendU64(dst, m.GroupVersion)
	dst = appendU64(dst, m.Timestamp)
	dst = appendU32(dst, m.LeasesLost)
	return appendBool(dst, m.Draining)
}

func (m *HeartbeatAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "HEARTBEAT answer"}
	m.GroupVersion = r.u64("group version")
	m.Timestamp = r.u64("timestamp")
	m.LeasesLost = r.u32("leases lost")
	m.Draining = r.bool("draining")
	return r.done()
}

func (m *UnregisterRequest) Append(dst []byte) []byte { return appendU64(dst, m.Session) }

func (m *UnregisterRequest) Decode(b []byte) error {
	r := reader{b: b, body: "UNREGISTER request"}
	m.Session = r.u64("session")
	return r.done()
}

func (m *SessionEnded) Append(dst []byte) []byte {
	return append(appendU64(dst, m.Session), byte(m.Reason))
}

func (m *SessionEnded) Decode(b []byte) error {
	r := reader{b: b, body: "SESSION_ENDED push"}
	m.Session = r.u64("session")
	m.Reason = Reason(r.u8("reason"))
	return r.done()
}

func (m *ErrorBody) Append(dst []byte) []byte {
	dst = append(dst, byte(m.Reason))
	dst = appendU64(dst, m.Detail)
	return appendMedium(dst, cut(m.Message, 1<<16-1))
}

func (m *ErrorBody) Decode(b []byte) error {
	r := reader{b: b, body: "error body"}
	m.Reason = Reason(r.u8("reason"))
	m.Detail = r.u64("detail")
	r.set(r.medium("message", 1<<16-1), &m.Message)
	return r.done()
}
