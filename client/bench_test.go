package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// The benchmarks run against a broker that answers everything at once and keeps nothing:
//
//	memory  the connection is a Go type, so that what is measured is the client alone
//	tcp     over the loopback interface, the broker in a process of its own

const benchRecords = 64

// sink is the broker of the benchmarks. It reads requests in the order of the stream.
type sink struct {
	pop []byte // the body of POP answers
}

func newSink(bodyBytes int) *sink {
	var records [][]byte
	for i := range benchRecords {
		records = append(records, messageRecord(nil, uint64(i), codec.Message{Body: make([]byte, bodyBytes)}))
	}
	return &sink{pop: popAnswer(records...).Append(nil)}
}

func (s *sink) respond(dst []byte, h protocol.Header, body []byte) []byte {
	start := len(dst)
	dst = protocol.BeginFrame(dst, protocol.Header{Opcode: h.Opcode, Flags: protocol.FlagAnswer, RequestID: h.RequestID})
	switch h.Opcode {
	case protocol.OpHello:
		hello := protocol.HelloAnswer{Version: 1, CreditBytes: 4 << 20, MaxFrameBytes: 8 << 20, MaxBodyBytes: 4 << 20}
		dst = hello.Append(dst)
	case protocol.OpRegister:
		dst = (&protocol.RegisterAnswer{Session: 1, HeartbeatMs: 3000, TimeoutMs: 10_000}).Append(dst)
	case protocol.OpHeartbeat:
		dst = (&protocol.HeartbeatAnswer{}).Append(dst)
	case protocol.OpSend:
		topic := int(body[20])
		n := int(binary.LittleEndian.Uint32(body[21+topic:]))
		dst = protocol.AppendSendAnswerHead(dst, n)
		for range n {
			dst = protocol.AppendSendResult(dst, &protocol.SendResult{})
		}
	case protocol.OpPop:
		dst = append(dst, s.pop...)
	case protocol.OpAck:
		n := int(binary.LittleEndian.Uint32(body[8:]))
		dst = protocol.AppendSettleAnswerHead(dst, n)
		for range n {
			dst = protocol.AppendSettleResult(dst, &protocol.SettleResult{})
		}
	}
	protocol.EndFrame(dst, start)
	return dst
}

// serve answers what comes over conn.
func (s *sink) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 1<<20)
	var out, body []byte
	for {
		head, err := in.Peek(protocol.HeaderBytes)
		if err != nil {
			return
		}
		h, err := protocol.ParseHeader(head)
		if err != nil {
			return
		}
		size := protocol.HeaderBytes + int(h.BodyLen)
		if size <= in.Size() {
			b, err := in.Peek(size)
			if err != nil {
				return
			}
			out = s.respond(out, h, b[protocol.HeaderBytes:])
			in.Discard(size)
		} else {
			body = append(body[:0], make([]byte, size)...)
			if _, err := io.ReadFull(in, body); err != nil {
				return
			}
			out = s.respond(out, h, body[protocol.HeaderBytes:])
		}
		if in.Buffered() < protocol.HeaderBytes || len(out) > 64<<10 {
			if _, err := conn.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
	}
}

// memoryConn is a connection to a sink without a network: what is written is answered in place.
type memoryConn struct {
	net.Conn // nil: deadlines and addresses are not used
	sink     *sink

	mu     sync.Mutex
	more   sync.Cond
	in     []byte // a request not yet complete
	out    []byte
	read   int
	closed bool
}

func (c *memoryConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	if len(c.in) > 0 {
		c.in = append(c.in, b...)
		b = c.in
	}
	for {
		h, err := protocol.ParseHeader(b)
		if err != nil || len(b) < protocol.HeaderBytes+int(h.BodyLen) {
			break
		}
		size := protocol.HeaderBytes + int(h.BodyLen)
		c.out = c.sink.respond(c.out, h, b[protocol.HeaderBytes:size])
		b = b[size:]
	}
	c.in = append(c.in[:0], b...)
	c.more.Broadcast()
	return n, nil
}

func (c *memoryConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.read == len(c.out) {
		if c.closed {
			return 0, io.EOF
		}
		c.out, c.read = c.out[:0], 0
		c.more.Wait()
	}
	n := copy(b, c.out[c.read:])
	c.read += n
	return n, nil
}

func (c *memoryConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.more.Broadcast()
	return nil
}

const sinkVariable = "LEASEMQ_CLIENT_TEST_SINK"

// sinkProcess is the other process of the tcp benchmarks.
func sinkProcess() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(l.Addr().String() + "\n")
	go func() {
		io.Copy(io.Discard, os.Stdin) // until the parent has gone
		os.Exit(0)
	}()
	s := newSink(1024)
	for {
		conn, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go s.serve(conn)
	}
}

