package mmaplog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// Whatever happens to the 64 bytes of a header, while the first record is good: they are written anew, every record is there again, and what
// stood there is kept.
func TestRepairHeadings(t *testing.T) {
	whole, all := longLog(t, IOStaged, true)
	for name, damage := range map[string]func(b []byte){
		"magic": func(b []byte) { b[0] ^= 1 }, "version": func(b []byte) { b[9] ^= 4 }, "checksum": func(b []byte) { b[13] ^= 1 },
		"size": func(b []byte) { b[17] ^= 1 }, "base": func(b []byte) { b[30] ^= 1 }, "reserved": func(b []byte) { b[63] = 1 },
		"all": func(b []byte) { clear(b[:64]) },
	} {
		t.Run(name, func(t *testing.T) {
			fs := whole.Clone()
			want := map[string][]byte{}
			for _, segment := range []uint64{0, 2} {
				fs.Poke(segmentPath(segment), func(b []byte) {
					damage(b)
					want[segmentPath(segment)] = bytes.Clone(b[:64])
				})
			}
			r, err := OpenReader(fs, "/data")
			if err != nil {
				t.Fatal(err)
			}
			if paths := r.Headings(); len(paths) != 2 || paths[0] != segmentPath(0) || paths[1] != segmentPath(2) {
				t.Fatalf("found %v", paths)
			}
			r.Close()
			kept, err := RepairHeadings(fs, "/data")
			if err != nil || len(kept) != 2 {
				t.Fatalf("%v, %v", kept, err)
			}
			for i, segment := range []uint64{0, 2} {
				if !strings.HasPrefix(kept[i], segmentPath(segment)) || !bytes.Equal(fs.Files()[kept[i]], want[segmentPath(segment)]) {
					t.Errorf("%s does not hold what stood in %s", kept[i], segmentPath(segment))
				}
			}
			tail, records := readAll(t, fs, 0)
			if tail.Damage != nil || len(records) != len(behindFrom(all, From{})) {
				t.Fatalf("%v, %d records of %d", tail.Damage, len(records), len(all))
			}
			// A second try finds nothing to do.
			if again, err := RepairHeadings(fs, "/data"); len(again) != 0 || err != nil {
				t.Fatalf("%v, %v", again, err)
			}
		})
	}
}

// A header is left alone where more than it is wrong, where a newer version wrote it, and where a broker runs.
func TestHeadingsThatAreLeft(t *testing.T) {
	whole, _ := longLog(t, IOStaged, true)
	for name, damage := range map[string]func(fs *memFS){
		"nothing": func(*memFS) {},
		"first record": func(fs *memFS) {
			fs.Poke(segmentPath(1), func(b []byte) { b[3] ^= 1; b[64+20] ^= 1 })
		},
		"a record of another segment": func(fs *memFS) {
			other := bytes.Clone(fs.Files()[segmentPath(2)])
			fs.Poke(segmentPath(1), func(b []byte) { copy(b, other); b[3] ^= 1 })
		},
		"short": func(fs *memFS) {
			fs.Poke(segmentPath(1), func(b []byte) { b[3] ^= 1 })
			fs.Cut(segmentPath(1), 40_003)
		},
		"newer": func(fs *memFS) {
			fs.Poke(segmentPath(1), func(b []byte) { putNewerHeader(b) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := whole.Clone()
			damage(fs)
			before := fs.Files()[segmentPath(1)]
			kept, err := RepairHeadings(fs, "/data")
			if _, refused := errors.AsType[*VersionError](err); refused != (name == "newer") {
				t.Errorf("error %v", err)
			}
			if len(kept) != 0 || !bytes.Equal(before, fs.Files()[segmentPath(1)]) {
				t.Errorf("%v, %v", kept, err)
			}
		})
	}
	fs := whole.Clone()
	fs.Poke(segmentPath(1), func(b []byte) { b[3] ^= 1 })
	lock, err := fs.Lock("/data/LOCK")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := RepairHeadings(fs, "/data"); !isLocked(err) {
		t.Errorf("beside a broker: %v", err)
	}
}

func isLocked(err error) bool {
	_, ok := errors.AsType[*LockedError](err)
	return ok
}

// putNewerHeader makes the header one of the next format.
func putNewerHeader(b []byte) {
	head := b[:segmentHeaderBytes]
	head[8] = formatVersion + 1
	clear(head[12:16])
	binary.LittleEndian.PutUint32(head[12:], codec.Checksum(0, head))
}
