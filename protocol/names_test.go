package protocol

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestEveryNumberHasItsWords counts against the source's own lists: a status without a name is a bug
// that a caller meets in the worst moment.
func TestEveryNumberHasItsWords(t *testing.T) {
	if n := len(Statuses()); n != 32 {
		t.Errorf("%d statuses have words, there are 32", n)
	}
	if n := len(Opcodes()); n != 28 {
		t.Errorf("%d opcodes have names, there are 28", n)
	}
	for _, s := range Statuses() {
		if strings.HasPrefix(s.String(), "STATUS_") || !strings.HasSuffix(s.Advice(), ".") {
			t.Errorf("status %d: %s, %q", s, s, s.Advice())
		}
	}
	seen := map[string]bool{}
	for _, s := range Statuses() {
		if seen[s.String()] {
			t.Errorf("two statuses are called %s", s)
		}
		seen[s.String()] = true
	}
	for _, want := range []struct {
		value fmt.Stringer
		name  string
	}{
		{SessionNotFound, "SESSION_NOT_FOUND"}, {Status(9), "STATUS_9"}, {Status(65535), "STATUS_65535"},
		{OpChangeInvisible, "CHANGE_INVISIBLE"}, {Opcode(0xff), "OPCODE_0xff"}, {Opcode(0), "OPCODE_0x00"},
		{ReasonSessionLeft, "SESSION_LEFT"}, {Reason(200), "REASON_200"},
		{CauseRenew, "RENEW"}, {CauseFailed, "FAILED"}, {CausePostponed, "POSTPONED"}, {Cause(3), "CAUSE_3"},
		{BackOffExponential, "EXPONENTIAL"}, {BackOffNone, "NONE"}, {BackOffFixed, "FIXED"}, {BackOffLevels, "LEVELS"}, {BackOff(9), "BACK_OFF_9"},
	} {
		if got := want.value.String(); got != want.name {
			t.Errorf("%#v is called %q, want %q", want.value, got, want.name)
		}
	}
	if Status(9).Advice() != "" || Status(65535).Advice() != "" {
		t.Error("advice on an unknown status")
	}
}

func TestCheckName(t *testing.T) {
	longest := strings.Repeat("a", MaxNameBytes)
	for _, name := range []string{"a", "orders", "Orders-2.eu_west", "9", "-", "_x", longest} {
		if err := CheckName("topic", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, words := range map[string]string{
		"":              "no name",
		longest + "a":   "limit 127",
		".hidden":       "dot",
		"%DLQ%billing":  "reserved",
		"a%b":           "not",
		"a/b":           "not",
		"a b":           "not",
		"größe":         "not",
		"a\x00":         "not",
		"line\nbreak":   "not",
		"%":             "reserved",
		"..":            "dot",
		"a:b":           "not",
		"trailing\xff":  "not",
		"semi;colon":    "not",
		"double\"quote": "not",
	} {
		err := CheckName("topic", name)
		var requestError *RequestError
		if !errors.As(err, &requestError) || requestError.Status != Invalid || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, ok := range map[string]bool{"orders": true, "%DLQ%billing": true, "%DLQ%" + longest: true, "%DLQ%": false, "%DLQ%%DLQ%billing": false, "%SYS%x": false} {
		if err := CheckExistingName("topic", name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	if CheckExistingName("group", "%DLQ%billing") == nil {
		t.Error("a group with the name of a dead-letter topic")
	}
}

// TestRefusal: each kind of error becomes the answer that its sender can act on.
func TestRefusal(t *testing.T) {
	_, frameError := ParseHeader(make([]byte, HeaderBytes))
	bodyError := new(PopRequest).Decode(nil)
	requestError := (&PopRequest{Topic: "orders", Max: 1, Slot: 16}).Validate()
	for _, c := range []struct {
		err    error
		status Status
		detail uint64
		words  string
	}{
		{frameError, BadFrame, 0, "'L' 'Q'"},
		{bodyError, Invalid, 0, "POP request: session"},
		{fmt.Errorf("pop: %w", requestError), Invalid, MaxPopSlot, "pop slot 16"},
		{io.ErrUnexpectedEOF, Internal, 0, "unexpected EOF"},
	} {
		status, body := Refusal(c.err)
		if status != c.status || body.Detail != c.detail || !strings.Contains(body.Message, c.words) {
			t.Errorf("%v: %s %+v", c.err, status, body)
		}
		if c.err != io.ErrUnexpectedEOF && !strings.Contains(c.err.Error(), c.status.String()) {
			t.Errorf("%v does not name its status", c.err)
		}
	}
}
