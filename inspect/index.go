package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
)

// indexFile is a file of a queue's index that was there when the run began.
type indexFile struct {
	topic uint32
	queue uint16
	first uint64 // offset of its first entry
	path  string
	size  int64
}

// listIndex lists the index files, and notes what else lies in their directories.
func (v *verifier) listIndex() error {
	root := filepath.Join(v.dir, queuesDirName)
	foreign := func(path string) {
		v.report.note(Finding{What: "the file is not one of a broker; it is left alone", File: path})
	}
	topics, err := readDir(root)
	if err != nil {
		return err
	}
	for _, t := range topics {
		topic, ok := parseNumber(t.Name(), 32)
		if !ok || !t.IsDir() {
			foreign(filepath.Join(root, t.Name()))
			continue
		}
		queues, err := readDir(filepath.Join(root, t.Name()))
		if err != nil {
			return err
		}
		for _, q := range queues {
			dir := filepath.Join(root, t.Name(), q.Name())
			queue, ok := parseNumber(q.Name(), 16)
			if !ok || !q.IsDir() {
				foreign(dir)
				continue
			}
			files, err := readDir(dir)
			if err != nil {
				return err
			}
			for _, f := range files {
				path := filepath.Join(dir, f.Name())
				first, ok := parseIndexFile(f.Name())
				info, err := f.Info()
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return err
				}
				if !ok || !info.Mode().IsRegular() {
					foreign(path)
					continue
				}
				v.files = append(v.files, indexFile{uint32(topic), uint16(queue), first, path, info.Size()})
			}
		}
	}
	return nil
}

// readDir is os.ReadDir; a directory that is not there has nothing in it.
func readDir(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

func parseNumber(name string, bits int) (n uint64, ok bool) {
	n, err := strconv.ParseUint(name, 10, bits)
	return n, err == nil && strconv.FormatUint(n, 10) == name
}

func parseIndexFile(name string) (first uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".cq")
	if !ok || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first%consumequeue.FileEntries == 0
}

// index compares the index files with what the log said.
func (v *verifier) index() error {
	x := &indexCheck{verifier: v, of: map[queueID]map[uint64]indexFile{}}
	for _, f := range v.files {
		id := queueID{f.topic, f.queue}
		if x.of[id] == nil {
			x.of[id] = map[uint64]indexFile{}
		}
		x.of[id][f.first] = f
	}
	if n := len(v.good); n > 0 {
		x.stored = v.good[n-1].position
	}
	if err := x.run(); err != nil {
		return err
	}
	return x.settle()
}

type queueID struct {
	topic uint32
	queue uint16
}

// indexCheck goes through the index queue by queue.
type indexCheck struct {
	*verifier
	of     map[queueID]map[uint64]indexFile // by first offset
	stored uint64                           // entries of messages below this position were stored before a snapshot was published

	found []indexFinding
	over  int // findings beyond mostFindings

	unstored uint64 // entries that are missing and may be
	gone     int    // files that were removed during the run

	buffer [checkBuffer]byte
}

// indexFinding is held back until it is known that the broker has not moved the queue's begin meanwhile.
type indexFinding struct {
	Finding
	id     queueID
	offset uint64 // the last one that it is about
}

// run compares every queue.
func (x *indexCheck) run() error {
	ids := make([]uint32, 0, len(x.tally.topics))
	for id := range x.tally.topics {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		for i, q := range x.tally.topics[id].queues {
			if err := x.ctx.Err(); err != nil {
				return err
			}
			if err := x.queue(queueID{id, uint16(i)}, q); err != nil {
				return err
			}
		}
	}
	for _, f := range x.files {
		if t := x.tally.topics[f.topic]; t == nil || int(f.queue) >= len(t.queues) {
			x.report.note(Finding{What: "the index file is of a queue that there is not; the next start removes it", File: f.path})
		}
	}
	if x.unstored > 0 {
		x.report.note(Finding{What: fmt.Sprintf("%d index entries newer than the newest snapshot are not stored yet; a start stores them", x.unstored),
			File: filepath.Join(x.dir, queuesDirName)})
	}
	if x.gone > 0 {
		x.report.note(Finding{What: fmt.Sprintf("%d index files were removed during the run: a broker is running", x.gone), File: filepath.Join(x.dir, queuesDirName)})
	}
	return nil
}

