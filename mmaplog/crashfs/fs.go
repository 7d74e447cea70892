// Package crashfs is a file system in memory for tests of what a crash leaves. It keeps apart what was synced and what was
// not: a crash keeps the synced bytes, and of the rest what it likes, in sectors of 512 bytes, and of the changes of
// each directory a prefix. Every operation can be made to fail, and the disk can be stopped at any of them.
//
// It does what the file system of package mmaplog is asked to do. It does not import that package, so that the tests inside
// it can use this one; the interfaces come as type parameters instead:
//
//	disk := crashfs.New[mmaplog.File, mmaplog.Mapping]()
//
// Stores through a mapping go to the file's bytes themselves, so the model sees them like writes. A flush that
// fails leaves the pages clean, as the kernel does: they read well, and no later flush writes them unless they are written
// again.
package crashfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

const (
	pageBytes   = 4096
	sectorBytes = 512

	defaultSpaceBytes = 1 << 30
)

// ErrFrozen is what every operation of a frozen disk gives, but for reads.
var ErrFrozen = errors.New("crashfs: the disk has stopped")

// ErrLocked is what Lock gives while the lock is held.
var ErrLocked = errors.New("crashfs: locked")

// ShortWrite, given as the fault of a write, lets half of it happen.
type ShortWrite struct{ Err error }

func (s *ShortWrite) Error() string { return "short write: " + s.Err.Error() }
func (s *ShortWrite) Unwrap() error { return s.Err }

// FS is a disk as a file system whose files are F and whose mappings are M. All methods may be called from anywhere; those
// that look at whole files (Crash, Clone, WriteBack, Files) only while nobody stores through a mapping.
type FS[F, M any] struct{ *Disk }

// New is an empty disk of 1 GiB.
func New[F, M any]() *FS[F, M] {
	return &FS[F, M]{&Disk{
		names: map[string]*inode{}, durable: map[string]*inode{}, locked: map[string]bool{},
		total: defaultSpaceBytes, stopped: make(chan struct{}),
	}}
}

// OpenFile opens or makes a file.
func (f *FS[F, M]) OpenFile(name string, flag int, _ fs.FileMode) (F, error) {
	var none F
	x, err := f.open(name, flag)
	if err != nil {
		return none, err
	}
	return any(&file[M]{*x}).(F), nil
}

// Crash returns the disk as the next start of the machine finds it, and leaves this one as it is.
func (f *FS[F, M]) Crash(rng *rand.Rand) *FS[F, M] {
	after := New[F, M]()
	f.crash(after.Disk, rng)
	return after
}

// Kill returns the disk as the next start of the process finds it: nothing is lost but the locks, and nothing has become
// durable. It is this disk, running again.
func (f *FS[F, M]) Kill() *FS[F, M] {
	f.thaw()
	return f
}

// Clone is an independent copy in which everything is durable: the starting point of a what-if.
func (f *FS[F, M]) Clone() *FS[F, M] {
	after := New[F, M]()
	f.mu.Lock()
	defer f.mu.Unlock()
	after.total, after.Locked = f.total, f.Locked
	for name, node := range f.names {
		after.put(name, node.cur)
	}
	return after
}

// change is a change of a directory that may not be durable yet.
type change struct {
	dir   string
	apply func(map[string]*inode)
}

// Disk is the part of an FS that knows nothing of its types.
type Disk struct {
	mu      sync.Mutex
	names   map[string]*inode
	durable map[string]*inode
	pending []change // since the last SyncDir of each directory
	locked  map[string]bool
	total   int64
	fault   func(op, name string) error
	// Locked makes the error that Lock gives while the lock is held; nil: ErrLocked.
	Locked func() error

	ops      int // but for reads
	freezeAt int // 0: never
	frozen   bool
	stopped  chan struct{} // closed when frozen
}

// SetFault sets what is asked before each operation: "open", "write", "flush" (Datasync and a mapping's Flush),
// "sync", "allocate", "zero", "populate", "map", "rename", "remove", "syncdir", "read", with the last part of the file's name
// as it was created. Its error is the operation's, which then has no effect; a *ShortWrite lets half of a write happen. nil: none.
func (d *Disk) SetFault(fault func(op, name string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// FreezeAt stops the disk at the nth operation from now, reads not counted: of that one, if it is a write, half happens;
// nothing of any later one does. Operations that are under way are finished. 0: never.
func (d *Disk) FreezeAt(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.freezeAt = 0
	if n > 0 {
		d.freezeAt = d.ops + n
	}
}

// Freeze stops the disk now.
func (d *Disk) Freeze() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop()
}

func (d *Disk) stop() {
	if !d.frozen {
		d.frozen = true
		close(d.stopped)
	}
}

func (d *Disk) thaw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.locked)
	d.freezeAt = 0
	if d.frozen {
		d.frozen, d.stopped = false, make(chan struct{})
	}
}

// Frozen tells whether the disk has stopped.
func (d *Disk) Frozen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.frozen
}

// Ops is how many operations there were, reads not counted.
func (d *Disk) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops
}

// SetSpace sets how many bytes the disk has in all. Files may be longer than that already; they cannot grow then.
func (d *Disk) SetSpace(total int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total = total
}

// Space is that of the disk; files take what they have bytes.
func (d *Disk) Space(string) (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(d.total-d.used(), 0), d.total, nil
}

