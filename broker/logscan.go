package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

const (
	// searchBytes is how much is read at once to find where records go on behind damage, leastSearchBytes where the disk does not
	// give that much back.
	searchBytes      = 1 << 20
	leastSearchBytes = 4 << 10
	// positionAt is where a record's header has its own position.
	positionAt = 16
	// leastMessageBytes is the size of the smallest MESSAGE record there can be.
	leastMessageBytes = codec.HeaderBytes + codec.MessageAssignedBytes
)

// mostDamageLines is how many places of damage a scan writes to the log: the first.
const mostDamageLines = 10

var errNoRecord = errors.New("no good record lies there")

// logScan reads the whole log for its messages, and goes on behind damage: with the next good record of the segment. What the disk
// does not give back is as good as damaged. So when it ends without an error, what it has not found is in the log no more.
type logScan struct {
	log     *mmaplog.Log
	to      uint64 // a record boundary that was committed
	fn      func(mmaplog.Record) error
	damaged func(position uint64, why error) // a place where a record of a message was, or several; they come in order

	next        uint64 // where the next record should begin
	places      int    // at which damaged was told of
	window, raw []byte
}

// run scans what is in the log. Segments that retention removes meanwhile are passed over. The error is that of the context or
// of fn, or the log was closed.
func (s *logScan) run(ctx context.Context) error {
	s.next = s.log.First()
	for s.next < s.to {
		var failed error
		err := s.log.Scan(ctx, s.next, s.to, func(r mmaplog.Record) error {
			failed = s.give(r)
			return failed
		})
		switch {
		case err == nil && s.next < s.to:
			return fmt.Errorf("broker: a scan of the log up to position %d ended at %d", s.to, s.next)
		case err != nil && failed == nil && !ends(ctx, err):
			err = s.walk(ctx, err)
		}
		if first := s.log.First(); errors.Is(err, mmaplog.ErrRemoved) && first > s.next {
			s.next = first
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ends tells an error that says nothing about what is on the disk.
func ends(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, mmaplog.ErrClosed) || errors.Is(err, mmaplog.ErrRemoved)
}

// give hands out a record and steps behind it.
func (s *logScan) give(r mmaplog.Record) error {
	if err := s.fn(r); err != nil {
		return err
	}
	s.next = r.Header.Position + uint64(codec.Padded(int(r.Header.Length)))
	if r.Header.Type == codec.TypeSegmentEnd {
		s.next = s.log.SegmentEnd(r.Header.Position) + firstPosition
	}
	return nil
}

// walk reads the rest of a segment, from damage on, record by record.
func (s *logScan) walk(ctx context.Context, why error) error {
	segmentEnd := s.log.SegmentEnd(s.next)
	end := min(segmentEnd, s.to)
	good := true
	for s.next < end {
		r, err := s.read(end)
		if err == nil {
			good = true
			if err := s.give(r); err != nil {
				return err
			}
			continue
		}
		if ends(ctx, err) {
			return errors.Join(ctx.Err(), err)
		}
		if good && s.next+leastMessageBytes <= segmentEnd {
			s.places++
			s.damaged(s.next, why)
		}
		good = false
		if s.next, err = s.search(ctx, end); err != nil {
			return err
		}
	}
	if s.next == segmentEnd {
		s.next += firstPosition
	}
	return nil
}

// read reads and checks the record at next, which ends at end or below.
func (s *logScan) read(end uint64) (r mmaplog.Record, err error) {
	if s.next+codec.HeaderBytes > end {
		return r, errNoRecord
	}
	s.raw = append(s.raw[:0], make([]byte, codec.HeaderBytes)...)
	if err = s.log.ReadAt(s.raw, s.next); err != nil {
		return r, err
	}
	h := codec.ParseHeader(s.raw)
	if h.Position != s.next || h.Length < codec.HeaderBytes || uint64(h.Length) > end-s.next {
		return r, errNoRecord
	}
	s.raw = append(s.raw, make([]byte, h.Length-codec.HeaderBytes)...)
	if err = s.log.ReadAt(s.raw, s.next); err != nil {
		return r, err
	}
	r.Raw = s.raw
	r.Header, r.Assigned, r.Payload, err = codec.ReadRecord(s.raw)
	return r, err
}

// search finds where the next record behind a bad one could begin: behind its length if that is good, else at the next place that
// names its own position. It gives end if there is none.
func (s *logScan) search(ctx context.Context, end uint64) (uint64, error) {
	bad := s.next
	var head [codec.HeaderBytes]byte
	if bad+codec.HeaderBytes <= end && s.log.ReadAt(head[:], bad) == nil {
		if h := codec.ParseHeader(head[:]); h.Position == bad && h.Length >= codec.HeaderBytes && uint64(h.Length) < end-bad {
			s.next = bad + uint64(codec.Padded(int(h.Length)))
			_, err := s.read(end)
			if err == nil {
				return s.next, nil
			}
		}
	}
	if s.window == nil {
		s.window = make([]byte, searchBytes)
	}
	size := uint64(searchBytes)
	for at := bad + codec.Align; at+codec.HeaderBytes <= end; {
		window := s.window[:min(size, end-at)&^(codec.Align-1)]
		err := s.log.ReadAt(window, at)
		switch {
		case ctx.Err() != nil:
			return bad, ctx.Err()
		case err != nil && ends(ctx, err):
			return bad, err
		case err != nil && size > leastSearchBytes:
			size = leastSearchBytes
			continue
		case err != nil:
			at += uint64(len(window))
			continue
		}
		i := 0
		for ; i+positionAt+8 <= len(window); i += codec.Align {
			if binary.LittleEndian.Uint64(window[i+positionAt:]) == at+uint64(i) {
				return at + uint64(i), nil
			}
		}
		at += uint64(i)
	}
	return end, nil
}
