package mmaplog

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestMappedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	f, err := OpenMapped(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Bytes()) != 1<<20 || f.Bytes()[1<<19] != 0 {
		t.Fatal("not a fresh file")
	}
	for _, err := range []error{f.Allocate(4096, 8192), f.Allocate(4096, 8192), f.Populate(4096, 8192)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	copy(f.Bytes()[5000:], "index")
	for _, err := range []error{f.FlushRange(5000, 5), f.Flush(), f.Close(), f.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if b, _ := os.ReadFile(path); len(b) != 1<<20 || !bytes.Equal(b[5000:5005], []byte("index")) {
		t.Fatal("the file has other bytes")
	}
	f, err = OpenMapped(path, 1<<20)
	if err != nil || string(f.Bytes()[5000:5005]) != "index" {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Allocate(1<<20-1, 2); err == nil {
		t.Error("allocated beyond the end")
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := f.Allocate(0, 1); err == nil {
		t.Error("allocated in a file that is gone")
	}
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.Allocate(0, 1); err == nil {
		t.Error("allocated in another file")
	}
}

// A creation that was interrupted is finished; a longer file is somebody else's.
func TestMappedFileSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	if err := os.WriteFile(path, []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := OpenMapped(path, 8192)
	if err != nil || string(f.Bytes()[:4]) != "abc\x00" {
		t.Fatal(err)
	}
	f.Close()
	if _, err := OpenMapped(path, 4096); err == nil {
		t.Fatal("a longer file was mapped")
	}
	if _, err := OpenMapped(path, 0); err == nil {
		t.Fatal("mapped nothing")
	}
}

// allocateByWriting is what other systems have; it keeps what is there and fills the rest.
func TestAllocateByWriting(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.WriteAt([]byte("here"), 300_000)
	f.Truncate(600_000)
	if err := allocateByWriting(f, 100_000, 700_000); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(f.Name())
	if len(b) != 800_000 || string(b[300_000:300_004]) != "here" || !bytes.Equal(b[300_004:], make([]byte, len(b)-300_004)) {
		t.Fatalf("%d bytes", len(b))
	}
	if err := writeZeroes(f, 299_999, 300_000); err != nil {
		t.Fatal(err)
	}
	if b, _ = os.ReadFile(f.Name()); !bytes.Equal(b, make([]byte, 800_000)) {
		t.Fatal("not zero")
	}
}
