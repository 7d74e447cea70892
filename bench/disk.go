package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// DiskOptions say what Disk writes.
type DiskOptions struct {
	Dir      string // a file is made in it, and removed
	Size     int    // bytes that count as one message
	Chunk    int    // bytes of a write
	Duration time.Duration
}

// Disk is the yardstick for Send: what a plain loop of pwrite and fsync takes of the same disk, in messages of the
// same size, without a network, an index or anybody who waits. A latency is that of one write with its fsync.
func Disk(ctx context.Context, o DiskOptions) (r Rate, err error) {
	f, err := os.OpenFile(filepath.Join(o.Dir, "disk"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	defer func() {
		f.Close()
		os.Remove(f.Name())
	}()
	chunk := noise(o.Chunk, 2)
	var h Histogram
	began := time.Now()
	now, at := began, int64(0)
	for now.Sub(began) < o.Duration && ctx.Err() == nil {
		if _, err := f.WriteAt(chunk, at); err != nil {
			return r, fmt.Errorf("bench: %w", err)
		}
		if err := f.Sync(); err != nil {
			return r, fmt.Errorf("bench: %w", err)
		}
		at += int64(len(chunk))
		done := time.Now()
		h.Record(done.Sub(now), max(len(chunk)/o.Size, 1))
		now = done
	}
	return rateOf(&h, 0, o.Size, now.Sub(began)), ctx.Err()
}
