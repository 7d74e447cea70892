package mmaplog

import (
	"cmp"
	"context"

	"github.com/leasemq/leasemq/codec"
)

// Scan gives fn the records that begin in [from, to) in log order, the log's own included, and waits for the disk.
// from is a record boundary. It reads files, so it stops at the first record that was not yet
// written as a whole when it began. Any goroutine may scan, after Open.
//
// A bad record is a *RecordError. A scan that meets a removed segment ends with ErrRemoved; a segment that it is
// reading stays readable to it, and does not keep the file from being removed.
func (l *Log) Scan(ctx context.Context, from, to uint64, fn func(Record) error) error {
	written := l.written.Load()
	done := ctx.Done()
	each := func(r Record) error {
		select {
		case <-done:
			return ctx.Err()
		default:
			return fn(r)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var c chain
	var buf []byte
	for from < min(to, written) {
		stop, used, err := l.scanSegment(&c, buf, from, to, written, each)
		if err != nil {
			return err
		}
		if !stop.ended {
			return nil
		}
		buf, from = used, l.geo.first(l.geo.segment(from)+1)
	}
	return nil
}

// scanSegment is the part of a Scan in the segment of from, with the buffer of the one before.
func (l *Log) scanSegment(c *chain, buf []byte, from, to, written uint64, fn func(Record) error) (scanStop, []byte, error) {
	seg, err := l.segmentOf(from)
	if err != nil {
		return scanStop{}, nil, err
	}
	defer seg.release()
	base, off := l.geo.base(seg.index), l.geo.offset(from)
	s := segmentScan{file: seg.file, path: seg.path, base: base, size: int64(l.geo.segmentBytes), buf: buf}
	// Where a bound lies in this segment it is an offset above 0, because from lies below both.
	if to-base < l.geo.segmentBytes {
		s.to = int64(to - base)
	}
	if written-base < l.geo.segmentBytes {
		s.have = int64(written - base)
	}
	if off < segmentHeaderBytes || off%codec.Align != 0 {
		return scanStop{}, nil, &RecordError{File: seg.path, Offset: off, Position: from, What: "no record can begin there"}
	}
	stop, err := s.run(c, off, fn)
	if err == nil && !stop.ended && !stop.bounded {
		err = &RecordError{File: seg.path, Offset: stop.off, Position: base + uint64(stop.off), What: cmp.Or(stop.why, "the records stop")}
	}
	return stop, s.buf, err
}

// ReadHeader reads and checks (length, own position, CRC) the record at a position below Written and returns its header.
// It waits for the disk. The error is a *RecordError where there is no good record, wraps ErrRemoved where
// there is none any more, else is one of reading.
func (l *Log) ReadHeader(position uint64) (codec.Header, error) {
	written := l.written.Load()
	if position >= written {
		return codec.Header{}, &RecordError{File: l.dir, Position: position, What: "it was not written yet"}
	}
	seg, err := l.segmentOf(position)
	if err != nil {
		return codec.Header{}, err
	}
	defer seg.release()
	base := l.geo.base(seg.index)
	s := segmentScan{file: seg.file, path: seg.path, base: base}
	r, err := s.readRecord(l.geo.offset(position), int64(min(written-base, l.geo.segmentBytes)))
	return r.Header, err
}

// SegmentEnd is the base of the segment behind the one that position lies in.
func (l *Log) SegmentEnd(position uint64) uint64 { return l.geo.base(l.geo.segment(position) + 1) }
