package consumequeue

import "syscall"

// mediumErrors is what the kernel gives for what a disk has lost: the device says so, or the file system's own checksums and
// structures do (EBADMSG and EUCLEAN of XFS, ext4 and f2fs).
var mediumErrors = []syscall.Errno{syscall.EIO, syscall.EREMOTEIO, syscall.ENODATA, syscall.EBADMSG, syscall.EUCLEAN}
