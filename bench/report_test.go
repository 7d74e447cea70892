package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sampleReport has something of everything, and text that a page must escape.
func sampleReport() *Report {
	rate := Rate{
		MessagesPerS: 1000, MBPerS: 1.024, P50: 100, P90: 200, P99: 1500, P999: 2500, Max: 12_345_678,
		Messages: 5000, Seconds: 5, Answered: 1100, FlushSeconds: 0.4,
	}
	r := &Report{
		Workload: "mixed", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine: Machine{CPU: "Sample <CPU>", Cores: 2, MemoryBytes: 24 << 30, OS: "linux/amd64", Kernel: "Linux 6", Filesystem: "ext4", Go: "go1", Commit: "abc", Version: "devel"},
		Flags:   map[string]string{"size": "1024", "topic": "</script><script>alert(1)</script>"},
		Notes:   []string{"a note with <b>markup</b> & more"},
		Lanes: []LaneReport{
			{Name: "send", Main: true, Rate: rate, Percentiles: []Percentile{{50, 100}, {99, 1500}}},
			{Name: "pop_ack", Main: true, Rate: Rate{MessagesPerS: 900, Messages: 4500, Seconds: 5}, Percentiles: []Percentile{{50, 0}}},
		},
		Broker: &BrokerUse{Source: "STATS", Cores: 0.5, RSSAnonMax: 30e6, GCCycles: 2, GCPauseUs: 150, GCPauseMax: 90, LogAppended: 6e6},
		Series: []Point{
			{At: 1, Warm: true, Lanes: map[string]LanePoint{"send": {MessagesPerS: 900}, "pop_ack": {}}},
			{At: 2, Lanes: map[string]LanePoint{"send": {1000, 100, 1500, 2000}, "pop_ack": {900, 1, 2, 3}},
				Broker: &BrokerPoint{Cores: 0.5, RSSAnon: 30e6, GCCycles: 1, GCPauseUs: 75, Appended: 6e6, Synced: 5e6}},
		},
		Counters: map[string]uint64{}, extra: map[string]any{"size": 1024, "fsync": "interval"},
	}
	r.count("redelivered", 1)
	r.count("lost", 0)
	r.always = []Goal{{Metric: "lost", Most: true}}
	r.judge([]Goal{{Metric: "p99", Most: true, Bound: 1000}})
	return r
}

// The JSON is relied on by scripts: a change of it shows here.
func TestReportAsJSON(t *testing.T) {
	line, err := json.Marshal(sampleReport())
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := json.Indent(&got, line, "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	const golden = "testdata/report.json"
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("it is not %s (go test -update writes it anew), but\n%s", golden, got.String())
	}
	// No key is there twice at the top. (The indented form has those at two blanks.)
	seen := map[string]bool{}
	for _, key := range regexp.MustCompile(`(?m)^  "([^"]+)":`).FindAllStringSubmatch(got.String(), -1) {
		if seen[key[1]] {
			t.Errorf("%s is there twice", key[1])
		}
		seen[key[1]] = true
	}
	if !seen["msgs_per_s"] || !seen["series"] || !seen["lost"] {
		t.Errorf("keys are %v", seen)
	}
}

func TestReportAsText(t *testing.T) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	sampleReport().Text(w)
	w.Flush()
	for _, part := range []string{"send ", "pop_ack ", "12.3s", "the last flush took 400 ms more", "redelivered  1", "note: a note", "MISSED", "lost<=0", "ext4", "commit abc", "mixed --size=1024 --topic=</script>"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("%q is missing in\n%s", part, b.String())
		}
	}
}

// The page is well formed, loads nothing, and shows text as text.
func TestReportAsPage(t *testing.T) {
	var b bytes.Buffer
	if err := sampleReport().HTML(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	markup := regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(text, "")
	if found := regexp.MustCompile(`(?i)\b(src|href|action|data)\s*=|<(link|iframe|object|embed|img)\b`).FindString(markup); found != "" {
		t.Errorf("the page has %q", found)
	}
	if found := regexp.MustCompile(`(?i)url\(|@import|\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts)\b`).FindString(text); found != "" {
		t.Errorf("the page has %q", found)
	}
	for _, address := range regexp.MustCompile(`https?://[^\s"')]*`).FindAllString(text, -1) {
		if address != "https://github.com/leeoniya/uPlot" { // in the comment on uPlot's first line
			t.Errorf("the page names %s", address)
		}
	}
	if strings.Contains(text, "<script>alert") || strings.Contains(text, "<b>markup") || strings.Contains(text, "<CPU>") {
		t.Error("text of the report is markup of the page")
	}
	if n := strings.Count(text, "</script>"); n != 3 {
		t.Errorf("%d scripts end in the page", n)
	}
	// encoding/xml reads HTML that closes what it opens; styles are not XML.
	d := xml.NewDecoder(strings.NewReader(regexp.MustCompile(`(?s)<style>.*?</style>`).ReplaceAllString(markup, "")))
	d.Entity = xml.HTMLEntity
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	// A report of which an error has cut short everything is a page, too.
	if err := (&Report{Workload: "send"}).HTML(io.Discard); err != nil {
		t.Error(err)
	}
}

func TestTopicsAreShared(t *testing.T) {
	s := Settings{Topic: "t", Topics: 5}
	for workers, each := range map[int]int{3: 1, 10: 2} {
		count := map[string]int{}
		for i := range workers {
			for _, topic := range shareOf(s.topics(), i, workers) {
				count[topic]++
			}
		}
		if len(count) != 5 || count["t"] != each || count["t-5"] != each {
			t.Errorf("of %d workers topics have %v", workers, count)
		}
	}
}
