package protocol

import (
	"errors"
	"fmt"
)

// Three things can be wrong with what a peer sent, with three consequences:
//
//   - the frame (FrameError): the bytes that follow have no known meaning, the connection is closed;
//   - the body (BodyError): the frame's end is known, the request is answered with its status;
//   - a value (RequestError): the body says clearly what is not allowed, likewise answered.

// FrameError is a broken frame. The connection ends with a GOODBYE that carries Status and Reason.
type FrameError struct {
	Status Status // BadFrame or FrameTooLarge
	Reason string
}

func (e *FrameError) Error() string { return fmt.Sprintf("%s: %s", e.Status, e.Reason) }

// BodyError is a body that its layout does not allow.
type BodyError struct {
	Status Status // Invalid; TooLarge when something is over a limit
	Body   string // "POP request"
	Field  string // "filter tags[2]"
	Reason string
	Detail uint64 // the limit, if one was passed
}

func (e *BodyError) Error() string {
	return fmt.Sprintf("%s: %s: %s: %s", e.Status, e.Body, e.Field, e.Reason)
}

// RequestError is a well-formed request with a value that is not allowed or not served.
type RequestError struct {
	Status  Status
	Message string
	Detail  uint64 // the limit that was passed, if any
}

func (e *RequestError) Error() string { return fmt.Sprintf("%s: %s", e.Status, e.Message) }

// Refusal is the status and the body of the answer to a request that failed with err, one of the three
// errors above. Any other error is INTERNAL.
func Refusal(err error) (Status, ErrorBody) {
	var frame *FrameError
	var body *BodyError
	var request *RequestError
	switch {
	case errors.As(err, &request):
		return request.Status, ErrorBody{Message: request.Message, Detail: request.Detail}
	case errors.As(err, &body):
		return body.Status, ErrorBody{Message: body.Body + ": " + body.Field + ": " + body.Reason, Detail: body.Detail}
	case errors.As(err, &frame):
		return frame.Status, ErrorBody{Message: frame.Reason}
	}
	return Internal, ErrorBody{Message: err.Error()}
}
