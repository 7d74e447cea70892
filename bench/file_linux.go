package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// forget asks the system to give up what it has of a file in memory.
func forget(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }

// settle waits until nothing of a directory's file system is still to be written.
func settle(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// syncData brings what was written to a file to the disk, and of what describes it only what is needed to read it.
func syncData(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
