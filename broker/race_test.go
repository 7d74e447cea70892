//go:build race

package broker

// The race detector makes everything ten times slower: random tests run fewer histories.
const raceDetector = true
