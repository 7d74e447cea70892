package consumequeue

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// damaged makes an index with some queues, closes it, lets damage change the directory, and gives the section for another start.
func damaged(t *testing.T, damage func(s *section, dir string)) (*section, *faulty) {
	t.Helper()
	disk := &faulty{}
	s := newSection(t, Options{OpenFile: disk.open})
	s.start(fromStart)
	s.append(queueA, FileEntries+5000) // two files
	s.append(queueKey{1, 3}, 130)
	s.append(queueKey{2, 0}, FileEntries) // one full file
	s.append(queueKey{5, 1}, 1)
	if err := s.x.Close(); err != nil {
		t.Fatal(err)
	}
	damage(s, s.o.Dir)
	disk.opened.Store(0)
	return s, disk
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func file(dir string, k queueKey, number uint64) string {
	return fileKey{k.topic, k.queue, number}.path(dir)
}

func overwrite(t *testing.T, path string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(b, off)
	must(t, err)
	must(t, f.Close())
}

func TestRecoveryRebuilds(t *testing.T) {
	garbage := bytes.Repeat([]byte{0xA5, 0, 1}, 40000)
	// cut takes entries from the log's end: the broker lost power, or the log was cut.
	for name, damage := range map[string]func(s *section, dir string){
		"nothing":           func(*section, string) {},
		"all files missing": func(_ *section, dir string) { must(t, os.RemoveAll(dir)) },
		"a file missing":    func(_ *section, dir string) { must(t, os.Remove(file(dir, queueA, 0))) },
		"a short file":      func(_ *section, dir string) { must(t, os.Truncate(file(dir, queueA, 0), 100_001)) },
		"an empty file":     func(_ *section, dir string) { must(t, os.Truncate(file(dir, queueA, 1), 0)) },
		"a long file":       func(_ *section, dir string) { overwrite(t, file(dir, queueA, 0), FileBytes-10, garbage) },
		"garbage inside":    func(_ *section, dir string) { overwrite(t, file(dir, queueA, 0), 3001, garbage) },
		"garbage at the end": func(_ *section, dir string) {
			overwrite(t, file(dir, queueA, 1), 5000*EntryBytes, []byte{1})
			overwrite(t, file(dir, queueKey{5, 1}, 0), EntryBytes+5, []byte{9})
		},
		"garbage far behind": func(_ *section, dir string) {
			overwrite(t, file(dir, queueA, 1), FileBytes-1, []byte{1})
			overwrite(t, file(dir, queueKey{1, 3}, 0), allocateStep, garbage)
		},
		"a file too many": func(_ *section, dir string) {
			overwriteNew(t, file(dir, queueA, 2), garbage)
			overwriteNew(t, file(dir, queueKey{2, 0}, 1), garbage)
		},
		"unknown queues": func(_ *section, dir string) {
			must(t, os.MkdirAll(queueDir(dir, 1, 9), 0o755))
			must(t, os.MkdirAll(queueDir(dir, 99, 0), 0o755))
			overwriteNew(t, file(dir, queueKey{99, 0}, 0), garbage)
		},
		"the log was cut": func(s *section, _ string) {
			s.ends[queueA] = FileEntries - 70
			s.ends[queueKey{1, 3}] = 128
			s.ends[queueKey{2, 0}] = 0
			delete(s.ends, queueKey{5, 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, disk := damaged(t, damage)
			s.start(fromStart)
			if name == "nothing" && disk.opened.Load() != 0 {
				t.Errorf("%d files were opened for writing though all was well", disk.opened.Load())
			}
			s.checkAll()
			checkFiles(t, s)
			for k := range maps.Clone(s.ends) {
				s.append(k, 300)
				s.lookup(k, 0)
			}
			s.checkAll()
			must(t, s.x.Close())
			checkFiles(t, s)
		})
	}
}

func overwriteNew(t *testing.T, path string, b []byte) {
	t.Helper()
	must(t, os.WriteFile(path, b, 0o644))
}

// checkFiles holds the directory against what it should be: exactly the files of the queues, of the right size, with
// the entries of the queues and zeroes behind them.
func checkFiles(t *testing.T, s *section) {
	t.Helper()
	want := map[string]bool{}
	for k, end := range s.ends {
		begin := s.begins[k]
		for at := begin / FileEntries * FileEntries; at < end; at += FileEntries {
			path := file(s.o.Dir, k, at/FileEntries)
			want[path] = true
			content, err := os.ReadFile(path)
			must(t, err)
			if len(content) != FileBytes {
				t.Fatalf("%s has %d bytes", path, len(content))
			}
			n := min(end-at, FileEntries)
			if s.x != nil && s.x.started && !s.x.stopped {
				n = 0 // the newest are in memory
				continue
			}
			entries := make([]Entry, n)
			decodeEntries(entries, content)
			for i, e := range entries {
				if at+uint64(i) < begin {
					continue // means nothing
				}
				if e != entryOf(k, at+uint64(i)) {
					t.Fatalf("%s: entry %d is %+v", path, i, e)
				}
			}
			if len(bytes.TrimLeft(content[n*EntryBytes:], "\x00")) > 0 {
				t.Fatalf("%s: something stands behind entry %d", path, n)
			}
		}
	}
	must(t, filepath.Walk(s.o.Dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && !want[path] {
			t.Errorf("%s should not be there", path)
		}
		return err
	}))
}

// Names that are not ours are left alone, wherever they are.
func TestRecoveryLeavesForeignFiles(t *testing.T) {
	var foreign []string
	s, _ := damaged(t, func(s *section, dir string) {
		foreign = []string{
			filepath.Join(dir, "README"), filepath.Join(dir, "007", "x"), filepath.Join(dir, "lost+found", "0", "00000000000000000000.cq"),
			filepath.Join(dir, "1", "notes", "x"), filepath.Join(queueDir(dir, 1, 0), "00000000000000032768.cq.bak"),
			filepath.Join(queueDir(dir, 1, 0), "00000000000000000001.cq"), filepath.Join(queueDir(dir, 88, 0), "mine"),
		}
		for _, path := range foreign {
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			overwriteNew(t, path, []byte("mine"))
		}
	})
	s.start(fromStart)
	for _, path := range foreign {
		if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	s.checkAll()
}

// A replay that begins at a snapshot relies on what was flushed before it.
func TestPartialReplay(t *testing.T) {
	behind := func(k queueKey) uint64 { return 0 }
	for name, c := range map[string]struct {
		damage func(s *section, dir string)
		ok     bool
	}{
		"all there":          {func(*section, string) {}, true},
		"tail lost":          {func(s *section, dir string) { must(t, os.Truncate(file(dir, queueA, 1), 4000*EntryBytes)) }, true},
		"directory lost":     {func(s *section, dir string) { must(t, os.RemoveAll(dir)) }, false},
		"first file lost":    {func(s *section, dir string) { must(t, os.Remove(file(dir, queueA, 0))) }, false},
		"first file short":   {func(s *section, dir string) { must(t, os.Truncate(file(dir, queueA, 0), 4096)) }, false},
		"last file lost":     {func(s *section, dir string) { must(t, os.Remove(file(dir, queueA, 1))) }, false},
		"idle queue is gone": {func(s *section, dir string) { must(t, os.Remove(file(dir, queueKey{5, 1}, 0))) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := damaged(t, c.damage)
			behind = func(k queueKey) uint64 {
				if k == queueA {
					return FileEntries + 3500
				}
				return s.ends[k]
			}
			s.open()
			err := s.recover(behind)
			var incomplete *IncompleteError
			if errors.As(err, &incomplete) == c.ok || err != nil && c.ok {
				t.Fatalf("FinishRecovery: %v", err)
			}
			if !c.ok {
				s.x.Abort() // then the whole log is replayed
				s.open()
				must(t, s.recover(fromStart))
			}
			s.x.Start()
			s.checkAll()
		})
	}
}

func TestRecoverMovedMessage(t *testing.T) {
	s, _ := damaged(t, func(*section, string) {})
	s.open()
	end := s.ends[queueA]
	for o := range end {
		must(t, s.x.Recover(1, 0, o, entryOf(queueA, o)))
	}
	moved := Entry{Position: 1 << 40, Size: 7}
	for _, o := range []uint64{3, end - 1000, end - 1} { // in a file, in a block in memory, in the tail
		must(t, s.x.Recover(1, 0, o, moved))
	}
	for k, end := range s.ends {
		for o := range end {
			if k != queueA {
				must(t, s.x.Recover(k.topic, k.queue, o, entryOf(k, o)))
			}
		}
	}
	must(t, s.x.FinishRecovery(s.queueEnds()))
	s.x.Start()
	check := func() {
		for _, o := range []uint64{3, end - 1000, end - 1} {
			var e [1]Entry
			if n, err := s.x.Read(1, 0, o, e[:]); n != 1 || err != nil || e[0] != moved {
				t.Fatalf("offset %d: %+v, %v", o, e, err)
			}
		}
	}
	check()
	must(t, s.x.Close())
	s.open()
	must(t, s.x.FinishRecovery(s.queueEnds()))
	s.x.Start()
	check()
}

func TestRecoveryRefusesGapsAndDisagreement(t *testing.T) {
	s, _ := damaged(t, func(*section, string) {})
	s.open()
	must(t, s.x.Recover(1, 0, 5, entryOf(queueA, 5)))
	if err := s.x.Recover(1, 0, 7, entryOf(queueA, 7)); err == nil {
		t.Fatal("offset 7 after 5 was taken")
	}
	if err := s.x.FinishRecovery(s.queueEnds()); err == nil {
		t.Fatal("the log ends at 6, the state later, and nobody minds")
	}
}

// A topic that was deleted while the log was written: its messages are in the replay, its queues are not in the state.
func TestRecoveryOfADeletedTopic(t *testing.T) {
	s, _ := damaged(t, func(*section, string) {})
	s.open()
	for o := range uint64(300) {
		must(t, s.x.Recover(77, 0, o, entryOf(queueKey{77, 0}, o)))
	}
	must(t, s.recover(fromStart))
	s.x.Start()
	s.checkAll()
	checkFiles(t, s)
}

// The example of docs/format-consumequeue.md.
func TestFormat(t *testing.T) {
	s := newSection(t, Options{})
	s.start(fromStart)
	s.do(func() {
		q := s.x.Queue(3, 17)
		for range 3 {
			q.Append(Entry{Position: 64, Size: 1})
		}
		q.Append(Entry{Position: 4096, Size: 1128, OrderHash: 1})
	})
	must(t, s.x.Close())
	content, err := os.ReadFile(filepath.Join(s.o.Dir, "3", "17", "00000000000000000000.cq"))
	must(t, err)
	want := "\x00\x10\x00\x00\x00\x00\x00\x00\x68\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"
	if got := string(content[96:128]); got != want || len(content) != FileBytes {
		t.Fatalf("%d bytes, entry 3 is % x, want % x", len(content), got, want)
	}
}

// writeFiles makes the files of a queue as they would be after a clean stop.
func (s *section) writeFiles(k queueKey, end uint64) {
	s.t.Helper()
	s.ends[k] = end
	must(s.t, os.MkdirAll(queueDir(s.o.Dir, k.topic, k.queue), 0o755))
	for at := uint64(0); at < end; at += FileEntries {
		content := make([]byte, FileBytes)
		encodeEntries(content, entriesOf(k, at, min(at+FileEntries, end)))
		must(s.t, os.WriteFile(file(s.o.Dir, k, at/FileEntries), content, 0o644))
	}
}

// Recovery with begins: from what the log and the state say of a queue of two files, the files that have a part of
// [Begin, End) are kept, and everything in it is there.
func TestRecoveryWithABegin(t *testing.T) {
	const end = FileEntries + 3000
	for name, c := range map[string]struct{ begin, from uint64 }{
		"begin in the first file, all replayed":                  {100, 0},
		"begin in the second file, all replayed":                 {FileEntries + 1000, 0},
		"begin at a file's edge":                                 {FileEntries, 0},
		"the log starts at the begin":                            {FileEntries + 1000, FileEntries + 1000},
		"the log starts behind the begin":                        {FileEntries + 1000, FileEntries + 2000},
		"the replay starts below the begin, which rose in it":    {FileEntries + 1000, FileEntries + 10},
		"the replay starts in an earlier file than the begin's":  {FileEntries + 1000, FileEntries - 10},
		"all below the begin was replayed, nothing above":        {end, FileEntries},
		"purged, and nothing is replayed":                        {end, end},
		"the last entry is left, and it is not replayed":         {end - 1, end},
		"the begin lies in the tail's block, as does the replay": {end - 30, end - 20},
	} {
		for _, damage := range []string{"none", "below", "all"} {
			t.Run(name+", damage "+damage, func(t *testing.T) {
				s := newSection(t, Options{CacheBytes: 4 * BlockBytes})
				s.writeFiles(queueA, end)
				s.writeFiles(queueKey{1, 1}, 10)
				s.begins[queueA] = c.begin
				switch damage {
				case "below": // what is not needed is not missed
					for number := range c.begin / FileEntries {
						must(t, os.Remove(file(s.o.Dir, queueA, number)))
					}
					if n := c.begin % FileEntries; n > 0 {
						overwrite(t, file(s.o.Dir, queueA, c.begin/FileEntries), 0, make([]byte, n*EntryBytes))
					}
				case "all":
					must(t, os.RemoveAll(queueDir(s.o.Dir, 1, 0)))
				}
				s.open()
				err := s.recover(func(k queueKey) uint64 {
					if k == queueA {
						return c.from
					}
					return 0
				})
				if missing := damage == "all" && c.from > c.begin; missing {
					incomplete, ok := errors.AsType[*IncompleteError](err)
					if !ok || incomplete.Offset < c.begin || incomplete.Offset >= c.from || incomplete.Replayed != c.from {
						t.Fatalf("%v, want something missing in [%d,%d)", err, c.begin, c.from)
					}
					// Then the whole log is replayed, which begins at Begin.
					s.x.Abort()
					s.open()
					err = s.recover(func(k queueKey) uint64 { return s.begins[k] })
				}
				must(t, err)
				s.x.Start()
				if q := s.x.Queue(1, 0); q.Begin() != c.begin || q.End() != end {
					t.Fatalf("[%d,%d)", q.Begin(), q.End())
				}
				s.checkAll()
				for _, o := range []uint64{c.begin, end - 1} {
					if o >= c.begin && o < end {
						s.lookup(queueA, o)
					}
				}
				s.checkSearch(queueA, 0)
				if _, err := s.x.Read(1, 0, c.begin-1, make([]Entry, 1)); err == nil {
					t.Error("below the begin something is read")
				}
				s.append(queueA, 300)
				s.lookup(queueA, c.begin)
				s.checkAll()
				must(t, s.x.Close())
				checkFiles(t, s)
				if len(s.holes) > 0 {
					t.Errorf("OnHole was told of %v", s.holes)
				}
			})
		}
	}
}

// Given a log that does not reach back to the begin of a queue, and a file that is lost, then the replay of the whole log does
// not help, and the error says what the operator has to know.
func TestRebuildFromALogThatStartsTooLate(t *testing.T) {
	s, _ := damaged(t, func(s *section, dir string) { must(t, os.RemoveAll(queueDir(dir, 1, 0))) })
	s.begins[queueA] = 100
	for range 2 {
		s.open()
		err := s.recover(func(k queueKey) uint64 {
			if k == queueA {
				return 5000
			}
			return 0
		})
		want := "consumequeue: topic 1 queue 0 has no entry for offset 100, and the log was replayed from offset 5000 on"
		if err == nil || err.Error() != want {
			t.Fatalf("%v, want: %s", err, want)
		}
		s.x.Abort()
		s.x.Abort() // twice does no harm
	}
}

// What was abandoned before Start leaves nothing behind: no goroutine, no descriptor, and a directory that the next one recovers from.
func TestAbortBeforeStart(t *testing.T) {
	s, _ := damaged(t, func(*section, string) {})
	before := openDescriptors(t)
	for i := range uint64(5) {
		s.open()
		for o := range 1000 * i {
			must(t, s.x.Recover(1, 0, o, Entry{Position: 1 << 50, Size: 1})) // of another history
		}
		s.x.Abort()
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	s.start(fromStart)
	s.checkAll()
	must(t, s.x.Close())
	checkFiles(t, s)
}

// A deleted topic that the replay has made files for is not made again by the first Sync.
func TestSyncAfterRecoveryOfADeletedTopic(t *testing.T) {
	s, _ := damaged(t, func(*section, string) {})
	s.open()
	for o := range uint64(300) {
		must(t, s.x.Recover(77, 0, o, entryOf(queueKey{77, 0}, o)))
	}
	must(t, s.recover(fromStart))
	s.x.Start()
	must(t, s.x.Sync())
	checkFiles(t, s)
}

// Thousands of queues that nothing was appended to cost no descriptor and little memory.
func TestIdleQueuesCostLittle(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector needs memory of its own")
	}
	const queues = 10_000
	s := newSection(t, Options{})
	for i := range queues {
		s.ends[queueKey{uint32(i / 100), uint16(i % 100)}] = 0
	}
	ends := slices.Collect(s.queueEnds())
	descriptors := openDescriptors(t)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	s.open()
	before := heap()
	must(t, s.x.FinishRecovery(slices.Values(ends)))
	s.x.Start()
	if each := (heap() - before) / queues; each >= 1024 {
		t.Errorf("an idle queue takes %d bytes", each)
	}
	if n := openDescriptors(t); n > descriptors {
		t.Errorf("%d descriptors, %d before", n, descriptors)
	}
	must(t, s.x.Sync())
	runtime.KeepAlive(s)
}
