package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// faultFS is the machine's file system, whose log files fail on request.
type faultFS struct {
	mmaplog.FS
	flush  atomic.Bool  // flushes give EIO
	full   atomic.Bool  // allocations give ENOSPC
	broken atomic.Int64 // reads of this byte of a file give EIO; 0: none
	hold   sync.RWMutex // flushes wait while it is held
}

type faultFile struct {
	mmaplog.File
	fs *faultFS
}

func (f *faultFS) OpenFile(name string, flag int, perm fs.FileMode) (mmaplog.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{file, f}, nil
}

func (f *faultFile) ReadAt(b []byte, off int64) (int, error) {
	if at := f.fs.broken.Load(); at > 0 && off <= at && at < off+int64(len(b)) {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(b, off)
}

func (f *faultFile) ReadNoWait(b []byte, off int64) (int, error) {
	return 0, mmaplog.ErrWouldBlock // everything that is not in the ring is a worker's
}

func (f *faultFile) Datasync() error {
	f.fs.hold.RLock()
	defer f.fs.hold.RUnlock()
	if f.fs.flush.Load() {
		return syscall.EIO
	}
	return f.File.Datasync()
}

func (f *faultFile) Sync() error {
	if f.fs.flush.Load() {
		return syscall.EIO
	}
	return f.File.Sync()
}

func (f *faultFile) Allocate(off, n int64) error {
	if f.fs.full.Load() {
		return syscall.ENOSPC
	}
	return f.File.Allocate(off, n)
}

func TestFailedFlushVoidsEverything(t *testing.T) {
	// Given a broker under `always`, with a pop that waits,
	disk := &faultFS{FS: mmaplog.OS}
	r := newRig(t, func(o *Options) { o.FS, o.Fsync = disk, mmaplog.SyncAlways })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "x")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	wait := popRequest(s.Session, "jobs", 1)
	wait.AwaitMs = 60_000
	parked := c.start(protocol.OpPop, 0, wait)
	r.commit()
	// when a flush fails under an ack,
	disk.flush.Store(true)
	ack := &protocol.AckRequest{Session: s.Session, Entries: []protocol.AckEntry{{Receipt: p.Rows[0].Receipt}}}
	// then the ack, the pop, and everything after them has an unknown outcome, never OK,
	if a := c.call(protocol.OpAck, 0, ack); a.Status != protocol.StoreFailed {
		t.Fatalf("ack: %s", a.Status)
	}
	if a := c.wait(parked); a.Status != protocol.StoreFailed {
		t.Fatalf("parked pop: %s", a.Status)
	}
	for code, req := range map[protocol.Opcode]interface{ Append([]byte) []byte }{
		protocol.OpAck: ack, protocol.OpStats: nil, protocol.OpHeartbeat: &protocol.HeartbeatRequest{Session: s.Session},
	} {
		if a := c.call(code, 0, req); a.Status != protocol.StoreFailed {
			t.Fatalf("%s: %s", code, a.Status)
		}
	}
	// and the engine says that the process must end.
	select {
	case <-r.e.Failed():
	default:
		t.Fatal("the engine has not failed")
	}
	if err := r.e.Err(); !errors.Is(err, ErrStoreFailed) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("error %v", err)
	}
	r.advance(time.Second) // timers and scans do nothing
}

func TestPanicInTheSectionEndsTheEngine(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	func() {
		r.e.enter()
		defer r.e.leave()
		panic("a bug")
	}()
	if err := r.e.Err(); err == nil || !strings.Contains(err.Error(), "a bug") {
		t.Fatalf("error %v", err)
	}
	if a := c.call(protocol.OpStats, 0, nil); a.Status != protocol.StoreFailed {
		t.Fatalf("status %s", a.Status)
	}
}

