package protocol

import (
	"encoding/binary"
	"fmt"
)

var (
	_ Body = (*PopRequest)(nil)
	_ Body = (*PopAnswer)(nil)
	_ Body = (*PeekRequest)(nil)
	_ Body = (*PeekAnswer)(nil)
)

func (m *PopRequest) Append(dst []byte) []byte {
	dst = appendU64(dst, m.Session)
	dst = appendU64(dst, m.Sequence)
	dst = appendU64(dst, m.StartTimeMs)
	dst = appendU64(dst, m.GroupVersion)
	dst = appendU32(dst, m.MaxBytes)
	dst = appendU32(dst, m.InvisibleMs)
	dst = appendU32(dst, m.AwaitMs)
	dst = appendU16(dst, m.Max)
	dst = append(dst, m.Slot)
	dst = appendBool(dst, m.PreviousLost)
	dst = append(dst, m.Start)
	dst = appendShort(dst, m.Topic)
	dst = appendCount(dst, len(m.FilterTags))
	for _, tag := range m.FilterTags {
		dst = appendShort(dst, tag)
	}
	return dst
}

func (m *PopRequest) Decode(b []byte) error {
	r := reader{b: b, body: "POP request"}
	m.Session = r.u64("session")
	m.Sequence = r.u64("sequence")
	m.StartTimeMs = r.u64("start time ms")
	m.GroupVersion = r.u64("group version")
	m.MaxBytes = r.u32("max bytes")
	m.InvisibleMs = r.u32("invisible ms")
	m.AwaitMs = r.u32("await ms")
	m.Max = r.u16("max")
	m.Slot = r.u8("slot")
	m.PreviousLost = r.bool("previous lost")
	m.Start = r.u8("start")
	r.text("topic", MaxWireNameBytes, &m.Topic)
	m.FilterTags = resize(m.FilterTags, r.count("filter tags", 1, MaxFilterTags))
	for i := range m.FilterTags {
		r.entry("filter tags", i)
		r.text("tag", MaxFieldBytes, &m.FilterTags[i])
	}
	return r.done()
}

// The body of a POP answer. Part of the wire format. The records come last, so that a broker can read
// them from its log straight into the frame.
//
//	 0  u64  leased
//	 8  u64  waiting
//	16  u32  rows
//	20       rows of LeaseRowBytes each:
//	           0  u32  record offset
//	           4  u32  record length
//	           8  u64  token
//	          16  u32  attempt
//	          20  u32  remaining ms
//	          24  u32  budget ms
//	          28  u16  renewals left
//	          30  u16  length of the checkpoint
//	          32  u8   failures
//	          33  u8   expiries
//	          34  u8   session losses
//	          35  u8   zero
//	          36       receipt, ReceiptBytes
//	         checkpoints of the rows, in their order, without gaps
//	    u32  length of the records
//	         records
const (
	LeaseRowBytes = 36 + ReceiptBytes

	popHeadBytes  = 20
	peekHeadBytes = 20
	// RecordRangeBytes is the length of a row of a PEEK answer.
	RecordRangeBytes = 8
)

// PopAnswerHeadBytes is the length of a POP answer up to where its record bytes begin, with so many rows
// and so many bytes of checkpoints in all.
func PopAnswerHeadBytes(rows, checkpointBytes int) int {
	return popHeadBytes + rows*LeaseRowBytes + checkpointBytes + 4
}

// PopCheckpointsAt is where in a POP answer of so many rows the checkpoints begin.
func PopCheckpointsAt(rows int) int { return popHeadBytes + rows*LeaseRowBytes }

