package mmaplog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/leasemq/leasemq/codec"
)

// Reader reads the log of a data directory that no broker need be able to open: damaged, torn, with files missing.
// It takes no lock and changes nothing. Beside a running broker it sees the segments that were there when it was
// opened, and some end that the log had meanwhile.
//
// Whatever the files hold, it does not panic and asks for no more memory than the longest record. What the disk cannot
// read counts as damage, not as an error. One goroutine may use it.
type Reader struct {
	fs    FS
	dir   string // of the segments
	geo   geometry
	files []offlineFile // by base
}

// offlineFile is a segment file with what is wrong with it.
type offlineFile struct {
	segmentFile
	disk *salvage // the way to its bytes
	// stray: no segment has that name, so the file stands outside the row.
	stray bool
	gap   *DamageError // segments are missing between this one and the one before
}

// SegmentInfo is one file with a segment's name.
type SegmentInfo struct {
	Base    uint64 // by its name
	Path    string
	Size    int64
	Problem string // why it is no segment of this log (bad header, wrong size ...), or what is missing before it; empty if it is one
}

// Tail is where the records end, and what lies there. One of Clean, Torn and Damage holds, or none: then
// only zeroes follow, and the broker died or is running.
type Tail struct {
	End     uint64 // behind the last good record; what Repair may be given
	Records int64  // good ones that were read, the log's own included
	Bytes   int64  // their length
	Clean   bool   // the last record is CLEAN_STOP, and nothing lies behind it
	Torn    bool   // something lies behind the end that nothing promised: the next start cuts it off
	Damage  *DamageError
	CutWhy  string // what is there instead of a record, if anything is

	BehindRecords int   // good records behind the end, found by search
	BehindBytes   int64 // their length

	Epoch   uint32 // of the last good record, as the clocks
	LeaseMs int64
	WallMs  int64
	Promise uint64 // the newest in the good records
}

// OpenReader opens the log in a data directory (Options.Dir) for reading only: it takes no lock, changes
// nothing. fs nil: the real one.
func OpenReader(fs FS, dir string) (*Reader, error) {
	if fs == nil {
		fs = OS
	}
	r := &Reader{fs: fs, dir: filepath.Join(dir, logDirName)}
	bases, _, err := listDirectory(fs, r.dir)
	if err != nil {
		return nil, err
	}
	for _, base := range bases {
		f, err := openSegmentFile(fs, r.dir, base)
		switch {
		case err != nil && isGone(err):
			continue // a running broker has removed it since
		case err != nil:
			r.Close()
			return nil, err
		}
		r.files = append(r.files, offlineFile{segmentFile: f, disk: &salvage{file: f.file}})
	}
	r.geo = geometry{segmentBytes: uint64(r.guessSegmentBytes())}
	r.judge()
	return r, nil
}

// guessSegmentBytes is the segment size by the first good header, else by the first file that could be one.
func (r *Reader) guessSegmentBytes() int64 {
	guess := int64(0)
	for _, f := range r.files {
		if f.segmentBytes != 0 {
			return f.segmentBytes
		}
		if guess == 0 && validSegmentBytes(f.size) && f.base%uint64(f.size) == 0 {
			guess = f.size
		}
	}
	return cmp.Or(guess, defaultSegmentBytes)
}

// judge finds the files that are not of the row, and the gaps.
func (r *Reader) judge() {
	size := int64(r.geo.segmentBytes)
	before := -1
	for i := range r.files {
		f := &r.files[i]
		f.stray = f.base%r.geo.segmentBytes != 0 || f.base > maxBase
		switch {
		case f.problem != nil:
		case f.stray:
			f.problem = f.damage("no segment of %d bytes begins at that position", size)
		case f.segmentBytes != size:
			f.problem = f.damage("its header says %d bytes a segment, others have %d", f.segmentBytes, size)
		}
		if f.stray {
			continue
		}
		if before >= 0 {
			if expected := r.files[before].base + uint64(size); f.base != expected {
				f.gap = missing(r.dir, expected, fmt.Sprintf("though there is a later one, %s", segmentName(f.base)))
			}
		}
		before = i
	}
}

// Close closes the files.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.file.Close())
	}
	r.files = nil
	return errors.Join(errs...)
}

// First is the position of the first record of the oldest segment; 0 if there is none.
func (r *Reader) First() uint64 {
	for _, f := range r.files {
		if !f.stray {
			return f.base + segmentHeaderBytes
		}
	}
	return 0
}

// SegmentBytes is the size of a segment, by the first good header.
func (r *Reader) SegmentBytes() int64 { return int64(r.geo.segmentBytes) }

