//go:build !race

package consumequeue

const raceDetector = false
