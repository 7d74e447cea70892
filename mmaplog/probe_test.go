package mmaplog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The first start measures and writes down what it chose; later starts keep it, a forced mode does not
// change it, and a file that makes no sense is replaced.
func TestProbe(t *testing.T) {
	o := Options{Dir: t.TempDir(), IO: IOAuto, SegmentBytes: minSegmentBytes, RingBytes: minRingBytes, Logger: quietLogger()}
	r, _ := open(t, o)
	f := r.Recovery()
	if f.IO != IOStaged && f.IO != IOMapped || !strings.Contains(f.IOWhy, "MB/s") {
		t.Fatalf("%+v", f)
	}
	r.Close()
	path := filepath.Join(o.Dir, ioName)
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", first)

	for _, mode := range []IOMode{IOMapped, IOStaged, IOAuto} {
		o.IO = mode
		r, _ := open(t, o)
		if got := r.Recovery(); mode != IOAuto && got.IO != mode || mode == IOAuto && got.IOWhy != f.IOWhy {
			t.Fatalf("%s: %+v", mode, got)
		}
		r.Close()
		if again, _ := os.ReadFile(path); string(again) != string(first) {
			t.Fatalf("%s changed the file: %s", mode, again)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, _ = open(t, o)
	r.Close()
	if again, _ := os.ReadFile(path); !strings.Contains(string(again), `"mode"`) {
		t.Fatalf("%s", again)
	}
	names, _ := osFS{}.ReadDir(filepath.Join(o.Dir, logDirName))
	for _, name := range names {
		if strings.HasSuffix(name, tmpSuffix) {
			t.Errorf("%s was left", name)
		}
	}
}
