package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Errors to be found with errors.Is. Those below the line are statuses of the broker: a *StatusError
// carries the rest.
var (
	// ErrClosed: Close was called.
	ErrClosed = errors.New("leasemq: closed")
	// ErrConnectionLost: the connection went while the call was unanswered. Wrapped beside it: why.
	ErrConnectionLost = errors.New("leasemq: connection lost")
	// ErrOutcomeUnknown: the call may have been carried out or not, and the client does not repeat it. Of a SEND: not any
	// more (ProducerOptions.RetryFor), or its message has fallen out of what the broker knows (SEQ_TOO_OLD). Whoever
	// sends it once more may store it twice, unless it has a unique key.
	ErrOutcomeUnknown = errors.New("leasemq: outcome unknown")

	ErrInvalid         = errors.New("leasemq: invalid request")
	ErrUnsupported     = errors.New("leasemq: not supported by the broker")
	ErrTooLarge        = errors.New("leasemq: too large")
	ErrTopicNotFound   = errors.New("leasemq: topic not found")
	ErrGroupNotFound   = errors.New("leasemq: group not found")
	ErrSessionNotFound = errors.New("leasemq: session not found")
	ErrSessionFenced   = errors.New("leasemq: session fenced")
	ErrInvalidReceipt  = errors.New("leasemq: invalid receipt")
	ErrStale           = errors.New("leasemq: stale receipt")
	ErrAlreadySettled  = errors.New("leasemq: already settled")
	ErrRenewLimit      = errors.New("leasemq: no renewals left")
	ErrStoreFull       = errors.New("leasemq: store full")
	ErrStoreFailed     = errors.New("leasemq: store failed")
	ErrDraining        = errors.New("leasemq: broker draining")
)

// sentinelOf is the error that errors.Is finds for a status.
var sentinelOf = map[protocol.Status]error{
	protocol.Invalid:         ErrInvalid,
	protocol.Unsupported:     ErrUnsupported,
	protocol.TooLarge:        ErrTooLarge,
	protocol.TopicNotFound:   ErrTopicNotFound,
	protocol.GroupNotFound:   ErrGroupNotFound,
	protocol.SessionNotFound: ErrSessionNotFound,
	protocol.SessionFenced:   ErrSessionFenced,
	protocol.InvalidReceipt:  ErrInvalidReceipt,
	protocol.Stale:           ErrStale,
	protocol.AlreadySettled:  ErrAlreadySettled,
	protocol.RenewLimit:      ErrRenewLimit,
	protocol.StoreFull:       ErrStoreFull,
	protocol.StoreFailed:     ErrStoreFailed,
	protocol.Draining:        ErrDraining,
}

// StatusError is a call, or one entry of a batch, that did not end with OK. Most come from the broker; a
// request that breaks a limit of the wire format is refused here, with the status the broker would give.
type StatusError struct {
	Status  protocol.Status
	Op      protocol.Opcode
	Message string
	Detail  uint64          // the limit or the expected number that Message speaks of, if any
	Reason  protocol.Reason // why a receipt or a session no longer counts, if that is so

	// What is known of a receipt that was refused: the newest fencing token of its message, and how long ago
	// happened what Reason names. Zero: unknown.
	Token uint64
	Ago   time.Duration

	cause error
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("leasemq: %s: %s", e.Op, e.Status)
	if e.Reason != protocol.ReasonNone {
		text += " (" + e.Reason.String() + ")"
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text + e.facts()
}

// facts is what Token and Ago say, in words.
func (e *StatusError) facts() (text string) {
	switch {
	case e.Token == 0:
	case e.Reason == protocol.ReasonRegranted:
		text += fmt.Sprintf(", as token %d", e.Token)
	case e.Reason == protocol.ReasonSettled:
		text += fmt.Sprintf(", by token %d", e.Token)
	default:
		text += fmt.Sprintf(", the newest token is %d", e.Token)
	}
	if e.Ago > 0 {
		text += fmt.Sprintf(", %v ago", e.Ago)
	}
	return text
}

// Unwrap returns the error of the codec or the protocol when the request was refused by this side.
func (e *StatusError) Unwrap() error { return e.cause }

// Is makes errors.Is find the sentinel of the status, and ErrOutcomeUnknown where that is what the
// status means for the operation.
func (e *StatusError) Is(target error) bool {
	if target == ErrOutcomeUnknown {
		return e.outcomeUnknown()
	}
	sentinel := sentinelOf[e.Status]
	return sentinel != nil && sentinel == target
}

func (e *StatusError) outcomeUnknown() bool {
	switch e.Status {
	case protocol.StoreFailed, protocol.Internal, protocol.SeqTooOld:
	default:
		if e.Status.Advice() != "" { // a status that this version does not know is one like INTERNAL
			return false
		}
	}
	return lossOf(e.Op) == lossUnknown
}

// refused turns an error of protocol or codec about something that was not sent into a StatusError.
func refused(op protocol.Opcode, err error) error {
	var known *StatusError
	if errors.As(err, &known) {
		return err
	}
	e := &StatusError{Op: op, Status: protocol.Invalid, Message: err.Error(), cause: err}
	var request *protocol.RequestError
	switch {
	case errors.As(err, &request):
		e.Status, e.Message, e.Detail = request.Status, request.Message, request.Detail
	case errors.Is(err, codec.ErrTooLarge):
		e.Status = protocol.TooLarge
	}
	return e
}

// invalid refuses an argument.
func invalid(op protocol.Opcode, format string, args ...any) error {
	return &StatusError{Op: op, Status: protocol.Invalid, Message: fmt.Sprintf(format, args...)}
}

// statusError is the answer h with the body of an error.
func statusError(h protocol.Header, body []byte) *StatusError {
	e := &StatusError{Op: h.Opcode, Status: h.Status}
	var b protocol.ErrorBody
	if b.Decode(body) == nil {
		e.Message, e.Detail, e.Reason = b.Message, b.Detail, b.Reason
	}
	return e
}
