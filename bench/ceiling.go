package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/leasemq/leasemq/codec"
)

// EchoCommand is the hidden command, below bench, of the child that echoes.
const EchoCommand = "echo"

// ceilingWorkload is `bench ceiling`.
type ceilingWorkload struct {
	rounds int
	chunk  int64
}

func (*ceilingWorkload) About() About {
	return About{
		Name: "ceiling", Short: "Measure what this machine could do at best, and leasemq's share of it", Alone: true,
		Long: `Does the work of send, part by part, with nothing of the broker in it, and in between the real thing with an embedded broker;
all of them round after round, each on a fresh directory, through the same page cache:

  echo   the same requests over TCP to an event loop that decodes them, copies the messages into a log that nobody
         waits for, and answers as long as the broker does
  copy   that log alone: messages are copied into it, and it writes them into the page cache
  flush  pwrite and fdatasync of as much as all connections may have in flight: one after the other where each answer waits
         for the disk (always), else beside one another
  send   leasemq

The limit of a burst is the lower of echo and copy. Where each answer waits for the disk (always), and over a longer time,
flush is one of the limits, too.`,
	}
}

func (w *ceilingWorkload) Flags(f *Flags) {
	f.Settings.Fsync, f.Settings.Window, f.Settings.Duration = "interval", 8, 5*time.Second
	f.Share("dir", "fsync", "io", "topic", "topics", "queues", "size", "batch", "producers", "window", "duration", "warm-up")
	f.IntVar(&w.rounds, "rounds", 3, "how often each part is done, for as long as --duration says")
	f.BytesVar(&w.chunk, "chunk", "bytes of a write of flush (default: what all connections may have in flight)")
}

// CeilingPart is one part of the work, over all rounds.
type CeilingPart struct {
	Part   string    `json:"part"`
	Rounds []float64 `json:"rounds_msgs_per_s"`
	Median float64   `json:"median_msgs_per_s"`
	Min    float64   `json:"min_msgs_per_s"`
	Max    float64   `json:"max_msgs_per_s"`
	Share  float64   `json:"share"` // leasemq's median of this part's; of its own it is 1
}

// The parts, and the limits made of them.
const (
	partEcho, partCopy, partFlush, partSend = "echo", "copy", "flush", "send"
	// partAnswered is send without its last flush; there is one where answers do not wait for it.
	partAnswered   = "send, answered"
	limitBurst     = "limit of a burst"
	limitSustained = "limit, sustained"
)

func (w *ceilingWorkload) Run(ctx context.Context, run *Run) error {
	if w.rounds < 1 || w.chunk < 0 || w.chunk > 1<<30 || run.Duration == 0 || run.copyLoop == nil {
		return &SettingError{errors.New("--rounds, --duration or --chunk is out of range")}
	}
	c := &ceiling{run: run, lanes: map[string][]*Lane{}}
	chunk := int(w.chunk)
	if chunk == 0 {
		chunk = min(run.Producers*run.Window*run.Batch*c.record(), 64<<20)
	}
	c.chunk = noise(chunk, 2) // takes a while, of which nothing counts
	defer c.report()
	for round := range w.rounds {
		for _, part := range []struct {
			name string
			do   func(context.Context, *Lane) error
		}{{partEcho, c.echo}, {partCopy, c.copy}, {partFlush, c.flush}, {partSend, c.send}} {
			lane, err := c.do(ctx, part.name, part.do)
			if err != nil {
				return err
			}
			if run.progress != nil {
				fmt.Fprintf(run.progress, "round %d of %d  %-5s  %.0f messages/s\n", round+1, w.rounds, part.name, lane.rate().MessagesPerS)
			}
		}
	}
	return nil
}

// ceiling is one run.
type ceiling struct {
	run   *Run
	chunk []byte             // a write of flush
	lanes map[string][]*Lane // by part, one for each round
}

// record is about how many bytes of the log a message takes.
func (c *ceiling) record() int {
	return codec.Padded(recordHeadBytes + c.run.Size)
}

// recordHeadBytes is about what the log has of a message besides its body, with its producer's number.
const recordHeadBytes = codec.HeaderBytes + codec.MessageAssignedBytes + 32

// do does a part. What the one before has left in the page cache is on the disk then, and no load for this one.
func (c *ceiling) do(ctx context.Context, name string, part func(context.Context, *Lane) error) (*Lane, error) {
	lane := newLane(name, c.run.Size)
	lane.main = name == partSend
	err := settle(cmp.Or(c.run.Dir, os.TempDir()))
	if err == nil {
		err = part(ctx, lane)
	}
	if err != nil {
		return nil, fmt.Errorf("bench: ceiling, %s: %w", name, err)
	}
	c.lanes[name] = append(c.lanes[name], lane)
	return lane, nil
}

// begin starts the clock of a part.
func (c *ceiling) begin(lane *Lane) (began, until time.Time) {
	began = time.Now()
	lane.begin(began.Add(c.run.WarmUp))
	return began, began.Add(c.run.WarmUp + c.run.Duration)
}

func (c *ceiling) echo(ctx context.Context, lane *Lane) error {
	return c.against(ctx, lane, ChildOptions{Command: []string{"bench", EchoCommand}, Args: []string{"--io", c.run.IO}}, false)
}

func (c *ceiling) send(ctx context.Context, lane *Lane) error {
	return c.against(ctx, lane, ChildOptions{Args: []string{"--fsync", c.run.Fsync, "--io", c.run.IO}}, c.run.Fsync == "interval")
}

