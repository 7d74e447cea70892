package bench

import (
	"strings"
	"testing"
)

func TestGoalsAreRead(t *testing.T) {
	for text, want := range map[string]Goal{
		"rate>=350000":         {Metric: "rate", Bound: 350_000},
		" p99 <= 1.5ms ":       {Metric: "p99", Most: true, Bound: 1500},
		"p99.9<=1s":            {Metric: "p99.9", Most: true, Bound: 1e6},
		"send.rate>=3.5e5":     {Lane: "send", Metric: "rate", Bound: 350_000},
		"pop_ack.p99.9<=100us": {Lane: "pop_ack", Metric: "p99.9", Most: true, Bound: 100},
		"renewals>=1":          {Metric: "renewals", Bound: 1},
	} {
		got, err := ParseGoal(text)
		if err != nil || got != want {
			t.Errorf("%q is read as %+v, %v", text, got, err)
			continue
		}
		if again, err := ParseGoal(got.String()); err != nil || again != got {
			t.Errorf("%q is written as %q, which is read as %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "rate", "rate=1", "rate>1", ">=1", "rate>=", "rate>=fast", "rate>=NaN", "p99<=1", "p99<=x", "send.p50>=7"} {
		if g, err := ParseGoal(text); err == nil {
			t.Errorf("%q is read as %+v", text, g)
		}
	}
}

func judged(t *testing.T, r *Report, texts ...string) *Report {
	t.Helper()
	var goals []Goal
	for _, text := range texts {
		g, err := ParseGoal(text)
		if err != nil {
			t.Fatal(err)
		}
		goals = append(goals, g)
	}
	r.Goals = nil
	r.judge(goals)
	return r
}

func twoLanes() *Report {
	return &Report{
		Lanes: []LaneReport{
			{Name: "send", Main: true, Rate: Rate{MessagesPerS: 1000, P99: 900}},
			{Name: "pop_ack", Main: true, Rate: Rate{MessagesPerS: 500, P99: 1100}},
			{Name: "pop", Rate: Rate{MessagesPerS: 1, P99: 1e9}},
		},
		Counters: map[string]uint64{"renewals": 3, "lost": 0},
		always:   []Goal{{Metric: "lost", Most: true}},
	}
}

// A goal without a lane is one of each main lane; one with a lane is of any; a counter's has none.
func TestGoalsAreHeldAgainstTheReport(t *testing.T) {
	for _, x := range []struct{ goal, missed string }{
		{"rate>=500", ""},
		{"rate>=501", "pop_ack.rate>=501"},
		{"p99<=1ms", "pop_ack.p99<=1ms"},
		{"send.p99<=1ms", ""},
		{"pop.p99<=1ms", "pop.p99<=1ms"},
		{"renewals>=3", ""},
		{"renewals>=4", "renewals>=4"},
		{"nothing<=1", "nothing<=1"},
		{"nowhere.p99<=1ms", "nowhere.p99<=1ms"},
	} {
		r := judged(t, twoLanes(), x.goal)
		var missed []string
		for _, g := range r.Goals {
			if !g.Met {
				missed = append(missed, g.Goal)
			}
		}
		if got := strings.Join(missed, " "); got != x.missed {
			t.Errorf("%s: missed are %q, not %q", x.goal, got, x.missed)
		}
		if err := r.Missed(); (err != nil) != (x.missed != "") {
			t.Errorf("%s: %v", x.goal, err)
		}
	}
}

// Errors and what must be zero are goals, whoever asks.
func TestCorrectnessIsAlwaysAGoal(t *testing.T) {
	if err := judged(t, twoLanes()).Missed(); err != nil {
		t.Errorf("nothing is wrong, but: %v", err)
	}
	r := twoLanes()
	r.Counters["lost"] = 1
	if err := judged(t, r).Missed(); err == nil || !strings.Contains(err.Error(), "lost<=0 (measured 1)") {
		t.Errorf("a lost message: %v", err)
	}
	r = twoLanes()
	r.Lanes[1].Errors = 2
	if err := judged(t, r).Missed(); err == nil || !strings.Contains(err.Error(), "pop_ack.errors<=0 (measured 2)") {
		t.Errorf("errors: %v", err)
	}
}
