package bench

import (
	"sync"
	"time"
)

// Lane is one kind of operation in a report: sends, or pops with their acks, or the way from a send to a handler.
// Its Recorders are filled by many goroutines; what they hold is gathered now and then by the run's sampler.
type Lane struct {
	name string
	main bool // the workload is about it: a goal that names no lane is one of each main lane
	size int  // bytes of a body

	mu        sync.Mutex
	recorders []*Recorder
	turn      int       // of the recorder that is shared next, when there are enough
	total     Histogram // gathered so far, warm-up excluded
	errors    uint64
	from, to  time.Time // the clock: from the end of the warm-up; to is zero until End
	flushed   time.Time // when the log was on the disk; zero: nobody waited for that
}

// Recorder takes what goroutines of a lane have measured. It is held for some tens of ns a batch, so its mutex is free nearly
// always.
type Recorder struct {
	mu         sync.Mutex
	from       time.Time // what began earlier is warm-up
	now, spare *Histogram
	warm       uint64 // messages of the warm-up, since the last gathering
	errors     uint64 // since the last gathering
}

// newLane makes a lane whose clock begins now; a run's lanes begin with the run.
func newLane(name string, size int) *Lane { return &Lane{name: name, size: size, from: time.Now()} }

// mostRecorders bounds what a gathering costs, 0.2 ms of processor time a recorder, which the broker then lacks; and the memory of a
// lane: a recorder has up to 0.6 MB.
const mostRecorders = 8

// Recorder is one for a goroutine, which may share it with others.
func (l *Lane) Recorder() *Recorder {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.recorders); n >= mostRecorders {
		l.turn++
		return l.recorders[l.turn%n]
	}
	c := &Recorder{from: l.from, now: new(Histogram), spare: new(Histogram)}
	l.recorders = append(l.recorders, c)
	return c
}

// begin sets the clock back to from.
func (l *Lane) begin(from time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from = from
	for _, c := range l.recorders {
		c.mu.Lock()
		c.from = from
		c.mu.Unlock()
	}
}

// Record counts n messages of an operation that began, or was due, at a moment and took so long. What began in the warm-up
// is part of the throughput over time and of nothing else.
func (c *Recorder) Record(began time.Time, took time.Duration, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began.Before(c.from) {
		c.warm += uint64(n)
		return
	}
	c.now.Record(took, n)
}

// Fail counts n messages for which a call failed.
func (c *Recorder) Fail(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors += uint64(n)
}

// End stops the clock at a moment; of several the last one counts.
func (l *Lane) End(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.to) {
		l.to = at
	}
}

// Flushed stops the clock when the log is on the disk; End was when the last answer was there.
func (l *Lane) Flushed(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushed = at
}

// slice is what a lane did between two gatherings.
type slice struct {
	h    Histogram
	warm uint64
}

// gather takes what the recorders hold.
func (l *Lane) gather() (s slice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.recorders {
		c.mu.Lock()
		full, warm, failed := c.now, c.warm, c.errors
		c.now, c.spare, c.warm, c.errors = c.spare, nil, 0, 0
		c.mu.Unlock()
		s.h.Merge(full)
		s.warm += warm
		l.errors += failed
		full.Reset()
		c.mu.Lock()
		c.spare = full
		c.mu.Unlock()
	}
	l.total.Merge(&s.h)
	return s
}

// rate sums the lane up.
func (l *Lane) rate() Rate {
	l.gather()
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.to
	if to.IsZero() {
		to = time.Now()
	}
	answered := max(to.Sub(l.from), time.Nanosecond)
	r := rateOf(&l.total, l.errors, l.size, max(l.flushed.Sub(l.from), answered))
	if !l.flushed.IsZero() {
		r.Answered = float64(r.Messages) / answered.Seconds()
		r.FlushSeconds = max(l.flushed.Sub(to), 0).Seconds()
	}
	return r
}

// percentiles are the points of the lane's percentile plot: share of all, and the latency that it does not pass.
func (l *Lane) percentiles() (points []Percentile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total.Count() == 0 {
		return nil
	}
	for _, p := range percentilePoints {
		points = append(points, Percentile{P: p, Us: microseconds(l.total.Quantile(p / 100))})
	}
	return points
}

// percentilePoints end where a run of some million messages has a hundred left.
var percentilePoints = []float64{
	0, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 96, 97, 98, 99, 99.5, 99.75, 99.9, 99.95, 99.99, 99.995, 99.999, 100,
}
