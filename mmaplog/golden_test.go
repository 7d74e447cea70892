package mmaplog

import (
	"encoding/hex"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

var updateGolden = flag.Bool("update", false, "write testdata/segment.hex")

const goldenSegment = "testdata/segment.hex"

// goldenRecords are the records of the segment in testdata, by position.
func goldenRecords() (headers []codec.Header, payloads [][]byte) {
	position := uint64(segmentHeaderBytes)
	for i, x := range []struct {
		kind    codec.Type
		payload string
	}{
		{codec.TypeEpoch, ""}, {codec.TypeTopic, "not a real payload"}, {codec.TypeClock, ""}, {codec.TypeSettle, "neither is this"}, {codec.TypeCleanStop, ""},
	} {
		h := codec.Header{
			Length: uint32(codec.HeaderBytes + len(x.payload)), Type: x.kind, Epoch: 0x65000001, Position: position,
			LeaseMs: 1000 + int64(i), WallMs: 1_700_000_000_000 + int64(i), Synced: 64,
		}
		if x.kind == codec.TypeCleanStop {
			h.Synced = position
		}
		headers, payloads = append(headers, h), append(payloads, []byte(x.payload))
		position += uint64(codec.Padded(int(h.Length)))
	}
	return headers, payloads
}

// goldenBytes is the segment as this version writes it, without the zeroes behind.
func goldenBytes() []byte {
	b := make([]byte, segmentHeaderBytes)
	putSegmentHeader(b, minSegmentBytes, 0)
	headers, payloads := goldenRecords()
	for i := range headers {
		record := append(make([]byte, codec.HeaderBytes), payloads[i]...)
		codec.Seal(record, &headers[i], 0, codec.Checksum(0, payloads[i]))
		b = append(b, record...)
		b = append(b, make([]byte, codec.Padded(len(record))-len(record))...)
	}
	return b
}

// TestGoldenSegment: a segment that was written once is read for ever, and this version writes the same bytes.
func TestGoldenSegment(t *testing.T) {
	if *updateGolden {
		if err := os.MkdirAll(filepath.Dir(goldenSegment), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(goldenSegment, []byte(hex.Dump(goldenBytes())), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(goldenSegment)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.Dump(goldenBytes()); got != string(text) {
		t.Errorf("it is written\n%s, was\n%s", got, text)
	}
	var stored []byte
	for line := range strings.Lines(string(text)) {
		dumped, _, _ := strings.Cut(line, "|")
		for _, word := range strings.Fields(dumped)[1:] {
			var x byte
			if _, err := fmt.Sscanf(word, "%02x", &x); err != nil {
				t.Fatal(err)
			}
			stored = append(stored, x)
		}
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, logDirName), 0o755); err != nil {
		t.Fatal(err)
	}
	stored = append(stored, make([]byte, minSegmentBytes-len(stored))...)
	if err := os.WriteFile(filepath.Join(dir, logDirName, segmentName(0)), stored, 0o644); err != nil {
		t.Fatal(err)
	}
	headers, payloads := goldenRecords()
	i := 0
	l, err := Open(Options{Dir: dir, IO: IOStaged, Logger: slog.New(slog.DiscardHandler)}, func(r Record) error {
		want := headers[i]
		want.CRC = r.Header.CRC
		if r.Header != want || !slices.Equal(r.Payload, payloads[i]) {
			return fmt.Errorf("record %d is %+v %q, want %+v %q", i, r.Header, r.Payload, want, payloads[i])
		}
		i++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Abort()
	if found := l.Recovery(); i != len(headers) || !found.CleanStop || found.LastEpoch != 0x65000001 {
		t.Fatalf("%d records, %+v", i, found)
	}
}