// queue compares one queue, file by file. A file that is not there is one without entries.
func (x *indexCheck) queue(id queueID, q *queueTally) error {
	files := x.of[id]
	for _, p := range q.places.pieces { // none spans files
		from, to := max(p.first, q.begin), min(p.end(), q.next)
		if from >= to {
			continue
		}
		first := from - from%consumequeue.FileEntries
		f, listed := files[first]
		if !listed {
			dir := filepath.Join(x.dir, queuesDirName, fmt.Sprint(id.topic), fmt.Sprint(id.queue))
			f = indexFile{id.topic, id.queue, first, filepath.Join(dir, fmt.Sprintf("%020d.cq", first)), 0}
		}
		if err := x.file(id, q, f, listed, from, to); err != nil {
			return err
		}
	}
	for _, first := range slices.Sorted(maps.Keys(files)) {
		f := files[first]
		switch {
		case first+consumequeue.FileEntries <= q.begin:
			x.report.note(Finding{What: "the index file lies below the begin of its queue; the next start removes it", File: f.path})
		case f.size > consumequeue.FileBytes:
			x.find(id, first+consumequeue.FileEntries-1, Finding{What: fmt.Sprintf("the index file has %d bytes, %d are right", f.size, consumequeue.FileBytes),
				File: f.path, Offset: consumequeue.FileBytes})
		case f.size < consumequeue.FileBytes:
			x.report.note(Finding{What: fmt.Sprintf("the index file has %d bytes, %d are right; the next start makes it whole", f.size, consumequeue.FileBytes), File: f.path, Offset: f.size})
		}
		if first+consumequeue.FileEntries > q.next {
			if err := x.behindEnd(id, q, f); err != nil {
				return err
			}
		}
	}
	return nil
}

const checkBuffer = 64 << 10 // bytes of entries that are read at once

// file compares the entries of the offsets from and below to in one file.
func (x *indexCheck) file(id queueID, q *queueTally, f indexFile, listed bool, from, to uint64) error {
	var file *os.File
	if listed {
		var err error
		file, err = os.Open(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			x.gone++
			return nil
		}
		if err != nil {
			return err
		}
		defer file.Close()
	}
	buf := x.buffer[:]
	c := fileCheck{x: x, id: id, q: q, f: f, file: file}
	for at := from; at < to; {
		n := min(to-at, checkBuffer/consumequeue.EntryBytes)
		b := buf[:n*consumequeue.EntryBytes]
		if err := c.read(b, at); err != nil {
			x.find(id, to-1, Finding{What: fmt.Sprintf("the index file cannot be read: %v", err), File: f.path, Offset: c.place(at)})
			return nil
		}
		for i := range n {
			c.entry(b[i*consumequeue.EntryBytes:][:consumequeue.EntryBytes], at+i)
		}
		at += n
	}
	c.endHole(to)
	return nil
}

// fileCheck is the comparison of one file.
type fileCheck struct {
	x    *indexCheck
	id   queueID
	q    *queueTally
	f    indexFile
	file *os.File // nil: there is none

	hole   uint64 // first offset of the row of missing entries that goes on, if inHole
	inHole bool
}

// place is where in the file the entry of an offset lies.
func (c *fileCheck) place(offset uint64) int64 {
	return int64(offset-c.f.first) * consumequeue.EntryBytes
}

