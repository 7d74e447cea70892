package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

// A small client of RocketMQ's gRPC protocol (apache/rocketmq-apis, apache/rocketmq/v2/service.proto): it does what a Producer and a
// SimpleConsumer do, over a connection each, but a request carries as many messages as the protocol allows: its own clients send one.

// Status codes of the protocol.
const (
	rocketOK       = 20000
	rocketNotFound = 40401 // no message
)

const (
	rocketService = "/apache.rocketmq.v2.MessagingService/"
	rocketGroup   = "workers"
	rocketBatch   = 32 // the most that a receive gives
	rocketTakers  = postWindow / rocketBatch
)

// rawCodec passes messages on as they are: they are built and read here.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}

func rocketIdentity(ctx context.Context, id string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", id, "x-mq-language", "GO", "x-mq-client-version", "5.1.0",
		"x-mq-protocol", "v2")
}

// rocketCall makes a call of which only the status counts.
func rocketCall(ctx context.Context, c *grpc.ClientConn, method string, request []byte) (code int, why string, err error) {
	var answer []byte
	if err := c.Invoke(ctx, rocketService+method, &request, &answer); err != nil {
		return 0, "", err
	}
	err = fields(answer, func(n protowire.Number, _ uint64, b []byte) error {
		if n == 1 {
			code, why, err = status(b)
		}
		return err
	})
	return code, why, err
}

func rocketMust(ctx context.Context, c *grpc.ClientConn, method string, request []byte) error {
	code, why, err := rocketCall(ctx, c, method, request)
	if err == nil && code != rocketOK {
		err = fmt.Errorf("%d %s", code, why)
	}
	if err != nil {
		return fmt.Errorf("RocketMQ: %s: %w", method, err)
	}
	return nil
}

// fields calls f with each field of a message: its number and its value, in bytes or as an integer.
func fields(message []byte, f func(n protowire.Number, v uint64, b []byte) error) error {
	for len(message) > 0 {
		n, kind, used := protowire.ConsumeTag(message)
		if used < 0 {
			return protowire.ParseError(used)
		}
		message = message[used:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, used = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			b, used = protowire.ConsumeBytes(message)
		default:
			used = protowire.ConsumeFieldValue(n, kind, message)
		}
		if used < 0 {
			return protowire.ParseError(used)
		}
		if err := f(n, v, b); err != nil {
			return err
		}
		message = message[used:]
	}
	return nil
}

func status(message []byte) (code int, why string, err error) {
	err = fields(message, func(n protowire.Number, v uint64, b []byte) error {
		switch n {
		case 1:
			code = int(v)
		case 2:
			why = string(b)
		}
		return nil
	})
	return code, why, err
}

func appendBytes[T string | []byte](dst []byte, n protowire.Number, value T) []byte {
	dst = protowire.AppendVarint(protowire.AppendTag(dst, n, protowire.BytesType), uint64(len(value)))
	return append(dst, value...)
}

func appendInt(dst []byte, n protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, n, protowire.VarintType), uint64(v))
}

// resource is a Resource: of a topic or a group.
func resource(name string) []byte { return appendBytes(nil, 2, name) }

// endpoint is an Endpoints, of the proxy.
func endpoint() []byte {
	address := appendInt(appendBytes(nil, 1, "127.0.0.1"), 2, 8081)
	return appendBytes(appendInt(nil, 1, 1), 2, address)
}

func queryRoute(topic string) []byte {
	return appendBytes(appendBytes(nil, 1, resource(topic)), 2, endpoint())
}

// everything is a FilterExpression that lets every message through.
func everything() []byte { return appendBytes(appendInt(nil, 1, 1), 2, "*") }

// rocketProducer sends what waits, up to postBatch messages a request: all there is when a request may go out, so that a paced sender's
// messages are gathered when the server is slow.
type rocketProducer struct {
	c     *grpc.ClientConn
	ctx   context.Context
	topic string
	id    string
	sent  atomic.Uint64

	mu      sync.Mutex
	moved   sync.Cond // fewer wait, or fewer are out
	waiting [][]byte
	out     int // requests
	err     error
}

