package bench

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"
)

// Report is what a run found. Its JSON keys are relied on by scripts: keys are added, not renamed.
//
// In JSON the figures of the first lane (Rate), the counters, and the workload's own figures stand at the top level, beside what
// is declared here.
type Report struct {
	Workload string            `json:"workload"`
	Started  time.Time         `json:"started"`
	Machine  Machine           `json:"machine"`
	Flags    map[string]string `json:"flags"` // all, with their values
	Notes    []string          `json:"notes,omitempty"`
	Lanes    []LaneReport      `json:"lanes"`
	Counters map[string]uint64 `json:"counters"`
	Goals    []GoalResult      `json:"goals"`
	Broker   *BrokerUse        `json:"broker,omitempty"` // nil: nothing is known of its process
	Series   []Point           `json:"series"`

	order  []string // of the counters, as they were counted
	always []Goal   // that the workload has, whoever asks
	extra  map[string]any
}

// LaneReport is what a lane adds up to.
type LaneReport struct {
	Name string `json:"lane"`
	Main bool   `json:"main"`
	Rate
	Percentiles []Percentile `json:"percentiles"`
}

// Percentile is a share of all, in percent, and the latency that it does not pass.
type Percentile struct {
	P  float64 `json:"p"`
	Us float64 `json:"us"`
}

func newReport(workload, version string, f *Flags) *Report {
	r := &Report{
		Workload: workload, Started: time.Now().UTC().Truncate(time.Millisecond), Machine: thisMachine(f.Settings.Dir, version),
		Flags: f.All(), Lanes: []LaneReport{}, Counters: map[string]uint64{}, Goals: []GoalResult{}, Series: []Point{},
		extra: map[string]any{},
	}
	s := &f.Settings
	for key, v := range map[string]any{
		"size": s.Size, "batch": s.Batch, "producers": s.Producers, "consumers": s.Consumers, "window": s.Window,
	} {
		if _, ok := r.Flags[key]; ok {
			r.extra[key] = v
		}
	}
	if s.Embedded {
		r.extra["fsync"], r.extra["io"] = s.Fsync, s.IO
	}
	return r
}

func (r *Report) count(name string, n uint64) {
	if _, ok := r.Counters[name]; !ok {
		r.order = append(r.order, name)
	}
	r.Counters[name] = n
}

func (r *Report) addLane(l *Lane) {
	r.Lanes = append(r.Lanes, LaneReport{Name: l.name, Main: l.main, Rate: l.rate(), Percentiles: l.percentiles()})
}

// Messages is how many messages the lanes have counted.
func (r *Report) Messages() (n uint64) {
	for _, l := range r.Lanes {
		n += l.Messages
	}
	return n
}

// MarshalJSON writes what is declared, and behind it what stands at the top level, too.
func (r *Report) MarshalJSON() ([]byte, error) {
	type declared Report
	b, err := json.Marshal((*declared)(r))
	if err != nil {
		return nil, err
	}
	flat := map[string]any{}
	if len(r.Lanes) > 0 {
		rate, err := json.Marshal(r.Lanes[0].Rate)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(rate, &flat); err != nil {
			return nil, err
		}
	}
	for name, n := range r.Counters {
		flat[name] = n
	}
	for key, v := range r.extra {
		flat[key] = v
	}
	more, err := json.Marshal(flat)
	if err != nil || len(flat) == 0 {
		return b, err
	}
	return slices.Concat(bytes.TrimSuffix(b, []byte("}")), []byte(","), bytes.TrimPrefix(more, []byte("{"))), nil
}
