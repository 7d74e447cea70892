package mmaplog

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasemq/leasemq/codec"
)

// Recovery is what Open found and did.
type Recovery struct {
	Fresh        bool // there was no log
	SegmentBytes int64
	Segments     int
	End          uint64 // position at which the log goes on
	Records      int64  // good ones, the log's own included
	Bytes        int64  // their length
	LastEpoch    uint32 // of the last good record; these four are 0 if there was none
	LastLeaseMs  int64
	LastWallMs   int64
	Promise      uint64 // newest: what a record said was durable
	CleanStop    bool   // the log ends with a CLEAN_STOP record and nothing behind it

	BytesRewritten int64    // good bytes that may never have reached the disk
	BytesCut       int64    // what lay behind the end in its segment, up to the last byte that was not zero
	CutWhy         string   // what was there instead of a record
	Aside          []string // segment files that were moved out of the log
	TempRemoved    []string // unfinished segment files that were removed
	NextMissing    bool     // the last segment is complete, and the one that is always made before is not there

	Duration time.Duration
	IO       IOMode
	IOWhy    string // "forced", or the figures of the probe
}

func (r *Recovery) log(logger *slog.Logger) {
	logger.Info("log recovered",
		slog.Bool("fresh", r.Fresh), slog.Bool("cleanStop", r.CleanStop),
		slog.Int64("records", r.Records), slog.Int64("bytes", r.Bytes), slog.Uint64("end", r.End),
		slog.Uint64("lastEpoch", uint64(r.LastEpoch)), slog.Int64("bytesRewritten", r.BytesRewritten),
		slog.Duration("took", r.Duration), slog.String("io", string(r.IO)), slog.String("ioWhy", r.IOWhy))
	if r.NextMissing {
		logger.Warn("the last segment of the log is complete, and the one that was made behind it is missing: if somebody removed it, what it held is lost",
			slog.Uint64("end", r.End))
	}
	if r.BytesCut > 0 || len(r.Aside) > 0 {
		logger.Warn("the log had a torn tail, as after a crash: no later record promised that it was durable",
			slog.Uint64("end", r.End), slog.Int64("bytesCut", r.BytesCut), slog.String("why", r.CutWhy), slog.Any("movedAside", r.Aside))
	}
}

// recoverer finds the end of the log and makes everything before it durable and everything behind it
// gone. It is safe to be interrupted and run again at any point: each step leaves a directory from which
// the same end is found.
type recoverer struct {
	l     *Log
	r     *Recovery
	files []File // read-only, by segment index
	paths []string
	chain chain
	stop  scanStop
	index uint64 // segment in which the log ends, or len(files) if it ends with the last file
	rest  []behind
}

func (l *Log) recover(replay func(Record) error) (err error) {
	v := recoverer{l: l, r: &l.recovery}
	defer func() {
		if err != nil {
			for _, f := range v.files {
				f.Close()
			}
		}
	}()
	for _, step := range []func() error{
		v.openFiles,
		func() error { return v.findEnd(replay) },
		v.lookBehind,
		v.syncNames,
		v.rewrite,
		v.clear,
		v.moveAside,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	l.segMu.Lock()
	defer l.segMu.Unlock()
	for i, f := range v.files {
		l.addSegment(newSegment(uint64(i), v.paths[i], f))
	}
	l.segmentsExist(uint64(len(v.files)))
	v.r.Segments = len(v.files)
	v.r.NextMissing = len(v.files) > 0 && v.index == uint64(len(v.files))
	return nil
}

// openFiles lists the directory, removes unfinished segments, and checks names, sizes and headers.
func (v *recoverer) openFiles() error {
	fs, dir := v.l.o.FS, v.l.dir
	names, err := fs.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	var bases []uint64
	for _, name := range names {
		if base, ok := parseSegmentName(name); ok {
			bases = append(bases, base)
		} else if strings.HasSuffix(name, tmpSuffix) {
			if err := fs.Remove(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("mmaplog: unfinished file of an earlier start: %w", err)
			}
			v.r.TempRemoved = append(v.r.TempRemoved, name)
		}
	}
	slices.Sort(bases)
	configured := v.l.o.SegmentBytes
	size := cmp.Or(configured, defaultSegmentBytes)
	v.r.Fresh = len(bases) == 0
	for i, base := range bases {
		path := filepath.Join(dir, segmentName(base))
		f, err := fs.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return fmt.Errorf("mmaplog: %w", err)
		}
		v.files, v.paths = append(v.files, f), append(v.paths, path)
		stored, err := v.checkFile(f, path, base)
		if err != nil {
			return err
		}
		if i == 0 {
			size = stored
			if configured != 0 && configured != stored {
				v.l.o.Logger.Warn("the data directory keeps the segment size that it was made with",
					slog.Int64("segmentBytes", stored), slog.Int64("configured", configured))
			}
		}
		expected := uint64(i) * uint64(size)
		if stored != size || base != expected {
			return &DamageError{File: filepath.Join(dir, segmentName(expected)), Position: expected,
				What: fmt.Sprintf("the segment is missing, though there is a later one, %s (%d bytes a segment)", segmentName(base), stored)}
		}
	}
	v.l.geo = geometry{segmentBytes: uint64(size)}
	v.r.SegmentBytes = size
	return nil
}