var rocketClients atomic.Int64

func (r *rocketRunning) producer(_ context.Context, queue, _ string) (producer, error) {
	c, err := r.dial()
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("producer%d", rocketClients.Add(1))
	p := &rocketProducer{c: c, ctx: rocketIdentity(context.Background(), id), topic: queue, id: id}
	p.moved.L = &p.mu
	return p, nil
}

// request is a SendMessageRequest.
func (p *rocketProducer) request(bodies [][]byte) []byte {
	topic := resource(p.topic)
	var born, id, properties, message, request []byte
	born = appendInt(nil, 1, time.Now().Unix())
	for _, body := range bodies {
		id = strconv.AppendUint(append(append(id[:0], p.id...), '-'), p.sent.Add(1), 10)
		properties = appendBytes(properties[:0], 3, id)
		properties = appendInt(properties, 5, 1) // not encoded
		properties = appendInt(properties, 6, 1) // a normal message
		properties = appendBytes(properties, 7, born)
		properties = appendBytes(properties, 8, "127.0.0.1")
		message = appendBytes(message[:0], 1, topic)
		message = appendBytes(message, 3, properties)
		message = appendBytes(message, 4, body)
		request = appendBytes(request, 1, message)
	}
	return request
}

func (p *rocketProducer) send(bodies [][]byte) error {
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	return rocketMust(ctx, p.c, "SendMessage", p.request(bodies))
}

func (p *rocketProducer) post(bodies [][]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.waiting) >= postBatch && p.err == nil {
		p.moved.Wait()
	}
	p.waiting = append(p.waiting, bodies...)
	if p.out < postWindow/postBatch {
		p.out++
		go p.sendWaiting()
	}
	return p.err
}

// sendWaiting makes requests, one after the other, as long as something waits.
func (p *rocketProducer) sendWaiting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.waiting) > 0 && p.err == nil {
		n := min(len(p.waiting), postBatch)
		batch := p.waiting[:n:n]
		p.waiting = p.waiting[n:]
		p.moved.Broadcast()
		p.mu.Unlock()
		err := p.send(batch)
		p.mu.Lock()
		if err != nil {
			p.err = err
		}
	}
	p.out--
	p.moved.Broadcast()
}

func (p *rocketProducer) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.out > 0 {
		p.moved.Wait()
	}
	return p.err
}

func (p *rocketProducer) one(body []byte) error { return p.send([][]byte{body}) }

func (p *rocketProducer) close() { p.c.Close() }

type rocketConsumer struct {
	c     *grpc.ClientConn
	ctx   context.Context
	end   context.CancelFunc
	topic string
	beats sync.WaitGroup
}

func (r *rocketRunning) consumer(_ context.Context, queue, _ string) (consumer, error) {
	c, err := r.dial()
	if err != nil {
		return nil, err
	}
	t := &rocketConsumer{c: c, topic: queue}
	t.ctx, t.end = context.WithCancel(rocketIdentity(context.Background(), fmt.Sprintf("consumer%d", rocketClients.Add(1))))
	if err := t.introduce(); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// introduce tells the proxy what this consumer is, as it wants to know before a receive, and keeps telling it that it is there.
func (t *rocketConsumer) introduce() error {
	stream, err := t.c.NewStream(t.ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, rocketService+"Telemetry")
	if err != nil {
		return err
	}
	entry := appendBytes(appendBytes(nil, 1, resource(t.topic)), 2, everything())
	subscription := appendBytes(appendBytes(nil, 1, resource(rocketGroup)), 2, entry)
	settings := appendInt(nil, 1, 3) // a simple consumer
	settings = appendBytes(settings, 2, endpoint())
	settings = appendBytes(settings, 4, appendInt(nil, 1, 20)) // the time of a request in seconds
	settings = appendBytes(settings, 6, subscription)
	settings = appendBytes(settings, 7, appendBytes(appendInt(nil, 1, 4), 2, "5.1.0"))
	command := appendBytes(nil, 2, settings)
	if err := stream.SendMsg(&command); err != nil {
		return err
	}
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return fmt.Errorf("RocketMQ: Telemetry: %w", err)
	}
	beat := appendInt(appendBytes(nil, 1, resource(rocketGroup)), 2, 3)
	if err := rocketMust(t.ctx, t.c, "Heartbeat", beat); err != nil {
		return err
	}
	t.beats.Go(func() {
		due := time.NewTicker(10 * time.Second)
		defer due.Stop()
		for {
			select {
			case <-due.C:
				rocketCall(t.ctx, t.c, "Heartbeat", beat) // one that fails is followed by another
			case <-t.ctx.Done():
				return
			}
		}
	})
	return nil
}

