package bench

import (
	"runtime"
	"runtime/debug"
)

// Machine is where a report's figures were taken. What the system does not tell is empty.
type Machine struct {
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"`
	MemoryBytes uint64 `json:"memory_bytes"`
	OS          string `json:"os"`
	Kernel      string `json:"kernel"`
	Filesystem  string `json:"filesystem"` // of the directories that benches make
	Go          string `json:"go"`
	Commit      string `json:"commit"`
	Version     string `json:"version"` // of leasemq
}

// commit may be set by the linker: -ldflags '-X github.com/leasemq/leasemq/bench.commit=...'. Empty: what the Go tool has noted.
var commit string

// thisMachine is the one that runs this program, on which it makes directories in dir.
func thisMachine(dir, version string) Machine {
	m := Machine{
		Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Version: version,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				m.Commit = s.Value + m.Commit
			case s.Key == "vcs.modified" && s.Value == "true":
				m.Commit += "+changes"
			}
		}
	}
	if commit != "" {
		m.Commit = commit
	}
	m.look(dir)
	return m
}
