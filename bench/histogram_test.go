package bench

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestADurationIsHeldClosely(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 999, 1000, 1001, time.Microsecond, 123456789, time.Hour + 1, 47 * time.Hour, 100 * time.Hour} {
		var h Histogram
		h.Record(d, 2)
		want := min(d, histogramLongest)
		got := h.Quantile(1)
		if off := float64(got-want) / float64(max(want, 1)); off < -0.001 || off > 0.001 || h.Count() != 2 || h.Max() != d {
			t.Errorf("%v is told as %v, off by %.4f; %d, at most %v", d, got, off, h.Count(), h.Max())
		}
	}
}

func TestQuantilesAreThoseOfTheSortedValues(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var whole, half Histogram
	var values []time.Duration
	for i := range 20_000 {
		d := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
		values = append(values, d)
		if i%2 == 0 {
			whole.Record(d, 1)
		} else {
			half.Record(d, 1)
		}
	}
	whole.Merge(&half)
	slices.Sort(values)
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := values[max(int(q*float64(len(values))), 1)-1]
		got := whole.Quantile(q)
		if got < want-time.Microsecond || float64(got) > float64(want)*1.002+1000 {
			t.Errorf("quantile %v is %v, not %v", q, got, want)
		}
	}
	if whole.Max() != values[len(values)-1] || whole.Count() != uint64(len(values)) {
		t.Errorf("max %v count %d", whole.Max(), whole.Count())
	}
}

func TestEmptyHistogramIsZero(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Errorf("got %v, %v", h.Quantile(0.5), h.Max())
	}
}
