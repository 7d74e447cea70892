package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// Plan is what Repair would do to a log that keeps a broker from starting.
type Plan struct {
	Dir    string   `json:"dir"`
	Needed bool     `json:"needed"` // false: there is nothing to repair
	At     uint64   `json:"at"`     // the log is cut here: what lies at or behind it leaves the log
	Damage *Finding `json:"damage"` // why; nil where somebody else has named the position

	// Headings are segment files of which only the header is damaged. They are written anew, before anything is cut: whether there is
	// something to be cut besides is seen by planning again afterwards. At and what follows says nothing then.
	Headings []string `json:"headings"`

	Moves   []Move `json:"moves"`
	Records int    `json:"records"` // good ones in what leaves the log
	Bytes   int64  `json:"bytes"`
	Promise uint64 `json:"promise"` // a record that leaves the log, or a snapshot beyond At, says that all below was durable; 0: none does

	Snapshots []string `json:"snapshots"` // files that are set aside, because they reach beyond At
	Replay    uint64   `json:"replay"`    // the next start replays from here on: a snapshot that stays, or the beginning of the log
	// Uncovered: the log no longer has its beginning, and no good snapshot that stays stands for it. A broker does not
	// start on what is left.
	Uncovered bool `json:"uncovered"`
	// Missing: the state needs messages from the position Need on, and the segment file that held the first of them is gone: the
	// log begins at First. A broker does not start on that either.
	Missing bool   `json:"missing"`
	Need    uint64 `json:"need"`
	First   uint64 `json:"first"`

	beyond []uint64
}

// Move is one file of the log that is moved aside as a whole, or copied and cut.
type Move struct {
	Segment string `json:"segment"`
	Copied  bool   `json:"copied"` // the file stays, with what lies before From
	From    uint64 `json:"from"`   // position of the first byte that leaves the log
	Records int    `json:"records"`
	Bytes   int64  `json:"bytes"`
}

// Done is what Repair did; after an error, what was done by then.
type Done struct {
	Moved     []Moved  `json:"moved"`
	Records   int      `json:"records"` // good ones in what was moved
	Bytes     int64    `json:"bytes"`
	Snapshots []string `json:"snapshots"` // names that those have now which were set aside
	Headings  []string `json:"headings"`  // files that hold the headers as they were which were written anew
}

// Moved is what became of one file of the log.
type Moved struct {
	Move
	Aside string `json:"aside"` // where it is now; the copy, if it was copied
}

// cutter finds out where a log must be cut.
type cutter struct {
	ctx    context.Context
	r      *mmaplog.Reader
	usable []uint64          // positions of the snapshots that a start could begin with, newest first
	needs  map[uint64]uint64 // by the position of such a snapshot, from where on its state needs the log
	damage *mmaplog.DamageError

	durable uint64 // position of the newest good snapshot that ends with a record that the log does not have; 0: there is none
}