// SegmentPath is the file that holds a position, or would.
func (r *Reader) SegmentPath(position uint64) string {
	return filepath.Join(r.dir, segmentName(r.geo.base(r.geo.segment(position))))
}

// Segments are the files with a segment's name, by position.
func (r *Reader) Segments() []SegmentInfo {
	infos := make([]SegmentInfo, len(r.files))
	for i, f := range r.files {
		infos[i] = SegmentInfo{Base: f.base, Path: f.path, Size: f.size}
		if f.problem != nil {
			infos[i].Problem = problemText(f.problem)
		} else if f.gap != nil {
			infos[i].Problem = fmt.Sprintf("%d segments before it are missing, from %s on",
				(f.base-f.gap.Position)/r.geo.segmentBytes, segmentName(f.gap.Position))
		}
	}
	return infos
}

func problemText(err error) string {
	if damage, ok := errors.AsType[*DamageError](err); ok {
		return damage.What
	}
	return err.Error()
}

// Scan gives fn the records from a record boundary on (0: from First) to the first place that is not a good record,
// and says what lies there, by the rules of recovery; but where Open stops at the first thing that is wrong
// with the files, Scan reads up to it. Errors: those of fn, a *VersionError, and for from what ReadRecord says of a position
// that the files do not have.
func (r *Reader) Scan(from uint64, fn func(Record) error) (Tail, error) {
	t := Tail{End: cmp.Or(from, r.First())}
	if err := r.Newer(); err != nil {
		return t, err
	}
	if from != 0 {
		if err := r.boundary(from); err != nil {
			return t, err
		}
	}
	var c chain
	for before := ^uint64(0); ; before = t.End {
		i, stop, err := r.scanRow(&t, &c, fn)
		if err != nil {
			return t, err
		}
		b, err := r.search(t.End, noRecord)
		if err != nil {
			return t, err
		}
		if t.Damage == nil && b.promise > t.End && t.End != before {
			// A hole; or a running broker has appended there since, and flushed that, before the search came by.
			if _, err := r.ReadRecord(t.End); err == nil {
				continue
			}
		}
		r.judgeTail(&t, &c, stop, b, i)
		return t, nil
	}
}

// scanRow reads records from t.End on, until they end in file i or a file is none of the row, and moves t.End there.
func (r *Reader) scanRow(t *Tail, c *chain, fn func(Record) error) (i int, stop scanStop, err error) {
	var buf []byte
	first := r.fileOf(t.End)
	for i = max(first, 0); i < len(r.files); i++ {
		f := &r.files[i]
		switch {
		case f.stray:
			continue
		case f.gap != nil && i > first:
			t.Damage = f.gap
		case f.problem != nil:
			t.Damage = f.asDamage()
		}
		if t.Damage != nil {
			break
		}
		s := f.scanThrough(int64(r.geo.segmentBytes), buf)
		if stop, err = s.run(c, r.geo.offset(t.End), fn); err != nil {
			return i, stop, err
		}
		buf, t.End = s.buf, f.base+uint64(stop.off)
		if stop.wrong {
			t.Damage = &DamageError{File: f.path, Offset: stop.off, Position: t.End, What: stop.why}
		}
		if !stop.ended {
			break
		}
		t.End = r.geo.first(r.geo.segment(f.base) + 1)
	}
	t.Records, t.Bytes, t.Promise = c.records, c.bytes, c.promise
	t.Epoch, t.LeaseMs, t.WallMs = c.last.Epoch, c.last.LeaseMs, c.last.WallMs
	return i, stop, nil
}

// judgeTail says what lies behind the end of a scan, which stopped at file i; b is what a search found there.
func (r *Reader) judgeTail(t *Tail, c *chain, stop scanStop, b behind, i int) {
	damaged := func(what string, promise uint64) {
		if t.Damage == nil {
			t.Damage = &DamageError{File: r.SegmentPath(t.End), Offset: r.geo.offset(t.End), Position: t.End, Promise: promise, What: what}
		}
	}
	t.BehindRecords, t.BehindBytes = b.records, b.bytes
	why := cmp.Or(stop.why, "the records stop")
	if b.promise > t.End {
		damaged(why, b.promise)
	}
	for j := range r.files {
		f := &r.files[j]
		if f.disk.err != nil && j >= i {
			damaged(fmt.Sprintf("%s cannot be read at byte %d: %v", f.path, f.disk.first, bare(f.disk.err)), 0)
		}
		if t.Damage != nil {
			break
		}
		if f.gap != nil {
			t.Damage = f.gap
		} else if f.problem != nil {
			t.Damage = f.asDamage()
		}
	}
	t.Torn = t.Damage == nil && b.used != noOffset
	t.Clean = t.Damage == nil && !t.Torn && c.last.Type == codec.TypeCleanStop
	if t.Torn || t.Damage != nil {
		t.CutWhy = why
	}
}

