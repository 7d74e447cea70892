package broker

import (
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// benchRig is an engine with a running clock and no checks, called in process: the engine's own cost,
// without a network.
func benchRig(b *testing.B) *rig {
	r := &rig{t: b, clock: &testClock{wall: time.Now()}}
	r.o = Options{Dir: b.TempDir(), IO: mmaplog.IOStaged, Fsync: mmaplog.SyncNever, Clock: systemClock{time.Now()}}
	r.open()
	b.Cleanup(func() {
		if err := r.e.Close(); err != nil {
			b.Error(err)
		}
	})
	return r
}

const benchBatch = 64

// frameOf encodes a frame once, so that benchmarks time the engine alone.
func frameOf(code protocol.Opcode, body interface{ Append([]byte) []byte }) (protocol.Header, []byte) {
	buf := body.Append(nil)
	return protocol.Header{
		Version: protocol.Version, Opcode: code, Flags: protocol.FlagCreate, RequestID: 1, BodyLen: uint32(len(buf)),
	}, buf
}

// exchange sends a frame and waits for its answer, which it returns without decoding.
func (c *conn) exchange(h protocol.Header, body []byte) []byte {
	for !c.r.loop.Frame(c, h, body) {
		c.r.await()
	}
	c.r.loop.Flush(c)
	for len(c.out) == 0 {
		<-c.r.woken
		c.r.loop.Wake()
	}
	out := c.out
	c.out = c.out[:0]
	return out
}

func benchMessages(b *testing.B) *protocol.SendRequest {
	m := codec.Message{Body: make([]byte, 1024)}
	payload, err := m.Append(nil)
	if err != nil {
		b.Fatal(err)
	}
	req := &protocol.SendRequest{Topic: "bench", Queue: protocol.AnyQueue}
	for range benchBatch {
		req.Messages = append(req.Messages, payload)
	}
	return req
}

func BenchmarkSend(b *testing.B) {
	r := benchRig(b)
	c := r.dial()
	h, body := frameOf(protocol.OpSend, benchMessages(b))
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += benchBatch {
		c.exchange(h, body)
	}
}

func BenchmarkPopAck(b *testing.B) {
	r := benchRig(b)
	c := r.dial()
	s := c.register("g", "worker")
	h, body := frameOf(protocol.OpSend, benchMessages(b))
	for n := 0; n < b.N; n += benchBatch {
		c.exchange(h, body)
	}
	popHead, pop := frameOf(protocol.OpPop, popRequest(s.Session, "bench", benchBatch))
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	var answer protocol.PopAnswer
	ack := protocol.AckRequest{Session: s.Session}
	var ackBody []byte
	for n := 0; n < b.N; {
		out := c.exchange(popHead, pop)
		if err := answer.Decode(out[protocol.HeaderBytes:]); err != nil {
			b.Fatal(err)
		}
		ack.Entries = ack.Entries[:0]
		for i := range answer.Rows {
			ack.Entries = append(ack.Entries, protocol.AckEntry{Receipt: answer.Rows[i].Receipt})
		}
		n += len(answer.Rows)
		ackBody = ack.Append(ackBody[:0])
		c.exchange(protocol.Header{
			Version: protocol.Version, Opcode: protocol.OpAck, RequestID: 2, BodyLen: uint32(len(ackBody)),
		}, ackBody)
	}
}
