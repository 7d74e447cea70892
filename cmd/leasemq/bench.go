package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/bench/echo"
)

// benchOutput says what becomes of a bench's report.
type benchOutput struct {
	goals    []string
	check    bool
	progress bool
	html     string
}

func (o *benchOutput) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.goals, "goal", nil, "a bound for a figure, as in 'rate>=350000', 'send.p99<=1ms' or 'renewals>=1'; may be given more than once")
	flags.BoolVar(&o.check, "check", false, "end with exit code 1 when a goal is missed; that nothing is lost, damaged or out of count always is one")
	flags.BoolVar(&o.progress, "progress", false, "write a line a second to standard error, also when it is no terminal")
	flags.StringVar(&o.html, "html", "", "`FILE` for the report as a page with plots")
}

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure how fast a broker sends and consumes", Args: cobra.NoArgs, RunE: needsSubcommand,
		Long: `Makes load for the broker at --addr or, with --embedded, for one that is started for it, and reports what it took: as a table,
as JSON (-o json), or as a page with plots (--html). docs/BENCHMARKS.md says what each figure means.`,
	}
	for _, w := range bench.Workloads() {
		c.AddCommand(a.benchWorkload(w))
	}
	c.AddCommand(a.benchEcho())
	return c
}

func (a *app) benchWorkload(w bench.Workload) *cobra.Command {
	about := w.About()
	var o benchOutput
	c := &cobra.Command{Use: about.Name, Short: about.Short, Long: about.Long, Args: cobra.NoArgs}
	flags := &bench.Flags{FlagSet: benchFlags{c.Flags()}, Settings: bench.DefaultSettings()}
	w.Flags(flags)
	o.register(c.Flags())
	c.RunE = a.does(func(ctx context.Context, _ []string) error {
		setup := bench.Setup{Addr: a.addr, Version: version(), CopyLoop: echo.Copy}
		for _, text := range o.goals {
			goal, err := bench.ParseGoal(text)
			if err != nil {
				return usageError{err}
			}
			setup.Goals = append(setup.Goals, goal)
		}
		if o.progress || isTerminal(a.stderr) {
			setup.Progress = a.stderr
		}
		switch {
		case about.Alone:
			setup.Addr = ""
		case !flags.Settings.Embedded:
			first, err := a.dial(ctx) // a broker that is just starting is waited for
			if err != nil {
				return err
			}
			first.Close()
		}
		report, err := bench.Execute(ctx, w, flags, setup)
		return a.benched(report, &o, err)
	})
	return c
}

// benched shows a report, also one that an error has cut short.
func (a *app) benched(report *bench.Report, o *benchOutput, err error) error {
	var setting *bench.SettingError
	if errors.As(err, &setting) {
		return usageError{err}
	}
	if report == nil || err != nil && report.Messages() == 0 {
		return err
	}
	err = errors.Join(err, a.print(report, report.Text))
	if o.html != "" {
		err = errors.Join(err, writeHTML(o.html, report))
	}
	if o.check {
		err = errors.Join(err, report.Missed())
	}
	return err
}

func writeHTML(path string, report *bench.Report) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return report.HTML(f)
}

// benchEcho is the child of `bench ceiling`: a front without a broker.
func (a *app) benchEcho() *cobra.Command {
	var o echo.Options
	c := &cobra.Command{
		Use: bench.EchoCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error { return echo.Serve(ctx, o, a.stderr) }),
	}
	c.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:0", "")
	c.Flags().StringVar(&o.Dir, "data", "", "")
	c.Flags().StringVar(&o.IO, "io", "auto", "")
	return c
}

// isTerminal tells whether somebody may be watching what is written to w.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// benchFlags is the command line of a bench.
type benchFlags struct{ *pflag.FlagSet }

var _ bench.FlagSet = benchFlags{}

func (f benchFlags) WordVar(p *string, name string, words []string, usage string) {
	f.Var(&word{p, words}, name, usage)
}

func (f benchFlags) BytesVar(p *int64, name, usage string) { f.Var((*byteSize)(p), name, usage) }

func (f benchFlags) All() map[string]string {
	all := map[string]string{}
	f.VisitAll(func(x *pflag.Flag) {
		list, several := x.Value.(pflag.SliceValue)
		switch {
		case x.Name == "help":
		case several:
			all[x.Name] = strings.Join(list.GetSlice(), ", ")
		default:
			all[x.Name] = x.Value.String()
		}
	})
	return all
}
