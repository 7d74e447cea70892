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

// Writer writes one snapshot: rows, then Finish, then Publish. After an error, and instead of Publish, Abort.
type Writer struct {
	s    *Store
	path string
	tmp  string
	file mmaplog.File
	off  int64

	block  []byte // the open one, its head included
	kind   codec.RowKind
	inIt   uint32
	rows   uint64
	blocks uint64
}

// Create begins the snapshot of a position.
func (s *Store) Create(h Head) (*Writer, error) {
	w := &Writer{s: s, path: s.Path(h.Position)}
	w.tmp = w.path + tmpSuffix
	f, err := s.fs.OpenFile(w.tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	w.file = f
	w.block = make([]byte, blockHead, blockBytes+codec.MaxRowBytes+2)
	var head [headBytes]byte
	h.put(head[:])
	if err := w.write(head[:]); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// Row adds a row of 0 to codec.MaxRowBytes bytes.
func (w *Writer) Row(kind codec.RowKind, row []byte) error {
	if kind == 0 || len(row) > codec.MaxRowBytes {
		panic(fmt.Sprintf("snapshot: a row of kind %d and %d bytes", kind, len(row)))
	}
	if w.inIt > 0 && (kind != w.kind || len(w.block) >= blockBytes) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.kind = kind
	w.block = binary.LittleEndian.AppendUint16(w.block, uint16(len(row)))
	w.block = append(w.block, row...)
	w.inIt++
	w.rows++
	return nil
}

// flush writes the open block.
func (w *Writer) flush() error {
	b := w.block
	binary.LittleEndian.PutUint32(b[0:], uint32(len(b)-blockHead))
	binary.LittleEndian.PutUint32(b[4:], 0)
	binary.LittleEndian.PutUint32(b[8:], w.inIt)
	binary.LittleEndian.PutUint16(b[12:], uint16(w.kind))
	binary.LittleEndian.PutUint16(b[14:], 0)
	binary.LittleEndian.PutUint32(b[4:], codec.Checksum(0, b))
	w.block, w.inIt = w.block[:blockHead], 0
	w.blocks++
	return w.write(b)
}

func (w *Writer) write(b []byte) error {
	n, err := w.file.WriteAt(b, w.off)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	w.off += int64(n)
	return nil
}

// Finish ends the file and makes it durable. It does not have its name yet.
func (w *Writer) Finish() error {
	if w.inIt > 0 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	var end [endRowBytes]byte
	binary.LittleEndian.PutUint64(end[0:], w.rows)
	binary.LittleEndian.PutUint64(end[8:], w.blocks)
	w.kind, w.inIt = 0, 1
	w.block = binary.LittleEndian.AppendUint16(w.block, endRowBytes)
	w.block = append(w.block, end[:]...)
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	err := w.file.Close()
	w.file = nil
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// Publish gives the finished file its name, durably.
func (w *Writer) Publish() error {
	err := w.s.fs.Rename(w.tmp, w.path)
	if err == nil {
		err = w.s.fs.SyncDir(w.s.dir)
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// Abort removes what was written. Its error says that something is left, which the next Open removes.
func (w *Writer) Abort() error {
	var err error
	if w.file != nil {
		err = w.file.Close()
		w.file = nil
	}
	return errors.Join(err, w.s.fs.Remove(w.tmp))
}

// Bytes is the length of the file so far.
func (w *Writer) Bytes() int64 { return w.off }

// Rows is the number of rows so far.
func (w *Writer) Rows() uint64 { return w.rows }
