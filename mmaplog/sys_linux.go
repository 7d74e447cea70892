package mmaplog

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file has every system call that only Linux knows. sys_other.go has a slower, honest substitute
// for each: zeroes are written where nothing can be allocated, and a read that must not wait always says
// that it would.

// retry repeats a system call that was interrupted: fallocate and madvise are, often, where timers run.
func retry(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

// allocate gives [off, off+n) of the file disk blocks and grows it to off+n. The bytes read as zeroes
// where nothing was written.
func allocate(f *os.File, off, n int64) error {
	err := retry(func() error { return unix.Fallocate(int(f.Fd()), 0, off, n) })
	runtime.KeepAlive(f)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return allocateByWriting(f, off, n)
	}
	return err
}

// zeroRange makes [off, off+n) of an allocated file read as zeroes and keeps its blocks.
func zeroRange(f *os.File, off, n int64) error {
	err := retry(func() error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	runtime.KeepAlive(f)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return writeZeroes(f, off, n)
	}
	return err
}

// datasync makes the file's bytes durable, and of its metadata what is needed to read them.
func datasync(f *os.File) error {
	err := retry(func() error { return unix.Fdatasync(int(f.Fd())) })
	runtime.KeepAlive(f)
	return err
}

// readNoWait reads what the page cache holds of [off, off+len(b)): ErrWouldBlock if the first byte is not
// there. It may read less than was asked for.
func readNoWait(f *os.File, b []byte, off int64) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{b}, off, unix.RWF_NOWAIT)
	runtime.KeepAlive(f)
	if err != nil {
		if err == unix.EAGAIN || err == unix.EOPNOTSUPP || err == unix.ENOSYS || err == unix.EINTR {
			return 0, ErrWouldBlock
		}
		return 0, err
	}
	return n, nil
}

// populate readies the pages of mem, which is page aligned, for stores: after it a store takes no fault
// until the kernel has written the page back. A full disk or a bad sector is an error here, where a store
// would be a signal. Kernels before 5.14 don't know the call: there the store itself takes the fault.
func populate(mem []byte) error {
	err := retry(func() error { return unix.Madvise(mem, unix.MADV_POPULATE_WRITE) })
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// adviseHuge asks for huge pages behind anonymous memory.
func adviseHuge(mem []byte) { _ = unix.Madvise(mem, unix.MADV_HUGEPAGE) }

// flushHandle is what flushMapped needs beyond the mapping: nothing, msync reaches the file through it.
func flushHandle(*os.File) (*os.File, error) { return nil, nil }

// flushMapped makes the pages of mem, which is page aligned and part of a mapped file, durable: msync is
// a ranged fdatasync on Linux.
func flushMapped(mem []byte, _ *os.File) error {
	return retry(func() error { return unix.Msync(mem, unix.MS_SYNC) })
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
