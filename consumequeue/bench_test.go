package consumequeue

import (
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

// One operation is one entry, appended in sections of 64 to one queue, with the writer behind it.
func BenchmarkAppend(b *testing.B) { benchmarkAppend(b, 1, 0) }

// The same with a thousand queues that take turns.
func BenchmarkAppend1000Queues(b *testing.B) { benchmarkAppend(b, 1000, 0) }

// And with all their files mapped.
func BenchmarkAppend1000QueuesMapped(b *testing.B) { benchmarkAppend(b, 1000, 4096) }

func benchmarkAppend(b *testing.B, queues, files int) {
	s := newSection(b, Options{MaxOpenFiles: files})
	s.start(fromStart)
	handles := make([]*Queue, queues)
	for i := range handles {
		handles[i] = s.x.Queue(1, uint16(i))
	}
	e := Entry{Position: 64, Size: 1000}
	i, left := 0, 0
	var q *Queue
	var inside time.Duration // spent with the section's lock held
	entered := time.Now()
	s.mu.Lock()
	for b.Loop() {
		if left == 0 {
			free := s.x.DirtyFree()
			inside += time.Since(entered)
			s.mu.Unlock()
			s.x.Kick()
			if free <= 0 {
				s.wait()
			}
			s.mu.Lock()
			entered = time.Now()
			s.x.Poll()
			q = handles[i%queues]
			i++
			left = 64
		}
		left--
		q.Append(e)
	}
	s.mu.Unlock()
	b.ReportMetric(float64(inside.Nanoseconds())/float64(b.N), "section-ns/op")
}

func BenchmarkBlockResident(b *testing.B) {
	s := newSection(b, Options{})
	s.start(fromStart)
	const queues, entries = 100, 50 * BlockEntries
	for i := range queues {
		s.append(queueKey{1, uint16(i)}, entries)
	}
	handles := make([]*Queue, queues)
	for i := range handles {
		handles[i] = s.x.Queue(1, uint16(i))
	}
	r := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		if _, ok := handles[r.IntN(queues)].Block(r.Uint64N(entries)); !ok {
			b.Fatal("not resident")
		}
	}
}

// One operation is one block that is not resident: asked for, loaded from the page cache, taken over; 32 at a time.
func BenchmarkLoad(b *testing.B) {
	s := newSection(b, Options{CacheBytes: 128 * BlockBytes})
	s.start(fromStart)
	s.append(queueA, 2000*BlockEntries)
	s.settled()
	q := s.x.Queue(1, 0)
	next := uint64(0)
	var asked []uint64
	for b.Loop() {
		if len(asked) < 32 {
			asked = append(asked, next)
			next = (next + 7*BlockEntries) % (1900 * BlockEntries)
			continue
		}
		for len(asked) > 0 {
			s.do(func() {
				for i := len(asked) - 1; i >= 0; i-- {
					if _, ok := q.Block(asked[i]); ok {
						asked = append(asked[:i], asked[i+1:]...)
					}
				}
			})
			if len(asked) > 0 {
				s.wait()
			}
		}
	}
}

// One operation is one message of a replay whose entry is in the file already.
func BenchmarkRecoverIntact(b *testing.B) {
	const entries = 1 << 20
	s := newSection(b, Options{})
	s.start(fromStart)
	s.append(queueA, entries)
	if err := s.x.Close(); err != nil {
		b.Fatal(err)
	}
	s.open()
	at := uint64(0)
	for b.Loop() {
		if at == entries {
			b.StopTimer()
			s.x.Abort()
			s.open()
			at = 0
			b.StartTimer()
		}
		if err := s.x.Recover(1, 0, at, entryOf(queueA, at)); err != nil {
			b.Fatal(err)
		}
		at++
	}
}

// One operation is a start without anything to replay: Open and FinishRecovery. What a queue takes of the heap is measured after it.
func BenchmarkStart10000Queues(b *testing.B)      { benchmarkStart(b, 10_000, 100) }
func BenchmarkStart10000EmptyQueues(b *testing.B) { benchmarkStart(b, 10_000, 0) }
func BenchmarkStart65536EmptyQueues(b *testing.B) { benchmarkStart(b, 65_536, 0) }

// One queue with 2,000 full files, 65 million entries.
func BenchmarkStartLongQueue(b *testing.B) {
	s := newSection(b, Options{})
	content := make([]byte, FileBytes)
	const files = 2000
	must(b, os.MkdirAll(queueDir(s.o.Dir, 1, 0), 0o755))
	path := file(s.o.Dir, queueA, 0)
	for i := range content[:FileBytes/EntryBytes] {
		content[i*EntryBytes] = 64
	}
	must(b, os.WriteFile(path, content, 0o644))
	for i := range uint64(files - 1) {
		must(b, os.Link(path, file(s.o.Dir, queueA, i+1)))
	}
	s.ends[queueA] = files * FileEntries
	for b.Loop() {
		s.open()
		must(b, s.x.FinishRecovery(s.queueEnds()))
		s.x.Abort()
	}
}

func benchmarkStart(b *testing.B, queues, entries int) {
	s := newSection(b, Options{})
	s.start(fromStart)
	for i := range queues {
		k := queueKey{uint32(1 + i/64), uint16(i % 64)}
		s.ends[k] = 0
		if entries > 0 {
			s.append(k, entries)
		}
	}
	must(b, s.x.Close())
	ends := slices.Collect(s.queueEnds())
	var before, after runtime.MemStats
	for b.Loop() {
		b.StopTimer()
		s.x = nil
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		s.open()
		must(b, s.x.FinishRecovery(slices.Values(ends)))
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)-chunkBlocks*BlockBytes)/float64(queues), "heap-B/queue")
		s.x.Abort()
		b.StartTimer()
	}
}