// PlanRepair finds where the log must be cut for a broker to start, with at 0, or looks at what a cut at that position means. It
// changes nothing.
//
// A start does not read what lies before its snapshot, so damage there is none that it stumbles over: nothing is cut for
// it. (What is damaged cannot be delivered; Verify shows it.) The error says that it could not look, or that the log cannot be
// cut there.
func PlanRepair(ctx context.Context, dir string, at uint64) (*Plan, error) {
	r, err := mmaplog.OpenReader(nil, dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := r.Newer(); err != nil {
		return nil, err
	}
	store := storeOf(dir)
	list, err := listSnapshots(store)
	if err != nil {
		return nil, err
	}
	c := &cutter{ctx: ctx, r: r, needs: map[uint64]uint64{}}
	for _, position := range list {
		s, err := readSnapshot(store, position, nil)
		var fit error
		if err == nil {
			fit = anchored(r, &s.head)
		}
		_, unknown := errors.AsType[*mmaplog.RecordError](fit)
		switch {
		case err == nil && fit == nil:
			c.usable = append(c.usable, position)
			c.needs[position] = s.logStart
		case unknown:
			c.durable = max(c.durable, position)
		case err != nil && !isBad(err) && !isGone(err):
			return nil, err
		}
	}
	p := &Plan{Dir: dir, At: at, Moves: []Move{}, Snapshots: []string{}, Headings: r.Headings()}
	if at == 0 && len(p.Headings) > 0 {
		p.Needed, p.First = true, r.First()
		return p, nil
	}
	if at == 0 {
		p.At, err = c.find()
		c.missEnd(p.At)
		if d := c.damage; d != nil {
			p.Needed, p.Damage = true, &Finding{What: d.What, File: d.File, Offset: d.Offset, Position: d.Position}
		}
	} else {
		err = c.check(at)
		p.Needed = true
	}
	if err != nil {
		return nil, err
	}
	p.Replay = c.start(p.At)
	p.First = r.First()
	p.Uncovered = r.First() > firstPosition && c.snapshotAt(p.At) == 0
	if p.Need, p.Missing, err = c.missing(p.At); err != nil {
		return nil, err
	}
	if !p.Needed {
		return p, nil
	}
	for _, position := range list {
		if position > p.At {
			p.beyond = append(p.beyond, position)
			p.Promise = max(p.Promise, position) // it was published when the log was durable up to there
			p.Snapshots = append(p.Snapshots, store.Path(position))
		}
	}
	return p, p.moves(r)
}

// snapshotAt is the newest usable snapshot that reaches no further than a position; 0 if there is none.
func (c *cutter) snapshotAt(position uint64) uint64 {
	for _, s := range c.usable {
		if s <= position {
			return s
		}
	}
	return 0
}

// missing is from where on messages are needed, and whether the log that ends at a position has no longer the segment that holds
// the first of them.
func (c *cutter) missing(end uint64) (need uint64, missing bool, err error) {
	snapshot := c.snapshotAt(end)
	if snapshot == 0 {
		return 0, false, nil
	}
	size := uint64(c.r.SegmentBytes())
	need = c.needs[snapshot]
	gone := func() bool { return c.r.First() > need-need%size+firstPosition }
	if !gone() {
		return need, false, nil
	}
	_, err = c.r.Scan(c.scannable(snapshot), func(rec mmaplog.Record) error {
		if rec.Header.Position < snapshot || rec.Header.Type != codec.TypeRetain {
			return c.ctx.Err()
		}
		var retain codec.Retain
		if err := retain.Decode(rec.Payload); err != nil {
			return err
		}
		need = max(need, retain.LogStart)
		return nil
	})
	return need, err == nil && gone(), err
}

// start is where a start begins to replay a log that ends at a position.
func (c *cutter) start(end uint64) uint64 { return cmp.Or(c.snapshotAt(end), c.r.First()) }

// fileCut is the first record of the first segment that is none, or is missing, and what is wrong; the highest position if all
// are well. A start looks at all files, wherever it begins to replay.
func (c *cutter) fileCut() (uint64, *mmaplog.DamageError) {
	size := uint64(c.r.SegmentBytes())
	expected := c.r.First()
	for _, s := range c.r.Segments() {
		if s.Base%size != 0 {
			continue // it stands outside the row
		}
		if s.Problem != "" {
			return expected, &mmaplog.DamageError{File: s.Path, Position: expected, What: s.Problem}
		}
		expected = s.Base + firstPosition + size
	}
	return ^uint64(0), nil
}

// find is the last position at which the log can be cut so that a start reads it without damage. An earlier cut may leave an
// older snapshot to begin with, and more to read: so it goes on until nothing is found any more.
func (c *cutter) find() (at uint64, err error) {
	at, c.damage = c.fileCut()
	for {
		from := c.start(at)
		if from >= at {
			return at, nil // nothing is left to be read
		}
		tail, err := c.r.Scan(c.scannable(from), func(mmaplog.Record) error { return c.ctx.Err() })
		switch {
		case err != nil:
			return 0, err
		case at == ^uint64(0) && tail.Damage == nil, tail.End >= at:
			return min(at, tail.End), nil
		}
		if c.damage == nil {
			c.damage = tail.Damage
		}
		at = tail.End
	}
}

// missEnd notes as damage that the log ends before what a snapshot says was durable.
func (c *cutter) missEnd(end uint64) {
	if c.damage != nil || end >= c.durable {
		return
	}
	c.damage = &mmaplog.DamageError{
		File: c.r.SegmentPath(end), Offset: int64(end % uint64(c.r.SegmentBytes())), Position: end,
		Promise: c.durable, Snapshot: true, What: "the records stop",
	}
}

// scannable is where a scan can begin for replay to begin at a position: the segment of that may not have been made yet.
func (c *cutter) scannable(from uint64) uint64 {
	size := uint64(c.r.SegmentBytes())
	for _, s := range c.r.Segments() {
		if s.Base == from-from%size {
			return from
		}
	}
	return max(c.r.First(), from-min(from, size))
}

// check says why the log cannot be cut at a position; nil if it can.
func (c *cutter) check(at uint64) error {
	if first := c.r.First(); at < first {
		return fmt.Errorf("the log cannot be cut at position %d: it begins at position %d", at, first)
	}
	if cut, _ := c.fileCut(); at > cut {
		return fmt.Errorf("the log cannot be cut at position %d: a segment before it is damaged or missing; cut it at position %d", at, cut)
	}
	from := c.start(at)
	if from == at {
		return nil
	}
	last, boundary := from, false
	tail, err := c.r.Scan(c.scannable(from), func(r mmaplog.Record) error {
		if r.Header.Position >= at {
			boundary = boundary || r.Header.Position == at
			return errEnough
		}
		last = r.Header.Position
		return c.ctx.Err()
	})
	switch {
	case errors.Is(err, errEnough):
	case err != nil:
		return err
	case at > tail.End && tail.Damage != nil:
		return fmt.Errorf("the log cannot be cut at position %d: it is damaged before that, and would not open; cut it at position %d", at, tail.End)
	case at > tail.End:
		return fmt.Errorf("the log cannot be cut at position %d: it ends at position %d", at, tail.End)
	default:
		boundary = boundary || at == tail.End
	}
	if !boundary {
		return fmt.Errorf("the log cannot be cut at position %d: no record begins there; the one before begins at position %d", at, last)
	}
	return nil
}

// moves lists what leaves the log, file by file.
func (p *Plan) moves(r *mmaplog.Reader) error {
	size := uint64(r.SegmentBytes())
	whole := p.At%size == firstPosition
	for _, s := range r.Segments() {
		m := Move{Segment: s.Path, From: s.Base + firstPosition}
		stray := s.Base%size != 0
		switch {
		case stray:
			m.From = s.Base
		case p.At >= s.Base && p.At-s.Base < size && !whole:
			m.Copied, m.From = true, p.At
		case s.Base+firstPosition < p.At:
			continue
		case p.At == m.From && p.At == r.First() && s.Base > 0:
			m.Copied = true
		}
		p.Moves = append(p.Moves, m)
	}
	return r.ScanBehind(p.At, func(rec mmaplog.Record) error {
		p.Records++
		p.Bytes += int64(rec.Header.Length)
		if rec.Header.Synced > p.At {
			p.Promise = max(p.Promise, rec.Header.Synced)
		}
		for i := len(p.Moves) - 1; i >= 0; i-- {
			if m := &p.Moves[i]; m.From <= rec.Header.Position {
				m.Records++
				m.Bytes += int64(rec.Header.Length)
				break
			}
		}
		return nil
	})
}

// Repair does what p says: it writes headers anew, or it cuts the log, then sets aside the snapshots that reach beyond the cut. Nothing is deleted. A
// *mmaplog.LockedError says that a broker runs. Interrupted or failed it can be planned and run again.
func Repair(p *Plan) (Done, error) {
	var d Done
	if !p.Needed {
		return d, nil
	}
	if err := p.Uncovers(); err != nil {
		return d, err
	}
	if len(p.Headings) > 0 {
		kept, err := mmaplog.RepairHeadings(nil, p.Dir)
		d.Headings = kept
		return d, err
	}
	report, err := mmaplog.Repair(nil, p.Dir, p.At)
	d.Records, d.Bytes = report.Records, report.Bytes
	for _, m := range report.Moved {
		d.Moved = append(d.Moved, Moved{Move{m.Segment, m.Copied, m.From, m.Records, m.Bytes}, m.Aside})
	}
	if err != nil {
		return d, err
	}
	store := storeOf(p.Dir)
	for _, position := range p.beyond {
		name, err := store.SetAside(position)
		if isGone(err) {
			continue
		}
		if err != nil {
			return d, err
		}
		d.Snapshots = append(d.Snapshots, name)
	}
	return d, nil
}

// Uncovers is why a broker would not start on what is left; nil if it would. Repair refuses then.
func (p *Plan) Uncovers() error {
	if p.Missing {
		return fmt.Errorf("the log begins at position %d, but messages from position %d on are still needed: a segment file is "+
			"missing, and a broker does not start on that. Restore it from a backup", p.First, p.Need)
	}
	if !p.Uncovered {
		return nil
	}
	return fmt.Errorf("the log no longer has its beginning, and no good snapshot reaches no further than position %d: "+
		"a broker does not start on that. Restore a snapshot from a backup", p.At)
}
