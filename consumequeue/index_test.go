package consumequeue

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var queueA = queueKey{1, 0}

// Random appends, lookups, idle times, reads from other goroutines, clean and unclean restarts, with room for a few blocks only.
func TestAgainstModel(t *testing.T) {
	r := newRand(t)
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		s := newSection(t, Options{CacheBytes: (2 + r.IntN(10)) * BlockBytes, DirtyBytes: (1 + r.IntN(16)) * BlockBytes, MaxOpenFiles: 2 + r.IntN(6)})
		var keys []queueKey
		for i := range 1 + r.IntN(8) {
			k := queueKey{uint32(1 + i/3), uint16(i % 3)}
			keys = append(keys, k)
			s.ends[k] = 0
		}
		s.start(fromStart)
		synced := map[queueKey]uint64{} // a snapshot: what may be missing from a replay
		stop := s.readBeside(keys, r.Uint64())
		for range 1500 {
			k := keys[r.IntN(len(keys))]
			begin, end := s.begins[k], s.ends[k]
			switch op := r.IntN(210); {
			case op < 80:
				s.append(k, 1+r.IntN(1<<r.IntN(9)))
			case op < 90 && end < 3*FileEntries:
				s.append(k, r.IntN(FileEntries/8))
			case op < 150 && end > begin:
				offset := begin + r.Uint64N(end-begin)
				if r.IntN(3) == 0 {
					offset = end - 1 - r.Uint64N(min(end-begin, 300))
				}
				if e := s.lookup(k, offset); e != entryOf(k, offset) {
					t.Fatalf("%v: offset %d is %+v", k, offset, e)
				}
			case op < 160:
				s.tick(int64(r.IntN(2000)))
			case op < 180:
				offset := begin + r.Uint64N(end-begin+1)
				s.checkRead(k, offset, int(min(end-offset, 1000)), false)
			case op < 190:
				s.do(func() {
					if _, ok := s.x.Queue(k.topic, k.queue).Block(end); ok {
						t.Fatalf("%v: found a block for the end %d", k, end)
					}
					if _, ok := s.x.Queue(k.topic, k.queue).Block(begin - 1); ok {
						t.Fatalf("%v: found a block below the begin %d", k, begin)
					}
				})
			case op < 195:
				if err := s.x.Sync(); err != nil {
					t.Fatal(err)
				}
				for k, end := range s.ends {
					synced[k] = end
				}
			case op < 197:
				stop()
				if r.IntN(2) == 0 {
					s.x.Abort()
				} else if err := s.x.Close(); err != nil {
					t.Fatal(err)
				}
				if r.IntN(2) == 0 {
					s.start(fromStart)
				} else {
					s.start(func(k queueKey) uint64 { return synced[k] })
				}
				stop = s.readBeside(keys, r.Uint64())
			case op < 202: // retention takes a little
				s.setBegin(k, begin+r.Uint64N(end-begin+1)/uint64(1+r.IntN(8)))
			case op < 203: // or all
				s.setBegin(k, end)
			case op < 210:
				s.checkSearch(k, r.Uint64N(entryOf(k, end).Position+100))
			}
		}
		stop()
		s.checkAll()
		s.swept()
		if err := s.x.Close(); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s)
		// Everything is in the files: nothing has to be replayed.
		s.start(func(k queueKey) uint64 { return s.ends[k] })
		s.checkAll()
		s.x.Abort()
	}
}

// readBeside reads without the section's lock until the function that it returns is called.
func (s *section) readBeside(keys []queueKey, seed uint64) (stop func()) {
	var done atomic.Bool
	var wg sync.WaitGroup
	x := s.x
	handles := make([]*Queue, len(keys))
	for i, k := range keys {
		handles[i] = x.Queue(k.topic, k.queue)
	}
	wg.Go(func() {
		r := rand.New(rand.NewPCG(seed, 2))
		dst := make([]Entry, 400)
		for !done.Load() {
			i := r.IntN(len(keys))
			begin := handles[i].Begin()
			end := handles[i].End()
			if begin == end {
				continue
			}
			offset := begin + r.Uint64N(end-begin)
			if r.IntN(2) == 0 {
				offset = end - 1 - r.Uint64N(min(end-begin, 200))
			}
			n, err := x.Read(keys[i].topic, keys[i].queue, offset, dst)
			if removed, ok := errors.AsType[*RemovedError](err); ok && removed.Begin > offset+uint64(n) && removed.Begin <= handles[i].Begin() {
				continue
			}
			if err != nil || uint64(n) < min(end-offset, uint64(len(dst))) {
				s.t.Errorf("%v: read %d of [%d,%d): %v", keys[i], n, offset, end, err)
				return
			}
			for j, e := range dst[:n] {
				if e != entryOf(keys[i], offset+uint64(j)) {
					s.t.Errorf("%v: offset %d reads %+v", keys[i], offset+uint64(j), e)
					return
				}
			}
		}
	})
	return func() {
		done.Store(true)
		wg.Wait()
	}
}

