package bench

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// filesystems are names of magic numbers (statfs(2)).
var filesystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
	unix.FUSE_SUPER_MAGIC: "fuse", unix.V9FS_MAGIC: "9p",
}

func (m *Machine) look(dir string) {
	m.CPU = procField("/proc/cpuinfo", "model name")
	var kb uint64
	if _, err := fmt.Sscan(procField("/proc/meminfo", "MemTotal"), &kb); err == nil {
		m.MemoryBytes = kb << 10
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	if dir == "" {
		dir = os.TempDir()
	}
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil {
		if m.Filesystem = filesystems[int64(fs.Type)]; m.Filesystem == "" {
			m.Filesystem = fmt.Sprintf("%#x", fs.Type)
		}
	}
}

// procField is the value of the first line of a file that begins with name.
func procField(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
