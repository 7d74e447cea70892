//go:build !linux

package broker

import (
	"time"

	"golang.org/x/sys/unix"
)

// processUse is the processor time of this process. How much of its memory is no file's is only known on Linux.
func processUse() (cpu time.Duration, rssAnon uint64) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) == nil {
		cpu = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return cpu, 0
}
