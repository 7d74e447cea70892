package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

// Rate is how fast something went and how long each piece of it took. Its JSON keys are relied on by scripts.
type Rate struct {
	MessagesPerS float64 `json:"msgs_per_s"`
	MBPerS       float64 `json:"mb_per_s"` // bodies only; 1 MB is 10^6 bytes
	P50          float64 `json:"p50_us"`
	P90          float64 `json:"p90_us"`
	P99          float64 `json:"p99_us"`
	P999         float64 `json:"p999_us"`
	Max          float64 `json:"max_us"`
	Messages     uint64  `json:"messages"`
	Errors       uint64  `json:"errors"` // messages for which a call failed
	Seconds      float64 `json:"seconds"`

	// Where the broker answers before it flushes, Seconds and MessagesPerS include the last flush; these leave it out.
	Answered     float64 `json:"answered_msgs_per_s,omitempty"`
	FlushSeconds float64 `json:"last_flush_s,omitempty"`
}

// rateOf sums up: the latencies in h, of messages of size bytes, took so long altogether.
func rateOf(h *Histogram, errors uint64, size int, took time.Duration) Rate {
	seconds := max(took.Seconds(), 1e-9)
	n := h.Count()
	return Rate{
		MessagesPerS: float64(n) / seconds,
		MBPerS:       float64(n) * float64(size) / 1e6 / seconds,
		P50:          microseconds(h.Quantile(0.50)),
		P90:          microseconds(h.Quantile(0.90)),
		P99:          microseconds(h.Quantile(0.99)),
		P999:         microseconds(h.Quantile(0.999)),
		Max:          microseconds(h.Max()),
		Messages:     n,
		Errors:       errors,
		Seconds:      seconds,
	}
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// firstError keeps the first of the errors that several goroutines run into.
type firstError struct {
	mu  sync.Mutex
	err error
}

func (f *firstError) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *firstError) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// noise is a body that no compressor can shorten, on the way or on the disk.
func noise(size int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 0x6c656173656d71))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// dialAll makes n clients. Those that were made before an error are closed.
func dialAll(ctx context.Context, addr, info string, n int) ([]*client.Client, error) {
	clients := make([]*client.Client, 0, n)
	for range n {
		c, err := client.Dial(ctx, addr, client.Options{ClientInfo: info})
		if err != nil {
			closeAll(clients)
			return nil, fmt.Errorf("bench: %w", err)
		}
		clients = append(clients, c)
	}
	return clients, nil
}

func closeAll(clients []*client.Client) {
	for _, c := range clients {
		c.Close()
	}
}

// needTopic makes a topic unless it is there.
func needTopic(ctx context.Context, c *client.Client, topic string, queues int) (made bool, err error) {
	err = c.CreateTopic(ctx, topic, queues)
	var refusal *client.StatusError
	if errors.As(err, &refusal) && refusal.Status == protocol.TopicExists {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("bench: topic %s: %w", topic, err)
	}
	return true, nil
}
