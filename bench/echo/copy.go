package echo

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// Copy appends to a log, request by request, and returns when the log had written the last record.
func Copy(ctx context.Context, o bench.CopyLoop) (ended time.Time, err error) {
	moved, failed := make(chan struct{}, 1), make(chan error, 1)
	raise := func() {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
	l, err := mmaplog.Open(mmaplog.Options{
		Dir: o.Dir, IO: mmaplog.IOMode(o.IO), Policy: mmaplog.SyncNever, Logger: slog.New(slog.DiscardHandler),
		OnCommit: raise, OnRoom: raise, OnFail: func(err error) { failed <- err },
	}, func(mmaplog.Record) error { return nil })
	if err != nil {
		return ended, fmt.Errorf("copy: %w", err)
	}
	defer l.Abort()
	if err := l.Start(1, 0, 0); err != nil {
		return ended, fmt.Errorf("copy: %w", err)
	}
	wait := func() error {
		select {
		case <-moved:
			return nil
		case err := <-failed:
			return fmt.Errorf("copy: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	payload := make([]byte, o.RecordBytes-codec.HeaderBytes-codec.MessageAssignedBytes)
	assigned := make([]byte, codec.MessageAssignedBytes)
	until := o.Begin()
	for now := time.Now(); now.Before(until); {
		if err := ctx.Err(); err != nil {
			return now, err
		}
		for !hasRoom(l, o.Batch*o.RecordBytes) {
			if err := wait(); err != nil {
				return ended, err
			}
		}
		for range o.Batch {
			h := codec.Header{Type: codec.TypeMessage}
			l.Append(&h, assigned, payload, codec.Checksum(0, payload))
		}
		l.Kick()
		done := time.Now()
		o.Done(now, done.Sub(now), o.Batch)
		now = done
	}
	for l.Committed() < l.Appended() {
		if err := wait(); err != nil {
			return ended, err
		}
	}
	return time.Now(), nil
}
