package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// indexFiles lists the index files of all queues.
func (r *rig) indexFiles() (list []string) {
	r.t.Helper()
	err := filepath.WalkDir(filepath.Join(r.o.Dir, "queues"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	if err != nil || len(list) == 0 {
		r.t.Fatalf("%d index files, %v", len(list), err)
	}
	return list
}

// TestAWrongIndexEntryDropsNothing: a held message whose index entry names another record is not taken for damaged.
func TestAWrongIndexEntryDropsNothing(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	c := r.dial()
	forever := protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{HoldMs: protocol.HoldForever}}
	c.ok(protocol.OpCreateGroup, 0, &forever, nil)
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	s := c.register("g", "a")
	c.sendBodies("jobs", "kept", "done")
	p := c.pop(popRequest(s.Session, "jobs", 2))
	if len(p.Rows) != 2 {
		t.Fatalf("%d messages came", len(p.Rows))
	}
	kept := append([]byte(nil), p.Rows[0].Receipt...)
	if c.bodyOf(&p, 0) != "kept" {
		t.Fatal("they came in another order")
	}
	c.ack(s.Session, p.Rows[1].Receipt)
	if res := c.change(s.Session, protocol.ChangeEntry{Receipt: kept, Ordinal: 1, Cause: protocol.CauseRenew, InvisibleMs: 6 * 60 * 60 * 1000}); res[0].Status != protocol.OK {
		t.Fatal(res[0].Status)
	}
	r.fill(c, "jobs", 4)
	for range 200 {
		if p := c.pop(popRequest(s.Session, "jobs", 100)); len(p.Rows) > 0 {
			c.ack(s.Session, receipts(&p)...)
		}
	}
	r.cover()
	r.clock.wall = r.clock.wall.Add(defaultRetentionAge + time.Hour)
	r.commit()
	r.e.Abort()
	for _, path := range r.indexFiles() {
		b, err := os.ReadFile(path)
		if err != nil || len(b) < 64 {
			continue
		}
		copy(b[0:32], b[32:64]) // offset 0 now names the record of offset 1
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.open()
	c = r.dial()
	r.beatFor(c, s.Session, time.Minute)
	if res := c.ack(s.Session, kept); res[0].Status != protocol.OK {
		t.Fatalf("ack of the leased message: %s %s", res[0].Status, res[0].Reason)
	}
}

// TestADeletedTopicGivesItsSpaceBackWhenItIsCovered: no snapshot stands for its log yet, and nothing else happens.
func TestADeletedTopicGivesItsSpaceBackWhenItIsCovered(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	c := r.dial()
	r.fill(c, "old", 4)
	c.ok(protocol.OpDeleteTopic, 0, &protocol.NameRequest{Name: "old"}, nil)
	r.pass(time.Second)
	for range 30 {
		r.pass(time.Minute)
	}
	if r.e.Log().First() == firstPosition {
		t.Fatal("nothing was let go in half an hour")
	}
}

// TestAnOrderlyStopDoesNotWaitForAFullDisk: records wait in the ring for a segment that cannot be had.
func TestAnOrderlyStopDoesNotWaitForAFullDisk(t *testing.T) {
	disk := &faultFS{FS: mmaplog.OS}
	r := newRig(t, func(o *Options) { o.FS, o.SegmentBytes = disk, 64<<10 })
	c := r.dial()
	s := c.register("g", "a")
	disk.full.Store(true)
	body := strings.Repeat("x", 4000)
	for range 100 {
		a := c.call(protocol.OpSend, protocol.FlagCreate, &protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue, Messages: [][]byte{encoded(t, body)}})
		if a.Status == protocol.StoreFull {
			break
		}
	}
	for range 1500 {
		r.advance(time.Second)
		r.loop.Wake()
		c.start(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session})
		if r.e.log.DiskFree() <= 0 {
			break
		}
	}
	for range 20 {
		r.advance(time.Second)
		c.start(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session})
	}
	if r.e.log.DiskFree() > 0 || !r.e.log.DiskFull() {
		t.Fatalf("%d bytes are free", r.e.log.DiskFree())
	}
	done := make(chan error, 1)
	e := r.e
	go func() { done <- e.Close() }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it stopped cleanly without room for the records")
		}
		r.e = nil
	case <-time.After(10 * time.Second):
		e.Abort()
		<-done
		r.e = nil
		t.Fatal("Close waits")
	}
}