func TestIdleTailIsGivenBackAndMerged(t *testing.T) {
	s := newSection(t, Options{CacheBytes: 2 * BlockBytes})
	s.start(fromStart)
	s.tick(10_000)
	s.append(queueA, 10)
	q := s.x.Queue(queueA.topic, queueA.queue)
	s.tick(900)
	if q.tail == nil {
		t.Fatal("the tail was given back before a second had passed")
	}
	s.tick(400)
	if q.tail != nil {
		t.Fatal("the tail of an idle queue is still there")
	}
	s.settled()
	// Two other blocks push it out.
	other := queueKey{1, 1}
	s.append(other, 5*BlockEntries)
	s.settled()
	s.do(func() {})
	if q.index.table.get(q, 0) != nil {
		t.Fatal("the block is resident; the test wants it gone")
	}
	s.append(queueA, 5)
	if b := q.tail; b.From != 10 || b.To != 15 {
		t.Fatalf("a new tail has [%d,%d)", b.From, b.To)
	}
	var ok bool
	s.do(func() { _, ok = q.Block(12) })
	if !ok {
		t.Fatal("the new part of the block is not resident")
	}
	s.lookup(queueA, 3)
	s.append(queueA, 200)
	if e := s.lookup(queueA, 9); e != entryOf(queueA, 9) {
		t.Fatalf("offset 9 is %+v", e)
	}
	s.checkAll()
}

// A tail is appended to while a part of it is being written and while what lies before is being loaded.
func TestAppendWhilePartIsWritten(t *testing.T) {
	s := newSection(t, Options{CacheBytes: 2 * BlockBytes})
	s.start(fromStart)
	for range 60 {
		s.append(queueA, 3)
		s.tick(2000)
		s.append(queueKey{1, 1}, BlockEntries)
		s.append(queueKey{1, 2}, BlockEntries)
	}
	s.checkAll()
	if err := s.x.Close(); err != nil {
		t.Fatal(err)
	}
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	s.checkAll()
}

func TestSyncReachesTheFiles(t *testing.T) {
	for _, queues := range []int{3, 200} { // file by file, and the whole file system
		s := newSection(t, Options{})
		s.start(fromStart)
		for i := range queues {
			s.append(queueKey{1, uint16(i)}, 100+i)
		}
		if err := s.x.Sync(); err != nil {
			t.Fatal(err)
		}
		s.x.Abort()
		if err := s.x.Sync(); err != ErrClosed {
			t.Fatalf("Sync after the end: %v", err)
		}
		s.start(func(k queueKey) uint64 { return s.ends[k] })
		s.checkAll()
		s.x.Abort()
	}
}

func TestDropRemovesFiles(t *testing.T) {
	s := newSection(t, Options{CacheBytes: 4 * BlockBytes})
	s.start(fromStart)
	for i := range 4 {
		s.append(queueKey{7, uint16(i)}, 1000)
	}
	s.append(queueA, 1000)
	if err := s.x.Sync(); err != nil {
		t.Fatal(err)
	}
	dir := topicDir(s.o.Dir, 7)
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	s.append(queueKey{7, 1}, 1000) // for the writer to find that it is too late
	q := s.x.Queue(7, 2)
	s.do(func() {
		q.Block(5) // and the loader
		s.x.Drop(7)
	})
	for i := range 4 {
		delete(s.ends, queueKey{7, uint16(i)})
	}
	q.Append(Entry{}) // a handle kept by mistake does no harm
	for range 100000 {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			break
		}
		s.tick(1)
	}
	s.append(queueA, 10000)
	if err := s.x.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("the files are there: %v", err)
	}
	if n, err := s.x.Read(7, 1, 0, make([]Entry, 1)); n != 0 || err != nil {
		t.Fatalf("read %d of a dropped topic, %v", n, err)
	}
	s.tick(2000)
	s.settled()
	s.checkAll()
	s.do(func() {})
	if n := s.x.DirtyFree(); n != s.x.opt.DirtyBytes {
		t.Fatalf("DirtyFree %d", n)
	}
	// Nothing of the dropped queues is left in memory when the hand has been round.
	s.append(queueA, 20*BlockEntries)
	s.settled()
	s.do(func() {})
	for _, b := range s.x.table.buckets {
		for ; b != nil; b = b.chain {
			if b.queue.topic == 7 && b.queue != q {
				t.Fatalf("a block of queue %d is resident", b.queue.queue)
			}
		}
	}
}