// overEach runs f with a client over each kind of connection.
func overEach(b *testing.B, f func(b *testing.B, c *Client)) {
	b.Run("memory", func(b *testing.B) {
		s := newSink(1024)
		benchClient(b, "", func(context.Context, string) (net.Conn, error) {
			c := &memoryConn{sink: s}
			c.more.L = &c.mu
			return c, nil
		}, f)
	})
	b.Run("tcp", func(b *testing.B) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), sinkVariable+"=1")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		defer cmd.Wait()
		defer stdin.Close()
		addr, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		benchClient(b, strings.TrimSpace(addr), nil, f)
	})
}

func benchClient(b *testing.B, addr string, dial func(context.Context, string) (net.Conn, error), f func(b *testing.B, c *Client)) {
	c, err := Dial(b.Context(), addr, Options{Dialer: dial})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	f(b, c)
}

// report adds messages a second, and messages a second of this process's CPU time: what one core would do,
// however busy the machine is.
func report(b *testing.B, messages int, began time.Duration) {
	n := float64(messages) * float64(b.N)
	b.ReportMetric(n/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(n/(cpuTime()-began).Seconds(), "msg/cpu-s")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchMessages(n int) []*Message {
	list := make([]*Message, n)
	for i := range list {
		list[i] = &Message{Body: make([]byte, 1024)}
	}
	return list
}

// BenchmarkSendBatch: 16 requests in flight of 64 messages of 1 KiB each.
func BenchmarkSendBatch(b *testing.B) {
	overEach(b, func(b *testing.B, c *Client) {
		p, began := c.Producer(ProducerOptions{}), cpuTime()
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			messages := benchMessages(64)
			results := make([]SendResult, 0, 64)
			for pb.Next() {
				if _, err := p.SendBatchInto(b.Context(), "t", messages, results); err != nil {
					b.Error(err)
				}
			}
		})
		report(b, 64, began)
	})
}

// BenchmarkSendEncoded: the same, encoded once.
func BenchmarkSendEncoded(b *testing.B) {
	overEach(b, func(b *testing.B, c *Client) {
		p, began := c.Producer(ProducerOptions{}), cpuTime()
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			batch, err := p.Encode("t", benchMessages(64))
			if err != nil {
				b.Error(err)
				return
			}
			results := make([]SendResult, 0, 64)
			for pb.Next() {
				if _, err := p.SendEncoded(b.Context(), batch, results); err != nil {
					b.Error(err)
				}
			}
		})
		report(b, 64, began)
	})
}

// BenchmarkSendAsync: one goroutine, one message a call.
func BenchmarkSendAsync(b *testing.B) {
	overEach(b, func(b *testing.B, c *Client) {
		p, began := c.Producer(ProducerOptions{}), cpuTime()
		m := &Message{Topic: "t", Body: make([]byte, 1024)}
		done := func(_ SendResult, err error) {
			if err != nil {
				b.Error(err)
			}
		}
		for b.Loop() {
			if err := p.SendAsync(b.Context(), m, done); err != nil {
				b.Fatal(err)
			}
		}
		if err := p.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		report(b, 1, began)
	})
}

// BenchmarkSend: one message, one request, one in flight.
func BenchmarkSend(b *testing.B) {
	overEach(b, func(b *testing.B, c *Client) {
		p, began := c.Producer(ProducerOptions{}), cpuTime()
		m := &Message{Topic: "t", Body: make([]byte, 1024)}
		for b.Loop() {
			if _, err := p.Send(b.Context(), m); err != nil {
				b.Fatal(err)
			}
		}
		report(b, 1, began)
	})
}

// BenchmarkPopAck: two loops of pop and ack, 64 messages of 1 KiB each.
func BenchmarkPopAck(b *testing.B) {
	overEach(b, func(b *testing.B, c *Client) {
		s, err := c.Register(b.Context(), "g", RegisterOptions{})
		if err != nil {
			b.Fatal(err)
		}
		began := cpuTime()
		b.SetParallelism(2)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				batch, err := s.Pop(b.Context(), PopOptions{Topic: "t", Max: 64})
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := s.Ack(b.Context(), batch.Deliveries...); err != nil {
					b.Error(err)
				}
				batch.Release()
			}
		})
		report(b, benchRecords, began)
	})
}

// BenchmarkEncode: 64 messages of 1 KiB into a frame.
func BenchmarkEncode(b *testing.B) {
	messages := benchMessages(64)
	p := &Producer{link: new(link), above: defaultCompressAbove, compression: codec.Zstd}
	p.link.limits.Store(&limits{frame: 8 << 20, body: 4 << 20, credit: 4 << 20})
	b.ReportAllocs()
	began := cpuTime()
	for b.Loop() {
		f := newFrame(protocol.OpSend, 0, 70<<10)
		f.b, _ = appendSendHead(f.b, "t", -1)
		var x codec.Message
		for _, m := range messages {
			if err := p.stored(&x, m); err != nil {
				b.Fatal(err)
			}
			f.b, _ = appendSendEntry(f.b, &x)
		}
		f.release()
	}
	report(b, 64, began)
}
