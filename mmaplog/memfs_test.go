package mmaplog

import (
	"os"

	"github.com/leasemq/leasemq/mmaplog/crashfs"
)

// memFS is the disk of the tests: see package crashfs.
type memFS = crashfs.FS[File, Mapping]

func newMemFS() *memFS {
	fs := crashfs.New[File, Mapping]()
	fs.Locked = func() error { return &LockedError{PID: os.Getpid()} }
	return fs
}
