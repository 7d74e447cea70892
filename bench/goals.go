package bench

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Goal is a bound for one figure of a report: "p99<=1ms", "send.rate>=350000", "renewals>=1".
//
//	goal   = [ lane "." ] metric ( "<=" | ">=" ) bound
//	metric = "rate" | "mb_per_s" | "p50" | "p90" | "p99" | "p99.9" | "max" | "messages" | "errors" | a counter's name
//
// A latency's bound is a duration, any other a number. Without a lane it is a goal of each lane that the workload is about.
type Goal struct {
	Lane   string // "": each main lane, or a counter
	Metric string
	Most   bool    // the figure may be at most Bound, else at least
	Bound  float64 // of a latency in us
}

// GoalResult is a goal and what became of it.
type GoalResult struct {
	Goal     string  `json:"goal"` // as it was written, with its lane
	Bound    float64 `json:"bound"`
	Measured float64 `json:"measured"` // in the unit of Bound: us for latencies
	Met      bool    `json:"met"`
	Unknown  bool    `json:"unknown,omitempty"` // the report has no such figure, so it is not met
}

// latencies are the metrics whose bound is a duration.
var latencies = map[string]func(*Rate) float64{
	"p50":   func(r *Rate) float64 { return r.P50 },
	"p90":   func(r *Rate) float64 { return r.P90 },
	"p99":   func(r *Rate) float64 { return r.P99 },
	"p99.9": func(r *Rate) float64 { return r.P999 },
	"max":   func(r *Rate) float64 { return r.Max },
}

var numbers = map[string]func(*Rate) float64{
	"rate":     func(r *Rate) float64 { return r.MessagesPerS },
	"mb_per_s": func(r *Rate) float64 { return r.MBPerS },
	"messages": func(r *Rate) float64 { return float64(r.Messages) },
	"errors":   func(r *Rate) float64 { return float64(r.Errors) },
}

// ParseGoal reads a goal.
func ParseGoal(s string) (g Goal, err error) {
	name, bound, found := strings.Cut(s, "<=")
	if g.Most = found; !found {
		name, bound, found = strings.Cut(s, ">=")
	}
	name, bound = strings.TrimSpace(name), strings.TrimSpace(bound)
	if !found || name == "" || bound == "" {
		return g, fmt.Errorf("goal %q: a figure, <= or >=, and a bound are needed, as in p99<=1ms or send.rate>=350000", s)
	}
	if g.Metric = name; !g.known() { // p99.9 has a point of its own
		if lane, metric, ok := strings.Cut(name, "."); ok {
			g.Lane, g.Metric = lane, metric
		}
	}
	if _, ok := latencies[g.Metric]; ok {
		d, err := time.ParseDuration(bound)
		if err != nil {
			return g, fmt.Errorf("goal %q: the bound of a latency is a duration, as in 1.5ms", s)
		}
		g.Bound = microseconds(d)
		return g, nil
	}
	g.Bound, err = strconv.ParseFloat(bound, 64)
	if err != nil || g.Bound != g.Bound {
		return g, fmt.Errorf("goal %q: the bound of %s is a number", s, g.Metric)
	}
	return g, nil
}

// known tells whether the metric is one of a lane.
func (g *Goal) known() bool { return latencies[g.Metric] != nil || numbers[g.Metric] != nil }

func (g Goal) String() string {
	name := g.Metric
	if g.Lane != "" {
		name = g.Lane + "." + name
	}
	sign := ">="
	if g.Most {
		sign = "<="
	}
	if _, ok := latencies[g.Metric]; ok {
		return name + sign + showUs(g.Bound)
	}
	return name + sign + strconv.FormatFloat(g.Bound, 'f', -1, 64)
}

// judge holds a report against the goals that its workload always has, and others.
func (r *Report) judge(goals []Goal) {
	for _, l := range r.Lanes {
		if l.Main {
			goals = append(goals[:len(goals):len(goals)], Goal{Lane: l.Name, Metric: "errors", Most: true})
		}
	}
	for _, g := range append(goals[:len(goals):len(goals)], r.always...) {
		r.Goals = append(r.Goals, r.results(g)...)
	}
}

// results are those of one goal: one for each lane that it is about.
func (r *Report) results(g Goal) (results []GoalResult) {
	if g.known() {
		for _, l := range r.Lanes {
			if l.Name == g.Lane || g.Lane == "" && l.Main {
				g := g
				g.Lane = l.Name
				figure := numbers[g.Metric]
				if figure == nil {
					figure = latencies[g.Metric]
				}
				results = append(results, g.hold(figure(&l.Rate)))
			}
		}
	} else if n, ok := r.Counters[g.Metric]; ok && g.Lane == "" {
		results = append(results, g.hold(float64(n)))
	}
	if results == nil {
		results = append(results, GoalResult{Goal: g.String(), Bound: g.Bound, Unknown: true})
	}
	return results
}

// hold compares.
func (g Goal) hold(measured float64) GoalResult {
	met := measured >= g.Bound
	if g.Most {
		met = measured <= g.Bound
	}
	return GoalResult{Goal: g.String(), Bound: g.Bound, Measured: measured, Met: met}
}

// Missed says which goals were missed; nil if none was.
func (r *Report) Missed() error {
	var missed []string
	for _, g := range r.Goals {
		switch {
		case g.Unknown:
			missed = append(missed, g.Goal+" (there is no such figure)")
		case !g.Met:
			missed = append(missed, fmt.Sprintf("%s (measured %s)", g.Goal, g.show()))
		}
	}
	if missed == nil {
		return nil
	}
	return fmt.Errorf("goals missed: %s", strings.Join(missed, ", "))
}

// show is the measured figure as people read it.
func (g *GoalResult) show() string {
	if g.Unknown {
		return "-"
	}
	name := strings.FieldsFunc(g.Goal, func(c rune) bool { return c == '<' || c == '>' })[0]
	for metric := range latencies {
		if name == metric || strings.HasSuffix(name, "."+metric) {
			return showUs(g.Measured)
		}
	}
	if g.Measured < 1000 {
		return strconv.FormatFloat(g.Measured, 'g', 4, 64)
	}
	return strconv.FormatFloat(g.Measured, 'f', 0, 64)
}

// showUs shows microseconds with about three digits.
func showUs(us float64) string {
	d := time.Duration(us * float64(time.Microsecond))
	switch {
	case d >= 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		d = d.Round(100 * time.Microsecond)
	case d >= time.Millisecond:
		d = d.Round(10 * time.Microsecond)
	case d >= 10*time.Microsecond:
		d = d.Round(100 * time.Nanosecond)
	}
	return d.String()
}
