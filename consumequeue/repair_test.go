package consumequeue

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// entriesOf is what the log has of a queue in [from, to).
func entriesOf(k queueKey, from, to uint64) []Entry {
	entries := make([]Entry, 0, to-from)
	for o := from; o < to; o++ {
		entries = append(entries, entryOf(k, o))
	}
	return entries
}

func (s *section) repair(k queueKey, from, to uint64) {
	s.t.Helper()
	must(s.t, s.x.Repair(k.topic, k.queue, from, entriesOf(k, from, to)))
}

// peek looks an entry up, whatever it is.
func (s *section) peek(k queueKey, offset uint64) Entry {
	s.t.Helper()
	for {
		var e Entry
		found := false
		s.do(func() {
			if b, ok := s.x.Queue(k.topic, k.queue).Block(offset); ok {
				e, found = b.Entries[offset-b.First], true
			}
		})
		if found {
			return e
		}
		s.wait()
	}
}

func (s *section) takeHoles(k queueKey) []uint64 {
	s.holesMu.Lock()
	defer s.holesMu.Unlock()
	holes := s.holes[k]
	delete(s.holes, k)
	slices.Sort(holes)
	return slices.Compact(holes)
}

func offsets(from, to uint64) (all []uint64) {
	for ; from < to; from++ {
		all = append(all, from)
	}
	return all
}

// zeroed is an index of which the entries [from, to) of queueA were overwritten with zeroes, which a start does not see.
func zeroed(t *testing.T, from, to uint64) *section {
	t.Helper()
	s, _ := damaged(t, func(s *section, dir string) {
		overwrite(t, file(dir, queueA, from/FileEntries), int64(from%FileEntries)*EntryBytes, make([]byte, (to-from)*EntryBytes))
	})
	s.o.CacheBytes = 8 * BlockBytes
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	return s
}