// TestDroppedLeasesMakeRoomForTheirSession: what the hard limit takes from a session that is full has its pop of another topic served.
func TestDroppedLeasesMakeRoomForTheirSession(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.SegmentBytes = 64 << 10
		o.Retention.HardBytes = 4 * 64 << 10
		o.Limits.LeasesPerSession = 3
	})
	c := r.dial()
	s := c.register("g", "a")
	body := strings.Repeat("x", 4000)
	c.sendBodies("jobs", body, body, body)
	n := 0
	for range 8 {
		n += len(c.pop(popRequest(s.Session, "jobs", 2-n)).Rows)
		if n >= 2 {
			break
		}
	}
	wait := popRequest(s.Session, "other", 1)
	wait.AwaitMs = 200_000
	parked := c.start(protocol.OpPop, protocol.FlagCreate, wait)
	r.commit()
	for range 8 {
		if p := c.pop(popRequest(s.Session, "jobs", 1)); len(p.Rows) > 0 {
			n += len(p.Rows)
			break
		}
	}
	r.fill(c, "fill", 8)
	c.sendBodies("other", "for the one that waits")
	if _, ok := c.peekAnswer(parked); ok {
		t.Fatal("served though full")
	}
	r.cover()
	r.pass(reviewEveryMs * time.Millisecond)
	r.commit()
	if _, ok := c.peekAnswer(parked); !ok {
		t.Fatal("the pop still waits")
	}
}

// TestDroppedCopiesAreCounted: a copy that the hard limit takes, of a queue that has nothing else in the segment.
func TestDroppedCopiesAreCounted(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.SegmentBytes = 64 << 10
		o.Retention.HardBytes = 4 * 64 << 10
	})
	c := r.dial()
	c.ok(protocol.OpCreateGroup, 0, &protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{MaxInFlight: 1, InvisibleMs: 600_000}}, nil)
	c.ok(protocol.OpCreateGroup, 0, &protocol.GroupRequest{Name: "g2", Rules: protocol.GroupRules{InvisibleMs: 600_000}}, nil)
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "big", Queues: 1}, nil)
	s := c.register("g", "a")
	c.sendBodies("jobs", "held")
	if p := c.pop(popRequest(s.Session, "jobs", 1)); len(p.Rows) != 1 {
		t.Fatal("nothing")
	}
	r.fill(c, "fill", 8)
	r.cover()
	r.pass(reviewEveryMs * time.Millisecond)
	// the copy lies in the running segment; put large unsettled messages beside it, by a group of its own
	s2 := c.register("g2", "b")
	body := strings.Repeat("y", 4000)
	c.sendBodies("big", body, body, body)
	c.pop(popRequest(s2.Session, "big", 3))
	wait := popRequest(s.Session, "jobs", 1)
	wait.AwaitMs = 250_000
	parked := c.start(protocol.OpPop, 0, wait)
	r.commit()
	r.fill(c, "fill", 6)
	c.sendBodies("jobs", "next") // of the newest segment; held back by the cap
	r.commit()
	r.cover()
	r.pass(reviewEveryMs * time.Millisecond)
	dropped := uint64(0)
	for _, slot := range r.e.fold.leases.Subs() {
		for q := range r.e.fold.leases.Queues(slot) {
			dropped += r.e.fold.leases.Position(slot, uint16(q)).Dropped
		}
	}
	_, served := c.peekAnswer(parked)
	if dropped == 0 || dropped != r.e.stats.dropped.Load() || !served {
		t.Errorf("%d messages were dropped, %d are counted; the pop that waited was served: %t", dropped, r.e.stats.dropped.Load(), served)
	}
}

// TestACopyIsCopiedAgain: a message is held so long that its copy has to be moved, too, on a queue that others are sent to.
func TestACopyIsCopiedAgain(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.SegmentBytes = 64 << 10
		o.Retention.Bytes = 4 * 64 << 10
	})
	c := r.dial()
	c.ok(protocol.OpCreateGroup, 0, &protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{InvisibleMs: 3_600_000}}, nil)
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	s := c.register("g", "a")
	c.sendBodies("jobs", "held")
	if p := c.pop(popRequest(s.Session, "jobs", 1)); len(p.Rows) != 1 {
		t.Fatal("nothing")
	}
	last := uint64(0)
	for round := range 4 {
		for range 4 { // everything else is consumed as it comes
			r.fill(c, "jobs", 1)
			for range 100 {
				p := c.pop(popRequest(s.Session, "jobs", 100))
				if len(p.Rows) > 0 {
					c.ack(s.Session, receipts(&p)...)
				}
			}
		}
		r.cover()
		for range 3 {
			r.pass(reviewEveryMs * time.Millisecond)
			c.call(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session})
		}
		first := r.e.Log().First()
		if round > 0 && first == last {
			t.Errorf("round %d: nothing goes any more", round)
		}
		last = first
	}
}

