//go:build !linux

package bench

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// forget asks the system to give up what it has of a file in memory.
func forget(*os.File) error { return errors.ErrUnsupported }

// settle waits until nothing of a directory's file system is still to be written, as far as the system waits for that.
func settle(string) error {
	unix.Sync()
	return nil
}

// syncData brings what was written to a file to the disk.
func syncData(f *os.File) error { return f.Sync() }
