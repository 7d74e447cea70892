package protocol

import "fmt"

// The names of the numbers as they stand in PROTOCOL.md, in logs and on the command line.

type statusText struct{ name, advice string }

var statusTexts = [...]statusText{
	OK:            {"OK", "Done, and as durable as the broker's fsync policy promises."},
	Empty:         {"EMPTY", "Nothing became visible within the await time. Pop again."},
	Invalid:       {"INVALID", "The request breaks a rule or a limit that the message names. Do not repeat it unchanged."},
	Unsupported:   {"UNSUPPORTED", "This broker does not serve the opcode or a field of the request. Do not repeat it."},
	TooLarge:      {"TOO_LARGE", "A body, a property set or a batch is over its limit. Do not repeat it; make it smaller."},
	LimitExceeded: {"LIMIT_EXCEEDED", "A count (topics, queues, sessions, leases ...) is at its limit. Repeat after some went."},

	TopicNotFound:     {"TOPIC_NOT_FOUND", "There is no such topic. Create it, or use the CREATE flag."},
	GroupNotFound:     {"GROUP_NOT_FOUND", "There is no such group. Create it, or register with the CREATE flag."},
	TopicExists:       {"TOPIC_EXISTS", "The topic's name is taken. Use that topic, or choose another name."},
	GroupExists:       {"GROUP_EXISTS", "The group's name is taken. Use that group, or choose another name."},
	FilterConflict:    {"FILTER_CONFLICT", "The group already reads the topic with another tag filter. Use that filter, or another group."},
	GroupModeConflict: {"GROUP_MODE_CONFLICT", "The group consumes in another mode. Use that mode, or another group."},

	SessionNotFound: {"SESSION_NOT_FOUND", "There is no live session of that id, and every lease it held is released. Stop the work on them and register again."},
	SessionFenced:   {"SESSION_FENCED", "A newer registration of the same consumer id took over. Stop; do not register again."},

	InvalidReceipt: {"INVALID_RECEIPT", "The receipt is truncated, forged, or of another group, session or broker. Do not repeat it."},
	Stale:          {"STALE", "The receipt is no longer the one that counts; the reason says why. Stop work on the message."},
	AlreadySettled: {"ALREADY_SETTLED", "The message was settled by another receipt. Stop work on the message."},
	RenewLimit:     {"RENEW_LIMIT", "No renewals, or no time under the cap on the total, are left. Finish before the lease ends."},
	Superseded:     {"SUPERSEDED", "A later pop of the same pop slot replaced this waiting one. Ignore it."},

	StoreFull:   {"STORE_FULL", "There is no disk space for this kind of request. Repeat later."},
	StoreFailed: {"STORE_FAILED", "The store failed and the broker is going down; the outcome is unknown. Reconnect, and repeat with the same sequence number if the request has one."},
	Draining:    {"DRAINING", "The broker is stopping in order. Reconnect later, or to another."},
	Unreadable:  {"UNREADABLE", "The stored message is damaged. There is nothing for the caller to do; the operator is told."},
	SeqTooOld:   {"SEQ_TOO_OLD", "The producer's sequence number lies below the window in which duplicates are known. Whether it was stored is unknown; do not take it for OK."},

	BadFrame:           {"BAD_FRAME", "Magic, version, flags or length of a frame are wrong, and the connection is closed. Mend the client."},
	FrameTooLarge:      {"FRAME_TOO_LARGE", "A frame is longer than the limit, and the connection is closed. Send smaller batches."},
	HelloRequired:      {"HELLO_REQUIRED", "The first frame of a connection was not HELLO, and the connection is closed. Mend the client."},
	FlowViolation:      {"FLOW_VIOLATION", "More request bytes were unanswered than HELLO granted, and the connection is closed. Keep within the credit."},
	SlowConsumer:       {"SLOW_CONSUMER", "Answers were not read, and the connection is closed. Reconnect and read faster, or ask for less at a time."},
	Timeout:            {"TIMEOUT", "HELLO, or the rest of a frame, did not come in time, and the connection is closed. Reconnect."},
	TooManyConnections: {"TOO_MANY_CONNECTIONS", "The broker is at its connection limit. Reconnect later."},
	Internal:           {"INTERNAL", "A fault of the broker: the outcome is unknown, and the connection is closed. Reconnect, and repeat with the same sequence number if the request has one."},
}

