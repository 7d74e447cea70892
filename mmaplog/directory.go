package mmaplog

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// segmentFile is a file with a segment's name, open for reading, as recovery and the offline Reader find it. No
// record in it was looked at.
type segmentFile struct {
	base         uint64 // by its name
	path         string
	file         File
	size         int64 // of the file
	segmentBytes int64 // by its header; 0 if that is not good
	// problem is why the file is no segment of a log: a *DamageError, a *VersionError, or an error of reading.
	problem error
}

// listDirectory returns the base positions of the segment files in dir, in order, and the names of
// unfinished files.
func listDirectory(fs FS, dir string) (bases []uint64, unfinished []string, err error) {
	names, err := fs.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("mmaplog: %w", err)
	}
	for _, name := range names {
		if base, ok := parseSegmentName(name); ok {
			bases = append(bases, base)
		} else if strings.HasSuffix(name, tmpSuffix) {
			unfinished = append(unfinished, name)
		}
	}
	slices.Sort(bases)
	return bases, unfinished, nil
}

// openSegmentFile opens the segment file at base and checks its header and size.
func openSegmentFile(fs FS, dir string, base uint64) (segmentFile, error) {
	f := segmentFile{base: base, path: filepath.Join(dir, segmentName(base))}
	var err error
	if f.file, err = fs.OpenFile(f.path, os.O_RDONLY, 0); err != nil {
		return f, fmt.Errorf("mmaplog: %w", err)
	}
	f.problem = f.check()
	return f, nil
}

func (f *segmentFile) check() error {
	size, err := f.file.Size()
	if err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	f.size = size
	if size < segmentHeaderBytes {
		return f.damage("the file has %d bytes, not even a segment header", size)
	}
	var head [segmentHeaderBytes]byte
	if err := readFull(f.file, f.path, head[:], 0); err != nil {
		return err
	}
	segmentBytes, stored, err := parseSegmentHeader(head[:])
	if version, ok := errors.AsType[*VersionError](err); ok {
		version.File = f.path
		return version
	}
	switch {
	case err != nil:
		return f.damage("%v", err)
	case stored != f.base:
		return f.damage("the header belongs to the segment at position %d", stored)
	case f.base%uint64(segmentBytes) != 0 || f.base > maxBase:
		return f.damage("no segment of %d bytes begins at that position", segmentBytes)
	}
	f.segmentBytes = segmentBytes
	if size != segmentBytes {
		return f.damage("the file has %d bytes, a segment has %d", size, segmentBytes)
	}
	return nil
}

func (f *segmentFile) damage(format string, args ...any) error {
	return &DamageError{File: f.path, Position: f.base, What: fmt.Sprintf(format, args...)}
}

// scan reads the records of the file.
func (f *segmentFile) scan(size int64, buf []byte) segmentScan {
	return segmentScan{file: f.file, path: f.path, base: f.base, size: size, buf: buf}
}

// firstProblem is why the files, in order, are not a row of segments without gaps; nil if they are. A format
// that is newer than ours comes first: nothing else that is found can then be judged.
func firstProblem(files []segmentFile, segmentBytes int64) error {
	var first error
	for i, f := range files {
		problem := f.problem
		if problem == nil && i > 0 {
			problem = follows(files[i-1].base, &f, segmentBytes)
		}
		if _, newer := errors.AsType[*VersionError](problem); newer {
			return problem
		}
		first = cmp.Or(first, problem)
	}
	return first
}

// follows checks that f is the segment behind the one at base.
func follows(base uint64, f *segmentFile, segmentBytes int64) error {
	expected := base + uint64(segmentBytes)
	switch {
	case f.segmentBytes != segmentBytes:
		return f.damage("its header says %d bytes a segment, those before it have %d", f.segmentBytes, segmentBytes)
	case f.base != expected:
		return missing(filepath.Dir(f.path), expected, fmt.Sprintf("though there is a later one, %s", segmentName(f.base)))
	}
	return nil
}

func missing(dir string, base uint64, though string) *DamageError {
	return &DamageError{File: filepath.Join(dir, segmentName(base)), Position: base, What: "the segment is missing, " + though}
}
