package mmaplog

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/leasemq/leasemq/codec"
)

// Recovery is what Open found and did.
type Recovery struct {
	Fresh        bool // there was no log
	SegmentBytes int64
	Segments     int
	First        uint64 // position of the first record that is still there, or of the first there will be
	From         uint64 // position at which replay began, as Options.Begin said; 0: the whole log was replayed
	End          uint64 // position at which the log goes on
	Records      int64  // good ones that were replayed, the log's own included
	Bytes        int64  // their length
	LastEpoch    uint32 // of the last good record, replayed or not; these four are 0 if there was none
	LastLeaseMs  int64
	LastWallMs   int64
	Promise      uint64 // newest: what a record, or From, said was durable
	CleanStop    bool   // the log ends with a CLEAN_STOP record and nothing behind it

	BytesRewritten int64    // good bytes that may never have reached the disk
	BytesCut       int64    // what lay behind the end in its segment, up to the last byte that was not zero
	CutWhy         string   // what was there instead of a record
	RecordsCut     int      // good records among that, which were copied aside
	Aside          []string // files beside the segments that have what was taken out of the log
	TempRemoved    []string // unfinished segment files that were removed
	NextMissing    bool     // the last segment is complete, and the one that is always made before is not there

	Duration time.Duration
	IO       IOMode
	IOWhy    string // "forced", or the figures of the probe
}

func (r *Recovery) log(logger *slog.Logger) {
	logger.Info("log recovered",
		slog.Bool("fresh", r.Fresh), slog.Bool("cleanStop", r.CleanStop),
		slog.Uint64("first", r.First), slog.Uint64("from", r.From),
		slog.Int64("records", r.Records), slog.Int64("bytes", r.Bytes), slog.Uint64("end", r.End),
		slog.Uint64("lastEpoch", uint64(r.LastEpoch)), slog.Int64("bytesRewritten", r.BytesRewritten),
		slog.Duration("took", r.Duration), slog.String("io", string(r.IO)), slog.String("ioWhy", r.IOWhy))
	if r.NextMissing {
		logger.Warn("the last segment of the log is complete, and the one that was made behind it is missing: if somebody removed it, what it held is lost",
			slog.Uint64("end", r.End))
	}
	if r.BytesCut > 0 || len(r.Aside) > 0 {
		logger.Warn("the log had a torn tail, as after a crash: no later record promised that it was durable",
			slog.Uint64("end", r.End), slog.Int64("bytesCut", r.BytesCut), slog.String("why", r.CutWhy), slog.Int("goodRecordsCut", r.RecordsCut), slog.Any("aside", r.Aside))
	}
}

// recoverer finds the end of the log and makes everything before it durable and everything behind it
// gone. It is safe to be interrupted and run again at any point: each step leaves a directory from which
// the same end is found.
type recoverer struct {
	l       *Log
	r       *Recovery
	files   []segmentFile // segments first, first+1 ...
	first   uint64
	start   uint64 // position at which replay begins
	durable uint64 // From.Durable
	chain   chain
	stop    scanStop
	index   uint64 // segment in which the log ends, or end() if it ends with the last file
	rest    []behind
}

// end is the number of the segment behind the last file.
func (v *recoverer) end() uint64 { return v.first + uint64(len(v.files)) }