func TestFullDiskRefusesInOrder(t *testing.T) {
	// Given a broker whose disk has no room for another segment,
	disk := &faultFS{FS: mmaplog.OS}
	r := newRig(t, func(o *Options) { o.FS, o.SegmentBytes = disk, 256<<10 })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "x", "y")
	p := c.pop(popRequest(s.Session, "jobs", 2))
	disk.full.Store(true)
	// when messages are sent until they are refused,
	body := strings.Repeat("b", 8<<10)
	req := &protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue, Messages: [][]byte{encoded(t, body)}}
	var refused bool
	for range 200 {
		if a := c.call(protocol.OpSend, 0, req); a.Status == protocol.StoreFull {
			refused = true
			break
		} else if a.Status != protocol.OK {
			t.Fatalf("send: %s", a.Status)
		}
	}
	if !refused {
		t.Fatal("sends were never refused")
	}
	// then nothing new is made either,
	if a := fillWithSessions(t, c); a.Status != protocol.StoreFull {
		t.Fatalf("register: %s", a.Status)
	}
	for code, request := range map[protocol.Opcode]interface{ Append([]byte) []byte }{
		protocol.OpCreateGroup: &protocol.GroupRequest{Name: "new"},
		protocol.OpUpdateGroup: &protocol.GroupRequest{Name: "g"},
		protocol.OpCreateTopic: &protocol.CreateTopicRequest{Name: "new", Queues: 1},
	} {
		if status, _ := c.refused(code, 0, request); status != protocol.StoreFull && status != protocol.OK {
			t.Errorf("%s: %s", code, status)
		}
	}
	// but acks, releases and session ends still go through,
	if res := c.ack(s.Session, p.Rows[0].Receipt); res[0].Status != protocol.OK {
		t.Fatalf("ack: %+v", res)
	}
	if res := c.change(s.Session, protocol.ChangeEntry{Receipt: p.Rows[1].Receipt, Ordinal: 1}); res[0].Status != protocol.OK {
		t.Fatalf("release: %+v", res)
	}
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: s.Session}, nil)
	// and when there is room again, sends do too.
	disk.full.Store(false)
	for deadline := time.Now().Add(20 * time.Second); ; r.await() {
		if a := c.call(protocol.OpSend, 0, req); a.Status == protocol.OK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("sends are refused still")
		}
	}
}

// smallFS is the machine's file system, with so many bytes free for what is allocated.
type smallFS struct {
	mmaplog.FS
	free atomic.Int64
}

type smallFile struct {
	mmaplog.File
	fs *smallFS
}

func (f *smallFS) OpenFile(name string, flag int, perm fs.FileMode) (mmaplog.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &smallFile{file, f}, nil
}

func (f *smallFS) Space(string) (free, total int64, err error) { return f.free.Load(), 16 << 20, nil }

func (f *smallFile) Allocate(off, n int64) error {
	if f.fs.free.Add(-n) < 0 {
		f.fs.free.Add(n)
		return syscall.ENOSPC
	}
	return f.File.Allocate(off, n)
}

func TestSendersAloneDoNotStopConsumers(t *testing.T) {
	for _, rest := range []int64{smallSegment / 16, smallSegment / 2} {
		t.Run(fmt.Sprint(rest), func(t *testing.T) { sendersDoNotStopConsumers(t, rest) })
	}
}

const smallSegment = 1 << 20

func sendersDoNotStopConsumers(t *testing.T, rest int64) {
	// Given a disk with room for some segments and a rest, and a group that has yet to consume,
	disk := &smallFS{FS: mmaplog.OS}
	disk.free.Store(8*smallSegment + rest)
	r := newRig(t, func(o *Options) { o.FS, o.SegmentBytes, o.Watermark = disk, smallSegment, 99 })
	c := r.dial()
	s := c.register("g", "a")
	// when messages are sent until they are refused, faster than the steward looks,
	req := &protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue, Messages: [][]byte{encoded(t, strings.Repeat("b", 32<<10))}}
	sent := 0
	for ; c.call(protocol.OpSend, protocol.FlagCreate, req).Status == protocol.OK; sent++ {
		if sent > 9*smallSegment/(32<<10) {
			t.Fatal("sends were never refused")
		}
	}
	// and the steward looks,
	r.e.Steward()
	// then the group can still take and settle all of them.
	for taken := 0; taken < sent; {
		p := c.pop(popRequest(s.Session, "jobs", 16))
		if len(p.Rows) == 0 {
			t.Fatalf("after %d of %d messages a pop gave none; %d bytes are free", taken, sent, disk.free.Load())
		}
		for i := range p.Rows {
			if res := c.ack(s.Session, p.Rows[i].Receipt); res[0].Status != protocol.OK {
				t.Fatalf("ack: %+v", res)
			}
		}
		taken += len(p.Rows)
	}
}

// fillWithSessions registers consumers until one is refused, which must come before the space for acks is used up.
func fillWithSessions(t *testing.T, c *conn) (last answer) {
	t.Helper()
	for i := range 5000 {
		last = c.call(protocol.OpRegister, 0, &protocol.RegisterRequest{
			Group: "g", ConsumerID: strings.Repeat("c", 200) + fmt.Sprint(i%50), Nonce: [16]byte{1, byte(i), byte(i >> 8)},
		})
		if last.Status != protocol.OK {
			break
		}
	}
	return last
}

