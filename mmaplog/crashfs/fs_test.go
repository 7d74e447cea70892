package crashfs_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/mmaplog/crashfs"
)

type disk = crashfs.FS[mmaplog.File, mmaplog.Mapping]

var _ mmaplog.FS = (*disk)(nil)

func newDisk() *disk { return crashfs.New[mmaplog.File, mmaplog.Mapping]() }

const name = "/d/f"

func create(t *testing.T, d *disk, name string) mmaplog.File {
	t.Helper()
	f, err := d.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, f mmaplog.File, b byte, off, n int) {
	t.Helper()
	if _, err := f.WriteAt(bytes.Repeat([]byte{b}, n), int64(off)); err != nil {
		t.Fatal(err)
	}
}

// durable gives a file of four pages of b, of which everything is durable.
func durable(t *testing.T, d *disk, b byte) mmaplog.File {
	t.Helper()
	f := create(t, d, name)
	write(t, f, b, 0, 4*4096)
	if err := errors.Join(f.Sync(), d.SyncDir("/d")); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestACrashKeepsWhatWasSynced(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	old, young, torn := 0, 0, 0
	for range 300 {
		// Given a file that is durable, and was written over since but for its last page,
		d := newDisk()
		f := durable(t, d, 1)
		write(t, f, 2, 0, 3*4096)
		// when the power fails, then every sector is the old or the new one, and the last page is as it was.
		b := d.Crash(rng).Files()[name]
		if len(b) != 4*4096 || !bytes.Equal(b[3*4096:], bytes.Repeat([]byte{1}, 4096)) {
			t.Fatalf("%d bytes", len(b))
		}
		for page := 0; page < 3*4096; page += 4096 {
			news := 0
			for s := page; s < page+4096; s += 512 {
				switch {
				case bytes.Equal(b[s:s+512], bytes.Repeat([]byte{2}, 512)):
					news++
				case !bytes.Equal(b[s:s+512], bytes.Repeat([]byte{1}, 512)):
					t.Fatalf("the sector at %d is neither", s)
				}
			}
			switch news {
			case 0:
				old++
			case 8:
				young++
			default:
				torn++
			}
		}
	}
	if old == 0 || young == 0 || torn == 0 {
		t.Errorf("%d pages were old, %d new, %d torn", old, young, torn)
	}
}

func TestNamesAreDurableWithTheirDirectory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	here, gone := 0, 0
	for range 100 {
		d := newDisk()
		durable(t, d, 1)
		create(t, d, "/other/f")
		if err := errors.Join(d.Rename(name, "/d/g"), d.SyncDir("/other")); err != nil {
			t.Fatal(err)
		}
		after := d.Crash(rng)
		if after.Has(name) == after.Has("/d/g") || !after.Has("/other/f") {
			t.Fatalf("old name %t, new name %t, other %t", after.Has(name), after.Has("/d/g"), after.Has("/other/f"))
		}
		if after.Has(name) {
			gone++
		} else {
			here++
		}
	}
	if here == 0 || gone == 0 {
		t.Errorf("renamed %d times, not %d times", here, gone)
	}
}

func TestAFailedFlushIsNotMadeGoodByTheNext(t *testing.T) {
	// Given a page whose flush has failed,
	d := newDisk()
	f := durable(t, d, 1)
	write(t, f, 2, 0, 4096)
	write(t, f, 2, 2*4096, 4096)
	d.SetFault(func(op, _ string) error {
		if op == "flush" {
			return syscall.EIO
		}
		return nil
	})
	if err := f.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	d.SetFault(nil)
	// when another flush succeeds, and one of the pages was written to before it,
	write(t, f, 3, 2*4096, 1)
	if err := f.Datasync(); err != nil {
		t.Fatal(err)
	}
	// then all reads well, and after a crash only that page is there.
	if b := d.Files()[name]; b[0] != 2 {
		t.Fatal("it does not read as it was written")
	}
	b := d.Crash(rand.New(rand.NewPCG(1, 3))).Files()[name]
	if b[0] != 1 || b[2*4096] != 3 || b[2*4096+1] != 2 {
		t.Fatalf("%d %d %d", b[0], b[2*4096], b[2*4096+1])
	}
}

func TestAFrozenDiskChangesNoMore(t *testing.T) {
	d := newDisk()
	f := durable(t, d, 1)
	d.FreezeAt(2)
	write(t, f, 2, 0, 100)
	if n, err := f.WriteAt(bytes.Repeat([]byte{3}, 100), 100); n != 50 || !errors.Is(err, crashfs.ErrFrozen) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if _, err := f.WriteAt([]byte{4}, 0); !errors.Is(err, crashfs.ErrFrozen) || !d.Frozen() {
		t.Fatal(err)
	}
	if err := d.Remove(name); !errors.Is(err, crashfs.ErrFrozen) {
		t.Fatal(err)
	}
	if b := d.Kill().Files()[name]; b[0] != 2 || b[149] != 3 || b[150] != 1 {
		t.Fatalf("%d %d %d", b[0], b[149], b[150])
	}
	write(t, f, 5, 0, 1)
}

func TestSpace(t *testing.T) {
	d := newDisk()
	f := durable(t, d, 1)
	d.SetSpace(5 * 4096)
	if err := f.Allocate(0, 5*4096); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1}, 5*4096); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if free, total, err := d.Space("/d"); free != 0 || total != 5*4096 || err != nil {
		t.Fatalf("%d of %d, %v", free, total, err)
	}
}

func TestStoresThroughAMappingAreLikeWrites(t *testing.T) {
	d := newDisk()
	m, err := durable(t, d, 1).Map()
	if err != nil {
		t.Fatal(err)
	}
	m.Bytes()[0], m.Bytes()[4096], m.Bytes()[8192] = 2, 2, 2
	if err := m.Flush(4096, 1); err != nil {
		t.Fatal(err)
	}
	kept := [3]int{}
	for seed := range uint64(50) {
		b := d.Crash(rand.New(rand.NewPCG(seed, 4))).Files()[name]
		for i := range kept {
			if b[i*4096] == 2 {
				kept[i]++
			}
		}
	}
	if kept[0] == 0 || kept[0] == 50 || kept[1] != 50 {
		t.Fatalf("kept %v of 50", kept)
	}
}
