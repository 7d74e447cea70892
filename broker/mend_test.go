package broker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

func TestASecondWrongEntryWithinAMinute(t *testing.T) {
	for _, kind := range []string{"of another message", "zeroed"} {
		t.Run(kind, func(t *testing.T) {
			// Given a queue one entry of which was wrong and was mended,
			const n = 1000
			m := oneQueue(t, n)
			harm := m.otherEntry
			if kind == "zeroed" {
				harm = m.zeroEntry
			}
			harm(3)
			m.open()
			x := m.taker("g", "jobs")
			x.takeFor(20*time.Second, 10)
			m.quiet()
			if got := m.e.stats.indexMended.Load(); got != 1 {
				t.Fatalf("%d entries mended", got)
			}
			mendedMs := m.e.lease.now()
			// when another goes wrong at once,
			harm(900)
			// then its message waits until the log may be read again, and all come as they were sent.
			x.takeFor(3*time.Minute, n)
			x.wantAllBut(n)
			if m.mends.count() != 2 || m.e.stats.indexMended.Load() != 2 || m.e.lease.now()-mendedMs < mendEveryMs/2 {
				t.Errorf("%d scans, %d entries, %d ms later", m.mends.count(), m.e.stats.indexMended.Load(), m.e.lease.now()-mendedMs)
			}
		})
	}
}

func TestAHoleIsMendedWithOneScan(t *testing.T) {
	m := oneQueue(t, 300)
	m.zeroEntry(200)
	m.open()
	x := m.taker("g", "jobs")
	x.takeFor(20*time.Second, 300)
	x.wantAllBut(300)
	m.pass(3 * time.Minute)
	m.quiet()
	if m.mends.count() != 1 || m.e.stats.indexMended.Load() != 1 {
		t.Fatalf("%d scans, %d entries", m.mends.count(), m.e.stats.indexMended.Load())
	}
}

func TestALongMendPassesNothingAndHoldsUpNoPeek(t *testing.T) {
	// Given a wrong entry, and one that was mended before: the second scan does not get on,
	const n = 600
	m := oneQueue(t, n)
	m.otherEntry(3)
	m.open()
	x := m.taker("g", "jobs")
	x.takeFor(20*time.Second, 10)
	m.quiet()
	m.pass(80 * time.Second)
	m.otherEntry(550)
	m.disk.hold.Lock()
	for len(x.got) < n-1 {
		x.step(50)
	}
	for range 4 { // the message is given back after five seconds each time
		m.pass(10 * time.Second)
		x.step(50)
	}
	if !m.e.mender.busy.Load() {
		t.Fatal("the scan is over")
	}
	// when somebody peeks, then he is answered,
	var a protocol.PeekAnswer
	x.c.ok(protocol.OpPeek, 0, &protocol.PeekRequest{Topic: "jobs", Offset: 10, Max: 1}, &a)
	if len(a.Rows) != 1 {
		t.Errorf("%d rows", len(a.Rows))
	}
	// and the message comes when the scan is over.
	m.disk.hold.Unlock()
	x.takeFor(20*time.Second, n)
	x.wantAllBut(n)
}

func TestMendingBehindADamagedRecord(t *testing.T) {
	for _, what := range []string{"an entry", "the files"} {
		for name, length := range map[string]int{"body": 1, "whole record": 170} {
			t.Run(what+" lost, "+name+" damaged", func(t *testing.T) {
				// Given a damaged record of another topic, and good ones behind it whose index is lost,
				m := newMendRig(t, nil)
				c := m.dial()
				c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
				c.sendBodies("other", "MARKER"+strings.Repeat("x", 80))
				m.sendMany(c, "jobs", 300)
				m.down()
				m.damage("MARKER", length/170*104, length)
				if what == "an entry" {
					m.zeroEntry(200)
				} else {
					m.harm(indexOfFirstTopic, func(b []byte) { clear(b) })
				}
				// when the broker starts and they are popped, then all of them come.
				m.open()
				x := m.taker("g", "jobs")
				x.takeFor(3*time.Minute, 300)
				x.wantAllBut(300)
			})
		}
	}
}

