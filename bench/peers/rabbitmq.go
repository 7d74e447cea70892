package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type rabbitMQ struct{}

// rabbitServer is where distributions keep the server itself: what is on the PATH there wants another user.
const rabbitServer = "/usr/lib/rabbitmq/bin/rabbitmq-server"

func (rabbitMQ) name() string { return "RabbitMQ quorum queue" }

func (rabbitMQ) missing() string {
	if _, err := os.Stat(rabbitServer); err != nil {
		return "rabbitmq-server is not installed (apt-get install rabbitmq-server)"
	}
	return ""
}

func (rabbitMQ) version() string {
	return "RabbitMQ " + firstLine("dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server")
}

func (rabbitMQ) ways(workload) []string { return []string{"confirms"} }

func (rabbitMQ) warms() bool { return true }

func (rabbitMQ) install(ctx context.Context) error { return aptInstall(ctx, "rabbitmq-server") }

func (rabbitMQ) durability(bool) string { return "before the answer" }

// start runs RabbitMQ. A quorum queue syncs its log before it confirms, whatever is asked for.
func (rabbitMQ) start(ctx context.Context, dir string, _ bool) (broker, error) {
	addr, port, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, epmd, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, dist, err := freeAddr()
	if err != nil {
		return nil, err
	}
	plugins, config := filepath.Join(dir, "plugins"), filepath.Join(dir, "rabbitmq.conf")
	err = errors.Join(
		os.WriteFile(plugins, []byte("[].\n"), 0o600),
		os.WriteFile(config, []byte(fmt.Sprintf("listeners.tcp.default = %s\n", addr)), 0o600))
	if err != nil {
		return nil, err
	}
	env := []string{
		"HOME=" + dir, "RABBITMQ_NODENAME=peers@localhost", fmt.Sprint("RABBITMQ_DIST_PORT=", dist),
		"RABBITMQ_CONFIG_FILE=" + config, "RABBITMQ_MNESIA_BASE=" + dir, "RABBITMQ_LOG_BASE=" + dir,
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + plugins, "RABBITMQ_CONF_ENV_FILE=/dev/null",
		fmt.Sprint("ERL_EPMD_PORT=", epmd), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	}
	p, err := launch(ctx, addr, env, rabbitServer)
	if err != nil {
		return nil, err
	}
	return &rabbitRunning{p, fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port), epmd}, nil
}

type rabbitRunning struct {
	*process
	url  string
	epmd int
}

func (r *rabbitRunning) stop() error {
	err := r.process.stop()
	// Its name server is a daemon of its own.
	for range 20 {
		kill := exec.Command("epmd", "-port", fmt.Sprint(r.epmd), "-kill")
		if out, _ := kill.CombinedOutput(); !strings.Contains(string(out), "not allowed") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func (r *rabbitRunning) dial() (*amqp.Connection, *amqp.Channel, error) {
	c, err := amqp.Dial(r.url)
	if err != nil {
		return nil, nil, err
	}
	ch, err := c.Channel()
	return c, ch, err
}

func (r *rabbitRunning) prepare(ctx context.Context, queue string) error {
	c, ch, err := r.dial()
	for err != nil && ctx.Err() == nil { // it listens before it serves
		time.Sleep(200 * time.Millisecond)
		c, ch, err = r.dial()
	}
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	return err
}

// left counts what is ready: the consumers have gone, and what they held is ready again.
func (r *rabbitRunning) left(_ context.Context, queue string) (int64, bool, error) {
	c, ch, err := r.dial()
	if err != nil {
		return 0, true, err
	}
	defer c.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	return int64(q.Messages), true, err
}

type rabbitProducer struct {
	c       *amqp.Connection
	ch      *amqp.Channel
	queue   string
	pending []*amqp.DeferredConfirmation
}

func (r *rabbitRunning) producer(_ context.Context, queue, _ string) (producer, error) {
	c, ch, err := r.dial()
	if err != nil {
		return nil, err
	}
	return &rabbitProducer{c: c, ch: ch, queue: queue}, ch.Confirm(false)
}

func (p *rabbitProducer) post(bodies [][]byte) error {
	for _, b := range bodies {
		d, err := p.ch.PublishWithDeferredConfirm("", p.queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: b})
		if err != nil {
			return err
		}
		p.pending = append(p.pending, d)
	}
	return p.confirm(postWindow)
}

func (p *rabbitProducer) confirm(most int) error {
	n := len(p.pending) - most
	if n <= 0 {
		return nil
	}
	for _, d := range p.pending[:n] {
		if !d.Wait() {
			return errors.New("RabbitMQ: a message was not confirmed")
		}
	}
	p.pending = append(p.pending[:0], p.pending[n:]...)
	return nil
}

func (p *rabbitProducer) flush() error { return p.confirm(0) }

func (p *rabbitProducer) one(body []byte) error {
	return errors.Join(p.post([][]byte{body}), p.confirm(0))
}

func (p *rabbitProducer) close() { p.c.Close() }

type rabbitConsumer struct {
	c          *amqp.Connection
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
}

func (r *rabbitRunning) consumer(_ context.Context, queue, _ string) (consumer, error) {
	c, ch, err := r.dial()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(postWindow, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	return &rabbitConsumer{c, ch, deliveries}, err
}

// rabbitAckAfter is how long an ack waits for the batch to be full. No delivery waits for it: the prefetch is several batches.
const rabbitAckAfter = 5 * time.Millisecond

// drain acks a batch with one frame, or what there is of it after a while.
func (c *rabbitConsumer) drain(ctx context.Context, take func([]byte)) error {
	var last amqp.Delivery
	n := 0
	settle := func() error {
		if n == 0 {
			return nil
		}
		n = 0
		return last.Ack(true)
	}
	late := time.NewTicker(rabbitAckAfter)
	defer late.Stop()
	for {
		full := false
		select {
		case d, open := <-c.deliveries:
			if !open {
				return errors.New("RabbitMQ: the consumer was cancelled")
			}
			take(d.Body)
			last = d
			n++
			full = n == takeBatch
		case <-late.C:
			full = true
		case <-ctx.Done():
			return settle()
		}
		if full {
			if err := settle(); err != nil {
				return err
			}
		}
	}
}

func (c *rabbitConsumer) close() { c.c.Close() }
