package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestMain makes this program the NATS server where it was started as that.
func TestMain(m *testing.M) {
	if port := os.Getenv(natsEnv); port != "" {
		if err := serveNATS(port); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 3: {3}, 2: {3, 1, 2}, 2.5: {4, 1, 2, 3}} {
		if got := median(values); got != want {
			t.Errorf("median of %v is %v", values, got)
		}
	}
}

// A table has the medians, the extremes, and how many times better leasemq is: by rate, or by how short the wait is.
func TestTable(t *testing.T) {
	r := report{Results: []*result{
		{Work: "send", Peer: "leasemq", Rounds: []figures{{Sent: 900}, {Sent: 1_000_000}, {Sent: 1000}}},
		{Work: "send", Peer: "other", Way: "slowly", Rounds: []figures{{Sent: 400}, {Sent: 600}}},
		{Work: "send", Peer: "broken", Skipped: "no such thing"},
		{Work: "sync", Peer: "leasemq", Rounds: []figures{{P50: 50, P99: 100}}},
		{Work: "sync", Peer: "other", Rounds: []figures{{P50: 100, P99: 50}}},
	}}
	var out bytes.Buffer
	r.text(&out, true)
	for _, want := range []string{
		"| leasemq | 1,000/s | 900 - 1,000,000 |  |",
		"| other, slowly | 500/s | 400 - 600 | 2.0 x |",
		"| broken | skipped: no such thing |",
		"| other | 100 us | 100 - 100 | 2.0 x | 50 us | 50 - 50 | 0.5 x |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

// Every peer that is here gives back what it was sent, each message once, and says so over every way of working.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	me := ours{program: dir + "/leasemq"}
	if err := build("../..", me.program); err != nil {
		t.Fatal(err)
	}
	for _, p := range []peer{me, natsPeer{}, redisPeer{}, beanstalkd{}, rabbitMQ{}} {
		t.Run(p.name(), func(t *testing.T) {
			if why := p.missing(); why != "" {
				t.Skip(why)
			}
			for _, w := range workloads() {
				if w.id != "send" && w.id != "consume" && w.id != "both" {
					continue
				}
				for _, way := range p.ways(w) {
					roundTrip(t, p, way)
				}
			}
		})
	}
}

func roundTrip(t *testing.T, p peer, way string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	running, err := p.start(ctx, t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := running.stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := running.prepare(ctx, queueName); err != nil {
		t.Fatal(err)
	}
	sender, err := running.producer(ctx, queueName, way)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.close()
	const messages = 1000
	sent := make(map[string]bool)
	for i := range messages {
		body := strings.Repeat("x", 100) + string(rune('a'+i%26)) + string(rune(i+1000))
		sent[body] = true
		if err := sender.post([][]byte{[]byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(sender.flush(), sender.one([]byte("last"))); err != nil {
		t.Fatal(err)
	}
	sent["last"] = true
	taker, err := running.consumer(ctx, queueName, way)
	if err != nil {
		t.Fatal(err)
	}
	defer taker.close()
	taking, enough := context.WithCancel(ctx)
	defer enough()
	counting, taken := counted(messages+1, enough)
	var strange atomic.Int64
	came := make(chan string, 2*messages)
	err = taker.drain(taking, func(body []byte) {
		came <- string(body)
		counting(body)
	})
	close(came)
	for body := range came {
		if !sent[body] {
			strange.Add(1)
		}
		delete(sent, body)
	}
	if err != nil || taken.Load() != messages+1 || len(sent) > 0 || strange.Load() > 0 {
		t.Errorf("%s: %v; %d taken, %d missing, %d twice or never sent", way, err, taken.Load(), len(sent), strange.Load())
	}
}
