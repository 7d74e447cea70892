package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// countdown is how many operations go well before one fails; 0: all do.
type countdown struct{ atomic.Int64 }

func (c *countdown) hit() bool {
	for {
		n := c.Load()
		if n <= 0 {
			return false
		}
		if c.CompareAndSwap(n, n-1) {
			if n == 1 {
				c.Store(-1)
			}
			return n == 1
		}
	}
}

// fill sends messages until the log has so many more segments.
func (r *rig) fill(c *conn, topic string, segments int) {
	r.t.Helper()
	body := strings.Repeat("x", 8000)
	for end := r.e.Log().Appended() + uint64(segments)*uint64(r.e.Log().Recovery().SegmentBytes); r.e.Log().Appended() < end; {
		c.sendBodies(topic, body)
	}
}

// pass lets time go by and has the steward look. Of more than a minute the broker sleeps through all but the last one, as
// a stopped process does: the lease clock does not count that.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	if slept := d - time.Minute; slept > 0 {
		r.clock.mono += slept
		r.clock.wall = r.clock.wall.Add(slept)
		d = time.Minute
	}
	r.advance(d)
	r.e.Steward()
	r.commit()
}

// cover takes the snapshots without which no log is let go.
func (r *rig) cover() {
	r.t.Helper()
	r.commit()
	r.take()
	c := r.dial()
	c.call(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: fmt.Sprint("n", r.next), Queues: 1})
	r.take()
}

// fillAndRetire has so many segments sent, read by nobody, and let go by age.
func (r *rig) fillAndRetire(segments int) {
	r.t.Helper()
	r.fill(r.dial(), "old", segments)
	r.cover()
	r.pass(defaultRetentionAge + time.Hour)
	if r.e.Log().First() == firstPosition {
		r.t.Fatal("nothing was let go")
	}
}

func TestOldLogGoes(t *testing.T) {
	// Given a log of some segments that nobody reads,
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	c := r.dial()
	r.fill(c, "old", 4)
	// when it is young, or no snapshots stand for it, then it stays;
	r.pass(defaultRetentionAge + time.Hour)
	r.cover()
	if first := r.e.Log().First(); first != firstPosition {
		t.Fatalf("the log begins at %d though nothing stood for it", first)
	}
	// when both is so, then whole segments go, and what is left can be read after a restart.
	r.pass(2 * reviewEveryMs * time.Millisecond)
	first := r.e.Log().First()
	if first == firstPosition {
		t.Fatal("nothing was let go")
	}
	r.restart()
	if got := r.e.Log().First(); got != first {
		t.Fatalf("the log begins at %d, was %d", got, first)
	}
	files, err := filepath.Glob(filepath.Join(r.o.Dir, "log", "*.log"))
	if err != nil || len(files) == 0 || strings.HasSuffix(files[0], "00000000000000000000.log") {
		t.Fatalf("%v %v", files, err)
	}
	var list protocol.ListTopicsAnswer
	c = r.dial()
	c.ok(protocol.OpListTopics, 0, nil, &list)
	for _, topic := range list.Topics {
		if topic.Name == "old" {
			if topic.Messages == 0 || topic.Messages >= topic.Sent {
				t.Fatalf("%d messages of %d are there", topic.Messages, topic.Sent)
			}
			r.takeAll("old", 1) // all bodies are the same
		}
	}
}

func TestWhatAGroupNeedsStays(t *testing.T) {
	// Given a group that has not come to a message,
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "first", "second")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	r.fill(c, "jobs", 4)
	r.cover()
	// when everything is old, then nothing goes while the group holds it,
	r.pass(defaultRetentionAge + time.Hour)
	if first := r.e.Log().First(); first != firstPosition {
		t.Fatalf("the log begins at %d", first)
	}
	_ = p
	// not even when it has had no session for days,
	r.pass(2 * 24 * time.Hour)
	if first := r.e.Log().First(); first != firstPosition {
		t.Fatalf("the log begins at %d", first)
	}
	// and all of it when that comes to a week: what it had not settled is dropped, counted and told.
	r.pass(6 * 24 * time.Hour)
	if first := r.e.Log().First(); first != firstPosition {
		t.Fatalf("the log begins at %d without a warning", first)
	}
	r.advance(idleGraceMs * time.Millisecond)
	r.pass(time.Minute)
	if r.e.Log().First() == firstPosition {
		t.Fatal("nothing was let go")
	}
	var a protocol.ShowGroupAnswer
	c.ok(protocol.OpShowGroup, 0, &protocol.NameRequest{Name: "g"}, &a)
	dropped := uint64(0)
	for _, cursor := range a.Cursors {
		dropped += cursor.Dropped
	}
	if dropped == 0 || dropped != r.e.stats.dropped.Load() || a.IdleMs == 0 {
		t.Fatalf("%d dropped, %d counted, idle for %d ms", dropped, r.e.stats.dropped.Load(), a.IdleMs)
	}
}

