package bench

import (
	"context"
	"sync/atomic"
	"time"
)

// pacer says when messages are due. With a rate, message n, counted from 0, is due n/rate after the beginning, however slow the
// answers are: whoever is late sends at once, and the latency counts from when the message was due. Without one a message
// is due when somebody asks, and latencies count from then.
type pacer struct {
	began time.Time
	until time.Time // without a rate: no message begins later; zero: no end by time
	rate  int       // 0: no rate
	most  uint64    // messages in all
	taken atomic.Uint64
}

// newPacer makes one. until may be zero, and most 0: there is no end by time, or by number.
func newPacer(began, until time.Time, rate int, most uint64) *pacer {
	if most == 0 {
		most = ^uint64(0)
	}
	if rate > 0 && !until.IsZero() {
		most = min(most, uint64(dueBy(rate, until.Sub(began))))
	}
	return &pacer{began: began, until: until, rate: rate, most: most}
}

// next claims up to n messages, which are sent together when the first of them is due. n is 0 when there are no more. The
// caller waits until then, and sends.
func (p *pacer) next(now time.Time, n int) (due time.Time, _ int) {
	if p.rate == 0 && !p.until.IsZero() && !now.Before(p.until) {
		return now, 0
	}
	first := p.taken.Add(uint64(n)) - uint64(n)
	if first >= p.most {
		return now, 0
	}
	n = int(min(uint64(n), p.most-first))
	if p.rate == 0 {
		return now, n
	}
	return p.began.Add(dueAt(first, p.rate)), n
}

// end is until when the messages of a rate take: when one more would be due. Without a rate it is zero: they take until
// the last answer. (Two messages at 2/s take a second, not half of one.)
func (p *pacer) end() time.Time {
	if p.rate == 0 {
		return time.Time{}
	}
	return p.began.Add(dueAt(p.most, p.rate))
}

// dueAt is when message n of a rate is due, from the beginning.
func dueAt(n uint64, rate int) time.Duration {
	seconds, rest := n/uint64(rate), n%uint64(rate)
	return time.Duration(seconds)*time.Second + time.Duration(rest*uint64(time.Second)/uint64(rate))
}

// dueBy is how many messages are due before a moment, from the beginning.
func dueBy(rate int, at time.Duration) int {
	if at <= 0 {
		return 0
	}
	seconds, rest := at/time.Second, at%time.Second
	return int(seconds)*rate + int((uint64(rest)*uint64(rate)+uint64(time.Second)-1)/uint64(time.Second))
}

// sleep waits, or says why ctx has ended before.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
