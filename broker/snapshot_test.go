package broker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// take takes a snapshot.
func (r *rig) take() SnapshotReport {
	r.t.Helper()
	s, err := r.e.Snapshot()
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// busy gives the broker a state with something of everything: two topics, leases, waits, settled messages that are
// remembered, pop marks, ended sessions.
func (r *rig) busy() (c *conn, session uint64, receipt []byte) {
	r.t.Helper()
	c = r.dial()
	s := c.register("g", "a")
	other := c.register("g", "b")
	for i := range 40 {
		c.sendBodies(fmt.Sprintf("t%d", i%2), fmt.Sprint("m", i))
	}
	p := c.pop(popRequest(s.Session, "t0", 8))
	c.ack(s.Session, receipts(&p)[:3]...)
	c.change(s.Session, protocol.ChangeEntry{Receipt: receipts(&p)[3], Ordinal: 1, Cause: protocol.CauseFailed, InvisibleMs: 60_000})
	q := c.pop(popRequest(other.Session, "t1", 8))
	c.ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: other.Session}, nil)
	again := c.pop(&protocol.PopRequest{Session: s.Session, Topic: "t1", Max: 4, Slot: 2, Sequence: 1})
	c.ack(s.Session, receipts(&again)[0])
	_ = q
	return c, s.Session, receipts(&p)[4]
}

func TestAStartBeginsWithTheSnapshot(t *testing.T) {
	// Given a broker with state, a snapshot, and some records behind it,
	r := newRig(t, nil)
	c, session, receipt := r.busy()
	taken := r.take()
	c.sendBodies("t0", "later")
	r.commit()
	want := r.e.Hash()
	// when it is killed and starts again,
	r.e.Abort()
	r.open()
	// then only what lies behind the snapshot was replayed, into the same state,
	found := r.e.Log().Recovery()
	if found.From != taken.Position || found.Records == 0 || found.Records > 3 {
		t.Fatalf("replayed %d records from %d, the snapshot is of %d", found.Records, found.From, taken.Position)
	}
	got := r.e.Hash()
	if got[0] != want[0] || got[1] != want[1] { // the leases' has the new epoch in it
		t.Fatalf("the state is %x, was %x", got, want)
	}
	if err := r.e.Check(); err != nil {
		t.Fatal(err)
	}
	// and a lease of before is settled by its receipt.
	if res := r.dial().ack(session, receipt); res[0].Status != protocol.OK {
		t.Fatalf("ack: %s", res[0].Status)
	}
}

func TestAnOrderlyStopLeavesNothingToReplay(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	r.commit()
	if err := r.e.Close(); err != nil {
		t.Fatal(err)
	}
	r.open()
	if found := r.e.Log().Recovery(); found.From == 0 || found.Records != 1 || !found.CleanStop {
		t.Fatalf("replayed %d records from %d, clean stop %t", found.Records, found.From, found.CleanStop)
	}
}