// TestAFewUnsettledMessagesAreCopiedForward: one message that is unsettled for days does not keep a segment. It keeps its
// identity, its receipt, its state and its place.
func TestAFewUnsettledMessagesAreCopiedForward(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	c := r.dial()
	forever := protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{HoldMs: protocol.HoldForever}}
	c.ok(protocol.OpCreateGroup, 0, &forever, nil)
	s := c.register("g", "a")
	first := c.sendBodies("jobs", "kept", "done", "given back")
	var p protocol.PopAnswer
	var born int64
	seen := map[string][]byte{}
	for len(seen) < 3 {
		p = c.pop(popRequest(s.Session, "jobs", 3))
		for i := range p.Rows {
			seen[c.bodyOf(&p, i)] = append([]byte(nil), p.Rows[i].Receipt...)
			h, _, _, _ := codec.ReadRecord(p.Record(i))
			born = h.WallMs
		}
	}
	c.ack(s.Session, seen["done"])
	if res := c.change(s.Session,
		protocol.ChangeEntry{Receipt: seen["given back"], Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 6 * 60 * 60 * 1000},
		protocol.ChangeEntry{Receipt: seen["kept"], Ordinal: 1, Cause: protocol.CauseRenew, InvisibleMs: 6 * 60 * 60 * 1000},
	); res[0].Status != protocol.OK || res[1].Status != protocol.OK {
		t.Fatalf("%+v", res)
	}
	// Given old segments of which everything but two messages is settled, one held and one waiting,
	r.fill(c, "jobs", 4)
	for range 200 {
		if p := c.pop(popRequest(s.Session, "jobs", 100)); len(p.Rows) > 0 {
			c.ack(s.Session, receipts(&p)...)
		}
	}
	r.cover()
	r.clock.wall = r.clock.wall.Add(defaultRetentionAge + time.Hour) // the lease clock does not jump
	r.restart()
	c = r.dial()
	r.beatFor(c, s.Session, time.Minute)
	// when they go,
	if r.e.Log().First() == firstPosition {
		t.Fatalf("nothing was let go: %s", r.e.retention.logged)
	}
	if r.e.stats.copied.Load() != 2 {
		t.Fatalf("%d messages were copied", r.e.stats.copied.Load())
	}
	// then the one that is held is settled by the receipt of before, also after a restart,
	r.restart()
	c = r.dial()
	if res := c.ack(s.Session, seen["kept"]); res[0].Status != protocol.OK {
		t.Fatalf("ack: %s %s", res[0].Status, res[0].Reason)
	}
	// and the one that waits comes again as itself, when its time has come.
	for range 6*60 + 1 {
		r.beatFor(c, s.Session, time.Minute)
	}
	p = c.pop(popRequest(s.Session, "jobs", 10))
	if len(p.Rows) != 1 || c.bodyOf(&p, 0) != "given back" || p.Rows[0].Attempt != 2 {
		t.Fatalf("%d messages came: %+v", len(p.Rows), p.Rows)
	}
	h, assigned, _, _ := codec.ReadRecord(p.Record(0))
	if h.Type != codec.TypeCopy || h.Born() != born || h.WallMs <= born {
		t.Fatalf("a record of type %d stored at %d, born at %d, was born at %d", h.Type, h.WallMs, h.Born(), born)
	}
	if place := codec.ParseMessagePlace(assigned); codec.MessageID(first[2].MessageID) != place.ID || place.Offset != first[2].Offset {
		t.Fatalf("it is %s at %d, was %x at %d", place.ID, place.Offset, first[2].MessageID, first[2].Offset)
	}
	c.ack(s.Session, receipts(&p)...)
	// And when the segment with the copies goes, so does what was kept of them.
	r.fill(c, "jobs", 4)
	for range 200 {
		if p := c.pop(popRequest(s.Session, "jobs", 100)); len(p.Rows) > 0 {
			c.ack(s.Session, receipts(&p)...)
		}
	}
	r.cover()
	r.clock.wall = r.clock.wall.Add(defaultRetentionAge + time.Hour)
	r.restart()
	r.pass(time.Minute)
	if n := r.e.fold.topics.copies.Len(); n != 0 {
		t.Fatalf("%d copies are kept: %s", n, r.e.retention.logged)
	}
}

