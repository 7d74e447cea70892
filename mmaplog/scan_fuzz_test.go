package mmaplog

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// FuzzScan reads arbitrary bytes as a segment. Nothing panics, memory stays bounded whatever the lengths
// say, what is accepted fits together, and the scan is a prefix: cutting the bytes behind the end
// changes nothing.
func FuzzScan(f *testing.F) {
	seg := make([]byte, 1024)
	putSegmentHeader(seg, minSegmentBytes, 0)
	at := segmentHeaderBytes
	for i, typ := range []codec.Type{codec.TypeEpoch, codec.TypeClock, codec.TypeSegmentEnd} {
		h := codec.Header{Type: typ, Epoch: 1, Position: uint64(at), LeaseMs: int64(i), Synced: uint64(at)}
		codec.Seal(seg[at:at+codec.HeaderBytes], &h, 0, 0)
		at += codec.HeaderBytes
	}
	f.Add(seg, uint16(0))
	f.Add(seg[:at-codec.HeaderBytes], uint16(7))
	f.Add([]byte{}, uint16(0))
	f.Add(bytes.Repeat([]byte{0xff}, 300), uint16(3))
	f.Fuzz(func(t *testing.T, data []byte, tear uint16) {
		if len(data) > minSegmentBytes {
			data = data[:minSegmentBytes]
		}
		// Where the fuzzer asks for it a header is sealed, for it cannot guess checksums.
		if off := int(tear) &^ 7; tear != 0 && off+codec.HeaderBytes <= len(data) {
			h := codec.ParseHeader(data[off:])
			if h.Type.AssignedBytes() == 0 {
				codec.Seal(data[off:off+codec.HeaderBytes], &h, 0, 0)
			}
		}
		if len(data) >= segmentHeaderBytes {
			parseSegmentHeader(data)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := segmentScan{file: bytes.NewReader(data), path: "fuzz", size: int64(len(data))}
		var c chain
		next := uint64(segmentHeaderBytes)
		stop, err := s.run(&c, segmentHeaderBytes, func(r Record) error {
			if r.Header.Position != next || len(r.Raw) != int(r.Header.Length) || r.Header.Synced > next {
				t.Fatalf("%+v at %d", r.Header, next)
			}
			next += uint64(codec.Padded(len(r.Raw)))
			return nil
		})
		if err == nil && stop.off != int64(next) {
			t.Fatalf("stopped at %d, the records end at %d", stop.off, next)
		}
		if err == nil && int64(next) < int64(len(data)) {
			b, err := s.look(int64(next), noRecord)
			if err != nil {
				t.Fatal(err)
			}
			if rest := bytes.TrimRight(data[next:], "\x00"); (b.used == noOffset) != (len(rest) == 0) ||
				len(rest) > 0 && b.used != int64(next)+int64(len(rest)) {
				t.Fatalf("used up to %d, expected %d", b.used, int(next)+len(rest))
			}
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
			t.Fatalf("%d bytes allocated for %d", used, len(data))
		}
	})
}
