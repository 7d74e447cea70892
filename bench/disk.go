package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// diskWorkload is `bench disk`: the yardstick for sends that are flushed.
type diskWorkload struct{ chunk int64 }

func (*diskWorkload) About() About {
	return About{
		Name: "disk", Short: "Measure what a plain loop of pwrite and fsync takes, to compare send with", Alone: true,
		Long: `Writes and flushes a file, chunk by chunk, in messages of the same size, without a network, an index or anybody who waits.
A latency is that of one write with its flush.`,
	}
}

func (w *diskWorkload) Flags(f *Flags) {
	f.Settings.Duration = 3 * time.Second
	w.chunk = 1 << 20
	f.Share("dir", "size", "duration", "warm-up")
	f.BytesVar(&w.chunk, "chunk", "bytes of a write")
}

func (w *diskWorkload) Run(ctx context.Context, run *Run) error {
	if w.chunk < 1 || w.chunk > 1<<30 || run.Size < 1 {
		return &SettingError{errors.New("--size or --chunk is out of range")}
	}
	lane := run.Lane("write", true)
	run.Begin(0)
	return writeLoop(ctx, run.Dir, int(w.chunk), run.Size, lane, run.until())
}

// writeLoop writes and flushes a file of its own until the time is over.
func writeLoop(ctx context.Context, dir string, chunk, size int, lane *Lane, until time.Time) (err error) {
	dir, err = os.MkdirTemp(dir, "leasemq-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := os.OpenFile(filepath.Join(dir, "disk"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer f.Close()
	bytes, record := noise(chunk, 2), lane.Recorder()
	for now, at := time.Now(), int64(0); now.Before(until) && ctx.Err() == nil; at += int64(chunk) {
		if _, err := f.WriteAt(bytes, at); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := syncData(f); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		done := time.Now()
		record.Record(now, done.Sub(now), max(chunk/size, 1))
		lane.End(done)
		now = done
	}
	return ctx.Err()
}
