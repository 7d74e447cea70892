package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/inspect"
)

func (a *app) logCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "log",
		Short: "Look into the files of a broker, check them, cut off what is damaged",
		Long: `These commands work on the files of a data directory. They need no broker, and do not talk to one.

A broker does not start, or you want to know whether all is well:  leasemq log verify
You want to see what is in the log, or what became of a message:   leasemq log dump
verify found damage that keeps the broker from starting, and there
is no backup of the file to restore:                               leasemq log repair

dump and verify change nothing and may be used beside a running broker. repair moves files aside and deletes none; it
refuses while a broker runs.`,
		Args: cobra.NoArgs,
		RunE: needsSubcommand,
	}
	c.AddCommand(a.logDump(), a.logVerify(), a.logRepair())
	return c
}

func dataFlag(flags *pflag.FlagSet, data *string) {
	flags.StringVar(data, "data", "leasemq-data", "data `DIR`ectory of the broker")
}

// couldNotLook gives an error of looking at a directory the exit code of a wrong command line.
func couldNotLook(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return usageError{err}
}

// dumpFlags are the filters of log dump as they were given.
type dumpFlags struct {
	data         string
	from, to     uint64
	types        []string
	topic        string
	queue        int
	offset       string
	id           string
	uniqueKey    string
	key          string
	group        string
	session      uint64
	since, until string
	limit        int
	body, aside  bool
}

func (a *app) logDump() *cobra.Command {
	var f dumpFlags
	c := &cobra.Command{
		Use:   "dump",
		Short: "Print the records of the log, one a line",
		Long: `Prints the records of the log in their order, one a line; with -o json one JSON object a line.

Filters can be combined; a record is printed when all of them say so. --topic, --queue and --offset also find the records
that say what became of messages: who they were granted to, who settled them, when a lease ended. So these three together
print the story of one message. --id, --key and --unique-key find messages, and copies of them.

STORED is when the record was written, by the clock of the broker. BORN is when a message was stored
first: a copy, which is made when an old part of the log goes, is stored later than that.
SIZE is the bytes that the record takes on the disk. Times inside DETAIL are milliseconds of the lease clock.

Topics and groups are shown by name where the log or the newest snapshot tells it, else as #id.

The log is read up to its end, or to where it is damaged; standard error then says where and what lies behind. Beside a
running broker the end is some position that the log had meanwhile.

--aside goes on with the files that recovery or 'leasemq log repair' moved out of the log. Everything in them that is a
good record is printed, wherever it lies; what the log has at the same place is left out.`,
		Example: `  leasemq log dump --topic orders --queue 3 --offset 17
  leasemq log dump --type TOPIC,GROUP -o json
  leasemq log dump --since 10m --type SESSION_START,SESSION_END
  leasemq log dump --id 6a1b2c3d-0000000000001040 --body`,
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		filter, err := f.filter(c.Flags(), time.Now())
		if err != nil {
			return usageError{err}
		}
		return a.does(func(ctx context.Context, _ []string) error { return a.dump(ctx, f.data, filter) })(c, args)
	}
	flags := c.Flags()
	dataFlag(flags, &f.data)
	flags.Uint64Var(&f.from, "from", 0, "records at log position `POS` and behind")
	flags.Uint64Var(&f.to, "to", 0, "records before log position `POS`")
	flags.StringSliceVar(&f.types, "type", nil, "records of these types: `NAME[,NAME]`")
	flags.StringVar(&f.topic, "topic", "", "about the topic `NAME`, or #id")
	flags.IntVar(&f.queue, "queue", 0, "about queue `N`")
	flags.StringVar(&f.offset, "offset", "", "about offset `N`, or one of N-M")
	flags.StringVar(&f.id, "id", "", "the message with this `MESSAGE-ID`")
	flags.StringVar(&f.uniqueKey, "unique-key", "", "messages with this unique `KEY`")
	flags.StringVar(&f.key, "key", "", "messages with this `KEY`")
	flags.StringVar(&f.group, "group", "", "about the group `NAME`, or #id")
	flags.Uint64Var(&f.session, "session", 0, "about the session `ID`")
	flags.StringVar(&f.since, "since", "", "stored at `TIME` (RFC 3339, or how long ago: 90m) or later")
	flags.StringVar(&f.until, "until", "", "stored before `TIME`")
	flags.IntVar(&f.limit, "limit", 0, "so many records at most")
	flags.BoolVar(&f.body, "body", false, "print the bodies of messages, as stored")
	flags.BoolVar(&f.aside, "aside", false, "then the records in files that were moved aside")
	return c
}

