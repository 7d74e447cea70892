package consumequeue

import (
	"bytes"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// probe looks into index files, one after the other, without changing them. There may be tens of thousands, nearly
// empty, so it asks where a file has data before it reads, reads a block once, and makes system calls without
// the runtime's bookkeeping for files.
type probe struct {
	fd   int
	path string
	size int64

	block int64 // the one in buf; -1: none
	buf   [BlockBytes]byte

	wide [allocateStep]byte // scratch
}

func (p *probe) open(path string) error {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		unix.Close(fd)
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	dontReadAhead(fd)
	p.fd, p.path, p.size, p.block = fd, path, stat.Size, -1
	return nil
}

func (p *probe) close() { unix.Close(p.fd) }

// read gives a block of the file, zeroes where the file has none.
func (p *probe) read(block int64) ([]byte, error) {
	if p.block == block {
		return p.buf[:], nil
	}
	p.block = -1
	if err := p.readAt(p.buf[:], block*BlockBytes); err != nil {
		return nil, err
	}
	p.block = block
	return p.buf[:], nil
}

func (p *probe) readAt(b []byte, off int64) error {
	for len(b) > 0 {
		n, err := retry(func() (int, error) { return unix.Pread(p.fd, b, off) })
		if err != nil {
			return &os.PathError{Op: "read", Path: p.path, Err: err}
		}
		if n == 0 {
			clear(b) // the end of the file
			return nil
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// written tells whether the entry at a place of the file was written.
func (p *probe) written(place int64) (bool, error) {
	b, err := p.read(place / BlockEntries)
	if err != nil {
		return false, err
	}
	var e [1]Entry
	decodeEntries(e[:], b[place%BlockEntries*EntryBytes:])
	return e[0].Written(), nil
}

// firstMissing finds an entry in [from, to), to > from, that can't be there: it lies behind the end of the file, or in a hole. What is in
// one block with the last is looked at.
func (p *probe) firstMissing(from, to int64) (place int64, missing bool, err error) {
	if end := p.size / EntryBytes; end < to {
		return max(end, from), true, nil
	}
	last := (to - 1) / BlockEntries * BlockEntries
	if from < last {
		// Where the file system can't tell, it says that all is data.
		if at, err := unix.Seek(p.fd, from*EntryBytes, unix.SEEK_HOLE); err == nil && at < last*EntryBytes {
			// What it takes for a hole could be a page that it has not given a place yet.
			if ok, err := p.written(at / EntryBytes); err != nil || !ok {
				return at / EntryBytes, true, err
			}
		}
	}
	for place := max(from, last); place < to; place++ {
		if ok, err := p.written(place); err != nil || !ok {
			return place, true, err
		}
	}
	return 0, false, nil
}

// dataFrom tells whether the file has anything but zeroes from a place on, within the size of an index file.
func (p *probe) dataFrom(place int64) (bool, error) {
	off := place * EntryBytes
	if off%BlockBytes != 0 {
		// The first bytes share their block with the last entries.
		b, err := p.read(off / BlockBytes)
		if err != nil || !zero(b[off%BlockBytes:]) {
			return err == nil, err
		}
		off = (off/BlockBytes + 1) * BlockBytes
	}
	// What follows is mostly a hole.
	for off < FileBytes {
		at, err := unix.Seek(p.fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return false, nil
		}
		if err == nil {
			off = at // else this file system can't tell, and all is read
		}
		if off >= FileBytes {
			return false, nil
		}
		b := p.wide[:min(allocateStep, FileBytes-off)]
		if err := p.readAt(b, off); err != nil || !zero(b) {
			return err == nil, err
		}
		off += int64(len(b))
	}
	return false, nil
}

// zero tells whether all of b is zero, as fast as the processor compares memory.
func zero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[:len(b)-1], b[1:])
}

// names lists a directory, in order.
func (p *probe) names(dir string) ([]string, error) {
	fd, err := retry(func() (int, error) { return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var names []string
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(fd, p.wide[:]) })
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: dir, Err: err}
		}
		if n <= 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(p.wide[:n], -1, names)
	}
}

func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
