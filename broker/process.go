package broker

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// pauseMetric is the distribution of the pauses that collections make.
const pauseMetric = "/sched/pauses/total/gc:seconds"

// processStats are the figures of this process. They cost system calls, so they are taken outside of the section.
func processStats() []protocol.Stat {
	cpu, rssAnon := processUse()
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	sample := []metrics.Sample{{Name: pauseMetric}}
	metrics.Read(sample)
	return []protocol.Stat{
		{Name: "process_cpu_us", Value: uint64(cpu.Microseconds())},
		{Name: "process_rss_anon_bytes", Value: rssAnon},
		{Name: "gc_cycles", Value: uint64(gc.NumGC)},
		{Name: "gc_pause_us_total", Value: uint64(gc.PauseTotal.Microseconds())},
		{Name: "gc_pause_us_max", Value: uint64(longest(sample[0].Value).Microseconds())},
	}
}

// longest is the upper end of the last bucket of a distribution that holds something.
func longest(v metrics.Value) time.Duration {
	if v.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	h := v.Float64Histogram()
	for i := len(h.Counts) - 1; i >= 0; i-- {
		if h.Counts[i] == 0 {
			continue
		}
		seconds := h.Buckets[i+1]
		if math.IsInf(seconds, 1) {
			seconds = h.Buckets[i]
		}
		return time.Duration(seconds * float64(time.Second))
	}
	return 0
}
