package consumequeue

import "sync/atomic"

// Stats are figures for metrics. The totals count from Open.
type Stats struct {
	Queues       int
	BlocksBytes  int // memory taken for blocks, used or free
	DirtyBytes   int // waiting for the writer
	Evictions    uint64
	BlocksStored uint64
	BlocksLoaded uint64
	StoreErrors  uint64
	LoadErrors   uint64
	MissingFiles uint64 // loads that found no file where there should be one
	FilesRemoved uint64 // below the begin of a queue, of dropped topics, and by recovery
	Holes        uint64 // entries that loads, Read and Search found missing, each time
	Repaired     uint64 // entries that Repair has stored
}

type counters struct {
	evictions, blocksStored, blocksLoaded, storeErrors, loadErrors, holes, repaired atomic.Uint64
}

// Stats may be called from any goroutine.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	queues, chunks := len(x.queues), x.chunks
	x.mu.Unlock()
	return Stats{
		Queues:       queues,
		BlocksBytes:  chunks * chunkBlocks * BlockBytes,
		DirtyBytes:   int(x.dirty.Load()),
		Evictions:    x.stats.evictions.Load(),
		BlocksStored: x.stats.blocksStored.Load(),
		BlocksLoaded: x.stats.blocksLoaded.Load(),
		StoreErrors:  x.stats.storeErrors.Load(),
		LoadErrors:   x.stats.loadErrors.Load(),
		MissingFiles: x.files.missing.Load(),
		FilesRemoved: x.files.removed.Load(),
		Holes:        x.stats.holes.Load(),
		Repaired:     x.stats.repaired.Load(),
	}
}
