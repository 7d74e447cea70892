package mmaplog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Random histories of appends, commits, kills and power cuts, some of them during recovery, some during the
// removal of old segments; replay begins at a snapshot, or where the log does. Whatever happens: the log that comes
// back is a prefix of what was appended, and has everything that was durable (after a power cut), or
// written (after the death of the process), from the snapshot on. Honest crashes are never taken for damage, no snapshot is
// refused, and no segment is missing in the middle.
func TestCrashes(t *testing.T) {
	histories := 60
	if testing.Short() {
		histories = 10
	}
	eachIO(t, func(t *testing.T, mode IOMode) {
		rng := newRand(t)
		removed, begun := 0, 0
		for n := range histories {
			seed := rng.Uint64()
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				h := history{t: t, mode: mode, rng: rand.New(rand.NewPCG(seed, 1)), fs: newMemFS()}
				for range 6 {
					h.life()
				}
				removed, begun = removed+h.removed, begun+h.begun
			})
		}
		if removed < histories || begun < histories {
			t.Errorf("%d segments removed and %d snapshots used in %d histories", removed, begun, histories)
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

	kept    []From        // snapshots that stand, oldest first: the log is removed only below the first of them
	next    []From        // taken in this life; they stand once their position is synced
	removal chan struct{} // closed when the newest removal has ended

	removed, begun int // segments removed; lives that began at a snapshot
}

// removable is the newest position before which segments may be removed.
func (h *history) removable() uint64 {
	if len(h.kept) == 0 {
		return 0
	}
	if h.rng.IntN(2) == 0 {
		return h.kept[0].Position // the segment of its last record may go, if it was the last one there
	}
	return h.kept[0].LastPosition
}

// publish lets the snapshots stand whose position is synced, and forgets old ones: three are kept.
func (h *history) publish(synced uint64) {
	for len(h.next) > 0 && h.next[0].Position <= synced {
		h.kept, h.next = append(h.kept, h.next[0]), h.next[1:]
	}
	h.kept = h.kept[max(0, len(h.kept)-3):]
}

// begin is where the next life replays from: a snapshot that stands, or the beginning as long as that is there.
func (h *history) begin(f *Found) (From, error) {
	n := len(h.kept)
	if n == 0 || f.First == 64 && h.rng.IntN(3) == 0 {
		return From{}, nil
	}
	from := h.kept[h.rng.IntN(n)]
	if got, err := f.ReadHeader(from.LastPosition); !errors.Is(err, ErrRemoved) && (err != nil || got.CRC != from.LastCRC) {
		h.t.Errorf("the record at %d is %+v, %v; the snapshot has checksum %08x", from.LastPosition, got, err, from.LastCRC)
	}
	return from, nil
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
	o.Begin = h.begin
	checkNoGap(h.t, h.fs)

	if h.rng.IntN(4) == 0 { // the power fails during recovery
		fz := newFreezer(1 + h.rng.IntN(12))
		close(fz.thaw)
		h.fs.SetFault(fz.fault)
		if r, _, err := openOnly(h.t, o); err == nil {
			r.Abort()
		}
		h.fs = h.fs.Crash(h.rng)
		h.safe = h.hard
		o.FS = h.fs
	}

	r, k := open(h.t, o)
	own, all := k.own(), behindFrom(h.all, From{Position: r.Recovery().From})
	if len(own) > len(all) {
		h.t.Fatalf("%d records, %d were appended", len(own), len(all))
	}
	sameRecords(h.t, all, own)
	if len(own) < len(all) && all[len(own)].end() <= h.safe {
		h.t.Fatalf("the record at %d is gone, safe was %d (%+v)", all[len(own)].header.Position, h.safe, r.Recovery())
	}
	if r.Synced() < r.Recovery().End {
		h.t.Fatalf("synced %d, recovered end %d", r.Synced(), r.Recovery().End)
	}
	h.all = append(h.all[:len(h.all)-len(all)], own...)
	if r.Recovery().From != 0 {
		h.begun++
	}
	h.next, h.removal = nil, nil
	if h.rng.IntN(4) == 0 {
		h.next = append(h.next, r.anchor())
	}

	fz := newFreezer(1 + h.rng.IntN(60))
	h.fs.SetFault(fz.fault)
	h.work(r, fz)
	r.end(ErrClosed, nil) // no position moves from here on
	close(fz.thaw)
	if h.removal != nil {
		wait(h.t, h.removal)
	}
	h.all = append(h.all, r.appended...)
	r.Abort()
	h.removed += int(r.Stats().SegmentsRemoved)
	h.fs.SetFault(nil)
	h.safe, h.hard = r.Written(), r.Synced()
	if h.rng.IntN(3) == 0 {
		return // only the process dies
	}
	h.safe = h.hard
	if o.Policy == SyncAlways && r.Committed() != r.Synced() {
		h.t.Fatalf("committed %d, synced %d", r.Committed(), r.Synced())
	}
	h.fs = h.fs.Crash(h.rng)
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
				h.fs.WriteBack(h.rng)
			}
		case 3:
			h.next = append(h.next, r.anchor())
		case 4:
			h.publish(r.Synced())
			h.removeBefore(r, fz)
		}
	}
}

// removeBefore removes what no snapshot needs, unless the disk freezes under it.
func (h *history) removeBefore(r *rig, fz *freezer) {
	position := h.removable()
	h.removal = make(chan struct{})
	go func() {
		defer close(h.removal)
		r.RemoveBefore(position)
	}()
	select {
	case <-h.removal:
	case <-fz.frozen:
	}
}
