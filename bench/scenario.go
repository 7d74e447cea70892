package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Scenario is a load as users of such a broker have it.
type Scenario struct {
	Name, About string
	load        LoadOptions // at scale 1
	work        func(*rand.Rand) time.Duration
	lease       time.Duration
}

// Scenarios are those that there are.
var Scenarios = []Scenario{
	{
		Name: "stock", About: "stock deductions: 9,200 messages/s of 1.8 KB, work of 1.9 to 2.2 s, consumers that stand still for 412 ms",
		load: LoadOptions{
			Rate: 9200, Size: 1800, Queues: 16, Consumers: 6, Workers: 4800,
			Pause: 412 * time.Millisecond, PauseEvery: 10 * time.Second,
		},
		work:  func(r *rand.Rand) time.Duration { return between(r, 1900*time.Millisecond, 2200*time.Millisecond) },
		lease: 30 * time.Second,
	},
	{
		Name: "infer", About: "LLM inference: 380 messages/s of 2.4 KB, p99 of the work 6 s, and a tail of minutes",
		load:  LoadOptions{Rate: 380, Size: 2400, Queues: 12, Consumers: 6, Workers: 400},
		work:  inference,
		lease: 30 * time.Second,
	},
	{
		Name: "recon", About: "reconciliation: 2 jobs/s of 1 KB, p99 of the work 18 min",
		load:  LoadOptions{Rate: 2, Size: 1024, Queues: 4, Consumers: 4, Workers: 500},
		work:  func(r *rand.Rand) time.Duration { return logNormal(r, 6*time.Minute, 18*time.Minute) },
		lease: 30 * time.Second,
	},
}

// Load is the scenario with its times scaled: work, pauses and leases are scale times as long. Rates, sizes, heartbeats and
// timeouts of sessions stay. Workers become fewer with the work that they share, and are never so few that messages wait for one.
func (s *Scenario) Load(scale float64) LoadOptions {
	scaled := func(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }
	o := s.load
	o.Pause, o.PauseEvery = scaled(o.Pause), scaled(o.PauseEvery)
	o.Invisible = max(scaled(s.lease), protocol.MinInvisibleMs*time.Millisecond)
	o.Work = func(r *rand.Rand) time.Duration { return scaled(s.work(r)) }
	o.Workers = max(int(math.Ceil(float64(o.Workers)*min(scale, 1))), 64)
	o.Patience = scaled(10*time.Minute) + 30*time.Second
	return o
}

// FindScenario finds one by its name.
func FindScenario(name string) (s Scenario, ok bool) {
	i := slices.IndexFunc(Scenarios, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		return s, false
	}
	return Scenarios[i], true
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
