package inspect_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/broker/brokertest"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/inspect"
	"github.com/leasemq/leasemq/mmaplog"
)

const segmentBytes = 64 << 10

// testClock is a clock that tests move.
type testClock struct {
	mu   sync.Mutex
	mono time.Duration
}

var clockStart = time.Unix(1_790_000_000, 0)

func (c *testClock) Mono() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mono
}

func (c *testClock) Wall() time.Time { return clockStart.Add(c.Mono()) }

// rig is a broker without a network on a directory, and a client of it.
type rig struct {
	t      testing.TB
	o      broker.Options
	clock  *testClock
	e      *broker.Engine
	server *brokertest.Server
	c      *client.Client
	n      int

	removed map[string][]byte // segments as they were before old ones were let go, by path
}

func newRig(t testing.TB, change func(*broker.Options)) *rig {
	r := &rig{t: t, clock: &testClock{}}
	r.o = broker.Options{
		Dir: t.TempDir(), IO: mmaplog.IOStaged, Fsync: mmaplog.SyncAlways, SegmentBytes: segmentBytes, RingBytes: 1 << 20,
		Clock: r.clock, Manual: true, Verify: true, Seed: 1, Retention: broker.Retention{Age: -1},
	}
	if change != nil {
		change(&r.o)
	}
	r.open()
	t.Cleanup(func() {
		if r.e != nil {
			r.kill()
		}
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	if err := r.tryOpen(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryOpen() error {
	e, err := broker.Open(r.o)
	if err != nil {
		return err
	}
	r.e, r.server = e, brokertest.New(e)
	r.c, err = client.Dial(r.t.Context(), "anywhere", client.Options{Dialer: r.server.Dial})
	if err != nil {
		r.t.Fatal(err)
	}
	return nil
}

// leave ends the client and the server.
func (r *rig) leave() {
	r.t.Helper()
	if err := r.e.Err(); err != nil {
		r.t.Error(err)
	}
	r.c.Close()
	r.server.Close()
}

// kill stops the engine as a kill would.
func (r *rig) kill() {
	r.leave()
	r.e.Abort()
	r.e = nil
}

// stop stops it in order.
func (r *rig) stop() {
	r.t.Helper()
	r.leave()
	if err := r.e.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.e = nil
}

// advance moves the clocks in ticks.
func (r *rig) advance(d time.Duration) {
	for ; d > 0; d -= 250 * time.Millisecond {
		r.clock.mu.Lock()
		r.clock.mono += 250 * time.Millisecond
		r.clock.mu.Unlock()
		r.e.Tick()
	}
}

func (r *rig) send(topic string, bodies ...string) []client.SendResult {
	r.t.Helper()
	p := r.c.Producer(client.ProducerOptions{Create: true, Compression: client.CompressNone})
	messages := make([]*client.Message, len(bodies))
	for i, body := range bodies {
		messages[i] = &client.Message{Topic: topic, Body: []byte(body), Key: "k-" + body[:min(len(body), 8)], Tag: "blue"}
	}
	results, err := p.SendBatch(r.t.Context(), topic, messages)
	if err != nil {
		r.t.Fatal(err)
	}
	return results
}

// fill sends messages until the log has so many more segments.
func (r *rig) fill(topic string, segments int) {
	r.t.Helper()
	for end := r.e.Log().Appended() + uint64(segments)*segmentBytes; r.e.Log().Appended() < end; {
		r.send(topic, slices.Repeat([]string{strings.Repeat("x", 5000)}, 6)...)
	}
}

func (r *rig) snapshot() uint64 {
	r.t.Helper()
	s, err := r.e.Snapshot()
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Position
}

// cover takes the two snapshots without which no log is let go.
func (r *rig) cover() {
	r.t.Helper()
	for range 2 {
		r.n++
		if err := r.c.CreateTopic(r.t.Context(), fmt.Sprint("cover", r.n), 1); err != nil {
			r.t.Fatal(err)
		}
		r.snapshot()
	}
}

// shorten lets old log go until it begins later than it did.
func (r *rig) shorten() {
	r.t.Helper()
	before := r.e.Log().First()
	r.cover()
	for range 5 {
		r.advance(11 * time.Second)
		r.e.Steward()
	}
	if r.e.Log().First() == before {
		r.t.Fatal("no log was let go")
	}
}

func (r *rig) register(group string) *client.Session {
	r.t.Helper()
	s, err := r.c.Register(r.t.Context(), group, client.RegisterOptions{Create: true})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) pop(s *client.Session, topic string, most int) []*client.Delivery {
	r.t.Helper()
	batch, err := s.Pop(r.t.Context(), client.PopOptions{Topic: topic, Max: most, Invisible: time.Hour})
	if err != nil {
		r.t.Fatal(err)
	}
	return batch.Deliveries
}

func (r *rig) ack(s *client.Session, list ...*client.Delivery) {
	r.t.Helper()
	if _, err := s.Ack(r.t.Context(), list...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) path(parts ...string) string {
	return filepath.Join(append([]string{r.o.Dir}, parts...)...)
}

func (r *rig) segmentOf(position uint64) (path string, offset int64) {
	return r.path("log", fmt.Sprintf("%020d.log", position-position%segmentBytes)), int64(position % segmentBytes)
}

func (r *rig) verify() *inspect.Report {
	r.t.Helper()
	report, err := inspect.Verify(r.t.Context(), r.o.Dir)
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

// clean checks that there is no finding.
func (r *rig) clean(when string) *inspect.Report {
	r.t.Helper()
	report := r.verify()
	for _, f := range report.Findings {
		r.t.Errorf("%s: %s", when, f)
	}
	if report.Good != (len(report.Findings) == 0) {
		r.t.Errorf("%s: good is %t", when, report.Good)
	}
	return report
}

// finds checks that there is a finding with these words, and gives it.
func (r *rig) finds(words ...string) inspect.Finding {
	r.t.Helper()
	report := r.verify()
	for _, f := range report.Findings {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(f.What, w) }) {
			return f
		}
	}
	r.t.Fatalf("no finding says %q: %v", words, report.Findings)
	return inspect.Finding{}
}

func (r *rig) dump(f inspect.Filter) (lines []*inspect.Line) {
	r.t.Helper()
	_, _, err := inspect.Dump(r.t.Context(), r.o.Dir, &f, func(l *inspect.Line) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return lines
}

// overwrite changes bytes of a file.
func overwrite(t testing.TB, path string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// flip changes one bit of a file.
func flip(t testing.TB, path string, at int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, at, []byte{b[at] ^ 0x10})
}

// forge changes the record at a position and gives it a good checksum again.
func (r *rig) forge(position uint64, change func(raw []byte)) {
	r.t.Helper()
	path, off := r.segmentOf(position)
	b, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	h := codec.ParseHeader(b[off:])
	raw := b[off : off+int64(h.Length)]
	change(raw)
	h = codec.ParseHeader(raw)
	assigned := h.Type.AssignedBytes()
	codec.Seal(raw, &h, assigned, codec.Checksum(0, raw[codec.HeaderBytes+assigned:]))
	overwrite(r.t, path, off, raw)
}

// entry is the file and the place of a queue's index entry.
func (r *rig) entry(topic uint32, queue uint16, offset uint64) (path string, at int64) {
	return r.path("queues", fmt.Sprint(topic), fmt.Sprint(queue), fmt.Sprintf("%020d.cq", offset-offset%32768)), int64(offset%32768) * 32
}

func putUint64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// busy gives a broker a bit of everything: topics, groups, a session that left and one that stays, grants, acks, releases.
func (r *rig) busy() (s *client.Session, held []*client.Delivery) {
	r.t.Helper()
	s = r.register("workers")
	other := r.register("others")
	var bodies []string
	for i := range 30 {
		bodies = append(bodies, fmt.Sprint("body ", i))
	}
	r.send("orders", bodies...)
	r.send("mail", bodies...)
	held = r.pop(s, "orders", 10)
	r.ack(s, held[:4]...)
	r.pop(other, "mail", 5)
	if err := other.Close(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	return s, held[4:]
}

func idOf(t testing.TB, s string) codec.MessageID {
	t.Helper()
	var epoch uint32
	var position uint64
	if _, err := fmt.Sscanf(s, "%08x-%016x", &epoch, &position); err != nil {
		t.Fatal(err)
	}
	return codec.NewMessageID(epoch, position)
}
