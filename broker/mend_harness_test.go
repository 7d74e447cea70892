package broker

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// mendRig is a rig whose clock workers may read while the test moves it, and that counts how often the log was read for an index.
type mendRig struct {
	*rig
	time   *lockedClock
	disk   *heldFS
	mends  *mendCounter
	takers []*taker
}

type lockedClock struct {
	mu sync.Mutex
	c  *testClock
}

func (l *lockedClock) Mono() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.mono
}

func (l *lockedClock) Wall() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.wall
}

// heldFS is the machine's file system. While hold is locked, reads of more than a few records wait.
type heldFS struct {
	mmaplog.FS
	hold sync.RWMutex
}

type heldFile struct {
	mmaplog.File
	fs *heldFS
}

func (f *heldFS) OpenFile(name string, flag int, perm fs.FileMode) (mmaplog.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &heldFile{file, f}, nil
}

func (f *heldFile) ReadAt(b []byte, off int64) (int, error) {
	if len(b) > 32<<10 {
		f.fs.hold.RLock()
		defer f.fs.hold.RUnlock()
	}
	return f.File.ReadAt(b, off)
}

// mendCounter is a log handler that counts the lines of mends.
type mendCounter struct {
	slog.Handler
	mu sync.Mutex
	n  int
}

func (m *mendCounter) Enabled(context.Context, slog.Level) bool { return true }

func (m *mendCounter) Handle(_ context.Context, r slog.Record) error {
	if strings.HasSuffix(r.Message, "was compared with the log") {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.n++
	}
	return nil
}

func (m *mendCounter) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n
}

func newMendRig(t *testing.T, change func(*Options)) *mendRig {
	m := &mendRig{disk: &heldFS{FS: mmaplog.OS}, mends: &mendCounter{Handler: slog.DiscardHandler}}
	m.time = &lockedClock{c: &testClock{wall: time.Unix(1_790_000_000, 0)}}
	m.rig = newRig(t, func(o *Options) {
		o.Clock, o.FS, o.Logger = m.time, m.disk, slog.New(m.mends)
		if change != nil {
			change(o)
		}
	})
	return m
}

// pass moves the clock as the ticker and the steward would see it.
func (m *mendRig) pass(d time.Duration) {
	for ; d > 0; d -= 250 * time.Millisecond {
		m.time.mu.Lock()
		m.time.c.mono += 250 * time.Millisecond
		m.time.c.wall = m.time.c.wall.Add(250 * time.Millisecond)
		m.time.mu.Unlock()
		m.e.Tick()
		m.e.mendDue()
		m.loop.Wake()
		for _, x := range m.takers {
			x.c.ok(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: x.session}, nil)
		}
	}
}

// quiet waits until nothing goes on in the background.
func (m *mendRig) quiet() {
	m.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); m.e.work.pending.Load() > 0 || m.e.mender.busy.Load(); m.await() {
		if time.Now().After(deadline) {
			m.t.Fatal("the background does not come to rest")
		}
	}
	m.await()
}

// sendMany sends n messages to queue 0 of a topic that has no other.
func (m *mendRig) sendMany(c *conn, topic string, n int) {
	m.t.Helper()
	for i := 0; i < n; {
		req := protocol.SendRequest{Topic: topic}
		for ; i < n && len(req.Messages) < 100; i++ {
			req.Messages = append(req.Messages, encoded(m.t, bodyAt(topic, uint64(i))))
		}
		c.ok(protocol.OpSend, 0, &req, nil)
	}
}

func bodyAt(topic string, offset uint64) string { return fmt.Sprintf("<%s %d>", topic, offset) }

// down kills the engine with everything stored and behind a snapshot.
func (m *mendRig) down() {
	m.t.Helper()
	m.take()
	m.commit()
	m.e.Abort()
}