func TestDamagedMessageIsPassed(t *testing.T) {
	// Given three messages, the second of which is damaged on disk after it was written,
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	results := c.sendBodies("jobs", "first", "second", "third")
	r.commit()
	at := positionOf(results[1])
	c.pushOutOfRing() // so that it is read from the file
	files, err := filepath.Glob(filepath.Join(r.o.Dir, "log", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), at+110); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// when they are popped, the other two come, and the damaged one is passed and counted.
	p := c.pop(popRequest(s.Session, "jobs", 10))
	if len(p.Rows) != 2 || c.bodyOf(&p, 0) != "first" || c.bodyOf(&p, 1) != "third" {
		t.Fatalf("%d rows", len(p.Rows))
	}
	if n := r.e.stats.unreadable.Load(); n != 1 {
		t.Fatalf("%d counted", n)
	}
	if res := c.ack(s.Session, receipts(&p)...); res[0].Status != protocol.OK || res[1].Status != protocol.OK {
		t.Fatalf("acks %+v", res)
	}
}

func TestDrainAnswersWhoWaits(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "x")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	wait := popRequest(s.Session, "jobs", 1)
	wait.AwaitMs = 60_000
	id := c.start(protocol.OpPop, 0, wait)
	r.loop.Drain()
	if a := c.wait(id); a.Status != protocol.Draining {
		t.Fatalf("parked pop: %s", a.Status)
	}
	if a := c.call(protocol.OpPop, 0, wait); a.Status != protocol.Draining {
		t.Fatalf("new pop: %s", a.Status)
	}
	if res := c.ack(s.Session, receipts(&p)...); res[0].Status != protocol.OK {
		t.Fatalf("ack while draining: %+v", res)
	}
	if len(c.pushes) == 0 || c.pushes[0].Opcode != protocol.OpDrain {
		t.Fatalf("pushes %v", c.pushes)
	}
}

func TestGrantToAClosedConnectionGoesBack(t *testing.T) {
	r := newRig(t, nil)
	c, gone := r.dial(), r.dial()
	s := c.register("g", "a")
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	wait := popRequest(s.Session, "jobs", 1)
	wait.AwaitMs = 60_000
	gone.start(protocol.OpPop, 0, wait)
	r.commit()
	// The message is granted inside the section; before the loop gets to the answer the connection closes.
	req := &protocol.SendRequest{Topic: "jobs", Queue: 0, Messages: [][]byte{encoded(t, "x")}}
	id := c.start(protocol.OpSend, 0, req)
	for r.e.Log().Committed() < r.e.Log().Appended() {
		r.e.Log().Kick()
	}
	r.e.advance(r.loop)
	if r.e.waiting.Load() != 0 {
		t.Fatal("the pop was not served")
	}
	gone.ctx.(*connState).closed = true
	r.loop.Wake()
	c.wait(id)
	p := c.pop(popRequest(s.Session, "jobs", 1))
	if len(p.Rows) != 1 || p.Rows[0].Failures != 0 || p.Rows[0].Attempt != 2 {
		t.Fatalf("rows %+v", p.Rows)
	}
}

// positionOf is where the record of a message lies.
func positionOf(res protocol.SendResult) int64 {
	_, position := codec.MessageID(res.MessageID).Birth()
	return int64(position)
}

// pushOutOfRing sends so much that what was sent before has left the log's ring.
func (c *conn) pushOutOfRing() {
	for sent := 0; sent < 6<<20; sent += 64 * 8 << 10 {
		var bodies []string
		for range 64 {
			bodies = append(bodies, strings.Repeat("x", 8<<10))
		}
		c.sendBodies("filler", bodies...)
	}
}

func TestNoOKLeavesAboveItsGateWhenTheStoreFails(t *testing.T) {
	// Given a send that has been appended and cannot be flushed yet,
	disk := &faultFS{FS: mmaplog.OS}
	r := newRig(t, func(o *Options) { o.FS, o.Fsync = disk, mmaplog.SyncAlways })
	c := r.dial()
	c.sendBodies("jobs", "x")
	disk.hold.Lock()
	r.next++
	req := protocol.SendRequest{Topic: "jobs", Queue: 0, Messages: [][]byte{encoded(t, "y")}}
	body := req.Append(nil)
	if !r.loop.Frame(c, protocol.Header{Version: protocol.Version, Opcode: protocol.OpSend, RequestID: r.next, BodyLen: uint32(len(body))}, body) {
		t.Fatal("no room")
	}
	ops := r.loop.ops
	r.loop.ops = nil
	if n := r.loop.decideSome(ops); n != 1 || ops[0].status != protocol.OK {
		t.Fatalf("decided %d, %s", n, ops[0].status)
	}
	// when the store fails before its answer is sent,
	r.e.fail(errors.New("the store is gone"))
	r.loop.answer(ops[0])
	disk.hold.Unlock()
	// then the answer says that the outcome is unknown.
	if a := c.wait(r.next); a.Status != protocol.StoreFailed {
		t.Fatalf("status %s", a.Status)
	}
}