// beatFor lets time go by in which a session heartbeats and the steward looks.
func (r *rig) beatFor(c *conn, session uint64, d time.Duration) {
	r.t.Helper()
	for ; d > 0; d -= 5 * time.Second {
		r.advance(5 * time.Second)
		if a := c.call(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: session}); a.Status != protocol.OK {
			r.t.Fatalf("heartbeat: %s", a.Status)
		}
	}
	r.e.Steward()
	r.commit()
}

func TestTheHardLimitDrops(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10; o.Retention.HardBytes = 4 * 64 << 10 })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "held")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	r.fill(c, "jobs", 8)
	r.cover()
	r.pass(reviewEveryMs * time.Millisecond)
	if segments := r.e.Log().Stats().Segments; segments > 5 {
		t.Fatalf("%d segments are left", segments)
	}
	// What was held was copied; what was not taken is gone, and the group goes on behind it.
	if r.e.stats.dropped.Load() == 0 || r.e.stats.copied.Load() != 1 {
		t.Fatalf("%d dropped, %d copied", r.e.stats.dropped.Load(), r.e.stats.copied.Load())
	}
	if res := c.ack(s.Session, receipts(&p)[0]); res[0].Status != protocol.OK {
		t.Fatalf("ack: %s", res[0].Status)
	}
	if next := c.pop(popRequest(s.Session, "jobs", 1)); len(next.Rows) != 1 {
		t.Fatal("nothing comes")
	}
}

// TestADeletedTopicGivesItsSpaceBack, and so does one that was emptied, without waiting for its age.
func TestADeletedTopicGivesItsSpaceBack(t *testing.T) {
	for what, code := range map[string]protocol.Opcode{"deleted": protocol.OpDeleteTopic, "purged": protocol.OpPurgeTopic} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
			c := r.dial()
			r.fill(c, "old", 4)
			r.cover()
			r.pass(time.Minute)
			if r.e.Log().First() != firstPosition {
				t.Fatal("it was let go")
			}
			c.ok(code, 0, &protocol.NameRequest{Name: "old"}, nil)
			r.pass(time.Second)
			if r.e.Log().First() == firstPosition {
				t.Fatal("nothing was let go")
			}
			r.restart()
		})
	}
}

func TestPurge(t *testing.T) {
	// Given a topic with messages that are held, that wait, and that nobody has taken, and a pop that waits,
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	req := &protocol.CreateTopicRequest{Name: "jobs", Queues: 2}
	c.ok(protocol.OpCreateTopic, 0, req, nil)
	c.sendBodies("jobs", "1", "2", "3", "4")
	p := c.pop(popRequest(s.Session, "jobs", 2))
	c.change(s.Session, protocol.ChangeEntry{Receipt: receipts(&p)[1], Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 60_000})
	empty := c.register("h", "b")
	all := c.pop(popRequest(empty.Session, "jobs", 10))
	c.ack(empty.Session, receipts(&all)...)
	wait := popRequest(empty.Session, "jobs", 1)
	wait.AwaitMs = 60_000
	parked := c.start(protocol.OpPop, 0, wait)
	// when it is purged,
	c.ok(protocol.OpPurgeTopic, 0, &protocol.NameRequest{Name: "jobs"}, nil)
	// then who waits is told that there is nothing, what was held is void, and nothing comes;
	if a := c.wait(parked); a.Status != protocol.Empty {
		t.Fatalf("the pop that waits: %s", a.Status)
	}
	for range 2 {
		for i, receipt := range receipts(&p) {
			if res := c.ack(s.Session, receipt); res[0].Status != protocol.Stale || res[0].Reason != protocol.ReasonReset {
				t.Fatalf("receipt %d: %s %s", i, res[0].Status, res[0].Reason)
			}
		}
		if got := c.pop(popRequest(s.Session, "jobs", 10)); len(got.Rows) != 0 {
			t.Fatalf("%d messages came", len(got.Rows))
		}
		r.restart() // and all of it lasts
		c = r.dial()
	}
	// and what is sent afterwards comes, at the offsets that follow.
	res := c.sendBodies("jobs", "5")
	if res[0].Offset < 2 {
		t.Fatalf("offset %d", res[0].Offset)
	}
	got := c.pop(popRequest(s.Session, "jobs", 10))
	if len(got.Rows) != 1 || c.bodyOf(&got, 0) != "5" {
		t.Fatalf("%d messages came", len(got.Rows))
	}
	if a := c.call(protocol.OpPurgeTopic, 0, &protocol.NameRequest{Name: "none"}); a.Status != protocol.TopicNotFound {
		t.Fatalf("purge of no topic: %s", a.Status)
	}
	// A group that begins to read now begins there, too.
	r.takeAll("jobs", 1)
}

