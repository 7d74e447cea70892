package lease

import (
	"math/rand/v2"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// afterExpiryMs is the wait after a lease that ended by time: long enough for a holder that is alive to
// settle late, short beside any lease worth having.
const afterExpiryMs = 1000

// levelsMs are the waits of protocol.BackOffLevels.
var levelsMs = [...]int64{
	10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
	600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
}

// FailureBackOffMs is how long a message waits after its n-th counted failure or session loss, n from 1. The
// exponential rule draws from the upper half of its interval, so that messages that failed together
// do not come back together. The outcome goes into the record.
func FailureBackOffMs(rules *codec.Rules, n int, r *rand.Rand) int64 {
	switch protocol.BackOff(rules.BackOff) {
	case protocol.BackOffNone:
		return 0
	case protocol.BackOffFixed:
		return int64(rules.BackOffMinMs)
	case protocol.BackOffLevels:
		return levelsMs[min(max(n, 1), len(levelsMs))-1]
	default:
		wait := int64(rules.BackOffMaxMs)
		if shift := max(n-1, 0); shift < 32 {
			wait = min(wait, int64(rules.BackOffMinMs)<<shift)
		}
		return wait - r.Int64N(wait/2+1)
	}
}