// TestAPurgeMakesRoomForItsSessions: a session that was full of what is purged has its pop of another topic served.
func TestAPurgeMakesRoomForItsSessions(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Limits.LeasesPerSession = 3 })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "1", "2", "3")
	n := len(c.pop(popRequest(s.Session, "jobs", 2)).Rows)
	wait := popRequest(s.Session, "other", 1)
	wait.AwaitMs = 200_000
	parked := c.start(protocol.OpPop, protocol.FlagCreate, wait)
	r.commit()
	for range 8 {
		if n == 3 {
			break
		}
		n += len(c.pop(popRequest(s.Session, "jobs", 1)).Rows)
	}
	c.sendBodies("other", "for the one that waits")
	if _, ok := c.peekAnswer(parked); ok || n != 3 {
		t.Fatal("served though full", n)
	}
	c.ok(protocol.OpPurgeTopic, 0, &protocol.NameRequest{Name: "jobs"}, nil)
	r.commit()
	if _, ok := c.peekAnswer(parked); !ok {
		t.Fatal("the pop still waits", r.e.Err())
	}
}

// TestRowsThatContradictEachOther: whatever bit of a row is wrong, or whichever row is missing, loading refuses it, or what
// is loaded is sound.
func TestRowsThatContradictEachOther(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Verify = false })
	c, _, _ := r.busy()
	c.sendBodies("more", "1", "2", "3")
	s := c.register("g5", "z")
	c.pop(popRequest(s.Session, "more", 2))
	r.commit()
	type row struct {
		kind codec.RowKind
		b    []byte
	}
	var rows []row
	r.e.enter()
	v := r.e.fold.freeze()
	v.rows(func(kind codec.RowKind, b []byte) error {
		rows = append(rows, row{kind, append([]byte(nil), b...)})
		return nil
	})
	r.e.fold.thaw()
	epoch, leaseMs, wallMs := r.e.fold.epoch, r.e.fold.leaseMs, r.e.fold.wallMs
	r.e.leave()
	try := func(list []row) (res string) {
		defer func() {
			if p := recover(); p != nil {
				res = "PANIC " + strings.Split(fmt.Sprint(p), "\n")[0]
			}
		}()
		f := newFold(nil)
		l := f.load(epoch, leaseMs, wallMs)
		for _, x := range list {
			if err := l.row(x.kind, x.b); err != nil {
				return "refused"
			}
		}
		if err := l.finish(); err != nil {
			return "refused"
		}
		if err := f.audit(); err != nil {
			return "AUDIT " + err.Error()
		}
		return "ok"
	}
	count := map[string]int{}
	for i := range rows {
		list := append(append([]row(nil), rows[:i]...), rows[i+1:]...)
		count[fmt.Sprintf("without kind %d: %s", rows[i].kind, try(list))]++
		for j := range rows[i].b {
			for _, bit := range []byte{1, 0x80} {
				list := append([]row(nil), rows...)
				b := append([]byte(nil), rows[i].b...)
				b[j] ^= bit
				list[i] = row{rows[i].kind, b}
				res := try(list)
				if len(res) > 60 {
					res = res[:60]
				}
				count[fmt.Sprintf("flip in kind %d: %s", rows[i].kind, res)]++
			}
		}
	}
	for k, n := range count {
		if !strings.HasSuffix(k, "refused") && !strings.HasSuffix(k, "ok") {
			t.Error(k, n)
		}
	}
}

// unreadable makes one file unreadable, but for its beginning.
type unreadable struct {
	mmaplog.FS
	name string
}

type unreadableFile struct{ mmaplog.File }

