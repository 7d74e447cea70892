package mmaplog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// osFS is the file system of the machine.
type osFS struct{}

// OS is the file system of the machine, for tests that put faults in front of it.
var OS FS = osFS{}

func (osFS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o755) }

func (osFS) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f}, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Remove(name string) error     { return os.Remove(name) }
func (osFS) SyncDir(dir string) error     { return SyncDir(dir) }

func (osFS) Space(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	block := int64(s.Bsize)
	return int64(s.Bavail) * block, int64(s.Blocks) * block, nil
}

// LockedError says that another process has the data directory.
type LockedError struct {
	Dir string
	PID int // 0 if the lock file did not say
}

func (e *LockedError) Error() string {
	pid := "pid unknown"
	if e.PID != 0 {
		pid = "pid " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("data directory %s is in use by another leasemq broker (%s)", e.Dir, pid)
}

// Lock takes the lock file with flock, which ends with the process however it ends. The pid inside is for
// the message only.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		held, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			pid, _ := strconv.Atoi(strings.TrimSpace(string(held)))
			return nil, &LockedError{PID: pid}
		}
		return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(pid), 0)
	}
	if err != nil && !IsShortage(err) { // a full disk must not keep the broker from starting
		f.Close()
		return nil, err
	}
	return f, nil
}

// osFile is a file of the machine. It keeps the *os.File and never the bare descriptor: with the
// *os.File gone its finalizer closes the descriptor, and the number becomes somebody's socket.
type osFile struct{ f *os.File }

var _ File = (*osFile)(nil)

func (o *osFile) ReadAt(b []byte, off int64) (int, error)     { return o.f.ReadAt(b, off) }
func (o *osFile) WriteAt(b []byte, off int64) (int, error)    { return o.f.WriteAt(b, off) }
func (o *osFile) ReadNoWait(b []byte, off int64) (int, error) { return readNoWait(o.f, b, off) }
func (o *osFile) Close() error                                { return o.f.Close() }
func (o *osFile) Sync() error                                 { return o.f.Sync() }
func (o *osFile) Datasync() error                             { return o.wrap("fdatasync", datasync(o.f)) }
func (o *osFile) Allocate(off, n int64) error                 { return o.wrap("allocate", allocate(o.f, off, n)) }
func (o *osFile) ZeroRange(off, n int64) error {
	return o.wrap("zero", zeroRange(o.f, off, n))
}

func (o *osFile) Size() (int64, error) {
	info, err := o.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (o *osFile) Map() (Mapping, error) {
	m, err := mapFile(o.f)
	if err != nil {
		return nil, o.wrap("map", err)
	}
	return m, nil
}

func (o *osFile) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: o.f.Name(), Err: err}
}
