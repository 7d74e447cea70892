package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/leasemq/leasemq/bench"
)

// The keys are relied on by scripts.
var rateKeys = []string{"msgs_per_s", "mb_per_s", "p50_us", "p99_us"}

func checkRate(t *testing.T, r result, messages float64) map[string]any {
	t.Helper()
	if r.code != exitOK {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	report := object(t, r.stdout)
	for _, key := range rateKeys {
		if v, _ := report[key].(float64); v <= 0 {
			t.Errorf("%s is %v", key, report[key])
		}
	}
	if report["errors"] != 0.0 {
		t.Errorf("errors are %v", report["errors"])
	}
	if n, _ := report["messages"].(float64); messages > 0 && n != messages || n <= 0 {
		t.Errorf("messages are %v, not %v", n, messages)
	}
	return report
}

// checkHeartbeats looks whether heartbeats were measured beside the load.
func checkHeartbeats(t *testing.T, report map[string]any) {
	t.Helper()
	for _, lane := range report["lanes"].([]any) {
		if l := lane.(map[string]any); l["lane"] == "heartbeat" {
			if l["messages"].(float64) < 1 || l["max_us"].(float64) <= 0 || l["errors"] != 0.0 || l["main"] != false {
				t.Errorf("heartbeats: %v", l)
			}
			return
		}
	}
	t.Errorf("there are no heartbeats in %v", report["lanes"])
}

// Every workload says what it is, has flags that are there, and only those against a broker can be embedded.
func TestBenchWorkloads(t *testing.T) {
	names := map[string]bool{}
	for _, w := range bench.Workloads() {
		about := w.About()
		if about.Name == "" || about.Short == "" || about.Long == "" || names[about.Name] {
			t.Errorf("workload %+v", about)
		}
		names[about.Name] = true
		f := benchFlags{pflag.NewFlagSet(about.Name, pflag.ContinueOnError)}
		w.Flags(&bench.Flags{FlagSet: f, Settings: bench.DefaultSettings()})
		if about.Alone != (f.Lookup("embedded") == nil) {
			t.Errorf("%s: alone is %t", about.Name, about.Alone)
		}
	}
}

func TestBenchSend(t *testing.T) {
	dir := t.TempDir()
	r := leasemq(t, nil, strings.Fields("bench send --embedded --io staged --size 256 --batch 16 --producers 2 --window 2 --duration 500ms --fsync interval -o json --dir "+dir)...)
	report := checkRate(t, r, 0)
	if report["workload"] != "send" || report["fsync"] != "interval" || report["size"] != 256.0 {
		t.Errorf("the report is %v", report)
	}
	// The last flush counts, and what the broker took is known.
	if all, answered := report["msgs_per_s"].(float64), report["answered_msgs_per_s"].(float64); all > answered {
		t.Errorf("%v/s with the last flush, %v/s without", all, answered)
	}
	if broker, _ := report["broker"].(map[string]any); runtime.GOOS == "linux" && (broker["rss_anon_max"] == 0.0 || broker["log_appended"] == 0.0) {
		t.Errorf("of the broker is known: %v", broker)
	}
	if series, _ := report["series"].([]any); len(series) == 0 {
		t.Error("there is no series")
	}
	checkHeartbeats(t, report)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// At a rate as many are sent as are due, whatever the batch and the topics are; the page is written.
func TestBenchSendAtARate(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	page := filepath.Join(t.TempDir(), "report.html")
	r := at(t, b, "", strings.Fields("bench send --rate 2000 --batch 7 --topics 3 --producers 2 --window 2 --size 128 --compression zstd --duration 350ms --check --progress -o json --html "+page)...)
	report := checkRate(t, r, 0)
	if n, took := report["messages"].(float64), report["seconds"].(float64); n != 700 || took < 0.35 {
		t.Errorf("%v messages were sent in %v s", n, took)
	}
	if flags := report["flags"].(map[string]any); flags["topics"] != "3" || flags["rate"] != "2000" {
		t.Errorf("flags are %v", flags)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "leasemq bench send") {
		t.Errorf("the page: %v", err)
	}
	for _, topic := range []string{"bench", "bench-2", "bench-3"} {
		if topics := at(t, b, "", "topic", "list", "-o", "json").stdout; !strings.Contains(topics, `"`+topic+`"`) {
			t.Errorf("topic %s is missing in %s", topic, topics)
		}
	}
	for _, wrong := range []string{"--goal p99<=1", "--goal x", "--window 0", "--topics 0", "--rate -1"} {
		if r := leasemq(t, nil, append(strings.Fields("bench send --duration 10ms --addr "+b.Addr), strings.Fields(wrong)...)...); r.code != exitUsage {
			t.Errorf("%s: exit code %d, %s", wrong, r.code, r.stderr)
		}
	}
}

func TestBenchConsume(t *testing.T) {
	// 5,003 is no multiple of the batch.
	r := leasemq(t, nil, strings.Fields("bench consume --embedded --io staged --size 100 --batch 16 --consumers 2 --messages 5003 --fsync interval -o json --dir "+t.TempDir())...)
	report := checkRate(t, r, 5003)
	if report["redelivered"] != 0.0 {
		t.Errorf("redelivered are %v", report["redelivered"])
	}
}

// Against a broker that runs already, a bench counts only its own messages and leaves no group behind.
func TestBenchBesideOtherMessages(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "not for the bench\n", "send", "--topic", "bench")
	for range 2 {
		checkRate(t, at(t, b, "", strings.Fields("bench consume --topics 3 --size 100 --batch 8 --consumers 2 --messages 1000 -o json")...), 1000)
	}
	for _, batch := range []string{"0", "16"} {
		checkRate(t, at(t, b, "", strings.Fields("bench work --size 100 --consumers 2 --workers 4 --prefetch 8 --messages 1000 -o json --batch "+batch)...), 1000)
	}
	if groups := at(t, b, "", "group", "list", "-o", "json").stdout; groups != "[]\n" {
		t.Errorf("groups are left: %s", groups)
	}
}

// The time may be over before the messages are. (Under always there may be nothing until then: even REGISTER waits for a flush.)
func TestBenchEndsByTime(t *testing.T) {
	for _, load := range []string{"consume --batch 1 --window 1", "work --workers 4 --prefetch 8"} {
		r := leasemq(t, nil, strings.Fields("bench "+load+" --embedded --io staged --fsync interval --size 100 --consumers 2 --messages 200000 --duration 500ms --check -o json --dir "+t.TempDir())...)
		if n, _ := checkRate(t, r, 0)["messages"].(float64); n >= 200_000 {
			t.Errorf("%s: all messages were taken in 500 ms", load)
		}
	}
}

// Sent at a rate: all of it comes, once, and a second run beside the first one's messages counts its own.
func TestBenchEndToEnd(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	for range 2 {
		r := at(t, b, "", strings.Fields("bench e2e --rate 2000 --duration 300ms --warm-up 50ms --size 100 --check -o json")...)
		report := checkRate(t, r, 600)
		for key, want := range map[string]float64{"sent": 700, "settled": 700, "redelivered": 0, "lost": 0, "settled_twice": 0, "corrupt": 0} {
			if report[key] != want {
				t.Errorf("%s is %v", key, report[key])
			}
		}
	}
	r := leasemq(t, nil, strings.Fields("bench e2e --rate 1000 --duration 100ms --warm-up 0s --size 100 --check --goal p99<=1us --goal rate>=1e9 --goal sent>=1 --addr "+b.Addr)...)
	if r.code != exitError || !strings.Contains(r.stderr, "send_to_handler.rate>=1000000000") || !strings.Contains(r.stderr, "send_to_handler.p99<=1µs") || strings.Contains(r.stderr, "sent>=1") {
		t.Errorf("goals that nobody reaches: exit code %d, %s", r.code, r.stderr)
	}
}

func TestBenchMixed(t *testing.T) {
	r := leasemq(t, nil, strings.Fields("bench mixed --embedded --io staged --size 256 --batch 16 --producers 2 --consumers 2 --warm-up 50ms --duration 1s --fsync interval --check -o json --dir "+t.TempDir())...)
	if r.code != exitOK {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	report := object(t, r.stdout)
	checkHeartbeats(t, report)
	if report["out_of_count"] != 0.0 {
		t.Errorf("out of count are %v", report["out_of_count"])
	}
	for _, half := range []string{"send", "consume"} {
		rate, _ := report[half].(map[string]any)
		if n, _ := rate["messages"].(float64); n <= 0 || rate["errors"] != 0.0 {
			t.Errorf("%s: %v", half, rate)
		}
		if _, flushed := rate["answered_msgs_per_s"]; flushed != (half == "send") {
			t.Errorf("%s: that the last flush counts is %t", half, flushed)
		}
	}
}

// Jobs of a scenario outlast their leases by far, are renewed, and run again only where a lease was lost: one of 60 ms is, when
// the flush that its renewal waits for takes longer.
func TestBenchScenario(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	r := at(t, b, "", strings.Fields("bench mixed --scenario recon --scale 0.002 --duration 2s --warm-up 0s --check -o json")...)
	report := checkRate(t, r, 4)
	if n, _ := report["renewals"].(float64); report["scenario"] != "recon" || n < 1 {
		t.Errorf("the report is %v", report)
	}
	if again, lost := report["duplicates_handled"].(float64), report["leases_lost"].(float64); again > lost {
		t.Errorf("%v jobs ran again, %v leases were lost", again, lost)
	}
	if flags := report["flags"].(map[string]any); flags["rate"] != "2" || flags["queues"] != "4" || report["size"] != 1024.0 {
		t.Errorf("the settings of the scenario are not those of the report: %v", flags)
	}
	for _, wrong := range []string{"--scenario recon --scale 0", "--scenario recon --batch 7", "--scenario recon --window 1", "--scale 0.5"} {
		if r := leasemq(t, nil, strings.Fields("bench mixed --addr "+b.Addr+" "+wrong)...); r.code != exitUsage {
			t.Errorf("%s: exit code %d, %s", wrong, r.code, r.stderr)
		}
	}
}

// The backlog is read while others send.
func TestBenchCold(t *testing.T) {
	args := "bench cold --io staged --size 256 --batch 16 --producers 2 --consumers 2 --backlog 4MiB --duration 200ms --check -o json --dir "
	report := checkRate(t, leasemq(t, nil, strings.Fields(args+t.TempDir())...), 0)
	checkHeartbeats(t, report)
	if kept, _ := report["sends_kept_percent"].(float64); kept <= 0 {
		t.Errorf("sends kept: %v", report["sends_kept_percent"])
	}
	done := map[string]bool{}
	for _, lane := range report["lanes"].([]any) {
		l := lane.(map[string]any)
		done[l["lane"].(string)] = l["messages"].(float64) > 0
	}
	if !done["pop_ack"] || !done["alone"] || !done["send"] || !done["alone again"] {
		t.Errorf("lanes with messages: %v", done)
	}
}

// Leases that a run is to be beside are held by sessions that are live.
func TestBenchBesideLeases(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	report := checkRate(t, at(t, b, "", strings.Fields("bench send --leases 5000 --size 100 --duration 200ms --check -o json")...), 0)
	if report["leases_held"] != 5000.0 {
		t.Errorf("held were %v", report["leases_held"])
	}
}

// The echo in the ceiling is a process of its own; every part has its rounds.
func TestBenchCeiling(t *testing.T) {
	dir := t.TempDir()
	r := leasemq(t, nil, strings.Fields("bench ceiling --io staged --size 256 --batch 16 --producers 2 --window 2 --duration 300ms --rounds 2 --check -o json --dir "+dir)...)
	report := checkRate(t, r, 0)
	parts := map[string]bool{}
	for _, p := range report["ceiling"].([]any) {
		part := p.(map[string]any)
		if len(part["rounds_msgs_per_s"].([]any)) != 2 || part["median_msgs_per_s"].(float64) <= 0 || part["share"].(float64) <= 0 {
			t.Errorf("part %v", part)
		}
		parts[part["part"].(string)] = true
	}
	for _, name := range []string{"echo", "copy", "flush", "send", "send, answered", "limit of a burst", "limit, sustained"} {
		if !parts[name] {
			t.Errorf("there is no part %q in %v", name, parts)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestBenchDisk(t *testing.T) {
	checkRate(t, leasemq(t, nil, "bench", "disk", "--duration", "300ms", "-o", "json", "--dir", t.TempDir()), 0)
}

func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	r := leasemq(t, nil, "demo", "--act", "crash", "--duration", "2s", "--io", "staged", "-o", "json")
	if r.code != exitOK {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	report := object(t, r.stdout)
	for _, key := range []string{"lost", "redelivered_acked", "same_token_twice", "refused_delivered", "damaged"} {
		if report[key] != 0.0 {
			t.Errorf("%s is %v", key, report[key])
		}
	}
	for _, key := range []string{"acknowledged", "delivered", "acked", "msgs_per_s", "p50_us", "p99_us", "outage_s"} {
		if v, _ := report[key].(float64); v <= 0 {
			t.Errorf("%s is %v", key, report[key])
		}
	}
	if !strings.Contains(r.stderr, "kill -9") {
		t.Errorf("no word of the kill: %s", r.stderr)
	}
}

func TestDemoWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	// The exit code also tells of times, which on a busy machine are the machine's.
	r := leasemq(t, nil, "demo", "--act", "workers", "--io", "staged", "-o", "json")
	if r.code != exitOK && !strings.Contains(r.stderr, errBrokenPromise.Error()) {
		t.Fatalf("exit code %d: %s\n%s", r.code, r.stderr, r.stdout)
	}
	report := object(t, r.stdout)
	for _, key := range []string{"lost", "settled_twice", "frozen_late_acks_taken"} {
		if report[key] != 0.0 {
			t.Errorf("%s is %v", key, report[key])
		}
	}
	for _, key := range []string{"frozen_cancelled", "frozen_refused"} {
		if report[key] == 0.0 {
			t.Errorf("%s is %v", key, report[key])
		}
	}
	for _, key := range []string{"killed", "frozen", "left"} {
		if jobs := report[key].(map[string]any)["jobs"]; jobs.(float64) < 1 {
			t.Errorf("%s in the middle of %v jobs", key, jobs)
		}
	}
}

// The table of the workers says in words what the exit code says.
func TestWorkersTableMarksWhatMustNotBe(t *testing.T) {
	good := bench.HandoverReport{
		Killed: bench.Handed{Jobs: 1, LastMs: 10, BoundMs: 10}, Frozen: bench.Handed{Jobs: 1, LastMs: 10, BoundMs: 10},
		Left: bench.Handed{Jobs: 1, LastMs: 10, BoundMs: 10}, Cancelled: 1, Refused: 1,
	}
	for name, change := range map[string]func(*bench.HandoverReport){
		"":                 func(*bench.HandoverReport) {},
		"killed: too late": func(r *bench.HandoverReport) { r.Killed.LastMs = 11 },
		"frozen: no jobs":  func(r *bench.HandoverReport) { r.Frozen.Jobs = 0 },
		"left: too late":   func(r *bench.HandoverReport) { r.Left.LastMs = 11 },
		"not cancelled":    func(r *bench.HandoverReport) { r.Cancelled = 0 },
		"not refused":      func(r *bench.HandoverReport) { r.Refused = 0 },
		"late ack taken":   func(r *bench.HandoverReport) { r.LateTaken = 1 },
		"lost":             func(r *bench.HandoverReport) { r.Lost = 1 },
		"twice":            func(r *bench.HandoverReport) { r.Twice = 1 },
	} {
		report := good
		change(&report)
		var b strings.Builder
		workersTable(&b, &report)
		want := 0
		if name != "" {
			want = 1
		}
		if n := strings.Count(b.String(), "MUST NOT BE"); n != want || report.Broken() != (want == 1) {
			t.Errorf("%s: %d figures are marked, broken %t, in\n%s", name, n, report.Broken(), b.String())
		}
	}
}

// The table says in words what the exit code says.
func TestDemoTableMarksWhatMustBeZero(t *testing.T) {
	var b strings.Builder
	report := brokenReport()
	crashTable(&b, &report)
	if n := strings.Count(b.String(), "MUST BE ZERO"); n != 2 {
		t.Errorf("%d figures are marked in\n%s", n, b.String())
	}
}

func brokenReport() bench.CrashReport {
	return bench.CrashReport{Verdict: bench.Verdict{Acknowledged: 10, Delivered: 9, Acked: 9, Lost: 1, AfterAck: 1}}
}