func (d *Disk) used() (n int64) {
	for _, node := range d.names {
		n += node.size()
	}
	return n
}

// grow tells whether a file may have so many more bytes.
func (d *Disk) grow(more int64) error {
	if more <= 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used()+more > d.total {
		return syscall.ENOSPC
	}
	return nil
}

// check is asked before each operation.
func (d *Disk) check(op, name string) error {
	d.mu.Lock()
	if op != "read" {
		if d.frozen {
			d.mu.Unlock()
			return ErrFrozen
		}
		if d.ops++; d.ops == d.freezeAt {
			d.stop()
			d.mu.Unlock()
			return &ShortWrite{ErrFrozen}
		}
	}
	fault := d.fault
	d.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(op, filepath.Base(name))
}

// change applies a change of a directory now, and to the durable names when SyncDir or a crash says so.
func (d *Disk) change(name string, apply func(map[string]*inode)) {
	apply(d.names)
	d.pending = append(d.pending, change{filepath.Dir(name), apply})
}

// Has tells whether a file has that name.
func (d *Disk) Has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[name] != nil
}

// MkdirAll does nothing: directories are always there.
func (d *Disk) MkdirAll(string) error { return nil }

// ReadDir returns the names in a directory.
func (d *Disk) ReadDir(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for name := range d.names {
		if filepath.Dir(name) == filepath.Clean(dir) {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (d *Disk) open(name string, flag int) (*openFile, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	node := d.names[name]
	switch {
	case node == nil && flag&os.O_CREATE == 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case node == nil || flag&os.O_TRUNC != 0:
		node = &inode{name: name}
		d.change(name, func(names map[string]*inode) { names[name] = node })
	}
	return &openFile{disk: d, node: node, writable: flag&os.O_RDWR != 0}, nil
}

// Rename gives a file another name in the same directory.
func (d *Disk) Rename(from, to string) error {
	if err := d.check("rename", from); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	node := d.names[from]
	if node == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	d.change(from, func(names map[string]*inode) { delete(names, from); names[to] = node })
	return nil
}

// Remove takes a name away. Who has the file open keeps it.
func (d *Disk) Remove(name string) error {
	if err := d.check("remove", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	d.change(name, func(names map[string]*inode) { delete(names, name) })
	return nil
}

// SyncDir makes the names in a directory durable.
func (d *Disk) SyncDir(dir string) error {
	if err := d.check("syncdir", dir); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending = slices.DeleteFunc(d.pending, func(c change) bool {
		if c.dir != filepath.Clean(dir) {
			return false
		}
		c.apply(d.durable)
		return true
	})
	return nil
}

// ForgetNames decides the fate of what was done to directories and not synced: a crash keeps none of it.
func (d *Disk) ForgetNames() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending = nil
}

type lock struct {
	disk *Disk
	name string
}

// Lock takes a lock, if nobody has it.
func (d *Disk) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locked[name] {
		if d.Locked != nil {
			return nil, d.Locked()
		}
		return nil, ErrLocked
	}
	d.locked[name] = true
	return &lock{d, name}, nil
}

func (l *lock) Close() error {
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	delete(l.disk.locked, l.name)
	return nil
}

// crash fills after, an empty disk.
func (d *Disk) crash(after *Disk, rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	after.total, after.Locked = d.total, d.Locked
	names := maps.Clone(d.durable)
	left := map[string]int{} // changes that each directory keeps
	for _, c := range d.pending {
		left[c.dir]++
	}
	for _, dir := range slices.Sorted(maps.Keys(left)) {
		left[dir] = rng.IntN(left[dir] + 1)
	}
	for _, c := range d.pending {
		if left[c.dir]--; left[c.dir] >= 0 {
			c.apply(names)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		after.put(name, names[name].afterCrash(rng))
	}
}

// put makes a durable file. The caller has d.mu, or d for itself.
func (d *Disk) put(name string, b []byte) {
	n := &inode{name: name, cur: bytes.Clone(b), durable: bytes.Clone(b)}
	d.names[name], d.durable[name] = n, n
}

// Put makes a durable file, or replaces one.
func (d *Disk) Put(name string, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(name, b)
}

// Files are the bytes of all files by name. They are not copies.
func (d *Disk) Files() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string][]byte{}
	for name, n := range d.names {
		files[name] = n.cur
	}
	return files
}

// Poke lets do change the bytes of a file as damage does: what is durable as well.
func (d *Disk) Poke(name string, do func(b []byte)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[name]
	if n == nil {
		panic("crashfs: no file " + name)
	}
	do(n.cur)
	n.durable = bytes.Clone(n.cur)
}

// Cut shortens a file, or makes it longer, as damage does.
func (d *Disk) Cut(name string, size int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[name]
	b := append(n.cur[:min(size, len(n.cur)):min(size, len(n.cur))], make([]byte, max(0, size-len(n.cur)))...)
	n.cur, n.durable = b, bytes.Clone(b)
}

// WriteBack makes some pages durable that nobody asked for, as the kernel does.
func (d *Disk) WriteBack(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		n := d.names[name]
		n.mu.Lock()
		for off := 0; off < len(n.durable); off += pageBytes {
			if rng.IntN(3) == 0 {
				n.flush(int64(off), int64(min(off+pageBytes, len(n.durable))))
			}
		}
		n.mu.Unlock()
	}
}
