package consumequeue

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/leasemq/leasemq/mmaplog"
)

// ErrClosed is what Sync and Read give after Close or Abort.
var ErrClosed = errors.New("consumequeue: closed")

// Sync returns when every entry that was appended before the call is in its file, and the files are durable. It may take long,
// and must be called without the section's lock (before a snapshot is published). After an error nothing is
// lost in memory; but if the error came from a flush, every later Sync fails too.
func (x *Index) Sync() error {
	// Tails are stored as they are now, without the section, which will hand them over again when they are full: the
	// same bytes are then stored twice. What left its tail before we came by was handed over before we look at handed.
	if err := x.storeTails(); err != nil {
		return err
	}
	if err := x.awaitWriter(); err != nil {
		return err
	}
	return x.files.flush()
}

func (x *Index) storeTails() error {
	var copied [BlockEntries]Entry
	for i := 0; ; i++ {
		x.mu.Lock()
		if x.stopped {
			x.mu.Unlock()
			return ErrClosed
		}
		if i >= len(x.all) {
			x.mu.Unlock()
			return nil
		}
		q := x.all[i]
		if q == nil || q.flushed == q.end.Load() {
			x.mu.Unlock()
			continue
		}
		from, to := q.flushed, q.end.Load()
		first := firstOf(from)
		n := copy(copied[:], x.table.get(q, first).Entries[from-first:to-first])
		x.mu.Unlock()
		if err := x.files.write(q, piece{from, copied[:n]}); err != nil {
			return err
		}
	}
}

// awaitWriter waits until what was handed over is stored, or the writer failed to in a pass that began after the call.
func (x *Index) awaitWriter() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	target, begun := x.handed, x.begun
	for x.stored < target {
		switch {
		case x.dead != nil:
			return x.dead
		case x.stopped:
			return ErrClosed
		case x.passes > begun && x.failure != nil:
			return x.failure
		}
		if x.passes <= begun {
			x.retryNow = true
			x.rouse(wakeWriter)
		}
		x.moved.Wait()
	}
	return nil
}

// mostFlushes is how many files are flushed one by one. For more the whole file system is flushed at once, which the log does
// to most of it anyway.
const mostFlushes = 128

// flush makes everything stored durable.
func (f *files) flush() error {
	for {
		renewals := f.renewals.Load()
		// A file that was made anew beside the flush may have what was stored to the old one.
		if err := f.flushStored(); err != nil || f.renewals.Load() == renewals {
			return err
		}
	}
}

func (f *files) flushStored() error {
	f.storeMu.Lock()
	keys, names, failed := f.unsynced, f.newNames, f.flushErr
	f.unsynced, f.newNames = map[fileKey]*Queue{}, map[string]struct{}{}
	f.storeMu.Unlock()
	if failed != nil {
		return failed
	}
	err := f.flushNames(keys, names)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("consumequeue: flush: %w", err)
	f.storeMu.Lock()
	defer f.storeMu.Unlock()
	if _, unopened := errors.AsType[*openError](err); unopened && mmaplog.IsShortage(err) {
		// Nothing was flushed that failed: all of it is for the next try.
		for key, q := range keys {
			f.unsynced[key] = q
		}
		for name := range names {
			f.newNames[name] = struct{}{}
		}
		return err
	}
	f.flushErr = err
	return err
}

// openError is why a file or directory could not be opened in order to be flushed.
type openError struct{ err error }

func (e *openError) Error() string { return e.err.Error() }
func (e *openError) Unwrap() error { return e.err }

func (f *files) flushNames(keys map[fileKey]*Queue, names map[string]struct{}) error {
	if len(keys)+len(names) > mostFlushes {
		if err := flushFileSystem(f.dir); !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	for key, q := range keys {
		err := f.flushOpen(q, key)
		if _, unopened := errors.AsType[*openError](err); err != nil && !unopened {
			err = f.flushAnew(q, key, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key.path(f.dir), err)
		}
	}
	for dir := range names {
		err := mmaplog.SyncDir(dir)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist): // one that is gone was dropped
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE): // fsync has no such error
			return &openError{err}
		default:
			return err
		}
	}
	return nil
}

// flushOpen flushes a file without storeMu, so that the writer goes on meanwhile, and the sweeper, which may remove the file.
func (f *files) flushOpen(q *Queue, key fileKey) error {
	f.storeMu.Lock()
	o, err := f.openLocked(q, key)
	if err != nil {
		f.storeMu.Unlock()
		if err == errRemoved {
			return nil
		}
		return &openError{err}
	}
	o.flushing = true
	f.storeMu.Unlock()
	err = o.Flush()
	f.storeMu.Lock()
	o.flushing = false
	if o.evicted {
		o.Close()
	}
	f.storeMu.Unlock()
	return err
}
