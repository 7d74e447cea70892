package bench

import (
	"slices"
	"testing"
)

// The limits of a policy are the lowest of the parts that bound it, and leasemq's share is that of the same stretch of time.
func TestLimits(t *testing.T) {
	parts := func(send ...CeilingPart) []CeilingPart {
		return append([]CeilingPart{
			partOf(partEcho, []float64{900, 1000, 1100}), partOf(partCopy, []float64{1500}), partOf(partFlush, []float64{500}),
		}, send...)
	}
	find := func(parts []CeilingPart, name string) (p CeilingPart) {
		if i := slices.IndexFunc(parts, func(p CeilingPart) bool { return p.Part == name }); i >= 0 {
			return parts[i]
		}
		return p
	}
	got := limits("interval", parts(partOf(partAnswered, []float64{800}), partOf(partSend, []float64{400})))
	if p := find(got, limitBurst); p.Median != 1000 || p.Min != 900 || p.Max != 1100 || p.Share != 0.8 {
		t.Errorf("burst: %+v", p)
	}
	if p := find(got, limitSustained); p.Median != 500 || p.Share != 0.8 {
		t.Errorf("sustained: %+v", p)
	}
	got = limits("always", parts(partOf(partSend, []float64{250})))
	if p := find(got, limitSustained); p.Share != 0.5 || find(got, limitBurst).Part != "" {
		t.Errorf("always: %+v", got)
	}
	got = limits("never", parts(partOf(partSend, []float64{250})))
	if p := find(got, limitBurst); p.Share != 0.25 || find(got, limitSustained).Part != "" {
		t.Errorf("never: %+v", got)
	}
	// A run that was cut short has no limits.
	if got := limits("interval", parts()); len(got) != 3 {
		t.Errorf("without sends: %+v", got)
	}
}

// Of an even number of rounds the lower of the middle ones is told: a round that was.
func TestTheMiddleRound(t *testing.T) {
	if p := partOf("x", []float64{4, 1, 3, 2}); p.Median != 2 || p.Min != 1 || p.Max != 4 {
		t.Errorf("%+v", p)
	}
}