// Given a file that was zeroed in the middle, when its entries are looked up, then OnHole is told of each, once a load; when they
// are repaired, then the block in memory has them at the next Poll, and the file for good.
func TestRepairOfAResidentBlock(t *testing.T) {
	from, to := uint64(10*BlockEntries+100), uint64(11*BlockEntries+5)
	s := zeroed(t, from, to)
	if e := s.peek(queueA, from); e.Written() {
		t.Fatalf("offset %d is %+v; the test wants it lost", from, e)
	}
	s.peek(queueA, from+1)
	if got, want := s.takeHoles(queueA), offsets(from, 11*BlockEntries); !slices.Equal(got, want) {
		t.Fatalf("OnHole was told of %v, want %v", got, want)
	}
	s.peek(queueA, to)
	if got, want := s.takeHoles(queueA), offsets(11*BlockEntries, to); !slices.Equal(got, want) {
		t.Fatalf("OnHole was told of %v, want %v", got, want)
	}
	if n := s.x.Stats().Holes; n != to-from {
		t.Errorf("%d holes counted, want %d", n, to-from)
	}
	s.repair(queueA, from, to)
	s.wait() // OnLoad
	for o := from; o < to; o++ {
		if e := s.peek(queueA, o); e != entryOf(queueA, o) {
			t.Fatalf("offset %d is %+v after the repair", o, e)
		}
	}
	if n := s.x.Stats().Repaired; n != to-from {
		t.Errorf("%d repaired counted, want %d", n, to-from)
	}
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// Not in memory: the file is repaired, and the next load brings it.
func TestRepairOfWhatIsNotResident(t *testing.T) {
	s := zeroed(t, 5000, 9000)
	s.repair(queueA, 4990, 9010) // some that were not lost as well
	if n := len(s.x.repairs); n != 0 {
		t.Errorf("%d blocks that are not in memory wait for the section", n)
	}
	s.checkAll()
	if e := s.lookup(queueA, 7000); e != entryOf(queueA, 7000) {
		t.Fatalf("%+v", e)
	}
	if got := s.takeHoles(queueA); got != nil {
		t.Fatalf("OnHole was told of %v", got)
	}
	must(t, s.x.Close())
	checkFiles(t, s)
}

// Entries that are there, but are not what the log says, are replaced as well.
func TestRepairReplaces(t *testing.T) {
	wrong := make([]byte, 3*EntryBytes)
	for i := range wrong {
		wrong[i] = 0xA5
	}
	s, _ := damaged(t, func(s *section, dir string) { overwrite(t, file(dir, queueA, 0), 700*EntryBytes, wrong) })
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	if e := s.peek(queueA, 701); e == entryOf(queueA, 701) {
		t.Fatal("the entry is right; the test wants it wrong")
	}
	s.repair(queueA, 700, 703)
	s.wait()
	if e := s.peek(queueA, 701); e != entryOf(queueA, 701) {
		t.Fatalf("%+v after the repair", e)
	}
	s.checkAll()
}

// Read and Search report what they meet.
func TestReadReportsHoles(t *testing.T) {
	s := zeroed(t, 1000, 1003)
	dst := make([]Entry, 500)
	if n, err := s.x.Read(1, 0, 900, dst); n != 500 || err != nil || dst[101].Written() || !dst[103].Written() {
		t.Fatalf("%d, %v", n, err)
	}
	if got := s.takeHoles(queueA); !slices.Equal(got, []uint64{1000, 1001, 1002}) {
		t.Fatalf("OnHole was told of %v", got)
	}
	s.setBegin(queueA, 1002)
	if n, err := s.x.Read(1, 0, 1002, dst); n != 500 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	s.peek(queueA, 1003)
	if got := s.takeHoles(queueA); !slices.Equal(got, []uint64{1002}) {
		t.Fatalf("OnHole was told of %v, below the begin as well", got)
	}
}

// Given a load that has read the file before the repair and is delivered after it, then the section gets the repaired entries.
func TestRepairBesideALoad(t *testing.T) {
	s := zeroed(t, 1000, 1003)
	must(t, s.x.Close())
	s.open()
	must(t, s.recover(func(k queueKey) uint64 { return s.ends[k] })) // and no goroutines: the test is the loader
	q := s.x.Queue(1, 0)
	l := &loader{x: s.x}
	s.do(func() { q.Block(1001) })
	b := s.x.requests[0]
	s.x.requests = nil
	l.load(b)
	s.repair(queueA, 1000, 1003)
	s.do(func() {
		if _, ok := q.Block(1001); ok {
			t.Error("the block is there before it was delivered")
		}
	})
	l.deliver()
	s.do(func() {
		b, ok := q.Block(1001)
		if !ok || b.Entries[1001-b.First] != entryOf(queueA, 1001) {
			t.Errorf("after the repair: %v, %+v", ok, b)
		}
	})
	if n := len(s.x.repairs); n != 0 {
		t.Errorf("%d repairs are left", n)
	}
}

// The block of the hole is the tail, which is appended to and given to the writer meanwhile.
func TestRepairInTheTail(t *testing.T) {
	first := uint64(FileEntries + 4992) // of the last block
	s, _ := damaged(t, func(*section, string) {})
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	overwrite(t, file(s.o.Dir, queueA, 1), int64(first%FileEntries)*EntryBytes, make([]byte, 3*EntryBytes))
	s.append(queueA, 20)
	s.tick(5000) // part of the tail goes to the writer
	s.append(queueA, 5)
	if e := s.peek(queueA, first+1); e.Written() {
		t.Fatalf("offset %d is %+v; the test wants it lost", first+1, e)
	}
	s.repair(queueA, first-2, s.ends[queueA])
	s.append(queueA, 5)
	if e := s.peek(queueA, first+1); e != entryOf(queueA, first+1) {
		t.Fatalf("%+v after the repair", e)
	}
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// What was not given to the writer yet can't be lost: it stays as it was appended.
func TestRepairLeavesTheTailAlone(t *testing.T) {
	s := newSection(t, Options{})
	s.start(fromStart)
	s.append(queueA, 50)
	must(t, s.x.Repair(1, 0, 10, []Entry{{Position: 1, Size: 1}, {Position: 2, Size: 2}}))
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// A file that was removed under a running index is made again; what else was in it is missed when somebody looks.
func TestRepairOfARemovedFile(t *testing.T) {
	s := zeroed(t, 1000, 1003)
	s.peek(queueA, 1001)
	s.takeHoles(queueA)
	must(t, os.Remove(file(s.o.Dir, queueA, 0)))
	s.repair(queueA, 896, 1024)
	if !s.exists(queueA, 0) {
		t.Fatal("the file was not made again")
	}
	s.peek(queueA, 1024)
	if got, want := s.takeHoles(queueA), offsets(1024, 1152); !slices.Equal(got, want) {
		t.Fatalf("OnHole was told of %v, want %v", got, want)
	}
	s.repair(queueA, 0, FileEntries)
	s.do(func() {}) // Read sees what is in memory, too
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

func TestRepairRefuses(t *testing.T) {
	disk, clock := &faulty{}, newTimers()
	s := newSection(t, Options{OpenFile: disk.open, after: clock.after})
	s.start(fromStart)
	s.append(queueA, 2*FileEntries)
	s.settled()
	one := []Entry{entryOf(queueA, 0)}
	for what, err := range map[string]error{
		"an unknown queue":           s.x.Repair(3, 0, 0, one),
		"what lies behind the end":   s.x.Repair(1, 0, 2*FileEntries, one),
		"what reaches over the end":  s.x.Repair(1, 0, 2*FileEntries-1, append(one, one...)),
		"an offset far behind":       s.x.Repair(1, 0, ^uint64(0), append(one, one...)),
		"an entry that is not there": s.x.Repair(1, 0, 5, []Entry{entryOf(queueA, 5), {}}),
	} {
		if err == nil {
			t.Errorf("%s was repaired", what)
		}
	}
	must(t, s.x.Repair(1, 0, 5, nil))
	// Below the begin there is nothing to do, and its files are not made again.
	s.setBegin(queueA, FileEntries+10)
	s.swept()
	s.repair(queueA, FileEntries-500, FileEntries+500)
	if s.exists(queueA, 0) {
		t.Error("the file below the begin is there again")
	}
	// A full disk is an error of the call, and it can be repeated.
	disk.noOpen.Store(true)
	if err := s.x.Repair(1, 0, FileEntries+700, entriesOf(queueA, FileEntries+700, FileEntries+701)); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("without files: %v", err)
	}
	disk.noOpen.Store(false)
	s.repair(queueA, FileEntries+700, FileEntries+701)
	// While the writer can't store, nothing can be repaired. When it can, the repair has it try again, and waits for it.
	disk.full.Store(true)
	s.append(queueKey{1, 1}, BlockEntries)
	clock.await(t)
	if err := s.x.Repair(1, 0, FileEntries+700, entriesOf(queueA, FileEntries+700, FileEntries+701)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	disk.full.Store(false)
	s.repair(queueA, FileEntries+700, FileEntries+701)
	if free := s.x.DirtyFree(); free != s.x.opt.DirtyBytes {
		t.Errorf("DirtyFree %d after a repair", free)
	}
	s.checkAll()
	must(t, s.x.Close())
	if err := s.x.Repair(1, 0, FileEntries+700, one); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Holes are made and repaired at random places while entries are appended, looked up, read, searched, synced and given up, with room for
// few blocks. Nobody sees anything but the entry or nothing, and when all is repaired everything is there.
func TestRepairBesideEverything(t *testing.T) {
	s := zeroed(t, 100, 20_000)
	q := s.x.Queue(1, 0)
	seed := newRand(t).Uint64()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	beside := func(n uint64, f func(r *rand.Rand) error) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, n))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(r); err != nil {
					if _, removed := errors.AsType[*RemovedError](err); !removed {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	repaired := uint64(100)
	beside(1, func(r *rand.Rand) error {
		n := min(r.Uint64N(300), 20_000-repaired)
		if n == 0 { // done with all: again, and some that were appended since
			from := q.Begin() + r.Uint64N(q.End()-q.Begin())
			return s.x.Repair(1, 0, from, entriesOf(queueA, from, min(from+500, q.End())))
		}
		repaired += n
		return s.x.Repair(1, 0, repaired-n, entriesOf(queueA, repaired-n, repaired))
	})
	beside(2, func(r *rand.Rand) error {
		begin, end := q.Begin(), q.End()
		from := begin + r.Uint64N(end-begin)
		dst := make([]Entry, 200)
		n, err := s.x.Read(1, 0, from, dst)
		for i, e := range dst[:n] {
			if e.Written() && e != entryOf(queueA, from+uint64(i)) {
				return errors.New("a read gave another entry")
			}
		}
		return err
	})
	beside(3, func(r *rand.Rand) error {
		_, err := s.x.Search(1, 0, entryOf(queueA, r.Uint64N(q.End())).Position)
		if _, hole := errors.AsType[*HoleError](err); hole {
			return nil
		}
		return err
	})
	beside(4, func(r *rand.Rand) error { return s.x.Sync() })
	r := rand.New(rand.NewPCG(seed, 5))
	rounds := uint64(600)
	if testing.Short() {
		rounds = 200
	}
	for i := range rounds {
		s.append(queueA, r.IntN(200))
		s.tick(int64(r.IntN(1500)))
		s.setBegin(queueA, i*24_000/rounds)
		for range 10 {
			o := s.begins[queueA] + r.Uint64N(s.ends[queueA]-s.begins[queueA])
			if e := s.peek(queueA, o); e.Written() && e != entryOf(queueA, o) {
				t.Fatalf("offset %d is %+v", o, e)
			}
		}
	}
	close(stop)
	wg.Wait()
	s.repair(queueA, repaired, max(repaired, 20_000))
	s.checkAll()
	for o := s.begins[queueA]; o < s.ends[queueA]; o += 50 {
		s.lookup(queueA, o)
	}
	must(t, s.x.Close())
	checkFiles(t, s)
}