func (l *Log) recover(replay func(Record) error) (err error) {
	v := recoverer{l: l, r: &l.recovery}
	defer func() {
		if err != nil {
			for _, f := range v.files {
				f.file.Close()
			}
		}
	}()
	for _, step := range []func() error{
		v.openFiles,
		v.begin,
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
	h := v.chain.last
	l.section = section{epoch: h.Epoch, leaseMs: h.LeaseMs, wallMs: h.WallMs, last: h.Position, lastCRC: h.CRC}
	l.segMu.Lock()
	defer l.segMu.Unlock()
	l.segments.Store(&segmentTable{first: v.first})
	for i, f := range v.files {
		l.addSegment(newSegment(v.first+uint64(i), f.path, f.file))
	}
	l.segmentsExist(v.end())
	v.r.Segments, v.r.First = len(v.files), l.First()
	v.r.NextMissing = len(v.files) > 0 && v.index == v.end()
	return nil
}

// openFiles lists the directory, checks names, sizes and headers, and removes unfinished segments. The oldest
// segments may be gone: begin asks for a snapshot then.
func (v *recoverer) openFiles() error {
	fs, dir := v.l.o.FS, v.l.dir
	bases, unfinished, err := listDirectory(fs, dir)
	if err != nil {
		return err
	}
	for _, base := range bases {
		f, err := openSegmentFile(fs, dir, base)
		if err != nil {
			return err
		}
		v.files = append(v.files, f)
	}
	configured := v.l.o.SegmentBytes
	size := cmp.Or(configured, defaultSegmentBytes)
	v.r.Fresh = len(v.files) == 0
	if !v.r.Fresh {
		if err := firstProblem(v.files, v.files[0].segmentBytes); err != nil {
			return err
		}
		size = v.files[0].segmentBytes
		if configured != 0 && configured != size {
			v.l.o.Logger.Warn("the data directory keeps the segment size that it was made with",
				slog.Int64("segmentBytes", size), slog.Int64("configured", configured))
		}
	}
	v.l.geo = geometry{segmentBytes: uint64(size)}
	v.r.SegmentBytes = size
	if !v.r.Fresh {
		v.first = v.l.geo.segment(v.files[0].base)
	}
	for _, name := range unfinished {
		if err := fs.Remove(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("mmaplog: unfinished file of an earlier start: %w", err)
		}
		v.r.TempRemoved = append(v.r.TempRemoved, name)
	}
	return nil
}

func (v *recoverer) scanOf(index uint64, buf []byte) segmentScan {
	return v.files[index-v.first].scan(int64(v.l.geo.segmentBytes), buf)
}

// path is that of the segment with a number.
func (v *recoverer) path(index uint64) string {
	return filepath.Join(v.l.dir, segmentName(v.l.geo.base(index)))
}

// findEnd replays from where begin said to the last good record.
func (v *recoverer) findEnd(replay func(Record) error) error {
	var buf []byte
	v.r.End = v.start
	for v.index = v.l.geo.segment(v.start); v.index < v.end(); v.index++ {
		s := v.scanOf(v.index, buf)
		stop, err := s.run(&v.chain, v.l.geo.offset(v.r.End), replay)
		if err != nil {
			return err
		}
		v.stop, buf = stop, s.buf
		v.r.End = v.l.geo.base(v.index) + uint64(stop.off)
		if stop.wrong {
			return &DamageError{File: s.path, Offset: stop.off, Position: v.r.End, What: stop.why}
		}
		if !stop.ended {
			break
		}
		v.r.End = v.l.geo.first(v.index + 1)
	}
	c := &v.chain
	v.r.Records, v.r.Bytes, v.r.Promise = c.records, c.bytes, c.promise
	v.r.LastEpoch, v.r.LastLeaseMs, v.r.LastWallMs = c.last.Epoch, c.last.LeaseMs, c.last.WallMs
	return nil
}

// lookBehind tells a torn tail from damage: if anything behind the end knows of durable bytes behind it,
// the end is a hole.
func (v *recoverer) lookBehind() error {
	v.r.CleanStop = v.chain.last.Type == codec.TypeCleanStop
	var promise uint64
	for i := v.index; i < v.end(); i++ {
		s := v.scanOf(i, nil)
		from := int64(segmentHeaderBytes)
		if i == v.index {
			from = v.stop.off
		}
		b, err := s.look(from, noRecord)
		if err != nil {
			return err
		}
		v.rest = append(v.rest, b)
		promise = max(promise, b.promise)
		if b.used != noOffset {
			v.r.CleanStop = false
		}
	}
	if max(promise, v.durable) <= v.r.End {
		return nil
	}
	damage := &DamageError{File: v.path(v.index), Offset: v.l.geo.offset(v.r.End), Position: v.r.End, Promise: promise,
		What: cmp.Or(v.stop.why, "the records stop")}
	if promise < v.durable {
		damage.Promise, damage.Snapshot = v.durable, true
	}
	if v.index == v.end() {
		damage.What = "the segment file is missing"
	}
	return damage
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
	from := max(v.r.Promise, v.l.geo.first(v.first))
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
				if _, err := v.files[index-v.first].file.ReadAt(b, off); err != nil {
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
			return fmt.Errorf("mmaplog: rewrite the end of the log in %s: %w", v.path(index), err)
		}
		v.r.BytesRewritten += int64(to - from)
		from = to
		if v.l.geo.offset(from) == 0 {
			from += segmentHeaderBytes
		}
	}
	return nil
}

// clear zeroes what lies behind the end, so that no old record can line up with new ones later. Good records that were there are copied
// aside first.
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
			if err := v.keepTail(index, b); err != nil {
				return err
			}
		} else if b.used != noOffset {
			break // it and what follows goes aside
		}
		err := v.change(index, func(f File) error { return f.ZeroRange(from, int64(v.l.geo.segmentBytes)-from) })
		if err != nil {
			return fmt.Errorf("mmaplog: clear %s behind byte %d: %w", v.path(index), from, err)
		}
	}
	return nil
}

// change opens a segment for writing, lets do write, and makes that durable.
func (v *recoverer) change(index uint64, do func(File) error) error {
	f, err := v.l.o.FS.OpenFile(v.path(index), os.O_RDWR, 0)
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
	keep := v.end()
	for i, b := range v.rest {
		if i > 0 && b.used != noOffset {
			keep = v.index + uint64(i)
			break
		}
	}
	if keep == v.end() {
		return nil
	}
	names, err := v.l.o.FS.ReadDir(v.l.dir)
	if err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	for v.end() > keep {
		f := v.files[len(v.files)-1]
		aside := asideName(filepath.Base(f.path), names)
		err := v.l.o.FS.Rename(f.path, filepath.Join(v.l.dir, aside))
		if err == nil {
			err = v.l.o.FS.SyncDir(v.l.dir)
		}
		if err != nil {
			return fmt.Errorf("mmaplog: move a segment behind the end of the log aside: %w", err)
		}
		f.file.Close()
		v.files = v.files[:len(v.files)-1]
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
