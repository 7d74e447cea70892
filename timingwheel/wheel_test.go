package timingwheel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// model is the wheel that anybody believes: a map.
type model struct {
	deadlines map[uint32]int64
	now       int64
}

func (m *model) earliest() (at int64, ok bool) {
	at = math.MaxInt64
	for _, d := range m.deadlines {
		at, ok = min(at, d), true
	}
	return at, ok
}

func (m *model) due() (ids []uint32) {
	for id, d := range m.deadlines {
		if d <= m.now {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// span is a distance in time of random magnitude.
func span(r *rand.Rand, bits int) int64 { return r.Int64N(1 << (1 + r.IntN(bits))) }

func TestAgainstModel(t *testing.T) {
	r := newRand(t)
	for round := range 60 {
		start := r.Int64N(1<<50) - 1<<49
		if round%3 == 0 {
			start = 1<<spanShift*int64(r.IntN(5)-2) - int64(r.IntN(200)) // just before a turn of everything
		}
		w := New(start)
		m := &model{deadlines: map[uint32]int64{}, now: start}
		ids := 1 + r.IntN(2000)
		reach := 3 + r.IntN(40)
		id := func() uint32 { return 1 + uint32(r.IntN(ids)) }
		for range 3000 {
			switch op := r.IntN(100); {
			case op < 55:
				i := id()
				d := m.now + span(r, reach)
				if r.IntN(8) == 0 {
					d = m.now - span(r, reach)
				}
				w.Schedule(i, d)
				m.deadlines[i] = d
			case op < 70:
				i := id()
				w.Cancel(i)
				delete(m.deadlines, i)
			case op < 80:
				i := id()
				d, ok := w.Scheduled(i)
				if want, has := m.deadlines[i]; ok != has || d != want {
					t.Fatalf("Scheduled(%d) = %d %v, want %d %v", i, d, ok, want, has)
				}
			case op < 83:
				w.check(t)
			default:
				step := span(r, 12)
				if r.IntN(20) == 0 {
					step = span(r, reach+2)
				}
				limit := math.MaxInt
				if r.IntN(2) == 0 {
					limit = 1 + r.IntN(50)
				}
				advanceBoth(t, r, w, m, m.now+step, limit, id)
			}
			if w.Len() != len(m.deadlines) {
				t.Fatalf("Len %d, want %d", w.Len(), len(m.deadlines))
			}
			at, ok := w.Next()
			if want, has := m.earliest(); ok != has || ok && at > max(want, m.now) {
				t.Fatalf("Next %d %v, earliest %d %v, now %d", at, ok, want, has, m.now)
			}
		}
		for len(m.deadlines) > 0 {
			latest := m.now
			for _, d := range m.deadlines {
				latest = max(latest, d)
			}
			advanceBoth(t, r, w, m, latest, 1+r.IntN(1000), func() uint32 { return 0 })
		}
		w.check(t)
	}
}

// advanceBoth advances to now, slice by slice, and holds every id fired against the model. Some of the ids are scheduled
// anew, moved or cancelled inside fire, unless pick gives 0.
func advanceBoth(t *testing.T, r *rand.Rand, w *Wheel, m *model, now int64, limit int, pick func() uint32) {
	t.Helper()
	m.now = now
	fresh := map[uint32]bool{} // scheduled for the past inside fire, so due at the next call
	last := int64(math.MinInt64)
	for calls := 0; ; calls++ {
		clear(fresh)
		work := 0
		more := w.Advance(now, limit, func(id uint32) {
			work++
			d, ok := m.deadlines[id]
			if !ok || d > now {
				t.Fatalf("fired %d: deadline %d %v, now %d", id, d, ok, now)
			}
			if fresh[id] {
				t.Fatalf("fired %d in the call that scheduled it for the past", id)
			}
			if _, ok := w.Scheduled(id); ok {
				t.Fatalf("%d still scheduled when fired", id)
			}
			delete(m.deadlines, id)
			if other := pick(); other != 0 {
				switch r.IntN(6) {
				case 0:
					d := now + 1 + span(r, 20)
					w.Schedule(id, d)
					m.deadlines[id] = d
				case 1:
					w.Cancel(other)
					delete(m.deadlines, other)
				case 2:
					d := now + 1 + span(r, 20)
					w.Schedule(other, d)
					m.deadlines[other] = d
				case 3:
					if calls < 3 {
						d := w.pos - span(r, 10)
						if old, ok := m.deadlines[other]; !ok || d < old {
							fresh[other] = true
						}
						w.Schedule(other, d)
						m.deadlines[other] = d
					}
				}
				last = math.MinInt64
				return
			}
			if d > w.pos || d < last && d > now-1 {
				t.Fatalf("fired %d, deadline %d, at %d after %d", id, d, w.pos, last)
			}
			last = d
		})
		if work > limit {
			t.Fatalf("fired %d, limit %d", work, limit)
		}
		if w.Now() != now {
			t.Fatalf("Now %d, want %d", w.Now(), now)
		}
		left := m.due()
		if len(left) > 0 && !more {
			t.Fatalf("%d due left, more is false", len(left))
		}
		if !more {
			return
		}
		if calls > 1000000 {
			t.Fatal("no end")
		}
	}
}

func TestFiresInOrderOfDeadlines(t *testing.T) {
	r := newRand(t)
	for range 20 {
		w := New(0)
		deadlines := make([]int64, 5000)
		for i := 1; i < len(deadlines); i++ {
			deadlines[i] = 1 + span(r, 34)
			w.Schedule(uint32(i), deadlines[i])
		}
		now, last, count := int64(0), int64(0), 0
		for count < len(deadlines)-1 {
			now += span(r, 34)
			for w.Advance(now, 1+r.IntN(100), func(id uint32) {
				if d := deadlines[id]; d < last || d > now {
					t.Fatalf("fired %d with deadline %d after %d, now %d", id, d, last, now)
				}
				last = deadlines[id]
				count++
			}) {
			}
		}
	}
}

func TestSameCallsSameOrder(t *testing.T) {
	run := func() (fired []uint32) {
		r := rand.New(rand.NewPCG(1, 2))
		w := New(0)
		now := int64(0)
		for range 20000 {
			w.Schedule(1+uint32(r.IntN(500)), now+span(r, 12))
			if r.IntN(3) == 0 {
				now += span(r, 8)
				w.Advance(now, r.IntN(20), func(id uint32) { fired = append(fired, id) })
			}
		}
		return fired
	}
	if !slices.Equal(run(), run()) {
		t.Fatal("two runs of the same calls fired in different orders")
	}
}

func TestPastDeadlineFiresAtTheNextAdvance(t *testing.T) {
	w := New(1000)
	w.Schedule(1, 1000)
	w.Schedule(2, -5)
	var fired []uint32
	more := w.Advance(1000, 100, func(id uint32) {
		fired = append(fired, id)
		if len(fired) == 1 {
			w.Schedule(3, 900)
		}
	})
	if !slices.Equal(fired, []uint32{1, 2}) || !more {
		t.Fatalf("fired %v, more %v", fired, more)
	}
	more = w.Advance(900, 100, func(id uint32) { fired = append(fired, id) }) // a clock that went back
	if !slices.Equal(fired, []uint32{1, 2, 3}) || more || w.Now() != 1000 {
		t.Fatalf("fired %v, more %v, now %d", fired, more, w.Now())
	}
}

// An empty stretch costs the same whether it is a second or a century long, and what is there is found.
func TestLongEmptyTime(t *testing.T) {
	const year = 365 * 24 * 3600 * 1000
	for _, d := range []int64{1, 63, 64, 4095, 4096, year / 52, year, 5 * year, 1000 * year, math.MaxInt64} {
		w := New(12345)
		at := clamp(min(d, math.MaxInt64-12345) + 12345)
		w.Schedule(7, at)
		fire := func(id uint32) { t.Fatalf("%d fired early, deadline %d", id, at) }
		if w.Advance(at-1, 50, fire) {
			t.Fatalf("deadline %d: more work than 50 moves", at)
		}
		count := 0
		w.Advance(at, 50, func(id uint32) { count++ })
		if count != 1 || w.Len() != 0 {
			t.Fatalf("deadline %d: fired %d times", at, count)
		}
	}
}

// A million timers in one slot, far away, cost a near one nothing: it fires at its time, in the first slice.
func TestFarTimersDoNotDelayNearOnes(t *testing.T) {
	const far = 1 << 20
	const wide = 1 << (3 * slotBits) // a slot of level 3: 262 s
	const limit = 1000
	w := New(0)
	for id := uint32(1); id <= far; id++ {
		w.Schedule(id, 3*wide+1000+int64(id)%(wide-1000))
	}
	const near, second = far + 1, far + 2
	w.Schedule(near, 5)
	w.Schedule(second, 3*wide+1) // in the very slot of the million
	var fired []uint32
	fire := func(id uint32) { fired = append(fired, id) }
	if more := w.Advance(5, limit, fire); more || !slices.Equal(fired, []uint32{near}) {
		t.Fatalf("fired %v, more %v", fired, more)
	}
	// Ticks of 250 ms up to the slot: the million is moved on the way, never more than some slices a tick.
	calls, most := 0, 0
	for now := int64(250); now < 3*wide; now += 250 {
		n := 1
		for w.Advance(now, limit, fire) {
			n++
		}
		calls += n
		most = max(most, n)
	}
	t.Logf("%d calls for %d ticks, at most %d a tick", calls, 3*wide/250, most)
	if most > 10 {
		t.Fatalf("%d slices in one tick", most)
	}
	fired = fired[:0]
	if w.Advance(3*wide+1, limit, fire); !slices.Equal(fired, []uint32{second}) {
		t.Fatalf("fired %v in the first slice at its time", fired)
	}
	w.check(t)
}

// After a long pause a crowded slot is broken up slice by slice.
func TestWorkOfACallIsBounded(t *testing.T) {
	const n = 100000
	w := New(0)
	for id := uint32(1); id <= n; id++ {
		w.Schedule(id, 1<<30+int64(id))
	}
	calls, fired := 0, 0
	for more := true; more; calls++ {
		before := fired
		more = w.Advance(1<<30+10, 1000, func(uint32) { fired++ })
		if fired-before > 1000 {
			t.Fatalf("fired %d in a call", fired-before)
		}
	}
	if fired != 10 || calls < n/1000 {
		t.Fatalf("fired %d in %d calls", fired, calls)
	}
}

func TestRenewalsAreLazyAndExact(t *testing.T) {
	w := New(0)
	w.Schedule(1, 100)
	for d := int64(101); d < 1<<20; d += 97 {
		w.Schedule(1, d)
	}
	last, _ := w.Scheduled(1)
	for now := int64(0); now < last; now += 53 {
		w.Advance(now, 10, func(uint32) { t.Fatalf("fired at %d, deadline %d", now, last) })
	}
	count := 0
	w.Advance(last, 10, func(uint32) { count++ })
	if count != 1 {
		t.Fatal("not fired")
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	w := New(0)
	const n = 100000
	for id := uint32(1); id <= n; id++ {
		w.Schedule(id, int64(id))
	}
	id, now := uint32(0), int64(0)
	fire := func(id uint32) { w.Schedule(id, now+n) }
	allocs := testing.AllocsPerRun(20000, func() {
		id = id%n + 1
		w.Schedule(id, now+int64(id%50000))
		w.Schedule(id, now+int64(id%40000))
		w.Cancel(id)
		w.Schedule(id, now+70000)
		now++
		w.Advance(now, 100, fire)
	})
	if allocs != 0 {
		t.Fatalf("%v allocations", allocs)
	}
}

func TestUnknownIDs(t *testing.T) {
	w := New(0)
	w.Cancel(0)
	w.Cancel(12)
	w.Cancel(1 << 30)
	w.Cancel(math.MaxUint32)
	if _, ok := w.Scheduled(math.MaxUint32); ok {
		t.Fatal("scheduled")
	}
	if _, ok := w.Next(); ok || w.Len() != 0 {
		t.Fatal("not empty")
	}
	defer func() {
		if recover() == nil {
			t.Fatal("id 0 scheduled")
		}
	}()
	w.Schedule(0, 1)
}

const million = 1_000_000

func filled(b *testing.B) (*Wheel, *rand.Rand) {
	w := New(0)
	r := rand.New(rand.NewPCG(1, 1))
	for id := uint32(1); id <= million; id++ {
		w.Schedule(id, r.Int64N(300_000))
	}
	b.ResetTimer()
	return w, r
}

func BenchmarkScheduleCancel1M(b *testing.B) {
	w, _ := filled(b)
	id, d := uint32(0), int64(1)
	for b.Loop() {
		id = id%million + 1
		w.Cancel(id)
		d = d*7919%300_000 + 1
		w.Schedule(id, d)
	}
}

func BenchmarkScheduleCancelRandom1M(b *testing.B) {
	w, r := filled(b)
	for b.Loop() {
		id := r.Uint32N(million) + 1
		w.Cancel(id)
		w.Schedule(id, r.Int64N(300_000))
	}
}

func BenchmarkRenewLater1M(b *testing.B) {
	w, r := filled(b)
	d := int64(300_000)
	for b.Loop() {
		d++
		w.Schedule(r.Uint32N(million)+1, d)
	}
}

func BenchmarkMoveEarlier1M(b *testing.B) {
	w, r := filled(b)
	for b.Loop() {
		id := r.Uint32N(million) + 1
		d, _ := w.Scheduled(id)
		w.Schedule(id, d-1)
	}
}

// One operation is one timer fired and set again 30 s later, with ticks of 10 ms: all the moves between levels included.
func BenchmarkFire1M(b *testing.B) {
	w := New(0)
	r := rand.New(rand.NewPCG(1, 1))
	for id := uint32(1); id <= million; id++ {
		w.Schedule(id, r.Int64N(30_000))
	}
	fired, now := 0, int64(0)
	fire := func(id uint32) {
		fired++
		w.Schedule(id, now+30_000)
	}
	for b.Loop() {
		for fired--; fired < 0; {
			now += 10
			for w.Advance(now, 1000, fire) {
			}
		}
	}
}

func BenchmarkAdvanceIdle1M(b *testing.B) {
	w := New(0)
	for id := uint32(1); id <= million; id++ {
		w.Schedule(id, 1<<40)
	}
	now := int64(0)
	fire := func(uint32) {}
	for b.Loop() {
		now++
		w.Advance(now, 1000, fire)
	}
}

func ExampleWheel() {
	w := New(0)
	w.Schedule(1, 30)
	w.Schedule(2, 10)
	w.Schedule(1, 20) // moved
	w.Advance(15, 100, func(id uint32) { fmt.Println("at 15:", id) })
	at, _ := w.Next()
	fmt.Println("next:", at)
	w.Advance(at, 100, func(id uint32) { fmt.Println("at 20:", id) })
	// Output:
	// at 15: 2
	// next: 20
	// at 20: 1
}
