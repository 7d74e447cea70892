package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// writeProgress writes one line about a sample.
func writeProgress(w io.Writer, lanes []*Lane, p *Point) {
	var line strings.Builder
	fmt.Fprintf(&line, "%6.1f s", p.At)
	if p.Warm {
		line.WriteString(" warm-up")
	}
	for _, l := range lanes {
		x := p.Lanes[l.name]
		fmt.Fprintf(&line, "  %s %.0f/s", l.name, x.MessagesPerS)
		if x.P99 > 0 {
			fmt.Fprintf(&line, " p50 %s p99 %s", showUs(x.P50), showUs(x.P99))
		}
	}
	if b := p.Broker; b != nil {
		fmt.Fprintf(&line, "  broker %.2f cores %.0f MB", b.Cores, float64(b.RSSAnon)/1e6)
	}
	fmt.Fprintln(w, line.String())
}

// Text writes the report as people read it. Cells are separated by tabs, for a tabwriter.
func (r *Report) Text(w io.Writer) {
	if len(r.Lanes) > 0 {
		fmt.Fprintln(w, "lane\tmessages/s\tMB/s\tp50\tp90\tp99\tp99.9\tmax\tmessages\terrors")
		for _, l := range r.Lanes {
			fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n", l.Name, l.MessagesPerS, l.MBPerS,
				showUs(l.P50), showUs(l.P90), showUs(l.P99), showUs(l.P999), showUs(l.Max), l.Messages, l.Errors)
			if l.Answered > 0 {
				fmt.Fprintf(w, "  answered\t%.0f\t\t\t\t\t\t\tthe last flush took %.0f ms more\t\n", l.Answered, 1e3*l.FlushSeconds)
			}
		}
	}
	section(w, r.order, func(name string) { fmt.Fprintf(w, "%s\t%d\n", strings.ReplaceAll(name, "_", " "), r.Counters[name]) })
	if parts, ok := r.extra["ceiling"].([]CeilingPart); ok {
		ceilingText(w, parts)
	}
	if b := r.Broker; b != nil {
		fmt.Fprintln(w)
		fmt.Fprintf(w, "broker\t%.2f cores, %.0f MB at most (%s)\n", b.Cores, float64(b.RSSAnonMax)/1e6, b.Source)
		fmt.Fprintf(w, "its collections\t%d, pauses of %s in all, %s at most since its start\n", b.GCCycles, showUs(float64(b.GCPauseUs)), showUs(float64(b.GCPauseMax)))
	}
	section(w, r.Notes, func(note string) { fmt.Fprintf(w, "note: %s\n", note) })
	if len(r.Goals) > 0 {
		fmt.Fprintln(w)
		fmt.Fprintln(w, "goal\tmeasured\t")
		for _, g := range r.Goals {
			verdict := "met"
			if !g.Met {
				verdict = "MISSED"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", g.Goal, g.show(), verdict)
		}
	}
	r.originText(w)
}

// originText tells where the figures are from.
func (r *Report) originText(w io.Writer) {
	m := &r.Machine
	fmt.Fprintf(w, "\n%s, %d cores, %.0f GiB; %s; %s; %s; leasemq %s, commit %s\n", cmp.Or(m.CPU, m.OS), m.Cores, float64(m.MemoryBytes)/(1<<30),
		cmp.Or(m.Kernel, m.OS), cmp.Or(m.Filesystem, "unknown file system"), m.Go, m.Version, cmp.Or(m.Commit, "unknown"))
	var flags strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.Flags)) {
		if v := r.Flags[name]; v != "" {
			fmt.Fprintf(&flags, " --%s=%s", name, v)
		}
	}
	fmt.Fprintf(w, "%s%s\n", r.Workload, flags.String())
}

// section writes lines behind an empty one, if there are any.
func section[T any](w io.Writer, of []T, line func(T)) {
	if len(of) > 0 {
		fmt.Fprintln(w)
	}
	for _, x := range of {
		line(x)
	}
}
