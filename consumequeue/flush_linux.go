package consumequeue

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// flushFileSystem makes durable all that is stored in the file system of dir.
func flushFileSystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return &openError{err}
	}
	defer d.Close()
	for {
		if err := unix.Syncfs(int(d.Fd())); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("syncfs", err)
		}
	}
}