// flip changes one bit of a file.
func flip(t testing.TB, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) snapshotFiles() (names []string) {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.o.Dir, "snapshots"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestADamagedSnapshotIsPassedOverForTheOneBefore(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	first := r.take()
	r.dial().sendBodies("t0", "between")
	second := r.take()
	r.commit()
	want := r.e.Hash()
	r.e.Abort()
	path := r.e.snaps.store.Path(second.Position)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < int64(len(whole)); at += 1 + int64(len(whole))/40 {
		// Given a bit of the newest snapshot that has flipped,
		if err := os.WriteFile(path, whole, 0o644); err != nil {
			t.Fatal(err)
		}
		flip(t, path, at)
		// when the broker starts, then it begins with the one before, with the same state,
		r.open()
		if found := r.e.Log().Recovery(); found.From != first.Position {
			t.Fatalf("byte %d: replay began at %d, the good snapshot is of %d", at, found.From, first.Position)
		}
		if got := r.e.Hash(); got[0] != want[0] || got[1] != want[1] {
			t.Fatalf("byte %d: another state", at)
		}
		r.e.Abort()
		// and the damaged one is kept aside.
		if !slices.ContainsFunc(r.snapshotFiles(), func(n string) bool { return strings.Contains(n, ".snap.aside-") }) {
			t.Fatalf("byte %d: %v", at, r.snapshotFiles())
		}
	}
	r.open()
}

func TestASnapshotOfANewerFormatIsRefused(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	taken := r.take()
	r.e.Abort()
	path := r.e.snaps.store.Path(taken.Position)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 64)
	f.ReadAt(head, 0)
	head[8] = 9
	clear(head[12:16])
	sum := codec.Checksum(0, head)
	head[12], head[13], head[14], head[15] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	f.WriteAt(head, 0)
	f.Close()
	_, err = Open(r.o)
	if err == nil || !strings.Contains(err.Error(), "version 9") || !strings.Contains(err.Error(), "knows 1") {
		t.Fatalf("%v", err)
	}
	r.e = nil
}

// TestALogThatEndsBeforeASnapshotIsDamaged: the snapshot was published when the log was durable up to there, so what is not there any
// more was acknowledged, perhaps.
func TestALogThatEndsBeforeASnapshotIsDamaged(t *testing.T) {
	// Given a broker whose log was put back to what it was before its newest snapshot,
	r := newRig(t, nil)
	r.busy()
	r.commit()
	if err := r.e.Log().Sync(); err != nil {
		t.Fatal(err)
	}
	want := r.e.Hash()
	r.e.Abort()
	old := filepath.Join(t.TempDir(), "log")
	copyDir(t, filepath.Join(r.o.Dir, "log"), old)
	r.open()
	r.dial().sendBodies("t0", "gone")
	end := r.e.Log().Appended()
	r.take()
	r.e.Abort()
	if err := os.RemoveAll(filepath.Join(r.o.Dir, "log")); err != nil {
		t.Fatal(err)
	}
	copyDir(t, old, filepath.Join(r.o.Dir, "log"))
	// when it starts, then it refuses and changes nothing,
	r.clock.wall = r.clock.wall.Add(time.Minute)
	before := r.snapshotFiles()
	_, err := Open(r.o)
	damage, is := errors.AsType[*mmaplog.DamageError](err)
	if !is || !damage.Snapshot || damage.Promise < end || !strings.Contains(err.Error(), "snapshot tells") {
		t.Fatalf("a start on it: %v", err)
	}
	if after := r.snapshotFiles(); !slices.Equal(after, before) {
		t.Fatalf("there were the snapshots %v, and are %v", before, after)
	}
	// and when somebody sets the snapshot aside, then it goes on with what the log says.
	for _, name := range before {
		if err := os.Rename(filepath.Join(r.o.Dir, "snapshots", name), filepath.Join(r.o.Dir, "snapshots", name+".aside-1")); err != nil {
			t.Fatal(err)
		}
	}
	r.open()
	if got := r.e.Hash(); got[0] != want[0] || got[1] != want[1] {
		t.Fatal("another state")
	}
}

