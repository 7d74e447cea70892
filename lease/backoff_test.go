package lease

import (
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func backOff(rule protocol.BackOff, minMs, maxMs uint32) *codec.Rules {
	return &codec.Rules{BackOff: uint8(rule), BackOffMinMs: minMs, BackOffMaxMs: maxMs}
}

func TestBackOffNone(t *testing.T) {
	for n := range 100 {
		if ms := FailureBackOffMs(backOff(protocol.BackOffNone, 1000, 2000), n, nil); ms != 0 {
			t.Fatalf("failure %d waits %d ms", n, ms)
		}
	}
}

func TestBackOffFixed(t *testing.T) {
	for n := range 100 {
		if ms := FailureBackOffMs(backOff(protocol.BackOffFixed, 1234, 9999), n, nil); ms != 1234 {
			t.Fatalf("failure %d waits %d ms", n, ms)
		}
	}
}

// TestBackOffLevels: 10 s, 30 s, 1 m, 2 m ... 10 m, 20 m, 30 m, 1 h, 2 h, and 2 h for ever.
func TestBackOffLevels(t *testing.T) {
	seconds := []int64{10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200, 7200, 7200}
	for i, want := range seconds {
		if ms := FailureBackOffMs(backOff(protocol.BackOffLevels, 1, 2), i+1, nil); ms != want*1000 {
			t.Errorf("failure %d waits %d ms, want %d s", i+1, ms, want)
		}
	}
	for _, n := range []int{-1, 0} {
		if ms := FailureBackOffMs(backOff(protocol.BackOffLevels, 1, 2), n, nil); ms != 10_000 {
			t.Errorf("failure %d waits %d ms", n, ms)
		}
	}
	if ms := FailureBackOffMs(backOff(protocol.BackOffLevels, 1, 2), 1<<40, nil); ms != 7_200_000 {
		t.Errorf("it waits %d ms", ms)
	}
}

// TestBackOffExponential: doubles from the least to the most, and is drawn from the upper half of that, all of it.
func TestBackOffExponential(t *testing.T) {
	r := newRand(t)
	for _, rule := range []protocol.BackOff{protocol.BackOffExponential, protocol.BackOffExponentialAgain} {
		for n := -1; n < 70; n++ {
			full := int64(300_000)
			if n < 10 {
				full = min(full, 1000<<max(n-1, 0))
			}
			least, most := int64(1<<62), int64(0)
			for range 400 {
				ms := FailureBackOffMs(backOff(rule, 1000, 300_000), n, r)
				least, most = min(least, ms), max(most, ms)
			}
			if least < full/2 || most > full {
				t.Fatalf("failure %d waits %d to %d ms, want %d to %d", n, least, most, full/2, full)
			}
			// 400 draws miss an eighth of the range at either end once in 10^23 runs.
			if least > full*9/16 || most < full*15/16 {
				t.Fatalf("failure %d waits %d to %d ms only, of %d to %d", n, least, most, full/2, full)
			}
		}
	}
}

// TestBackOffAtTheEdges: the least and the largest settings that a group can have, and none at all.
func TestBackOffAtTheEdges(t *testing.T) {
	r := newRand(t)
	for _, test := range []struct{ min, max uint32 }{
		{0, 0}, {1, 1}, {1, protocol.MaxInvisibleMs}, {protocol.MaxInvisibleMs, protocol.MaxInvisibleMs}, {^uint32(0), ^uint32(0)},
	} {
		for n := range 300 {
			ms := FailureBackOffMs(backOff(protocol.BackOffExponential, test.min, test.max), n, r)
			if ms < int64(test.min)/2 || ms > int64(test.max) {
				t.Fatalf("failure %d of %d to %d waits %d ms", n, test.min, test.max, ms)
			}
		}
	}
}