// Thousands of queues with little in them cost little: 64 KiB of disk each, and few descriptors.
func TestThousandsOfQueues(t *testing.T) {
	const queues = 1000
	s := newSection(t, Options{MaxOpenFiles: 64})
	s.start(fromStart)
	for i := range queues {
		s.append(queueKey{uint32(1 + i/100), uint16(i % 100)}, 1+i%200)
	}
	s.tick(5000)
	for range queues / mostIdle {
		s.tick(1)
	}
	if err := s.x.Sync(); err != nil {
		t.Fatal(err)
	}
	if n := openDescriptors(t); n > 120 {
		t.Errorf("%d descriptors open", n)
	}
	if used := diskUse(t, s.o.Dir); used > queues*80<<10 {
		t.Errorf("%d KiB on disk for %d queues", used>>10, queues)
	}
	for i := 0; i < queues; i += 37 {
		k := queueKey{uint32(1 + i/100), uint16(i % 100)}
		s.lookup(k, s.ends[k]-1)
	}
	s.checkAll()
	if err := s.x.Close(); err != nil {
		t.Fatal(err)
	}
	s.start(func(k queueKey) uint64 { return s.ends[k] / 2 })
	s.checkAll()
}

func openDescriptors(t *testing.T) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc")
	}
	return len(names)
}

func diskUse(t *testing.T, dir string) (bytes int64) {
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			bytes += allocated(info)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	disk := &faulty{once: true} // allocating opens the file again, in the background
	s := newSection(t, Options{CacheBytes: 64 * BlockBytes, DirtyBytes: 1 << 20, OpenFile: disk.open})
	s.start(fromStart)
	s.append(queueA, 200*BlockEntries)
	q := s.x.Queue(queueA.topic, queueA.queue)
	r := rand.New(rand.NewPCG(1, 1))
	step := func() {
		s.mu.Lock()
		s.x.Poll()
		for range 500 {
			q.Append(Entry{Position: 64, Size: 1})
		}
		for range 3 {
			q.Block(r.Uint64N(q.End()))
			q.Block(q.End() - 1)
		}
		free := s.x.DirtyFree()
		s.mu.Unlock()
		s.x.Kick()
		if free <= 0 {
			s.wait()
		}
	}
	for range 2000 {
		step()
	}
	// Each 65th step needs a new file: its opening is all that allocates.
	if allocs := testing.AllocsPerRun(1000, step); allocs > 0 {
		t.Fatalf("%v allocations per section of 500 appends", allocs)
	}
}

// A section that appends for long without a Poll gets its memory back all the same, and what it looked up stays good.
func TestLongSection(t *testing.T) {
	s := newSection(t, Options{CacheBytes: 8 * BlockBytes, DirtyBytes: 64 << 20})
	s.start(fromStart)
	s.append(queueA, BlockEntries)
	s.settled()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.x.Poll()
	q := s.x.Queue(queueA.topic, queueA.queue)
	held, ok := q.Block(0)
	if !ok {
		t.Fatal("not resident")
	}
	for range 20 * chunkBlocks {
		for range BlockEntries {
			q.Append(entryOf(queueA, s.ends[queueA]))
			s.ends[queueA]++
		}
		s.x.Kick()
		s.settled()
	}
	for i, e := range held.Entries {
		if held.queue != q || e != entryOf(queueA, uint64(i)) {
			t.Fatalf("entry %d of the block that the section holds is %+v", i, e)
		}
	}
	if n := s.x.Stats().BlocksBytes; n > 3*chunkBlocks*BlockBytes {
		t.Fatalf("%d bytes of blocks", n)
	}
	s.checkAll()
}
