package inspect

import (
	"fmt"
	"strings"

	"github.com/leasemq/leasemq/mmaplog"
)

// Finding is one thing that Verify saw, and where.
type Finding struct {
	What     string `json:"what"`
	File     string `json:"file,omitempty"`
	Offset   int64  `json:"offset"`             // in File
	Position uint64 `json:"position,omitempty"` // in the log; 0: it is about none
}

func (f Finding) String() string {
	var b strings.Builder
	if f.File != "" {
		fmt.Fprintf(&b, "%s, byte %d", f.File, f.Offset)
		if f.Position != 0 {
			fmt.Fprintf(&b, " (position %d)", f.Position)
		}
		b.WriteString(": ")
	}
	b.WriteString(f.What)
	return b.String()
}

// mostFindings is how many findings, and how many notes, a report lists. The rest is counted.
const mostFindings = 1000

// Report is what Verify found and counted.
type Report struct {
	Dir             string    `json:"dir"`
	Good            bool      `json:"good"` // there is no finding
	Findings        []Finding `json:"findings"`
	Notes           []Finding `json:"notes"`
	FindingsLeftOff int       `json:"findings_left_off,omitempty"`
	NotesLeftOff    int       `json:"notes_left_off,omitempty"`

	Segments      int              `json:"segments"`
	SegmentBytes  int64            `json:"segment_bytes"`
	First         uint64           `json:"first"` // position of the first record; 0: there is no segment
	End           uint64           `json:"end"`   // position behind the last good one
	HowItEnds     string           `json:"how_it_ends"`
	Records       int64            `json:"records"`
	RecordsByType map[string]int64 `json:"records_by_type"`
	Bytes         int64            `json:"bytes"`    // of the records
	Messages      uint64           `json:"messages"` // in the queues now
	Topics        int              `json:"topics"`
	Queues        int              `json:"queues"`
	IndexEntries  uint64           `json:"index_entries"` // that were compared
	Snapshots     []SnapshotInfo   `json:"snapshots"`     // newest first
	Aside         []string         `json:"aside"`         // files that were moved aside, of segments and snapshots
}

// SnapshotInfo is one snapshot.
type SnapshotInfo struct {
	Position uint64 `json:"position"`
	Path     string `json:"path"`
	Rows     uint64 `json:"rows"`
	Good     bool   `json:"good"` // all of it can be read, and it fits the log
}

func newReport(dir string) *Report {
	return &Report{Dir: dir, Findings: []Finding{}, Notes: []Finding{}, RecordsByType: map[string]int64{}, Snapshots: []SnapshotInfo{}, Aside: []string{}}
}

// full tells that another finding would only be counted: nothing need be read for its words.
func (r *Report) full() bool { return len(r.Findings) >= mostFindings }

func (r *Report) find(f Finding) {
	if r.full() {
		r.FindingsLeftOff++
		return
	}
	r.Findings = append(r.Findings, f)
}

func (r *Report) note(f Finding) {
	if len(r.Notes) >= mostFindings {
		r.NotesLeftOff++
		return
	}
	r.Notes = append(r.Notes, f)
}

// ofDamage is what the log says about damage, as a finding.
func ofDamage(d *mmaplog.DamageError, t *mmaplog.Tail) Finding {
	what := "the log is damaged: " + d.What
	if d.Promise != 0 {
		who := "later record"
		if d.Snapshot {
			who = "snapshot"
		}
		what += fmt.Sprintf("; a %s promises that everything below position %d was durable", who, d.Promise)
	}
	return Finding{What: fmt.Sprintf("%s; %d good records of %d bytes lie behind it", what, t.BehindRecords, t.BehindBytes),
		File: d.File, Offset: d.Offset, Position: d.Position}
}
