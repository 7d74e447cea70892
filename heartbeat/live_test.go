package heartbeat

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// TestRefreshIsAMaximum: a call that comes late never takes time back.
func TestRefreshIsAMaximum(t *testing.T) {
	var l Live
	for _, now := range []int64{5, 3, 9, 9, 1, 8} {
		if !l.Refresh(now) {
			t.Fatal("refused")
		}
	}
	if seen, ok := l.Seen(); !ok || seen != 9 {
		t.Errorf("seen at %d %t", seen, ok)
	}
}

// TestExpireOnlyWhatWasJudged: a sign of life that came after the judgement wins.
func TestExpireOnlyWhatWasJudged(t *testing.T) {
	var l Live
	l.Refresh(5)
	judged, _ := l.Seen()
	l.Refresh(6)
	if l.Expire(judged) {
		t.Fatal("expired in spite of a sign of life")
	}
	if judged, _ = l.Seen(); !l.Expire(judged) {
		t.Fatal("not expired")
	}
	if l.Refresh(100) || l.Expire(judged) {
		t.Error("it is over, and goes on")
	}
	if _, ok := l.Seen(); ok {
		t.Error("it is over, and is seen")
	}
}

// TestRefreshAgainstExpire: heartbeats from many sides and one judge. Of a heartbeat with a newer time and the end exactly
// one is told that it won: no heartbeat that was answered OK lies between the judgement and the end.
func TestRefreshAgainstExpire(t *testing.T) {
	const rounds, beaters = 2000, 3
	won := 0
	for range rounds {
		var l Live
		l.Refresh(10)
		judged, _ := l.Seen()
		var begin, done sync.WaitGroup
		var accepted atomic.Int64
		begin.Add(1)
		for b := range beaters {
			done.Go(func() {
				begin.Wait()
				if l.Refresh(int64(11 + b)) {
					accepted.Add(1)
				}
			})
		}
		var expired bool
		done.Go(func() {
			begin.Wait()
			expired = l.Expire(judged)
		})
		begin.Done()
		done.Wait()
		switch _, alive := l.Seen(); {
		case expired && accepted.Load() > 0:
			t.Fatalf("it has ended, and %d heartbeats were accepted", accepted.Load())
		case !expired && accepted.Load() != beaters:
			t.Fatalf("it has not ended, and %d of %d heartbeats were accepted", accepted.Load(), beaters)
		case expired == alive:
			t.Fatalf("ended %t, alive %t", expired, alive)
		}
		if expired {
			won++
		}
	}
	t.Logf("the end won %d of %d times", won, rounds)
}

// TestRefreshAgainstEndSession: calls that name a session while its group's section ends it, begins others and looks
// at them. After the end every call is refused.
func TestRefreshAgainstEndSession(t *testing.T) {
	s := newStory(t)
	for range 20 {
		l := s.start(1, "c")
		var stop atomic.Bool
		var wg sync.WaitGroup
		var began sync.WaitGroup
		for range 3 {
			began.Add(1)
			wg.Go(func() {
				once := sync.OnceFunc(began.Done)
				for now := s.nowMs; !stop.Load(); now++ {
					if found, ok := s.registry.Live(l.ID); ok {
						found.Refresh(now)
						found.GroupVersion()
						found.AddLost()
					}
					once()
				}
			})
		}
		began.Wait()
		s.end(l.ID, codec.EndLeft)
		if l.Refresh(1 << 40) {
			t.Error("it is over, and goes on")
		}
		s.start(1, "d")
		of, _ := s.registry.OfConsumer(1, "d")
		s.end(of.ID, codec.EndLeft)
		stop.Store(true)
		wg.Wait()
		if l.Refresh(1 << 41) {
			t.Error("it is over, and goes on")
		}
	}
}

func TestLeasesLost(t *testing.T) {
	s := newStory(t)
	l := s.start(1, "c")
	hash := s.registry.Hash()
	for range 3 {
		l.AddLost()
	}
	if l.LeasesLost() != 3 || s.registry.Hash() != hash {
		t.Errorf("%d, hash changed %t", l.LeasesLost(), s.registry.Hash() != hash)
	}
}

