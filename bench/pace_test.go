package bench

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestDue(t *testing.T) {
	for _, x := range []struct {
		rate int
		at   time.Duration
		want int
	}{{20_000, time.Second, 20_000}, {20_000, 50*time.Microsecond + 1, 2}, {20_000, 50 * time.Microsecond, 1}, {2, 500 * time.Millisecond, 1}, {2, 0, 0}, {9200, time.Hour, 33_120_000}} {
		if got := dueBy(x.rate, x.at); got != x.want {
			t.Errorf("%d/s for %v are %d, not %d", x.rate, x.at, got, x.want)
		}
	}
	// What is due before a moment is what dueAt puts there, for rates that do not divide a second, too.
	for _, rate := range []int{1, 3, 7, 380, 9200, 999_983} {
		for _, n := range []uint64{0, 1, 2, 1000, 123_456_789} {
			at := dueAt(n, rate)
			if before, with := dueBy(rate, at), dueBy(rate, at+1); uint64(before) > n || uint64(with) <= n {
				t.Errorf("message %d of %d/s: due at %v, but %d are due before and %d by then", n, rate, at, before, with)
			}
		}
	}
}

// A broker that stands still for a second: what was due meanwhile is sent at once, and its latencies tell of the second.
func TestAStallIsNotHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := newPacer(began, began.Add(3*time.Second), 100, 0)
		lane := newLane("send", 1)
		var sending sync.WaitGroup
		for range 4 { // as many are in flight at once
			c := lane.Recorder()
			sending.Go(func() {
				for {
					due, n := p.next(time.Now(), 1)
					if n == 0 {
						return
					}
					time.Sleep(time.Until(due))
					if at := time.Since(began); at >= time.Second && at < 2*time.Second { // the stall
						time.Sleep(2*time.Second - at)
					}
					time.Sleep(time.Millisecond)
					c.Record(due, time.Since(due), n)
				}
			})
		}
		sending.Wait()
		r := lane.rate()
		if r.Messages != 300 {
			t.Errorf("%d messages were sent, not 300", r.Messages)
		}
		// A third of them were due in the stall, and waited for half a second on average.
		if r.P50 > 200_000 || r.P90 < 500_000 || r.Max < 1_000_000 || r.Max > 1_100_000 {
			t.Errorf("p50 %v, p90 %v, max %v us", r.P50, r.P90, r.Max)
		}
	})
}

// Flat out a latency counts from the call, and no more messages are given out than were asked for.
func TestFlatOut(t *testing.T) {
	now := time.Now()
	p := newPacer(now, time.Time{}, 0, 10)
	for _, want := range []int{4, 4, 2, 0, 0} {
		if due, n := p.next(now, 4); n != want || due != now {
			t.Errorf("%d are due at %v, not %d", n, due, want)
		}
	}
	if !p.end().IsZero() {
		t.Errorf("flat out ends at %v", p.end())
	}
	p = newPacer(now, now.Add(time.Second), 0, 0)
	if _, n := p.next(now.Add(time.Second-1), 4); n != 4 {
		t.Error("nothing is due just before the end")
	}
	if _, n := p.next(now.Add(time.Second), 4); n != 0 {
		t.Error("something is due at the end")
	}
}

// At a rate as many are given out as are due in the time, whatever the batch is; and two messages a second take half a second
// each, the last one too.
func TestTheTimeOfARate(t *testing.T) {
	now := time.Now()
	for _, x := range []struct {
		until time.Duration
		most  uint64
		want  int
		end   time.Duration
	}{{time.Second, 0, 10, time.Second}, {time.Second, 7, 7, 700 * time.Millisecond}, {0, 12, 12, 1200 * time.Millisecond}, {time.Second, 20, 10, time.Second}} {
		until := time.Time{}
		if x.until > 0 {
			until = now.Add(x.until)
		}
		p, sum := newPacer(now, until, 10, x.most), 0
		for {
			due, n := p.next(now, 4)
			if n == 0 {
				break
			}
			if want := now.Add(time.Duration(sum) * time.Second / 10); due != want {
				t.Errorf("%+v: message %d is due at %v", x, sum, due.Sub(now))
			}
			sum += n
		}
		if sum != x.want || p.end() != now.Add(x.end) {
			t.Errorf("%+v: %d are given out until %v", x, sum, p.end().Sub(now))
		}
	}
}

// The warm-up is not counted, by when an operation began.
func TestTheWarmUpIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lane := newLane("send", 1)
		c := lane.Recorder()
		began := time.Now()
		lane.begin(began.Add(time.Second))
		c.Record(began, 5*time.Second, 7)
		c.Record(began.Add(time.Second), time.Millisecond, 3)
		lane.End(began.Add(2 * time.Second))
		if s := lane.gather(); s.warm != 7 || s.h.Count() != 3 {
			t.Errorf("%d of the warm-up, %d counted", s.warm, s.h.Count())
		}
		if r := lane.rate(); r.Messages != 3 || r.MessagesPerS != 3 || r.Max != 1000 {
			t.Errorf("%+v", r)
		}
		// The last flush is part of the time.
		lane.Flushed(began.Add(4 * time.Second))
		if r := lane.rate(); r.MessagesPerS != 1 || r.Answered != 3 || r.FlushSeconds != 2 {
			t.Errorf("%+v", r)
		}
	})
}
