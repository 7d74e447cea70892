package consumequeue

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
)

var readBuffers = sync.Pool{New: func() any { return new([BlockBytes]byte) }}

// read loads the entries of q from offset on, at most a block, all in one file. Where the file has none, or the disk can't give
// them back, they are zero.
func (f *files) read(q *Queue, offset uint64, dst []Entry) error {
	found, err := f.readFile(q, offset, dst)
	if unreadable(err) {
		f.log.Error("index entries can't be read and count as lost", "path", keyOf(q, offset).path(f.dir), "offset", offset, "entries", len(dst), "error", err)
		clear(dst)
		return nil
	}
	if err == nil && !found && !q.removed(offset/FileEntries) {
		f.missing.Add(1)
	}
	return err
}

func (f *files) readFile(q *Queue, offset uint64, dst []Entry) (found bool, err error) {
	buf := readBuffers.Get().(*[BlockBytes]byte)
	defer readBuffers.Put(buf)
	b := buf[:len(dst)*EntryBytes]
	for {
		file, err := f.reader(q, keyOf(q, offset))
		if errors.Is(err, fs.ErrNotExist) {
			clear(dst)
			return false, nil
		}
		if err != nil {
			return false, err
		}
		n, err := f.readAt(file, b, int64(offset%FileEntries)*EntryBytes)
		if errors.Is(err, os.ErrClosed) {
			continue // it was closed to make room between the two calls
		}
		if err != nil && err != io.EOF {
			return false, err
		}
		clear(b[n:])
		decodeEntries(dst, b)
		return true, nil
	}
}

// reader opens a file for reading, or finds it open. Somebody else may close it at any time: a read under way then ends first,
// and a later one fails with os.ErrClosed. A file that is not needed any more is as good as gone.
func (f *files) reader(q *Queue, key fileKey) (*os.File, error) {
	renewals := f.renewals.Load()
	f.readMu.Lock()
	file, ok := f.readers.get(key)
	closed := f.readClosed
	f.readMu.Unlock()
	if ok {
		return file, nil
	}
	if closed {
		return nil, ErrClosed
	}
	file, err := os.Open(key.path(f.dir))
	if err != nil {
		return nil, err
	}
	f.readMu.Lock()
	other, raced := f.readers.get(key)
	var gone *os.File
	if !raced {
		gone, _ = f.readers.put(key, file)
	}
	f.readMu.Unlock()
	if raced {
		file.Close()
		return other, nil
	}
	if gone != nil {
		gone.Close()
	}
	// The sweeper closes readers after it has removed a file, and who renews a file does. If one came by between our two steps it has
	// not seen this one, but then we see here why it came.
	if f.renewals.Load() != renewals {
		f.closeReader(key) // whoever looks next opens what is there now
	}
	if q.removed(key.number) {
		f.closeReader(key)
		return nil, fs.ErrNotExist
	}
	return file, nil
}

func (f *files) closeReader(key fileKey) {
	f.readMu.Lock()
	defer f.readMu.Unlock()
	if file, ok := f.readers.remove(key); ok {
		file.Close()
	}
}

func (f *files) closeReaders(match func(fileKey) bool) {
	f.readMu.Lock()
	defer f.readMu.Unlock()
	f.readers.removeIf(match, func(file *os.File) { file.Close() })
}
