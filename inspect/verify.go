package inspect

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/lease"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/snapshot"
)

// Verify checks a data directory. It changes nothing and takes no lock. The error says that it could not look: there is no
// log, the disk does not read, a newer leasemq has written the files.
//
// Order: the log's files are opened first, so that a running broker can remove none of them from under it; then the snapshots
// are read, which such a broker keeps until there are newer ones; then names of the index files; then the log from front
// to back; then the index files, which must say what the log said.
func Verify(ctx context.Context, dir string) (*Report, error) {
	r, err := mmaplog.OpenReader(nil, dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	v := &verifier{ctx: ctx, dir: dir, r: r, report: newReport(dir), seen: map[Finding]struct{}{}}
	steps := []func() error{v.segments, v.snapshots, v.listIndex, v.log, v.segmentProblems, v.lateSnapshots, v.index, v.key, v.finish}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return v.report, nil
}

type verifier struct {
	ctx    context.Context
	dir    string
	r      *mmaplog.Reader
	report *Report
	seen   map[Finding]struct{} // damage that was reported

	good  []snapshotState // that can be read and fit the log, by position
	ahead []snapshotState // that can be read and end with a record that the log did not have
	files []indexFile
	tally *tally
	tail  mmaplog.Tail
}

// segments looks at the names in the directory of the log.
func (v *verifier) segments() error {
	infos := v.r.Segments()
	v.report.Segments, v.report.SegmentBytes, v.report.First = len(infos), v.r.SegmentBytes(), v.r.First()
	dir := filepath.Join(v.dir, logDirName)
	return v.otherFiles(dir, func(name string) bool {
		digits, ok := strings.CutSuffix(name, ".log")
		return ok && len(digits) == 20
	}, func(name string) bool { _, aside := parseAside(name); return aside })
}

// segmentProblems reports what is wrong with names, sizes and headers of segments, but for what the reading of the log has
// stumbled over and reported.
func (v *verifier) segmentProblems() error {
	size := uint64(v.r.SegmentBytes())
	expected := v.r.First() - min(v.r.First(), firstPosition)
	for _, s := range v.r.Segments() {
		stray := s.Base%size != 0
		f := Finding{What: "the segment is damaged: " + s.Problem, File: s.Path, Position: s.Base}
		if !stray && s.Base != expected { // others are missing before it
			f.What = "segments are missing: " + filepath.Base(s.Path) + " is there, and " + s.Problem
			f.File, _ = v.placeOf(expected)
			f.Position = expected
		}
		if !stray {
			expected = s.Base + size
		}
		if s.Problem != "" {
			v.damage(f)
		}
	}
	return nil
}

// otherFiles lists what was moved aside in a directory, and notes what is neither of it nor unfinished.
func (v *verifier) otherFiles(dir string, known, aside func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch name := e.Name(); {
		case known(name):
		case aside(name):
			v.report.Aside = append(v.report.Aside, path)
		case strings.HasSuffix(name, ".tmp"):
			v.report.note(Finding{What: "the file is unfinished; the next start removes it", File: path})
		default:
			v.report.note(Finding{What: "the file is not one of a broker", File: path})
		}
	}
	return nil
}

// damage reports a finding about a file of the log once.
func (v *verifier) damage(f Finding) {
	key := Finding{File: f.File, Offset: f.Offset}
	if _, twice := v.seen[key]; !twice {
		v.seen[key] = struct{}{}
		v.report.find(f)
	}
}

// snapshots reads them all. One that a running broker removes meanwhile was replaced by a newer one: they are listed again.
func (v *verifier) snapshots() error {
	store := storeOf(v.dir)
	done := map[uint64]bool{}
	for again := true; again; {
		again = false
		list, err := listSnapshots(store)
		if err != nil {
			return err
		}
		for _, position := range list {
			if done[position] {
				continue
			}
			if err := v.ctx.Err(); err != nil {
				return err
			}
			done[position] = true
			gone, err := v.snapshot(store, position)
			if err != nil {
				return err
			}
			again = again || gone
		}
	}
	byPosition := func(a, b snapshotState) int { return cmp.Compare(a.position, b.position) }
	slices.SortFunc(v.good, byPosition)
	slices.SortFunc(v.report.Snapshots, func(a, b SnapshotInfo) int { return cmp.Compare(b.Position, a.Position) })
	if first := v.r.First(); first > firstPosition && len(v.good) == 0 && len(v.ahead) == 0 {
		v.report.find(Finding{What: fmt.Sprintf("the log begins at position %d, and no good snapshot stands for what lay before: the state cannot be had", first),
			File: filepath.Join(v.dir, snapshotDirName)})
	}
	return v.otherFiles(filepath.Join(v.dir, snapshotDirName), func(name string) bool {
		digits, ok := strings.CutSuffix(name, ".snap")
		return ok && len(digits) == 20
	}, func(name string) bool { return strings.Contains(name, ".snap"+asideMark) })
}

