package consumequeue

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// faulty is a file system that can be full, and counts.
type faulty struct {
	full    atomic.Bool // Allocate and Populate fail
	noOpen  atomic.Bool
	noFlush atomic.Bool
	opened  atomic.Int64
	onOpen  func(path string)
	onFlush func()
	once    bool // Allocate covers the whole file at once, as it is opened
}

type faultyFile struct {
	File
	f *faulty
}

func (f *faulty) open(path string, size int64) (File, error) {
	f.opened.Add(1)
	if f.noOpen.Load() {
		return nil, syscall.EMFILE
	}
	file, err := OpenFile(path, size)
	if err != nil {
		return nil, err
	}
	if f.once {
		if err := file.Allocate(0, size); err != nil {
			return nil, err
		}
	}
	if f.onOpen != nil {
		f.onOpen(path)
	}
	return &faultyFile{file, f}, nil
}

func (f *faultyFile) Allocate(off, n int64) error {
	if f.f.full.Load() {
		return syscall.ENOSPC
	}
	if f.f.once {
		return nil
	}
	return f.File.Allocate(off, n)
}

func (f *faultyFile) Flush() error {
	if f.f.onFlush != nil {
		f.f.onFlush()
	}
	if f.f.noFlush.Load() {
		return syscall.EIO
	}
	return f.File.Flush()
}

// timers gives out timers that fire when the test says so.
type timers struct{ made chan chan time.Time }

func newTimers() *timers { return &timers{make(chan chan time.Time, 100)} }

func (c *timers) after(time.Duration) <-chan time.Time {
	t := make(chan time.Time, 1)
	c.made <- t
	return t
}

func (c *timers) await(t *testing.T) chan time.Time {
	t.Helper()
	select {
	case timer := <-c.made:
		return timer
	case <-time.After(20 * time.Second):
		t.Fatal("nothing waits for another attempt")
		return nil
	}
}

func TestFullDisk(t *testing.T) {
	disk, clock := &faulty{}, newTimers()
	s := newSection(t, Options{DirtyBytes: 8 * BlockBytes, CacheBytes: 4 * BlockBytes, OpenFile: disk.open, after: clock.after})
	s.start(fromStart)
	s.append(queueA, 3*BlockEntries)
	s.settled()
	disk.full.Store(true)
	other := queueKey{1, 1} // a file that is not allocated yet
	free := 0
	s.do(func() {
		q := s.x.Queue(other.topic, other.queue)
		for range 6 * BlockEntries {
			q.Append(entryOf(other, s.ends[other]))
			s.ends[other]++
		}
		free = s.x.DirtyFree()
	})
	if free > 2*BlockBytes {
		t.Fatalf("DirtyFree %d with six blocks of eight waiting", free)
	}
	retry := clock.await(t)
	if err := s.x.Sync(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Sync on a full disk: %v", err)
	}
	// What can't be written can be read, and other queues go on where the disk has room.
	s.checkAll()
	s.append(queueA, 10)
	s.lookup(other, 0)
	if n := s.x.Stats().StoreErrors; n == 0 {
		t.Fatal("no error counted")
	}
	retry <- time.Time{}
	retry = clock.await(t) // tried again, failed again
	s.do(func() { s.x.DirtyFree() })
	disk.full.Store(false)
	for drained := false; !drained; {
		select {
		case retry = <-clock.made: // Sync had begun another one
		default:
			drained = true
		}
	}
	retry <- time.Time{}
	s.settled()
	if free := s.x.DirtyFree(); free != s.o.DirtyBytes {
		t.Fatalf("DirtyFree %d after all was written", free)
	}
	s.append(other, 20*BlockEntries) // the pressure is gone
	s.checkAll()
	if err := s.x.Close(); err != nil {
		t.Fatal(err)
	}
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	s.checkAll()
}

// Given entries in the log that the files lack, and no room for them, the index starts all the same. What is moved
// meanwhile is as the log has it; and all is in the files when there is room.
func TestRecoveryOnAFullDisk(t *testing.T) {
	disk := &faulty{}
	s := newSection(t, Options{OpenFile: disk.open})
	s.start(fromStart)
	s.append(queueA, 3*BlockEntries+10)
	s.append(queueKey{1, 1}, 5)
	s.x.Abort()
	must(t, os.RemoveAll(s.o.Dir))
	disk.full.Store(true)
	s.open()
	for k, end := range s.ends {
		for o := range end {
			must(t, s.x.Recover(k.topic, k.queue, o, entryOf(k, o)))
		}
	}
	moved := Entry{Position: 1 << 40, Size: 7}
	must(t, s.x.Recover(1, 0, 3, moved))
	must(t, s.x.Recover(1, 0, 3, entryOf(queueA, 3)))
	must(t, s.x.FinishRecovery(s.queueEnds()))
	s.x.Start()
	s.checkAll()
	s.append(queueA, 100)
	if err := s.x.Sync(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Sync on a full disk: %v", err)
	}
	disk.full.Store(false)
	must(t, s.x.Sync())
	s.checkAll()
	must(t, s.x.Close())
	s.start(func(k queueKey) uint64 { return s.ends[k] }) // from the files alone
	s.checkAll()
}

