package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// scenario is a load as users of such a broker have it.
type scenario struct {
	name, about string
	settings    Settings // Rate, Size, Queues and Consumers
	workers     int      // of a consumer, at scale 1
	work        func(*rand.Rand) time.Duration
	lease       time.Duration

	pause, pauseEvery time.Duration
}

// scenarios are those that there are.
var scenarios = []scenario{
	{
		name: "stock", about: "stock deductions: 9,200 messages/s of 1.8 KB, work of 1.9 to 2.2 s, consumers that stand still for 412 ms",
		settings: Settings{Rate: 9200, Size: 1800, Queues: 16, Consumers: 6}, workers: 4800,
		work:  func(r *rand.Rand) time.Duration { return between(r, 1900*time.Millisecond, 2200*time.Millisecond) },
		lease: 30 * time.Second,
		pause: 412 * time.Millisecond, pauseEvery: 10 * time.Second,
	},
	{
		name: "infer", about: "LLM inference: 380 messages/s of 2.4 KB, p99 of the work 6 s, and a tail of minutes",
		settings: Settings{Rate: 380, Size: 2400, Queues: 12, Consumers: 6}, workers: 400,
		work:  inference,
		lease: 30 * time.Second,
	},
	{
		name: "recon", about: "reconciliation: 2 jobs/s of 1 KB, p99 of the work 18 min",
		settings: Settings{Rate: 2, Size: 1024, Queues: 4, Consumers: 4}, workers: 500,
		work:  func(r *rand.Rand) time.Duration { return logNormal(r, 6*time.Minute, 18*time.Minute) },
		lease: 30 * time.Second,
	},
}

// handling is that of the scenario with its times scaled: work, pauses and leases are scale times as long. Workers become fewer
// with the work that they share, and are never so few that messages wait for one.
func (s *scenario) handling(scale float64) handling {
	scaled := func(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }
	return handling{
		workers: max(int(math.Ceil(float64(s.workers)*min(scale, 1))), 64),
		pause:   scaled(s.pause), pauseEvery: scaled(s.pauseEvery),
		invisible: max(scaled(s.lease), protocol.MinInvisibleMs*time.Millisecond),
		work:      func(r *rand.Rand) time.Duration { return scaled(s.work(r)) },
		patience:  scaled(10*time.Minute) + 30*time.Second,
	}
}

// findScenario finds one by its name.
func findScenario(name string) (s scenario, ok bool) {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	if i < 0 {
		return s, false
	}
	return scenarios[i], true
}

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// z99 is how many standard deviations the 99th percentile of the normal distribution lies above its middle.
const z99 = 2.3263

// logNormal has its median and its 99th percentile where they are said.
func logNormal(r *rand.Rand, p50, p99 time.Duration) time.Duration {
	sigma := math.Log(float64(p99)/float64(p50)) / z99
	return time.Duration(float64(p50) * math.Exp(sigma*r.NormFloat64()))
}

// inference takes 1.2 s mostly, 6 s at the 99th percentile, and once in 500 times one to four minutes.
func inference(r *rand.Rand) time.Duration {
	if r.IntN(500) == 0 {
		return between(r, time.Minute, 4*time.Minute)
	}
	return logNormal(r, 1200*time.Millisecond, 5500*time.Millisecond)
}
