package mmaplog

import (
	"sync/atomic"
	"time"
)

// Stats are counters of this run and gauges of this moment.
type Stats struct {
	Appended, Written, Synced uint64

	Writes, WrittenBytes  int64 // steps of the writer and the bytes in them
	Flushes, FlushedBytes int64 // FlushedBytes/Flushes is the batch that shared a flush
	FlushTime, FlushMax   time.Duration
	BoundWaits            int64 // the writer waited because too much was unsynced
	SegmentWaits          int64 // the writer waited for a segment to be made
	Populates             int64 // of mapped segments, ahead of the writer
	PopulatedBytes        int64
	PopulateTime          time.Duration
	SegmentsMade          int64
	SegmentsRemoved       int64

	Segments      int
	RingUsed      int64 // appended and not written
	Unsynced      int64 // written and not synced
	UnsyncedLimit int64 // what Unsynced may reach under SyncInterval
	UnsyncedAge   time.Duration
	DiskRate      int64 // bytes a second, as flushes showed it; 0 if not known
	DiskFull      bool
}

// counters are the parts of Stats that are counted.
type counters struct {
	writes, writtenBytes                     atomic.Int64
	flushes, flushedBytes                    atomic.Int64
	flushNanos, flushMaxNanos                atomic.Int64
	boundWaits, segmentWaits                 atomic.Int64
	populates, populatedBytes, populateNanos atomic.Int64
	segmentsMade, segmentsRemoved            atomic.Int64
	dirtySince                               atomic.Int64 // unix nanoseconds; means something while written > synced
}

// flushed counts one flush. The flusher.
func (c *counters) flushed(took time.Duration, bytes int64) {
	c.flushes.Add(1)
	c.flushedBytes.Add(bytes)
	c.flushNanos.Add(int64(took))
	if int64(took) > c.flushMaxNanos.Load() {
		c.flushMaxNanos.Store(int64(took))
	}
}

// Stats returns the figures; they are read one after another.
func (l *Log) Stats() Stats {
	c := &l.stats
	s := Stats{
		Synced:         l.Synced(),
		Written:        l.Written(),
		Appended:       l.Appended(),
		Writes:         c.writes.Load(),
		WrittenBytes:   c.writtenBytes.Load(),
		Flushes:        c.flushes.Load(),
		FlushedBytes:   c.flushedBytes.Load(),
		FlushTime:      time.Duration(c.flushNanos.Load()),
		FlushMax:       time.Duration(c.flushMaxNanos.Load()),
		BoundWaits:     c.boundWaits.Load(),
		SegmentWaits:   c.segmentWaits.Load(),
		Populates:      c.populates.Load(),
		PopulatedBytes: c.populatedBytes.Load(),
		PopulateTime:   time.Duration(c.populateNanos.Load()),
		SegmentsMade:   c.segmentsMade.Load(),
		Segments:       len(l.segments.Load().list),
		UnsyncedLimit:  l.unsynced.limit.Load(),
		DiskRate:       l.unsynced.rate.Load(),
		DiskFull:       l.DiskFull(),

		SegmentsRemoved: c.segmentsRemoved.Load(),
	}
	s.RingUsed = int64(s.Appended - s.Written)
	s.Unsynced = int64(s.Written - s.Synced)
	if s.Unsynced > 0 {
		s.UnsyncedAge = time.Duration(max(0, time.Now().UnixNano()-c.dirtySince.Load()))
	}
	return s
}