// What a start may keep in memory is bounded by DirtyBytes.
func TestRecoveryOnAFullDiskIsBounded(t *testing.T) {
	disk := &faulty{}
	s := newSection(t, Options{OpenFile: disk.open, DirtyBytes: 2 * BlockBytes})
	s.open()
	disk.full.Store(true)
	var err error
	n := uint64(0)
	for ; err == nil && n < 9*BlockEntries; n++ {
		err = s.x.Recover(1, 0, n, entryOf(queueA, n))
	}
	if n != 3*BlockEntries || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d entries: %v", n, err)
	}
}

func TestBackPressureEnds(t *testing.T) {
	s := newSection(t, Options{DirtyBytes: 2 * BlockBytes, CacheBytes: 2 * BlockBytes})
	s.start(fromStart)
	for i := range 20 {
		s.append(queueKey{1, uint16(i % 3)}, 10*BlockEntries)
	}
	s.checkAll()
}

func TestOpenFails(t *testing.T) {
	disk, clock := &faulty{}, newTimers()
	s := newSection(t, Options{OpenFile: disk.open, after: clock.after})
	s.start(fromStart)
	disk.noOpen.Store(true)
	s.append(queueA, BlockEntries)
	retry := clock.await(t)
	disk.noOpen.Store(false)
	retry <- time.Time{}
	s.settled()
	s.checkAll()
}

// A file that can't be read is tried again, and the lookup waits.
func TestLoadFails(t *testing.T) {
	clock := newTimers()
	s := newSection(t, Options{CacheBytes: 2 * BlockBytes, after: clock.after, MaxOpenFiles: 2})
	s.start(fromStart)
	s.append(queueA, 5*BlockEntries)
	s.append(queueKey{1, 1}, 5*BlockEntries)
	s.settled()
	s.do(func() {})
	path := keyOf(s.x.Queue(1, 0), 0).path(s.o.Dir)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, path); err != nil { // ELOOP
		t.Fatal(err)
	}
	s.do(func() {
		if _, ok := s.x.Queue(1, 0).Block(0); ok {
			t.Fatal("the block is resident; the test wants it gone")
		}
	})
	retry := clock.await(t)
	s.lookup(queueKey{1, 1}, 5*BlockEntries-1)
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	retry <- time.Time{}
	if e := s.lookup(queueA, 0); e != entryOf(queueA, 0) {
		t.Fatalf("%+v", e)
	}
	if n := s.x.Stats().LoadErrors; n != 1 {
		t.Fatalf("%d load errors", n)
	}
}

func TestFlushFailureIsLatched(t *testing.T) {
	disk := &faulty{}
	s := newSection(t, Options{OpenFile: disk.open})
	s.start(fromStart)
	s.append(queueA, 10)
	disk.noFlush.Store(true)
	if err := s.x.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Sync: %v", err)
	}
	disk.noFlush.Store(false)
	if err := s.x.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("a second Sync: %v, but what the first lost is not known", err)
	}
}

// When a file cannot be opened to be flushed, because descriptors have run out, then nothing was lost by that: the next Sync does it.
func TestAFlushWithoutDescriptorsIsTriedAgain(t *testing.T) {
	disk := &faulty{}
	s := newSection(t, Options{MaxOpenFiles: 2, OpenFile: disk.open})
	s.start(fromStart)
	for q := range uint16(3) { // one file at a time is mapped
		s.append(queueKey{1, q}, 10)
	}
	disk.onFlush = func() { disk.noOpen.Store(true) } // those behind the first have to be opened again
	if err := s.x.Sync(); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("Sync without descriptors: %v", err)
	}
	flushed := 0
	disk.onFlush = func() { flushed++ }
	disk.noOpen.Store(false)
	if err := s.x.Sync(); err != nil || flushed != 3 {
		t.Fatalf("Sync with descriptors: %v, %d files were flushed", err, flushed)
	}
}

// A store to a page that is gone is an error of that store, not the end of the process.
func TestFaultIsAnError(t *testing.T) {
	clock := newTimers()
	disk := &faulty{once: true}
	broken := false
	disk.onOpen = func(path string) {
		if !broken {
			broken = true
			if err := os.Truncate(path, 0); err != nil {
				t.Error(err)
			}
		}
	}
	s := newSection(t, Options{after: clock.after, OpenFile: func(path string, size int64) (File, error) {
		f, err := disk.open(path, size)
		return unpopulated{f}, err
	}})
	s.start(fromStart)
	s.append(queueA, BlockEntries)
	retry := clock.await(t)
	retry <- time.Time{}
	s.settled() // the file was opened, and given its size, again
	s.checkAll()
	if n := s.x.Stats().StoreErrors; n != 1 {
		t.Fatalf("%d errors", n)
	}
}

type unpopulated struct{ File }

func (unpopulated) Populate(off, n int64) error { return nil }
