package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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
	chunk := noise(int(w.chunk), 2) // takes a while, of which nothing counts
	return onFile(run.Dir, func(f *os.File) error {
		lane := run.Lane("write", true)
		run.Begin(0)
		return writeLoop(ctx, f, chunk, run.Size, lane, run.until())
	})
}

// onFile makes a file in a directory of its own, and removes both.
func onFile(dir string, do func(*os.File) error) (err error) {
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
	return do(f)
}

// writeLoop writes and flushes, one after the other, until the time is over.
func writeLoop(ctx context.Context, f *os.File, chunk []byte, size int, lane *Lane, until time.Time) error {
	return writeChunks(ctx, f, chunk, size, lane, until, func() error { return syncData(f) })
}

// writtenAhead is about how many bytes writeAhead has written and not flushed at most, as a broker with --fsync interval.
const writtenAhead = 256 << 20

// writeAhead writes until the time is over, and flushes beside that what is written, again and again. The lane's clock stops with the
// last flush.
func writeAhead(ctx context.Context, f *os.File, chunk []byte, size int, lane *Lane, until time.Time) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	written := make(chan struct{}, max(writtenAhead/len(chunk), 1))
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for range written {
			for len(written) > 0 {
				<-written // the flush is this one's, too
			}
			if err := syncData(f); err != nil {
				cancel(fmt.Errorf("bench: %w", err))
			}
		}
	})
	err := writeChunks(ctx, f, chunk, size, lane, until, func() error {
		written <- struct{}{}
		return nil
	})
	close(written)
	flushing.Wait()
	lane.Flushed(time.Now())
	if err == nil {
		err = context.Cause(ctx) // the last flush may have failed
	}
	return err
}

// writeChunks writes a file, one chunk behind the other, and calls then after each. A latency is that of both.
func writeChunks(ctx context.Context, f *os.File, chunk []byte, size int, lane *Lane, until time.Time, then func() error) error {
	record := lane.Recorder()
	for now, at := time.Now(), int64(0); now.Before(until) && ctx.Err() == nil; at += int64(len(chunk)) {
		if _, err := f.WriteAt(chunk, at); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := then(); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		done := time.Now()
		record.Record(now, done.Sub(now), max(len(chunk)/size, 1))
		lane.End(done)
		now = done
	}
	return context.Cause(ctx)
}
