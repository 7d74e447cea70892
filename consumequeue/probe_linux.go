package consumequeue

import "golang.org/x/sys/unix"

// dontReadAhead keeps the kernel from reading more of a file than is asked for: what it has in memory looks like data to whoever
// asks where a file has some. It is a wish only.
func dontReadAhead(fd int) { _ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) }