func TestOneUnreadableMessageCostsNoOther(t *testing.T) {
	// Given ten messages in the file, one of which the disk does not give back, and two leases at a time,
	disk := &faultFS{FS: mmaplog.OS}
	r := newRig(t, func(o *Options) { o.FS = disk })
	c := r.dial()
	s := c.register("g", "a")
	c.ok(protocol.OpUpdateGroup, 0, &protocol.GroupRequest{Name: "g", Rules: protocol.GroupRules{MaxInFlight: 2}}, nil)
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	results := c.sendBodies("jobs", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
	c.pushOutOfRing()
	disk.broken.Store(positionOf(results[4]) + 10)
	// when all are popped and acked,
	var got []string
	for range 20 {
		p := c.pop(popRequest(s.Session, "jobs", 10))
		for i := range p.Rows {
			got = append(got, c.bodyOf(&p, i))
		}
		if len(p.Rows) > 0 {
			c.ack(s.Session, receipts(&p)...)
		}
	}
	// then the nine others have come, and the one is passed and counted.
	if strings.Join(got, "") != "012356789" || r.e.stats.unreadable.Load() != 1 {
		t.Fatalf("got %v, %d unreadable", got, r.e.stats.unreadable.Load())
	}
}

func TestAPopOfNothingButDamageWaitsOn(t *testing.T) {
	// Given a queue whose only message cannot be read,
	disk := &faultFS{FS: mmaplog.OS}
	r := newRig(t, func(o *Options) { o.FS = disk })
	c := r.dial()
	s := c.register("g", "a")
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
	results := c.sendBodies("jobs", "bad")
	c.pushOutOfRing()
	disk.broken.Store(positionOf(results[0]) + 10)
	// when a pop that may wait meets it,
	req := popRequest(s.Session, "jobs", 1)
	req.AwaitMs = 60_000
	id := c.start(protocol.OpPop, 0, req)
	for deadline := time.Now().Add(10 * time.Second); r.e.stats.unreadable.Load() == 0; r.await() {
		if time.Now().After(deadline) {
			t.Fatal("the message was not passed")
		}
	}
	if _, ok := c.peekAnswer(id); ok {
		t.Fatal("answered with nothing")
	}
	// then it goes on waiting, and gets the next one.
	c.sendBodies("jobs", "good")
	if p := c.popped(c.wait(id)); len(p.Rows) != 1 || c.bodyOf(&p, 0) != "good" {
		t.Fatalf("%d rows", len(p.Rows))
	}
}

func TestAPanicInABatchCostsTheBatchOnly(t *testing.T) {
	// Given a batch of one connection that was never flushed, because something panicked,
	r := newRig(t, nil)
	c, other := r.dial(), r.dial()
	c.sendBodies("jobs", "x")
	promised := r.e.reserved.Load()
	req := protocol.SendRequest{Topic: "jobs", Queue: 0, Messages: [][]byte{encoded(t, "lost")}}
	body := req.Append(nil)
	r.loop.Frame(c, protocol.Header{Version: protocol.Version, Opcode: protocol.OpSend, RequestID: 77, BodyLen: uint32(len(body))}, body)
	r.loop.Close(c)
	clear(body) // the bytes belong to the next read by now
	// when another connection goes on,
	other.sendBodies("jobs", "y")
	r.commit()
	// then nothing of the batch is in the log, and what it was promised is free again.
	var a protocol.ListTopicsAnswer
	other.ok(protocol.OpListTopics, 0, nil, &a)
	if a.Topics[0].Messages != 2 || r.e.reserved.Load() != promised {
		t.Fatalf("%d messages, %d bytes promised, %d before", a.Topics[0].Messages, r.e.reserved.Load(), promised)
	}
}

func TestTheCapOnEverythingUnsettledHoldsAndLets(t *testing.T) {
	// Given a broker that keeps at most three unsettled messages, all of them another group's,
	r := newRig(t, func(o *Options) { o.Limits.Unsettled = 3 })
	c := r.dial()
	a, b := c.register("a", "x"), c.register("b", "x")
	c.sendBodies("jobs", "1", "2", "3")
	p := c.pop(popRequest(a.Session, "jobs", 3))
	if len(p.Rows) != 3 {
		t.Fatalf("%d rows", len(p.Rows))
	}
	// when a pop waits,
	req := popRequest(b.Session, "jobs", 3)
	req.AwaitMs = 60_000
	id := c.start(protocol.OpPop, 0, req)
	r.commit()
	if _, ok := c.peekAnswer(id); ok {
		t.Fatal("answered over the cap")
	}
	// then settling elsewhere lets it go on.
	c.ack(a.Session, receipts(&p)[:2]...)
	if q := c.popped(c.wait(id)); len(q.Rows) != 2 {
		t.Fatalf("%d rows", len(q.Rows))
	}
}

func TestRequestsLargerThanTheLogCanTake(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentBytes = 256 << 10 })
	c := r.dial()
	var many []string
	for range 40 {
		many = append(many, strings.Repeat("b", 8<<10))
	}
	req := protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue}
	for _, b := range many {
		req.Messages = append(req.Messages, encoded(t, b))
	}
	if a := c.call(protocol.OpSend, protocol.FlagCreate, &req); a.Status != protocol.TooLarge {
		t.Fatalf("status %s", a.Status)
	}
	req.Messages = req.Messages[:20]
	if a := c.call(protocol.OpSend, protocol.FlagCreate, &req); a.Status != protocol.OK {
		t.Fatalf("status %s", a.Status)
	}
}

