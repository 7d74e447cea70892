package mmaplog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// headingMark stands in the name of a copy of a damaged segment header, before its number:
//
//	<Dir>/log/<base>.log.header-<n>   the first 64 bytes of a segment, as they were before RepairHeadings; never read, never deleted
const headingMark = ".header-"

// Headings are the segment files of which only the header is damaged: they are as long as a segment, and at the place of the first
// record lies a good one that names its own position. All that a header says is known without it: RepairHeadings writes it anew,
// and no record is lost.
func (r *Reader) Headings() (paths []string) {
	for i := range r.files {
		if r.files[i].headingOnly(int64(r.geo.segmentBytes)) {
			paths = append(paths, r.files[i].path)
		}
	}
	return paths
}

// headingOnly tells whether nothing but the header of f is damaged, as far as its first record shows.
func (f *offlineFile) headingOnly(size int64) bool {
	if f.problem == nil || f.stray || f.size != size {
		return false
	}
	if _, newer := errors.AsType[*VersionError](f.problem); newer {
		return false
	}
	var head [segmentHeaderBytes]byte
	if readFull(f.file, f.path, head[:], 0) != nil || bytes.Equal(head[:], f.heading(size)) {
		return false
	}
	good := false
	s := f.scan(size, nil)
	_, err := s.look(segmentHeaderBytes, func(rec Record) error {
		good = rec.Header.Position == f.base+segmentHeaderBytes
		return errStop
	})
	return good && errors.Is(err, errStop)
}

// errStop ends a search.
var errStop = errors.New("enough")

// heading is the header that f must have.
func (f *segmentFile) heading(size int64) []byte {
	b := make([]byte, segmentHeaderBytes)
	putSegmentHeader(b, size, f.base)
	return b
}

// RepairHeadings writes the headers of Headings anew. What stood there before is kept in a file beside each, whose paths are
// returned. It locks the directory, as Repair does; where a file has a format newer than ours nothing is done. Interrupted anywhere it can be run again.
func RepairHeadings(fs FS, dir string) (kept []string, err error) {
	if fs == nil {
		fs = OS
	}
	if _, err := fs.ReadDir(filepath.Join(dir, logDirName)); err != nil {
		return nil, fmt.Errorf("mmaplog: repair: %w", err)
	}
	lock, err := lockForRepair(fs, dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	r, err := OpenReader(fs, dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := r.Newer(); err != nil {
		return nil, err
	}
	for i := range r.files {
		f := &r.files[i]
		if size := int64(r.geo.segmentBytes); f.headingOnly(size) {
			aside, err := keepHeading(fs, r.dir, f)
			if err == nil {
				kept = append(kept, aside)
				err = putHeading(fs, f.path, f.heading(size))
			}
			if err != nil {
				return kept, fmt.Errorf("mmaplog: header of %s: %w", f.path, bare(err))
			}
		}
	}
	return kept, nil
}

// keepHeading copies the header of f into a file of its own, durably.
func keepHeading(fs FS, dir string, f *offlineFile) (path string, err error) {
	var head [segmentHeaderBytes]byte
	if err := readFull(f.file, f.path, head[:], 0); err != nil {
		return "", err
	}
	taken, err := fs.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		name := filepath.Base(f.path) + headingMark + strconv.Itoa(n)
		if !slices.Contains(taken, name) {
			path = filepath.Join(dir, name)
			break
		}
	}
	w, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return "", err
	}
	_, err = w.WriteAt(head[:], 0)
	if err == nil {
		err = w.Sync()
	}
	return path, errors.Join(err, w.Close(), fs.SyncDir(dir))
}

func putHeading(fs FS, path string, heading []byte) error {
	w, err := fs.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = w.WriteAt(heading, 0)
	if err == nil {
		err = w.Sync()
	}
	return errors.Join(err, w.Close())
}

// lockForRepair takes the lock of a data directory.
func lockForRepair(fs FS, dir string) (io.Closer, error) {
	lock, err := fs.Lock(filepath.Join(dir, lockName))
	if err != nil {
		if locked, ok := errors.AsType[*LockedError](err); ok {
			locked.Dir = dir
		}
		return nil, fmt.Errorf("mmaplog: repair: %w", err)
	}
	return lock, nil
}
