package mmaplog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// MappedFile is a mapped file of a fixed size for the rooms that keep files derived from the log (queue
// indexes, delay buckets). It starts sparse, so that thousands of them cost nothing until they are used.
//
// The rule for its users: a byte is stored to only after Allocate covered it. A store into a hole of a
// full disk is a signal that ends the process; Allocate turns that into an error. Loads are safe anywhere: a
// hole reads as zeroes. After Allocate, Populate makes the stores free of page faults, until the kernel
// has written the pages back.
//
// No descriptor is kept: Allocate opens the file by its path again (and checks that it is the same file),
// so open files cost memory, not descriptors, and no stray write can reach them. The file must therefore
// stay at its path.
//
// Allocate, Populate, Flush and Bytes may be called from any goroutine; Close when nobody holds a slice.
type MappedFile struct {
	path string
	m    *mapping
	info fs.FileInfo // as it was opened; tells a file that was replaced
}

// OpenMapped maps the file, creating it with size bytes if it is missing. A shorter file (its creation was
// interrupted) is grown; a longer one is refused. The new directory entry is not synced: a derived file
// that a power loss takes is built again.
func OpenMapped(path string, size int64) (*MappedFile, error) {
	if size <= 0 {
		return nil, fmt.Errorf("mmaplog: %s: cannot map %d bytes", path, size)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case info.Size() > size:
		return nil, fmt.Errorf("mmaplog: %s: the file has %d bytes, expected %d", path, info.Size(), size)
	case info.Size() < size:
		if err := f.Truncate(size); err != nil {
			return nil, err
		}
	}
	m, err := mapFile(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &MappedFile{path: path, m: m, info: info}, nil
}

// Path is the name that the file was opened by.
func (f *MappedFile) Path() string { return f.path }

// Bytes is the content, as long as the size that the file was opened with.
func (f *MappedFile) Bytes() []byte { return f.m.Bytes() }

// Allocate gives [off, off+n) disk blocks, so that stores there cannot fail for want of space. It
// changes no byte; calling it again for the same range is cheap.
func (f *MappedFile) Allocate(off, n int64) error {
	if off < 0 || n <= 0 || off+n > int64(len(f.m.mem)) {
		return fmt.Errorf("mmaplog: %s: allocate %d+%d of %d bytes", f.path, off, n, len(f.m.mem))
	}
	w, err := os.OpenFile(f.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	info, err := w.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, f.info) {
		return fmt.Errorf("mmaplog: %s: the file was replaced while it was mapped", f.path)
	}
	if err := allocate(w, off, n); err != nil {
		return &fs.PathError{Op: "allocate", Path: f.path, Err: err}
	}
	return nil
}

// Populate readies [off, off+n) for stores without page faults. It dirties the pages: call it for what is
// about to be stored, not for the whole file.
func (f *MappedFile) Populate(off, n int64) error { return f.wrap(f.m.Populate(off, n)) }

// Flush makes everything that was stored durable.
func (f *MappedFile) Flush() error { return f.FlushRange(0, int64(len(f.m.mem))) }

// FlushRange makes what was stored in [off, off+n) durable.
func (f *MappedFile) FlushRange(off, n int64) error { return f.wrap(f.m.Flush(off, n)) }

// Close unmaps the file. What was stored stays with the system, which writes it in its own time.
func (f *MappedFile) Close() error { return f.wrap(f.m.Unmap()) }

func (f *MappedFile) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", f.path, err)
}

// SyncDir makes the directory entries of dir durable: needed after a file was created or renamed in it.
func SyncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
