package consumequeue

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/leasemq/leasemq/mmaplog"
)

// File is a mapped index file. See mmaplog.MappedFile.
type File interface {
	Allocate(off, n int64) error
	Populate(off, n int64) error
	Bytes() []byte
	Flush() error
	Close() error
}

// OpenFile opens an index file, made if it is missing.
func OpenFile(path string, size int64) (File, error) {
	f, err := mmaplog.OpenMapped(path, size)
	if err != nil {
		return nil, err
	}
	// Without this, a page that is readied for a store brings the fifteen around it into memory, in every idle queue, and to the
	// next start they look like data. It is a wish only.
	_ = unix.Madvise(f.Bytes(), unix.MADV_RANDOM)
	return f, nil
}

// mostReaders bounds the descriptors that are kept. Mapped files have none.
const mostReaders = 256

// files stores entries to index files and reads them, whichever are open.
//
// Stores go through mappings, in places that were allocated and populated before. Reads use pread: a cold page then
// stalls one goroutine in a system call, which the scheduler sees, and not in a page fault, which it doesn't.
//
// All methods may be called from any goroutine of this package but the section; they block.
type files struct {
	dir       string
	open      func(path string, size int64) (File, error)
	readAt    func(f *os.File, b []byte, off int64) (int, error)
	log       *slog.Logger
	missing   atomic.Uint64 // see Stats
	removed   atomic.Uint64
	restoring fileKey // recovery only: the newest file that has been restored to
	// renewals counts files that were replaced by new ones.
	renewals atomic.Uint64

	// storeMu is held while storing, so there is one storer at a time, and a file is not closed under it.
	storeMu  sync.Mutex
	mapped   *lru[fileKey, *openFile]
	unsynced map[fileKey]*Queue  // stored to since they were flushed
	newNames map[string]struct{} // directories with new entries since they were flushed
	flushErr error               // latched: what a failed flush lost is not known
	closed   bool                // nothing is opened any more

	readMu     sync.Mutex
	readers    *lru[fileKey, *os.File]
	readClosed bool
}

// openFile is a mapped file. storeMu guards it.
type openFile struct {
	File
	allocated uint32 // bit i: the i-th allocateStep has disk blocks
	flushing  bool
	evicted   bool // close it when it was flushed
}

const _ = uint(32 - FileBytes/allocateStep)

var errRemoved = errors.New("consumequeue: the file is not needed any more")

func openFiles(o *Options) (*files, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("consumequeue: %w", err)
	}
	readers := min(max(o.MaxOpenFiles/4, 1), mostReaders)
	return &files{
		dir: o.Dir, open: o.OpenFile, readAt: o.readAt, log: o.Logger,
		mapped:   newLRU[fileKey, *openFile](max(o.MaxOpenFiles-readers, 1)),
		readers:  newLRU[fileKey, *os.File](readers),
		unsynced: map[fileKey]*Queue{},
		newNames: map[string]struct{}{},
	}, nil
}

// piece is a sequence of entries and the offset of the first.
type piece struct {
	from    uint64
	entries []Entry
}

// write stores pieces, each of which begins where the one before ends, all in one file. If that is not needed any more they
// count as stored.
func (f *files) write(q *Queue, pieces ...piece) error {
	key := keyOf(q, pieces[0].from)
	f.storeMu.Lock()
	err := f.writeLocked(q, key, pieces)
	renewed := false
	if err != nil && !mmaplog.IsShortage(err) {
		var failed error
		if renewed, failed = f.renewLocked(q, key, false); renewed && failed == nil {
			err = f.writeLocked(q, key, pieces)
		}
	}
	f.storeMu.Unlock()
	if renewed {
		f.closeReader(key)
	}
	if err != nil {
		return fmt.Errorf("consumequeue: %s: %w", key.path(f.dir), err)
	}
	return nil
}

func (f *files) writeLocked(q *Queue, key fileKey, pieces []piece) error {
	last := &pieces[len(pieces)-1]
	from := int64(pieces[0].from%FileEntries) * EntryBytes
	to := int64((last.from+uint64(len(last.entries))-1)%FileEntries+1) * EntryBytes
	o, err := f.openLocked(q, key)
	if err == nil {
		err = o.store(from, to, pieces)
	}
	switch {
	case err == errRemoved:
		return nil
	case err != nil:
		f.closeLocked(key) // the next attempt begins with opening it
		return err
	}
	f.unsynced[key] = q
	return nil
}

