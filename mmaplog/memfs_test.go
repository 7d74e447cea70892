package mmaplog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// memFS is a file system in memory that keeps apart what was synced and what was not. A crash keeps
// what was synced, and of the rest what it likes: any set of 4 KiB pages, some of them torn at sectors
// of 512 bytes, and a prefix of the directory changes. Every operation can be made to fail.
//
// Stores through a mapping go to the file's bytes themselves, so the model sees them like writes.
type memFS struct {
	mu      sync.Mutex
	names   map[string]*memInode
	durable map[string]*memInode
	pending []func(map[string]*memInode) // directory changes since the last SyncDir
	locked  map[string]bool

	// fault is asked before each operation: "open", "write", "flush" (Datasync and a mapping's Flush),
	// "sync", "allocate", "zero", "populate", "map", "rename", "remove", "syncdir", "read". Its error is the
	// operation's, which then has no effect; a *shortWrite lets half of a write happen.
	fault func(op, name string) error
}

type memInode struct {
	name    string // as it was created
	mu      sync.RWMutex
	cur     []byte
	durable []byte
}

type shortWrite struct{ err error }

func (s *shortWrite) Error() string { return "short write" }

func newMemFS() *memFS {
	return &memFS{names: map[string]*memInode{}, durable: map[string]*memInode{}, locked: map[string]bool{}}
}

func (m *memFS) check(op, name string) error {
	m.mu.Lock()
	f := m.fault
	m.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(op, filepath.Base(name))
}

