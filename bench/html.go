package bench

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
)

// The page loads nothing: uPlot (MIT, html/uplot.LICENSE), the script that draws with it, and the figures are in it.
var (
	//go:embed html/report.html.tmpl
	pageSource string
	//go:embed html/report.css
	pageCSS string
	//go:embed html/report.js
	pageJS string
	//go:embed html/uplot.js
	uplotJS string
	//go:embed html/uplot.css
	uplotCSS string
	//go:embed html/uplot.LICENSE
	uplotLicense string
)

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"us":    showUs,
	"whole": func(f float64) string { return fmt.Sprintf("%.0f", f) },
	"tenth": func(f float64) string { return fmt.Sprintf("%.1f", f) },
	"words": func(s string) string { return strings.ReplaceAll(s, "_", " ") },
	"mb":    func(n uint64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) },
}).Parse(pageSource))

// shownPair is a name and what it has.
type shownPair struct{ Name, Value string }

// shownGoal is a goal as the page shows it.
type shownGoal struct {
	Goal, Measured string
	Met            bool
}

// plotted is what the page's script draws.
type plotted struct {
	Lanes  []LaneReport  `json:"lanes"`
	Series []Point       `json:"series"`
	Rounds []CeilingPart `json:"rounds"`
}

// shownPage is what the page is made of.
type shownPage struct {
	*Report
	Counts  []shownPair
	Machine []shownPair
	Set     []shownPair // flags
	Held    []shownGoal
	Ceiling []CeilingPart
	Plotted plotted

	UplotJS, PageJS   template.JS
	UplotCSS, PageCSS template.CSS
	UplotLicense      string
}

// HTML writes the report as one page with plots.
func (r *Report) HTML(w io.Writer) error {
	m := &r.Machine
	p := shownPage{
		Report: r,
		Machine: []shownPair{
			{"processor", m.CPU}, {"cores", fmt.Sprint(m.Cores)}, {"memory", fmt.Sprintf("%.1f GiB", float64(m.MemoryBytes)/(1<<30))},
			{"system", m.OS}, {"kernel", m.Kernel}, {"file system", m.Filesystem}, {"Go", m.Go}, {"commit", cmp.Or(m.Commit, "unknown")}, {"leasemq", m.Version},
		},
		Plotted: plotted{Lanes: r.Lanes, Series: r.Series},
		UplotJS: template.JS(uplotJS), PageJS: template.JS(pageJS),
		UplotCSS: template.CSS(uplotCSS), PageCSS: template.CSS(pageCSS), UplotLicense: uplotLicense,
	}
	for _, name := range r.order {
		p.Counts = append(p.Counts, shownPair{name, fmt.Sprint(r.Counters[name])})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Flags)) {
		p.Set = append(p.Set, shownPair{name, r.Flags[name]})
	}
	for _, g := range r.Goals {
		p.Held = append(p.Held, shownGoal{g.Goal, g.show(), g.Met})
	}
	p.Ceiling, _ = r.extra["ceiling"].([]CeilingPart)
	for _, part := range p.Ceiling {
		if part.Part != limitBurst && part.Part != limitSustained { // they are copies of others
			p.Plotted.Rounds = append(p.Plotted.Rounds, part)
		}
	}
	if err := page.Execute(w, &p); err != nil {
		return fmt.Errorf("bench: the page of the report: %w", err)
	}
	return nil
}
