package mmaplog

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
)

func quietLogger() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// eachIO runs a test with both kinds of segment.
func eachIO(t *testing.T, test func(t *testing.T, mode IOMode)) {
	for _, mode := range []IOMode{IOStaged, IOMapped} {
		t.Run(string(mode), func(t *testing.T) { t.Parallel(); test(t, mode) })
	}
}

// newRand returns a generator whose seed is printed when the test fails.
func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// smallOptions are those of a log in memory with the smallest segments and ring.
func smallOptions(fs FS, mode IOMode) Options {
	return Options{Dir: "/data", FS: fs, IO: mode, SegmentBytes: minSegmentBytes, RingBytes: minRingBytes, Logger: quietLogger()}
}

// kept is a record as a test remembers it.
type kept struct {
	header codec.Header
	raw    []byte
}

func (k kept) end() uint64 { return k.header.Position + uint64(codec.Padded(int(k.header.Length))) }

// keeper collects replayed records.
type keeper struct{ records []kept }

func (k *keeper) replay(r Record) error {
	k.records = append(k.records, kept{r.Header, bytes.Clone(r.Raw)})
	return nil
}

// own are the records that tests append, without those of the log itself.
func (k *keeper) own() []kept {
	var own []kept
	for _, r := range k.records {
		if r.header.Type >= codec.TypeMessage {
			own = append(own, r)
		}
	}
	return own
}

// anchors are what snapshots behind each of the records would vouch for.
func anchors(records []kept) []From {
	froms := make([]From, len(records))
	for i, r := range records {
		h := r.header
		froms[i] = From{Position: r.end(), LastPosition: h.Position, LastCRC: h.CRC, Epoch: h.Epoch, LeaseMs: h.LeaseMs, WallMs: h.WallMs}
		if h.Type == codec.TypeSegmentEnd {
			froms[i].Position = geometry{segmentBytes: minSegmentBytes}.first(h.Position/minSegmentBytes + 1)
		}
	}
	return froms
}

// beginAt are options with which replay begins at from.
func beginAt(o Options, from From) Options {
	o.Begin = func(*Found) (From, error) { return from, nil }
	return o
}

// behindFrom are the records that a replay from there gives.
func behindFrom(records []kept, from From) []kept {
	i := slices.IndexFunc(records, func(k kept) bool { return k.header.Position >= from.Position })
	if i < 0 {
		return nil
	}
	return records[i:]
}

// segmentsIn are the numbers of the segment files in the log directory.
func segmentsIn(t testing.TB, fs FS) []uint64 {
	t.Helper()
	bases, _, err := listDirectory(fs, "/data/log")
	if err != nil {
		t.Fatal(err)
	}
	for i := range bases {
		bases[i] /= minSegmentBytes
	}
	return bases
}

// checkNoGap fails if a segment is missing in the middle.
func checkNoGap(t testing.TB, fs FS) {
	t.Helper()
	segments := segmentsIn(t, fs)
	for i, n := range segments {
		if n != segments[0]+uint64(i) {
			t.Fatalf("there is a gap in the segments %d", segments)
		}
	}
}

// rig is a log under test with what was appended to it.
type rig struct {
	*Log
	t        testing.TB
	moved    signal // raised by OnCommit
	clock    int64
	appended []kept
}

