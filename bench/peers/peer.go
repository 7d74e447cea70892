package main

import (
	"context"
	"sync/atomic"
)

// peer is a broker that can be measured.
type peer interface {
	name() string
	// missing says why it cannot be run on this machine, and how that is mended; "": it can.
	missing() string
	version() string
	// durability says in a few words when what the peer answers is on the disk.
	durability(flushed bool) string
	// install gets what is missing, and starts nothing.
	install(ctx context.Context) error
	// warms tells whether it gets faster as it runs, because its code is compiled or loaded when it is needed.
	warms() bool
	// ways are how work can be done with it; each is measured by itself. The first is the one where it makes no difference.
	ways(w workload) []string
	// start runs it on a free port of the loopback interface with its data in dir. flushed: what it answers is on the disk; else its
	// own default.
	start(ctx context.Context, dir string, flushed bool) (broker, error)
}

// broker is a peer that runs.
type broker interface {
	// prepare makes a queue (topic, stream) of that name.
	prepare(ctx context.Context, queue string) error
	// producer and consumer are a connection each.
	producer(ctx context.Context, queue, way string) (producer, error)
	consumer(ctx context.Context, queue, way string) (consumer, error)
	// left is how many messages of the queue are not settled, whether they wait or are held by a consumer; consumers may have gone
	// a moment ago. ok is false if the peer does not tell.
	left(ctx context.Context, queue string) (n int64, ok bool, err error)
	// stop ends the process and returns when it is gone.
	stop() error
}

// producer sends. It is used by one goroutine.
type producer interface {
	// post hands bodies over and returns when there is room for more: it waits only while about postWindow messages are not confirmed.
	post(bodies [][]byte) error
	// flush returns when everything posted is confirmed.
	flush() error
	// one sends one message and waits until it is confirmed.
	one(body []byte) error
	close()
}

// consumer takes and settles. It is used by one goroutine.
type consumer interface {
	// drain takes messages in batches of up to takeBatch, calls take with each body, and settles them. It ends when ctx does, and
	// returns when what it took is settled as far as the peer confirms that at all.
	drain(ctx context.Context, take func(body []byte)) error
	close()
}

const (
	// postWindow is how many messages a connection has in flight, in requests of postBatch where the peer has requests.
	postWindow = 512
	postBatch  = 64
	takeBatch  = 64
)

// counted calls stop when n calls of take were made.
func counted(n int64, stop func()) (take func([]byte), taken *atomic.Int64) {
	taken = new(atomic.Int64)
	return func([]byte) {
		if taken.Add(1) == n {
			stop()
		}
	}, taken
}
