package protocol

import "encoding/binary"

var (
	_ Body = (*AckRequest)(nil)
	_ Body = (*AckAnswer)(nil)
	_ Body = (*ChangeInvisibleRequest)(nil)
	_ Body = (*ChangeInvisibleAnswer)(nil)
)

// A receipt of any length is decoded, so that one that was cut short or forged costs its own entry an
// INVALID_RECEIPT and not its whole batch.

const (
	ackEntryLeast    = 2
	changeEntryLeast = 13
)

func (m *AckRequest) Append(dst []byte) []byte {
	dst = appendU64(dst, m.Session)
	dst = appendCount(dst, len(m.Entries))
	for i := range m.Entries {
		dst = appendBool(dst, m.Entries[i].Duplicate)
		dst = appendShort(dst, m.Entries[i].Receipt)
	}
	return dst
}

func (m *AckRequest) Decode(b []byte) error {
	r := reader{b: b, body: "ACK request"}
	m.Session = r.u64("session")
	m.Entries = resize(m.Entries, r.count("entries", ackEntryLeast, MaxAckEntries))
	for i := range m.Entries {
		r.entry("entries", i)
		m.Entries[i].Duplicate = r.bool("duplicate")
		m.Entries[i].Receipt = r.short("receipt")
	}
	return r.done()
}

func (m *ChangeInvisibleRequest) Append(dst []byte) []byte {
	dst = appendU64(dst, m.Session)
	dst = appendCount(dst, len(m.Entries))
	for i := range m.Entries {
		entry := &m.Entries[i]
		dst = appendU32(dst, entry.Ordinal)
		dst = appendU32(dst, entry.InvisibleMs)
		dst = append(dst, byte(entry.Cause))
		dst = appendShort(dst, entry.Receipt)
		dst = appendText(dst, entry.Reason)
		dst = appendMedium(dst, entry.Checkpoint)
	}
	return dst
}

func (m *ChangeInvisibleRequest) Decode(b []byte) error {
	r := reader{b: b, body: "CHANGE_INVISIBLE request"}
	m.Session = r.u64("session")
	m.Entries = resize(m.Entries, r.count("entries", changeEntryLeast, MaxAckEntries))
	for i := range m.Entries {
		r.entry("entries", i)
		entry := &m.Entries[i]
		entry.Ordinal = r.u32("ordinal")
		entry.InvisibleMs = r.u32("invisible ms")
		entry.Cause = Cause(r.u8("cause"))
		entry.Receipt = r.short("receipt")
		r.text("reason", MaxFieldBytes, &entry.Reason)
		entry.Checkpoint = r.medium("checkpoint", MaxCheckpointBytes)
	}
	return r.done()
}

// One result of an ACK or CHANGE_INVISIBLE answer. Part of the wire format.
//
//	 0  u16  status
//	 2  u8   reason
//	 3  u8   zero
//	 4  u32  remaining ms
//	 8  u32  budget ms
//	12  u16  renewals left
//	14  u16  zero
//	16  u64  ago ms
//	24  u64  token
const SettleResultBytes = 32

// AppendSettleAnswerHead begins an ACK or CHANGE_INVISIBLE answer of n results; AppendSettleResult is then
// called n times.
func AppendSettleAnswerHead(dst []byte, n int) []byte { return appendCount(dst, n) }

// AppendSettleResult adds one result to an ACK or CHANGE_INVISIBLE answer.
func AppendSettleResult(dst []byte, m *SettleResult) []byte {
	dst, b := extend(dst, SettleResultBytes)
	binary.LittleEndian.PutUint16(b[0:], uint16(m.Status))
	b[2], b[3] = byte(m.Reason), 0
	binary.LittleEndian.PutUint32(b[4:], m.RemainingMs)
	binary.LittleEndian.PutUint32(b[8:], m.BudgetMs)
	binary.LittleEndian.PutUint16(b[12:], m.RenewalsLeft)
	binary.LittleEndian.PutUint16(b[14:], 0)
	binary.LittleEndian.PutUint64(b[16:], m.AgoMs)
	binary.LittleEndian.PutUint64(b[24:], m.Token)
	return dst
}

func appendSettleResults(dst []byte, results []SettleResult) []byte {
	dst = AppendSettleAnswerHead(dst, len(results))
	for i := range results {
		dst = AppendSettleResult(dst, &results[i])
	}
	return dst
}

func (r *reader) settleResults(results []SettleResult) []SettleResult {
	results = resize(results, r.count("results", SettleResultBytes, MaxAckEntries))
	for i := range results {
		r.entry("results", i)
		b, result := r.take("result", SettleResultBytes), &results[i]
		if b == nil {
			break // a reserved field before was not zero
		}
		result.Status = Status(binary.LittleEndian.Uint16(b[0:]))
		result.Reason = Reason(b[2])
		result.RemainingMs = binary.LittleEndian.Uint32(b[4:])
		result.BudgetMs = binary.LittleEndian.Uint32(b[8:])
		result.RenewalsLeft = binary.LittleEndian.Uint16(b[12:])
		result.AgoMs = binary.LittleEndian.Uint64(b[16:])
		result.Token = binary.LittleEndian.Uint64(b[24:])
		if b[3]|b[14]|b[15] != 0 {
			r.fail(Invalid, "reserved bytes", 0, "not zero")
		}
	}
	return results
}

func (m *AckAnswer) Append(dst []byte) []byte { return appendSettleResults(dst, m.Results) }

func (m *AckAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "ACK answer"}
	m.Results = r.settleResults(m.Results)
	return r.done()
}

func (m *ChangeInvisibleAnswer) Append(dst []byte) []byte {
	return appendSettleResults(dst, m.Results)
}

func (m *ChangeInvisibleAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "CHANGE_INVISIBLE answer"}
	m.Results = r.settleResults(m.Results)
	return r.done()
}