// read reads entries from an offset on. What the file does not have is zero.
func (c *fileCheck) read(b []byte, offset uint64) error {
	if c.file == nil {
		clear(b)
		return nil
	}
	n, err := c.file.ReadAt(b, c.place(offset))
	clear(b[n:])
	if err == io.EOF {
		return nil
	}
	return err
}

// entry compares the entry of an offset with what the log said.
func (c *fileCheck) entry(b []byte, offset uint64) {
	position, sum, known := c.q.places.at(offset)
	if !known {
		c.endHole(offset)
		return // the record is missing, which was reported
	}
	c.x.report.IndexEntries++
	if binary.LittleEndian.Uint64(b) == position && entrySum(b) == sum {
		c.endHole(offset)
		return
	}
	// A broker that stores the entry just now may have been seen half way.
	var again [consumequeue.EntryBytes]byte
	if err := c.read(again[:], offset); err == nil {
		b = again[:]
	}
	got := binary.LittleEndian.Uint64(b)
	switch {
	case got == position && entrySum(b) == sum:
		c.endHole(offset)
	case got == 0 && binary.LittleEndian.Uint32(b[8:]) == 0:
		if position >= c.x.stored {
			c.endHole(offset)
			c.x.unstored++
			return
		}
		if !c.inHole {
			c.inHole, c.hole = true, offset
		}
	default:
		c.endHole(offset)
		c.wrong(b, offset, position, got)
	}
}

// endHole reports the row of missing entries that ends before an offset.
func (c *fileCheck) endHole(offset uint64) {
	if !c.inHole {
		return
	}
	c.inHole = false
	position, _, _ := c.q.places.at(c.hole)
	what := fmt.Sprintf("the index of %s has no entries for offsets %d to %d, which are older than the newest snapshot", c.x.tally.nameOf(c.id.topic, c.id.queue), c.hole, offset-1)
	if c.file == nil {
		what = fmt.Sprintf("the index file is missing: %s has no entries for offsets %d to %d; a start builds the index anew", c.x.tally.nameOf(c.id.topic, c.id.queue), c.hole, offset-1)
	}
	c.x.find(c.id, offset-1, Finding{What: what, File: c.f.path, Offset: c.place(c.hole), Position: position})
}

// wrong reports an entry that says something else than the log.
func (c *fileCheck) wrong(b []byte, offset, position, got uint64) {
	x := c.x
	if len(x.found) >= mostFindings {
		x.over++
		return
	}
	name := x.tally.nameOf(c.id.topic, c.id.queue)
	f := Finding{File: c.f.path, Offset: c.place(offset), Position: got}
	switch {
	case got == position:
		f.What = fmt.Sprintf("the index entry of %s offset %d has size %d, tag hash %016x and order hash %016x, which its record does not have",
			name, offset, binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:]))
	default:
		f.What = fmt.Sprintf("the index entry of %s offset %d %s; its message lies at position %d", name, offset, x.pointsTo(got), position)
	}
	x.find(c.id, offset, f)
}

// pointsTo says in words what lies at a position that an index entry names.
func (x *indexCheck) pointsTo(position uint64) string {
	r, err := x.r.ReadRecord(position)
	if err != nil {
		if bad, ok := errors.AsType[*mmaplog.RecordError](err); ok {
			return fmt.Sprintf("points nowhere: there is no record at position %d (%s)", position, bad.What)
		}
		return fmt.Sprintf("points nowhere: %v", err)
	}
	if r.Header.Type != codec.TypeMessage {
		return fmt.Sprintf("points to no message: there is a %s record at position %d", TypeName(r.Header.Type), position)
	}
	p := codec.ParseMessagePlace(r.Assigned)
	return fmt.Sprintf("points to position %d, where the message of %s offset %d lies: two index entries for one message", position, x.tally.nameOf(p.Topic, p.Queue), p.Offset)
}