func TestRefreshDoesNotAllocate(t *testing.T) {
	s := newStory(t)
	id := s.start(1, "c").ID
	now := s.nowMs
	if n := testing.AllocsPerRun(100, func() {
		if l, ok := s.registry.Live(id); ok {
			now++
			l.Refresh(now)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSilence: a session is proposed for its end when it has been silent for its timeout, not before; again and again
// until it is refreshed or ended.
func TestSilence(t *testing.T) {
	s := newStory(t)
	quiet, busy := s.start(1, "quiet"), s.start(1, "busy")
	if at, ok := s.registry.NextTimer(); !ok || at > s.nowMs+timeoutMs {
		t.Errorf("next timer %d %t", at, ok)
	}
	if ids := s.silent(timeoutMs - 1); len(ids) != 0 {
		t.Fatalf("%x too early", ids)
	}
	if _, silent := s.registry.Silent(quiet, s.nowMs); silent {
		t.Error("it counts as silent")
	}
	busy.Refresh(s.nowMs)
	for range 3 {
		if ids := s.silent(1); !slices.Equal(ids, []uint64{quiet.ID}) {
			t.Fatalf("%x", ids)
		}
		if seen, silent := s.registry.Silent(quiet, s.nowMs); !silent || seen != 1_000_000 {
			t.Errorf("seen at %d, silent %t", seen, silent)
		}
		if ids := s.silent(0); len(ids) != 0 {
			t.Errorf("%x twice in a millisecond", ids)
		}
	}
	// A sign of life counts, however late: the whole timeout begins again.
	quiet.Refresh(s.nowMs)
	busy.Refresh(s.nowMs)
	if ids := s.silent(timeoutMs - 1); len(ids) != 0 {
		t.Fatalf("%x", ids)
	}
	busy.Refresh(s.nowMs)
	if ids := s.silent(1); !slices.Equal(ids, []uint64{quiet.ID}) {
		t.Fatalf("%x", ids)
	}
	// Its end is judged by what was seen, and nothing is proposed of it afterwards.
	seen, _ := s.registry.Silent(quiet, s.nowMs)
	if !quiet.Expire(seen) {
		t.Fatal("not expired")
	}
	if _, silent := s.registry.Silent(quiet, s.nowMs); silent {
		t.Error("it is over, and counts as silent")
	}
	s.end(quiet.ID, codec.EndExpired)
	if ids := s.silent(timeoutMs - 2); len(ids) != 0 {
		t.Errorf("%x", ids)
	}
}

// TestExpiredIsProposedUntilItsRecordStands: between the word and the record nothing may be forgotten.
func TestExpiredIsProposedUntilItsRecordStands(t *testing.T) {
	s := newStory(t)
	l := s.start(1, "c")
	s.silent(timeoutMs)
	seen, _ := l.Seen()
	l.Expire(seen)
	for range 3 {
		if ids := s.silent(1); !slices.Equal(ids, []uint64{l.ID}) {
			t.Fatalf("%x", ids)
		}
	}
}

// TestLateSignOfLifeWins: what comes between the judgement and the end.
func TestLateSignOfLifeWins(t *testing.T) {
	s := newStory(t)
	l := s.start(1, "c")
	s.silent(timeoutMs)
	seen, silent := s.registry.Silent(l, s.nowMs)
	if !silent || !l.Refresh(s.nowMs) || l.Expire(seen) {
		t.Fatal("it has ended in spite of a sign of life")
	}
	if _, silent := s.registry.Silent(l, s.nowMs); silent {
		t.Error("it counts as silent")
	}
}

// TestServeGivesAWholeTimeout: nobody could give a sign of life to a broker that did not run.
func TestServeGivesAWholeTimeout(t *testing.T) {
	s := newStory(t)
	a := s.start(1, "a")
	s.nowMs += 5 * second
	b := s.start(1, "b")
	left := s.start(1, "left")
	s.end(left.ID, codec.EndLeft)
	hash := s.registry.Hash()
	// Given a registry that was recovered from the log, when serving begins an hour later on the lease clock,
	r := s.shadow
	serveMs := s.nowMs + 3600*second
	r.Serve(serveMs)
	// then both sessions have their timeout from there.
	if ids, _ := r.Advance(serveMs+timeoutMs-1, 1000, nil); len(ids) != 0 {
		t.Fatalf("%x", ids)
	}
	ids, _ := r.Advance(serveMs+timeoutMs, 1000, nil)
	slices.Sort(ids)
	if !slices.Equal(ids, []uint64{a.ID, b.ID}) {
		t.Fatalf("%x", ids)
	}
	if l, _ := r.Live(a.ID); l != nil {
		if seen, ok := l.Seen(); !ok || seen != serveMs {
			t.Errorf("seen at %d %t", seen, ok)
		}
	}
	if r.Hash() != hash || r.Audit() != nil {
		t.Errorf("serving has changed the state: %v", r.Audit())
	}
}

// TestAdvanceInSlices: the work of a call is bounded, and what is left over comes next.
func TestAdvanceInSlices(t *testing.T) {
	s := newStory(t)
	want := map[uint64]bool{}
	for i := range 100 {
		want[s.start(1, string(rune('a'+i))).ID] = true
	}
	s.nowMs += timeoutMs
	for more := true; more; {
		var ids []uint64
		ids, more = s.registry.Advance(s.nowMs, 7, nil)
		if len(ids) > 7 {
			t.Fatalf("%d in one call", len(ids))
		}
		for _, id := range ids {
			if !want[id] {
				t.Fatalf("%x twice, or not there", id)
			}
			delete(want, id)
		}
	}
	if len(want) != 0 {
		t.Errorf("%d are missing", len(want))
	}
}

// TestTimeoutIsTheOneThatWasTold: a change of the group's rules is for sessions that start later.
func TestTimeoutIsTheOneThatWasTold(t *testing.T) {
	s := newStory(t)
	l := s.start(1, "c")
	s.append(&codec.Group{Op: codec.OpUpdate, ID: 1, Rules: codec.Rules{SessionTimeoutMs: uint32(3 * timeoutMs)}})
	later := s.start(1, "later")
	if ids := s.silent(timeoutMs - 1); len(ids) != 0 {
		t.Fatalf("%x", ids)
	}
	if ids := s.silent(1); !slices.Equal(ids, []uint64{l.ID}) {
		t.Fatalf("%x", ids)
	}
	if ids := s.silent(2 * timeoutMs); !slices.Contains(ids, later.ID) {
		t.Fatalf("%x", ids)
	}
}

func BenchmarkRefresh(b *testing.B) {
	s := newStory(b)
	id := s.start(1, "c").ID
	b.RunParallel(func(pb *testing.PB) {
		now := s.nowMs
		for pb.Next() {
			if l, ok := s.registry.Live(id); ok {
				now++
				l.Refresh(now)
			}
		}
	})
}
