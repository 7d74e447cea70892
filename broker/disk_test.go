package broker

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// smallDisk is the machine's file system, with as much space as a test says.
type smallDisk struct {
	mmaplog.FS
	free, total atomic.Int64
}

func (d *smallDisk) Space(string) (free, total int64, err error) {
	return d.free.Load(), d.total.Load(), nil
}

// TestANearlyFullDiskRefusesInOrder: above the watermark sends are refused, with too little left for what is owed grants too;
// acks, releases and session ends never; and everything goes on by itself when there is room.
func TestANearlyFullDiskRefusesInOrder(t *testing.T) {
	const segment = 1 << 20
	disk := &smallDisk{FS: mmaplog.OS}
	disk.free.Store(500 * segment)
	disk.total.Store(1000 * segment)
	r := newRig(t, func(o *Options) { o.FS, o.Watermark, o.SegmentBytes = disk, 90, segment })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("jobs", "1", "2", "3", "4")
	p := c.pop(popRequest(s.Session, "jobs", 1))
	q := c.pop(popRequest(s.Session, "jobs", 1))
	send := &protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue, Messages: [][]byte{encoded(t, "5")}}
	is := func(what string, a answer, want protocol.Status) {
		t.Helper()
		if a.Status != want {
			var why protocol.ErrorBody
			_ = why.Decode(a.body)
			t.Fatalf("%s: %s, want %s (%s)", what, a.Status, want, why.Message)
		}
	}
	// Given a disk that is 95 % full,
	disk.free.Store(50 * segment)
	r.e.Steward()
	// then sends are refused, and told how much is free and how much more is needed; pops are not.
	a := c.call(protocol.OpSend, 0, send)
	is("a send above the watermark", a, protocol.StoreFull)
	var why protocol.ErrorBody
	if err := why.Decode(a.body); err != nil || why.Detail != 50*segment-0 || !strings.Contains(why.Message, "52428800 bytes are free, 52428800 more are needed") {
		t.Fatalf("%+v %v", why, err)
	}
	is("a pop above the watermark", c.call(protocol.OpPop, 0, popRequest(s.Session, "jobs", 1)), protocol.OK)
	// Given one with hardly anything free,
	disk.free.Store(segment / 16)
	r.e.Steward()
	wait := popRequest(s.Session, "jobs", 1)
	is("a pop", c.call(protocol.OpPop, 0, wait), protocol.StoreFull)
	is("a registration", c.call(protocol.OpRegister, protocol.FlagCreate, &protocol.RegisterRequest{Group: "g", ConsumerID: "b"}), protocol.StoreFull)
	is("a topic", c.call(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "more", Queues: 1}), protocol.StoreFull)
	if res := c.change(s.Session, protocol.ChangeEntry{Receipt: receipts(&q)[0], Ordinal: 1, InvisibleMs: 3_600_000}); res[0].Status != protocol.StoreFull {
		t.Fatalf("a renewal: %s", res[0].Status)
	}
	// then acks, releases and leaving go through.
	if res := c.ack(s.Session, receipts(&p)...); res[0].Status != protocol.OK {
		t.Fatalf("an ack: %s", res[0].Status)
	}
	if res := c.change(s.Session, protocol.ChangeEntry{Receipt: receipts(&q)[0], Ordinal: 1}); res[0].Status != protocol.OK {
		t.Fatalf("a release: %s", res[0].Status)
	}
	// When there is room again, everything is served.
	disk.free.Store(500 * segment)
	r.e.Steward()
	is("a send", c.call(protocol.OpSend, 0, send), protocol.OK)
	if got := c.pop(popRequest(s.Session, "jobs", 10)); len(got.Rows) == 0 {
		t.Fatal("nothing comes")
	}
	is("leaving", c.call(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: s.Session}), protocol.OK)
}

// TestAParkedPopIsServedWhenTheDiskHasRoom: nothing else need happen for it.
func TestAParkedPopIsServedWhenTheDiskHasRoom(t *testing.T) {
	const segment = 1 << 20
	disk := &smallDisk{FS: mmaplog.OS}
	disk.free.Store(500 * segment)
	disk.total.Store(1000 * segment)
	r := newRig(t, func(o *Options) { o.FS, o.Watermark, o.SegmentBytes = disk, 90, segment })
	c := r.dial()
	s := c.register("g", "a")
	c.sendBodies("other", "makes the topic's group known")
	wait := popRequest(s.Session, "jobs", 1)
	wait.AwaitMs = 60_000
	parked := c.start(protocol.OpPop, protocol.FlagCreate, wait)
	r.commit()
	disk.free.Store(segment * 3 / 4) // grants are served, sends are not
	r.e.Steward()
	is := c.call(protocol.OpSend, 0, &protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue, Messages: [][]byte{encoded(t, "x")}})
	if is.Status != protocol.StoreFull {
		t.Fatalf("a send: %s", is.Status)
	}
	disk.free.Store(500 * segment)
	r.e.Steward()
	c.sendBodies("jobs", "now")
	if a := c.wait(parked); a.Status != protocol.OK {
		t.Fatalf("the pop that waits: %s", a.Status)
	}
}
