package protocol

import (
	"bytes"
	"testing"
)

// The bodies of a batch of 64, as the hot path has them: one operation is one body. None may allocate once its memory has
// grown.

func BenchmarkSendRequestDecode(b *testing.B) {
	request := SendRequest{Topic: "jobs"}
	for range 64 {
		request.Messages = append(request.Messages, bytes.Repeat([]byte{1}, 1024))
	}
	body := request.Append(nil)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var m SendRequest
	for b.Loop() {
		if err := m.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSendAnswer(b *testing.B) {
	var dst []byte
	var m SendAnswer
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendSendAnswerHead(dst[:0], 64)
		for range 64 {
			dst = AppendSendResult(dst, &SendResult{Offset: 7})
		}
		if err := m.Decode(dst); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPopAnswer(b *testing.B) {
	answer := PopAnswer{Rows: make([]LeaseRow, 64)}
	for i := range answer.Rows {
		answer.Rows[i] = LeaseRow{
			Receipt: bytes.Repeat([]byte{2}, ReceiptBytes), Token: 7, Attempt: 1,
			RecordOffset: uint32(1160 * i), RecordLength: 1160,
		}
	}
	answer.Records = make([]byte, 64*1160)
	body := make([]byte, PopAnswerHeadBytes(64, 0)+len(answer.Records))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var m PopAnswer
	for b.Loop() {
		for i := range answer.Rows {
			copy(LeaseRowReceipt(body, i), answer.Rows[i].Receipt)
			PutLeaseRow(body, i, &answer.Rows[i])
		}
		PutPopAnswerHead(body, 0, 0, 64, 0, uint32(len(answer.Records)))
		if err := m.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAckRequest(b *testing.B) {
	request := AckRequest{Session: 1}
	for range 64 {
		request.Entries = append(request.Entries, AckEntry{Receipt: bytes.Repeat([]byte{2}, ReceiptBytes)})
	}
	var dst []byte
	var m AckRequest
	b.ReportAllocs()
	for b.Loop() {
		dst = request.Append(dst[:0])
		if err := m.Decode(dst); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHeader(b *testing.B) {
	frame := BeginFrame(nil, Header{Opcode: OpPop, Flags: FlagAnswer, RequestID: 7})
	EndFrame(frame, 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseHeader(frame); err != nil {
			b.Fatal(err)
		}
	}
}