// harm changes a file of the data directory.
func (m *mendRig) harm(pattern string, change func(b []byte)) {
	m.t.Helper()
	paths, err := filepath.Glob(filepath.Join(m.o.Dir, pattern))
	if err != nil || len(paths) == 0 {
		m.t.Fatalf("no file %s (%v)", pattern, err)
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		m.t.Fatal(err)
	}
	before := append([]byte(nil), b...)
	change(b)
	f, err := os.OpenFile(paths[0], os.O_RDWR, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	for i := range b { // nothing but what has changed: the broker may have the file open
		if b[i] != before[i] {
			if _, err := f.WriteAt(b[i:i+1], int64(i)); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

const indexOfFirstTopic = "queues/1/0/*.cq"

// zeroEntry takes an entry of the first topic away; otherEntry replaces it by the one behind it.
func (m *mendRig) zeroEntry(offset int) {
	m.harm(indexOfFirstTopic, func(b []byte) { clear(b[offset*32 : (offset+1)*32]) })
}

func (m *mendRig) otherEntry(offset int) {
	m.harm(indexOfFirstTopic, func(b []byte) { copy(b[offset*32:(offset+1)*32], b[(offset+1)*32:]) })
}

// damage flips a bit of the body of a message in the log, and of length bytes from so many before it on.
func (m *mendRig) damage(body string, before, length int) {
	m.harm("log/*.log", func(b []byte) {
		at := strings.Index(string(b), body)
		if at < 0 {
			m.t.Fatalf("%s is not in the log", body)
		}
		for i := at - before; i < at-before+length; i++ {
			b[i] ^= 1
		}
	})
}

// taker pops one topic and acks what it gets.
type taker struct {
	m       *mendRig
	c       *conn
	session uint64
	topic   string
	tags    []string
	got     map[uint64]bool
	release func() bool
}

func (m *mendRig) taker(group, topic string) *taker {
	c := m.dial()
	x := &taker{m: m, c: c, session: c.register(group, "x").Session, topic: topic, got: map[uint64]bool{}}
	m.takers = append(m.takers, x)
	return x
}

// step pops once. Every message must be what was sent, and come once.
func (x *taker) step(most int) int {
	x.m.t.Helper()
	req := popRequest(x.session, x.topic, most)
	req.FilterTags = x.tags
	p := x.c.pop(req)
	list := receipts(&p)
	for i := range p.Rows {
		_, assigned, _, err := codec.ReadRecord(p.Record(i))
		if err != nil {
			x.m.t.Fatal(err)
		}
		offset := codec.ParseMessagePlace(assigned).Offset
		if x.got[offset] || x.c.bodyOf(&p, i) != bodyAt(x.topic, offset) {
			x.m.t.Fatalf("offset %d came as %q (came before: %v)", offset, x.c.bodyOf(&p, i), x.got[offset])
		}
		if x.release != nil && x.release() {
			x.c.change(x.session, protocol.ChangeEntry{Receipt: list[i], Ordinal: 1})
			continue
		}
		if res := x.c.ack(x.session, list[i]); res[0].Status != protocol.OK {
			x.m.t.Fatalf("ack: %+v", res)
		}
		x.got[offset] = true
	}
	return len(p.Rows)
}

// takeFor pops while time goes on, until it has so many or d is over.
func (x *taker) takeFor(d time.Duration, want int) {
	x.m.t.Helper()
	for d > 0 && len(x.got) < want {
		if x.step(50) > 0 {
			continue
		}
		x.m.quiet()
		x.m.pass(250 * time.Millisecond)
		d -= 250 * time.Millisecond
	}
}

func (x *taker) wantAllBut(n int, lost ...uint64) {
	x.m.t.Helper()
	missing := map[uint64]bool{}
	for _, offset := range lost {
		missing[offset] = true
	}
	wrong := 0
	for offset := range uint64(n) {
		if x.got[offset] == missing[offset] {
			if wrong++; wrong <= 5 {
				x.m.t.Errorf("offset %d: came %v, is damaged %v", offset, x.got[offset], missing[offset])
			}
		}
	}
	if wrong > 5 {
		x.m.t.Errorf("and %d more", wrong-5)
	}
	if n := x.m.e.stats.unreadable.Load(); n != uint64(len(lost)) {
		x.m.t.Errorf("%d messages were passed as unreadable, want %d", n, len(lost))
	}
}

// oneQueue is a rig with so many messages in a topic of one queue, none of which is in memory.
func oneQueue(t *testing.T, n int) *mendRig {
	m := newMendRig(t, nil)
	c := m.dial()
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	m.sendMany(c, "jobs", n)
	m.down()
	return m
}
