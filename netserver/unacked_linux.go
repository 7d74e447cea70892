package netserver

import "golang.org/x/sys/unix"

// unackedBytes is what the socket has accepted and the other side has not acknowledged.
func unackedBytes(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}
