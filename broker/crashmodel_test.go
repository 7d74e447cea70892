package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/mmaplog/crashfs"
)

// The disk of these tests (package crashfs) keeps apart what was synced and what was not. A broker lives on it, its clients keep
// a ledger of what they were told (crashledger_test.go), and the disk stops at some operation. Then either the process
// dies, and the next one finds all that was written; or the power fails, and of what was not synced any set of sectors and any
// prefix of the directory changes is left. Whatever was told is there afterwards, what was settled does not come back, and
// nothing is there that was never sent:
//
//   - under `always`, and when only the process died, everything that was answered;
//   - under `interval`, when the power failed, everything that lies below the end of the log as recovered.

// trialModes are the ways to run a log.
var trialModes = []struct {
	io    mmaplog.IOMode
	fsync mmaplog.Policy
}{
	{mmaplog.IOStaged, mmaplog.SyncAlways}, {mmaplog.IOMapped, mmaplog.SyncAlways},
	{mmaplog.IOStaged, mmaplog.SyncInterval}, {mmaplog.IOMapped, mmaplog.SyncInterval},
}

// metTrials is what happened in all trials of a test.
type metTrials struct {
	mu  sync.Mutex
	met map[string]int
}

func (m *metTrials) add(x *trial) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.met == nil {
		m.met = map[string]int{}
	}
	for what, n := range x.met {
		m.met[what] += n
	}
}

func (m *metTrials) log(t *testing.T) {
	for _, what := range slices.Sorted(maps.Keys(m.met)) {
		t.Logf("%7d %s", m.met[what], what)
	}
}

// TestCrashesAnywhere runs random histories on a disk that stops somewhere in each life of the broker.
func TestCrashesAnywhere(t *testing.T) {
	trials := 20
	switch {
	case *seedFlag != 0:
		trials = 1
	case testing.Short():
		trials = 3
	case raceDetector:
		trials = 5
	}
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	var met metTrials
	t.Run("modes", func(t *testing.T) {
		for _, mode := range trialModes {
			t.Run(fmt.Sprint(mode.io, " ", mode.fsync), func(t *testing.T) {
				t.Parallel()
				for i := range trials {
					runTrial(t, seed+uint64(i), func(t *testing.T, seed uint64) {
						x := newTrial(t, seed, mode.io, mode.fsync)
						for range 4 {
							x.disk.FreezeAt(1 + x.rnd.IntN(300))
							x.life(60)
						}
						x.lastLife()
						met.add(x)
					})
				}
			})
		}
	})
	met.log(t)
	if trials < 20 || t.Failed() {
		return
	}
	for _, what := range []string{ // what is rare must be met, or nothing is proved
		"the process died", "the power failed", "the disk stopped during recovery", "segments removed", "messages copied forward",
		"a send repeated", "a lease of before a crash settled", "an ack of before a crash repeated", "a lease reclaimed",
		"a start with a snapshot", "a start whose index files were harmed", "a start that found index entries lost", "a start compared with the state before",
	} {
		if met.met[what] == 0 {
			t.Errorf("not met: %s", what)
		}
	}
}

// TestCrashesEverywhere runs one short history as often as the disk has operations in it, and stops it at each of them.
func TestCrashesEverywhere(t *testing.T) {
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	step := 1
	if testing.Short() || raceDetector {
		step = 7
	}
	var met metTrials
	t.Run("modes", func(t *testing.T) {
		for _, mode := range trialModes {
			t.Run(fmt.Sprint(mode.io, " ", mode.fsync), func(t *testing.T) {
				t.Parallel()
				for n, done := 1, false; !done; n += step {
					runTrial(t, seed, func(t *testing.T, seed uint64) {
						x := newTrial(t, seed, mode.io, mode.fsync)
						x.disk.FreezeAt(n)
						done = !x.life(12)
						x.disk.FreezeAt(1 + x.rnd.IntN(60))
						x.life(4)
						x.lastLife()
						met.add(x)
					})
				}
			})
		}
	})
	met.log(t)
}

// runTrial runs a trial as a subtest that says its seed only when it fails.
func runTrial(t *testing.T, seed uint64, trial func(t *testing.T, seed uint64)) {
	t.Helper()
	if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { trial(t, seed) }) {
		t.FailNow()
	}
}

// life is one broker from its start to its end, which is that of the disk, or comes after some steps. It tells whether the
// disk stopped by itself.
func (t *trial) life(steps int) (stopped bool) {
	t.t.Helper()
	if err := t.begin(); err != nil {
		if !strings.Contains(err.Error(), crashfs.ErrFrozen.Error()) { // the log does not wrap what it cannot go on after
			t.t.Fatalf("start: %v", err)
		}
		t.met["the disk stopped during recovery"]++
		t.crash()
		return true
	}
	t.checkStart()
	if !t.stop {
		t.found()
	}
	for range steps {
		if t.stop || t.disk.Frozen() {
			break
		}
		t.step()
	}
	stopped = t.disk.Frozen()
	if !stopped {
		t.disk.Freeze()
	}
	t.end()
	t.crash()
	return stopped
}

