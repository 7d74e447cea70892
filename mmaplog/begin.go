package mmaplog

import (
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
)

// Found is the log's files before anything in them was read, for Options.Begin. It must not be kept.
type Found struct {
	First        uint64 // position of the first record of the oldest segment; 0 if there is no segment
	End          uint64 // behind the last segment's last byte; 0 if there is no segment
	SegmentBytes int64

	v *recoverer
}

// ReadHeader reads and checks (length, own position, CRC) the record at a position and returns its header. The
// error is a *RecordError where there is no good record, wraps ErrRemoved below First, else is one of reading.
func (f *Found) ReadHeader(position uint64) (codec.Header, error) {
	index := f.v.l.geo.segment(position)
	switch {
	case len(f.v.files) == 0 || index >= f.v.end():
		return codec.Header{}, &RecordError{File: f.v.l.dir, Position: position, What: fmt.Sprintf("the last segment ends at position %d", f.End)}
	case index < f.v.first:
		return codec.Header{}, removed(position, f.First)
	}
	r, err := f.v.readRecord(position)
	return r.Header, err
}

// From is a record boundary below which everything is known to be durable and folded already: what a
// snapshot vouches for. Position 0: replay from the first record there is.
type From struct {
	Position     uint64 // of the next record: behind the one at LastPosition, or the first of the next segment
	LastPosition uint64 // of the last record below Position
	LastCRC      uint32
	// Of that last record: what the records from Position on must fit on to.
	Epoch   uint32
	LeaseMs int64
	WallMs  int64

	// Durable is a position below which everything was durable once, as another snapshot says, one that the log does not have the
	// records of: if the log ends before it that is damage. 0: there is no such witness.
	Durable uint64
}

// begin asks where replay begins and checks the answer against the files. The chain starts there: everything
// below is durable, so the rewriting of what no promise covers never goes below it.
func (v *recoverer) begin() error {
	found := &Found{SegmentBytes: v.r.SegmentBytes, v: v}
	if len(v.files) > 0 {
		found.First, found.End = v.l.geo.first(v.first), v.l.geo.base(v.end())
	}
	var from From
	if ask := v.l.o.Begin; ask != nil {
		var err error
		if from, err = ask(found); err != nil {
			return fmt.Errorf("mmaplog: where replay begins: %w", err)
		}
	}
	v.durable = from.Durable
	if from.Position != 0 {
		return v.anchor(from)
	}
	if v.first > 0 {
		return missing(v.l.dir, v.l.geo.base(v.first-1),
			fmt.Sprintf("the log begins behind it, with %s, and no snapshot covers it", segmentName(v.l.geo.base(v.first))))
	}
	v.start = v.l.geo.first(0)
	return nil
}

// anchor checks that the log has the record that from ends with, and that from.Position follows it.
func (v *recoverer) anchor(from From) error {
	geo, pos, last := v.l.geo, from.Position, from.LastPosition
	index, lastIndex := geo.segment(pos), geo.segment(last)
	refuse := func(path string, at uint64, format string, args ...any) error {
		return &AnchorError{File: path, Position: at, What: fmt.Sprintf(format, args...)}
	}
	v.start, v.r.From, v.chain.promise = pos, pos, pos
	switch {
	case len(v.files) == 0:
		return refuse(v.l.dir, pos, "there is no segment file")
	case index > v.end() || index == v.end() && pos != geo.first(index):
		return refuse(v.l.dir, pos, "the last segment ends at position %d", geo.base(v.end()))
	case geo.offset(pos) < segmentHeaderBytes || pos%codec.Align != 0:
		return refuse(v.l.dir, pos, "no record can begin there")
	case index < v.first:
		return missing(v.l.dir, geo.base(index),
			fmt.Sprintf("the log begins behind it, with %s, and the oldest snapshot needs it from position %d on", segmentName(geo.base(v.first)), pos))
	case pos == geo.first(v.first) && last < pos && (index == 0 || lastIndex+1 == index):
		// The segment with the last record was removed, or there never was a record: nothing to compare with.
		v.chain.last = codec.Header{Position: last, CRC: from.LastCRC, Epoch: from.Epoch, LeaseMs: from.LeaseMs, WallMs: from.WallMs}
		return nil
	case last >= pos || lastIndex < v.first || index-lastIndex > 1:
		return refuse(v.l.dir, pos, "no record at position %d can be the last one before it", last)
	}
	r, err := v.readRecord(last)
	if bad, ok := errors.AsType[*RecordError](err); ok {
		return refuse(bad.File, last, "%s", bad.What)
	} else if err != nil {
		return err
	}
	h, path := r.Header, v.files[lastIndex-v.first].path
	switch {
	case h.CRC != from.LastCRC:
		return refuse(path, last, "the record there has the checksum %08x, not %08x", h.CRC, from.LastCRC)
	case h.Epoch != from.Epoch || h.LeaseMs != from.LeaseMs || h.WallMs != from.WallMs:
		return refuse(path, last, "the record there has epoch %d and clocks %d ms and %d ms, not %d, %d ms and %d ms",
			h.Epoch, h.LeaseMs, h.WallMs, from.Epoch, from.LeaseMs, from.WallMs)
	}
	next := v.behind(h)
	if next != pos && index > lastIndex && h.Type != codec.TypeSegmentEnd { // only the log's own closing record may lie between
		if r, err := v.readRecord(next); err == nil && r.Header.Type == codec.TypeSegmentEnd {
			h = r.Header
			next = v.behind(h)
		}
	}
	if next != pos {
		return refuse(path, pos, "the record at position %d is followed by position %d", last, next)
	}
	v.chain.last = h
	return nil
}

// behind is the position of the record behind the one with header h.
func (v *recoverer) behind(h codec.Header) uint64 {
	if h.Type == codec.TypeSegmentEnd {
		return v.l.geo.first(v.l.geo.segment(h.Position) + 1)
	}
	return h.Position + uint64(codec.Padded(int(h.Length)))
}

// readRecord reads the record at a position that lies in one of the files.
func (v *recoverer) readRecord(position uint64) (Record, error) {
	s := v.scanOf(v.l.geo.segment(position), nil)
	return s.readRecord(v.l.geo.offset(position), s.size)
}
