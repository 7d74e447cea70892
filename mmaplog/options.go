package mmaplog

import (
	"fmt"
	"log/slog"
	"time"
)

// IOMode says how the writer brings bytes into a segment.
type IOMode string

const (
	IOAuto   IOMode = "auto"   // what the probe of the directory's first start found faster
	IOMapped IOMode = "mapped" // stores into a mapping, msync
	IOStaged IOMode = "staged" // pwrite, fdatasync
)

// Policy says when bytes become durable, and with that what committed means.
type Policy string

const (
	SyncAlways   Policy = "always"   // committed = synced
	SyncInterval Policy = "interval" // committed = written; synced follows within about two intervals
	SyncNever    Policy = "never"    // committed = written; synced at segment ends and on request. For tests
)

// Options of a log. Zero values mean the defaults.
type Options struct {
	Dir           string        // data directory; the log lies in Dir/log
	IO            IOMode        // auto
	Policy        Policy        // always
	Interval      time.Duration // of SyncInterval: 100 ms
	SegmentBytes  int64         // of a fresh directory: 256 MiB; a multiple of 64 KiB. An old directory keeps its own
	RingBytes     int           // staging ring: 64 MiB
	PopulateAhead int           // how far ahead of the writer a mapped segment's pages are readied: 8 MiB
	MaxUnsynced   int64         // bound of the bytes that are written and not synced under SyncInterval: 256 MiB

	// Begin says where replay may begin. Open calls it once, when it has the lock and has looked at names, sizes and
	// headers of the files, before any record is read. nil: from the first record.
	Begin func(*Found) (From, error)
	// OnCommit is called after committed advanced, by the goroutine that advanced it, under no lock. It must
	// not block: no append reaches the disk while it runs.
	OnCommit func()
	// OnRoom is called after DiskFree has grown or DiskFull has changed, by the goroutine that makes segments,
	// under no lock. It must not block.
	OnRoom func()
	// OnFail is called once, when the store failed; see Log.Err. It must not block.
	OnFail func(error)
	// OnFlush is called after each flush with its duration and the bytes that it made durable, by the flushing
	// goroutine, under no lock. It must not block.
	OnFlush func(took time.Duration, bytes int64)
	// FS is the file system, nil for the real one. Tests inject faults and crashes here.
	FS     FS
	Logger *slog.Logger
}

const (
	defaultSegmentBytes = 256 << 20

	minRingBytes   = 256 << 10
	maxRingBytes   = 4 << 30
	maxRingMargin  = 64 << 10
	ringStepBytes  = 2 << 20 // populated at once: one huge page
	ringAheadBytes = 8 << 20 // populated ahead of the head during the first lap
)

func (o Options) withDefaults() (Options, error) {
	if o.IO == "" {
		o.IO = IOAuto
	}
	if o.Policy == "" {
		o.Policy = SyncAlways
	}
	if o.Interval == 0 {
		o.Interval = 100 * time.Millisecond
	}
	if o.RingBytes == 0 {
		o.RingBytes = 64 << 20
	}
	if o.PopulateAhead == 0 {
		o.PopulateAhead = 8 << 20
	}
	if o.MaxUnsynced == 0 {
		o.MaxUnsynced = 256 << 20
	}
	if o.OnCommit == nil {
		o.OnCommit = func() {}
	}
	if o.OnRoom == nil {
		o.OnRoom = func() {}
	}
	if o.OnFail == nil {
		o.OnFail = func(error) {}
	}
	if o.FS == nil {
		o.FS = osFS{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case o.Dir == "":
		return o, fmt.Errorf("mmaplog: no data directory given")
	case o.IO != IOAuto && o.IO != IOMapped && o.IO != IOStaged:
		return o, fmt.Errorf("mmaplog: unknown io mode %q (auto, mapped or staged)", o.IO)
	case o.Policy != SyncAlways && o.Policy != SyncInterval && o.Policy != SyncNever:
		return o, fmt.Errorf("mmaplog: unknown fsync policy %q (always, interval or never)", o.Policy)
	case o.Interval < time.Millisecond:
		return o, fmt.Errorf("mmaplog: fsync interval %v is below 1ms", o.Interval)
	case o.SegmentBytes != 0 && !validSegmentBytes(o.SegmentBytes):
		return o, fmt.Errorf("mmaplog: segment size %d: a multiple of 64 KiB from %d to %d is needed",
			o.SegmentBytes, minSegmentBytes, int64(maxSegmentBytes))
	case o.RingBytes < minRingBytes || o.RingBytes > maxRingBytes || o.RingBytes%(64<<10) != 0:
		return o, fmt.Errorf("mmaplog: ring size %d: a multiple of 64 KiB from %d to %d is needed",
			o.RingBytes, minRingBytes, int64(maxRingBytes))
	case o.PopulateAhead < 0 || o.MaxUnsynced < 0:
		return o, fmt.Errorf("mmaplog: a size is negative")
	}
	return o, nil
}