// TestASnapshotOfAnotherLogIsSetAside: it ends with a record where the log has another one.
func TestASnapshotOfAnotherLogIsSetAside(t *testing.T) {
	other := newRig(t, nil)
	other.dial().sendBodies("t0", "of another log")
	other.take()
	other.e.Abort()
	other.e = nil
	r := newRig(t, nil)
	r.busy()
	r.commit()
	want := r.e.Hash()
	r.e.Abort()
	for _, name := range other.snapshotFiles() {
		b, err := os.ReadFile(filepath.Join(other.o.Dir, "snapshots", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(r.o.Dir, "snapshots", name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.clock.wall = r.clock.wall.Add(time.Minute)
	r.open()
	if got := r.e.Hash(); got[0] != want[0] || got[1] != want[1] {
		t.Fatal("another state")
	}
	for _, name := range r.snapshotFiles() {
		if !strings.Contains(name, ".aside-") {
			t.Fatalf("%s is still there", name)
		}
	}
}

func copyDir(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// TestTheIndexIsBuiltAnewBehindASnapshot: whatever happens to the index files, a start mends them from the log.
func TestTheIndexIsBuiltAnewBehindASnapshot(t *testing.T) {
	for what, harm := range map[string]func(path string) error{
		"removed":        os.Remove,
		"truncated":      func(p string) error { return os.Truncate(p, 4096) },
		"empty":          func(p string) error { return os.Truncate(p, 0) },
		"too long":       func(p string) error { return os.Truncate(p, 2<<20) },
		"zeroed":         func(p string) error { return os.WriteFile(p, make([]byte, 1<<20), 0o644) },
		"of other bytes": func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("garbage!", 1<<17)), 0o644) },
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, nil)
			c := r.dial()
			for i := range 300 {
				c.sendBodies("jobs", fmt.Sprint(i))
			}
			r.take()
			c.sendBodies("jobs", "300")
			r.commit()
			r.e.Abort()
			err := filepath.WalkDir(filepath.Join(r.o.Dir, "queues"), func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				return harm(path)
			})
			if err != nil {
				t.Fatal(err)
			}
			r.open()
			r.takeAll("jobs", 301)
		})
	}
}

// takeAll pops and acks so many messages of a topic, each once.
func (r *rig) takeAll(topic string, want int) {
	r.t.Helper()
	c := r.dial()
	s := c.register("all", "all")
	seen := map[string]bool{}
	for idle := 0; idle < 100 && (len(seen) < want || idle < 3); {
		p := c.pop(popRequest(s.Session, topic, 100))
		if len(p.Rows) == 0 {
			idle++
			r.await()
			r.advance(misplacedWaitMs / 10 * time.Millisecond)
			c.call(protocol.OpHeartbeat, 0, &protocol.HeartbeatRequest{Session: s.Session})
			continue
		}
		for i := range p.Rows {
			body := c.bodyOf(&p, i)
			if seen[body] {
				r.t.Fatalf("%s came twice", body)
			}
			seen[body] = true
		}
		c.ack(s.Session, receipts(&p)...)
	}
	if len(seen) != want {
		r.t.Fatalf("%d messages came, %d were sent", len(seen), want)
	}
}