func (m *memFS) setFault(f func(op, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// change applies a directory change now, and to the durable names when SyncDir or a crash says so.
func (m *memFS) change(f func(map[string]*memInode)) {
	f(m.names)
	m.pending = append(m.pending, f)
}

func (m *memFS) hasName(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[name] != nil
}

func (m *memFS) MkdirAll(string) error { return nil }

func (m *memFS) ReadDir(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.names {
		if filepath.Dir(name) == filepath.Clean(dir) {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (m *memFS) OpenFile(name string, flag int, _ fs.FileMode) (File, error) {
	if err := m.check("open", name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.names[name]
	switch {
	case node == nil && flag&os.O_CREATE == 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case node == nil || flag&os.O_TRUNC != 0:
		node = &memInode{name: name}
		m.change(func(names map[string]*memInode) { names[name] = node })
	}
	return &memFile{fs: m, node: node, writable: flag&os.O_RDWR != 0}, nil
}

func (m *memFS) Rename(from, to string) error {
	if err := m.check("rename", from); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.names[from]
	if node == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	m.change(func(names map[string]*memInode) { delete(names, from); names[to] = node })
	return nil
}

func (m *memFS) Remove(name string) error {
	if err := m.check("remove", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	m.change(func(names map[string]*memInode) { delete(names, name) })
	return nil
}

// Space is that of a disk of 1 GiB, of which the files take what they have bytes.
func (m *memFS) Space(string) (free, total int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	free, total = 1<<30, 1<<30
	for _, n := range m.names {
		n.mu.RLock()
		free -= int64(len(n.cur))
		n.mu.RUnlock()
	}
	return free, total, nil
}

func (m *memFS) SyncDir(dir string) error {
	if err := m.check("syncdir", dir); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.pending {
		f(m.durable)
	}
	m.pending = nil
	return nil
}

type memLock struct {
	m    *memFS
	name string
}

func (m *memFS) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked[name] {
		return nil, &LockedError{PID: os.Getpid()}
	}
	m.locked[name] = true
	return &memLock{m, name}, nil
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locked, l.name)
	return nil
}

// crash returns the file system as the next start of the machine finds it. The log on the old one must
// have ended.
func (m *memFS) crash(rng *rand.Rand) *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.pending[:rng.IntN(len(m.pending)+1)] {
		f(m.durable)
	}
	after := newMemFS()
	for name, node := range m.durable {
		b := node.afterCrash(rng)
		n := &memInode{name: name, cur: b, durable: bytes.Clone(b)}
		after.names[name], after.durable[name] = n, n
	}
	return after
}

func (n *memInode) afterCrash(rng *rand.Rand) []byte {
	b := bytes.Clone(n.durable)
	if len(n.cur) > len(b) && rng.IntN(2) == 0 {
		b = append(b, make([]byte, len(n.cur)-len(b))...)
	}
	keep := rng.IntN(3) // most pages lost, half of them, most of them kept
	for off := 0; off < len(b); off += 4096 {
		page := b[off:min(off+4096, len(b))]
		cur := n.cur[off:min(off+len(page), len(n.cur))]
		if bytes.Equal(page, cur) {
			continue
		}
		switch {
		case rng.IntN(4) == 0:
			for s := 0; s < len(cur); s += 512 {
				if rng.IntN(2) == 0 {
					copy(page[s:min(s+512, len(page))], cur[s:])
				}
			}
		case rng.IntN(4) <= keep:
			copy(page, cur)
		}
	}
	return b
}

// writeBack makes some pages durable that nobody asked for, as the kernel does. Nothing may be
// stored at the same time.
func (m *memFS) writeBack(rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.names {
		n.mu.Lock()
		for off := 0; off < len(n.durable); off += 4096 {
			if rng.IntN(3) == 0 {
				copy(n.durable[off:min(off+4096, len(n.durable))], n.cur[off:])
			}
		}
		n.mu.Unlock()
	}
}

// clone is an independent copy in which everything is durable: the starting point of a what-if.
func (m *memFS) clone() *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := newMemFS()
	for name, node := range m.names {
		n := &memInode{name: name, cur: bytes.Clone(node.cur), durable: bytes.Clone(node.cur)}
		after.names[name], after.durable[name] = n, n
	}
	return after
}

// bytes are the current bytes of a file, for tests that damage them. Both copies are damaged alike.
func (m *memFS) poke(name string, do func(b []byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	if n == nil {
		panic("no file " + name)
	}
	do(n.cur)
	n.durable = bytes.Clone(n.cur)
}

// cut shortens a file, or makes it longer, as nothing of ours does.
func (m *memFS) cut(name string, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	b := append(n.cur[:min(size, len(n.cur)):min(size, len(n.cur))], make([]byte, max(0, size-len(n.cur)))...)
	n.cur, n.durable = b, bytes.Clone(b)
}

type memFile struct {
	fs       *memFS
	node     *memInode
	writable bool
	closed   bool
}

func (f *memFile) Close() error {
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	return nil
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.fs.check("read", f.node.name); err != nil {
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

func (f *memFile) ReadNoWait(b []byte, off int64) (int, error) {
	n, err := f.ReadAt(b, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	if f.closed || !f.writable {
		panic(fmt.Sprintf("write to %s: closed %v, writable %v", f.node.name, f.closed, f.writable))
	}
	err := f.fs.check("write", f.node.name)
	if short, ok := errors.AsType[*shortWrite](err); ok {
		b, err = b[:len(b)/2], short.err
	} else if err != nil {
		return 0, err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if grow := off + int64(len(b)) - int64(len(f.node.cur)); grow > 0 {
		f.node.cur = append(f.node.cur, make([]byte, grow)...)
	}
	return copy(f.node.cur[off:], b), err
}

func (f *memFile) Size() (int64, error) {
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	return int64(len(f.node.cur)), nil
}

func (f *memFile) Allocate(off, n int64) error {
	if err := f.fs.check("allocate", f.node.name); err != nil {
		return err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if grow := off + n - int64(len(f.node.cur)); grow > 0 {
		f.node.cur = append(f.node.cur, make([]byte, grow)...)
	}
	return nil
}

func (f *memFile) ZeroRange(off, n int64) error {
	if err := f.fs.check("zero", f.node.name); err != nil {
		return err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	clear(f.node.cur[off : off+n])
	return nil
}

func (f *memFile) Sync() error { return f.flush("sync") }

func (f *memFile) Datasync() error { return f.flush("flush") }

func (f *memFile) flush(op string) error {
	if f.closed {
		panic("flush of a closed file")
	}
	if err := f.fs.check(op, f.node.name); err != nil {
		return err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.node.durable = append(f.node.durable[:0], f.node.cur...)
	return nil
}

func (f *memFile) Map() (Mapping, error) {
	if err := f.fs.check("map", f.node.name); err != nil {
		return nil, err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	// From here on the bytes must stay where they are, and flushes copy ranges only.
	f.node.durable = append(f.node.durable, make([]byte, len(f.node.cur)-len(f.node.durable))...)
	return &memMapping{fs: f.fs, node: f.node}, nil
}

type memMapping struct {
	fs   *memFS
	node *memInode
	gone bool
}

func (m *memMapping) Bytes() []byte {
	if m.gone {
		panic("store to an unmapped file")
	}
	return m.node.cur
}

func (m *memMapping) Populate(off, n int64) error { return m.fs.check("populate", m.node.name) }

func (m *memMapping) Flush(off, n int64) error {
	if err := m.fs.check("flush", m.node.name); err != nil {
		return err
	}
	m.node.mu.Lock()
	defer m.node.mu.Unlock()
	copy(m.node.durable[off:off+n], m.node.cur[off:off+n])
	return nil
}

func (m *memMapping) Unmap() error { m.gone = true; return nil }