// against sends to a child on a fresh directory.
func (c *ceiling) against(ctx context.Context, lane *Lane, o ChildOptions, flushes bool) (err error) {
	dir, remove, err := c.directory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	o.Dir = dir
	child, err := StartChild(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, child.Kill()) }()
	clients, err := dialAll(ctx, child.Addr, "leasemq bench ceiling", c.run.Producers)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	load := &Run{Settings: c.run.Settings, Addr: child.Addr}
	s, err := load.newSending(ctx, clients, lane)
	if err != nil {
		return err
	}
	began, until := c.begin(lane)
	if err := s.run(ctx, newPacer(began, until, 0, 0)); err != nil {
		return err
	}
	if flushes {
		at, err := flushedBy(ctx, clients[0])
		if err != nil {
			return err
		}
		lane.Flushed(at)
	}
	return nil
}

// copy has messages copied into a log in this process.
func (c *ceiling) copy(ctx context.Context, lane *Lane) (err error) {
	dir, remove, err := c.directory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	ended, err := c.run.copyLoop(ctx, CopyLoop{
		Dir: dir, IO: c.run.IO, Batch: c.run.Batch, RecordBytes: c.record(),
		Begin: func() (until time.Time) { _, until = c.begin(lane); return until },
		Done:  lane.Recorder().Record,
	})
	lane.End(ended)
	return err
}

// CopyLoop is what the copy part does: requests of Batch records are appended to a log in Dir until the moment that Begin tells
// when the log is open. Done is told of each.
type CopyLoop struct {
	Dir, IO            string
	Batch, RecordBytes int
	Begin              func() (until time.Time)
	Done               func(began time.Time, took time.Duration, n int)
}

func (c *ceiling) flush(ctx context.Context, lane *Lane) error {
	loop := writeAhead
	if c.run.Fsync == "always" {
		loop = writeLoop
	}
	return onFile(c.run.Dir, func(f *os.File) error {
		_, until := c.begin(lane)
		return loop(ctx, f, c.chunk, c.record(), lane, until)
	})
}

// directory makes one for a part.
func (c *ceiling) directory() (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp(c.run.Dir, "leasemq-bench-")
	return dir, func() error { return os.RemoveAll(dir) }, err
}

// report puts the parts and the limits into the report, and as the lane of each part its middle round.
func (c *ceiling) report() {
	rates := map[string][]float64{}
	for _, name := range []string{partSend, partEcho, partCopy, partFlush} {
		lanes := c.lanes[name]
		if len(lanes) == 0 {
			continue
		}
		for _, l := range lanes {
			r := l.rate()
			rates[name] = append(rates[name], r.MessagesPerS)
			if name == partSend && r.Answered > 0 {
				rates[partAnswered] = append(rates[partAnswered], r.Answered)
			}
		}
		middle := partOf(name, rates[name]).Median
		c.run.lanes = append(c.run.lanes, lanes[slices.Index(rates[name], middle)])
	}
	var parts []CeilingPart
	for _, name := range []string{partEcho, partCopy, partFlush, partAnswered, partSend} {
		if len(rates[name]) > 0 {
			parts = append(parts, partOf(name, rates[name]))
		}
	}
	parts = limits(c.run.Fsync, parts)
	c.run.Extra("ceiling", parts)
	for _, p := range parts {
		switch p.Part {
		case limitBurst:
			c.run.Count("share_of_burst_percent", uint64(100*p.Share))
		case limitSustained:
			c.run.Count("share_sustained_percent", uint64(100*p.Share))
		}
	}
}

// partOf sums up the rounds of a part. Of an even number the lower of the middle ones is the median: a round that was.
func partOf(name string, rates []float64) CeilingPart {
	sorted := slices.Sorted(slices.Values(rates))
	return CeilingPart{Part: name, Rounds: rates, Median: sorted[(len(sorted)-1)/2], Min: sorted[0], Max: sorted[len(sorted)-1]}
}

// limits adds the limits that a policy has, and fills in leasemq's shares. The share of a burst is that of what was answered: its
// flush comes later.
func limits(fsync string, parts []CeilingPart) []CeilingPart {
	find := func(name string) (p CeilingPart, ok bool) {
		i := slices.IndexFunc(parts, func(p CeilingPart) bool { return p.Part == name })
		if i < 0 {
			return p, false
		}
		return parts[i], true
	}
	lowest := func(name string, of ...string) {
		var least CeilingPart
		for i, x := range of {
			p, ok := find(x)
			if !ok {
				return
			}
			if i == 0 || p.Median < least.Median {
				least = p
			}
		}
		least.Part = name
		parts = append(parts, least)
	}
	sent, ok := find(partSend)
	if !ok {
		return parts
	}
	burst, ok := find(partAnswered)
	if !ok {
		burst = sent
	}
	if fsync != "always" {
		lowest(limitBurst, partEcho, partCopy)
	}
	if fsync != "never" {
		lowest(limitSustained, partEcho, partCopy, partFlush)
	}
	for i := range parts {
		mine := burst.Median
		if parts[i].Part == partFlush || parts[i].Part == limitSustained || parts[i].Part == partSend {
			mine = sent.Median
		}
		if parts[i].Median > 0 {
			parts[i].Share = mine / parts[i].Median
		}
	}
	return parts
}

// Shown is the share as people read it: of leasemq's own parts there is none.
func (p CeilingPart) Shown() string {
	if p.Part == partSend || p.Part == partAnswered {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*p.Share)
}

// ceilingText writes the parts as people read them.
func ceilingText(w io.Writer, parts []CeilingPart) {
	fmt.Fprintln(w)
	fmt.Fprintln(w, "part\tmedian/s\tmin .. max\tleasemq's share")
	for _, p := range parts {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f .. %.0f\t%s\n", p.Part, p.Median, p.Min, p.Max, p.Shown())
	}
}
