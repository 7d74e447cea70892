package inspect_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/inspect"
	"github.com/leasemq/leasemq/mmaplog"
)

func (r *rig) plan(at uint64) *inspect.Plan {
	r.t.Helper()
	p, err := inspect.PlanRepair(r.t.Context(), r.o.Dir, at)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) repair(p *inspect.Plan) inspect.Done {
	r.t.Helper()
	d, err := inspect.Repair(p)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// bodies are the bodies of a topic's messages in the log that was dumped, by queue and offset.
func bodies(lines []*inspect.Line) map[string]string {
	m := map[string]string{}
	for _, l := range lines {
		if l.Type == "MESSAGE" {
			m[fmt.Sprintf("%s %d %d", l.Topic, *l.Queue, *l.Offset)] = string(l.Body)
		}
	}
	return m
}

func TestNothingToRepair(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	r.kill()
	// Given a log that is well, and one with a torn tail, there is nothing to repair.
	if p := r.plan(0); p.Needed || p.Uncovered || p.At != r.verify().End {
		t.Fatalf("%+v", p)
	}
	path, off := r.segmentOf(r.verify().End)
	overwrite(t, path, off, []byte("half a record"))
	p := r.plan(0)
	if p.Needed || p.Uncovered {
		t.Fatalf("%+v", p)
	}
	if d := r.repair(p); len(d.Moved) != 0 {
		t.Fatalf("%+v", d)
	}
	r.open()
}

// TestTheEndOfTheLogIsGone: a log that lost its last segments, or was put back to what it was once, opens as if it had never been longer.
// A snapshot knows better.
func TestTheEndOfTheLogIsGone(t *testing.T) {
	for what, older := range map[string]bool{"the last segments are removed": false, "a copy of an earlier log": true} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, nil)
			r.busy()
			r.fill("orders", 1)
			r.snapshot()
			r.fill("orders", 1)
			r.kill()
			last, _ := r.segmentOf(r.verify().End)
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(r.path("log"))); err != nil {
				t.Fatal(err)
			}
			r.open()
			r.fill("orders", 3)
			end := r.snapshot()
			r.kill()
			if older {
				if err := os.RemoveAll(r.path("log")); err != nil {
					t.Fatal(err)
				}
				if err := os.CopyFS(r.path("log"), os.DirFS(copied)); err != nil {
					t.Fatal(err)
				}
			} else {
				segments, err := filepath.Glob(r.path("log", "*.log"))
				if err != nil {
					t.Fatal(err)
				}
				for _, path := range segments {
					if path > last {
						remove(t, path)
					}
				}
			}
			if err := r.tryOpen(); err == nil || !strings.Contains(err.Error(), "snapshot tells") {
				t.Fatalf("a start: %v", err)
			}
			r.finds("snapshot", "does not fit the log")
			p := r.plan(0)
			if !p.Needed || p.Damage == nil || p.Promise < end || len(p.Snapshots) != 1 || p.Records != 0 || p.Replay == 0 {
				t.Fatalf("%+v, %+v", p, p.Damage)
			}
			if d := r.repair(p); len(d.Snapshots) != 1 || d.Records != 0 {
				t.Fatalf("%+v", d)
			}
			if again := r.plan(0); again.Needed {
				t.Fatalf("once more: %+v", again)
			}
			r.open()
			r.clean("started")
		})
	}
}

