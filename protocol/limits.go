package protocol

// The limits of the wire, in one place. A broker may lower most of them by configuration and tells the
// ones in force in its HELLO answer. Lengths are bytes, times milliseconds.
const (
	MaxFrameBytes = 8 << 20 // header included
	MaxBodyBytes  = 4 << 20 // one message as stored

	MaxSendEntries  = 4096
	MaxAckEntries   = 1024 // ACK and CHANGE_INVISIBLE
	MaxPopMessages  = 256
	MaxPopBytes     = 1 << 20 // message records in one POP answer, always at least one message
	MaxPeekMessages = 256
	MaxFilterTags   = 16

	MaxNameBytes = 127 // topics and groups
	// MaxWireNameBytes is the longest name that a body may carry: the dead-letter topic of the group with the
	// longest name.
	MaxWireNameBytes   = MaxNameBytes + len(DeadLetterPrefix)
	MaxFieldBytes      = 255 // tag, key, order key, unique key, consumer id, client info, reason
	MaxCheckpointBytes = 1 << 10
	NonceBytes         = 16

	MaxAwaitMs = 5 * 60 * 1000

	MinInvisibleMs     = 10
	DefaultInvisibleMs = 30 * 1000
	MaxInvisibleMs     = 6 * 60 * 60 * 1000

	MinSessionTimeoutMs = 1000
	MaxSessionTimeoutMs = 5 * 60 * 1000
	MinHeartbeatMs      = 50

	MinHoldMs = 60 * 1000

	DefaultUniqueKeyMs = 10 * 60 * 1000
	MaxUniqueKeyMs     = 24 * 60 * 60 * 1000

	MaxInFlightPerQueue = 10_000 // leases of one group on one queue

	MaxPopSlot = 15
	// MaxPopSequence leaves room for a next one.
	MaxPopSequence = 1<<63 - 1

	MaxReclaimReceipts = 4096 // as many as a session may hold leases

	MaxQueuesPerTopic = 1024

	// ReceiptBytes is the length of every receipt this broker makes. Clients treat receipts as opaque.
	ReceiptBytes = 80
)
