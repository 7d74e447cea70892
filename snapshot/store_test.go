package snapshot

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random tests, as a failed run has printed it")
	update   = flag.Bool("update", false, "write testdata/snapshot.hex")
)

type row struct {
	kind  codec.RowKind
	bytes []byte
}

func newStore(t testing.TB) *Store {
	t.Helper()
	s := NewStore(mmaplog.OS, filepath.Join(t.TempDir(), "snapshots"))
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	return s
}

// put writes and publishes a snapshot.
func put(t testing.TB, s *Store, h Head, rows []row) {
	t.Helper()
	w, err := s.Create(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Row(r.kind, r.bytes); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Finish(), w.Publish()); err != nil {
		t.Fatal(err)
	}
}

func read(s *Store, position uint64) (h Head, rows []row, err error) {
	h, err = s.Read(position, func(kind codec.RowKind, b []byte) error {
		rows = append(rows, row{kind, slices.Clone(b)})
		return nil
	})
	return h, rows, err
}

func sameRows(a, b []row) bool {
	return slices.EqualFunc(a, b, func(a, b row) bool { return a.kind == b.kind && bytes.Equal(a.bytes, b.bytes) })
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := newStore(t)
	for round := range 30 {
		head := Head{
			Position: uint64(64 + 8*round), LastPosition: rnd.Uint64(), LastCRC: rnd.Uint32(), Epoch: rnd.Uint32(),
			LeaseMs: rnd.Int64(), WallMs: rnd.Int64(),
		}
		var rows []row
		for range rnd.IntN(3000) { // empty ones, long ones, many of a kind and few
			size := []int{0, rnd.IntN(60), rnd.IntN(60), rnd.IntN(2000), codec.MaxRowBytes}[min(rnd.IntN(30), 4)%5]
			if rnd.IntN(20) > 0 {
				size = rnd.IntN(80)
			}
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			rows = append(rows, row{codec.RowKind(1 + rnd.IntN(3)), b})
		}
		put(t, s, head, rows)
		got, have, err := read(s, head.Position)
		if err != nil || got != head || !sameRows(have, rows) {
			t.Fatalf("round %d: %+v, %d rows, %v; written %+v, %d rows", round, got, len(have), err, head, len(rows))
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 30 || !slices.IsSortedFunc(list, func(a, b uint64) int { return int(b) - int(a) }) {
		t.Fatalf("%v %v", list, err)
	}
}

func someRows() []row {
	return []row{
		{codec.RowState, []byte("one state")}, {codec.RowTopic, []byte{}}, {codec.RowTopic, []byte("a topic")},
		{codec.RowMessage, bytes.Repeat([]byte{7}, 300)},
	}
}

// TestEveryByteCounts: whichever byte of a file is changed, and wherever it is cut, it is not taken for good.
func TestEveryByteCounts(t *testing.T) {
	s := newStore(t)
	head := Head{Position: 4096, LastPosition: 4000, LastCRC: 1, Epoch: 2, LeaseMs: 3, WallMs: 4}
	put(t, s, head, someRows())
	path := s.Path(4096)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		_, _, err := read(s, 4096)
		if damaged, ok := errors.AsType[*DamagedError](err); !ok || damaged.Path != path {
			t.Errorf("%s: %v", what, err)
		}
	}
	for at := range whole {
		for _, bit := range []byte{1, 0x80} {
			b := slices.Clone(whole)
			b[at] ^= bit
			refused(fmt.Sprintf("byte %d, bit %#x", at, bit), b)
		}
		refused(fmt.Sprintf("cut at %d", at), whole[:at])
	}
	refused("one byte more", append(slices.Clone(whole), 0))
	if err := os.WriteFile(path, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := read(s, 4096); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, s.Path(8192)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := read(s, 8192); err == nil {
		t.Fatal("a file under another position was taken")
	}
}

func TestARowThatIsRefusedIsToldApart(t *testing.T) {
	s := newStore(t)
	put(t, s, Head{Position: 64}, someRows())
	no := errors.New("no")
	_, err := s.Read(64, func(codec.RowKind, []byte) error { return no })
	if row, ok := errors.AsType[*RowError](err); !ok || !errors.Is(err, no) || row.Offset != headBytes {
		t.Fatalf("%v", err)
	}
}

func TestUnfinishedFilesAreRemovedAtTheNextStart(t *testing.T) {
	s := newStore(t)
	put(t, s, Head{Position: 64}, someRows())
	w, err := s.Create(Head{Position: 128})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Row(codec.RowState, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil { // another start: the writer is dead
		t.Fatal(err)
	}
	if list, err := s.List(); err != nil || !slices.Equal(list, []uint64{64}) {
		t.Fatalf("%v %v", list, err)
	}
	names, err := os.ReadDir(s.dir)
	if err != nil || len(names) != 1 {
		t.Fatalf("%v %v", names, err)
	}
	w, err = s.Create(Head{Position: 128})
	if err == nil {
		err = w.Abort()
	}
	if err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(s.dir); err != nil || len(names) != 1 {
		t.Fatalf("%v %v", names, err)
	}
}

func TestSettingAsideNeverOverwrites(t *testing.T) {
	s := newStore(t)
	for want := range 3 {
		put(t, s, Head{Position: 64}, someRows())
		name, err := s.SetAside(64)
		if err != nil || !strings.HasSuffix(name, fmt.Sprint(".snap.aside-", want+1)) {
			t.Fatalf("%s %v", name, err)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Fatalf("%v %v", list, err)
	}
}

// TestGolden: a file that was written once is read for ever, and written the same.
func TestGolden(t *testing.T) {
	s := newStore(t)
	head := Head{
		Position: 0x0102030405060708, LastPosition: 0x1112131415161718, LastCRC: 0x21222324, Epoch: 0x31323334,
		LeaseMs: 0x4142434445464748, WallMs: 0x5152535455565758,
	}
	put(t, s, head, someRows())
	written, err := os.ReadFile(s.Path(head.Position))
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/snapshot.hex"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(hex.Dump(written)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != hex.Dump(written) {
		t.Errorf("it is written\n%s, was\n%s", hex.Dump(written), text)
	}
	stored := undump(t, string(text))
	if err := os.WriteFile(s.Path(head.Position), stored, 0o644); err != nil {
		t.Fatal(err)
	}
	got, rows, err := read(s, head.Position)
	if err != nil || got != head || !sameRows(rows, someRows()) {
		t.Fatalf("it means %+v, %d rows, %v", got, len(rows), err)
	}
}

// undump is the bytes of a hex dump.
func undump(t testing.TB, text string) (b []byte) {
	t.Helper()
	for line := range strings.Lines(text) {
		fields := strings.Fields(strings.SplitN(line, "|", 2)[0])
		for _, f := range fields[min(1, len(fields)):] {
			x, err := hex.DecodeString(f)
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, x...)
		}
	}
	return b
}

// FuzzRead: no bytes panic, and none that were not written as they are pass for a snapshot.
func FuzzRead(f *testing.F) {
	s := newStore(f)
	put(f, s, Head{Position: 64}, someRows())
	whole, err := os.ReadFile(s.Path(64))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:headBytes])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(s.Path(64), b, 0o644); err != nil {
			t.Fatal(err)
		}
		head, rows, err := read(s, 64)
		if err != nil {
			return
		}
		put(t, s, head, rows)
		again, err := os.ReadFile(s.Path(64))
		if err != nil || len(again) > len(b)+blockHead*len(rows) {
			t.Fatalf("%d bytes were taken for what is written with %d, %v", len(b), len(again), err)
		}
	})
}