func TestATopicMadeAgainIsAnotherOne(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "old")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	c.ok(protocol.OpDeleteTopic, 0, &protocol.NameRequest{Name: "jobs"}, nil)
	if res := c.ack(s.Session, receipts(&p)[0]); res[0].Status != protocol.TopicNotFound {
		t.Fatalf("ack: %s", res[0].Status)
	}
	c.sendBodies("jobs", "new")
	for range 2 {
		if res := c.ack(s.Session, receipts(&p)[0]); res[0].Status != protocol.TopicNotFound {
			t.Fatalf("ack: %s", res[0].Status)
		}
		r.restart()
		c = r.dial()
	}
	got := c.pop(popRequest(s.Session, "jobs", 10))
	if len(got.Rows) != 1 || c.bodyOf(&got, 0) != "new" || got.Rows[0].Attempt != 1 {
		t.Fatalf("%+v", got.Rows)
	}
}

// TestAClockSetBackEndsNothing: an hour between two runs that the wall clock takes back expires no lease and lets nothing go.
func TestAClockSetBackEndsNothing(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "held")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	r.fill(c, "other", 3)
	r.cover()
	r.commit()
	r.e.Abort()
	r.clock.wall = r.clock.wall.Add(-time.Hour)
	r.open()
	r.pass(time.Second)
	if r.e.Log().First() != firstPosition || r.e.stats.expired.Load() != 0 || r.e.stats.sessionsEnded.Load() != 0 {
		t.Fatalf("the log begins at %d, %d leases expired, %d sessions ended",
			r.e.Log().First(), r.e.stats.expired.Load(), r.e.stats.sessionsEnded.Load())
	}
	if res := r.dial().ack(s.Session, receipts(&p)[0]); res[0].Status != protocol.OK {
		t.Fatalf("ack: %s", res[0].Status)
	}
}

// TestASegmentMissingInTheMiddleIsNamed, and one that the state needs at the beginning.
func TestASegmentMissingIsNamed(t *testing.T) {
	for _, which := range []int{0, 1} {
		r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
		r.fillAndRetire(6)
		r.fill(r.dial(), "young", 4)
		r.commit()
		r.e.Abort()
		files, err := filepath.Glob(filepath.Join(r.o.Dir, "log", "*.log"))
		if err != nil || len(files) < 4 {
			t.Fatalf("%v %v", files, err)
		}
		if err := os.Remove(files[which]); err != nil {
			t.Fatal(err)
		}
		_, err = Open(r.o)
		if err == nil || which > 0 && !strings.Contains(err.Error(), filepath.Base(files[which])) {
			t.Fatalf("segment %d: %v", which, err)
		}
		t.Logf("%v", err)
		r.e = nil
	}
}

// fullForSnapshots has no room for a new snapshot.
type fullForSnapshots struct {
	mmaplog.FS
	full atomic.Bool
}

func (f *fullForSnapshots) OpenFile(name string, flag int, mode os.FileMode) (mmaplog.File, error) {
	if f.full.Load() && flag&os.O_CREATE != 0 && strings.Contains(name, "snapshots") {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
	}
	return f.FS.OpenFile(name, flag, mode)
}

// Given old log that two snapshots stand for, and a newer snapshot that is due and finds no room, the old log goes all the same: it is
// what makes room.
func TestOldLogGoesThoughASnapshotFails(t *testing.T) {
	disk := &fullForSnapshots{FS: mmaplog.OS}
	r := newRig(t, func(o *Options) { o.SegmentBytes, o.SnapshotBytes, o.FS = 64<<10, 32<<10, disk })
	c := r.dial()
	r.fill(c, "old", 4)
	r.cover()
	disk.full.Store(true)
	r.fill(c, "old", 1)
	r.commit()
	if !r.e.snapshotDue() {
		t.Fatal("no snapshot is due")
	}
	failed := r.e.stats.snapshotsFailed.Load()
	r.pass(defaultRetentionAge + time.Hour)
	if r.e.stats.snapshotsFailed.Load() == failed {
		t.Fatal("no snapshot was tried")
	}
	if first := r.e.Log().First(); first == firstPosition {
		t.Error("nothing was let go")
	}
}