// filter reads the flags. Ago is counted from now.
func (f *dumpFlags) filter(given *pflag.FlagSet, now time.Time) (*inspect.Filter, error) {
	out := &inspect.Filter{
		From: f.from, To: f.to, Topic: f.topic, UniqueKey: f.uniqueKey, Key: f.key, Group: f.group, Session: f.session,
		Limit: f.limit, Body: f.body, Aside: f.aside,
	}
	for _, name := range f.types {
		t, err := inspect.ParseType(strings.TrimSpace(name))
		if err != nil {
			return nil, fmt.Errorf("--type: %w", err)
		}
		out.Types = append(out.Types, t)
	}
	if given.Changed("queue") {
		if f.queue < 0 || f.queue > math.MaxUint16 {
			return nil, fmt.Errorf("--queue %d: there is no such queue", f.queue)
		}
		q := uint16(f.queue)
		out.Queue = &q
	}
	var err error
	if f.offset != "" {
		if out.Offsets, err = parseOffsets(f.offset); err != nil {
			return nil, fmt.Errorf("--offset: %w", err)
		}
	}
	if f.id != "" {
		if out.ID, err = parseMessageID(f.id); err != nil {
			return nil, fmt.Errorf("--id: %w", err)
		}
	}
	if out.Since, err = parseTime(f.since, now); err != nil {
		return nil, fmt.Errorf("--since: %w", err)
	}
	if out.Until, err = parseTime(f.until, now); err != nil {
		return nil, fmt.Errorf("--until: %w", err)
	}
	if f.limit < 0 {
		return nil, fmt.Errorf("--limit %d is negative", f.limit)
	}
	return out, nil
}

func parseOffsets(s string) (*inspect.OffsetRange, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 64)
	to, err2 := strconv.ParseUint(last, 10, 64)
	if err != nil || err2 != nil || to < from {
		return nil, fmt.Errorf("%q is neither an offset nor a range of them like 5-9", s)
	}
	return &inspect.OffsetRange{From: from, To: to}, nil
}

func parseMessageID(s string) (*codec.MessageID, error) {
	left, right, ok := strings.Cut(s, "-")
	epoch, err := strconv.ParseUint(left, 16, 32)
	position, err2 := strconv.ParseUint(right, 16, 64)
	if !ok || err != nil || err2 != nil {
		return nil, fmt.Errorf("%q is no message id; one looks like 6a1b2c3d-0000000000001040", s)
	}
	id := codec.NewMessageID(uint32(epoch), position)
	return &id, nil
}

func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(s); err == nil {
		return now.Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is neither a time like 2026-01-31T15:04:05Z nor how long ago, like 90m", s)
	}
	return t, nil
}

// alignedLines is how many lines of a dump are aligned with each other: all of them would have to be kept until the end.
const alignedLines = 200

const lineTime = "2006-01-02T15:04:05.000Z"

func (a *app) dump(ctx context.Context, data string, f *inspect.Filter) error {
	out := bufio.NewWriterSize(a.stdout, 64<<10)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	flush := func() error {
		if err := w.Flush(); err != nil {
			return err
		}
		return out.Flush()
	}
	lines, file := 0, ""
	tail, ended, err := inspect.Dump(ctx, data, f, func(l *inspect.Line) error {
		if a.json() {
			return jsonTo(out, l)
		}
		if lines == 0 {
			fmt.Fprintln(w, "POSITION\tSIZE\tTYPE\tEPOCH\tTOPIC\tQUEUE\tOFFSET\tID\tUNIQUE-KEY\tBORN\tSTORED\tDETAIL")
		}
		if l.File != file {
			file = l.File
			fmt.Fprintf(w, "# %s\n", file)
		}
		writeLine(w, l)
		if lines++; lines%alignedLines == 0 {
			return flush()
		}
		return nil
	})
	if flushErr := flush(); err == nil && flushErr != nil {
		return flushErr
	}
	if err != nil {
		return couldNotLook(err)
	}
	if ended && tail.Damage != nil {
		d := tail.Damage
		a.note("leasemq: the log is damaged in %s at byte %d (position %d): %s. %d good records lie behind; see 'leasemq log verify'",
			d.File, d.Offset, d.Position, d.What, tail.BehindRecords)
	}
	return nil
}

func writeLine(w io.Writer, l *inspect.Line) {
	or := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	queue, offset, born := "-", "-", "-"
	if l.Queue != nil {
		queue, offset = fmt.Sprint(*l.Queue), fmt.Sprint(*l.Offset)
	}
	if l.Born != nil {
		born = l.Born.Format(lineTime)
	}
	var words []string
	if l.Group != "" {
		words = append(words, "group "+l.Group)
	}
	if l.Session != "" {
		words = append(words, "session "+l.Session)
	}
	if l.Detail != "" {
		words = append(words, l.Detail)
	}
	if l.Body != nil {
		words = append(words, strconv.Quote(string(l.Body)))
	}
	unique := l.UniqueKey
	if unique != "" {
		unique = strconv.Quote(unique)
	}
	fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Position, l.Size, l.Type, l.Epoch, or(l.Topic), queue, offset,
		or(l.ID), or(unique), born, l.Stored.Format(lineTime), or(strings.Join(words, ", ")))
}

