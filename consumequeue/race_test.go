//go:build race

package consumequeue

// Under the race detector pools drop things at random, so counting allocations means nothing.
const raceDetector = true