// lastLife starts a broker on a sound disk, and takes from it everything that there is.
func (t *trial) lastLife() {
	t.t.Helper()
	t.disk.FreezeAt(0)
	t.faulty = false
	if err := t.begin(); err != nil {
		t.t.Fatalf("last start: %v", err)
	}
	t.checkStart()
	t.checkDelivered(t)
	if err := t.e.Check(); err != nil {
		t.t.Fatal(err)
	}
	if err := t.e.Err(); err != nil {
		t.t.Fatal(err)
	}
	if n, holes := t.e.stats.unreadable.Load(), t.e.stats.indexHoles.Load(); n+holes > 0 {
		t.t.Fatalf("%d messages were unreadable, %d index entries wrong", n, holes)
	}
	if err := t.e.Close(); err != nil {
		t.t.Fatal(err)
	}
}

// crash makes of the disk what the next start finds.
func (t *trial) crash() {
	if t.rnd.IntN(3) == 0 {
		t.met["the process died"]++
		t.disk = t.disk.Kill()
	} else {
		t.met["the power failed"]++
		t.powerCut = true
		t.disk = t.disk.Crash(t.rnd)
		if t.queues.crash(t.t, t.rnd) > 0 {
			t.met["a start that found index entries lost"]++
		}
		t.harmIndex()
	}
	t.o.FS = t.disk
}

// harmIndex takes some of the index files away, or their ends.
func (t *trial) harmIndex() {
	if t.rnd.IntN(3) > 0 {
		return
	}
	err := filepath.WalkDir(filepath.Join(t.o.Dir, "queues"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch t.rnd.IntN(3) {
		case 0:
			return os.Remove(path)
		case 1:
			return os.Truncate(path, int64(t.rnd.IntN(3))*int64(t.rnd.IntN(6000)))
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.t.Fatal(err)
	}
	t.harmed = true
	t.met["a start whose index files were harmed"]++
}

// checkStart holds what a start has made of the disk against what the clients know.
func (t *trial) checkStart() {
	t.t.Helper()
	found := t.e.Log().Recovery()
	if found.From > 0 {
		t.met["a start with a snapshot"]++
	}
	if err := t.e.Check(); err != nil {
		t.t.Fatal(err)
	}
	if t.powerCut && t.o.Fsync != mmaplog.SyncAlways {
		t.forget(t.cuts())
	}
	if t.e.reindexed && !t.harmed {
		t.t.Fatal("index entries that a snapshot stood for were gone")
	}
	t.powerCut = false
	t.checkState(found.End)
	for _, check := range []func(*trial){t.checkQueues, t.checkSessions, t.checkRepeats, t.checkHeld, t.checkSettled} {
		if check(t); t.stop {
			return
		}
	}
}

// checkState compares the state with what it was when the log ended there. The epoch that has begun since is in the state of the
// leases only.
func (t *trial) checkState(end uint64) {
	t.t.Helper()
	i, exact := slices.BinarySearch(t.ends, end)
	if !exact {
		i-- // only a record of the log's own lies between
	}
	// A record may have been observed twice at one position, in two lives: the later one counts.
	if i >= 0 && i < len(t.ends) {
		want := t.observed[t.ends[i]]
		t.ends = t.ends[:i+1]
		if got := t.e.Hash(); got[0] != want[0] || got[1] != want[1] || got[3] != want[3] {
			t.t.Fatalf("the log ends at %d: the state is %x, at %d it was %x", end, got, t.ends[i], want)
		}
		t.met["a start compared with the state before"]++
	}
	end = t.e.Log().Appended()
	t.ends = append(t.ends, end)
	t.observed[end] = t.e.Hash()
}

// cuts tells at which position the records of each epoch end.
func (t *trial) cuts() func(epoch uint32) uint64 {
	t.t.Helper()
	begins := map[uint32]uint64{}
	log := t.e.Log()
	err := log.Scan(context.Background(), log.First(), log.Appended(), func(r mmaplog.Record) error {
		if r.Header.Type == codec.TypeEpoch {
			begins[r.Header.Epoch] = r.Header.Position
		}
		return nil
	})
	if err != nil {
		t.t.Fatal(err)
	}
	return func(epoch uint32) uint64 {
		end := ^uint64(0)
		for later, begin := range begins {
			if later > epoch {
				end = min(end, begin)
			}
		}
		return end
	}
}
