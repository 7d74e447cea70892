// Package inspect looks at a data directory from outside: it prints the records of the log (Dump), checks everything that
// can be checked without a broker (Verify), and cuts off what keeps a broker from starting (PlanRepair, Repair).
//
// Dump and Verify take no lock and change nothing, so they may look at the directory of a running broker. What such a
// broker does meanwhile they see in part, and do not judge. Repair moves files aside and deletes none; it locks the directory.
//
// # What is a finding
//
// Verify tells findings from notes. A note is what a kill, a power loss or a running broker may leave and what
// the next start puts right by itself: a torn tail, index entries that were not stored yet, unfinished files. A finding is what none of
// them leaves: something damaged it, or a fault in the broker did.
//
// # Memory
//
// The log is read once, front to back, at the speed of the disk. Beside a few buffers Verify keeps 12 bytes for each message that is
// still in its queue (where its record lies, and a checksum of the rest of what its index entry must say): about 1 % of a
// log of messages of 1 KiB. Dump keeps the names of topics and groups, and who the sessions belong to.
//
// The state of the broker is not folded as a broker does it (package broker): only where queues begin and end, names,
// and the numbers of grants are followed. Leases are taken as they are.
package inspect

import (
	"path/filepath"

	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/snapshot"
)

// The parts of a data directory (docs/OPERATIONS.md).
const (
	logDirName      = "log"
	snapshotDirName = "snapshots"
	queuesDirName   = "queues"
	keyFileName     = "receipt.key"

	// firstPosition is that of the first record of a log from which nothing was removed.
	firstPosition = 64
)

func storeOf(dir string) *snapshot.Store {
	return snapshot.NewStore(mmaplog.OS, filepath.Join(dir, snapshotDirName))
}
