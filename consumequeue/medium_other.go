//go:build !linux

package consumequeue

import "syscall"

var mediumErrors = []syscall.Errno{syscall.EIO, syscall.ENODATA, syscall.EBADMSG}
