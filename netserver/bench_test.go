package netserver

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// answerer is the cheapest Handler: it answers each frame with an empty body at Flush.
type answerer struct{ ids []protocol.Header }

func (a *answerer) Open(broker.Peer)  {}
func (a *answerer) Close(broker.Peer) {}
func (a *answerer) Wake()             {}
func (a *answerer) Drain()            {}
func (a *answerer) Pending() int      { return 0 }

func (a *answerer) Frame(_ broker.Peer, h protocol.Header, _ []byte) bool {
	a.ids = append(a.ids, h)
	return true
}

func (a *answerer) Flush(p broker.Peer) {
	out := p.Out()
	for _, h := range a.ids {
		out = protocol.Header{Opcode: h.Opcode, Flags: protocol.FlagAnswer, RequestID: h.RequestID}.Append(out)
	}
	p.SetOut(out)
	a.ids = a.ids[:0]
}

// BenchmarkFrames: 4 connections send frames, 16 of them (or 1 MiB) unanswered at most, and get answers of a header
// each. The clients run in the same process, on the same processors.
func BenchmarkFrames(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 64 << 10} {
		for _, loops := range []int{1, 2} {
			b.Run(fmt.Sprintf("%dB/%dloops", size, loops), func(b *testing.B) { benchmarkFrames(b, size, loops) })
		}
	}
}

func benchmarkFrames(b *testing.B, size, loops int) {
	s, err := Listen(Options{
		Listen: "127.0.0.1:0", Loops: loops, Logger: slog.New(slog.DiscardHandler),
		NewHandler: func(func()) Handler { return &answerer{} },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	const clients = 4
	perWrite := max(1, (64<<10)/size) // frames
	window := 16                      // writes
	frame := request(protocol.OpSend, 2, make([]byte, size-protocol.HeaderBytes))
	var write []byte
	for range perWrite {
		write = append(write, frame...)
	}
	conns := make([]net.Conn, clients)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", s.Addr().String()); err != nil {
			b.Fatal(err)
		}
		defer func() { _ = conns[i].Close() }()
		_, _ = conns[i].Write(request(protocol.OpHello, 1, nil))
		if _, err := io.ReadFull(conns[i], make([]byte, protocol.HeaderBytes)); err != nil {
			b.Fatal(err)
		}
	}
	writes := b.N/(perWrite*clients) + 1
	b.SetBytes(int64(size))
	b.ReportAllocs()
	before := s.Stats()
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, c := range conns {
		free := make(chan struct{}, window)
		wg.Go(func() {
			for range writes {
				free <- struct{}{}
				if _, err := c.Write(write); err != nil {
					b.Error(err)
					return
				}
			}
		})
		wg.Go(func() {
			answers := make([]byte, perWrite*protocol.HeaderBytes)
			for range writes {
				if _, err := io.ReadFull(c, answers); err != nil {
					b.Error(err)
					return
				}
				<-free
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	st := s.Stats()
	frames := float64(st.Frames - before.Frames)
	b.ReportMetric(frames/b.Elapsed().Seconds(), "frames/s")
	b.ReportMetric(frames/float64(st.Writes-before.Writes), "frames/write")
}

// BenchmarkRoundTrip: one connection, one request at a time.
func BenchmarkRoundTrip(b *testing.B) {
	s, err := Listen(Options{
		Listen: "127.0.0.1:0", Loops: 1, Logger: slog.New(slog.DiscardHandler),
		NewHandler: func(func()) Handler { return &answerer{} },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	frame := request(protocol.OpHello, 1, make([]byte, 100))
	answer := make([]byte, protocol.HeaderBytes)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(frame); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, answer); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWake: a wake from another goroutine and its run.
func BenchmarkWake(b *testing.B) {
	ran := make(chan struct{}, 1)
	var wake func()
	s, err := Listen(Options{
		Listen: "127.0.0.1:0", Loops: 1, Logger: slog.New(slog.DiscardHandler),
		NewHandler: func(w func()) Handler {
			wake = w
			return &waker{ran: ran}
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = c.Write(request(protocol.OpHello, 1, nil))
	if _, err := io.ReadFull(c, make([]byte, protocol.HeaderBytes)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		wake()
		<-ran
	}
}

type waker struct {
	answerer
	ran chan struct{}
}

func (w *waker) Wake() { w.ran <- struct{}{} }
