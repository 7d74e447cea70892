package mmaplog

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/leasemq/leasemq/codec"
)

// RepairReport is what Repair moved out of the log. After an error it is what was moved by then.
type RepairReport struct {
	At    uint64
	Moved []MovedSegment // by position
	// Good records in what was moved, and their length, as a search finds them.
	Records int
	Bytes   int64
	// Promise is the newest promise that is broken: a record that was moved says that everything below this position was
	// durable. 0: no promise reached behind At.
	Promise uint64
}

// MovedSegment is one segment file of which all or a part left the log.
type MovedSegment struct {
	Segment string // path of the file in the log
	Aside   string // path of where its bytes are now
	From    uint64 // the first position that left the log
	Copied  bool   // Aside is a copy: the file itself stays, with zeroes from From on
	Records int    // good ones from From on
	Bytes   int64
}

// repair is one cut. Order: copy of the segment that is cut, later segments aside, the last one first, then
// the cut itself; each durable before the next. So wherever it stops, what was not yet moved is still there for the next
// try, and there is no gap in the names that was not there before.
type repair struct {
	fs     FS
	r      *Reader
	at     uint64
	report RepairReport
}

// Repair cuts the log of a data directory at a record boundary, for one that does not open: everything from there on is
// moved aside, nothing is deleted. Take Tail.End for at. It locks the directory: a *LockedError says that a
// broker runs. Interrupted anywhere it can be run again, with the same outcome. fs nil: the real one.
//
// The segment that contains at is copied whole and then zeroed from there on; if at is its first record the file
// itself is moved. But the oldest segment of a log that does not begin at position 0 stays as an empty one: its name is what
// tells the position.
func Repair(fs FS, dir string, at uint64) (RepairReport, error) {
	if fs == nil {
		fs = OS
	}
	none := RepairReport{At: at}
	if _, err := fs.ReadDir(filepath.Join(dir, logDirName)); err != nil {
		return none, fmt.Errorf("mmaplog: repair: %w", err) // before a lock file is made in a place that has no log
	}
	lock, err := lockForRepair(fs, dir)
	if err != nil {
		return none, err
	}
	defer lock.Close()
	r, err := OpenReader(fs, dir)
	if err != nil {
		return none, err
	}
	defer r.Close()
	p := repair{fs: fs, r: r, at: at, report: none}
	if err := p.check(); err != nil {
		return none, err
	}
	err = p.run()
	slices.SortFunc(p.report.Moved, func(a, b MovedSegment) int { return cmp.Compare(a.From, b.From) })
	return p.report, err
}

// check refuses a cut that would leave a log that does not open, before anything is changed.
func (p *repair) check() error {
	if err := p.r.Newer(); err != nil {
		return err
	}
	geo := p.r.geo
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("mmaplog: the log cannot be cut at position %d: %s", p.at, fmt.Sprintf(format, args...))
	}
	segment, first := geo.segment(p.at), p.r.First()
	switch {
	case first == 0:
		return nil // an earlier try has moved all there was, or there is nothing to move
	case p.at < first:
		return refuse("it begins at position %d", first)
	case geo.offset(p.at) < segmentHeaderBytes || p.at%codec.Align != 0:
		return refuse("no record can begin there")
	}
	var last uint64
	for _, f := range p.r.files {
		if f.stray || f.base > p.at {
			continue
		}
		last = geo.segment(f.base)
		switch {
		case f.gap != nil:
			return refuse("%s; cut it at position %d", f.gap.What, f.gap.Position+segmentHeaderBytes)
		case f.problem != nil && p.at != geo.first(last):
			return refuse("%s: %s; cut it at position %d", f.path, problemText(f.problem), geo.first(last))
		}
	}
	if p.at == geo.first(segment) && segment <= last+1 {
		return nil
	} else if segment > last {
		return refuse("the last segment before it ends at position %d", geo.base(last+1))
	}
	ends := false
	f := &p.r.files[p.r.fileOf(p.at)]
	_, err := f.search(geo, f.base, func(r Record) error {
		ends = ends || r.Header.Position+uint64(codec.Padded(int(r.Header.Length))) == p.at
		return nil
	})
	if err == nil && !ends {
		err = refuse("no good record ends there")
	}
	return err
}

func (p *repair) run() error {
	geo := p.r.geo
	cut := p.r.fileOf(p.at)
	whole := p.at == geo.first(geo.segment(p.at))
	// The oldest segment may not leave the log without a trace of its position.
	emptied := cut >= 0 && whole && p.r.files[cut].base > 0 && p.at == p.r.First()
	if cut >= 0 && (!whole || emptied) {
		if err := p.copyAside(&p.r.files[cut]); err != nil {
			return err
		}
	}
	for i := len(p.r.files) - 1; i >= 0; i-- {
		f := &p.r.files[i]
		if !f.stray && f.base+segmentHeaderBytes < p.at || i == cut && (!whole || emptied) {
			continue
		}
		if err := p.moveAside(f); err != nil {
			return err
		}
	}
	switch {
	case emptied:
		return p.replace(&p.r.files[cut])
	case cut >= 0 && !whole:
		return p.zero(&p.r.files[cut])
	}
	return nil
}