func (f unreadableFile) ReadAt(b []byte, off int64) (int, error) {
	if off > 0 {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(b, off)
}

func (f *unreadable) OpenFile(name string, flag int, perm os.FileMode) (mmaplog.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err == nil && f.name != "" && strings.HasSuffix(name, f.name) {
		return unreadableFile{file}, nil
	}
	return file, err
}

// TestASnapshotThatCannotBeReadIsPassedOver, whichever of the two it is, and stays where it is.
func TestASnapshotThatCannotBeReadIsPassedOver(t *testing.T) {
	for i, which := range []string{"the older", "the newest"} {
		disk := &unreadable{FS: mmaplog.OS}
		r := newRig(t, func(o *Options) { o.FS = disk })
		c := r.dial()
		c.sendBodies("jobs", "1")
		taken := []SnapshotReport{r.take()}
		c.sendBodies("jobs", "2")
		taken = append(taken, r.take())
		r.commit()
		r.e.Abort()
		disk.name = filepath.Base(r.e.snaps.store.Path(taken[i].Position))
		r.open()
		if found := r.e.Log().Recovery(); found.From != taken[1-i].Position {
			t.Errorf("%s is unreadable: replay began at %d", which, found.From)
		}
		if _, err := os.Stat(r.e.snaps.store.Path(taken[i].Position)); err != nil {
			t.Errorf("%s is unreadable: %v", which, err)
		}
		disk.name = ""
	}
}

// TestTheIndexIsNotTrustedWithWhatIsLetGo: an entry that is wrong where the search for a queue's beginning comes by costs no message.
func TestTheIndexIsNotTrustedWithWhatIsLetGo(t *testing.T) {
	messages := map[bool]uint64{}
	for _, wrong := range []bool{false, true} {
		r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10; o.Retention.Bytes = 40 * 64 << 10 })
		c := r.dial()
		c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
		r.fill(c, "jobs", 40)
		r.cover()
		r.commit()
		r.e.Abort()
		for _, path := range r.indexFiles() {
			if wrong && strings.Contains(path, "/1/0/") {
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				clear(b[128*32+1 : 128*32+8]) // offset 128: its position, but for the lowest byte
				if err := os.WriteFile(path, b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		r.open()
		for range 30 { // the index is mended meanwhile
			r.pass(reviewEveryMs * time.Millisecond)
			r.await()
		}
		c = r.dial()
		var list protocol.ListTopicsAnswer
		c.ok(protocol.OpListTopics, 0, nil, &list)
		for _, x := range list.Topics {
			if x.Name == "jobs" {
				messages[wrong] = x.Messages
			}
		}
		if segments := r.e.Log().Stats().Segments; segments > 41 {
			t.Errorf("wrong entry %t: %d segments are left", wrong, segments)
		}
	}
	if messages[false] == 0 || messages[true] != messages[false] {
		t.Errorf("%d messages are left with a wrong entry, %d without", messages[true], messages[false])
	}
}

// TestAGroupThatComesBackKeepsItsStraggler: a group stopped holding data, and has a session again when the segment with the copy of its
// message is about to go.
func TestAGroupThatComesBackKeepsItsStraggler(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.SegmentBytes = 64 << 10
		o.Retention.Bytes = 4 * 64 << 10
	})
	c := r.dial()
	c.ok(protocol.OpCreateGroup, 0, &protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{HoldMs: protocol.MinHoldMs}}, nil)
	s := c.register("g", "a")
	c.sendBodies("jobs", "kept")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	later := protocol.ChangeEntry{Receipt: p.Rows[0].Receipt, Ordinal: 1, Cause: protocol.CausePostponed, InvisibleMs: 10 * 60_000}
	if res := c.change(s.Session, later); res[0].Status != protocol.OK {
		t.Fatal(res[0].Status)
	}
	// Given a message that was copied forward, of a group that is idle for so long that it holds nothing,
	r.fill(c, "fill", 8)
	r.cover()
	r.pass(reviewEveryMs * time.Millisecond)
	if n := r.e.stats.copied.Load(); n == 0 {
		t.Fatal("nothing was copied")
	}
	r.fill(c, "fill", 8)
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: s.Session}, nil)
	r.cover()
	r.advance(protocol.MinHoldMs * time.Millisecond)
	r.e.warnIdle(r.e.lease.now())
	r.advance(protocol.MinHoldMs / 7 * time.Millisecond)
	next := func() *outgoing {
		x := &outgoing{e: r.e, run: r.e.steward.run.Load(), first: r.e.Log().First(), known: map[liveName]bool{}, damaged: map[liveName]bool{}}
		x.end = r.e.log.SegmentEnd(x.first)
		return x
	}
	x := next()
	for ; r.e.fold.topics.places[0].position >= x.end; x = next() {
		if gone, err := x.retire(); err != nil || !gone {
			t.Fatalf("the segment at %d stays: %s %v", x.first, x.held, err)
		}
	}
	// when the segment of the copy is about to go, and the group comes back,
	x.looked = true
	for _, step := range []func() (bool, error){x.findBegins, func() (bool, error) { return x.check(), nil }, x.copyLive} {
		if ok, err := step(); err != nil || !ok {
			t.Fatalf("the segment at %d stays: %s %v", x.first, x.held, err)
		}
	}
	if len(x.live) != 0 {
		t.Fatal("the group still holds its message; the test wants it idle")
	}
	c.register("g", "a")
	// then the segment stays until the message was copied once more.
	if x.letGo() {
		t.Fatal("the segment was let go with what the group needs")
	}
	r.pass(reviewEveryMs * time.Millisecond)
	if first := r.e.Log().First(); first == x.first {
		t.Fatalf("the log still begins at %d: %s", first, r.e.retention.logged)
	}
	s = c.register("g", "a")
	for range 12 {
		r.beatFor(c, s.Session, time.Minute)
	}
	if p := c.pop(popRequest(s.Session, "jobs", 1)); len(p.Rows) != 1 || c.bodyOf(&p, 0) != "kept" {
		t.Fatalf("%d messages came", len(p.Rows))
	}
}
