package consumequeue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// firstMissing looks whether the entries [begin, end) are there: that all files are, with their full size, and that the last entry was written. (It is
// the last that is missing when a lost file was made anew by what came behind it.)
func (f *files) firstMissing(q *Queue, begin, end uint64) (offset uint64, missing bool) {
	if begin >= end {
		return 0, false
	}
	for at := begin; at < end; at = (at/FileEntries + 1) * FileEntries {
		if info, err := os.Stat(keyOf(q, at).path(f.dir)); err != nil || info.Size() < FileBytes {
			return at, true
		}
	}
	var last [1]Entry
	if found, err := f.readFile(keyOf(q, end-1), end-1, last[:]); err != nil || !found || !last[0].Written() {
		return end - 1, true
	}
	return 0, false
}

// cut removes what lies outside of [begin, end) from the files of a queue, and gives the others their size.
func (f *files) cut(q *Queue, begin, end uint64, log *slog.Logger) error {
	dir := queueDir(f.dir, q.topic, q.queue)
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("consumequeue: %w", err)
	}
	for _, name := range names {
		path := filepath.Join(dir, name.Name())
		first, ok := parseFile(name.Name())
		if !ok {
			log.Warn("not a file of the queue index; left alone", "path", path)
			continue
		}
		switch {
		case first >= end || first+FileEntries <= begin:
			f.unmap(keyOf(q, first))
			log.Info("index file lies outside of the queue; removed", "path", path, "begin", begin, "end", end)
			err = os.Remove(path)
		case end-first < FileEntries:
			err = f.cutFile(keyOf(q, first), int64(end-first)*EntryBytes, log)
		default:
			err = f.resize(keyOf(q, first), name)
		}
		if err != nil {
			return fmt.Errorf("consumequeue: %w", err)
		}
	}
	return nil
}

// resize gives a full file its size. (Its entries were compared, or trusted, before.)
func (f *files) resize(key fileKey, name fs.DirEntry) error {
	info, err := name.Info()
	if err != nil || info.Size() == FileBytes {
		return err
	}
	f.unmap(key)
	return os.Truncate(key.path(f.dir), FileBytes)
}

// cutFile zeroes a file from off on, if it is not zero there.
func (f *files) cutFile(key fileKey, off int64, log *slog.Logger) error {
	path := key.path(f.dir)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	dirty, err := dataBehind(file, off)
	if err != nil {
		return err
	}
	if !dirty && info.Size() == FileBytes {
		return nil
	}
	// A mapping must not outlive a cut of its file.
	f.unmap(key)
	if dirty {
		log.Info("index file reaches behind the end of the queue; cut", "path", path, "bytes", off)
		if err := file.Truncate(off); err != nil {
			return err
		}
	}
	return file.Truncate(FileBytes)
}

// dataBehind reports whether a file has other bytes than zeroes from off on, within the size of an index file. It asks
// where the file has data before it reads: there may be tens of thousands of files, nearly empty.
func dataBehind(file *os.File, off int64) (bool, error) {
	buf := make([]byte, allocateStep)
	for off < FileBytes {
		// The first bytes share their page with the last entries. What follows is mostly a hole.
		next := min((off/BlockBytes+1)*BlockBytes, FileBytes)
		if off%BlockBytes == 0 {
			at, err := file.Seek(off, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) {
				return false, nil
			}
			if err == nil {
				off = at // else this file system can't tell, and all is read
			}
			next = min(off+allocateStep, FileBytes)
		}
		if off >= FileBytes {
			return false, nil
		}
		n, err := file.ReadAt(buf[:next-off], off)
		if err != nil && err != io.EOF {
			return false, err
		}
		if len(bytes.TrimLeft(buf[:n], "\x00")) > 0 {
			return true, nil
		}
		off = next
	}
	return false, nil
}

func (f *files) unmap(key fileKey) {
	f.storeMu.Lock()
	defer f.storeMu.Unlock()
	f.closeLocked(key)
}

// removeUnknown removes the files of queues that are not known. What has another name than we give is left alone.
func (f *files) removeUnknown(known map[queueKey]bool, log *slog.Logger) error {
	topics, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("consumequeue: %w", err)
	}
	for _, t := range topics {
		topic, ok := parseNumber(t.Name(), 32)
		if !ok || !t.IsDir() {
			log.Warn("not a directory of the queue index; left alone", "path", filepath.Join(f.dir, t.Name()))
			continue
		}
		dir := filepath.Join(f.dir, t.Name())
		queues, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("consumequeue: %w", err)
		}
		for _, name := range queues {
			queue, ok := parseNumber(name.Name(), 16)
			if !ok || known[queueKey{uint32(topic), uint16(queue)}] {
				continue
			}
			log.Info("index of an unknown queue; removed", "topic", topic, "queue", queue)
			if err := f.removeQueue(uint32(topic), uint16(queue)); err != nil {
				return fmt.Errorf("consumequeue: %w", err)
			}
		}
		os.Remove(dir) // if it is empty
	}
	return nil
}

// removeTopic removes the files of all queues of a topic.
func (f *files) removeTopic(topic uint32) error {
	dir := topicDir(f.dir, topic)
	queues, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range queues {
		if queue, ok := parseNumber(name.Name(), 16); ok {
			err = errors.Join(err, f.removeQueue(topic, uint16(queue)))
		}
	}
	os.Remove(dir) // if it is empty
	return err
}

// removeQueue removes the index files of a queue, and its directory if nothing else is in it.
func (f *files) removeQueue(topic uint32, queue uint16) error {
	dir := queueDir(f.dir, topic, queue)
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if first, ok := parseFile(name.Name()); ok {
			key := fileKey{topic, queue, first / FileEntries}
			f.unmap(key)
			if e := os.Remove(key.path(f.dir)); e != nil {
				err = errors.Join(err, e)
			}
		}
	}
	os.Remove(dir)
	return err
}