// TestABrokerStartsAfterARepair: what damage keeps a broker from starting is cut off, everything before it is there, and
// everything behind it can be looked at.
func TestABrokerStartsAfterARepair(t *testing.T) {
	for what, plant := range map[string]func(r *rig, at uint64){
		"a flipped bit":   func(r *rig, at uint64) { path, off := r.segmentOf(at); flip(r.t, path, off+66) },
		"zeroes":          func(r *rig, at uint64) { path, off := r.segmentOf(at); overwrite(r.t, path, off, make([]byte, 4096)) },
		"no beginning":    func(r *rig, at uint64) { path, _ := r.segmentOf(at); overwrite(r.t, path, 0, make([]byte, 512)) },
		"a short segment": func(r *rig, at uint64) { path, _ := r.segmentOf(at); truncate(r.t, path, 20_000) },
		"no segment":      func(r *rig, at uint64) { path, _ := r.segmentOf(at); remove(r.t, path) },
	} {
		for _, snapshots := range []string{"none", "before", "both"} {
			t.Run(what+", snapshots "+snapshots, func(t *testing.T) {
				// Given a broker with some segments, whose log is damaged,
				r := newRig(t, nil)
				r.busy()
				r.fill("orders", 1)
				if snapshots != "none" {
					r.snapshot()
				}
				r.busy()
				at := r.e.Log().Appended()
				r.send("orders", "the damaged one")
				r.fill("orders", 1)
				if snapshots == "both" && strings.HasPrefix(what, "a bad") { // else a start begins behind the damage
					r.snapshot()
				}
				r.busy()
				r.kill()
				all := r.dump(inspect.Filter{Body: true})
				plant(r, at)
				if err := r.tryOpen(); err == nil {
					t.Fatal("the broker starts on a damaged log")
				}
				// when a repair is planned, then nothing is changed and it says where it would cut;
				before := listing(t, r.o.Dir)
				p := r.plan(0)
				if !p.Needed || p.Damage == nil || p.Records == 0 && what != "no segment" || len(p.Moves) == 0 || p.Promise == 0 || p.Uncovered {
					t.Fatalf("%+v", p)
				}
				if after := listing(t, r.o.Dir); !slices.Equal(before, after) {
					t.Fatalf("%v, was %v", after, before)
				}
				// when it is done, then nothing is deleted,
				d := r.repair(p)
				if d.Records != p.Records || d.Bytes != p.Bytes || len(d.Moved) != len(p.Moves) || len(d.Snapshots) != len(p.Snapshots) {
					t.Fatalf("%+v, planned was %+v", d, p)
				}
				for i, m := range d.Moved {
					if m.Move != p.Moves[i] {
						t.Fatalf("moved %+v, planned was %+v", m, p.Moves[i])
					}
				}
				r.clean("repaired")
				if again := r.plan(0); again.Needed {
					t.Fatalf("once more: %+v", again)
				}
				// the broker starts, and has all that lies before the cut;
				r.open()
				r.clean("started")
				kept := bodies(r.dump(inspect.Filter{Body: true, To: p.At}))
				for _, l := range all {
					key := fmt.Sprintf("%s %d", l.Topic, l.Position)
					if l.Type == "MESSAGE" && l.Position < p.At && kept[fmt.Sprintf("%s %d %d", l.Topic, *l.Queue, *l.Offset)] != string(l.Body) {
						t.Fatalf("%s is not there", key)
					}
				}
				r.busy()
				r.stop()
				r.clean("went on")
				// and what lay behind it, but for what is damaged, is in the files that were moved aside.
				aside := map[uint64]bool{}
				for _, l := range r.dump(inspect.Filter{Aside: true}) {
					if l.File != "" {
						aside[l.Position] = true
					}
				}
				if len(aside) != p.Records {
					t.Fatalf("%d records aside, %d were moved", len(aside), p.Records)
				}
				for _, l := range all {
					file, _ := r.segmentOf(l.Position)
					damaged, _ := r.segmentOf(at)
					if l.Position >= p.At && file != damaged && !aside[l.Position] {
						t.Fatalf("the record at %d is gone", l.Position)
					}
				}
			})
		}
	}
}

