package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// What a histogram can hold: a value is off by less than a thousandth of itself, and one that is longer than the longest counts as that.
const (
	histogramLongest = 48 * time.Hour
	histogramDigits  = 3
)

// Histogram counts durations (HdrHistogram). The zero value is empty. It belongs to one goroutine; Merge brings several together.
type Histogram struct {
	h    *hdrhistogram.Histogram
	most time.Duration
}

func (h *Histogram) made() *hdrhistogram.Histogram {
	if h.h == nil {
		h.h = hdrhistogram.New(1, int64(histogramLongest), histogramDigits)
	}
	return h.h
}

// Record counts n times the duration d.
func (h *Histogram) Record(d time.Duration, n int) {
	d = max(d, 0)
	h.made().RecordValues(int64(min(d, histogramLongest)), int64(n)) // what is in range is recorded
	h.most = max(h.most, d)
}

// Merge adds what other has counted.
func (h *Histogram) Merge(other *Histogram) {
	if other.h != nil {
		h.made().Merge(other.h)
	}
	h.most = max(h.most, other.most)
}

// Reset makes h empty and keeps its memory.
func (h *Histogram) Reset() {
	if h.h != nil {
		h.h.Reset()
	}
	h.most = 0
}

// Count is how many durations were recorded.
func (h *Histogram) Count() uint64 {
	if h.h == nil {
		return 0
	}
	return uint64(h.h.TotalCount())
}

// Max is the longest one, exactly.
func (h *Histogram) Max() time.Duration { return h.most }

// Quantile is the duration that the share q (0 to 1) of all does not pass; 0 when there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.h == nil {
		return 0
	}
	return min(time.Duration(h.h.ValueAtQuantile(100*q)), h.most)
}
