package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// forget asks the system to give up what it has of a file in memory.
func forget(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }
