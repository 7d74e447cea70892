package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/client"
)

// Point is one sample of a run: what happened since the one before.
type Point struct {
	At     float64              `json:"t_s"`               // its end, from the beginning of the warm-up
	Warm   bool                 `json:"warm_up,omitempty"` // it began in the warm-up
	Lanes  map[string]LanePoint `json:"lanes"`
	Broker *BrokerPoint         `json:"broker,omitempty"` // nil: the broker did not tell in time
}

// LanePoint is a lane in a sample. Percentiles are those of what ended in it and counts: in the warm-up there are none.
type LanePoint struct {
	MessagesPerS float64 `json:"msgs_per_s"`
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	Max          float64 `json:"max_us"`
}

// BrokerPoint is the broker's process in a sample.
type BrokerPoint struct {
	Cores     float64 `json:"cpu_cores"`      // processor time by time
	RSSAnon   uint64  `json:"rss_anon_bytes"` // memory that is no file's; 0: the system does not tell
	GCCycles  uint64  `json:"gc_cycles"`
	GCPauseUs uint64  `json:"gc_pause_us"` // in all
	Appended  uint64  `json:"log_appended"`
	Synced    uint64  `json:"log_synced"`
}

// BrokerUse sums the broker's process up.
type BrokerUse struct {
	Source      string  `json:"source"`       // where processor time and memory are from
	Cores       float64 `json:"cpu_cores"`    // mean, warm-up excluded
	RSSAnonMax  uint64  `json:"rss_anon_max"` // of the samples
	GCCycles    uint64  `json:"gc_cycles"`
	GCPauseUs   uint64  `json:"gc_pause_us"`
	GCPauseMax  uint64  `json:"gc_pause_us_max"` // since the broker's start
	LogAppended uint64  `json:"log_appended"`    // bytes, during the run
}

// processUse is what a process has used.
type processUse struct {
	cpu     time.Duration
	rssAnon uint64
}

// monitor looks at the broker, over a connection of its own and, where the broker is a child and the system shows it, in /proc.
type monitor struct {
	c      *client.Client // nil: no broker, or none that answers
	pid    int            // 0: unknown
	before brokerSample
	first  brokerSample // of what counts
	last   brokerSample
	rssMax uint64
}

type brokerSample struct {
	at       time.Time
	use      processUse
	figures  map[string]uint64
	complete bool
}

func newMonitor(ctx context.Context, run *Run) *monitor {
	m := &monitor{}
	if run.Addr == "" {
		return m
	}
	if c, err := client.Dial(ctx, run.Addr, client.Options{ClientInfo: "leasemq bench monitor"}); err == nil {
		m.c = c
	}
	if run.child != nil {
		if _, err := processOf(run.child.PID()); err == nil {
			m.pid = run.child.PID()
		}
	}
	m.before = m.sample(ctx, time.Second)
	return m
}

func (m *monitor) close() {
	if m.c != nil {
		m.c.Close()
	}
}

// sample asks the broker.
func (m *monitor) sample(ctx context.Context, patience time.Duration) (s brokerSample) {
	s.at = time.Now()
	if m.c == nil {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	figures, err := figuresOf(ctx, m.c)
	if err != nil {
		return s
	}
	s.figures, s.complete = figures, true
	s.use = processUse{cpu: time.Duration(figures["process_cpu_us"]) * time.Microsecond, rssAnon: figures["process_rss_anon_bytes"]}
	if m.pid != 0 {
		if use, err := processOf(m.pid); err == nil {
			s.use = use
		}
	}
	return s
}

// watch samples until ctx ends.
func (m *monitor) watch(ctx context.Context, run *Run) {
	every := run.interval()
	tick := time.NewTicker(every)
	defer tick.Stop()
	before, shown := run.began, run.began
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			done = true
		}
		now := time.Now()
		took := now.Sub(before)
		if took <= 0 || done && took < every/4 { // too little to say anything; its messages are in the sum
			continue
		}
		p := Point{At: now.Sub(run.began).Seconds(), Warm: before.Before(run.from), Lanes: map[string]LanePoint{}}
		for _, l := range run.lanes {
			p.Lanes[l.name] = l.point(took)
		}
		p.Broker = m.point(context.WithoutCancel(ctx), every, !p.Warm)
		run.report.Series = append(run.report.Series, p)
		before = now
		if run.progress != nil && now.Sub(shown) >= time.Second-every/2 {
			shown = now
			writeProgress(run.progress, run.lanes, &p)
		}
	}
	run.report.Broker = m.sum()
}

// point is the lane's part of a sample.
func (l *Lane) point(took time.Duration) LanePoint {
	s := l.gather()
	return LanePoint{
		MessagesPerS: float64(s.h.Count()+s.warm) / took.Seconds(),
		P50:          microseconds(s.h.Quantile(0.5)), P99: microseconds(s.h.Quantile(0.99)), Max: microseconds(s.h.Max()),
	}
}

func (m *monitor) point(ctx context.Context, patience time.Duration, counts bool) *BrokerPoint {
	s := m.sample(ctx, patience)
	if !s.complete {
		return nil
	}
	before := m.before
	m.before = s
	if !before.complete {
		return nil
	}
	if counts {
		if !m.first.complete {
			m.first = before
		}
		m.last = s
		m.rssMax = max(m.rssMax, s.use.rssAnon)
	}
	return &BrokerPoint{
		Cores: cores(&before, &s), RSSAnon: s.use.rssAnon,
		GCCycles: grown(&before, &s, "gc_cycles"), GCPauseUs: grown(&before, &s, "gc_pause_us_total"),
		Appended: s.figures["log_appended"], Synced: s.figures["log_synced"],
	}
}

func (m *monitor) sum() *BrokerUse {
	if !m.last.complete {
		return nil
	}
	u := &BrokerUse{
		Source: "STATS", Cores: cores(&m.first, &m.last), RSSAnonMax: m.rssMax,
		GCCycles: grown(&m.first, &m.last, "gc_cycles"), GCPauseUs: grown(&m.first, &m.last, "gc_pause_us_total"),
		GCPauseMax: m.last.figures["gc_pause_us_max"], LogAppended: grown(&m.first, &m.last, "log_appended"),
	}
	switch {
	case m.pid != 0:
		u.Source = fmt.Sprintf("/proc/%d", m.pid)
	case m.last.use == processUse{}:
		u.Source = "none: this system does not tell"
	}
	return u
}

func cores(a, b *brokerSample) float64 {
	took := b.at.Sub(a.at).Seconds()
	if took <= 0 {
		return 0
	}
	return max((b.use.cpu-a.use.cpu).Seconds()/took, 0)
}

func grown(a, b *brokerSample, name string) uint64 {
	if b.figures[name] < a.figures[name] {
		return 0
	}
	return b.figures[name] - a.figures[name]
}