func (a *app) logVerify() *cobra.Command {
	var data string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check the files of a broker",
		Long: `Reads everything in a data directory and checks it: each record of the log, the snapshots, the queue index, the receipt
key; and whether they agree. Nothing is changed. It may run beside a broker; what is newer than its start is not judged then.

It prints one line for each finding, with file, byte and log position, then notes, then figures. A note is what a kill, a
power loss or a running broker leaves and what the next start puts right by itself. A finding is what none of them
leaves.

What to do about a finding
  the log is damaged       restore the file from a backup; without one: leasemq log repair, if the broker does not start
  a snapshot is damaged    nothing: a start takes the one before. If there is none: restore it from a backup
  the queue index          stop the broker and move the directory queues/ away: a start builds it anew from the log
  the receipt key          restore it from a backup
  records contradict       a fault of the broker: keep a copy of the directory, and report it

Exit codes: 0 there is no finding, 1 there are some, 2 it could not look.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			report, err := inspect.Verify(ctx, data)
			if err != nil {
				return couldNotLook(err)
			}
			if err := a.print(report, func(w io.Writer) { verifyText(w, report) }); err != nil {
				return err
			}
			if n := len(report.Findings) + report.FindingsLeftOff; n > 0 {
				return fmt.Errorf("%d findings in %s", n, data)
			}
			return nil
		}),
	}
	dataFlag(c.Flags(), &data)
	return c
}

func verifyText(w io.Writer, r *inspect.Report) {
	for _, f := range r.Findings {
		fmt.Fprintf(w, "FINDING %s\n", f)
	}
	if r.FindingsLeftOff > 0 {
		fmt.Fprintf(w, "... and %d more findings\n", r.FindingsLeftOff)
	}
	for _, f := range r.Notes {
		fmt.Fprintf(w, "note %s\n", f)
	}
	if r.NotesLeftOff > 0 {
		fmt.Fprintf(w, "... and %d more notes\n", r.NotesLeftOff)
	}
	for _, path := range r.Aside {
		fmt.Fprintf(w, "aside %s\n", path)
	}
	fmt.Fprintf(w, "log\t%d segments of %d bytes, positions %d to %d\n", r.Segments, r.SegmentBytes, r.First, r.End)
	fmt.Fprintf(w, "ends\t%s\n", r.HowItEnds)
	fmt.Fprintf(w, "records\t%d of %d bytes\n", r.Records, r.Bytes)
	for _, t := range inspect.TypeNames() {
		if n := r.RecordsByType[t]; n > 0 {
			fmt.Fprintf(w, "\t%d %s\n", n, t)
		}
	}
	fmt.Fprintf(w, "queues\t%d of %d topics, with %d messages\n", r.Queues, r.Topics, r.Messages)
	fmt.Fprintf(w, "index\t%d entries compared\n", r.IndexEntries)
	for _, s := range r.Snapshots {
		state := "good"
		if !s.Good {
			state = "not used"
		}
		fmt.Fprintf(w, "snapshot\tof position %d, %d rows, %s\n", s.Position, s.Rows, state)
	}
	fmt.Fprintf(w, "findings\t%d\n", len(r.Findings)+r.FindingsLeftOff)
}

// repairShown is what log repair prints as JSON.
type repairShown struct {
	*inspect.Plan
	Done *inspect.Done `json:"done,omitempty"`
}

func (a *app) logRepair() *cobra.Command {
	var data string
	var at uint64
	var yes bool
	c := &cobra.Command{
		Use:   "repair",
		Short: "Mend or cut the log where it is damaged, so that a broker starts again",
		Long: `For a broker that does not start because its log is damaged, when there is no backup of the damaged file.

Where nothing but the header of a file is damaged the header is written anew, and nothing is lost: run it again then.

Else the log is cut where it is damaged. What lies behind leaves the log, also what is good: messages, acks and all else that
was answered since. Nothing is deleted: the files are moved aside within the directory, or copied where a part of them
stays, and so are the snapshots that reach beyond the cut. 'leasemq log dump --aside' shows what is in them.

Copy the data directory before, and look for the cause: a disk that has damaged one file may damage others.

Without --yes nothing is done: it prints what would be, and ends with exit code 1. Read that first. With --yes it is
done. When there is nothing to repair it says so, with exit code 0; a torn tail is nothing to repair, the next start cuts
it by itself. Damage in an old part of the log, which a start does not read, is no reason to cut either.

--at cuts at another position than the one that is found: the beginning of a record, before the damage.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error { return a.repair(ctx, data, at, yes) }),
	}
	dataFlag(c.Flags(), &data)
	c.Flags().Uint64Var(&at, "at", 0, "cut at log position `POS`, the beginning of a record")
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	return c
}

