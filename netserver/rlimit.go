package netserver

import "golang.org/x/sys/unix"

// raiseFileLimit raises the number of files that the process may open to what the system allows it, and
// returns the limit that is then in force. (Go does so at start, unless the limit was set through it.)
func raiseFileLimit() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 2 * reservedFiles
	}
	if l.Cur < l.Max {
		raised := l
		raised.Cur = l.Max
		// Some systems name a maximum that they do not grant; then the former limit stands.
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
			return uint64(raised.Cur)
		}
	}
	return uint64(l.Cur)
}

// connectionCap is the default of Options.MaxConnections under a limit on files. Where the limit leaves
// little beside the reserve, connections get half of it.
func connectionCap(fileLimit uint64) int {
	n := fileLimit / 2
	if fileLimit >= 2*reservedFiles {
		n = fileLimit - reservedFiles
	}
	return int(max(1, min(n, DefaultMaxConnections)))
}
