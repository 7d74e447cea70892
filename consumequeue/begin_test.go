package consumequeue

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// exists tells whether a queue has its file with that number.
func (s *section) exists(k queueKey, number uint64) bool {
	s.t.Helper()
	_, err := os.Lstat(file(s.o.Dir, k, number))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	return err == nil
}

// isOpen tells whether a file is mapped, open for reading, or waits for a flush.
func (s *section) isOpen(k queueKey, number uint64) bool {
	key := fileKey{k.topic, k.queue, number}
	f := s.x.files
	f.storeMu.Lock()
	_, mapped := f.mapped.get(key)
	_, unsynced := f.unsynced[key]
	f.storeMu.Unlock()
	f.readMu.Lock()
	_, read := f.readers.get(key)
	f.readMu.Unlock()
	return mapped || unsynced || read
}

func TestBeginOnlyRises(t *testing.T) {
	s := newSection(t, Options{})
	s.start(fromStart)
	s.append(queueA, 1000)
	q := s.x.Queue(1, 0)
	for _, c := range []struct{ set, want uint64 }{
		{0, 0}, {5, 5}, {5, 5}, {4, 5}, {0, 5}, {700, 700}, {699, 700}, {1 << 60, 1000}, {3, 1000},
	} {
		s.do(func() { q.SetBegin(c.set) })
		if got := q.Begin(); got != c.want {
			t.Fatalf("SetBegin(%d): the begin is %d, want %d", c.set, got, c.want)
		}
	}
	s.append(queueA, 10)
	s.do(func() { q.SetBegin(1005) })
	if q.Begin() != 1005 || q.End() != 1010 {
		t.Fatalf("[%d,%d)", q.Begin(), q.End())
	}
}

// Below the begin there is nothing: no block, whether it is in memory or not, and nothing is asked for. A reader is told where the
// queue begins, and at the end it is told nothing.
func TestNothingIsBelowBegin(t *testing.T) {
	s := newSection(t, Options{CacheBytes: 2 * BlockBytes})
	s.start(fromStart)
	s.append(queueA, 20*BlockEntries+50)
	s.settled()
	s.lookup(queueA, 3) // resident
	begin := uint64(20*BlockEntries + 7)
	s.setBegin(queueA, begin)
	q := s.x.Queue(1, 0)
	s.do(func() {
		for _, offset := range []uint64{0, 3, 10 * BlockEntries, begin - 1} {
			if _, ok := q.Block(offset); ok {
				t.Errorf("offset %d has a block", offset)
			}
		}
		if s.x.loading != 0 || len(s.x.requests) != 0 {
			t.Errorf("%d blocks were asked for", s.x.loading)
		}
		if b, ok := q.Block(begin); !ok || !b.contains(begin) {
			t.Error("the begin, in the tail, is not resident")
		}
	})
	var dst [4]Entry
	for _, offset := range []uint64{0, 3, begin - 1} {
		n, err := s.x.Read(1, 0, offset, dst[:])
		removed, ok := errors.AsType[*RemovedError](err)
		if n != 0 || !ok || *removed != (RemovedError{1, 0, begin}) {
			t.Errorf("offset %d reads %d entries, %v; want the begin %d", offset, n, err, begin)
		}
	}
	if n, err := s.x.Read(1, 0, s.ends[queueA], dst[:]); n != 0 || err != nil {
		t.Errorf("at the end %d entries, %v", n, err)
	}
	s.checkAll()
}

// Given queues of several files, when the begin passes files, then those are removed and closed, the one with the begin in it
// stays, and all this was one request of the queue.
func TestFilesBelowBeginAreRemoved(t *testing.T) {
	s := newSection(t, Options{CacheBytes: 4 * BlockBytes})
	s.start(fromStart)
	other := queueKey{1, 1}
	s.append(queueA, 4*FileEntries+200)
	s.append(other, 2*FileEntries)
	s.settled()
	s.lookup(queueA, 10) // opens a reader of a file that will go
	s.do(func() {
		for _, offset := range []uint64{100, FileEntries, FileEntries + 1, 2*FileEntries - 1, 2*FileEntries + 5} {
			s.x.Queue(1, 0).SetBegin(offset)
		}
		if n := len(s.x.begins); n != 1 {
			t.Errorf("the sweeper is asked %d times for one queue", n)
		}
		s.x.Queue(1, 1).SetBegin(FileEntries - 1)
		if n := len(s.x.begins); n != 1 {
			t.Errorf("the sweeper is asked for a queue whose begin has not left its file")
		}
	})
	s.begins[queueA], s.begins[other] = 2*FileEntries+5, FileEntries-1
	s.swept()
	for number, want := range []bool{false, false, true, true, true} {
		if got := s.exists(queueA, uint64(number)); got != want {
			t.Errorf("file %d exists: %v", number, got)
		}
		if !want && s.isOpen(queueA, uint64(number)) {
			t.Errorf("file %d is open", number)
		}
	}
	if n := s.x.Stats().FilesRemoved; n != 2 {
		t.Errorf("%d files counted, want 2", n)
	}
	// A load or Read that was on its way to a removed file finds nothing, and nobody is alarmed.
	if found, err := s.x.files.readFile(s.x.Queue(1, 0), 5, make([]Entry, 1)); found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
	must(t, s.x.files.read(s.x.Queue(1, 0), 5, make([]Entry, 1)))
	if s.isOpen(queueA, 0) || s.x.Stats().MissingFiles != 0 {
		t.Errorf("open %v, missing %d", s.isOpen(queueA, 0), s.x.Stats().MissingFiles)
	}
	s.checkAll()
	s.setBegin(queueA, 1<<60)
	s.swept()
	s.append(queueA, 300)
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	s.checkAll()
}