// open opens a log, checks what SEMANTICS 9 asks of every recovered log, and starts it with the next epoch.
func open(t testing.TB, o Options) (*rig, *keeper) {
	t.Helper()
	r, k, err := tryOpen(t, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return r, k
}

func tryOpen(t testing.TB, o Options) (*rig, *keeper, error) {
	t.Helper()
	r, k, err := openOnly(t, o)
	if err != nil {
		return nil, nil, err
	}
	f := r.Recovery()
	r.clock = f.LastLeaseMs
	if err := r.Start(f.LastEpoch+1, r.clock, f.LastWallMs); err != nil {
		r.Close()
		return nil, nil, fmt.Errorf("start: %w", err)
	}
	return r, k, nil
}

func openOnly(t testing.TB, o Options) (*rig, *keeper, error) {
	t.Helper()
	r, k := &rig{t: t, moved: newSignal()}, &keeper{}
	then := o.OnCommit
	o.OnCommit = func() {
		if then != nil {
			then()
		}
		r.moved.raise()
	}
	l, err := Open(o, k.replay)
	if err != nil {
		return nil, nil, err
	}
	r.Log = l
	checkContiguous(t, l, k.records)
	return r, k, nil
}

func checkContiguous(t testing.TB, l *Log, records []kept) {
	t.Helper()
	f := l.Recovery()
	want := cmp.Or(f.From, l.geo.first(0))
	var epoch uint32
	for _, r := range records {
		h := r.header
		if h.Position != want || h.Epoch < epoch || h.Synced > h.Position {
			t.Fatalf("record %+v: expected position %d, epoch %d or above", h, want, epoch)
		}
		want, epoch = r.end(), h.Epoch
		if h.Type == codec.TypeSegmentEnd {
			want = l.geo.first(l.geo.segment(h.Position) + 1)
		}
	}
	if f.End != want {
		t.Fatalf("the log ends at %d, the records at %d", f.End, want)
	}
}

// add appends a record with n bytes of payload, waiting for the ring if need be.
func (r *rig) add(n int) kept { return r.addAs(n, false) }

func (r *rig) addAs(n int, quiet bool) kept {
	r.t.Helper()
	payload := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(payload[i:], uint64(len(r.appended))<<20|uint64(i))
	}
	assigned := make([]byte, codec.MessageAssignedBytes)
	r.waitRing(codec.HeaderBytes + len(assigned) + n)
	r.clock++
	h := codec.Header{Type: codec.TypeMessage, LeaseMs: r.clock, WallMs: r.clock}
	binary.LittleEndian.PutUint32(assigned, uint32(n))
	if quiet {
		r.AppendQuiet(&h, assigned, payload, codec.Checksum(0, payload))
	} else {
		r.Append(&h, assigned, payload, codec.Checksum(0, payload))
	}
	raw := make([]byte, h.Length)
	h.Put(raw)
	copy(raw[codec.HeaderBytes:], assigned)
	copy(raw[codec.HeaderBytes+len(assigned):], payload)
	k := kept{h, raw}
	r.appended = append(r.appended, k)
	return k
}

func (r *rig) waitRing(n int) {
	r.t.Helper()
	for r.RingFree() < codec.Padded(n) {
		r.Kick()
		wait(r.t, r.nextMove())
	}
}

// nextMove is a channel that is ready when the log has moved or ended.
func (r *rig) nextMove() <-chan struct{} {
	out := make(chan struct{})
	go func() {
		defer close(out)
		select {
		case <-r.moved:
		case <-r.done:
		}
	}()
	return out
}

// until waits for cond, which is looked at again whenever committed moves.
func (r *rig) until(cond func() bool) {
	r.t.Helper()
	for !cond() {
		wait(r.t, r.nextMove())
	}
}

// anchor is what a snapshot of this moment would vouch for.
func (r *rig) anchor() From {
	position, crc := r.Last()
	s := &r.section
	return From{Position: r.Appended(), LastPosition: position, LastCRC: crc, Epoch: s.epoch, LeaseMs: s.leaseMs, WallMs: s.wallMs}
}

func (r *rig) commitAll() {
	r.t.Helper()
	r.Kick()
	r.until(func() bool { return r.Committed() == r.Appended() || r.Err() != nil })
}

// wait fails the test when ch stays silent for very long.
func wait[T any](t testing.TB, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(30 * time.Second):
		t.Fatal("waited 30 s in vain")
	}
	return v
}

// poll waits for a condition that no channel tells of.
func poll(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for began := time.Now(); !cond(); {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("waited 30 s in vain for: %s", what)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// sameRecords checks that got begins with want, and returns how many more there are.
func sameRecords(t testing.TB, got, want []kept) int {
	t.Helper()
	for i, w := range want {
		if i == len(got) {
			t.Fatalf("%d records, expected %d: the one at %d is missing", len(got), len(want), w.header.Position)
		}
		if !bytes.Equal(got[i].raw, w.raw) {
			t.Fatalf("record %d differs:\n%+v\n%+v", i, got[i].header, w.header)
		}
	}
	return len(got) - len(want)
}

// counter counts from 0.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n - 1
}

func (c *counter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