func (a *app) repair(ctx context.Context, data string, at uint64, yes bool) error {
	plan, err := inspect.PlanRepair(ctx, data, at)
	if err != nil {
		return err
	}
	shown := repairShown{Plan: plan}
	if !plan.Needed && plan.Missing {
		return plan.Uncovers()
	}
	if !plan.Needed {
		return errors.Join(a.print(shown, func(w io.Writer) {
			fmt.Fprintf(w, "nothing to repair: a start replays the log from position %d to %d, and there is no damage there\n", plan.Replay, plan.At)
		}), plan.Uncovers())
	}
	uncovered := plan.Uncovers()
	if !yes || uncovered != nil {
		if err := a.print(shown, func(w io.Writer) { planText(w, plan) }); err != nil {
			return err
		}
		if uncovered != nil {
			return uncovered
		}
		return errors.New("nothing was done: with --yes it is")
	}
	done, err := inspect.Repair(plan)
	if err == nil || len(done.Moved) > 0 || len(done.Headings) == len(plan.Headings) && len(plan.Headings) > 0 {
		shown.Done = &done
		err = errors.Join(err, a.print(shown, func(w io.Writer) { doneText(w, plan, &done, data) }))
	}
	return err
}

func planText(w io.Writer, p *inspect.Plan) {
	if len(p.Headings) > 0 {
		for _, path := range p.Headings {
			fmt.Fprintf(w, "%s: only its header is damaged, and would be written anew; no record is lost\n", path)
		}
		fmt.Fprintln(w, "whether there is more to repair is seen when that is done")
		return
	}
	if d := p.Damage; d != nil {
		fmt.Fprintf(w, "damaged: %s, byte %d (position %d): %s\n", d.File, d.Offset, d.Position, d.What)
	}
	fmt.Fprintf(w, "the log would be cut at position %d\n", p.At)
	for _, m := range p.Moves {
		how := "moved aside"
		if m.Copied {
			how = fmt.Sprintf("copied aside and cut at position %d", m.From)
		}
		fmt.Fprintf(w, "%s would be %s: %d good records of %d bytes\n", m.Segment, how, m.Records, m.Bytes)
	}
	fmt.Fprintf(w, "%d good records of %d bytes would leave the log\n", p.Records, p.Bytes)
	if p.Promise != 0 {
		fmt.Fprintf(w, "broken promise: a record among them, or a snapshot beyond the cut, says that everything below position %d was durable, so it may have been acknowledged\n", p.Promise)
	}
	for _, path := range p.Snapshots {
		fmt.Fprintf(w, "the snapshot %s would be set aside: it reaches beyond the cut\n", path)
	}
	if p.Uncovered {
		fmt.Fprintf(w, "NO SNAPSHOT THAT STAYS STANDS FOR THE BEGINNING OF THE LOG, WHICH IS GONE: a broker would not start on what is left\n")
		return
	}
	fmt.Fprintf(w, "a broker would then start by replaying the log from position %d on\n", p.Replay)
}

func doneText(w io.Writer, p *inspect.Plan, d *inspect.Done, data string) {
	if len(p.Headings) > 0 {
		for i, path := range p.Headings {
			fmt.Fprintf(w, "%s: the header was written anew; what stood there is in %s\n", path, d.Headings[i])
		}
		fmt.Fprintf(w, "whether there is more to repair: leasemq log repair --data %s\n", data)
		return
	}
	fmt.Fprintf(w, "the log was cut at position %d\n", p.At)
	for _, m := range d.Moved {
		how := "moved to"
		if m.Copied {
			how = fmt.Sprintf("cut at position %d, as it was before it is", m.From)
		}
		fmt.Fprintf(w, "%s %s %s: %d good records of %d bytes\n", m.Segment, how, m.Aside, m.Records, m.Bytes)
	}
	for _, name := range d.Snapshots {
		fmt.Fprintf(w, "a snapshot was set aside as %s\n", name)
	}
	fmt.Fprintf(w, "%d good records of %d bytes left the log. To look at them: leasemq log dump --data %s --aside --from %d\n", d.Records, d.Bytes, data, p.At)
	fmt.Fprintf(w, "the next start of the broker replays from position %d on\n", p.Replay)
}
