package broker

import (
	"runtime"
	"runtime/metrics"
	"testing"
)

func TestTheProcessTellsOfItself(t *testing.T) {
	figures := func() map[string]uint64 {
		m := map[string]uint64{}
		for _, s := range processStats() {
			m[s.Name] = s.Value
		}
		return m
	}
	before := figures()
	runtime.GC()
	after := figures()
	if after["gc_cycles"] <= before["gc_cycles"] || after["gc_pause_us_total"] < before["gc_pause_us_total"] {
		t.Errorf("a collection is not counted: %v, %v", before, after)
	}
	if after["gc_pause_us_max"] == 0 || after["process_cpu_us"] == 0 || after["process_cpu_us"] < before["process_cpu_us"] {
		t.Errorf("%v, %v", before, after)
	}
	if has := after["process_rss_anon_bytes"] > 0; has != (runtime.GOOS == "linux") {
		t.Errorf("memory is %d bytes", after["process_rss_anon_bytes"])
	}
	if d := longest(metrics.Value{}); d != 0 {
		t.Errorf("a metric that is not there has pauses of %v", d)
	}
}
