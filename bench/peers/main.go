// Command peers measures leasemq against what a user would pick instead, on the same machine and the same work, in turn:
//
//	go run -C bench/peers . --quick
//
// Each run starts the server it measures on a free port of the loopback interface with an empty directory, and ends it. Before each
// run of a peer there is one of leasemq: the ratios compare medians of runs that lay side by side. README.md says how each peer
// is set up, and what cannot be compared.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	quick       bool
	peers, work string
	rounds      int
	seconds     time.Duration
	flushed     time.Duration
	sustained   time.Duration
	warmUp      time.Duration
	laps        int
	lapMiB      int64
	dir, output string
	install     bool
}

func main() {
	if port := os.Getenv(natsEnv); port != "" {
		if err := serveNATS(port); err != nil {
			fmt.Fprintln(os.Stderr, "peers: nats:", err)
			os.Exit(1)
		}
		return
	}
	o := flags()
	debug.SetGCPercent(400) // the load generator shares the processors with what it measures
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// flags reads the command line.
func flags() *options {
	o := new(options)
	flag.BoolVar(&o.quick, "quick", false, "NATS and Redis, two workloads, short runs")
	flag.StringVar(&o.peers, "peers", "", "which, by the beginnings of their names: nats,redis; none: leasemq alone (default: all that can be run)")
	flag.StringVar(&o.work, "work", "", "which workloads: send,consume (default: all)")
	flag.IntVar(&o.rounds, "rounds", 3, "runs of each")
	flag.DurationVar(&o.seconds, "seconds", 10*time.Second, "length of a run")
	flag.DurationVar(&o.flushed, "flushed-seconds", 30*time.Second, "length of a run of which the answers wait for the disk")
	flag.DurationVar(&o.sustained, "sustained-seconds", time.Minute, "length of a run of send-sustained")
	flag.DurationVar(&o.warmUp, "warm-up", 2*time.Minute, "thrown-away work before each run of a server that gets faster as it runs: JVM, BEAM")
	flag.IntVar(&o.laps, "laps", 10, "laps of a run that has laps")
	flag.Int64Var(&o.lapMiB, "lap-mib", 200, "size of a lap in MiB; smaller ones are for trying things out")
	flag.BoolVar(&o.install, "install", false, "on Debian, as root: install what is missing first, without starting it as a service")
	flag.StringVar(&o.dir, "dir", "", "where the servers' directories are made (default: the system's place for temporary files)")
	flag.StringVar(&o.output, "o", "text", "text, markdown or json")
	flag.Parse()
	if o.quick {
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]string{
			"peers": "nats,redis", "work": "send,consume", "rounds": "2", "seconds": "3s", "laps": "3", "lap-mib": "100",
		} {
			if !given[name] {
				flag.Set(name, value)
			}
		}
	}
	return o
}

func measure(ctx context.Context, o *options) (err error) {
	dir, err := os.MkdirTemp(o.dir, "leasemq-peers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	me := ours{program: filepath.Join(dir, "leasemq")}
	if err := build(root, me.program); err != nil {
		return err
	}
	r := &report{
		Machine: thisMachine(root, dir), Skipped: map[string]string{}, Flags: map[string]string{},
		Versions: map[string]string{me.name(): me.version()},
	}
	flag.Visit(func(f *flag.Flag) { r.Flags[f.Name] = f.Value.String() })
	peers := available(ctx, o, r)
	for _, w := range workloads() {
		if o.work == "" || slices.Contains(strings.Split(o.work, ","), w.id) {
			compare(ctx, o, r, w, me, peers, dir)
		}
	}
	switch o.output { // what an interrupt leaves out, too: it may come after hours
	case "json":
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	default:
		r.text(os.Stdout, o.output == "markdown")
	}
	return errors.Join(err, ctx.Err())
}

func everyPeer() []peer {
	return []peer{natsPeer{}, redisPeer{}, beanstalkd{}, rabbitMQ{}, rocketMQ{}}
}

// available are the peers that are asked for and can be run, installed first if that is asked for; the report says what the others lack.
func available(ctx context.Context, o *options, r *report) (peers []peer) {
	for _, p := range everyPeer() {
		if !chosen(o.peers, p.name()) {
			continue
		}
		why := p.missing()
		if why != "" && o.install {
			if err := p.install(ctx); err != nil {
				why = "it could not be installed: " + err.Error()
			} else {
				why = p.missing()
			}
		}
		if why != "" {
			r.Skipped[p.name()] = why
			continue
		}
		r.Versions[p.name()] = p.version()
		peers = append(peers, p)
	}
	return peers
}

// chosen tells whether a list of beginnings has one for name.
func chosen(list, name string) bool {
	return list == "" || slices.ContainsFunc(strings.Split(list, ","), func(s string) bool {
		return strings.HasPrefix(strings.ToLower(name), strings.ToLower(s))
	})
}

// compare does a workload with every peer in every round, leasemq before each.
func compare(ctx context.Context, o *options, r *report, w workload, me peer, peers []peer, dir string) {
	mine := &result{Work: w.id, Peer: me.name(), Durability: me.durability(w.flushed)}
	r.Results = append(r.Results, mine)
	type entry struct {
		peer peer
		*result
	}
	var theirs []entry
	for _, p := range peers {
		for _, way := range p.ways(w) {
			e := entry{p, &result{Work: w.id, Peer: p.name(), Way: way, Durability: p.durability(w.flushed)}}
			theirs = append(theirs, e)
			r.Results = append(r.Results, e.result)
		}
	}
	for range o.rounds {
		if len(theirs) == 0 { // leasemq alone, where nothing is to be compared with
			once(ctx, o, w, me, mine, dir)
		}
		for _, e := range theirs {
			if ctx.Err() != nil {
				return
			}
			if e.Skipped != "" {
				continue
			}
			once(ctx, o, w, me, mine, dir)
			once(ctx, o, w, e.peer, e.result, dir)
		}
	}
}

// once is one run. A peer that fails is not run again.
func once(ctx context.Context, o *options, w workload, p peer, r *result, dir string) {
	f, err := runOne(ctx, o, w, p, r.Way, dir)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		r.Skipped = err.Error()
		fmt.Fprintf(os.Stderr, "%-16s %-24s %-14s failed: %v\n", w.id, p.name(), r.Way, err)
		return
	}
	r.Rounds = append(r.Rounds, f)
	fmt.Fprintf(os.Stderr, "%-16s %-24s %-14s", w.id, p.name(), r.Way)
	for _, c := range columns(w) {
		fmt.Fprintf(os.Stderr, " %s %s%s", c.title, grouped(c.figure(&f)), c.unit)
	}
	fmt.Fprintln(os.Stderr)
}

func runOne(ctx context.Context, o *options, w workload, p peer, way, dir string) (f figures, err error) {
	data, err := os.MkdirTemp(dir, "data-")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data), syncDir(dir)) }()
	running, err := p.start(ctx, data, w.flushed)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, running.stop()) }()
	ready, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	if err := running.prepare(ready, queueName); err != nil {
		return f, err
	}
	b := &run{broker: running, way: way, w: w, dir: data, seconds: o.seconds, laps: o.laps, lapMessages: o.lapMiB << 10}
	switch {
	case w.flushed:
		b.seconds = o.flushed
	case w.id == "send-sustained":
		b.seconds = o.sustained
	}
	if p.warms() {
		if err := b.warmUp(ctx, o.warmUp); err != nil {
			return f, fmt.Errorf("warming up: %w", err)
		}
	}
	if f, err = w.run(ctx, b); err != nil {
		return f, err
	}
	return f, b.settled(ctx)
}
