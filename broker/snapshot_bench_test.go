package broker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// BenchmarkSnapshotOfAMillionLeases takes snapshots of a million leases while acks and renewals of leases chosen at random
// go on, a thousand in a hold of the section, and reports the longest that one took, waiting for the section included, with and
// without it.
func BenchmarkSnapshotOfAMillionLeases(b *testing.B) {
	const sessions, each = 256, 4096
	r := newRig(b, func(o *Options) { o.Verify, o.SegmentBytes, o.RingBytes = false, 256<<20, 64<<20 })
	c := r.dial()
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 128}, nil)
	for range sessions * each / 4096 {
		req := protocol.SendRequest{Topic: "jobs", Queue: int32(r.next % 128)}
		for range 4096 {
			req.Messages = append(req.Messages, encoded(b, "x"))
		}
		c.ok(protocol.OpSend, 0, &req, nil)
	}
	r.commit()
	type lease struct {
		session uint64
		receipt []byte
		ordinal uint32
	}
	var leases []lease
	for len(leases) < sessions*each*9/10 {
		s := c.register("g", "c"+string(rune(len(leases))))
		for n := 0; n < each; {
			p := c.pop(&protocol.PopRequest{Session: s.Session, Topic: "jobs", Max: 256, InvisibleMs: protocol.MaxInvisibleMs})
			if len(p.Rows) == 0 {
				r.await()
				break
			}
			for _, receipt := range receipts(&p) {
				leases = append(leases, lease{s.Session, receipt, 0})
			}
			n += len(p.Rows)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	// change renews leases at random, of one session as a batch must be, and tells how long that took.
	bySession := map[uint64][]int{}
	for i := range leases {
		bySession[leases[i].session] = append(bySession[leases[i].session], i)
	}
	var ids []uint64
	for id := range bySession {
		ids = append(ids, id)
	}
	invisible := uint32(protocol.MaxInvisibleMs / 2)
	change := func() time.Duration {
		id := ids[rnd.IntN(len(ids))]
		req := protocol.ChangeInvisibleRequest{Session: id}
		for range 1000 {
			x := &leases[bySession[id][rnd.IntN(len(bySession[id]))]]
			x.ordinal++
			req.Entries = append(req.Entries, protocol.ChangeEntry{Receipt: x.receipt, Ordinal: x.ordinal, InvisibleMs: invisible})
		}
		invisible--
		body := req.Append(nil)
		h := protocol.Header{Version: protocol.Version, Opcode: protocol.OpChangeInvisible, RequestID: 1, BodyLen: uint32(len(body))}
		for !r.loop.Frame(c, h, body) {
			r.await()
		}
		began := time.Now() // the requests are decoded and their receipts checked; what follows is the section
		r.loop.Flush(c)
		held := time.Since(began)
		for len(c.out) == 0 {
			r.await()
		}
		c.out = nil
		return held
	}
	var alone, beside, frozen, took time.Duration
	for range 300 {
		alone = max(alone, change())
	}
	changes := 0
	b.ResetTimer()
	for range b.N {
		done := make(chan SnapshotReport, 1)
		go func() {
			report, err := r.e.Snapshot()
			if err != nil {
				b.Error(err)
			}
			done <- report
		}()
		for running := true; running; changes++ {
			select {
			case report := <-done:
				frozen, took = max(frozen, report.Frozen), max(took, report.Took)
				running = false
			default:
				beside = max(beside, change())
			}
		}
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(float64(len(leases)), "leases")
	b.ReportMetric(ms(alone), "ms-longest-alone")
	b.ReportMetric(ms(beside), "ms-longest-beside")
	b.ReportMetric(ms(frozen), "ms-frozen")
	b.ReportMetric(ms(took), "ms-snapshot")
	b.ReportMetric(float64(changes)/float64(b.N), "batches/snapshot")
}
