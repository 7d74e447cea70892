package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

type redisPeer struct{}

func (redisPeer) name() string           { return "Redis Streams" }
func (redisPeer) missing() string        { return installed("redis-server", "redis-server") }
func (redisPeer) version() string        { return firstLine("redis-server", "--version") }
func (redisPeer) ways(workload) []string { return []string{"pipelined"} }

func (redisPeer) warms() bool { return false }

func (redisPeer) install(ctx context.Context) error { return aptInstall(ctx, "redis-server") }

func (redisPeer) durability(flushed bool) string {
	if flushed {
		return "before the answer"
	}
	return "every second"
}

// start runs Redis with its append-only file, since without it nothing is durable at all: synced every second, which is the
// policy that its documentation advises, or before each answer. Snapshots are off, so that a fork does not disturb.
func (redisPeer) start(ctx context.Context, dir string, flushed bool) (broker, error) {
	addr, port, err := freeAddr()
	if err != nil {
		return nil, err
	}
	policy := "everysec"
	if flushed {
		policy = "always"
	}
	p, err := launch(ctx, addr, nil, "redis-server", "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", policy, "--auto-aof-rewrite-percentage", "0", "--daemonize", "no")
	if err != nil {
		return nil, err
	}
	return &redisRunning{p, addr}, nil
}

type redisRunning struct {
	*process
	addr string
}

func (r *redisRunning) dial() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: r.addr, PoolSize: 1, Protocol: 2, DisableIdentity: true})
}

func (r *redisRunning) prepare(ctx context.Context, queue string) error {
	c := r.dial()
	defer c.Close()
	return c.XGroupCreateMkStream(ctx, queue, redisWorkers, "0").Err()
}

const redisWorkers = "workers"

func (r *redisRunning) left(ctx context.Context, queue string) (int64, bool, error) {
	c := r.dial()
	defer c.Close()
	groups, err := c.XInfoGroups(ctx, queue).Result()
	if err != nil {
		return 0, true, err
	}
	if len(groups) != 1 {
		return 0, true, fmt.Errorf("redis streams: %d groups", len(groups))
	}
	return groups[0].Lag + groups[0].Pending, true, nil
}

// redisProducer sends pipelines of postWindow messages, as many as others have in flight: the server answers a pipeline as a whole.
type redisProducer struct {
	c     *redis.Client
	queue string
	pipe  redis.Pipeliner
}

func (r *redisRunning) producer(_ context.Context, queue, _ string) (producer, error) {
	c := r.dial()
	return &redisProducer{c, queue, c.Pipeline()}, nil
}

func (p *redisProducer) post(bodies [][]byte) error {
	for _, b := range bodies {
		p.pipe.XAdd(context.Background(), &redis.XAddArgs{Stream: p.queue, Values: []any{"b", b}})
	}
	if n := p.pipe.Len(); n >= postWindow || len(bodies) < postBatch {
		return p.flush()
	}
	return nil
}

func (p *redisProducer) flush() error {
	if p.pipe.Len() == 0 {
		return nil
	}
	_, err := p.pipe.Exec(context.Background())
	return err
}

func (p *redisProducer) one(body []byte) error {
	return p.c.XAdd(context.Background(), &redis.XAddArgs{Stream: p.queue, Values: []any{"b", body}}).Err()
}

func (p *redisProducer) close() { p.c.Close() }

type redisConsumer struct {
	c     *redis.Client
	queue string
	name  string
}

func (r *redisRunning) consumer(_ context.Context, queue, _ string) (consumer, error) {
	c := r.dial()
	id, err := c.ClientID(context.Background()).Result()
	if err != nil {
		return nil, err
	}
	return &redisConsumer{c, queue, fmt.Sprint("c", id)}, nil
}

// drain acks a batch and reads the next one in the same pipeline.
func (c *redisConsumer) drain(ctx context.Context, take func([]byte)) error {
	var done []string
	for ctx.Err() == nil {
		pipe := c.c.Pipeline()
		if len(done) > 0 {
			pipe.XAck(context.Background(), c.queue, redisWorkers, done...)
		}
		read := pipe.XReadGroup(context.Background(), &redis.XReadGroupArgs{
			Group: redisWorkers, Consumer: c.name, Streams: []string{c.queue, ">"}, Count: takeBatch, Block: 200_000_000,
		})
		if _, err := pipe.Exec(context.Background()); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		done = done[:0]
		for _, stream := range read.Val() {
			for _, m := range stream.Messages {
				body, _ := m.Values["b"].(string)
				take([]byte(body))
				done = append(done, m.ID)
			}
		}
	}
	if len(done) == 0 {
		return nil
	}
	return c.c.XAck(context.Background(), c.queue, redisWorkers, done...).Err()
}

func (c *redisConsumer) close() { c.c.Close() }