// snapshot reads one; gone says that it is no longer there.
func (v *verifier) snapshot(store *snapshot.Store, position uint64) (gone bool, err error) {
	s, err := readSnapshot(store, position, nil)
	if isGone(err) {
		return true, nil
	}
	info := SnapshotInfo{Position: position, Path: s.path, Rows: s.rows}
	switch anchor := anchored(v.r, &s.head); {
	case err != nil:
		f := Finding{What: err.Error(), File: s.path, Position: position}
		if d, ok := errors.AsType[*snapshot.DamagedError](err); ok {
			f.What, f.Offset = "the snapshot is damaged: "+d.What, d.Offset
		} else if d, ok := errors.AsType[*snapshot.RowError](err); ok {
			f.What, f.Offset = "the snapshot has a row that contradicts others or cannot be decoded: "+d.Err.Error(), d.Offset
		}
		v.report.find(f)
	case anchor == nil:
		info.Good = true
		v.good = append(v.good, s)
	case position < v.r.First():
		v.report.note(Finding{What: "the snapshot is of no use: " + anchor.Error(), File: s.path, Position: position})
	default:
		v.ahead = append(v.ahead, s)
	}
	v.report.Snapshots = append(v.report.Snapshots, info)
	return false, nil
}

// lateSnapshots judges the snapshots that do not fit the log as it was opened: a running broker may have brought the log
// there since.
func (v *verifier) lateSnapshots() error {
	if len(v.ahead) == 0 {
		return nil
	}
	now, err := mmaplog.OpenReader(nil, v.dir)
	if err != nil {
		return err
	}
	defer now.Close()
	for i := range v.ahead {
		s := &v.ahead[i]
		if err := anchored(now, &s.head); err != nil && s.position >= now.First() {
			v.report.find(Finding{What: "the snapshot does not fit the log: " + err.Error(), File: s.path, Position: s.position})
			continue
		}
		v.report.note(Finding{What: "the snapshot is newer than the start of this run: it was not compared with the log", File: s.path, Position: s.position})
	}
	return nil
}

// log reads it from front to back. Behind damage it goes on with the next good snapshot, as a start would.
func (v *verifier) log() error {
	v.tally = newTally(v.report, v.r.First())
	v.tally.read = v.r.ReadRecord
	v.tally.files = v.placeOf
	pending := v.good
	for from := uint64(0); ; {
		tail, err := v.r.Scan(from, func(r mmaplog.Record) error {
			for len(pending) > 0 && pending[0].position <= r.Header.Position {
				v.tally.compare(&pending[0])
				pending = pending[1:]
			}
			v.tally.record(&r)
			return v.ctx.Err()
		})
		if err != nil {
			return err
		}
		tail.Records, tail.Bytes = tail.Records+v.tail.Records, tail.Bytes+v.tail.Bytes
		v.tail = tail
		for len(pending) > 0 && pending[0].position <= tail.End {
			v.tally.compare(&pending[0])
			pending = pending[1:]
		}
		if tail.Damage == nil {
			if len(v.seen) == 0 {
				v.tally.finish()
			}
			return nil
		}
		v.damage(ofDamage(tail.Damage, &tail))
		if len(pending) == 0 {
			return nil
		}
		v.report.note(Finding{What: "what lies between the damage and this snapshot was not looked at; a start begins with a snapshot and does not read it either",
			File: pending[0].path, Position: pending[0].position})
		v.tally.adopt(&pending[0])
		from = pending[0].position
		pending = pending[1:]
		if _, err := v.r.ReadRecord(from); err != nil {
			return nil // nothing lies behind it
		}
	}
}

// placeOf is the file in which a position lies.
func (v *verifier) placeOf(position uint64) (file string, offset int64) {
	size := uint64(v.r.SegmentBytes())
	return filepath.Join(v.dir, logDirName, fmt.Sprintf("%020d.log", position-position%size)), int64(position % size)
}

// key looks at the key under which receipts are made.
func (v *verifier) key() error {
	path := filepath.Join(v.dir, keyFileName)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && v.tail.Records == 0:
		return nil // the first start makes it
	case errors.Is(err, fs.ErrNotExist):
		v.report.find(Finding{What: "the receipt key is missing: every receipt that consumers hold is void, and the broker does not start; restore it from a backup", File: path})
	case err != nil:
		return err
	case len(b) != lease.KeyBytes+4:
		v.report.find(Finding{What: fmt.Sprintf("the receipt key is damaged: %d bytes, not %d; restore it from a backup", len(b), lease.KeyBytes+4), File: path})
	case codec.Checksum(0, b[:lease.KeyBytes]) != binary.LittleEndian.Uint32(b[lease.KeyBytes:]):
		v.report.find(Finding{What: "the receipt key is damaged: its checksum is wrong; restore it from a backup", File: path, Offset: lease.KeyBytes})
	}
	return nil
}

// finish makes the summary.
func (v *verifier) finish() error {
	r, t := v.report, &v.tail
	r.End, r.Records, r.Bytes = t.End, t.Records, t.Bytes
	for _, x := range v.tally.topics {
		r.Topics++
		r.Queues += len(x.queues)
		for _, q := range x.queues {
			r.Messages += q.next - min(q.begin, q.next)
		}
	}
	file, offset := v.placeOf(t.End)
	switch {
	case t.Damage != nil:
		r.HowItEnds = "damaged"
	case t.Torn:
		r.HowItEnds = "torn: the next start cuts what lies behind the end, which nothing promised"
		what := "the log has a torn tail, which the next start cuts: " + t.CutWhy
		if t.BehindRecords > 0 {
			what += fmt.Sprintf("; it copies aside the %d good records of %d bytes that lie in it, which nothing promised", t.BehindRecords, t.BehindBytes)
		}
		r.note(Finding{What: what, File: file, Offset: offset, Position: t.End})
	case t.Clean:
		r.HowItEnds = "cleanly stopped"
	default:
		r.HowItEnds = "not stopped: the broker was killed, or is running"
	}
	r.Good = len(r.Findings) == 0
	return nil
}
