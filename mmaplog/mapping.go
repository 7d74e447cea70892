package mmaplog

import (
	"fmt"
	"os"

	mmap "github.com/edsrzf/mmap-go"
)

// pageBytes is the granularity of populate and flush. It is the page size of the machine or a multiple.
var pageBytes = int64(os.Getpagesize())

// mapping is a shared, writable mapping of a whole file.
//
// Invariants:
//  1. Every byte that is stored to lies in allocated blocks (Allocate came first), so that a store cannot
//     find the disk full. What is left to go wrong is the medium itself.
//  2. The file is never truncated while the mapping lives.
//  3. No descriptor that could write to the file is kept: a stray write through a reused descriptor number
//     must not find a log behind it.
//
// Populate and Flush may run beside each other and beside stores; unmap may not run beside anything.
type mapping struct {
	mem    mmap.MMap
	handle *os.File // for the flush, on systems whose msync does not reach the disk; else nil
}

func mapFile(f *os.File) (*mapping, error) {
	handle, err := flushHandle(f)
	if err != nil {
		return nil, err
	}
	mem, err := mmap.Map(f, mmap.RDWR, 0)
	if err != nil {
		if handle != nil {
			handle.Close()
		}
		return nil, os.NewSyscallError("mmap", err)
	}
	return &mapping{mem: mem, handle: handle}, nil
}

// Bytes is the mapped memory.
func (m *mapping) Bytes() []byte { return m.mem }

// pages is [off, off+n) of the mapping, grown to whole pages.
func (m *mapping) pages(off, n int64) []byte {
	from := off &^ (pageBytes - 1)
	to := min((off+n+pageBytes-1)&^(pageBytes-1), int64(len(m.mem)))
	if off < 0 || n < 0 || from > to {
		panic(fmt.Sprintf("mmaplog: range %d+%d of a mapping of %d bytes", off, n, len(m.mem)))
	}
	return m.mem[from:to]
}

// Populate readies [off, off+n) for stores, in a system call instead of in page faults.
func (m *mapping) Populate(off, n int64) error {
	p := m.pages(off, n)
	if len(p) == 0 {
		return nil
	}
	return os.NewSyscallError("madvise", populate(p))
}

// Flush makes what was stored in [off, off+n) durable. After an error nothing is known about those
// bytes, and trying again would not tell: the kernel reports a failed write once.
func (m *mapping) Flush(off, n int64) error {
	p := m.pages(off, n)
	if len(p) == 0 {
		return nil
	}
	return os.NewSyscallError("msync", flushMapped(p, m.handle))
}

// Unmap gives the address range back. Nobody may hold a slice of it.
func (m *mapping) Unmap() error {
	if m.mem == nil {
		return nil
	}
	if m.handle != nil {
		m.handle.Close()
	}
	return os.NewSyscallError("munmap", m.mem.Unmap())
}
