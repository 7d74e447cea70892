package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

const (
	// heartbeatRate is how many heartbeats are sent a second: enough for a p99 of a few seconds, and no load.
	heartbeatRate = 100
	// heartbeatPatience is for one answer, and much more.
	heartbeatPatience = 30 * time.Second
)

// besideHeartbeats begins the run and does work, and measures meanwhile, in a lane of their own, how long heartbeats take: those of a
// session of its own, over a connection that has nothing else to carry.
func (run *Run) besideHeartbeats(ctx context.Context, c *client.Client, work func() error) error {
	group := run.Group + "-heartbeats"
	if err := c.CreateGroup(ctx, group, client.GroupRules{}); err != nil {
		return fmt.Errorf("bench: group %s: %w", group, err)
	}
	s, err := c.Register(ctx, group, client.RegisterOptions{})
	if err != nil {
		leave(ctx, c, group, nil)
		return fmt.Errorf("bench: group %s: %w", group, err)
	}
	defer leave(ctx, c, group, []*client.Session{s})
	h, err := dialHeart(ctx, run.Addr)
	if err != nil {
		return err
	}
	defer h.conn.Close()
	lane := run.Lane("heartbeat", false)
	lane.size = 0 // it has no bodies
	record := lane.Recorder()
	run.Begin(0)
	beating, stop := context.WithCancel(ctx)
	beaten := make(chan error, 1)
	go func() { beaten <- h.beat(beating, s.ID(), lane, record) }()
	err = work()
	stop()
	return errors.Join(err, <-beaten)
}

// heart is a connection for heartbeats.
type heart struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	id   uint64 // of the last request
}

// dialHeart connects and says HELLO.
func dialHeart(ctx context.Context, addr string) (*heart, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("bench: heartbeats: %w", err)
	}
	h := &heart{conn: conn, in: bufio.NewReader(conn)}
	hello := protocol.HelloRequest{MinVersion: protocol.Version, MaxVersion: protocol.Version, ClientInfo: "leasemq bench heartbeats"}
	if err := h.ask(protocol.OpHello, hello.Append); err != nil {
		conn.Close()
		return nil, err
	}
	return h, nil
}

// ask sends a request and waits for its answer.
func (h *heart) ask(op protocol.Opcode, body func([]byte) []byte) error {
	h.id++
	h.out = body(protocol.BeginFrame(h.out[:0], protocol.Header{Opcode: op, RequestID: h.id}))
	protocol.EndFrame(h.out, 0)
	h.conn.SetDeadline(time.Now().Add(heartbeatPatience))
	if _, err := h.conn.Write(h.out); err != nil {
		return fmt.Errorf("bench: %s: %w", op, err)
	}
	for {
		answer, err := h.next()
		switch {
		case err != nil:
			return fmt.Errorf("bench: answer to %s: %w", op, err)
		case answer.Flags&protocol.FlagPush != 0:
		case answer.RequestID != h.id || answer.Status != protocol.OK:
			return fmt.Errorf("bench: %s was answered with %s (request %d, answer to %d)", op, answer.Status, h.id, answer.RequestID)
		default:
			return nil
		}
	}
}

// next reads a frame.
func (h *heart) next() (protocol.Header, error) {
	head, err := h.in.Peek(protocol.HeaderBytes)
	if err != nil {
		return protocol.Header{}, err
	}
	answer, err := protocol.ParseHeader(head)
	if err != nil {
		return answer, err
	}
	_, err = io.CopyN(io.Discard, h.in, int64(protocol.HeaderBytes)+int64(answer.BodyLen))
	return answer, err
}

// beat sends heartbeats of a session until ctx ends. A round trip counts from when it began; one that was held up by the answer
// to the heartbeat before it, from when it was due. So a stall is not hidden, and what the generator's timers are late is
// not part of it.
func (h *heart) beat(ctx context.Context, session uint64, lane *Lane, record *Recorder) error {
	request := protocol.HeartbeatRequest{Session: session}
	pace := newPacer(time.Now(), time.Time{}, heartbeatRate, 0)
	for {
		began, _ := pace.next(time.Now(), 1)
		if wait := time.Until(began); wait > 0 {
			if sleep(ctx, wait) != nil {
				return nil
			}
			began = time.Now()
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := h.ask(protocol.OpHeartbeat, request.Append); err != nil {
			record.Fail(1)
			return err
		}
		now := time.Now()
		record.Record(began, now.Sub(began), 1)
		lane.End(now)
	}
}
