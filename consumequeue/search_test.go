package consumequeue

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

// checkSearch holds Search against what the entries of the tests say.
func (s *section) checkSearch(k queueKey, position uint64) {
	s.t.Helper()
	want := s.begins[k]
	for want < s.ends[k] && entryOf(k, want).Position < position {
		want++
	}
	got, err := s.x.Search(k.topic, k.queue, position)
	if err != nil || got != want {
		s.t.Fatalf("%v: search for position %d in [%d,%d): offset %d, %v; want %d", k, position, s.begins[k], s.ends[k], got, err, want)
	}
}

// Given a queue in files, resident blocks and a tail, then for every position, and every begin and end around the edges of
// blocks and files, the first entry that does not lie below it is found.
func TestSearchFindsTheFirst(t *testing.T) {
	r := newRand(t)
	s := newSection(t, Options{CacheBytes: 4 * BlockBytes})
	s.start(fromStart)
	for _, end := range []uint64{0, 1, 2, 127, 128, 129, 256, 300, FileEntries - 1, FileEntries, FileEntries + 1, 2*FileEntries + 700} {
		s.append(queueA, int(end-s.ends[queueA]))
		for _, begin := range []uint64{0, 1, 100, 127, 128, 200, FileEntries, end} {
			s.setBegin(queueA, min(begin, end/2))
			for _, at := range []uint64{s.begins[queueA], end, end / 2, r.Uint64N(end + 1), r.Uint64N(end + 1), end - min(end, 129)} {
				position := entryOf(queueA, at).Position
				s.checkSearch(queueA, position)
				s.checkSearch(queueA, position+1) // between two
			}
			s.checkSearch(queueA, 0)
			s.checkSearch(queueA, 1<<60)
		}
	}
	s.setBegin(queueA, s.ends[queueA])
	s.checkSearch(queueA, 0) // nothing is left: the end
	if at, err := s.x.Search(9, 9, 0); at != 0 || err != nil {
		t.Fatalf("a queue that does not exist: %d, %v", at, err)
	}
}

// Mostly nothing of a queue lies below the position: then one entry is looked at.
func TestSearchLooksAtTheFirstEntryFirst(t *testing.T) {
	s, _ := damaged(t, func(s *section, dir string) {
		overwrite(t, file(dir, queueA, 0), EntryBytes, make([]byte, FileBytes-BlockBytes-EntryBytes)) // a search would fall into it
	})
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	s.checkSearch(queueA, 64)
	if n := s.x.Stats().Holes; n != 0 {
		t.Fatalf("%d lost entries were looked at", n)
	}
}

func TestSearchMeetsAHole(t *testing.T) {
	lost := uint64(5*BlockEntries + 9)
	s, _ := damaged(t, func(s *section, dir string) {
		overwrite(t, file(dir, queueA, 0), int64(lost)*EntryBytes, make([]byte, 2*EntryBytes))
	})
	s.start(func(k queueKey) uint64 { return s.ends[k] })
	_, err := s.x.Search(1, 0, entryOf(queueA, lost+5).Position)
	hole, ok := errors.AsType[*HoleError](err)
	if !ok || *hole != (HoleError{1, 0, lost}) {
		t.Fatalf("%v, want the hole at %d", err, lost)
	}
	s.checkSearch(queueA, entryOf(queueA, lost-3).Position) // before the hole nobody minds
	if got := s.holes[queueA]; len(got) == 0 || got[0] != lost {
		t.Fatalf("OnHole was told of %v", got)
	}
}

// Searches go on while entries are appended, the writer and the loader work, and retention takes entries away.
func TestSearchBesideAppendsAndRetention(t *testing.T) {
	s := newSection(t, Options{CacheBytes: 4 * BlockBytes, MaxOpenFiles: 4})
	s.start(fromStart)
	s.append(queueA, 1000)
	q := s.x.Queue(1, 0)
	seed := newRand(t).Uint64()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range uint64(2) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, i))
			for {
				select {
				case <-stop:
					return
				default:
				}
				begin, end := q.Begin(), q.End()
				want := begin + r.Uint64N(end-begin+1) // exists, or is the end of that moment
				got, err := s.x.Search(1, 0, entryOf(queueA, want).Position)
				if later := q.Begin(); err != nil || got != want && (got < want || got > later) {
					t.Errorf("search for %d in [%d,%d): %d, %v; the begin is now %d", want, begin, end, got, err, later)
					return
				}
			}
		})
	}
	for i := range 150 {
		s.append(queueA, 1000)
		s.setBegin(queueA, s.ends[queueA]-uint64(1000*(i%30)))
		s.tick(100)
		if i%50 == 0 {
			must(t, s.x.Sync())
		}
	}
	close(stop)
	wg.Wait()
	s.checkAll()
}
