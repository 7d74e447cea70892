package consumequeue

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
)

// What the disk can't give back. An index file says nothing that the log doesn't, so a part that can't be read is not waited for: its
// entries are lost, as if the file had never had them, and the broker mends them from the log. What is stored into such a page
// fails, too. Then the file is made anew, from what can be read of it.

// unreadable tells whether an error says that the disk can't give back what it was given, as opposed to one that may pass.
func unreadable(err error) bool {
	return slices.ContainsFunc(mediumErrors, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// renewLocked makes a file anew if a part of it can't be read, or if it must be for another reason. What can't be read is missing in
// the new one. It tells whether it did. It needs storeMu; the caller has the readers of the file closed when storeMu is free.
//
// If the process dies on the way the file, or some of it, is missing, which the next start finds and mends.
func (f *files) renewLocked(q *Queue, key fileKey, must bool) (renewed bool, err error) {
	if f.closed || q.removed(key.number) {
		return false, nil
	}
	path := key.path(f.dir)
	entries, lost, err := f.salvage(path)
	if err != nil || lost == 0 && !must {
		return false, err
	}
	f.closeLocked(key)
	if err := os.Remove(path); err != nil {
		return false, err
	}
	f.renewals.Add(1)
	f.log.Warn("index file was made anew", "path", path, "lost entries", lost)
	o, err := f.openLocked(q, key)
	if err != nil {
		return true, err
	}
	f.unsynced[key], f.newNames[queueDir(f.dir, q.topic, q.queue)] = q, struct{}{}
	const step = allocateStep / EntryBytes
	for i, some := range slices.Collect(slices.Chunk(entries, step)) {
		if slices.ContainsFunc(some, func(e Entry) bool { return e.Written() }) {
			from := int64(i) * allocateStep
			err = errors.Join(err, o.store(from, from+allocateStep, []piece{{uint64(i * step), some}}))
		}
	}
	return true, err
}

// salvage reads what can be read of a file, and tells how many entries can't.
func (f *files) salvage(path string) (entries []Entry, lost int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	b := make([]byte, FileBytes)
	for off := int64(0); off < FileBytes; off += BlockBytes {
		part := b[off : off+BlockBytes]
		switch n, err := f.readAt(file, part, off); {
		case unreadable(err):
			clear(part)
			lost += BlockEntries
		case err == io.EOF:
			clear(part[n:])
		case err != nil:
			return nil, 0, err
		}
	}
	entries = make([]Entry, FileEntries)
	decodeEntries(entries, b)
	return entries, lost, nil
}

// flushAnew stores the entries of a file whose flush has failed to another one, and flushes that: what the system
// still has of them it takes for stored, and would not try again.
func (f *files) flushAnew(q *Queue, key fileKey, failure error) error {
	if q.removed(key.number) {
		return nil
	}
	f.storeMu.Lock()
	renewed, err := f.renewLocked(q, key, true)
	f.storeMu.Unlock()
	if !renewed {
		return errors.Join(failure, err)
	}
	f.closeReader(key)
	if err == nil {
		err = f.flushOpen(q, key)
	}
	if err != nil {
		return fmt.Errorf("%w; and of the file that was made instead: %w", failure, err)
	}
	return nil
}