func truncate(t testing.TB, path string, n int64) {
	t.Helper()
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// listing is every file below a directory, with its size.
func listing(t testing.TB, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			list = append(list, fmt.Sprint(path, " ", info.Size(), " ", info.ModTime()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Rot in a part of the log that a start does not read is nothing to cut everything behind it for.
func TestDamageBelowTheSnapshotIsNotCut(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	r.snapshot()
	r.busy()
	r.kill()
	path, off := r.segmentOf(r.dump(inspect.Filter{})[5].Position)
	flip(t, path, off+3)
	r.finds("the log is damaged")
	if p := r.plan(0); p.Needed {
		t.Fatalf("%+v", p)
	}
	r.open()
}

// A cut sets aside the newest snapshot; with the one before, a start has more to read, and what is damaged there counts again.
func TestACutIsFoundThatAnOlderSnapshotCanReplayTo(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	r.snapshot()
	r.busy()
	early := r.e.Log().Appended()
	r.busy()
	r.fill("mail", 1)
	second := r.snapshot()
	r.fill("orders", 1)
	r.snapshot()
	r.busy()
	r.kill()
	// Given rot between two snapshots, and a segment without its beginning behind, before the newest,
	path, off := r.segmentOf(early)
	flip(t, path, off+70)
	if p := r.plan(0); p.Needed {
		t.Fatalf("the rot alone: %+v", p)
	}
	header, _ := r.segmentOf(second)
	overwrite(t, header, 0, make([]byte, 512))
	// when a repair is planned, then the cut is one that a start can read up to.
	p := r.plan(0)
	if p.At > early || len(p.Snapshots) != 2 {
		t.Fatalf("cut at %d, the rot is at %d: %v", p.At, early, p.Snapshots)
	}
	r.repair(p)
	r.open()
	r.clean("repaired")
}

func TestRepairRefuses(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	r.fill("orders", 1)
	lines := r.dump(inspect.Filter{})
	cut := lines[30].Position
	// Beside a running broker,
	p := r.plan(cut)
	_, err := inspect.Repair(p)
	if _, locked := errors.AsType[*mmaplog.LockedError](err); !locked || !strings.Contains(err.Error(), "in use by another") {
		t.Fatalf("%v", err)
	}
	r.kill()
	// at a position where no record begins, or behind the end, or behind damage.
	for at, words := range map[uint64]string{cut + 8: "no record begins there", r.verify().End + 64: "it ends at", 8: "it begins at"} {
		if _, err := inspect.PlanRepair(t.Context(), r.o.Dir, at); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("at %d: %v", at, err)
		}
	}
	path, off := r.segmentOf(cut)
	flip(t, path, off+66)
	if _, err := inspect.PlanRepair(t.Context(), r.o.Dir, lines[40].Position); err == nil || !strings.Contains(err.Error(), fmt.Sprint("cut it at position ", cut)) {
		t.Errorf("%v", err)
	}
	// Before the damage it can be cut anywhere.
	d := r.repair(r.plan(lines[20].Position))
	if d.Records != len(lines)-21 {
		t.Errorf("%d records were moved, of %d", d.Records, len(lines)-20)
	}
	r.open()
	if got := len(r.dump(inspect.Filter{To: lines[20].Position})); got != 20 {
		t.Errorf("%d records are left", got)
	}
}

func TestARepairThatWouldNotHelpIsRefused(t *testing.T) {
	// Given a log without its beginning, damaged before its snapshots end,
	r := shortened(t)
	r.kill()
	first := r.verify().First
	path, _ := r.segmentOf(first)
	overwrite(t, path, 0, make([]byte, 512))
	before := listing(t, r.o.Dir)
	// then a cut would leave nothing that a start could begin with, which is said, and nothing is done.
	p := r.plan(0)
	if !p.Uncovered || p.Uncovers() == nil || len(p.Snapshots) != 2 {
		t.Fatalf("%+v", p)
	}
	if _, err := inspect.Repair(p); err == nil || !strings.Contains(err.Error(), "Restore a snapshot") {
		t.Fatal(err)
	}
	if after := listing(t, r.o.Dir); !slices.Equal(before, after) {
		t.Fatalf("%v, was %v", after, before)
	}
}

// After a log without its beginning was cut behind a snapshot, the broker starts.
func TestRepairOfALogWithoutItsBeginning(t *testing.T) {
	r := shortened(t)
	r.busy()
	r.kill()
	lines := r.dump(inspect.Filter{})
	cut := lines[len(lines)-10].Position
	path, off := r.segmentOf(cut)
	flip(t, path, off+50)
	p := r.plan(0)
	if p.At != cut || p.Uncovered || p.Replay == 0 || p.Replay > cut {
		t.Fatalf("%+v", p)
	}
	r.repair(p)
	r.open()
	r.clean("repaired")
	r.stop()
	r.clean("stopped")
}

// The oldest segments are gone and the state needs them: no cut mends that, and the plan says what the broker says.
func TestTheBeginningIsMissed(t *testing.T) {
	r := newRig(t, nil)
	r.fill("jobs", 3)
	r.snapshot()
	r.stop()
	path, _ := r.segmentOf(64)
	remove(t, path)
	refused := r.tryOpen()
	p := r.plan(0)
	if refused == nil || p.Needed || !p.Missing || p.Uncovers() == nil {
		t.Fatalf("start: %v; %+v, %v", refused, p, p.Uncovers())
	}
	said := "messages from position 0 on are still needed"
	if !strings.Contains(refused.Error(), said) || !strings.Contains(p.Uncovers().Error(), said) {
		t.Fatalf("%q, %q", refused, p.Uncovers())
	}
}

// A damaged header costs no record: it is written anew, and the broker starts with everything.
func TestADamagedHeaderIsWrittenAnew(t *testing.T) {
	r := newRig(t, nil)
	r.fill("jobs", 3)
	before := bodies(r.dump(inspect.Filter{}))
	r.kill()
	path, _ := r.segmentOf(64)
	flip(t, path, 5)
	if err := r.tryOpen(); err == nil {
		t.Fatal("the broker started")
	}
	p := r.plan(0)
	if !p.Needed || len(p.Headings) != 1 || p.Headings[0] != path || len(p.Moves) != 0 {
		t.Fatalf("%+v", p)
	}
	if d := r.repair(p); len(d.Headings) != 1 || len(d.Moved) != 0 {
		t.Fatalf("%+v", d)
	}
	if p := r.plan(0); p.Needed {
		t.Fatalf("again: %+v", p)
	}
	r.open()
	if after := bodies(r.dump(inspect.Filter{})); len(after) != len(before) {
		t.Errorf("%d messages, there were %d", len(after), len(before))
	}
	r.stop()
	r.clean("stopped")
}

// Whatever the files hold, nothing panics, and looking changes nothing.
func TestGarbage(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	r := shortened(t)
	r.busy()
	r.kill()
	var files []string
	err := filepath.WalkDir(r.o.Dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(path) != "LOCK" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	whole := map[string][]byte{}
	for _, path := range files {
		if whole[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	for range rounds {
		path := files[rng.IntN(len(files))]
		b := slices.Clone(whole[path])
		for range 1 + rng.IntN(5) {
			switch at := rng.IntN(len(b)); rng.IntN(4) {
			case 0:
				b[at] ^= byte(1 + rng.IntN(255))
			case 1:
				for i := at; i < min(len(b), at+rng.IntN(5000)); i++ {
					b[i] = byte(rng.Uint32())
				}
			case 2:
				clear(b[at:min(len(b), at+rng.IntN(5000))])
			case 3:
				b = append(b[:at:at], b[min(len(b), at+rng.IntN(64)):]...)
			}
			if len(b) == 0 {
				break
			}
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := inspect.Verify(t.Context(), r.o.Dir); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if _, err := inspect.PlanRepair(t.Context(), r.o.Dir, 0); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if _, _, err := inspect.Dump(t.Context(), r.o.Dir, &inspect.Filter{Body: true}, func(*inspect.Line) error { return nil }); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := os.WriteFile(path, whole[path], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.clean("as it was")
}
