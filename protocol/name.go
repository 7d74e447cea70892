package protocol

import (
	"fmt"
	"strings"
)

// DeadLetterPrefix begins the name of a group's dead-letter topic, the group's name follows. It is the
// only use of '%' in a name.
const DeadLetterPrefix = "%DLQ%"

// CheckName says what is wrong with s as the name of a new topic or group; kind is "topic" or "group".
// The error is a *RequestError. A name is 1 to MaxNameBytes letters, digits, '.', '_' and '-', and does
// not begin with '.': it may become part of a file name or a metric, and must survive both.
func CheckName(kind, s string) error {
	if len(s) == 0 {
		return &RequestError{Status: Invalid, Message: "the " + kind + " has no name"}
	}
	if len(s) > MaxNameBytes {
		return &RequestError{Invalid, fmt.Sprintf("%s name of %d bytes, limit %d", kind, len(s), MaxNameBytes), MaxNameBytes}
	}
	if s[0] == '%' {
		return &RequestError{Status: Invalid, Message: fmt.Sprintf("%s name %q: names that begin with %% are reserved for the broker's own", kind, s)}
	}
	if s[0] == '.' {
		return &RequestError{Status: Invalid, Message: fmt.Sprintf("%s name %q begins with a dot", kind, s)}
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return &RequestError{Status: Invalid, Message: fmt.Sprintf("%s name %q: letters, digits, '.', '_' and '-' are legal, %q is not", kind, s, c)}
		}
	}
	return nil
}

// CheckExistingName is CheckName for a name that need not be made by the caller: the dead-letter topic
// of a group is legal too.
func CheckExistingName(kind, s string) error {
	if group, ok := strings.CutPrefix(s, DeadLetterPrefix); ok && kind == "topic" {
		return CheckName("group", group)
	}
	return CheckName(kind, s)
}
