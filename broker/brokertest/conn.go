package brokertest

import (
	"bufio"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

var _ broker.Peer = (*conn)(nil)

// conn is one connection. What has no other guard is the loop's goroutine's.
type conn struct {
	server *Server
	pipe   net.Conn

	state   any
	out     []byte
	greeted bool
	gone    bool
	failing bool         // GOODBYE is in out: the connection ends when it is written
	stalled []frame      // refused for now, and all that came behind
	unread  atomic.Int32 // frames that were read and not yet taken

	mu     sync.Mutex
	queue  [][]byte // to be written
	last   bool     // nothing is to be written after the queue
	output chan struct{}
}

type frame struct {
	header protocol.Header
	body   []byte
}

func (c *conn) Context() any     { return c.state }
func (c *conn) SetContext(v any) { c.state = v }
func (c *conn) Addr() string     { return "pipe" }
func (c *conn) Out() []byte      { return c.out }
func (c *conn) Room(int) []byte  { return c.out }
func (c *conn) Backlogged() bool { return len(c.stalled) > 0 || c.unread.Load() > 0 }

func (c *conn) SetOut(b []byte) {
	if !c.gone {
		c.out = b
	}
}

func (c *conn) Fail(status protocol.Status, reason string) {
	if c.gone || c.failing {
		return
	}
	c.failing = true
	at := len(c.out)
	c.out = protocol.BeginFrame(c.out, protocol.Header{Opcode: protocol.OpGoodbye, Flags: protocol.FlagPush, Status: status})
	body := protocol.ErrorBody{Message: reason}
	c.out = body.Append(c.out)
	protocol.EndFrame(c.out, at)
}

// read hands frames to the loop until the connection ends.
func (c *conn) read() {
	in := bufio.NewReader(c.pipe)
	for {
		f, err := readFrame(in)
		if err != nil {
			break
		}
		c.unread.Add(1)
		c.server.post(func() {
			c.unread.Add(-1)
			c.arrive(f)
		})
	}
	c.pipe.Close()
	c.server.post(c.close)
}

func readFrame(in io.Reader) (frame, error) {
	head := make([]byte, protocol.HeaderBytes)
	if _, err := io.ReadFull(in, head); err != nil {
		return frame{}, err
	}
	h, err := protocol.ParseHeader(head)
	if err != nil {
		return frame{}, err
	}
	f := frame{h, make([]byte, h.BodyLen)}
	_, err = io.ReadFull(in, f.body)
	return f, err
}

// arrive takes a frame, unless it gets lost or is held up.
func (c *conn) arrive(f frame) {
	c.server.mu.Lock()
	passes := c.server.passes(ToBroker, f.header.Opcode, func() { c.deliver(f) })
	c.server.mu.Unlock()
	if passes {
		c.deliver(f)
	}
}

func (c *conn) deliver(f frame) {
	switch err := f.header.CheckRequest(); {
	case c.gone || c.failing:
	case err != nil:
		status, why := protocol.Refusal(err)
		c.Fail(status, why.Message)
	case !c.greeted && f.header.Opcode != protocol.OpHello:
		c.Fail(protocol.HelloRequired, "the first frame is not HELLO")
	case len(c.stalled) > 0 || !c.server.loop.Frame(c, f.header, f.body):
		c.stalled = append(c.stalled, f)
	default:
		c.greeted = true
		c.server.loop.Flush(c)
	}
}

// retry offers again what was refused.
func (c *conn) retry() {
	list := c.stalled
	c.stalled = nil
	for _, f := range list {
		c.deliver(f)
	}
}

// close ends the connection.
func (c *conn) close() {
	c.server.loop.Close(c)
	c.gone, c.out, c.stalled = true, nil, nil
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	c.server.poke()
	c.send(nil, true)
}

// flush sends off what lies in the output buffer, frame by frame.
func (c *conn) flush() {
	for b := c.out; len(b) > 0; {
		h, err := protocol.ParseHeader(b)
		if err != nil {
			panic(err)
		}
		n := protocol.HeaderBytes + int(h.BodyLen)
		f := append([]byte(nil), b[:n]...)
		b = b[n:]
		c.server.mu.Lock()
		passes := c.server.passes(ToClients, h.Opcode, func() { c.send(f, false) })
		c.server.mu.Unlock()
		if passes {
			c.send(f, false)
		}
	}
	c.out = nil
	if c.failing {
		c.send(nil, true)
	}
}

// send gives the writer a frame (nil: none), and tells it whether that was the last one.
func (c *conn) send(f []byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f != nil {
		c.queue = append(c.queue, f)
	}
	c.last = c.last || last
	select {
	case c.output <- struct{}{}:
	default:
	}
}

// write writes until the connection ends. An end that it finds itself the reader notices.
func (c *conn) write() {
	for range c.output {
		c.mu.Lock()
		queue, last := c.queue, c.last
		c.queue = nil
		c.mu.Unlock()
		for _, f := range queue {
			if _, err := c.pipe.Write(f); err != nil {
				break
			}
		}
		if last {
			c.pipe.Close()
			return
		}
	}
}
