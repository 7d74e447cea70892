package mmaplog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Every Kick after an append leads to a commit and to an OnCommit that sees it, whatever the writer is
// doing at that moment.
func TestKickLeadsToCommit(t *testing.T) {
	for _, policy := range []Policy{SyncAlways, SyncInterval, SyncNever} {
		t.Run(string(policy), func(t *testing.T) {
			eachIO(t, func(t *testing.T, mode IOMode) {
				o := smallOptions(newMemFS(), mode)
				o.Policy = policy
				var l atomic.Pointer[Log]
				var seen atomic.Uint64
				o.OnCommit = func() {
					if l := l.Load(); l != nil {
						c := l.Committed()
						if old := seen.Swap(c); old > c {
							t.Errorf("committed fell from %d to %d", old, c)
						}
						if w, a := l.Written(), l.Appended(); c > w || w > a {
							t.Errorf("committed %d, written %d, appended %d", c, w, a)
						}
					}
				}
				r, _ := open(t, o)
				defer r.Abort()
				l.Store(r.Log)
				for i := range 2000 {
					k := r.add(i % 50)
					r.Kick()
					if i%3 == 0 {
						r.until(func() bool { return seen.Load() >= k.end() })
					}
				}
			})
		})
	}
}

// Under SyncAlways a quiet record is written and not flushed, until something asks for it.
func TestQuietRecords(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		r, _ := open(t, smallOptions(newMemFS(), mode))
		defer r.Abort()
		r.add(10)
		r.commitAll()
		flushes := r.Stats().Flushes
		for range 5 {
			k := r.addAs(10, true)
			r.Kick()
			poll(t, "the quiet record to be written", func() bool { return r.Written() >= k.end() })
		}
		if got := r.Stats().Flushes; got != flushes || r.Synced() == r.Written() {
			t.Fatalf("%d flushes for quiet records", got-flushes)
		}
		quiet := r.addAs(10, true)
		r.Kick()
		r.WantSync(quiet.end())
		r.until(func() bool { return r.Committed() >= quiet.end() })

		for _, after := range []int{0, 1} {
			r.addAs(10, true)
			loud := r.add(10)
			for range after {
				r.addAs(10, true)
			}
			r.Kick()
			r.until(func() bool { return r.Committed() >= loud.end() })
		}
	})
}

// The writer does not fall asleep on what was appended after it last looked.
func TestWriterLooksBeforeItSleeps(t *testing.T) {
	r, _ := open(t, smallOptions(newMemFS(), IOStaged))
	w := writer{l: r.Log, pos: r.Appended()}
	r.Abort()
	if w.sleep() {
		t.Fatal("nothing to do, and it does not sleep")
	}
	r.Log.appended.Add(8) // behind the log's back
	if !w.sleep() {
		t.Fatal("it sleeps with something to do")
	}
}

// Under SyncInterval the writer stops at the bound, and goes on when the flush returns.
func TestUnsyncedBound(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		fs := newMemFS()
		o := smallOptions(fs, mode)
		o.Policy, o.Interval, o.MaxUnsynced, o.SegmentBytes = SyncInterval, time.Hour, 50_000, 1<<20
		r, _ := open(t, o)
		defer r.Abort()
		gate := make(chan struct{})
		fs.SetFault(func(op, _ string) error {
			if op == "flush" {
				<-gate
			}
			return nil
		})
		for r.RingFree() >= 4000 {
			r.add(2000)
			r.Kick()
			poll(t, "the writer to write or to wait", func() bool {
				return r.Written() == r.Appended() || r.Stats().BoundWaits > 0
			})
		}
		if s := r.Stats(); s.Unsynced > 50_000 || s.Unsynced < 40_000 || s.RingUsed < minRingBytes/2 || s.BoundWaits == 0 {
			t.Fatalf("%+v", s)
		}
		fs.SetFault(nil)
		close(gate)
		r.commitAll()
		if s := r.Stats(); s.Unsynced > 50_000 {
			t.Fatalf("%+v", s)
		}
	})
}

// The bound follows the measured rate of the disk, within its limits.
func TestBoundFollowsTheDisk(t *testing.T) {
	var b bound
	b.init(Options{Policy: SyncInterval, MaxUnsynced: 256 << 20, Interval: 100 * time.Millisecond})
	steps := []struct {
		bytes int64
		took  time.Duration
		limit int64
	}{
		{1 << 20, time.Second, 256 << 20},                          // too small to tell
		{100 << 20, time.Second, 20 << 20},                         // 100 MiB/s for two intervals
		{500 << 20, time.Second, 40 << 20},                         // (3*100 + 500) / 4 = 200
		{1 << 40, time.Second, 256 << 20},                          // at most MaxUnsynced
		{4 << 20, 1000 * time.Second, int64(float64(256<<20)) + 0}, // still far above it
	}
	for i, s := range steps {
		b.sample(s.bytes, s.took)
		if got := b.limit.Load(); got>>10 != s.limit>>10 {
			t.Fatalf("step %d: limit %d, expected %d", i, got, s.limit)
		}
	}
	b.rate.Store(1000)
	b.sample(4<<20, 1000*time.Second)
	if got := b.limit.Load(); got != boundFloor {
		t.Fatalf("floor: %d", got)
	}
}