// behindEnd looks for entries behind the end of a queue. Entries of messages that lie behind the end of the log are what a
// kill, a cut or a running broker leaves: they are stored before the log is durable. One that names a position of the log
// is of none of them.
func (x *indexCheck) behindEnd(id queueID, q *queueTally, f indexFile) error {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		x.gone++
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	from := max(f.first, q.next)
	at, err := firstUsed(file, int64(from-f.first)*consumequeue.EntryBytes, x.buffer[:])
	if err != nil || at < 0 {
		return err
	}
	at -= at % consumequeue.EntryBytes
	offset := f.first + uint64(at/consumequeue.EntryBytes)
	var b [consumequeue.EntryBytes]byte
	if _, err := file.ReadAt(b[:], at); err != nil && err != io.EOF {
		return err
	}
	position := binary.LittleEndian.Uint64(b[:])
	what := fmt.Sprintf("the index of %s has an entry for offset %d, and the queue ends at %d", x.tally.nameOf(id.topic, id.queue), offset, q.next)
	if position < x.tail.End && x.tail.Damage == nil {
		x.find(id, offset, Finding{What: what + ": it " + x.pointsTo(position), File: f.path, Offset: at, Position: position})
		return nil
	}
	x.report.note(Finding{What: what + "; the next start clears it", File: f.path, Offset: at, Position: position})
	return nil
}

// firstUsed is the offset of the first byte of an index file from off on that is not zero; -1 if there is none.
func firstUsed(file *os.File, off int64, buf []byte) (int64, error) {
	for off < consumequeue.FileBytes {
		// Most of the file is a hole; where the file system cannot tell, all of it is read.
		at, err := unix.Seek(int(file.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return -1, nil
		}
		if err == nil {
			off = at
		}
		n, err := file.ReadAt(buf, off)
		for i, c := range buf[:n] {
			if c != 0 && off+int64(i) < consumequeue.FileBytes {
				return off + int64(i), nil
			}
		}
		if err == io.EOF {
			return -1, nil
		}
		if err != nil {
			return -1, err
		}
		off += int64(n)
	}
	return -1, nil
}

func (x *indexCheck) find(id queueID, offset uint64, f Finding) {
	if len(x.found) >= mostFindings {
		x.over++
		return
	}
	x.found = append(x.found, indexFinding{f, id, offset})
}

// settle reports what was found, unless a running broker explains it: then the log has gone on meanwhile, and says what became
// of the queues.
func (x *indexCheck) settle() error {
	if len(x.found) == 0 {
		return nil
	}
	now, err := mmaplog.OpenReader(nil, x.dir)
	if err != nil {
		return err
	}
	defer now.Close()
	later := newTally(newReport(x.dir), x.tail.End) // what it finds is not looked at
	later.whole = false
	later.read, later.files = now.ReadRecord, x.placeOf
	purged := map[uint32]bool{}
	var state stateDecoder
	if _, err := now.ReadRecord(x.tail.End); err == nil && x.tail.Damage == nil {
		_, err := now.Scan(x.tail.End, func(r mmaplog.Record) error {
			if r.Header.Type == codec.TypeTopic {
				if rec, err := state.decode(r.Header.Type, r.Payload); err == nil && rec.topic.Op == codec.OpPurge {
					purged[rec.topic.ID] = true
				}
			}
			if r.Header.Type == codec.TypeTopic || r.Header.Type == codec.TypeRetain {
				later.record(&r)
			}
			return x.ctx.Err()
		})
		if err != nil {
			return err
		}
	}
	for _, f := range x.found {
		_, deleted := later.deleted[f.id.topic]
		begin := uint64(0)
		if t := later.topics[f.id.topic]; t != nil && int(f.id.queue) < len(t.queues) {
			begin = t.queues[f.id.queue].begin
		}
		if deleted || purged[f.id.topic] || f.offset < begin {
			continue
		}
		x.report.find(f.Finding)
	}
	x.report.FindingsLeftOff += x.over
	return nil
}
