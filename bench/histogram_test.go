package bench

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBucketHoldsItsValueClosely(t *testing.T) {
	for _, v := range []uint64{0, 1, 127, 128, 129, 255, 256, 1000, 1 << 20, 1<<20 + 1, 1<<62 + 12345, 1<<63 - 1} {
		i := bucket(v)
		top := upperEnd(i)
		if v > top {
			t.Errorf("%d lies above the end %d of its bucket", v, top)
		}
		if off := float64(top-v) / float64(max(v, 1)); off > 1.0/subBuckets {
			t.Errorf("%d is told as %d, off by %.3f", v, top, off)
		}
		if i+1 < len(new(Histogram).counts) && bucket(top+1) != i+1 {
			t.Errorf("after %d comes bucket %d, not %d", top, bucket(top+1), i+1)
		}
	}
	if n := bucket(1<<63 - 1); n >= len(new(Histogram).counts) {
		t.Fatalf("the longest duration has bucket %d of %d", n, len(new(Histogram).counts))
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
		if got < want-time.Microsecond || float64(got) > float64(want)*(1+2.0/subBuckets)+1000 {
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
