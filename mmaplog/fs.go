package mmaplog

import (
	"errors"
	"io"
	"io/fs"
	"syscall"
)

// FS is what the log needs of a file system. The real one is osFS; tests put one in its place that fails
// at the nth operation or forgets what was not synced.
type FS interface {
	MkdirAll(dir string) error
	// ReadDir returns the names in a directory.
	ReadDir(dir string) ([]string, error)
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes the directory's entries durable.
	SyncDir(dir string) error
	// Space is how many bytes the file system of dir has free for us, and how many it has.
	Space(dir string) (free, total int64, err error)
	// Lock locks a file against other processes until it is closed: a *LockedError if one holds it.
	Lock(name string) (io.Closer, error)
}

// File is an open file. ReadAt, WriteAt and ReadNoWait may run beside each other and beside Datasync; Close
// only when nothing else does.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// ReadNoWait reads what is in memory, perhaps less than asked for; ErrWouldBlock if the first byte is not.
	ReadNoWait(b []byte, off int64) (int, error)
	Size() (int64, error)
	// Allocate gives a range disk blocks, growing the file; new bytes read as zeroes.
	Allocate(off, n int64) error
	// ZeroRange makes an allocated range read as zeroes.
	ZeroRange(off, n int64) error
	// Sync makes bytes and metadata durable, Datasync the bytes and what is needed to read them.
	Sync() error
	Datasync() error
	// Map maps the whole file for reading and writing. The mapping outlives the File.
	Map() (Mapping, error)
}

// Mapping is a shared, writable mapping of a whole file. See the type mapping for its rules.
type Mapping interface {
	Bytes() []byte
	Populate(off, n int64) error
	Flush(off, n int64) error
	Unmap() error
}

// isGone says whether an error means that there is no such file.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// IsShortage says whether an error means that there is no room (or no descriptor, no memory) now, as
// opposed to a broken disk.
func IsShortage(err error) bool {
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
