package consumequeue

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// badPages is a medium that cannot give back a page of one file, nor take a store into it: what is at the same path later is another file.
type badPages struct {
	info    fs.FileInfo // of the file; nil: the medium is sound
	from    int64
	to      int64
	flushes atomic.Int64 // of other files, too
}

func (b *badPages) hit(info fs.FileInfo, off, n int64) bool {
	return b.info != nil && os.SameFile(info, b.info) && off < b.to && off+n > b.from
}

func (b *badPages) readAt(f *os.File, p []byte, off int64) (int, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if b.hit(info, off, int64(len(p))) {
		return 0, syscall.EIO
	}
	return f.ReadAt(p, off)
}

type badFile struct {
	File
	b    *badPages
	info fs.FileInfo
}

func (b *badPages) open(path string, size int64) (File, error) {
	f, err := OpenFile(path, size)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	return &badFile{f, b, info}, err
}

func (f *badFile) Populate(off, n int64) error {
	if f.b.hit(f.info, off, n) {
		return os.NewSyscallError("madvise", syscall.EFAULT)
	}
	return f.File.Populate(off, n)
}

func (f *badFile) Flush() error {
	f.b.flushes.Add(1)
	if f.b.hit(f.info, 0, FileBytes) {
		return syscall.EIO
	}
	return f.File.Flush()
}

// spoil makes block of a file of a queue bad.
func (b *badPages) spoil(t *testing.T, s *section, k queueKey, block int64) {
	t.Helper()
	f, err := os.Open(file(s.o.Dir, k, 0)) // while it is open its inode is not another file's
	must(t, err)
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	must(t, err)
	b.info, b.from, b.to = info, block*BlockBytes, (block+1)*BlockBytes
}

// grown starts an index with two queues on a medium, fills them, and starts it again so that nothing is in memory.
func (b *badPages) grown(t *testing.T, n int) *section {
	t.Helper()
	s := newSection(t, Options{OpenFile: b.open, readAt: b.readAt, CacheBytes: 2 * BlockBytes, after: func(time.Duration) <-chan time.Time {
		c := make(chan time.Time, 1)
		c <- time.Time{}
		return c
	}})
	s.start(fromStart)
	s.append(queueA, n)
	s.append(queueKey{1, 1}, n)
	must(t, s.x.Close())
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	return s
}

// What can't be read is lost and not waited for, is found lost by everybody who looks, and is stored again to a file that can be read.
func TestUnreadableEntriesAreHoles(t *testing.T) {
	b := &badPages{}
	s := b.grown(t, 5*BlockEntries)
	b.spoil(t, s, queueA, 2)
	want := offsets(2*BlockEntries, 3*BlockEntries)
	if e := s.peek(queueA, want[0]); e.Written() {
		t.Fatalf("%+v was read where nothing can be", e)
	}
	if holes := s.takeHoles(queueA); !slices.Equal(holes, want) {
		t.Fatalf("told of %v", holes)
	}
	if _, err := s.x.Search(queueA.topic, queueA.queue, entryOf(queueA, want[5]).Position); err == nil {
		t.Fatal("Search went through a hole")
	} else if _, hole := errors.AsType[*HoleError](err); !hole {
		t.Fatalf("Search: %v", err)
	}
	s.lookup(queueA, 0)
	s.lookup(queueKey{1, 1}, want[0])
	// A piece of it is repaired: what can be read is kept, and what can't stays a hole.
	s.repair(queueA, want[0], want[0]+3)
	s.takeHoles(queueA)
	for _, offset := range []uint64{0, want[0] - 1, want[0], want[2], want[len(want)-1] + 1} {
		if e := s.peek(queueA, offset); e != entryOf(queueA, offset) {
			t.Fatalf("offset %d is %+v after the repair", offset, e)
		}
	}
	s.repair(queueA, want[3], want[len(want)-1]+1)
	s.do(func() {}) // what is in memory is mended by a Poll
	s.checkAll()
	s.checkSearch(queueA, entryOf(queueA, want[5]).Position)
	must(t, s.x.Sync())
	s.append(queueA, 3)
	must(t, s.x.Close())
	checkFiles(t, s)
}

// The block that a queue goes on in after a start can't be read. The entries that come are stored all the same.
func TestAppendingToAnUnreadableBlock(t *testing.T) {
	b := &badPages{}
	s := b.grown(t, BlockEntries+10)
	b.spoil(t, s, queueA, 1)
	s.append(queueA, 2*BlockEntries)
	s.settled()
	if n := s.x.Stats().StoreErrors; n != 0 {
		t.Fatalf("%d stores failed", n)
	}
	s.repair(queueA, BlockEntries, BlockEntries+10)
	s.do(func() {})
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// A start that has to build the index anew, because a file can't be read, can store it.
func TestRecoveryOverAnUnreadableFile(t *testing.T) {
	b := &badPages{}
	s := b.grown(t, 5*BlockEntries)
	s.x.Abort()
	b.spoil(t, s, queueA, 1)
	s.start(fromStart)
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// The system takes what a failed flush should have stored for stored. So it is stored once more, to another file.
func TestAFileWhoseFlushFailsIsMadeAnew(t *testing.T) {
	b := &badPages{}
	s := b.grown(t, BlockEntries)
	s.append(queueA, 2*BlockEntries)
	s.settled()
	b.spoil(t, s, queueA, 100) // a page that is not used: all can be read
	must(t, s.x.Sync())
	if info, err := os.Stat(file(s.o.Dir, queueA, 0)); err != nil || os.SameFile(info, b.info) {
		t.Fatalf("the file is the same one (%v)", err)
	}
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// Entries that the files have when they are replayed may be there only because the system was not restarted. The next Sync flushes
// them, and their names.
func TestReplayedEntriesAreFlushed(t *testing.T) {
	b := &badPages{}
	s := b.grown(t, 2*BlockEntries)
	s.x.Abort()
	s.start(fromStart)
	b.flushes.Store(0)
	s.x.files.storeMu.Lock()
	names := len(s.x.files.newNames)
	s.x.files.storeMu.Unlock()
	must(t, s.x.Sync())
	if n := b.flushes.Load(); n != 2 || names != 4 { // the index, a topic, two queues
		t.Fatalf("%d of 2 files were flushed, %d of 4 directories", n, names)
	}
}