func (v *recoverer) checkFile(f File, path string, base uint64) (segmentBytes int64, err error) {
	damage := func(what string) error { return &DamageError{File: path, Position: base, What: what} }
	size, err := f.Size()
	if err != nil {
		return 0, fmt.Errorf("mmaplog: %w", err)
	}
	if size < segmentHeaderBytes {
		return 0, damage(fmt.Sprintf("the file has %d bytes, not even a segment header", size))
	}
	var head [segmentHeaderBytes]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0, fmt.Errorf("mmaplog: read %s: %w", path, err)
	}
	segmentBytes, stored, err := parseSegmentHeader(head[:])
	switch {
	case err != nil:
		return 0, damage(err.Error())
	case stored != base:
		return 0, damage(fmt.Sprintf("the header belongs to the segment at position %d", stored))
	case size != segmentBytes:
		return 0, damage(fmt.Sprintf("the file has %d bytes, a segment has %d", size, segmentBytes))
	}
	return segmentBytes, nil
}

func (v *recoverer) scanOf(i uint64, buf []byte) segmentScan {
	return segmentScan{file: v.files[i], path: v.paths[i], base: v.l.geo.base(i), size: int64(v.l.geo.segmentBytes), buf: buf}
}

// findEnd replays from the first record to the last good one.
func (v *recoverer) findEnd(replay func(Record) error) error {
	var buf []byte
	for v.index = 0; v.index < uint64(len(v.files)); v.index++ {
		s := v.scanOf(v.index, buf)
		stop, err := s.run(&v.chain, segmentHeaderBytes, replay)
		if err != nil {
			return err
		}
		v.stop, buf = stop, s.buf
		if !stop.ended {
			break
		}
	}
	v.r.End = v.l.geo.first(v.index)
	if v.index < uint64(len(v.files)) {
		v.r.End = v.l.geo.base(v.index) + uint64(v.stop.off)
	}
	c := &v.chain
	v.r.Records, v.r.Bytes, v.r.Promise = c.records, c.bytes, c.promise
	v.r.LastEpoch, v.r.LastLeaseMs, v.r.LastWallMs = c.epoch, c.leaseMs, c.wallMs
	return nil
}

// lookBehind tells a torn tail from damage: if anything behind the end knows of durable bytes behind it,
// the end is a hole.
func (v *recoverer) lookBehind() error {
	v.r.CleanStop = v.chain.last == codec.TypeCleanStop
	var promise uint64
	for i := v.index; i < uint64(len(v.files)); i++ {
		s := v.scanOf(i, nil)
		from := int64(segmentHeaderBytes)
		if i == v.index {
			from = v.stop.off
		}
		b, err := s.look(from)
		if err != nil {
			return err
		}
		v.rest = append(v.rest, b)
		promise = max(promise, b.promise)
		if b.used != noOffset {
			v.r.CleanStop = false
		}
	}
	if promise <= v.r.End {
		return nil
	}
	what := v.stop.why
	if what == "" {
		what = "the records stop"
	}
	return &DamageError{File: v.paths[v.index], Offset: v.stop.off, Position: v.r.End, Promise: promise, What: what}
}

// syncNames makes the names of the segments durable. One that a broker renamed and died before the
// directory was synced is there now, and could be gone after a power cut with everything that was written to it since.
func (v *recoverer) syncNames() error {
	if err := v.l.o.FS.SyncDir(v.l.dir); err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	return nil
}