// PutPopAnswerHead writes the fields around the rows into body, which is at least PopAnswerHeadBytes
// long. The rows are filled by PutLeaseRow, the checkpoints by the caller at PopCheckpointsAt, and
// recordsLen record bytes go behind.
func PutPopAnswerHead(body []byte, leased, waiting uint64, rows, checkpointBytes int, recordsLen uint32) {
	binary.LittleEndian.PutUint64(body[0:], leased)
	binary.LittleEndian.PutUint64(body[8:], waiting)
	binary.LittleEndian.PutUint32(body[16:], uint32(rows))
	binary.LittleEndian.PutUint32(body[PopAnswerHeadBytes(rows, checkpointBytes)-4:], recordsLen)
}

// PutLeaseRow writes row i of the POP answer body. The receipt must be ReceiptBytes long; of the
// checkpoint only the length is written.
func PutLeaseRow(body []byte, i int, row *LeaseRow) {
	if len(row.Receipt) != ReceiptBytes || len(row.Checkpoint) > MaxCheckpointBytes {
		panic(fmt.Sprintf("protocol: lease row with a receipt of %d bytes and a checkpoint of %d", len(row.Receipt), len(row.Checkpoint)))
	}
	b := body[popHeadBytes+i*LeaseRowBytes:][:LeaseRowBytes]
	binary.LittleEndian.PutUint32(b[0:], row.RecordOffset)
	binary.LittleEndian.PutUint32(b[4:], row.RecordLength)
	binary.LittleEndian.PutUint64(b[8:], row.Token)
	binary.LittleEndian.PutUint32(b[16:], row.Attempt)
	binary.LittleEndian.PutUint32(b[20:], row.RemainingMs)
	binary.LittleEndian.PutUint32(b[24:], row.BudgetMs)
	binary.LittleEndian.PutUint16(b[28:], row.RenewalsLeft)
	binary.LittleEndian.PutUint16(b[30:], uint16(len(row.Checkpoint)))
	b[32], b[33], b[34], b[35] = row.Failures, row.Expiries, row.SessionLosses, 0
	copy(b[36:], row.Receipt)
}

// LeaseRowReceipt is the place of the receipt of row i in the POP answer body. A receipt may be made
// there and handed to PutLeaseRow as it lies.
func LeaseRowReceipt(body []byte, i int) []byte {
	at := popHeadBytes + i*LeaseRowBytes + 36
	return body[at : at+ReceiptBytes : at+ReceiptBytes]
}

func (m *PopAnswer) Append(dst []byte) []byte {
	checkpoints := 0
	for i := range m.Rows {
		checkpoints += len(m.Rows[i].Checkpoint)
	}
	dst, body := extend(dst, PopAnswerHeadBytes(len(m.Rows), checkpoints))
	PutPopAnswerHead(body, m.Leased, m.Waiting, len(m.Rows), checkpoints, uint32(len(m.Records)))
	at := PopCheckpointsAt(len(m.Rows))
	for i := range m.Rows {
		PutLeaseRow(body, i, &m.Rows[i])
		at += copy(body[at:], m.Rows[i].Checkpoint)
	}
	return append(dst, m.Records...)
}

func (m *PopAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "POP answer"}
	m.Leased = r.u64("leased")
	m.Waiting = r.u64("waiting")
	m.Rows = resize(m.Rows, r.count("rows", LeaseRowBytes, MaxPopMessages))
	rows := r.take("rows", len(m.Rows)*LeaseRowBytes)
	for i := range m.Rows {
		r.entry("rows", i)
		b, row := rows[i*LeaseRowBytes:][:LeaseRowBytes], &m.Rows[i]
		row.RecordOffset = binary.LittleEndian.Uint32(b[0:])
		row.RecordLength = binary.LittleEndian.Uint32(b[4:])
		row.Token = binary.LittleEndian.Uint64(b[8:])
		row.Attempt = binary.LittleEndian.Uint32(b[16:])
		row.RemainingMs = binary.LittleEndian.Uint32(b[20:])
		row.BudgetMs = binary.LittleEndian.Uint32(b[24:])
		row.RenewalsLeft = binary.LittleEndian.Uint16(b[28:])
		row.Failures, row.Expiries, row.SessionLosses = b[32], b[33], b[34]
		if b[35] != 0 {
			r.fail(Invalid, "reserved byte", 0, "not zero")
		}
		row.Receipt = b[36:LeaseRowBytes:LeaseRowBytes]
		row.Checkpoint = r.bytes("checkpoint", int(binary.LittleEndian.Uint16(b[30:])), MaxCheckpointBytes)
	}
	r.list = ""
	m.Records = r.long("records")
	for i := range m.Rows {
		r.entry("rows", i)
		r.inside("record", m.Rows[i].RecordOffset, m.Rows[i].RecordLength, len(m.Records))
	}
	return r.done()
}