func (t *rocketConsumer) close() {
	t.end()
	t.beats.Wait()
	t.c.Close()
}

func (t *rocketConsumer) drain(ctx context.Context, take func([]byte)) error {
	errs := make([]error, rocketTakers)
	var running sync.WaitGroup
	for i := range errs {
		running.Go(func() { errs[i] = t.takeAll(ctx, take) })
	}
	running.Wait()
	return errors.Join(errs...)
}

func (t *rocketConsumer) takeAll(ctx context.Context, take func([]byte)) error {
	queue := appendBytes(nil, 1, resource(t.topic))
	request := appendBytes(appendBytes(appendBytes(nil, 1, resource(rocketGroup)), 2, queue), 3, everything())
	request = appendBytes(appendInt(request, 4, rocketBatch), 5, appendInt(nil, 1, 300)) // invisible for 300 s
	for ctx.Err() == nil {
		acks, err := t.receive(request, take)
		if len(acks) > 0 {
			ack := appendBytes(appendBytes(nil, 1, resource(rocketGroup)), 2, resource(t.topic))
			if failed := rocketMust(t.ctx, t.c, "AckMessage", append(ack, acks...)); failed != nil {
				return failed
			}
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// rocketPatience less half of the time of a request is how long the proxy lets a receive wait: 5 s, its least.
const rocketPatience = 15 * time.Second

// receive makes one request, and returns the entries of an AckMessageRequest for what came. It is not given up before its time: the
// proxy would go on waiting for messages, and give them to nobody.
func (t *rocketConsumer) receive(request []byte, take func([]byte)) (acks []byte, err error) {
	call, cancel := context.WithTimeout(t.ctx, rocketPatience)
	defer cancel()
	stream, err := t.c.NewStream(call, &grpc.StreamDesc{ServerStreams: true}, rocketService+"ReceiveMessage")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&request), stream.CloseSend()); err != nil {
		return nil, err
	}
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); errors.Is(err, io.EOF) {
			return acks, nil
		} else if err != nil {
			return acks, err
		}
		if acks, err = t.answered(answer, acks, take); err != nil {
			return acks, err
		}
	}
}

// answered reads a ReceiveMessageResponse: a status, or a message, whose entry it adds to acks.
func (t *rocketConsumer) answered(answer, acks []byte, take func([]byte)) ([]byte, error) {
	err := fields(answer, func(n protowire.Number, _ uint64, b []byte) error {
		switch n {
		case 1:
			if code, why, err := status(b); err != nil || code != rocketOK && code != rocketNotFound {
				return errors.Join(fmt.Errorf("RocketMQ: ReceiveMessage: %d %s", code, why), err)
			}
		case 2:
			body, entry, err := received(b)
			if err != nil {
				return err
			}
			take(body)
			acks = appendBytes(acks, 3, entry)
		}
		return nil
	})
	return acks, err
}

// received reads a Message: its body, and the AckMessageEntry for it.
func received(message []byte) (body, entry []byte, err error) {
	err = fields(message, func(n protowire.Number, _ uint64, b []byte) error {
		switch n {
		case 3:
			return fields(b, func(n protowire.Number, _ uint64, b []byte) error {
				switch n {
				case 3:
					entry = appendBytes(entry, 1, b)
				case 12:
					entry = appendBytes(entry, 2, b)
				}
				return nil
			})
		case 4:
			body = b
		}
		return nil
	})
	return body, entry, err
}
