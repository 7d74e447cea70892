// Package mmaplog is the CommitLog: one endless row of records in segment files, with group commit and crash
// recovery. It knows bytes and record headers, not messages. docs/FORMAT.md has the layout, docs/CRASH.md
// what is promised and every crash case.
//
// # The way of a record
//
//	Append (in the caller's section)   seal, copy into the ring                      appended
//	    | Kick
//	writer goroutine                   ring -> segment: pwrite, or store + populate  written
//	    | always: at once; interval: every 100 ms
//	flusher goroutine                  fdatasync, or ranged msync                    synced
//	    | OnCommit
//	the caller releases the answers that wait for a position <= Committed
//
// The section never waits for a disk, makes a system call or takes a page fault: it copies into memory that
// is there. Everything that can stall happens in a system call of a goroutine of the log, where the Go scheduler sees
// it: a store that faults on a slow disk would hold a processor, and with it, at the next garbage
// collection, everybody. While a flush runs the next batch gathers in the ring, so the batch sizes itself. When the disk
// is slower than the senders the ring fills, and RingFree tells the broker.
//
// # Two kinds of segment
//
// Staged segments are written with pwrite, mapped ones by storing into a mapping. Which is faster depends
// on what a page fault costs, so a probe at the first start of a directory measures and decides (probe.go). The
// interface feeder is all that differs; format, recovery and tests are the same.
//
// # Goroutines
//
//	writer         ring to segments                                       writer.go
//	flusher        makes written bytes durable                            flush.go
//	preallocator   keeps a durable, empty segment ahead                   prealloc.go
//	populator      readies pages of mapped segments ahead of the writer   writer.go
//	ring filler    puts memory behind the ring during its first lap       writer.go
//
// They share positions (atomics, each with one owner), two leaf locks and signals that make them look again. An
// idle log has no timer running. All of them end with the log; the fence (Log.end) sees to it that none
// moves a position afterwards.
//
// # The two ends of the log
//
// Replay begins where a snapshot says that all below is folded (begin.go), and the segments below that can be removed
// while readers and scans (logscan.go) go on (remove.go). What recovery does at the other end is in recover.go. A log
// that does not open is read by a Reader (offline.go) and cut by Repair (repair.go); neither needs a broker.
//
// # Other rooms
//
// MappedFile (mapped.go) gives the rooms with derived files the same care for allocation, population and flushes.
package mmaplog
