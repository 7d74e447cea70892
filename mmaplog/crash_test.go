package mmaplog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Random histories of appends, commits, kills and power cuts, some of them during recovery. Whatever
// happens: the log that comes back is a prefix of what was appended, and has everything that was
// durable (after a power cut), or written (after the death of the process). Honest crashes are never
// taken for damage.
func TestCrashes(t *testing.T) {
	histories := 60
	if testing.Short() {
		histories = 10
	}
	eachIO(t, func(t *testing.T, mode IOMode) {
		rng := newRand(t)
		for n := range histories {
			seed := rng.Uint64()
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				h := history{t: t, mode: mode, rng: rand.New(rand.NewPCG(seed, 1)), fs: newMemFS()}
				for range 6 {
					h.life()
				}
			})
		}
	})
}

// history is one data directory through several lives of a broker.
type history struct {
	t    *testing.T
	mode IOMode
	rng  *rand.Rand
	fs   *memFS
	all  []kept // what the log had when the last life ended, plus what that life appended
	safe uint64 // records below this position must come back
	hard uint64 // and below this one even if the power fails before they are recovered
}

var errPowerCut = errors.New("power cut")

// freezer stops the disk at the nth operation: it and all later ones hang until the log has ended, and
// then have no effect.
type freezer struct {
	mu     sync.Mutex
	left   int
	frozen chan struct{}
	thaw   chan struct{}
}

func newFreezer(after int) *freezer {
	return &freezer{left: after, frozen: make(chan struct{}), thaw: make(chan struct{})}
}

func (f *freezer) fault(op, name string) error {
	if op == "read" {
		return nil
	}
	f.mu.Lock()
	f.left--
	left := f.left
	f.mu.Unlock()
	if left > 0 {
		return nil
	}
	if left == 0 {
		close(f.frozen)
	}
	<-f.thaw
	return errPowerCut
}

func (h *history) life() {
	o := smallOptions(h.fs, h.mode)
	o.Policy = []Policy{SyncAlways, SyncInterval, SyncNever}[h.rng.IntN(3)]
	o.Interval = time.Millisecond

	if h.rng.IntN(4) == 0 { // the power fails during recovery
		fz := newFreezer(1 + h.rng.IntN(12))
		close(fz.thaw)
		h.fs.setFault(fz.fault)
		if r, _, err := openOnly(h.t, o); err == nil {
			r.Abort()
		}
		h.fs = h.fs.crash(h.rng)
		h.safe = h.hard
		o.FS = h.fs
	}

	r, k := open(h.t, o)
	own := k.own()
	if len(own) > len(h.all) {
		h.t.Fatalf("%d records, %d were appended", len(own), len(h.all))
	}
	sameRecords(h.t, h.all, own)
	if len(own) < len(h.all) && h.all[len(own)].end() <= h.safe {
		h.t.Fatalf("the record at %d is gone, safe was %d (%+v)", h.all[len(own)].header.Position, h.safe, r.Recovery())
	}
	if r.Synced() < r.Recovery().End {
		h.t.Fatalf("synced %d, recovered end %d", r.Synced(), r.Recovery().End)
	}
	h.all = own

	fz := newFreezer(1 + h.rng.IntN(60))
	h.fs.setFault(fz.fault)
	h.work(r, fz)
	r.end(ErrClosed, nil) // no position moves from here on
	close(fz.thaw)
	h.all = append(h.all, r.appended...)
	r.Abort()
	h.fs.setFault(nil)
	h.safe, h.hard = r.Written(), r.Synced()
	if h.rng.IntN(3) == 0 {
		return // only the process dies
	}
	h.safe = h.hard
	if o.Policy == SyncAlways && r.Committed() != r.Synced() {
		h.t.Fatalf("committed %d, synced %d", r.Committed(), r.Synced())
	}
	h.fs = h.fs.crash(h.rng)
}

// work appends until the disk freezes or enough was done.
func (h *history) work(r *rig, fz *freezer) {
	frozen := func() bool {
		select {
		case <-fz.frozen:
			return true
		default:
			return false
		}
	}
	for range 40 {
		n := h.rng.IntN(300)
		if h.rng.IntN(6) == 0 {
			n = h.rng.IntN(30000)
		}
		if r.RingFree() < n+200 || frozen() {
			return
		}
		r.addAs(n, h.rng.IntN(5) == 0)
		switch h.rng.IntN(6) {
		case 0, 1:
			r.Kick()
		case 2:
			r.Kick()
			r.WantSync(r.Appended())
			for r.Committed() < r.Appended() && !frozen() {
				select {
				case <-r.moved:
				case <-fz.frozen:
				}
			}
			if !frozen() && r.Appended() == r.Synced() && h.mode == IOStaged {
				h.fs.writeBack(h.rng)
			}
		}
	}
}