func TestDamagedMessagesArePassedWhateverTheIndexHas(t *testing.T) {
	for _, what := range []string{"right", "another's", "zeroed", "all zeroed"} {
		for _, tags := range [][]string{nil, {"a"}} {
			t.Run(fmt.Sprintf("%s, filter %v", what, tags), func(t *testing.T) {
				// Given two damaged messages, one of them from its header on,
				m := newMendRig(t, nil)
				c := m.dial()
				c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
				const n = 300
				for i := range uint64(n) {
					c.send("jobs", codec.Message{Body: []byte(bodyAt("jobs", i)), Tag: "a"})
				}
				c.sendBodies("other", "the record up to which the snapshot stands for the log")
				m.down()
				m.damage(bodyAt("jobs", 100), 0, 1)
				m.damage(bodyAt("jobs", n-1), 100, 100)
				for _, offset := range []int{100, n - 1} {
					switch what {
					case "another's":
						m.harm(indexOfFirstTopic, func(b []byte) { copy(b[offset*32:], b[0:32]) })
					case "zeroed":
						m.zeroEntry(offset)
					}
				}
				if what == "all zeroed" {
					m.harm(indexOfFirstTopic, func(b []byte) { clear(b) })
				}
				// when they are popped, then they are passed, counted, after one scan, and all others come;
				m.open()
				x := m.taker("g", "jobs")
				x.tags = tags
				x.takeFor(30*time.Second, n)
				x.wantAllBut(n, 100, n-1)
				if pos := m.e.fold.leases.Position(m.e.fold.leases.Subs()[0], 0); pos.Next != n || pos.Unreadable != 2 || pos.Skipped != 0 || m.mends.count() > 1 {
					t.Errorf("the cursor is %+v, %d scans", pos, m.mends.count())
				}
				// and after a restart for another group as well.
				m.takers = nil
				m.restart()
				y := m.taker("h", "jobs")
				y.tags = tags
				y.takeFor(30*time.Second, n)
				y.wantAllBut(n, 100, n-1)
			})
		}
	}
}

func TestOneQueuesTroubleIsNoOthers(t *testing.T) {
	// Given two queues that are to be mended, and the topic of one of them is deleted before,
	m := oneQueue(t, 300)
	m.zeroEntry(200)
	m.open()
	x := m.taker("g", "jobs")
	x.c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "gone", Queues: 1}, nil)
	gone := m.e.fold.topics.slab.At(m.e.fold.topics.names["gone"]).id
	x.c.ok(protocol.OpDeleteTopic, 0, &protocol.NameRequest{Name: "gone"}, nil)
	m.e.indexWrong(gone, 0)
	x.takeFor(20*time.Second, 300)
	x.wantAllBut(300)
	if m.e.mender.queues[queueName{gone, 0}] != nil {
		t.Error("the deleted topic is remembered")
	}
}

func TestAFailedMendIsTriedAgain(t *testing.T) {
	// Given a queue of which the state has more messages than the log, without damage: nothing can be concluded,
	m := oneQueue(t, 300)
	m.open()
	m.quiet()
	m.e.enter()
	slot, _ := m.e.fold.topics.queueSlot(1, 0)
	m.e.queueRun[slot].visible++
	m.e.leave()
	m.e.indexWrong(1, 0)
	m.quiet()
	// then nothing of it counts as lost, and it is compared again, after a pause that grows.
	if m.e.isLost(1, 0, 300) || m.mends.count() != 1 {
		t.Fatalf("lost: %v, %d scans", m.e.isLost(1, 0, 300), m.mends.count())
	}
	for range 120 {
		m.pass(250 * time.Millisecond)
		m.quiet()
	}
	if got := m.mends.count(); got != 3 { // after 5 and 15 s; the next after 35
		t.Fatalf("%d scans in half a minute", got)
	}
	m.e.enter()
	m.e.queueRun[slot].visible--
	m.e.leave()
}

