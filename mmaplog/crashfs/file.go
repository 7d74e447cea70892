package crashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"sync"
)

// inode is a file, whatever its names.
type inode struct {
	name    string // as it was created
	mu      sync.RWMutex
	cur     []byte
	durable []byte
	// clean are pages whose write-back has failed, by their first byte, as they were then: the system takes them for
	// written. Who writes to one makes it dirty again.
	clean map[int64][]byte
}

func (n *inode) size() int64 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return int64(len(n.cur))
}

// flush makes [from, to) durable, but for pages that are taken for clean.
func (n *inode) flush(from, to int64) {
	for page := from &^ (pageBytes - 1); page < to; page += pageBytes {
		a, b := max(page, from), min(page+pageBytes, to)
		if as, ok := n.clean[page]; ok && bytes.Equal(as[a-page:min(b-page, int64(len(as)))], n.cur[a:b]) {
			continue
		}
		delete(n.clean, page)
		copy(n.durable[a:b], n.cur[a:b])
	}
}

// lose notes that a flush of [from, to) has failed.
func (n *inode) lose(from, to int64) {
	if n.clean == nil {
		n.clean = map[int64][]byte{}
	}
	for page := from &^ (pageBytes - 1); page < to; page += pageBytes {
		b := min(page+pageBytes, to)
		if int64(len(n.durable)) < b || !bytes.Equal(n.cur[max(page, from):b], n.durable[max(page, from):b]) {
			n.clean[page] = make([]byte, pageBytes)
			copy(n.clean[page][max(page, from)-page:], n.cur[max(page, from):b])
		}
	}
}

// dirty notes that [from, to) was written to.
func (n *inode) dirty(from, to int64) {
	for page := from &^ (pageBytes - 1); page < to && len(n.clean) > 0; page += pageBytes {
		delete(n.clean, page)
	}
}

// extend makes the file at least so long.
func (n *inode) extend(size int64) {
	if more := size - int64(len(n.cur)); more > 0 {
		n.cur = append(n.cur, make([]byte, more)...)
	}
}

// afterCrash are bytes that a crash may leave.
func (n *inode) afterCrash(rng *rand.Rand) []byte {
	n.mu.RLock()
	defer n.mu.RUnlock()
	b := bytes.Clone(n.durable)
	if len(n.cur) > len(b) && rng.IntN(2) == 0 {
		b = append(b, make([]byte, len(n.cur)-len(b))...)
	}
	keep := rng.IntN(5) - 1 // no page, few, half of them, most, or all of them are kept
	for off := 0; off < len(b); off += pageBytes {
		page := b[off:min(off+pageBytes, len(b))]
		cur := n.cur[min(off, len(n.cur)):min(off+len(page), len(n.cur))]
		if bytes.Equal(page, cur) || n.clean[int64(off)] != nil {
			continue
		}
		switch {
		case keep == 3, keep >= 0 && rng.IntN(4) <= keep:
			copy(page, cur)
		case keep >= 0 && rng.IntN(2) == 0:
			for s := 0; s < len(cur); s += sectorBytes {
				if rng.IntN(2) == 0 {
					copy(page[s:min(s+sectorBytes, len(page))], cur[s:])
				}
			}
		}
	}
	return b
}

// openFile is a file that somebody has open.
type openFile struct {
	disk     *Disk
	node     *inode
	writable bool
	closed   bool
}

// file is an openFile with the type that its mappings are to have.
type file[M any] struct{ openFile }

func (f *openFile) Close() error {
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	return nil
}

func (f *openFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.disk.check("read", f.node.name); err != nil {
		return 0, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	if off >= int64(len(f.node.cur)) {
		return 0, io.EOF
	}
	n := copy(b, f.node.cur[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *openFile) ReadNoWait(b []byte, off int64) (int, error) {
	n, err := f.ReadAt(b, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func (f *openFile) WriteAt(b []byte, off int64) (int, error) {
	if f.closed || !f.writable {
		panic(fmt.Sprintf("write to %s: closed %v, writable %v", f.node.name, f.closed, f.writable))
	}
	err := f.disk.check("write", f.node.name)
	if short, ok := errors.AsType[*ShortWrite](err); ok {
		b, err = b[:len(b)/2], short.Err
	} else if err != nil {
		return 0, err
	}
	end := off + int64(len(b))
	if err := f.disk.grow(end - f.node.size()); err != nil {
		return 0, err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.node.extend(end)
	f.node.dirty(off, end)
	return copy(f.node.cur[off:], b), err
}

func (f *openFile) Size() (int64, error) { return f.node.size(), nil }

func (f *openFile) Allocate(off, n int64) error {
	if err := f.disk.check("allocate", f.node.name); err != nil {
		return err
	}
	if err := f.disk.grow(off + n - f.node.size()); err != nil {
		return err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.node.extend(off + n)
	return nil
}

func (f *openFile) ZeroRange(off, n int64) error {
	if err := f.disk.check("zero", f.node.name); err != nil {
		return err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.node.dirty(off, off+n)
	clear(f.node.cur[off : off+n])
	return nil
}

func (f *openFile) Sync() error { return f.flush("sync") }

func (f *openFile) Datasync() error { return f.flush("flush") }

func (f *openFile) flush(op string) error {
	if f.closed {
		panic("crashfs: flush of a closed file")
	}
	err := f.disk.check(op, f.node.name)
	n := f.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		if !errors.Is(err, ErrFrozen) {
			n.lose(0, int64(len(n.cur)))
		}
		return err
	}
	if more := len(n.cur) - len(n.durable); more > 0 {
		n.durable = append(n.durable, make([]byte, more)...)
	}
	n.flush(0, int64(len(n.cur)))
	return nil
}

// Map maps the whole file.
func (f *file[M]) Map() (M, error) {
	var none M
	if err := f.disk.check("map", f.node.name); err != nil {
		return none, err
	}
	n := f.node
	n.mu.Lock()
	defer n.mu.Unlock()
	// From here on the bytes must stay where they are, and flushes copy ranges only.
	n.durable = append(n.durable, make([]byte, len(n.cur)-len(n.durable))...)
	return any(&mapping{disk: f.disk, node: n}).(M), nil
}

// mapping is a mapping of a whole file.
type mapping struct {
	disk *Disk
	node *inode
	gone bool
}

func (m *mapping) Bytes() []byte {
	if m.gone {
		panic("crashfs: store to an unmapped file")
	}
	return m.node.cur
}

func (m *mapping) Populate(off, n int64) error { return m.disk.check("populate", m.node.name) }

func (m *mapping) Flush(off, n int64) error {
	err := m.disk.check("flush", m.node.name)
	m.node.mu.Lock()
	defer m.node.mu.Unlock()
	if err != nil {
		if !errors.Is(err, ErrFrozen) {
			m.node.lose(off, off+n)
		}
		return err
	}
	m.node.flush(off, off+n)
	return nil
}

func (m *mapping) Unmap() error { m.gone = true; return nil }