func TestParkedPopsAreBounded(t *testing.T) {
	// Given a connection whose sessions park pops until one is refused,
	r := newRig(t, nil)
	c := r.dial()
	var ids []uint64
	refused := 0
	for i := range 8 {
		s := c.register("g", fmt.Sprint(i))
		req := popRequest(s.Session, "jobs", 1)
		req.AwaitMs = 60_000
		for range 16 {
			id := c.start(protocol.OpPop, protocol.FlagCreate, req)
			r.commit()
			if a, ok := c.peekAnswer(id); !ok {
				ids = append(ids, id)
			} else if a.Status == protocol.LimitExceeded {
				refused++
			} else {
				t.Fatalf("status %s", a.Status)
			}
		}
	}
	// then what its answers may come to stays below the limit, and each that waits is answered once.
	if len(ids) != maxOwed/protocol.MaxPopBytes || refused != 8*16-len(ids) {
		t.Fatalf("%d wait, %d refused", len(ids), refused)
	}
	r.advance(61 * time.Second)
	for _, id := range ids {
		c.wait(id)
	}
	if n := c.ctx.(*connState).owed; n != 0 {
		t.Fatalf("%d bytes are owed still", n)
	}
}

func TestDamagedKeyIsRefused(t *testing.T) {
	r := newRig(t, nil)
	r.e.Abort()
	path := filepath.Join(r.o.Dir, keyFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := append([]byte(nil), b...)
	bad[3] ^= 1
	for _, content := range [][]byte{bad, b[:7], nil} {
		if content == nil {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, err := Open(r.o); err == nil {
			e.Abort()
			t.Fatalf("opened with a key of %d bytes", len(content))
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
}

func TestAPopParkedBeforeAPanicIsAnsweredOnce(t *testing.T) {
	// Given a pop that is parked in a hold of the section which then panics,
	r := newRig(t, nil)
	c := r.dial()
	s := c.register("g", "a")
	req := popRequest(s.Session, "jobs", 1)
	req.AwaitMs = 60_000
	body := req.Append(nil)
	r.next++
	r.loop.Frame(c, protocol.Header{
		Version: protocol.Version, Opcode: protocol.OpPop, Flags: protocol.FlagCreate, RequestID: r.next, BodyLen: uint32(len(body)),
	}, body)
	o := r.loop.ops[0]
	func() {
		r.e.enter()
		defer r.e.leave()
		r.e.pop(o)
		if o.pop.id == 0 {
			t.Error("not parked")
		}
		panic("a bug")
	}()
	// when the loop goes on, it is answered; conn.read sees to it that no request is answered twice.
	r.loop.Flush(c)
	r.loop.Wake()
	if a := c.wait(r.next); a.Status != protocol.StoreFailed {
		t.Fatalf("status %s", a.Status)
	}
	r.loop.Wake()
	if a, again := c.peekAnswer(r.next); again {
		t.Fatalf("answered again: %s", a.Status)
	}
}
