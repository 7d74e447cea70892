//go:build !linux

package bench

import (
	"errors"
	"os"
)

// forget asks the system to give up what it has of a file in memory.
func forget(*os.File) error { return errors.ErrUnsupported }

// syncData brings what was written to a file to the disk.
func syncData(f *os.File) error { return f.Sync() }
