package echo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// recorded opens the log in a directory as a start does, and counts its messages and their payloads' bytes.
func recorded(t *testing.T, dir string) (messages, payload int) {
	t.Helper()
	l, err := mmaplog.Open(mmaplog.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}, func(r mmaplog.Record) error {
		if r.Header.Type == codec.TypeMessage {
			messages++
			payload += len(r.Payload)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Abort()
	return messages, payload
}

// serve runs an echo until the test ends or stop is called, which returns its error.
func serve(t *testing.T, dir string) (addr string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log, to := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Serve(ctx, Options{Listen: "127.0.0.1:0", Dir: dir, IO: "staged"}, to)
		to.Close()
		ended <- err
	}()
	text := make([]byte, 4096)
	for said := ""; addr == ""; {
		n, err := log.Read(text)
		if err != nil {
			t.Fatalf("it ended: %v, %q", err, said)
		}
		said += string(text[:n])
		if _, rest, ok := strings.Cut(said, "listening on "); ok {
			addr = strings.TrimRight(rest, "\"\n")
		}
	}
	go io.Copy(io.Discard, log)
	return addr, func() error {
		cancel()
		return <-ended
	}
}

// A client that knows nothing of it makes a topic and sends: each message is answered, and lies in the log.
func TestEveryMessageIsAnswered(t *testing.T) {
	dir := t.TempDir()
	addr, stop := serve(t, dir)
	c, err := client.Dial(t.Context(), addr, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.CreateTopic(t.Context(), "t", 4); err != nil {
		t.Fatal(err)
	}
	p := c.Producer(client.ProducerOptions{Compression: client.CompressNone})
	const batches, batch, size = 20, 64, 300
	var messages []*client.Message
	for range batch {
		messages = append(messages, &client.Message{Body: make([]byte, size)})
	}
	encoded, err := p.Encode("t", messages)
	if err != nil {
		t.Fatal(err)
	}
	for range batches {
		results, err := p.SendEncoded(t.Context(), encoded, nil)
		if err != nil || len(results) != batch {
			t.Fatalf("%d results, %v", len(results), err)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n, bytes := recorded(t, dir); n != batches*batch || bytes < n*size {
		t.Errorf("the log has %d messages of %d bytes", n, bytes)
	}
}

// peer is a connection that keeps what it is told.
type peer struct {
	broker.Peer
	out    []byte
	failed protocol.Status
}

func (p *peer) Out() []byte                           { return p.out }
func (p *peer) SetOut(b []byte)                       { p.out = b }
func (p *peer) Fail(status protocol.Status, _ string) { p.failed = status }

// opened is a server with a log whose ring is small. Nothing moves in it until it is kicked.
func opened(t *testing.T) *server {
	t.Helper()
	e := &server{}
	l, err := mmaplog.Open(mmaplog.Options{
		Dir: t.TempDir(), IO: mmaplog.IOStaged, Policy: mmaplog.SyncNever, RingBytes: 1 << 20, SegmentBytes: 4 << 20,
		Logger: slog.New(slog.DiscardHandler), OnCommit: e.room, OnRoom: e.room,
	}, func(mmaplog.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Abort)
	e.log = l
	if err := l.Start(1, 0, 0); err != nil {
		t.Fatal(err)
	}
	return e
}

// sendOf is the body of a SEND with some messages of a size.
func sendOf(t *testing.T, messages, size int) []byte {
	t.Helper()
	m := codec.Message{Body: make([]byte, size)}
	encoded, err := m.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := protocol.SendRequest{Topic: "t", Queue: protocol.AnyQueue}
	for range messages {
		r.Messages = append(r.Messages, encoded)
	}
	return r.Append(nil)
}

// A full ring: the frame is put off, nothing of it is in the log, and when the log has moved the loop is woken and the same
// frame is taken.
func TestAFullRingPutsOff(t *testing.T) {
	e := opened(t)
	woken := make(chan struct{}, 100)
	e.wakes = append(e.wakes, func() { woken <- struct{}{} })
	loop, p := &eventLoop{e: e}, &peer{}
	body := sendOf(t, 8, 4096)
	taken := 0
	for loop.Frame(p, protocol.Header{Opcode: protocol.OpSend}, body) {
		if taken++; taken > 1000 {
			t.Fatal("a ring of 1 MiB never is full")
		}
	}
	at, answered := e.log.Appended(), len(p.out)
	if loop.Frame(p, protocol.Header{Opcode: protocol.OpSend}, body) || e.log.Appended() != at || len(p.out) != answered {
		t.Errorf("a frame that was put off left something behind")
	}
	loop.Flush(p)
	select {
	case <-woken:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody is woken")
	}
	for !loop.Frame(p, protocol.Header{Opcode: protocol.OpSend}, body) { // a wake-up may come for less than the frame needs
		<-woken
	}
	if e.log.Appended() == at || len(p.out) == answered {
		t.Error("the frame was taken, and nothing came of it")
	}
}

// The answer is as long as the broker's; what is no SEND ends the connection.
func TestAnswers(t *testing.T) {
	loop, p := &eventLoop{e: opened(t)}, &peer{}
	if !loop.Frame(p, protocol.Header{Opcode: protocol.OpSend, RequestID: 7}, sendOf(t, 3, 10)) {
		t.Fatal("an empty ring has no room")
	}
	h, err := protocol.ParseHeader(p.out)
	if err != nil || h.RequestID != 7 || h.Status != protocol.OK || h.Flags != protocol.FlagAnswer {
		t.Fatalf("header %+v, %v", h, err)
	}
	var a protocol.SendAnswer
	if err := a.Decode(p.out[protocol.HeaderBytes:]); err != nil || len(a.Results) != 3 {
		t.Errorf("%+v, %v", a, err)
	}
	if !loop.Frame(p, protocol.Header{Opcode: protocol.OpSend}, []byte("no send")) || p.failed != protocol.Invalid {
		t.Errorf("a broken request was answered with %v", p.failed)
	}
}

// What Copy says was done lies in the log.
func TestCopy(t *testing.T) {
	dir, done := t.TempDir(), 0
	const batch, record = 16, 512
	var began time.Time
	o := bench.CopyLoop{
		Dir: dir, IO: "staged", Batch: batch, RecordBytes: record,
		Begin: func() time.Time { began = time.Now(); return began.Add(50 * time.Millisecond) },
		Done: func(at time.Time, took time.Duration, n int) {
			if at.Before(began) || took < 0 || n != batch {
				t.Errorf("%d at %v, for %v", n, at, took)
			}
			done += n
		},
	}
	ended, err := Copy(t.Context(), o)
	if err != nil || ended.Sub(began) < 50*time.Millisecond {
		t.Fatalf("ended after %v, %v", ended.Sub(began), err)
	}
	const each = record - codec.HeaderBytes - codec.MessageAssignedBytes
	if n, payload := recorded(t, dir); done == 0 || n != done || payload != n*each {
		t.Errorf("%d were done, the log has %d, of %d bytes", done, n, payload)
	}

	ctx, cancel := context.WithCancel(t.Context())
	o.Dir = t.TempDir()
	o.Begin = func() time.Time { cancel(); return time.Now().Add(time.Hour) }
	if _, err := Copy(ctx, o); err != context.Canceled {
		t.Errorf("cancelled, it ends with %v", err)
	}
}

// What cannot be served is said.
func TestErrors(t *testing.T) {
	var log bytes.Buffer
	for _, o := range []Options{{Dir: "", IO: "auto"}, {Dir: t.TempDir(), IO: "odd"}, {Dir: t.TempDir(), IO: "auto", Listen: "nowhere"}} {
		if err := Serve(t.Context(), o, &log); err == nil || !strings.HasPrefix(err.Error(), "echo: ") {
			t.Errorf("%s: %v", fmt.Sprint(o), err)
		}
	}
}