func TestAScanOfTheLogPassesOverWhatIsRemoved(t *testing.T) {
	// Given a log of several segments, the first of which are removed while they are scanned,
	m := newMendRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	c := m.dial()
	m.fill(c, "jobs", 4)
	m.commit()
	var positions []uint64
	scan := logScan{log: m.e.log, to: m.e.log.Committed(), damaged: func(position uint64, why error) { t.Errorf("damage at %d: %v", position, why) }}
	scan.fn = func(r mmaplog.Record) error {
		if len(positions) == 0 {
			if _, _, err := m.e.log.RemoveBefore(m.e.log.SegmentEnd(3 * 64 << 10)); err != nil {
				return err
			}
		}
		positions = append(positions, r.Header.Position)
		return nil
	}
	// then the scan goes on with what is left.
	if err := scan.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	jumps := 0
	for i := 1; i < len(positions); i++ {
		if positions[i-1] >= positions[i] {
			t.Fatalf("%d comes after %d", positions[i], positions[i-1])
		}
		if positions[i]-positions[i-1] > 64<<10 {
			jumps++
		}
	}
	if jumps != 1 || scan.next < scan.to {
		t.Errorf("%d jumps, it ended at %d of %d", jumps, scan.next, scan.to)
	}
}

// TestNoGoodMessageIsEverPassed: entries go wrong in every way, at any time, also while the index is mended.
func TestNoGoodMessageIsEverPassed(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for round := range uint64(3) {
		t.Run(fmt.Sprint(seed+round), func(t *testing.T) {
			t.Logf("seed %d", seed+round)
			rnd := rand.New(rand.NewPCG(seed+round, 0))
			const n = 1500
			m := newMendRig(t, func(o *Options) { o.SegmentBytes = 128 << 10 })
			c := m.dial()
			c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 1}, nil)
			m.sendMany(c, "jobs", n)
			m.down()
			m.open()
			all := make([]consumequeue.Entry, n)
			if got, err := m.e.index.Read(1, 0, 0, all); err != nil || got != n {
				t.Fatal(got, err)
			}
			wrong := func() {
				offset := rnd.IntN(n)
				entry := all[rnd.IntN(n)]
				switch rnd.IntN(5) {
				case 0: // zeroed in the file: it matters if its block is not in memory
					m.zeroEntry(offset)
					return
				case 1:
					entry.Position = m.e.log.Appended() + uint64(rnd.IntN(1000))*8
				case 2:
					entry.Position = uint64(rnd.IntN(64))
				case 3:
					entry = all[offset]
					entry.Size -= uint32(rnd.IntN(5))
				}
				if err := m.e.index.Repair(1, 0, uint64(offset), []consumequeue.Entry{entry}); err != nil {
					t.Fatal(err)
				}
			}
			consumers := []*taker{m.taker("g", "jobs"), m.taker("h", "jobs")}
			for _, x := range consumers {
				x.release = func() bool { return rnd.IntN(20) == 0 }
			}
			left := func() bool { return len(consumers[0].got) < n || len(consumers[1].got) < n }
			for turn := 0; left() && turn < 20_000; turn++ {
				if rnd.IntN(3) == 0 && turn < 1000 {
					wrong()
				}
				x := consumers[rnd.IntN(2)]
				if rows := x.step(1 + rnd.IntN(30)); rows == 0 || rnd.IntN(4) == 0 {
					if rnd.IntN(2) == 0 {
						m.quiet()
					}
					m.pass(time.Duration(rnd.IntN(8)) * 250 * time.Millisecond)
				}
			}
			for _, x := range consumers {
				x.wantAllBut(n)
			}
			t.Logf("%d entries mended in %d scans", m.e.stats.indexMended.Load(), m.mends.count())
			if m.e.stats.indexMended.Load() == 0 {
				t.Error("nothing was mended: the test shows nothing")
			}
		})
	}
}