func (s Status) text() statusText {
	if int(s) < len(statusTexts) {
		return statusTexts[s]
	}
	return statusText{}
}

// String is the name of s in the protocol's words.
func (s Status) String() string {
	if name := s.text().name; name != "" {
		return name
	}
	return fmt.Sprintf("STATUS_%d", uint16(s))
}

// Advice is what the caller does about s; empty for a status that this package does not know.
func (s Status) Advice() string { return s.text().advice }

// Statuses lists every status in the order of their numbers.
func Statuses() []Status {
	var list []Status
	for s, text := range statusTexts {
		if text.name != "" {
			list = append(list, Status(s))
		}
	}
	return list
}

var opcodeNames = [...]string{
	OpHello:           "HELLO",
	OpRegister:        "REGISTER",
	OpHeartbeat:       "HEARTBEAT",
	OpUnregister:      "UNREGISTER",
	OpSend:            "SEND",
	OpPop:             "POP",
	OpAck:             "ACK",
	OpChangeInvisible: "CHANGE_INVISIBLE",
	OpReject:          "REJECT",
	OpPull:            "PULL",
	OpCommitOffset:    "COMMIT_OFFSET",
	OpQueryOffset:     "QUERY_OFFSET",
	OpRecall:          "RECALL",
	OpPeek:            "PEEK",
	OpCreateTopic:     "CREATE_TOPIC",
	OpUpdateTopic:     "UPDATE_TOPIC",
	OpDeleteTopic:     "DELETE_TOPIC",
	OpListTopics:      "LIST_TOPICS",
	OpPurgeTopic:      "PURGE_TOPIC",
	OpCreateGroup:     "CREATE_GROUP",
	OpUpdateGroup:     "UPDATE_GROUP",
	OpDeleteGroup:     "DELETE_GROUP",
	OpListGroups:      "LIST_GROUPS",
	OpShowGroup:       "SHOW_GROUP",
	OpStats:           "STATS",
	OpSessionEnded:    "SESSION_ENDED",
	OpDrain:           "DRAIN",
	OpGoodbye:         "GOODBYE",
}

// String is the name of o in the protocol's words.
func (o Opcode) String() string {
	if int(o) < len(opcodeNames) && opcodeNames[o] != "" {
		return opcodeNames[o]
	}
	return fmt.Sprintf("OPCODE_%#02x", uint8(o))
}

// Opcodes lists every opcode in the order of their numbers.
func Opcodes() []Opcode {
	var list []Opcode
	for o, name := range opcodeNames {
		if name != "" {
			list = append(list, Opcode(o))
		}
	}
	return list
}

var reasonNames = [...]string{
	ReasonNone:           "NONE",
	ReasonExpired:        "EXPIRED",
	ReasonRegranted:      "REGRANTED",
	ReasonSettled:        "SETTLED",
	ReasonReleased:       "RELEASED",
	ReasonSessionExpired: "SESSION_EXPIRED",
	ReasonSessionFenced:  "SESSION_FENCED",
	ReasonSessionLeft:    "SESSION_LEFT",
	ReasonOrdinal:        "ORDINAL",
	ReasonReset:          "RESET",
}

// String is the name of r in the protocol's words.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("REASON_%d", uint8(r))
}

// Reasons lists every reason in the order of their numbers.
func Reasons() []Reason {
	list := make([]Reason, len(reasonNames))
	for i := range list {
		list[i] = Reason(i)
	}
	return list
}

// String is the name of c in the protocol's words.
func (c Cause) String() string {
	switch c {
	case CauseRenew:
		return "RENEW"
	case CauseFailed:
		return "FAILED"
	case CausePostponed:
		return "POSTPONED"
	}
	return fmt.Sprintf("CAUSE_%d", uint8(c))
}

// String is the name of b in the protocol's words.
func (b BackOff) String() string {
	switch b {
	case BackOffExponential, BackOffExponentialAgain:
		return "EXPONENTIAL"
	case BackOffNone:
		return "NONE"
	case BackOffFixed:
		return "FIXED"
	case BackOffLevels:
		return "LEVELS"
	}
	return fmt.Sprintf("BACK_OFF_%d", uint8(b))
}
