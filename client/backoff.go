package client

import (
	"math/rand/v2"
	"time"
)

// backOff is the wait between attempts to connect: decorrelated jitter, each wait drawn between the least
// one and three times the one before, up to the most. Clients that lost the same broker at the same moment do
// not come back at the same moment.
type backOff struct{ last time.Duration }

func (b *backOff) reset() { b.last = 0 }

func (b *backOff) next() time.Duration { return b.within(maxBackOff) }

// within is next with another most.
func (b *backOff) within(most time.Duration) time.Duration {
	top := max(min(3*max(b.last, minBackOff), most), minBackOff)
	b.last = minBackOff + rand.N(top-minBackOff+1)
	return b.last
}