// count adds what leaves the log with f to the report.
func (p *repair) count(f *offlineFile, aside string, copied bool) error {
	from := max(p.at, f.base+segmentHeaderBytes)
	if f.stray {
		from = f.base
	}
	b, err := f.search(p.r.geo, from, noRecord)
	if err != nil {
		return err
	}
	p.report.Moved = append(p.report.Moved, MovedSegment{Segment: f.path, Aside: aside, From: from, Copied: copied,
		Records: b.records, Bytes: b.bytes})
	p.report.Records, p.report.Bytes = p.report.Records+b.records, p.report.Bytes+b.bytes
	if b.promise > p.at {
		p.report.Promise = max(p.report.Promise, b.promise)
	}
	return nil
}

// aside is a free name beside a segment for what is moved out of it.
func (p *repair) aside(f *offlineFile) (string, error) {
	names, err := p.fs.ReadDir(p.r.dir)
	if err != nil {
		return "", fmt.Errorf("mmaplog: repair: %w", err)
	}
	return filepath.Join(p.r.dir, asideName(filepath.Base(f.path), names)), nil
}

// copyAside copies the whole file f aside. Nothing is copied if there is nothing to lose: an earlier try came as far as
// the cut.
func (p *repair) copyAside(f *offlineFile) error {
	b, err := f.search(p.r.geo, p.at, noRecord)
	if err != nil {
		return err
	}
	if b.used == noOffset && f.problem == nil && f.disk.err == nil {
		return nil
	}
	aside, err := p.aside(f)
	if err != nil {
		return err
	}
	tmp := aside + tmpSuffix
	err = p.copyTo(f, tmp)
	if err == nil {
		err = p.fs.Rename(tmp, aside)
	}
	if err == nil {
		err = p.fs.SyncDir(p.r.dir)
	}
	if err != nil {
		return fmt.Errorf("mmaplog: copy %s to %s: %w", f.path, aside, bare(err))
	}
	return p.count(f, aside, true)
}

// copyTo copies what can be read of f into a new durable file; on an error there is none.
func (p *repair) copyTo(f *offlineFile, path string) error {
	w, err := p.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	err = func() error {
		buf := make([]byte, lookBuffer)
		for off := int64(0); off < f.size; off += int64(len(buf)) {
			b := buf[:min(int64(len(buf)), f.size-off)]
			if err := readFull(f.disk, f.path, b, off); err != nil {
				return err
			}
			if _, err := w.WriteAt(b, off); err != nil {
				return err
			}
		}
		return w.Sync()
	}()
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		err = errors.Join(err, p.fs.Remove(path))
	}
	return err
}

// moveAside renames f.
func (p *repair) moveAside(f *offlineFile) error {
	aside, err := p.aside(f)
	if err != nil {
		return err
	}
	err = p.fs.Rename(f.path, aside)
	if err == nil {
		err = p.fs.SyncDir(p.r.dir)
	}
	if err != nil {
		return fmt.Errorf("mmaplog: move %s aside: %w", f.path, bare(err))
	}
	return p.count(f, aside, false)
}

// zero clears f from the cut on.
func (p *repair) zero(f *offlineFile) error {
	from := p.r.geo.offset(p.at)
	w, err := p.fs.OpenFile(f.path, os.O_RDWR, 0)
	if err == nil {
		err = w.ZeroRange(from, int64(p.r.geo.segmentBytes)-from)
		if err == nil {
			err = w.Sync()
		}
		if closeErr := w.Close(); err == nil {
			err = closeErr
		}
	}
	if err != nil {
		return fmt.Errorf("mmaplog: clear %s behind byte %d: %w", f.path, from, bare(err))
	}
	return nil
}

// replace puts an empty segment in the place of f.
func (p *repair) replace(f *offlineFile) error {
	tmp := f.path + tmpSuffix
	w, err := newSegmentFile(p.fs, tmp, f.base, int64(p.r.geo.segmentBytes))
	if err != nil {
		return err
	}
	err = w.Close()
	if err == nil {
		err = p.fs.Rename(tmp, f.path)
	}
	if err == nil {
		err = p.fs.SyncDir(p.r.dir)
	}
	if err != nil {
		return fmt.Errorf("mmaplog: an empty segment in the place of %s: %w", f.path, bare(err))
	}
	return nil
}
