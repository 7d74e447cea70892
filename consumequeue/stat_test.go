package consumequeue

import (
	"os"
	"syscall"
)

func allocated(info os.FileInfo) int64 { return int64(info.Sys().(*syscall.Stat_t).Blocks) * 512 }
