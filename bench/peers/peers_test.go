package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
		{Work: "send", Peer: "leasemq", Durability: "now and then", Rounds: []figures{{Sent: 900}, {Sent: 1_000_000}, {Sent: 1000}}},
		{Work: "send", Peer: "other", Way: "slowly", Rounds: []figures{{Sent: 400}, {Sent: 600}}},
		{Work: "send", Peer: "broken", Skipped: "no such thing"},
		{Work: "sync", Peer: "leasemq", Rounds: []figures{{P50: 50, P99: 100}}},
		{Work: "sync", Peer: "other", Rounds: []figures{{P50: 100, P99: 50}}},
	}}
	var out bytes.Buffer
	r.text(&out, true)
	for _, want := range []string{
		"| peer | on the disk | sent | least - most | leasemq is |",
		"| leasemq | now and then | 1,000/s | 900 - 1,000,000 |  |",
		"| other, slowly |  | 500/s | 400 - 600 | 2.0 x |",
		"| broken |  | skipped |",
		"skipped: broken: no such thing",
		"| other |  | 100 us | 100 - 100 | 2.0 x | 50 us | 50 - 50 | 0.5 x |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

// Each durability of RocketMQ is a setting of its broker, and everything lies in the directory that is removed afterwards.
func TestRocketFiles(t *testing.T) {
	for flushed, want := range map[bool]string{false: "flushDiskType=ASYNC_FLUSH\n", true: "flushDiskType=SYNC_FLUSH\n"} {
		files := rocketFiles("/here", "jobs", flushed)
		if broker := files["broker.conf"]; !strings.Contains(broker, want) || !strings.Contains(broker, "storePathRootDir=/here/store\n") {
			t.Errorf("flushed %v: the broker's file is\n%s", flushed, broker)
		}
		for _, name := range []string{"conf/rmq-proxy.json", "store/config/topics.json"} {
			if !json.Valid([]byte(files[name])) {
				t.Errorf("%s is not JSON:\n%s", name, files[name])
			}
		}
	}
}

// Services are forbidden while packages are installed, and no longer; a policy of the administrator stays as it is.
func TestForbidServices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy-rc.d")
	allow, err := forbidServices(path)
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := exec.Command(path, "any", "start").Run(); !errors.As(err, &exit) || exit.ExitCode() != 101 {
		t.Errorf("the policy says %v, not 101", err)
	}
	if err := allow(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the policy stayed: %v", err)
	}
	if err := os.WriteFile(path, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if allow, err = forbidServices(path); err != nil {
		t.Fatal(err)
	}
	if err := allow(); err != nil {
		t.Fatal(err)
	}
	if kept, _ := os.ReadFile(path); string(kept) != "theirs" {
		t.Errorf("the administrator's policy is now %q", kept)
	}
}

// A broker that has lost a message, or has one too many, fails the run.
func TestSettled(t *testing.T) {
	for left, fails := range map[int64]bool{3: false, 2: true, 4: true} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		b := &run{broker: countingBroker{n: left}}
		b.sent.Store(10)
		b.taken.Store(7)
		if err := b.settled(ctx); (err != nil) != fails {
			t.Errorf("10 sent, 7 settled, %d left: %v", left, err)
		}
		cancel()
	}
}

// At a fixed rate, a peer that is behind when all is sent has no latency.
func TestKeptUp(t *testing.T) {
	began := time.Now()
	const rate = 20_000
	s := newSchedule(began, rate, 10*time.Second) // and a tenth of it to warm up
	for _, c := range []struct {
		after   time.Duration
		waiting int64
		keeps   bool
	}{
		{11 * time.Second, 0, true},
		{11*time.Second + 900*time.Millisecond, rate - 1, true},
		{12*time.Second + time.Millisecond, 0, false},
		{11 * time.Second, rate, false},
	} {
		if err := s.keptUp(began.Add(c.after), c.waiting); (err == nil) != c.keeps {
			t.Errorf("all confirmed after %v, %d waiting: %v", c.after, c.waiting, err)
		}
	}
}

type countingBroker struct {
	broker
	n int64
}

func (b countingBroker) left(context.Context, string) (int64, bool, error) { return b.n, true, nil }

// Every peer that is here gives back what it was sent, each message once, and says so over every way of working.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	me := ours{program: dir + "/leasemq"}
	if err := build("../..", me.program); err != nil {
		t.Fatal(err)
	}
	for _, p := range append([]peer{me}, everyPeer()...) {
		t.Run(p.name(), func(t *testing.T) {
			if why := p.missing(); why != "" {
				t.Skip(why)
			}
			done := map[string]bool{}
			for _, w := range workloads() {
				if w.id != "send" && w.id != "consume" && w.id != "both" {
					continue
				}
				for _, way := range p.ways(w) {
					if !done[way] {
						roundTrip(t, p, way)
					}
					done[way] = true
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
	waiting := &run{broker: running}
	waiting.sent.Store(messages + 1)
	if err := waiting.settled(ctx); err != nil {
		t.Errorf("%s: %v", way, err)
	}
	takesEachOnce(t, running, way, sent)
}

// takesEachOnce takes until as many messages came as were sent, and settles them.
func takesEachOnce(t *testing.T, running broker, way string, sent map[string]bool) {
	t.Helper()
	taker, err := running.consumer(t.Context(), queueName, way)
	if err != nil {
		t.Fatal(err)
	}
	defer taker.close()
	taking, enough := context.WithTimeout(t.Context(), 2*time.Minute)
	defer enough()
	counting, taken := counted(int64(len(sent)), enough)
	came := make(chan string, 2*len(sent))
	err = taker.drain(taking, func(body []byte) {
		came <- string(body)
		counting(body)
	})
	close(came)
	strange := 0
	for body := range came {
		if !sent[body] {
			strange++
		}
		delete(sent, body)
	}
	if err != nil || len(sent) > 0 || strange > 0 {
		t.Errorf("%s: %v; %d taken, %d missing, %d twice or never sent", way, err, taken.Load(), len(sent), strange)
	}
}
