package consumequeue

import (
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// section plays the broker: it owns the lock, the ends of the queues, and what should be in them.
type section struct {
	t     testing.TB
	o     Options
	x     *Index
	mu    sync.Mutex
	woken chan struct{} // OnLoad
	ends  map[queueKey]uint64
	now   int64

	begins  map[queueKey]uint64
	holes   map[queueKey][]uint64 // OnHole, guarded by holesMu
	holesMu sync.Mutex

	patience *time.Timer
}

func newSection(t testing.TB, o Options) *section {
	s := &section{t: t, o: o, woken: make(chan struct{}, 1), ends: map[queueKey]uint64{}, begins: map[queueKey]uint64{}, holes: map[queueKey][]uint64{}, patience: time.NewTimer(time.Hour)}
	if s.o.Dir == "" {
		s.o.Dir = t.TempDir()
	}
	s.o.OnLoad = func() {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	}
	s.o.OnFail = func(err error) { t.Errorf("OnFail: %v", err) }
	s.o.OnHole = func(topic uint32, queue uint16, offset uint64) {
		s.holesMu.Lock()
		defer s.holesMu.Unlock()
		k := queueKey{topic, queue}
		s.holes[k] = append(s.holes[k], offset)
	}
	t.Cleanup(func() { s.x.Abort() })
	return s
}

func (s *section) open() {
	s.t.Helper()
	x, err := Open(s.o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.x = x
}

// start opens the index and recovers it from the entries below the ends, as a log would give them, from those on that from says.
func (s *section) start(from func(queueKey) uint64) {
	s.t.Helper()
	s.open()
	if err := s.recover(from); err != nil {
		s.t.Fatal(err)
	}
	s.x.Start()
}

func (s *section) recover(from func(queueKey) uint64) error {
	next := map[queueKey]uint64{}
	for {
		progress := false
		for _, k := range s.keys() {
			at, ok := next[k]
			if !ok {
				at = from(k)
			}
			// Queues take turns, as they do in a log.
			for range 50 {
				if at >= s.ends[k] {
					break
				}
				if err := s.x.Recover(k.topic, k.queue, at, entryOf(k, at)); err != nil {
					return err
				}
				at++
				progress = true
			}
			next[k] = at
		}
		if !progress {
			return s.x.FinishRecovery(s.queueEnds())
		}
	}
}

func (s *section) keys() []queueKey {
	keys := make([]queueKey, 0, len(s.ends))
	for k := range s.ends {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b queueKey) int {
		return int(a.topic)<<16 + int(a.queue) - int(b.topic)<<16 - int(b.queue)
	})
	return keys
}

func (s *section) queueEnds() iter.Seq[QueueEnd] {
	return func(yield func(QueueEnd) bool) {
		for _, k := range s.keys() {
			if !yield(QueueEnd{Topic: k.topic, Queue: k.queue, Begin: s.begins[k], End: s.ends[k]}) {
				return
			}
		}
	}
}

func fromStart(queueKey) uint64 { return 0 }

// do runs a section.
func (s *section) do(f func()) {
	s.mu.Lock()
	s.x.Poll()
	f()
	s.mu.Unlock()
	s.x.Kick()
}

func (s *section) wait() {
	s.t.Helper()
	s.patience.Reset(20 * time.Second)
	select {
	case <-s.woken:
	case <-s.patience.C:
		s.t.Fatal("OnLoad was not called")
	}
}

// append adds n entries, as fast as the writer allows.
func (s *section) append(k queueKey, n int) {
	s.t.Helper()
	for n > 0 {
		s.do(func() {
			q := s.x.Queue(k.topic, k.queue)
			for ; n > 0; n-- {
				if s.x.DirtyFree() <= 0 {
					break
				}
				at := q.Append(entryOf(k, s.ends[k]))
				if at != s.ends[k] {
					s.t.Fatalf("%v: appended at %d, want %d", k, at, s.ends[k])
				}
				s.ends[k]++
			}
		})
		if n > 0 {
			s.wait()
		}
	}
}

// lookup finds an entry the way a pop does.
func (s *section) lookup(k queueKey, offset uint64) Entry {
	s.t.Helper()
	var e Entry
	found := false
	for range 10000 {
		s.do(func() {
			b, ok := s.x.Queue(k.topic, k.queue).Block(offset)
			if ok {
				e, found = b.Entries[offset-b.First], true
				if b.To > s.ends[k] || b.First%BlockEntries != 0 {
					s.t.Fatalf("%v: block %d [%d,%d), end %d", k, b.First, b.From, b.To, s.ends[k])
				}
				for o := max(b.From, s.begins[k]); o < b.To; o++ {
					if b.Entries[o-b.First] != entryOf(k, o) {
						s.t.Fatalf("%v: offset %d has %+v, looked up %d", k, o, b.Entries[o-b.First], offset)
					}
				}
			}
		})
		if found {
			return e
		}
		s.wait()
	}
	s.t.Fatalf("%v: offset %d never became resident", k, offset)
	return e
}

// setBegin raises the begin of a queue.
func (s *section) setBegin(k queueKey, offset uint64) {
	s.do(func() { s.x.Queue(k.topic, k.queue).SetBegin(offset) })
	s.begins[k] = max(s.begins[k], min(offset, s.ends[k]))
}

// until waits for what a background goroutine does without telling.
func (s *section) until(what string, done func() bool) {
	s.t.Helper()
	s.patience.Reset(20 * time.Second)
	for !done() {
		select {
		case <-s.patience.C:
			s.t.Fatalf("waited in vain: %s", what)
		default:
			runtime.Gosched()
		}
	}
}

// swept waits until the sweeper has done all it was asked for.
func (s *section) swept() {
	s.t.Helper()
	s.until("the sweeper has nothing to do", func() bool {
		s.x.mu.Lock()
		defer s.x.mu.Unlock()
		return len(s.x.begins)+len(s.x.drops) == 0 && !s.x.sweeping
	})
}

func (s *section) tick(ms int64) {
	s.now += ms
	s.do(func() { s.x.Tick(s.now) })
}

// settled waits until the writer has stored everything that was handed to it.
func (s *section) settled() {
	s.t.Helper()
	if err := s.x.awaitWriter(); err != nil {
		s.t.Fatal(err)
	}
}

// checkAll reads every entry of every queue.
func (s *section) checkAll() {
	s.t.Helper()
	for _, k := range s.keys() {
		s.checkRead(k, s.begins[k], int(s.ends[k]-s.begins[k]), true)
		if q := s.x.Queue(k.topic, k.queue); q.End() != s.ends[k] {
			s.t.Fatalf("%v: End %d, want %d", k, q.End(), s.ends[k])
		}
	}
}

func (s *section) checkRead(k queueKey, offset uint64, n int, all bool) {
	s.t.Helper()
	dst := make([]Entry, n+1)
	got, err := s.x.Read(k.topic, k.queue, offset, dst)
	if err != nil {
		s.t.Fatal(err)
	}
	if got < n || all && got > n {
		s.t.Fatalf("%v: read %d entries from %d, want %d", k, got, offset, n)
	}
	for i, e := range dst[:got] {
		if want := entryOf(k, offset+uint64(i)); e != want {
			s.t.Fatalf("%v: offset %d reads %+v, want %+v", k, offset+uint64(i), e, want)
		}
	}
}

// entryOf is what stands at an offset in all tests.
func entryOf(k queueKey, offset uint64) Entry {
	h := (uint64(k.topic)<<48 ^ uint64(k.queue)<<32 ^ offset + 1) * 0x9E3779B97F4A7C15
	return Entry{Position: 64 + offset*8, Size: uint32(h>>40) + 1, Flags: uint32(h), TagHash: h, OrderHash: ^h}
}

func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
