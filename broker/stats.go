package broker

import (
	"sort"
	"sync/atomic"

	"github.com/leasemq/leasemq/protocol"
)

// counters count since the start of the broker.
type counters struct {
	sent, popped, redelivered, acked, lateAcks, staleAcks, duplicates atomic.Uint64
	renewals, releases, staleChanges, expired, unreadable             atomic.Uint64
	heartbeats, sessionsEnded, indexHoles                             atomic.Uint64
	popsRepeated, popsGivenBack, reclaimed                            atomic.Uint64
	segmentsRemoved, copied, dropped, snapshots, snapshotsFailed      atomic.Uint64
	duplicateSends, indexMended                                       atomic.Uint64
	snapshotUs, frozenUsMax                                           atomic.Int64
}

// statsCall answers STATS.
func (e *Engine) statsCall(o *op) {
	var a protocol.StatsAnswer
	add := func(name string, v uint64) { a.Stats = append(a.Stats, protocol.Stat{Name: name, Value: v}) }
	s := &e.stats
	add("messages_sent", s.sent.Load())
	add("messages_popped", s.popped.Load())
	add("messages_redelivered", s.redelivered.Load())
	add("sends_repeated", s.duplicateSends.Load())
	add("producers", uint64(e.fold.stored.Producers()))
	add("producer_sequences", uint64(e.fold.stored.Sequences()))
	add("unique_keys", uint64(e.fold.stored.Keys()))
	add("index_entries_mended", s.indexMended.Load())
	add("messages_acked", s.acked.Load())
	add("acks_late", s.lateAcks.Load())
	add("acks_refused", s.staleAcks.Load())
	add("duplicates_reported", s.duplicates.Load())
	add("lease_renewals", s.renewals.Load())
	add("lease_releases", s.releases.Load())
	add("lease_changes_refused", s.staleChanges.Load())
	add("leases_expired", s.expired.Load())
	add("messages_unreadable", s.unreadable.Load())
	add("index_holes", s.indexHoles.Load())
	add("heartbeats", s.heartbeats.Load())
	add("pops_repeated", s.popsRepeated.Load())
	add("leases_given_back_unseen", s.popsGivenBack.Load())
	add("leases_reclaimed", s.reclaimed.Load())
	add("sessions_ended", s.sessionsEnded.Load())
	var leased, waiting uint64
	for _, slot := range e.fold.leases.Subs() {
		sub := e.fold.leases.At(slot)
		leased += sub.Leased
		waiting += sub.Waiting
	}
	add("leases", leased)
	add("messages_waiting", waiting)
	add("sessions", uint64(e.fold.sessions.Sessions()))
	add("topics", uint64(len(e.fold.topics.ids)))
	add("groups", uint64(len(e.fold.sessions.Groups())))
	add("pops_parked", uint64(e.waiters.count))
	add("epoch", uint64(e.fold.epoch))
	add("lease_clock_ms", uint64(e.lease.now()))
	add("log_appended", e.log.Appended())
	add("log_written", e.log.Written())
	add("log_synced", e.log.Synced())
	add("log_committed", e.log.Committed())
	add("records_misfit", e.fold.totalViolations())
	l := e.log.Stats()
	add("log_flushes", uint64(l.Flushes))
	add("log_flushed_bytes", uint64(l.FlushedBytes))
	add("log_flush_us_total", uint64(l.FlushTime.Microseconds()))
	add("log_flush_us_max", uint64(l.FlushMax.Microseconds()))
	add("log_segments", uint64(l.Segments))
	add("log_unsynced", uint64(max(l.Unsynced, 0)))
	add("log_unsynced_age_ms", uint64(l.UnsyncedAge.Milliseconds()))
	add("log_disk_full", oneIf(l.DiskFull))
	add("log_first", e.log.First())
	add("log_segments_removed", s.segmentsRemoved.Load())
	add("messages", e.fold.topics.messages)
	add("messages_copied_forward", s.copied.Load())
	add("messages_dropped", s.dropped.Load())
	add("disk_free", uint64(max(e.disk.free.Load(), 0)))
	add("disk_total", uint64(max(e.disk.total.Load(), 0)))
	add("disk_reserve_short", oneIf(e.reserveShort.Load()))
	add("snapshot_position", e.snapped.Load())
	add("snapshot_bytes", uint64(e.snapshotBytes.Load()))
	add("snapshots_taken", s.snapshots.Load())
	add("snapshots_failed", s.snapshotsFailed.Load())
	add("snapshot_us", uint64(s.snapshotUs.Load()))
	add("snapshot_frozen_us_max", uint64(s.frozenUsMax.Load()))
	process, _ := o.admin.([]protocol.Stat) // taken before the section
	a.Stats = append(a.Stats, process...)
	sort.Slice(a.Stats, func(i, j int) bool { return a.Stats[i].Name < a.Stats[j].Name })
	o.body = a.Append(o.body[:0])
}

func oneIf(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
