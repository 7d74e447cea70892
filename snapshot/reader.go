package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// Head reads the head of a snapshot.
func (s *Store) Head(position uint64) (Head, error) {
	r, err := s.open(position)
	if err != nil {
		return Head{}, err
	}
	defer r.file.Close()
	return r.head, nil
}

// Size is the length of a snapshot's file, 0 if that cannot be told.
func (s *Store) Size(position uint64) int64 {
	r, err := s.open(position)
	if err != nil {
		return 0
	}
	defer r.file.Close()
	return r.size
}

// Read checks a snapshot as a whole and gives its rows to row, in order; a row is valid during the call. Blocks are
// checked one by one before their rows are given out, so what was given out before an error is to be thrown away.
// A *DamagedError says that the file is no good, a *RowError that row refused one; any other is of reading it.
func (s *Store) Read(position uint64, row func(kind codec.RowKind, row []byte) error) (Head, error) {
	r, err := s.open(position)
	if err != nil {
		return Head{}, err
	}
	defer r.file.Close()
	return r.head, r.blocks(row)
}

// Verify reads a snapshot and looks at its checksums only.
func (s *Store) Verify(position uint64) error {
	_, err := s.Read(position, func(codec.RowKind, []byte) error { return nil })
	return err
}

// reader reads one file from front to back.
type reader struct {
	file mmaplog.File
	path string
	size int64
	off  int64
	head Head
	buf  []byte
}

func (s *Store) open(position uint64) (*reader, error) {
	path := s.Path(position)
	f, err := s.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	r := &reader{file: f, path: path}
	if err := r.readHead(position); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func (r *reader) damaged(what string) error {
	return &DamagedError{Path: r.path, Offset: r.off, What: what}
}

func (r *reader) readHead(position uint64) (err error) {
	if r.size, err = r.file.Size(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	b, err := r.take(headBytes)
	if err != nil {
		return err
	}
	if err := r.head.parse(b); err != nil {
		if newer, ok := errors.AsType[*VersionError](err); ok {
			newer.Path = r.path
			return newer
		}
		r.off = 0
		return r.damaged(err.Error())
	}
	if r.head.Position != position {
		return r.damaged(fmt.Sprintf("it is of position %d", r.head.Position))
	}
	return nil
}

// take reads the next n bytes; they are valid until the next call.
func (r *reader) take(n int) ([]byte, error) {
	if int64(n) > r.size-r.off {
		return nil, r.damaged(fmt.Sprintf("it ends after %d bytes", r.size))
	}
	if cap(r.buf) < n {
		r.buf = make([]byte, n, max(n, blockBytes+blockHead))
	}
	b := r.buf[:n]
	if k, err := r.file.ReadAt(b, r.off); k < n {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("snapshot: read %s at %d: %w", r.path, r.off, err)
	}
	r.off += int64(n)
	return b, nil
}

// blocks gives out the rows of all blocks and checks that the last one counts them right.
func (r *reader) blocks(row func(codec.RowKind, []byte) error) error {
	var rows, blocks uint64
	for {
		at := r.off
		head, err := r.take(blockHead)
		if err != nil {
			return err
		}
		length, n, kind := binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[8:]), binary.LittleEndian.Uint16(head[12:])
		if length > maxBlock || kind > 255 {
			r.off = at
			return r.damaged(fmt.Sprintf("a block of %d bytes and kind %d", length, kind))
		}
		r.off = at
		b, err := r.take(blockHead + int(length))
		if err != nil {
			return err
		}
		stored := binary.LittleEndian.Uint32(b[4:])
		clear(b[4:8])
		if sum := codec.Checksum(0, b); sum != stored {
			r.off = at
			return r.damaged(fmt.Sprintf("the checksum of a block is %08x, stored is %08x", sum, stored))
		}
		if kind == 0 {
			return r.end(b[blockHead:], n, rows, blocks)
		}
		if err := r.rows(at, codec.RowKind(kind), b[blockHead:], n, row); err != nil {
			return err
		}
		rows, blocks = rows+uint64(n), blocks+1
	}
}

func (r *reader) rows(at int64, kind codec.RowKind, b []byte, n uint32, row func(codec.RowKind, []byte) error) error {
	for range n {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			r.off = at
			return r.damaged("a block has fewer rows than it says")
		}
		size := int(binary.LittleEndian.Uint16(b))
		if err := row(kind, b[2:2+size]); err != nil {
			return &RowError{Path: r.path, Offset: at, Err: err}
		}
		b = b[2+size:]
	}
	if len(b) != 0 {
		r.off = at
		return r.damaged("a block has more rows than it says")
	}
	return nil
}

func (r *reader) end(b []byte, n uint32, rows, blocks uint64) error {
	switch {
	case n != 1 || len(b) != 2+endRowBytes || binary.LittleEndian.Uint16(b) != endRowBytes:
		return r.damaged("its last block is none")
	case binary.LittleEndian.Uint64(b[2:]) != rows || binary.LittleEndian.Uint64(b[10:]) != blocks:
		return r.damaged(fmt.Sprintf("it has %d rows in %d blocks, and says %d in %d", rows, blocks,
			binary.LittleEndian.Uint64(b[2:]), binary.LittleEndian.Uint64(b[10:])))
	case r.off != r.size:
		return r.damaged("something lies behind its last block")
	}
	return nil
}
