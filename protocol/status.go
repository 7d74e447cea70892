package protocol

// Status is the outcome of a request, or of one entry of a batch. The list is closed; the numbers are
// part of the wire format and are never reused. The comment at each says what the caller does.
type Status uint16

const (
	// OK: done, and as durable as the broker's fsync policy promises.
	OK Status = 0
	// Empty: nothing became visible within the await time. Pop again.
	Empty Status = 1

	// Invalid: the request breaks a rule or a limit that the reason names. Do not repeat it unchanged.
	Invalid Status = 2
	// Unsupported: a field or an opcode that this broker does not serve. Do not repeat it.
	Unsupported Status = 3
	// TooLarge: a body, a property set or a batch over its limit. Do not repeat it.
	TooLarge Status = 4
	// LimitExceeded: a count (topics, queues, sessions, leases ...) is at its limit. Repeat after some went.
	LimitExceeded Status = 5

	// TopicNotFound: no such topic. Create it, or send with the CREATE flag.
	TopicNotFound Status = 10
	// GroupNotFound: no such group. Create it, or register with the CREATE flag.
	GroupNotFound Status = 11
	// TopicExists: the name is taken. Use it, or choose another.
	TopicExists Status = 12
	// GroupExists: the name is taken. Use it, or choose another.
	GroupExists Status = 13
	// FilterConflict: the group already reads the topic with another tag filter. Use that one or another group.
	FilterConflict Status = 14
	// GroupModeConflict: the group consumes in another mode. Use that mode or another group.
	GroupModeConflict Status = 15

	// SessionNotFound: no live session of that id. Register again; every lease it held is released.
	SessionNotFound Status = 20
	// SessionFenced: a newer registration of the same consumer id took over. Stop; do not register again.
	SessionFenced Status = 21

	// InvalidReceipt: truncated, forged, or of another group, session or broker. Do not repeat it.
	InvalidReceipt Status = 30
	// Stale: the receipt is no longer the one that counts; the detail says why. Stop work on the message.
	Stale Status = 31
	// AlreadySettled: the message was settled by another receipt. Stop work on the message.
	AlreadySettled Status = 32
	// RenewLimit: no renewals, or no time under the cap on the total, are left. Finish before the lease ends.
	RenewLimit Status = 33
	// Superseded: a later pop of the same pop slot replaced this waiting one. Ignore.
	Superseded Status = 34

	// StoreFull: no disk space for this kind of request. Repeat later.
	StoreFull Status = 40
	// StoreFailed: the store failed and the broker is going down; the outcome is unknown. Reconnect, and
	// repeat with the same sequence number if the request has one.
	StoreFailed Status = 41
	// Draining: the broker is stopping in order. Reconnect later, or to another.
	Draining Status = 42
	// Unreadable: the stored message is damaged. Nothing to be done by the caller; the operator is told.
	Unreadable Status = 43
	// SeqTooOld: the producer's sequence lies below the window in which duplicates are known. Never OK.
	SeqTooOld Status = 44

	// BadFrame: magic, version, flags or length are wrong. The connection is closed.
	BadFrame Status = 50
	// FrameTooLarge: longer than the frame limit. The connection is closed.
	FrameTooLarge Status = 51
	// HelloRequired: the first frame of a connection must be HELLO. The connection is closed.
	HelloRequired Status = 52
	// FlowViolation: more unanswered request bytes than HELLO granted. The connection is closed.
	FlowViolation Status = 53
	// SlowConsumer: answers were not read. The connection is closed.
	SlowConsumer Status = 54
	// Timeout: no HELLO, or no rest of a frame, in time. The connection is closed.
	Timeout Status = 55
	// TooManyConnections: the broker is at its connection limit. Reconnect later.
	TooManyConnections Status = 56
	// Internal: a fault of the broker. The connection is closed; the outcome is unknown.
	Internal Status = 57
)

// Reason says why an entry of an ACK or CHANGE_INVISIBLE was refused, or why a session ended. Part of
// the wire format.
type Reason uint8

const (
	ReasonNone           Reason = 0
	ReasonExpired        Reason = 1 // the lease ended by time and the message waits or is ready
	ReasonRegranted      Reason = 2 // granted again: Token is the newer fencing token
	ReasonSettled        Reason = 3 // settled by another receipt
	ReasonReleased       Reason = 4 // the holder gave it back (failed, postponed, or invisible time 0)
	ReasonSessionExpired Reason = 5 // the session stopped heartbeating
	ReasonSessionFenced  Reason = 6 // a newer registration of the same consumer id
	ReasonSessionLeft    Reason = 7 // the session unregistered
	ReasonOrdinal        Reason = 8 // a change-invisible ordinal that is neither the next nor one done
	ReasonReset          Reason = 9 // the topic, the group or the group's position on the topic was made anew
)
