package bench

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// What a body says of itself is read back; one with a flipped bit, of another length or of another run is none.
func TestABodyProvesItself(t *testing.T) {
	run := load{Run: &Run{Settings: Settings{Size: 64}}, seen: make([]atomic.Uint32, 10)}
	body := noise(64, 1)
	seal(body, 3*time.Second, 7)
	if due, number, ok := run.open(body); due != 3*time.Second || number != 7 || !ok {
		t.Fatalf("%v, %d, %v", due, number, ok)
	}
	for bit := range 8 * len(body) {
		body[bit/8] ^= 1 << (bit % 8)
		if _, _, ok := run.open(body); ok {
			t.Errorf("bit %d is flipped and nobody noticed", bit)
		}
		body[bit/8] ^= 1 << (bit % 8)
	}
	if _, _, ok := run.open(append(body, 0)); ok {
		t.Error("a byte too many was not noticed")
	}
	seal(body, 0, 10)
	if _, _, ok := run.open(body); ok {
		t.Error("a number that was never sent was taken")
	}
}

// The work of the scenarios is as long as they say.
func TestScenarios(t *testing.T) {
	near := func(got, want time.Duration) bool { return got > want*9/10 && got < want*11/10 }
	for _, x := range []struct {
		name          string
		p50, p99, max time.Duration // of the middle, the 99th percentile, and what some job reaches
	}{
		{"stock", 2050 * time.Millisecond, 2197 * time.Millisecond, 2199 * time.Millisecond},
		{"infer", 1200 * time.Millisecond, 6 * time.Second, 2 * time.Minute},
		{"recon", 6 * time.Minute, 18 * time.Minute, 20 * time.Minute},
	} {
		s, ok := findScenario(x.name)
		if !ok {
			t.Fatalf("no scenario %s", x.name)
		}
		o, settings := s.handling(1), s.settings
		random := rand.New(rand.NewPCG(1, 2))
		var all []time.Duration
		for range 50_000 {
			all = append(all, o.work(random))
		}
		slices.Sort(all)
		p50, p99, most := all[25_000], all[49_500], all[49_999]
		if !near(p50, x.p50) || !near(p99, x.p99) || most < x.max {
			t.Errorf("%s: p50 %v, p99 %v, max %v", x.name, p50, p99, most)
		}
		// There are hands enough: work that comes in while one job takes its mean time.
		var sum time.Duration
		for _, d := range all {
			sum += d
		}
		mean := sum / time.Duration(len(all))
		if busy, hands := float64(settings.Rate)*mean.Seconds(), float64(settings.Consumers*o.workers); busy > 0.8*hands {
			t.Errorf("%s: %.0f jobs at once for %.0f hands", x.name, busy, hands)
		}
		short := s.handling(0.01)
		if d := short.work(random); d > most/50 || short.invisible != o.invisible/100 {
			t.Errorf("%s at scale 0.01: work %v, leases %v", x.name, d, short.invisible)
		}
	}
	if _, ok := findScenario("nothing"); ok {
		t.Error("found a scenario that does not exist")
	}
}
