package broker

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processUse is the processor time of this process, and how much of its memory is no file's.
func processUse() (cpu time.Duration, rssAnon uint64) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) == nil {
		cpu = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return cpu, 0
	}
	if _, rest, ok := strings.Cut(string(status), "\nRssAnon:"); ok {
		var kb uint64
		if _, err := fmt.Sscan(rest, &kb); err == nil {
			rssAnon = kb << 10
		}
	}
	return cpu, rssAnon
}