// A queue that was purged goes on: with the begin inside of its tail, at a block's end and at a file's end.
func TestPurgedQueueGoesOn(t *testing.T) {
	for _, end := range []int{1, 50, BlockEntries, BlockEntries + 1, FileEntries - 1, FileEntries, FileEntries + 3} {
		s := newSection(t, Options{CacheBytes: 2 * BlockBytes})
		s.start(fromStart)
		s.append(queueA, end)
		s.setBegin(queueA, uint64(end))
		s.checkAll()
		must(t, s.x.Sync())
		s.append(queueA, 10)
		s.checkAll()
		s.lookup(queueA, uint64(end)+9)
		s.tick(5000) // idle: the tail is given back
		s.settled()
		s.append(queueKey{1, 1}, 5*BlockEntries)
		s.append(queueA, 3*BlockEntries)
		s.lookup(queueA, uint64(end))
		s.setBegin(queueA, uint64(end)+5)
		s.checkAll()
		s.swept()
		must(t, s.x.Close())
		checkFiles(t, s)
		s.start(func(k queueKey) uint64 { return s.ends[k] })
		s.lookup(queueA, s.begins[queueA])
		s.checkAll()
		s.x.Abort()
	}
}

// Given blocks that the writer could not store, when their file has been removed, then they count as stored: nothing is made again,
// nothing fails, and the budget is free again.
func TestHandOversBelowBeginAreDropped(t *testing.T) {
	disk, clock := &faulty{}, newTimers()
	s := newSection(t, Options{OpenFile: disk.open, after: clock.after})
	s.start(fromStart)
	s.append(queueA, BlockEntries)
	s.settled()
	disk.full.Store(true)
	s.append(queueA, FileEntries-BlockEntries-5)
	retry := clock.await(t)
	s.setBegin(queueA, FileEntries-5)
	s.append(queueA, 10) // the tail reaches into the next file
	s.setBegin(queueA, FileEntries+2)
	s.swept()
	if s.exists(queueA, 0) {
		t.Fatal("the file is there")
	}
	retry <- time.Time{}
	s.settled() // on a disk that is still full
	if n := s.x.DirtyFree(); n != s.x.opt.DirtyBytes {
		t.Errorf("DirtyFree %d", n)
	}
	disk.full.Store(false)
	must(t, s.x.Sync())
	if s.exists(queueA, 0) {
		t.Error("the file was made again")
	}
	if n := s.x.Stats().MissingFiles; n != 0 {
		t.Errorf("%d missing files counted", n)
	}
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// A flush has a list of files. Those that are removed while it goes through it are not made again, and the one that is just being
// flushed stays mapped until then.
func TestRemovalDuringFlush(t *testing.T) {
	disk := &faulty{}
	s := newSection(t, Options{OpenFile: disk.open})
	s.start(fromStart)
	s.append(queueA, 6*FileEntries)
	s.settled()
	flushes := 0
	disk.onFlush = func() {
		if flushes++; flushes == 1 {
			s.setBegin(queueA, 1<<60)
			s.swept()
		}
	}
	must(t, s.x.Sync())
	if flushes != 1 {
		t.Errorf("%d files were flushed, though none is needed", flushes)
	}
	must(t, s.x.Sync())
	for number := range uint64(6) {
		if s.exists(queueA, number) || s.isOpen(queueA, number) {
			t.Errorf("file %d: exists %v, open %v", number, s.exists(queueA, number), s.isOpen(queueA, number))
		}
	}
	s.append(queueA, 10)
	must(t, s.x.Close())
	checkFiles(t, s)
}

// A file that can't be removed does not keep the others, and is tried again when the begin has passed the next.
func TestRemovalFails(t *testing.T) {
	s := newSection(t, Options{})
	s.start(fromStart)
	s.append(queueA, 5*FileEntries)
	s.settled()
	s.swept()
	path := file(s.o.Dir, queueA, 1)
	must(t, os.Remove(path))
	must(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o755))
	s.setBegin(queueA, 3*FileEntries)
	s.swept()
	if s.exists(queueA, 0) || !s.exists(queueA, 1) || s.exists(queueA, 2) {
		t.Fatal("file 1 should be in the way, files 0 and 2 gone")
	}
	must(t, os.Remove(filepath.Join(path, "in the way")))
	s.setBegin(queueA, 4*FileEntries)
	s.swept()
	if s.exists(queueA, 1) || s.exists(queueA, 3) {
		t.Fatal("they are still there")
	}
	s.checkAll()
}

