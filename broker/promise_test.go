package broker

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// A broker that has nothing to do writes down that its last records are on the disk: damage there is then told from a torn write.
func TestAnIdleBrokerPromisesItsLastRecords(t *testing.T) {
	// Given messages that were acknowledged, and nothing behind them,
	r := newRig(t, func(o *Options) { o.Fsync = mmaplog.SyncAlways })
	c := r.dial()
	c.sendBodies("jobs", "a", "b", "c")
	r.commit()
	end := r.e.log.Appended()
	// when a second has passed, then one record promises them,
	for range 5 {
		r.advance(500 * time.Millisecond)
		r.commit()
	}
	promised := r.e.log.Appended()
	if promised != end+codec.HeaderBytes {
		t.Fatalf("the log grew from %d to %d", end, promised)
	}
	// and no more follow it,
	r.advance(time.Minute)
	if r.e.log.Appended() != promised {
		t.Errorf("the log of an idle broker grows: from %d to %d", promised, r.e.log.Appended())
	}
	// and a broker that was killed does not start on a log in which one of them is damaged.
	r.e.Abort()
	path := filepath.Join(r.o.Dir, "log", "00000000000000000000.log")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[end-20] ^= 1
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	e, err := Open(r.o)
	if e != nil {
		e.Abort()
	}
	if _, ok := errors.AsType[*mmaplog.DamageError](err); !ok {
		t.Fatalf("the start: %v", err)
	}
	b[end-20] ^= 1
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	r.open()
}

// A data directory with snapshots and without a log is no new one.
func TestALogThatIsGoneIsMissed(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	c.sendBodies("jobs", "a")
	r.commit()
	r.take()
	r.e.Abort()
	log, away := filepath.Join(r.o.Dir, "log"), filepath.Join(r.o.Dir, "away")
	if err := os.Rename(log, away); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(r.o); !errors.Is(err, ErrLogGone) {
		t.Fatalf("the start: %v", err)
	}
	if err := errors.Join(os.RemoveAll(log), os.Rename(away, log)); err != nil {
		t.Fatal(err)
	}
	r.open()
	if n := len(r.snapshotFiles()); n == 0 {
		t.Error("the snapshot is gone")
	}
}
