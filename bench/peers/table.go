package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// result is what one way of working with one peer has come to in all rounds.
type result struct {
	Work string `json:"work"`
	Peer string `json:"peer"`
	Way  string `json:"way,omitempty"`
	// Durability is when what it answers is on the disk.
	Durability string    `json:"durability"`
	Rounds     []figures `json:"rounds"`
	Skipped    string    `json:"skipped,omitempty"`
}

// report is everything that is printed.
type report struct {
	Machine  machine           `json:"machine"`
	Flags    map[string]string `json:"flags"`
	Versions map[string]string `json:"versions"`
	Skipped  map[string]string `json:"skipped,omitempty"`
	Results  []*result         `json:"results"`
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// title names it in a table.
func (r *result) title() string { return strings.TrimSuffix(r.Peer+", "+r.Way, ", ") }

// of is the median of one figure over the rounds, and its extremes.
func (r *result) of(figure func(*figures) float64) (middle, least, most float64) {
	var all []float64
	for i := range r.Rounds {
		all = append(all, figure(&r.Rounds[i]))
	}
	if len(all) == 0 {
		return 0, 0, 0
	}
	return median(all), slices.Min(all), slices.Max(all)
}

// column is a figure that is printed.
type column struct {
	title  string
	unit   string
	figure func(*figures) float64
	less   bool // the smaller one is the better one
}

// columns are the figures of a workload, in the order in which they are printed.
func columns(w workload) []column {
	sent := column{"sent", "/s", func(f *figures) float64 { return f.Sent }, false}
	taken := column{"taken and acked", "/s", func(f *figures) float64 { return f.Taken }, false}
	p50 := column{"p50", " us", func(f *figures) float64 { return f.P50 }, true}
	p99 := column{"p99", " us", func(f *figures) float64 { return f.P99 }, true}
	p999 := column{"p99.9", " us", func(f *figures) float64 { return f.P999 }, true}
	switch {
	case w.rate > 0:
		return []column{p50, p99, p999}
	case w.single:
		return []column{p50, p99}
	case w.sends && w.takes:
		return []column{sent, taken}
	case w.takes:
		return []column{taken}
	}
	return []column{sent}
}

// ratio is how many times better ours is.
func (c *column) ratio(ours, theirs float64) string {
	if c.less {
		ours, theirs = theirs, ours
	}
	if theirs == 0 || ours == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f x", ours/theirs)
}

// rows are the cells of a workload's table, the heading first.
func rows(w workload, results []*result, ours string) [][]string {
	cols := columns(w)
	head := []string{"peer", "on the disk"}
	for _, c := range cols {
		head = append(head, c.title, "least - most", "leasemq is")
	}
	table := [][]string{head}
	mine := make([]float64, len(cols))
	for _, r := range results {
		if r.Work == w.id && r.Peer == ours {
			for i, c := range cols {
				mine[i], _, _ = r.of(c.figure)
			}
		}
	}
	for _, r := range results {
		if r.Work != w.id {
			continue
		}
		cells := []string{r.title(), r.Durability}
		for i, c := range cols {
			if r.Skipped != "" {
				cells = append(cells, "skipped", "", "")
				continue
			}
			if len(r.Rounds) == 0 { // an interrupt came before
				cells = append(cells, "not run", "", "")
				continue
			}
			middle, least, most := r.of(c.figure)
			ratio := ""
			if r.Peer != ours {
				ratio = c.ratio(mine[i], middle)
			}
			cells = append(cells, grouped(middle)+c.unit, grouped(least)+" - "+grouped(most), ratio)
		}
		table = append(table, cells)
	}
	return table
}

// grouped is a number without fraction, in groups of three digits.
func grouped(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// text prints the report for people: as aligned columns, or as the tables of a document.
func (r *report) text(w io.Writer, markdown bool) {
	m := r.Machine
	fmt.Fprintf(w, "%s, %d cores, %s of memory; %s; %s; %s; commit %s\n", m.CPU, m.Cores, m.Memory, m.Kernel, m.Filesystem, m.Go, m.Commit)
	for _, name := range sortedKeys(r.Versions) {
		fmt.Fprintf(w, "%s: %s\n", name, r.Versions[name])
	}
	for _, name := range sortedKeys(r.Flags) {
		fmt.Fprintf(w, "--%s=%s ", name, r.Flags[name])
	}
	fmt.Fprintln(w)
	for _, name := range sortedKeys(r.Skipped) {
		fmt.Fprintf(w, "skipped: %s: %s\n", name, r.Skipped[name])
	}
	for _, work := range workloads() {
		table := rows(work, r.Results, ours{}.name())
		if len(table) == 1 {
			continue
		}
		if markdown {
			fmt.Fprintf(w, "\n%s (`--work %s`)\n\n", work.title, work.id)
			writeMarkdown(w, table)
		} else {
			fmt.Fprintf(w, "\n%s: %s\n", work.id, work.title)
			writeColumns(w, table)
		}
		for _, result := range r.Results {
			if result.Work == work.id && result.Skipped != "" {
				fmt.Fprintf(w, "\nskipped: %s: %s\n", result.title(), result.Skipped)
			}
		}
	}
}

func writeColumns(w io.Writer, table [][]string) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range table {
		fmt.Fprintln(tab, strings.Join(cells, "\t"))
	}
	tab.Flush()
}

func writeMarkdown(w io.Writer, table [][]string) {
	for i, cells := range table {
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintf(w, "|%s\n", strings.Repeat("---|", len(cells)))
		}
	}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
