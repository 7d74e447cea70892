package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, in which /proc counts processor time on every platform that Go runs on.
const ticksPerSecond = 100

// processOf is what a process has used, from /proc (proc_pid_stat(5), proc_pid_status(5)).
func processOf(pid int) (u processUse, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	// The name of the program, in brackets, may hold anything; fields are counted from behind it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return u, errors.New("bench: /proc/PID/stat is too short")
	}
	for _, field := range fields[11:13] { // utime, stime
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return u, fmt.Errorf("bench: /proc/PID/stat: %w", err)
		}
		u.cpu += time.Duration(ticks) * (time.Second / ticksPerSecond)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	if _, rest, ok := strings.Cut(string(status), "\nRssAnon:"); ok {
		var kb uint64
		if _, err := fmt.Sscan(rest, &kb); err != nil {
			return u, fmt.Errorf("bench: /proc/PID/status: %w", err)
		}
		u.rssAnon = kb << 10
	}
	return u, nil
}