// A load that was asked for before its file went brings nothing that anybody sees, also if it had failed until then.
func TestLoadOfARemovedFile(t *testing.T) {
	clock := newTimers()
	s := newSection(t, Options{CacheBytes: 2 * BlockBytes, after: clock.after})
	s.start(fromStart)
	s.append(queueA, 2*FileEntries)
	s.settled()
	s.x.files.reopen(fileKey{1, 0, 0})
	path := file(s.o.Dir, queueA, 0)
	must(t, os.Remove(path))
	must(t, os.Symlink(path, path)) // ELOOP
	s.do(func() {
		if _, ok := s.x.Queue(1, 0).Block(5); ok {
			t.Fatal("the block is resident; the test wants it gone")
		}
	})
	retry := clock.await(t)
	if _, err := s.x.Read(1, 0, 5, make([]Entry, 1)); !errors.Is(err, syscall.ELOOP) {
		t.Fatalf("Read: %v", err)
	}
	s.setBegin(queueA, FileEntries+1)
	s.swept()
	retry <- time.Time{}
	s.until("the load ends", func() bool {
		loading := 0
		s.do(func() { loading = s.x.loading })
		return loading == 0
	})
	if stats := s.x.Stats(); stats.MissingFiles != 0 || stats.Holes != 0 {
		t.Errorf("%+v", stats)
	}
	s.checkAll()
}

func TestDropOfAQueueThatIsBeingSwept(t *testing.T) {
	s := newSection(t, Options{})
	s.start(fromStart)
	s.append(queueA, 2*FileEntries)
	s.append(queueKey{2, 0}, 10)
	s.do(func() {
		q := s.x.Queue(1, 0)
		q.SetBegin(FileEntries)
		s.x.Drop(1)
		q.SetBegin(2 * FileEntries) // a handle kept by mistake does no harm
	})
	delete(s.ends, queueA)
	delete(s.begins, queueA)
	s.swept()
	if _, err := os.Stat(topicDir(s.o.Dir, 1)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the topic's directory: %v", err)
	}
	must(t, s.x.Close())
	checkFiles(t, s)
}

// A crash between SetBegin and the removal leaves files that the next start removes.
func TestCrashBeforeRemoval(t *testing.T) {
	s := newSection(t, Options{})
	s.start(fromStart)
	s.append(queueA, 3*FileEntries+10)
	must(t, s.x.Sync())
	s.mu.Lock()
	s.x.Queue(1, 0).SetBegin(2*FileEntries + 1)
	s.mu.Unlock() // and no Kick: the sweeper does not learn of it
	s.x.Abort()
	if !s.exists(queueA, 0) || !s.exists(queueA, 1) {
		t.Fatal("the files are gone; the test wants them")
	}
	s.begins[queueA] = 2*FileEntries + 1
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	if n := s.x.Stats().FilesRemoved; n != 2 {
		t.Errorf("%d files removed", n)
	}
	s.checkAll()
	checkFiles(t, s)
}

// A queue that is far along costs the sweeper no more than the files that it had since the start.
func TestSweepBeginsWhereRecoveryEnded(t *testing.T) {
	const far = 1 << 45 // a billion files came before
	s := newSection(t, Options{})
	s.begins[queueA], s.ends[queueA] = far-5, far
	s.start(func(queueKey) uint64 { return far - 5 })
	s.append(queueA, FileEntries+10)
	s.settled()
	s.setBegin(queueA, far+FileEntries+3)
	s.swept()
	if n := s.x.Stats().FilesRemoved; n != 2 {
		t.Errorf("%d files removed, want 2", n)
	}
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}