// store readies [from, to) of the file for stores without faults, then stores pieces there.
func (o *openFile) store(from, to int64, pieces []piece) error {
	for i := from / allocateStep; i <= (to-1)/allocateStep; i++ {
		if o.allocated&(1<<i) != 0 {
			continue
		}
		if err := o.Allocate(i*allocateStep, allocateStep); err != nil {
			return err
		}
		o.allocated |= 1 << i
	}
	if err := o.Populate(from, to-from); err != nil {
		return err
	}
	return storePieces(o.Bytes()[from:to], pieces)
}

// openLocked gives the mapped file of a key of q, made if it is missing. It needs storeMu.
func (f *files) openLocked(q *Queue, key fileKey) (*openFile, error) {
	if q.removed(key.number) {
		return nil, errRemoved
	}
	if o, ok := f.mapped.get(key); ok {
		return o, nil
	}
	if f.closed {
		return nil, ErrClosed
	}
	path := key.path(f.dir)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		queue := filepath.Dir(path)
		topic := filepath.Dir(queue)
		if err := os.MkdirAll(queue, 0o755); err != nil {
			return nil, err
		}
		f.named(queue, topic)
	case err != nil:
		return nil, err
	case info.Size() > FileBytes:
		// Nothing behind the end is ours, and nobody has it mapped.
		if err := os.Truncate(path, FileBytes); err != nil {
			return nil, err
		}
	}
	mapped, err := f.open(path, FileBytes)
	if err != nil {
		return nil, err
	}
	o := &openFile{File: mapped}
	if gone, over := f.mapped.put(key, o); over {
		gone.evict()
	}
	return o, nil
}

// mustFlush notes that a file, and its name, may not be durable.
func (f *files) mustFlush(q *Queue, key fileKey) {
	f.storeMu.Lock()
	defer f.storeMu.Unlock()
	f.unsynced[key] = q
	f.named(queueDir(f.dir, q.topic, q.queue), topicDir(f.dir, q.topic))
}

// named notes that directories have names in them that may not be durable. It needs storeMu.
func (f *files) named(queue, topic string) {
	f.newNames[queue], f.newNames[topic], f.newNames[f.dir] = struct{}{}, struct{}{}, struct{}{}
}

func (f *files) closeLocked(key fileKey) {
	if o, ok := f.mapped.remove(key); ok {
		o.evict()
	}
}

// evict closes a file that was taken out of the open ones, at once or after the flush that is under way. What was stored to it
// stays with the system.
func (o *openFile) evict() {
	if o.flushing {
		o.evicted = true
		return
	}
	o.Close()
}

// drop closes what is open of a dropped topic.
func (f *files) drop(topic uint32) {
	f.storeMu.Lock()
	f.mapped.removeIf(func(k fileKey) bool { return k.topic == topic }, (*openFile).evict)
	for k := range f.unsynced {
		if k.topic == topic {
			delete(f.unsynced, k)
		}
	}
	f.storeMu.Unlock()
	f.closeReaders(func(k fileKey) bool { return k.topic == topic })
}

// remove removes a file that is not needed any more (see Queue.removed), and closes it.
func (f *files) remove(q *Queue, number uint64) error {
	key := fileKey{q.topic, q.queue, number}
	f.storeMu.Lock()
	f.closeLocked(key)
	delete(f.unsynced, key)
	f.storeMu.Unlock()
	err := f.unlink(key)
	f.closeReader(key) // the last: what is opened from now on is not this file, see reader
	return err
}

// reopen closes a file, so that whoever uses it next finds what is at its path now.
func (f *files) reopen(key fileKey) {
	f.unmap(key)
	f.closeReader(key)
}

func (f *files) unmap(key fileKey) {
	f.storeMu.Lock()
	defer f.storeMu.Unlock()
	f.closeLocked(key)
}

// unlink removes a file from its directory. One that is not there is as good.
func (f *files) unlink(key fileKey) error {
	err := os.Remove(key.path(f.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		f.removed.Add(1)
	}
	return err
}

func (f *files) close() {
	f.readMu.Lock()
	f.readClosed = true
	f.readMu.Unlock()
	f.storeMu.Lock()
	f.closed = true
	f.mapped.removeIf(func(fileKey) bool { return true }, (*openFile).evict)
	f.storeMu.Unlock()
	f.closeReaders(func(fileKey) bool { return true })
}
