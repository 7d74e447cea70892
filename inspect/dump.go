package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// errEnough ends a scan.
var errEnough = errors.New("enough")

// Dump gives each the records of a data directory that f lets through, in log order, then, with f.Aside, those of the files
// that were moved aside, file by file. It says how the log ends, unless it came to f.Limit, f.To or f.Until before: ended
// tells.
//
// Names come from the records that are read and from the newest good snapshot. Where there is none, and f begins behind the
// beginning of the log, what lies before is read for them, too.
func Dump(ctx context.Context, dir string, f *Filter, each func(*Line) error) (tail mmaplog.Tail, ended bool, err error) {
	r, err := mmaplog.OpenReader(nil, dir)
	if err != nil {
		return tail, false, err
	}
	defer r.Close()
	d := &dump{ctx: ctx, r: r, f: f, each: each}
	d.describer = describer{names: newNames(), body: f.Body}
	from, err := d.begin(dir)
	if err != nil {
		return tail, false, err
	}
	tail, err = r.Scan(from, d.record)
	enough := errors.Is(err, errEnough)
	if err != nil && !enough {
		return tail, false, err
	}
	if f.Aside && !d.full() {
		if err := d.aside(dir); err != nil && !errors.Is(err, errEnough) {
			return tail, false, err
		}
	}
	return tail, !enough, nil
}

type dump struct {
	describer
	ctx   context.Context
	r     *mmaplog.Reader
	f     *Filter
	each  func(*Line) error
	file  string // that was moved aside, when its records are read
	given int
}

func (d *dump) full() bool { return d.f.Limit > 0 && d.given >= d.f.Limit }

// begin learns names and says where the scan begins: with the first record of a segment before which nothing can pass.
func (d *dump) begin(dir string) (from uint64, err error) {
	first := d.r.First()
	from = first
	size := uint64(d.r.SegmentBytes())
	startOf := func(p uint64) uint64 { return max(first, p-p%size+firstPosition) }
	if d.f.From > first {
		from = startOf(d.f.From)
	}
	if d.f.ID != nil {
		if _, birth := d.f.ID.Birth(); birth > from { // neither the message nor a copy of it lies before
			from = startOf(birth)
		}
	}
	if !d.f.Since.IsZero() {
		for _, s := range d.r.Segments() {
			p := s.Base + firstPosition
			if s.Problem != "" || p <= from {
				continue
			}
			if rec, err := d.r.ReadRecord(p); err != nil || rec.Header.WallMs >= d.f.Since.UnixMilli() {
				break
			}
			from = p
		}
	}
	if from != first {
		if _, err := d.r.ReadRecord(from); err != nil {
			from = first // behind the end, or damaged: the scan says where
		}
	}
	known, err := d.learnSnapshot(dir)
	if err != nil || known || from == first {
		return from, err
	}
	_, err = d.r.Scan(first, func(r mmaplog.Record) error {
		if r.Header.Position >= from {
			return errEnough
		}
		if rec, err := d.state.decode(r.Header.Type, r.Payload); err == nil {
			d.names.learn(&rec)
		}
		return d.ctx.Err()
	})
	if err != nil && !errors.Is(err, errEnough) {
		return from, err
	}
	return from, nil
}

// learnSnapshot learns the names in the newest good snapshot.
func (d *dump) learnSnapshot(dir string) (known bool, err error) {
	store := storeOf(dir)
	list, err := listSnapshots(store)
	for _, position := range list {
		n := newNames()
		_, err := readSnapshot(store, position, n.learnRow)
		switch {
		case err == nil:
			d.names = n
			return true, nil
		case d.ctx.Err() != nil:
			return false, d.ctx.Err()
		}
	}
	return false, err
}

// record takes one record of the log or of a file that was moved aside.
func (d *dump) record(r mmaplog.Record) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	h := &r.Header
	if d.file == "" && (d.f.To > 0 && h.Position >= d.f.To || !d.f.Until.IsZero() && h.WallMs >= d.f.Until.UnixMilli()) {
		return errEnough // neither positions nor wall clocks fall
	}
	rec, broken := d.state.decode(h.Type, r.Payload)
	if broken == nil {
		d.names.learn(&rec)
		defer d.names.forget(&rec)
	}
	if !d.f.early(h) {
		return nil
	}
	if h.Type == codec.TypeMessage || h.Type == codec.TypeCopy {
		if p := codec.ParseMessagePlace(r.Assigned); !d.f.admits(&p, d.names) {
			return nil
		}
	}
	l := d.line(&r, &rec, broken)
	if !d.f.passes(l, &d.touched, d.names) {
		return nil
	}
	l.File = d.file
	if err := d.each(l); err != nil {
		return err
	}
	if d.given++; d.full() {
		return errEnough
	}
	return nil
}

// aside reads the files that were moved aside. What the log has, too, as it is there, is left out: of a segment that was cut
// the whole was copied.
func (d *dump) aside(dir string) error {
	files, err := asideSegments(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		d.file = f.name
		err := f.search(func(r mmaplog.Record) error {
			if there, err := d.r.ReadRecord(r.Header.Position); err == nil && there.Header.CRC == r.Header.CRC {
				return nil
			}
			return d.record(r)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}