// ScanBehind gives fn the good records that lie at end or behind it: whatever names its own position and has a
// good checksum, found by search, in the order of the files.
func (r *Reader) ScanBehind(end uint64, fn func(Record) error) error {
	_, err := r.search(end, fn)
	return err
}

// search looks for records from position end on. used of the answer says only whether there is anything but
// zeroes.
func (r *Reader) search(end uint64, fn func(Record) error) (behind, error) {
	all := behind{used: noOffset}
	for i := range r.files {
		b, err := r.files[i].search(r.geo, end, fn)
		all.records, all.bytes, all.promise = all.records+b.records, all.bytes+b.bytes, max(all.promise, b.promise)
		all.used = max(all.used, b.used)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// search looks for records of one file from position end on.
func (f *offlineFile) search(geo geometry, end uint64, fn func(Record) error) (behind, error) {
	size := min(f.size, int64(geo.segmentBytes)) // what lies behind that names positions of the next segment
	off := int64(segmentHeaderBytes)
	if end > f.base {
		if end-f.base >= uint64(size) {
			return behind{used: noOffset}, nil
		}
		off = max(off, int64(end-f.base+codec.Align-1)&^(codec.Align-1))
	}
	s := f.scanThrough(size, nil)
	return s.look(off, fn)
}

// ReadRecord reads and checks (length, own position, CRC) the record at a position. The error is a *RecordError where there is
// no good record, and wraps ErrRemoved below First.
func (r *Reader) ReadRecord(position uint64) (Record, error) {
	if err := r.boundary(position); err != nil {
		return Record{}, err
	}
	f := &r.files[r.fileOf(position)]
	size := min(f.size, int64(r.geo.segmentBytes))
	s := f.scanThrough(size, nil)
	return s.readRecord(r.geo.offset(position), size)
}

// fileOf is the index of the file of a position's segment; -1 if there is none.
func (r *Reader) fileOf(position uint64) int {
	base := position - uint64(r.geo.offset(position))
	for i, f := range r.files {
		if f.base == base && !f.stray {
			return i
		}
	}
	return -1
}

// boundary checks that a record could begin at a position, and that its segment is there.
func (r *Reader) boundary(position uint64) error {
	off := r.geo.offset(position)
	path := filepath.Join(r.dir, segmentName(position-uint64(off)))
	bad := &RecordError{File: path, Offset: off, Position: position}
	switch first := r.First(); {
	case off < segmentHeaderBytes || off%codec.Align != 0:
		bad.What = "no record can begin there"
	case r.fileOf(position) >= 0:
		return nil
	case position < first:
		return removed(position, first)
	default:
		bad.What = "there is no such segment"
	}
	return bad
}

// Newer is the *VersionError of the first file that has a format newer than ours: nothing else that is found can then be judged.
func (r *Reader) Newer() error {
	for _, f := range r.files {
		if _, ok := errors.AsType[*VersionError](f.problem); ok {
			return f.problem
		}
	}
	return nil
}

func (f *offlineFile) asDamage() *DamageError {
	if damage, ok := errors.AsType[*DamageError](f.problem); ok {
		return damage
	}
	return &DamageError{File: f.path, Position: f.base, What: problemText(f.problem)}
}

// scanThrough is scan past what the disk cannot read.
func (f *offlineFile) scanThrough(size int64, buf []byte) segmentScan {
	s := f.scan(size, buf)
	s.file = f.disk
	return s
}

// salvage reads a file parts of which the disk cannot give: they come back as zeroes, page by page, and are noted.
type salvage struct {
	file  io.ReaderAt
	first int64 // lowest offset that could not be read
	err   error // why; nil: all could be read
}

const salvagePage = 4 << 10

func (s *salvage) ReadAt(b []byte, off int64) (int, error) {
	n, err := s.file.ReadAt(b, off)
	if n == len(b) || err == nil || err == io.EOF {
		return n, err
	}
	for at := 0; at < len(b); {
		from := off + int64(at)
		page := b[at:min(len(b), at+salvagePage-int(from%salvagePage))]
		n, err := s.file.ReadAt(page, from)
		if err == io.EOF && n < len(page) {
			return at + n, err
		}
		if n < len(page) {
			clear(page)
			if s.err == nil || from < s.first {
				s.first, s.err = from, cmp.Or(err, io.ErrNoProgress)
			}
		}
		at += len(page)
	}
	return len(b), nil
}
