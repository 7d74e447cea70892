package protocol

import "encoding/binary"

var (
	_ Body = (*SendRequest)(nil)
	_ Body = (*SendAnswer)(nil)
)

func (m *SendRequest) Append(dst []byte) []byte {
	dst = appendU32(dst, uint32(m.Queue))
	dst = appendU64(dst, m.ProducerID)
	dst = appendU64(dst, m.Sequence)
	dst = appendShort(dst, m.Topic)
	dst = appendCount(dst, len(m.Messages))
	for _, message := range m.Messages {
		dst = appendLong(dst, message)
	}
	return dst
}

func (m *SendRequest) Decode(b []byte) error {
	r := reader{b: b, body: "SEND request"}
	m.Queue = int32(r.u32("queue"))
	m.ProducerID = r.u64("producer id")
	m.Sequence = r.u64("sequence")
	r.text("topic", MaxWireNameBytes, &m.Topic)
	m.Messages = resize(m.Messages, r.count("messages", 4, MaxSendEntries))
	for i := range m.Messages {
		r.entry("messages", i)
		m.Messages[i] = r.long("message")
	}
	return r.done()
}

// SendCount is how many messages the body of a SEND claims, at most as many as a SEND may have: enough to
// judge a request by before it is decoded. What the body really has, Decode tells.
func SendCount(body []byte) int {
	r := reader{b: body, body: "SEND request"}
	r.take("fixed fields", 4+8+8)
	r.short("topic")
	return int(min(r.u32("messages"), MaxSendEntries))
}

// One result of a SEND answer. Part of the wire format.
//
//	 0  u16  status
//	 2  u16  queue
//	 4  u64  offset
//	12       message id, 16 bytes
//	28  u64  handle
const SendResultBytes = 36

// AppendSendAnswerHead begins a SEND answer of n results; AppendSendResult is then called n times.
func AppendSendAnswerHead(dst []byte, n int) []byte { return appendCount(dst, n) }

// AppendSendResult adds one result to a SEND answer.
func AppendSendResult(dst []byte, m *SendResult) []byte {
	dst, b := extend(dst, SendResultBytes)
	binary.LittleEndian.PutUint16(b[0:], uint16(m.Status))
	binary.LittleEndian.PutUint16(b[2:], m.Queue)
	binary.LittleEndian.PutUint64(b[4:], m.Offset)
	copy(b[12:28], m.MessageID[:])
	binary.LittleEndian.PutUint64(b[28:], m.Handle)
	return dst
}

func (m *SendAnswer) Append(dst []byte) []byte {
	dst = AppendSendAnswerHead(dst, len(m.Results))
	for i := range m.Results {
		dst = AppendSendResult(dst, &m.Results[i])
	}
	return dst
}

func (m *SendAnswer) Decode(b []byte) error {
	r := reader{b: b, body: "SEND answer"}
	m.Results = resize(m.Results, r.count("results", SendResultBytes, MaxSendEntries))
	for i := range m.Results {
		row, result := r.take("results", SendResultBytes), &m.Results[i]
		result.Status = Status(binary.LittleEndian.Uint16(row))
		result.Queue = binary.LittleEndian.Uint16(row[2:])
		result.Offset = binary.LittleEndian.Uint64(row[4:])
		copy(result.MessageID[:], row[12:28])
		result.Handle = binary.LittleEndian.Uint64(row[28:])
	}
	return r.done()
}
