package bench

import (
	"math"
	"math/bits"
	"time"
)

// subBuckets is how many buckets a power of two has: a value is off by less than 1/subBuckets of itself.
const (
	subBits    = 7
	subBuckets = 1 << subBits
)

// Histogram counts durations in buckets whose width grows with the value, so that an hour is held as exactly as
// a microsecond, in a fixed 58 KiB. The zero value is empty. It belongs to one goroutine; Merge brings
// several together.
type Histogram struct {
	counts [(64 - subBits) * subBuckets]uint64
	total  uint64
	most   time.Duration
}

// Record counts n times the duration d.
func (h *Histogram) Record(d time.Duration, n int) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))] += uint64(n)
	h.total += uint64(n)
	h.most = max(h.most, d)
}

// Merge adds what other has counted.
func (h *Histogram) Merge(other *Histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
	h.most = max(h.most, other.most)
}

// Count is how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.total }

// Max is the longest one, exactly.
func (h *Histogram) Max() time.Duration { return h.most }

// Quantile is the duration that the share q (0 to 1) of all does not pass; 0 when there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(uint64(math.Ceil(q*float64(h.total))), 1)
	seen := uint64(0)
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			return min(time.Duration(upperEnd(i)), h.most)
		}
	}
	return h.most
}

// bucket is the index for v. Values below subBuckets have a bucket each.
func bucket(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return shift<<subBits + int(v>>shift)
}

// upperEnd is the largest value of a bucket.
func upperEnd(i int) uint64 {
	if i < subBuckets {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return uint64(i-shift<<subBits+1)<<shift - 1
}
