package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is where the figures were taken.
type machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Memory     string `json:"memory"`
	Kernel     string `json:"kernel"`
	Filesystem string `json:"filesystem"`
	Go         string `json:"go"`
	Commit     string `json:"commit"`
}

func thisMachine(root, dir string) machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: field("/proc/cpuinfo", "model name"), Filesystem: filesystem(dir)}
	var kb int
	if _, err := fmt.Sscan(field("/proc/meminfo", "MemTotal"), &kb); err == nil {
		m.Memory = fmt.Sprintf("%d GiB", (kb+1<<19)>>20)
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	out, _ := exec.Command("git", "-C", root, "describe", "--always", "--dirty").Output()
	m.Commit = strings.TrimSpace(string(out))
	return m
}

// field is the value of the first line of a file that begins with name.
func field(path, name string) string {
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

func filesystem(dir string) string {
	out, _ := exec.Command("stat", "--file-system", "--format", "%T", dir).Output()
	return strings.TrimSpace(string(out))
}

// syncDir brings everything that was written to the file system of dir to the disk.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
