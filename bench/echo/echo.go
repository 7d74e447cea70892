// Package echo is what `bench ceiling` compares a broker with: its network front and its log, with no broker between them.
package echo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/netserver"
	"github.com/leasemq/leasemq/protocol"
)

// Options of Serve.
type Options struct {
	Listen string
	Dir    string // of a log that nobody reads
	IO     string
}

// server is what the front and the log do of the work of a SEND, with no broker between them: frames are cut and decoded,
// checksums are made, each message is copied into the log's ring, and the answer is as long as the broker's. Nothing is
// indexed, remembered, made durable or waited for.
//
// mu is the sequencing section. The log wakes loops that found no room.
type server struct {
	log     *mmaplog.Log
	mu      sync.Mutex
	stalled atomic.Bool

	wakesMu sync.Mutex
	wakes   []func()
}

// Serve serves until ctx ends. It logs the line that a bench.Child waits for.
func Serve(ctx context.Context, o Options, log io.Writer) (err error) {
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	e := &server{}
	failed := make(chan error, 1)
	e.log, err = mmaplog.Open(mmaplog.Options{
		Dir: o.Dir, IO: mmaplog.IOMode(o.IO), Policy: mmaplog.SyncNever, Logger: logger,
		OnCommit: e.room, OnRoom: e.room, OnFail: func(err error) { failed <- err },
	}, func(mmaplog.Record) error { return nil })
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	defer e.log.Abort()
	if err := e.log.Start(1, 0, 0); err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	front, err := netserver.Listen(netserver.Options{
		Listen: o.Listen, Logger: logger,
		NewHandler: func(wake func()) netserver.Handler {
			e.wakesMu.Lock()
			defer e.wakesMu.Unlock()
			e.wakes = append(e.wakes, wake)
			return &eventLoop{e: e}
		},
	})
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	logger.Info("listening on " + front.Addr().String())
	select {
	case <-ctx.Done():
	case <-front.Done():
		err = front.Err()
	case err = <-failed:
	}
	return errors.Join(err, front.Close())
}

// room wakes loops that wait for the log.
func (e *server) room() {
	if !e.stalled.Swap(false) {
		return
	}
	e.wakesMu.Lock()
	defer e.wakesMu.Unlock()
	for _, wake := range e.wakes {
		wake()
	}
}

// eventLoop is one event loop's half.
type eventLoop struct {
	e        *server
	request  protocol.SendRequest
	sums     []uint32
	assigned [codec.MessageAssignedBytes]byte
}

var _ netserver.Handler = (*eventLoop)(nil)

func (*eventLoop) Open(broker.Peer)    {}
func (*eventLoop) Close(broker.Peer)   {}
func (*eventLoop) Wake()               {}
func (*eventLoop) Drain()              {}
func (*eventLoop) Pending() int        { return 0 }
func (l *eventLoop) Flush(broker.Peer) { l.e.log.Kick() }

func (l *eventLoop) Frame(p broker.Peer, h protocol.Header, body []byte) bool {
	answer := protocol.Header{Opcode: h.Opcode, Flags: protocol.FlagAnswer, RequestID: h.RequestID}
	out := p.Out()
	at := len(out)
	switch h.Opcode {
	case protocol.OpHello:
		a := protocol.HelloAnswer{
			Version: protocol.Version, BrokerID: "echo", Epoch: 1, CreditBytes: netserver.DefaultCreditBytes,
			MaxFrameBytes: protocol.MaxFrameBytes, MaxBodyBytes: protocol.MaxBodyBytes,
		}
		out = a.Append(protocol.BeginFrame(out, answer))
	case protocol.OpSend:
		if err := l.request.Decode(body); err != nil {
			p.Fail(protocol.Invalid, err.Error())
			return true
		}
		if !l.copy() {
			return false
		}
		result := protocol.SendResult{Offset: l.e.log.Appended()}
		out = protocol.AppendSendAnswerHead(protocol.BeginFrame(out, answer), len(l.request.Messages))
		for range l.request.Messages {
			out = protocol.AppendSendResult(out, &result)
		}
	default: // a topic is made, for example
		out = protocol.BeginFrame(out, answer)
	}
	protocol.EndFrame(out, at)
	p.SetOut(out)
	return true
}

// copy puts the messages of the request into the log; false: there is no room now.
func (l *eventLoop) copy() bool {
	l.sums = l.sums[:0]
	bytes := 0
	for _, m := range l.request.Messages {
		l.sums = append(l.sums, codec.Checksum(0, m))
		bytes += codec.Padded(codec.HeaderBytes + codec.MessageAssignedBytes + len(m))
	}
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if !hasRoom(e.log, bytes) {
		e.stalled.Store(true)
		if !hasRoom(e.log, bytes) { // the log may have moved before it saw the flag
			return false
		}
	}
	for i, m := range l.request.Messages {
		h := codec.Header{Type: codec.TypeMessage}
		e.log.Append(&h, l.assigned[:], m, l.sums[i])
	}
	return true
}

// roomSlack is left in ring and segment for the ends of segments.
const roomSlack = 64 << 10

func hasRoom(l *mmaplog.Log, bytes int) bool {
	return l.RingFree() > bytes+roomSlack && l.DiskFree() > int64(bytes+roomSlack)
}
