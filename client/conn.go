package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

const (
	// readBufferBytes: a large answer is read past the buffer, into its own memory.
	readBufferBytes = 32 << 10
	// smallFrameBytes is the length up to which a frame is copied into the writer's buffer: for fewer
	// bytes a copy is cheaper than one more element of the vector.
	smallFrameBytes  = 4 << 10
	writeBufferBytes = 64 << 10
	// lastWords is how long a connection that cannot be written to is still read, for its GOODBYE.
	lastWords = time.Second
	// proofOfLife is how long a write must have blocked to show that the peer made room for it. One that did
	// not block shows only that there was room here.
	proofOfLife = 10 * time.Millisecond
)

// conn is one connection, greeted. The supervisor's goroutine reads; one more writes. Everything but err,
// moved and the channels belongs to one of the two.
type conn struct {
	link   *link
	net    net.Conn
	limits limits
	epoch  uint32 // of the broker
	born   time.Time
	moved  atomic.Int64 // ns after born at which the peer last gave a sign of life

	watchdog *time.Timer

	wake chan struct{} // room for one: there may be something to write
	dead chan struct{} // closed by fail
	once sync.Once
	err  error // why; set before dead is closed

	// The reader's.
	in      *bufio.Reader
	skip    int       // bytes of the frame handed out last that still lie in the buffer
	scratch []byte    // for answers longer than the buffer
	proof   time.Time // send time of the newest request that was answered

	// The writer's.
	frames   []*frame
	small    []byte
	vector   [][]byte
	left     net.Buffers // what a vectored write consumes
	writeErr error
}

// connect makes a connection and greets the broker. The error is a *StatusError when the broker refused.
func (l *link) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.connectTimeout())
	defer cancel()
	nc, err := l.opts.Dialer(ctx, l.addr)
	if err != nil {
		return nil, fmt.Errorf("leasemq: connect to %s: %w", l.addr, err)
	}
	c := &conn{
		link: l, net: nc, born: time.Now(),
		wake: make(chan struct{}, 1), dead: make(chan struct{}),
		small: make([]byte, 0, writeBufferBytes),
	}
	c.in = bufio.NewReaderSize(reads{c}, readBufferBytes)
	c.watchdog = time.AfterFunc(time.Hour, c.look)
	c.watchdog.Stop()
	release := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	err = c.greet()
	if !release() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return nil, fmt.Errorf("leasemq: HELLO to %s: %w", l.addr, err)
	}
	return c, nil
}

// greet exchanges HELLO.
func (c *conn) greet() error {
	request := protocol.HelloRequest{MinVersion: protocol.Version, MaxVersion: protocol.Version, ClientInfo: c.link.opts.ClientInfo}
	const id = 1<<64 - 1 // of no call
	hello := protocol.BeginFrame(nil, protocol.Header{Opcode: protocol.OpHello, RequestID: id})
	hello = request.Append(hello)
	protocol.EndFrame(hello, 0)
	if _, err := c.net.Write(hello); err != nil {
		return err
	}
	for {
		h, body, err := c.next()
		switch {
		case err != nil:
			return err
		case h.Flags&protocol.FlagPush != 0:
			continue
		case h.Opcode != protocol.OpHello || h.RequestID != id:
			return fmt.Errorf("the first answer is to %s, request %d", h.Opcode, h.RequestID)
		case h.Status != protocol.OK:
			return statusError(h, body)
		}
		var answer protocol.HelloAnswer
		if err := answer.Decode(body); err != nil {
			return err
		}
		if answer.Version != protocol.Version {
			return fmt.Errorf("the broker chose protocol version %d, this side speaks %d", answer.Version, protocol.Version)
		}
		c.epoch = answer.Epoch
		c.limits = limits{
			credit: int(answer.CreditBytes),
			frame:  lowered(answer.MaxFrameBytes, protocol.MaxFrameBytes),
			body:   lowered(answer.MaxBodyBytes, protocol.MaxBodyBytes),
		}
		return nil
	}
}

// lowered is the limit that the broker told, where that is lower than the wire format's.
func lowered(told uint32, most int) int {
	if told == 0 || int64(told) > int64(most) {
		return most
	}
	return int(told)
}

// run reads until the connection ends, and says why it did. Both its goroutines have ended then.
func (c *conn) run() error {
	var writer sync.WaitGroup
	writer.Go(c.write)
	c.watchdog.Reset(c.link.watchEvery())
	err := c.read()
	c.fail(err)
	c.watchdog.Stop()
	writer.Wait()
	var timeout net.Error
	if c.writeErr != nil && errors.As(c.err, &timeout) && timeout.Timeout() {
		return c.writeErr // the broker had no last words
	}
	return c.err
}

// look is the watchdog. A network can swallow a connection without a trace, and the kernel needs a quarter of an
// hour to notice: so a connection on which a request has waited for as long as the link's patience, and on
// which the peer gave no sign of life in that time, is given up.
func (c *conn) look() {
	select {
	case <-c.dead:
		return
	default:
	}
	patience := time.Duration(c.link.patience.Load())
	silent := time.Since(c.born) - time.Duration(c.moved.Load())
	if silent >= patience && c.link.stalled(time.Now().Add(-patience)) {
		c.fail(fmt.Errorf("leasemq: no answer and nothing else from the broker for %v", silent.Round(time.Millisecond)))
		return
	}
	c.watchdog.Reset(c.link.watchEvery())
}

// fail ends the connection because of err; only the first reason counts.
func (c *conn) fail(err error) {
	c.once.Do(func() {
		c.err = err
		close(c.dead)
		c.net.Close()
	})
}

