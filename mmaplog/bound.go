package mmaplog

import (
	"math"
	"sync/atomic"
	"time"
)

// bound limits how many bytes may be written and not synced. Under SyncInterval that is what the disk was
// measured to flush in two intervals. So however fast the page cache takes bytes, a power loss costs about two
// intervals, and flushes do not grow longer and longer. Under SyncAlways it is what is worth flushing at once.
type bound struct {
	limit    atomic.Int64
	rate     atomic.Int64 // bytes a second, moving average of the flushes that say something
	most     int64
	interval time.Duration // 0: the limit stays
}

const (
	boundFloor = 8 << 20 // enough to keep the disk busy, and to measure it
	// A flush tells the rate of the disk only if bytes were what it waited for.
	sampleBytes = 4 << 20
	// Half of it is in a flush while the other half is written; with it the first answer of a batch waits
	// for 8 MiB at most.
	boundAlways = 16 << 20
)

func (b *bound) init(o Options) {
	switch o.Policy {
	case SyncAlways:
		b.most = boundAlways
	case SyncInterval:
		b.most, b.interval = o.MaxUnsynced, o.Interval
	case SyncNever:
		b.most = math.MaxInt64
	}
	b.limit.Store(b.most)
}

// sample takes the figures of one flush. The flusher.
func (b *bound) sample(bytes int64, took time.Duration) {
	if bytes < sampleBytes || took <= 0 {
		return
	}
	rate := int64(float64(bytes) / took.Seconds())
	if old := b.rate.Load(); old != 0 {
		rate = (3*old + rate) / 4
	}
	b.rate.Store(rate)
	if b.interval == 0 {
		return
	}
	limit := int64(float64(rate) * 2 * b.interval.Seconds())
	b.limit.Store(min(b.most, max(limit, boundFloor)))
}