// Under SyncInterval the interval alone brings synced up; under SyncNever only a request does.
func TestSyncFollows(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		o := smallOptions(newMemFS(), mode)
		o.Policy, o.Interval = SyncInterval, time.Millisecond
		r, _ := open(t, o)
		for range 20 {
			k := r.add(100)
			r.Kick()
			poll(t, "the interval to sync", func() bool { return r.Synced() >= k.end() })
		}
		r.Abort()

		o = smallOptions(newMemFS(), mode)
		o.Policy = SyncNever
		r, _ = open(t, o)
		defer r.Abort()
		first := r.add(100)
		r.commitAll()
		if r.Synced() >= first.end() {
			t.Fatal("synced without a request")
		}
		if err := r.Sync(); err != nil || r.Synced() < first.end() {
			t.Fatal(err, r.Synced())
		}
		for r.geo.segment(r.Appended()) == 0 {
			r.add(3000)
		}
		r.commitAll()
		poll(t, "the end of the segment to be synced", func() bool { return r.geo.segment(r.Synced()) == 1 })
	})
}

func TestSyncToGivesUp(t *testing.T) {
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	gate := make(chan struct{})
	fs.SetFault(func(op, _ string) error {
		if op == "flush" {
			<-gate
		}
		return nil
	})
	k := r.add(10)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.SyncTo(ctx, k.end()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.Kick()
	late := make(chan error)
	go func() { late <- r.Sync() }()
	poll(t, "the flush to hang", func() bool { return r.Written() == k.end() })
	before := r.Synced()
	r.end(ErrClosed, nil)
	close(gate)
	if err := wait(t, late); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	r.Abort()
	if r.Synced() != before { // the flush that came back late found the fence
		t.Fatalf("synced moved from %d to %d after the end", before, r.Synced())
	}
}

// Under SyncAlways nothing is handed to a new segment before all of the old one is durable. Stores into a
// mapping cannot be seen here, and readying pages ahead of them is no store; the writer's rule is the same.
func TestSegmentsInOrder(t *testing.T) {
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	defer r.Abort()
	poll(t, "the second segment", func() bool { return r.prepared.Load() == 2 })
	var early, writes counter
	fs.SetFault(func(op, name string) error {
		base, ok := parseSegmentName(strings.TrimSuffix(name, tmpSuffix))
		if !ok || op != "write" || r.prepared.Load() <= r.geo.segment(base) {
			return nil
		}
		writes.next()
		if r.Written() >= base && r.Synced() < base {
			early.next()
		}
		return nil
	})
	for range 100 {
		r.add(3000)
		r.Kick()
	}
	r.commitAll()
	if n := early.value(); n != 0 || writes.value() == 0 {
		t.Fatalf("%d of %d writes to a segment whose predecessor was not durable", n, writes.value())
	}
}

// Many appenders under one lock, many waiters: everybody is answered, positions keep their order.
func TestConcurrentAppenders(t *testing.T) {
	eachIO(t, func(t *testing.T, mode IOMode) {
		o := Options{Dir: t.TempDir(), IO: mode, SegmentBytes: minSegmentBytes, RingBytes: minRingBytes, Logger: quietLogger()}
		r, _ := open(t, o)
		var section sync.Mutex
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range 50 {
					section.Lock()
					for r.RingFree() < 1000 {
						section.Unlock()
						if err := r.Sync(); err != nil {
							t.Error(err)
							return
						}
						section.Lock()
					}
					k := r.add(i * 10)
					section.Unlock()
					r.Kick()
					if err := r.SyncTo(context.Background(), k.end()); err != nil || r.Committed() < k.end() {
						t.Error(err, r.Committed(), k.end())
						return
					}
				}
			})
		}
		all.Wait()
		want := r.appended
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		again, k := open(t, o)
		sameRecords(t, k.own(), want)
		again.Abort()
	})
}

func TestLock(t *testing.T) {
	o := Options{Dir: t.TempDir(), IO: IOStaged, SegmentBytes: minSegmentBytes, RingBytes: minRingBytes, Logger: quietLogger()}
	r, _ := open(t, o)
	_, _, err := openOnly(t, o)
	locked, ok := errors.AsType[*LockedError](err)
	if !ok || locked.PID != os.Getpid() {
		t.Fatalf("error %v", err)
	}
	want := fmt.Sprintf("data directory %s is in use by another leasemq broker (pid %d)", o.Dir, os.Getpid())
	if !strings.Contains(err.Error(), want) {
		t.Fatalf("%q is not in %q", want, err)
	}
	r.Close()
	r, _ = open(t, o)
	r.Abort()
	r, _ = open(t, o)
	r.Abort()
}

func TestStartChecksItsClocks(t *testing.T) {
	fs := newMemFS()
	r, _ := open(t, smallOptions(fs, IOStaged))
	r.add(10)
	r.Close()
	for _, c := range []struct {
		epoch uint32
		lease int64
	}{{1, 100}, {2, 0}} {
		l, _, err := openOnly(t, smallOptions(fs, IOStaged))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(c.epoch, c.lease, 0); err == nil {
			t.Fatalf("started with %+v", c)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{}, {Dir: "x", IO: "direct"}, {Dir: "x", Policy: "sometimes"}, {Dir: "x", Interval: 1}, {Dir: "x", SegmentBytes: 1000},
		{Dir: "x", RingBytes: 1000}, {Dir: "x", MaxUnsynced: -1},
	} {
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	if _, err := (Options{Dir: "x"}).withDefaults(); err != nil {
		t.Error(err)
	}
}