// rewrite writes everything again that no promise covers: a page that never reached the disk can look
// good, read from memory, and its write error may have been reported to a process that is gone.
func (v *recoverer) rewrite() error {
	from := max(v.r.Promise, v.l.geo.first(0))
	buf := make([]byte, min(1<<20, v.r.End-min(from, v.r.End)))
	for from < v.r.End {
		index := v.l.geo.segment(from)
		to := v.r.End
		if v.l.geo.segment(to) != index {
			to = v.l.geo.base(index + 1)
		}
		err := v.change(index, func(f File) error {
			for off, end := v.l.geo.offset(from), v.l.geo.offset(from)+int64(to-from); off < end; {
				b := buf[:min(int64(len(buf)), end-off)]
				if _, err := v.files[index].ReadAt(b, off); err != nil {
					return err
				}
				if _, err := f.WriteAt(b, off); err != nil {
					return err
				}
				off += int64(len(b))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("mmaplog: rewrite the end of the log in %s: %w", v.paths[index], err)
		}
		v.r.BytesRewritten += int64(to - from)
		from = to
		if v.l.geo.offset(from) == 0 {
			from += segmentHeaderBytes
		}
	}
	return nil
}

// clear zeroes what lies behind the end, so that no old record can line up with new ones later.
func (v *recoverer) clear() error {
	if v.r.CleanStop {
		return nil
	}
	for i, b := range v.rest {
		index, from := v.index+uint64(i), int64(segmentHeaderBytes)
		if i == 0 {
			from = v.stop.off
			v.r.CutWhy = v.stop.why
			v.r.BytesCut = max(0, b.used-from)
		} else if b.used != noOffset {
			break // it and what follows goes aside
		}
		err := v.change(index, func(f File) error { return f.ZeroRange(from, int64(v.l.geo.segmentBytes)-from) })
		if err != nil {
			return fmt.Errorf("mmaplog: clear %s behind byte %d: %w", v.paths[index], from, err)
		}
	}
	return nil
}

// change opens a segment for writing, lets do write, and makes that durable.
func (v *recoverer) change(index uint64, do func(File) error) error {
	f, err := v.l.o.FS.OpenFile(v.paths[index], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = do(f)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// moveAside renames the segments behind the end, from the first one that has anything in it, the last
// one first: interrupted anywhere, no segment is missing in the middle. Segments without a single byte were
// only prepared, and stay.
func (v *recoverer) moveAside() error {
	keep := uint64(len(v.files))
	for i, b := range v.rest {
		if i > 0 && b.used != noOffset {
			keep = v.index + uint64(i)
			break
		}
	}
	if keep == uint64(len(v.files)) {
		return nil
	}
	names, err := v.l.o.FS.ReadDir(v.l.dir)
	if err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	for i := uint64(len(v.files)); i > keep; i-- {
		path := v.paths[i-1]
		aside := asideName(filepath.Base(path), names)
		err := v.l.o.FS.Rename(path, filepath.Join(v.l.dir, aside))
		if err == nil {
			err = v.l.o.FS.SyncDir(v.l.dir)
		}
		if err != nil {
			return fmt.Errorf("mmaplog: move a segment behind the end of the log aside: %w", err)
		}
		v.files[i-1].Close()
		v.files, v.paths = v.files[:i-1], v.paths[:i-1]
		v.r.Aside = append(v.r.Aside, aside)
	}
	return nil
}

// asideName is the first free name for a segment that is moved aside.
func asideName(name string, taken []string) string {
	for n := 1; ; n++ {
		if aside := name + asideMark + strconv.Itoa(n); !slices.Contains(taken, aside) {
			return aside
		}
	}
}

// openTail gives the segments from the end of the log on their writing side, and makes the first of them
// if there is none.
func (l *Log) openTail() error {
	size := int64(l.geo.segmentBytes)
	for index := l.geo.segment(l.recovery.End); index < l.prepared.Load(); index++ {
		path := filepath.Join(l.dir, segmentName(l.geo.base(index)))
		f, err := l.o.FS.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("mmaplog: %w", err)
		}
		// A copied file may have holes; this fills them, and costs nothing where there are none.
		if err := f.Allocate(0, size); err != nil {
			f.Close()
			return fmt.Errorf("mmaplog: %s: %w", path, err)
		}
		feeder, err := newFeeder(l.mode, f, path, size)
		if err != nil {
			return err
		}
		l.segMu.Lock()
		l.feeders[index] = feeder
		l.segMu.Unlock()
	}
	if l.geo.segment(l.recovery.End) >= l.prepared.Load() {
		return l.prepareSegment(l.prepared.Load())
	}
	return nil
}