// inside checks that a record lies in the record bytes that came with it.
func (r *reader) inside(field string, offset, length uint32, records int) {
	if uint64(offset)+uint64(length) > uint64(records) {
		r.fail(Invalid, field, 0, "%d bytes at %d of %d", length, offset, records)
	}
}

// Record is the log record of row i.
func (m *PopAnswer) Record(i int) []byte {
	row := &m.Rows[i]
	return m.Records[row.RecordOffset:][:row.RecordLength:row.RecordLength]
}

func (m *PeekRequest) Append(dst []byte) []byte {
	dst = appendU64(dst, m.Offset)
	dst = appendU16(dst, m.Queue)
	dst = appendU16(dst, m.Max)
	return appendShort(dst, m.Topic)
}

func (m *PeekRequest) Decode(b []byte) error {
	r := reader{b: b, body: "PEEK request"}
	m.Offset = r.u64("offset")
	m.Queue = r.u16("queue")
	m.Max = r.u16("max")
	r.text("topic", MaxWireNameBytes, &m.Topic)
	return r.done()
}

// PeekAnswerHeadBytes is the length of a PEEK answer of so many rows up to where its record bytes begin.
func PeekAnswerHeadBytes(rows int) int { return peekHeadBytes + rows*RecordRangeBytes + 4 }

// PutPeekAnswerHead writes a PEEK answer up to where its record bytes begin into body.
func PutPeekAnswerHead(body []byte, begin, end uint64, rows []RecordRange, recordsLen uint32) {
	binary.LittleEndian.PutUint64(body[0:], begin)
	binary.LittleEndian.PutUint64(body[8:], end)
	binary.LittleEndian.PutUint32(body[16:], uint32(len(rows)))
	b := body[peekHeadBytes:]
	for _, row := range rows {
		binary.LittleEndian.PutUint32(b[0:], row.Offset)
		binary.LittleEndian.PutUint32(b[4:], row.Length)
		b = b[RecordRangeBytes:]
	}
	binary.LittleEndian.PutUint32(b, recordsLen)
}

func (m *PeekAnswer) Append(dst []byte) []byte {
	dst, body := extend(dst, PeekAnswerHeadBytes(len(m.Rows)))
	PutPeekAnswerHead(body, m.Begin, m.End, m.Rows, uint32(len(m.Records)))
	return append(dst, m.Records...)
}

func (m *PeekAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "PEEK answer"}
	m.Begin = r.u64("begin")
	m.End = r.u64("end")
	m.Rows = resize(m.Rows, r.count("rows", RecordRangeBytes, MaxPeekMessages))
	for i := range m.Rows {
		r.entry("rows", i)
		m.Rows[i].Offset = r.u32("offset")
		m.Rows[i].Length = r.u32("length")
	}
	r.list = ""
	m.Records = r.long("records")
	for i := range m.Rows {
		r.entry("rows", i)
		r.inside("record", m.Rows[i].Offset, m.Rows[i].Length, len(m.Records))
	}
	return r.done()
}

// Record is the log record of row i.
func (m *PeekAnswer) Record(i int) []byte {
	row := m.Rows[i]
	return m.Records[row.Offset:][:row.Length:row.Length]
}
