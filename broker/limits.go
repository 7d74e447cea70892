package broker

import (
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Limits are the counts that the engine keeps within. Zero fields take the default.
type Limits struct {
	Topics           int // 10,000
	Groups           int // 10,000
	Queues           int // 65,536 in all topics
	Cursors          int // 1 M: queues times the groups that read them
	Sessions         int // 200,000
	LeasesPerSession int // 4,096, so that the record that ends a session is bounded
	UnsettledQueue   int // 1 M a queue and group, leased or waiting
	Unsettled        int // 16 M in all
	MaxBodyBytes     int // 4 MiB: one message as stored
	CreditBytes      int // 4 MiB of unanswered request bytes a connection
}

func (l Limits) withDefaults() Limits {
	for _, x := range []struct {
		v    *int
		most int
	}{
		{&l.Topics, 10_000}, {&l.Groups, 10_000}, {&l.Queues, 65_536}, {&l.Cursors, 1 << 20},
		{&l.Sessions, 200_000}, {&l.LeasesPerSession, 4096}, {&l.UnsettledQueue, 1 << 20},
		{&l.Unsettled, 16 << 20}, {&l.MaxBodyBytes, 4 << 20}, {&l.CreditBytes, 4 << 20},
	} {
		if *x.v <= 0 || *x.v > x.most {
			*x.v = x.most
		}
	}
	return l
}

// fit lowers what one record must hold to the longest record of the log.
func (l *Limits) fit(maxRecord int) {
	const overhead = codec.HeaderBytes + codec.MessageAssignedBytes + 64
	l.LeasesPerSession = max(1, min(l.LeasesPerSession, (maxRecord-overhead)/32))
	l.MaxBodyBytes = max(0, min(l.MaxBodyBytes, maxRecord-overhead-4*protocol.MaxFieldBytes-codec.MaxPropertyBytes))
}

// Worst cases in log bytes, for the check against the ring that comes before everything else.
const (
	// defaultQueues is the number of queues of a topic made on first use.
	defaultQueues = 8

	// A pop may make a topic and a subscription of 1,024 queues, grant runs of maxGrantRuns, and give back the 256
	// leases of an answer that was lost.
	maxGrantRuns   = 512
	worstPop       = 64 << 10
	worstSmall     = 4 << 10
	worstSessionID = 160 << 10 // a SESSION_END of 4,096 leases, 30 bytes each, and a start
	perSettle      = 128       // an own record for each receipt at worst
	perChange      = 160
	perReclaim     = 128 // the same

	// sectionEntries is how many entries one hold of the section handles.
	sectionEntries = 1000
	// expireSlice is how many timers one hold of the section handles.
	expireSlice = 1000
	// skipSlice is how many offsets one pop may pass over by its filter in one hold.
	skipSlice = 4096
	// serveSlice is how many messages one hold of the section grants to parked pops.
	serveSlice = 4096

	// dispatchSlice is how many runs of messages one hold makes visible.
	dispatchSlice = 16 << 10
	// maxOwed is what the answers of a connection's parked pops may come to: they may all be served at once.
	maxOwed = 32 << 20
	// maxPeeks is how many PEEKs a connection may have with the workers.
	maxPeeks = 4

	// spanFactor: a read that spans other records is worth it up to this many times the useful bytes.
	spanFactor = 8
	maxSpan    = 2 << 20
)
