//go:build !linux

package consumequeue

func dontReadAhead(int) {}