func (c *conn) close() { c.fail(ErrClosed) }

func (c *conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) sign() { c.moved.Store(int64(time.Since(c.born))) }

// reads is the network side of the read buffer.
type reads struct{ c *conn }

func (r reads) Read(b []byte) (int, error) {
	n, err := r.c.net.Read(b)
	if n > 0 {
		r.c.sign()
	}
	return n, err
}

// next returns the next frame. Its body is good until the next call, or for good where keepsBody. GOODBYE
// is returned as the error that it carries.
func (c *conn) next() (h protocol.Header, body []byte, err error) {
	c.in.Discard(c.skip)
	c.skip = 0
	head, err := c.in.Peek(protocol.HeaderBytes)
	if err != nil {
		return h, nil, ended(err)
	}
	if h, err = protocol.ParseHeader(head); err != nil {
		return h, nil, fmt.Errorf("leasemq: broken frame from the broker: %w", err)
	}
	c.in.Discard(protocol.HeaderBytes)
	n := int(h.BodyLen)
	switch {
	case keepsBody(h.Opcode) && carriesAnswer(h.Status):
		body = newBody(n)
		_, err = io.ReadFull(c.in, body)
	case n <= c.in.Size():
		body, err = c.in.Peek(n)
		c.skip = len(body)
	default:
		if n > cap(c.scratch) {
			c.scratch = make([]byte, n)
		}
		body = c.scratch[:n]
		_, err = io.ReadFull(c.in, body)
	}
	if err != nil {
		return h, nil, ended(err)
	}
	if h.Opcode == protocol.OpGoodbye {
		return h, nil, statusError(h, body)
	}
	if h.Flags&(protocol.FlagAnswer|protocol.FlagPush) == 0 {
		return h, nil, fmt.Errorf("leasemq: the broker sent a %s that is neither answer nor push", h.Opcode)
	}
	return h, body, nil
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("leasemq: the broker closed the connection: %w", err)
	}
	return fmt.Errorf("leasemq: read: %w", err)
}

// read takes answers and pushes until the connection ends.
func (c *conn) read() error {
	for {
		h, body, err := c.next()
		if err != nil {
			return err
		}
		if h.Flags&protocol.FlagPush != 0 {
			c.push(h, body)
			continue
		}
		x, err := c.link.claim(c, h)
		if err != nil {
			return err
		}
		c.settle(x, h, body)
		c.link.answered(x)
	}
}

// carriesAnswer tells whether the body of an answer is the one of its opcode; else it is an error's.
func carriesAnswer(s protocol.Status) bool { return s == protocol.OK || s == protocol.Empty }

// settle puts the answer into the call.
func (c *conn) settle(x *call, h protocol.Header, body []byte) {
	x.status = h.Status
	switch {
	case !carriesAnswer(h.Status):
		x.err = statusError(h, body)
	case keepsBody(h.Opcode):
		x.body, x.proof, x.arrivedAt = body, c.proof, time.Now()
	case x.answer != nil && (!x.abandoned || x.orphan != nil):
		if err := x.answer.Decode(body); err != nil {
			if lossOf(x.op()) == lossUnknown {
				err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
			}
			x.err = fmt.Errorf("leasemq: broken answer of the broker: %w", err)
		}
	}
	if x.sentAt.After(c.proof) {
		c.proof = x.sentAt
	}
}

// push handles what the broker sends unasked. Pushes of a newer broker are passed over.
func (c *conn) push(h protocol.Header, body []byte) {
	switch h.Opcode {
	case protocol.OpSessionEnded:
		var ended protocol.SessionEnded
		if ended.Decode(body) == nil {
			c.link.pushed(ended)
		}
	case protocol.OpDrain:
		c.link.draining.Store(true)
	}
}

// write sends what take gives until the connection ends.
func (c *conn) write() {
	for {
		c.frames = c.link.take(c, c.frames[:0])
		if len(c.frames) == 0 {
			select {
			case <-c.wake:
				continue
			case <-c.dead:
				return
			}
		}
		err := c.send()
		for i, f := range c.frames {
			f.release()
			c.frames[i] = nil
		}
		if err != nil {
			c.writeErr = fmt.Errorf("leasemq: write: %w", err)
			// What the broker had to say may still lie in the socket: the reader ends the connection.
			c.net.SetReadDeadline(time.Now().Add(lastWords))
			return
		}
	}
}

// send writes c.frames: the small ones in one buffer, the large ones where they are.
func (c *conn) send() error {
	small, vector := c.small[:0], c.vector[:0]
	run := -1 // where in small the last element of vector begins; -1: it is a large frame
	for _, f := range c.frames {
		b := f.b
		if len(b) > smallFrameBytes || len(small)+len(b) > cap(small) {
			vector, run = append(vector, b), -1
			continue
		}
		at := len(small)
		small = append(small, b...)
		if run < 0 {
			run = at
			vector = append(vector, nil)
		}
		vector[len(vector)-1] = small[run:]
	}
	c.vector = vector
	if len(vector) > 1 {
		c.left = vector
		began := time.Now()
		_, err := c.left.WriteTo(c.net)
		c.wrote(began)
		clear(vector)
		return err
	}
	// In pieces, so that a long frame on a slow network gives signs of life.
	for b := vector[0]; len(b) > 0; {
		n := min(len(b), mostWriteBytes)
		began := time.Now()
		_, err := c.net.Write(b[:n])
		c.wrote(began)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (c *conn) wrote(began time.Time) {
	if time.Since(began) >= proofOfLife {
		c.sign()
	}
}
