package broker

import (
	"sync/atomic"
	"time"
)

// Clock is the time that the engine sees. Tests inject their own.
type Clock interface {
	// Mono is the time since some start; it never goes back.
	Mono() time.Duration
	// Wall is the calendar time.
	Wall() time.Time
}

// systemClock is the machine's.
type systemClock struct{ start time.Time }

func (c systemClock) Mono() time.Duration { return time.Since(c.start) }
func (c systemClock) Wall() time.Time     { return time.Now() }

// maxStepMs is the most that one tick moves the lease clock: what is missing from it is time in which
// the broker did not run, and nobody's lease pays for that.
const maxStepMs = 500

// leaseClock drives leases, back-offs, waits and sessions. It moves by ticks only, at most maxStepMs
// each, so that a stopped process, a slow disk or a step of the wall clock expires nothing; after a
// restart it goes on from the last stamp in the log. Ticks happen inside the section; Now and Fine may
// be called anywhere, but only inside the section do their two words belong together.
type leaseClock struct {
	ms   atomic.Int64
	last atomic.Int64 // monotonic ns of the newest tick
}

func (c *leaseClock) start(ms int64, mono time.Duration) {
	c.ms.Store(ms)
	c.last.Store(int64(mono))
}

// now is the clock as of the newest tick. What expires is judged by it, and records are stamped with it.
func (c *leaseClock) now() int64 { return c.ms.Load() }

// fine is the clock as of mono: ahead of now by the age of the newest tick. New deadlines are set from it,
// so that no lease is short by that age.
func (c *leaseClock) fine(mono time.Duration) int64 {
	return c.ms.Load() + min(max((int64(mono)-c.last.Load())/int64(time.Millisecond), 0), maxStepMs)
}

// tick moves the clock.
func (c *leaseClock) tick(mono time.Duration) int64 {
	last := c.last.Load()
	step := (int64(mono) - last) / int64(time.Millisecond)
	switch {
	case step <= 0:
	case step > maxStepMs:
		c.last.Store(int64(mono))
		c.ms.Add(maxStepMs)
	default:
		c.last.Store(last + step*int64(time.Millisecond)) // the rest of the millisecond counts next time
		c.ms.Add(step)
	}
	return c.ms.Load()
}
