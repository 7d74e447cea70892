package inspect

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// asideMark stands between a file's name and a number when it was moved aside.
const asideMark = ".aside-"

// asideSegment is a segment file, or a copy of one, that recovery or a repair moved out of the log.
type asideSegment struct {
	name string
	path string
	base uint64 // position of its byte 0
}

// asideSegments lists the files that were moved aside, by position.
func asideSegments(dir string) ([]asideSegment, error) {
	dir = filepath.Join(dir, logDirName)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []asideSegment
	for _, e := range entries {
		if base, ok := parseAside(e.Name()); ok {
			list = append(list, asideSegment{e.Name(), filepath.Join(dir, e.Name()), base})
		}
	}
	slices.SortFunc(list, func(a, b asideSegment) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// parseAside reads <20 digits>.log.aside-<n>.
func parseAside(name string) (base uint64, ok bool) {
	segment, number, ok := strings.Cut(name, asideMark)
	if !ok {
		return 0, false
	}
	if _, err := strconv.ParseUint(number, 10, 32); err != nil {
		return 0, false
	}
	digits, ok := strings.CutSuffix(segment, ".log")
	if !ok || len(digits) != 20 {
		return 0, false
	}
	base, err := strconv.ParseUint(digits, 10, 64)
	return base, err == nil
}

const (
	searchBuffer = 1 << 20
	ownPosition  = 16 // offset in a record's header
)

// search gives fn whatever in the file names its own position and has a good checksum, looked for at every multiple of 8: such a
// file need not be whole, nor begin like a segment.
func (a *asideSegment) search(fn func(mmaplog.Record) error) error {
	f, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, searchBuffer+codec.HeaderBytes)
	for off := int64(0); ; off += searchBuffer {
		n, err := f.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			return err
		}
		window := buf[:n]
		if err := a.searchWindow(f, off, window, fn); err != nil {
			return err
		}
		if n < len(buf) {
			return nil
		}
	}
}

// searchWindow looks at where a record may begin in the first searchBuffer bytes of window, which lies at off. A record that
// lies inside another one, as bytes of a payload, is found too if it names its own position, which nobody can foretell.
func (a *asideSegment) searchWindow(f io.ReaderAt, off int64, window []byte, fn func(mmaplog.Record) error) error {
	for i := 0; i < searchBuffer && i+codec.HeaderBytes <= len(window); i += codec.Align {
		at := a.base + uint64(off) + uint64(i)
		if binary.LittleEndian.Uint64(window[i+ownPosition:]) != at || at == 0 {
			continue
		}
		length := binary.LittleEndian.Uint32(window[i:])
		if length < codec.HeaderBytes || length > mmaplog.MaxRecordBytes {
			continue
		}
		raw := make([]byte, length)
		if n, err := f.ReadAt(raw, off+int64(i)); n < len(raw) {
			if err == io.EOF {
				continue
			}
			return err
		}
		h, assigned, payload, err := codec.ReadRecord(raw)
		if err != nil {
			continue
		}
		if err := fn(mmaplog.Record{Header: h, Assigned: assigned, Payload: payload, Raw: raw}); err != nil {
			return err
		}
	}
	return nil
}
