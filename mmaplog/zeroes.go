package mmaplog

import (
	"errors"
	"os"
)

// ErrWouldBlock is the answer of a read that must not wait for the disk, and would have to.
var ErrWouldBlock = errors.New("mmaplog: the read would wait for the disk")

// zeroChunk is the buffer size of writeZeroes.
const zeroChunk = 256 << 10

// writeZeroes overwrites [off, off+n) with zeroes.
func writeZeroes(f *os.File, off, n int64) error {
	zeroes := make([]byte, min(n, zeroChunk))
	for n > 0 {
		k, err := f.WriteAt(zeroes[:min(n, int64(len(zeroes)))], off)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}

// allocateByWriting allocates where the system or the file system has no call for it. What the file
// already has lies in allocated blocks only if it was allocated here, so holes in [off, size) are filled
// with the bytes that they read as, by writing them back.
func allocateByWriting(f *os.File, off, n int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end := min(off+n, info.Size())
	buf := make([]byte, min(n, zeroChunk))
	for off < end {
		k, err := f.ReadAt(buf[:min(end-off, int64(len(buf)))], off)
		if k == 0 {
			return err
		}
		if _, err := f.WriteAt(buf[:k], off); err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return writeZeroes(f, off, n)
}