// TestNoPauseWhileASnapshotIsWritten: what happens while the file is being written is not in it, and is not held up by it.
func TestTrafficGoesOnWhileASnapshotIsWritten(t *testing.T) {
	disk := &slowSnapshots{FS: mmaplog.OS, at: make(chan struct{}), goOn: make(chan struct{})}
	r := newRig(t, func(o *Options) { o.FS = disk })
	c, session, receipt := r.busy()
	// Given a snapshot whose file is stuck in its first write,
	done := make(chan error, 1)
	go func() {
		_, err := r.e.Snapshot()
		done <- err
	}()
	<-disk.at
	// when messages are sent, granted and settled,
	c.sendBodies("t0", "meanwhile")
	c.pop(popRequest(session, "t0", 1))
	if res := c.ack(session, receipt); res[0].Status != protocol.OK {
		t.Fatalf("ack: %s", res[0].Status)
	}
	close(disk.goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// then a start finds all of it.
	r.commit()
	want := r.e.Hash()
	r.e.Abort()
	r.open()
	if found := r.e.Log().Recovery(); found.From == 0 || found.Records < 3 {
		t.Fatalf("%d records were replayed from %d", found.Records, found.From)
	}
	if got := r.e.Hash(); got[0] != want[0] || got[1] != want[1] {
		t.Fatal("another state")
	}
}

// slowSnapshots stops the first write to a snapshot until it is let go on.
type slowSnapshots struct {
	mmaplog.FS
	at, goOn chan struct{}
	once     bool
}

type slowFile struct {
	mmaplog.File
	fs *slowSnapshots
}

func (f *slowSnapshots) OpenFile(name string, flag int, perm fs.FileMode) (mmaplog.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil || !strings.Contains(name, ".snap.tmp") || f.once {
		return file, err
	}
	f.once = true
	return &slowFile{file, f}, nil
}

func (f *slowFile) WriteAt(b []byte, off int64) (int, error) {
	if off == 0 {
		close(f.fs.at)
		<-f.fs.goOn
	}
	return f.File.WriteAt(b, off)
}

func TestASnapshotThatFailsLeavesTheOnesBefore(t *testing.T) {
	for n := 1; ; n++ {
		disk := &failingSnapshots{FS: mmaplog.OS}
		r := newRig(t, func(o *Options) { o.FS = disk })
		r.busy()
		first := r.take()
		r.dial().sendBodies("t0", "more")
		// Given that the n-th operation on a snapshot's file, or in its directory, fails,
		disk.left.Store(int64(n))
		_, err := r.e.Snapshot()
		failed := disk.left.Swap(0) <= 0
		// when it had to be done, then the snapshot is none, and the broker goes on;
		if failed == (err == nil) {
			t.Fatalf("operation %d: failed %t, error %v", n, failed, err)
		}
		c := r.dial()
		c.sendBodies("t0", "still served")
		r.commit()
		want := r.e.Hash()
		// and the next start begins with a good one.
		r.e.Abort()
		r.open()
		if found := r.e.Log().Recovery(); found.From < first.Position {
			t.Fatalf("operation %d: replay began at %d, there is a snapshot of %d", n, found.From, first.Position)
		}
		if got := r.e.Hash(); got[0] != want[0] || got[1] != want[1] {
			t.Fatalf("operation %d: another state", n)
		}
		if !failed {
			t.Logf("%d operations", n-1)
			return
		}
	}
}

// failingSnapshots fails one operation on snapshots.
type failingSnapshots struct {
	mmaplog.FS
	left countdown
}

func (f *failingSnapshots) fails(name string) bool {
	return strings.Contains(name, "snapshots") && f.left.hit()
}

func (f *failingSnapshots) OpenFile(name string, flag int, perm fs.FileMode) (mmaplog.File, error) {
	if f.fails(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EIO}
	}
	file, err := f.FS.OpenFile(name, flag, perm)
	return &failingFile{file, f, name}, err
}

func (f *failingSnapshots) Rename(from, to string) error {
	if f.fails(from) {
		return syscall.EIO
	}
	return f.FS.Rename(from, to)
}

func (f *failingSnapshots) SyncDir(dir string) error {
	if f.fails(dir) {
		return syscall.EIO
	}
	return f.FS.SyncDir(dir)
}

type failingFile struct {
	mmaplog.File
	fs   *failingSnapshots
	name string
}

func (f *failingFile) WriteAt(b []byte, off int64) (int, error) {
	if f.fs.fails(f.name) {
		n, _ := f.File.WriteAt(b[:len(b)/2], off)
		return n, io.ErrShortWrite
	}
	return f.File.WriteAt(b, off)
}

func (f *failingFile) Sync() error {
	if f.fs.fails(f.name) {
		return syscall.EIO
	}
	return f.File.Sync()
}

func TestALogWithoutItsBeginningIsRefused(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentBytes = 64 << 10 })
	r.fillAndRetire(4)
	r.commit()
	r.e.Abort()
	if err := os.RemoveAll(filepath.Join(r.o.Dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
	o := r.o
	o.Logger = slog.New(slog.DiscardHandler)
	_, err := Open(o)
	if _, ok := errors.AsType[*UncoveredError](err); !ok {
		t.Fatalf("%v", err)
	}
	r.e = nil
}
