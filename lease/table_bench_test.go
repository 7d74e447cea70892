package lease

import (
	"math/rand/v2"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// benchTable has one subscription with one queue.
func benchTable(b *testing.B) *Table {
	t := New()
	t.OnViolation = func(what string) { b.Fatal(what) }
	t.StartEpoch(1, 0)
	t.Subscribe(&codec.Subscribe{Sub: 1, Group: 1, Topic: 1, Starts: []uint64{0}})
	return t
}

// BenchmarkGrantAck is the common life of a message, in batches of 32, with 10,000 others in flight: a row is a batch.
func BenchmarkGrantAck32(b *testing.B) {
	const batch, inFlight = 32, 10_000 / 32 * 32
	t := benchTable(b)
	grant := codec.Grant{Sub: 1, DeadlineMs: 30_000, Runs: make([]codec.GrantRun, 1)}
	settle := codec.Settle{Sub: 1, Runs: make([]codec.SettleRun, 1)}
	offset, number := uint64(0), uint32(0)
	more := func() {
		number++
		grant.Number = number
		grant.Runs[0] = codec.GrantRun{Kind: codec.RunNew, Count: batch, Offset: offset}
		t.Grant(&grant, 1, 0, 1)
		offset += batch
	}
	for offset < inFlight {
		more()
	}
	b.ReportAllocs()
	for b.Loop() {
		more()
		first := offset - batch - inFlight
		settle.Runs[0] = codec.SettleRun{Count: batch, Offset: first, Token: 1<<32 | (first/batch + 1)}
		t.Settle(&settle, 0)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/message")
}

// BenchmarkCheckAck among 100,000 leases, at random.
func BenchmarkCheckAck(b *testing.B) {
	const leases = 100_000
	t := benchTable(b)
	t.Grant(&codec.Grant{Sub: 1, Number: 1, DeadlineMs: 1000, Runs: []codec.GrantRun{{Kind: codec.RunNew, Count: leases}}}, 1, 0, 1)
	r := rand.New(rand.NewPCG(1, 2))
	receipt := Receipt{Sub: 1, Group: 1, Topic: 1, Token: 1<<32 | 1, ID: codec.NewMessageID(1, 1<<40)}
	b.ReportAllocs()
	for b.Loop() {
		receipt.Offset = r.Uint64N(leases)
		if v := t.CheckAck(&receipt); !v.Apply {
			b.Fatal(v)
		}
	}
}
