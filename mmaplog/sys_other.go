//go:build !linux

package mmaplog

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Substitutes for the system calls of sys_linux.go: slower, and as strict. They are there for
// development on other systems; nobody should run a broker on them for speed.

func allocate(f *os.File, off, n int64) error { return allocateByWriting(f, off, n) }

func zeroRange(f *os.File, off, n int64) error { return writeZeroes(f, off, n) }

// datasync is a full sync: os.File.Sync asks the drive itself where the system has a call for that.
func datasync(f *os.File) error { return f.Sync() }

func readNoWait(*os.File, []byte, int64) (int, error) { return 0, ErrWouldBlock }

// populate does nothing: the stores take the faults.
func populate([]byte) error { return nil }

func adviseHuge([]byte) {}

// flushHandle keeps a descriptor of the mapped file, for the sync that msync alone does not give here.
func flushHandle(f *os.File) (*os.File, error) {
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// flushMapped hands the pages to the file, then syncs the file.
func flushMapped(mem []byte, handle *os.File) error {
	if err := unix.Msync(mem, unix.MS_SYNC); err != nil {
		return err
	}
	return handle.Sync()
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
