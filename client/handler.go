package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Handler does the work of one message. What it returns says what becomes of the message:
//
//	nil               acked: the group never gets it again
//	ErrDuplicate      acked, and counted as a duplicate: the work was found done already
//	ErrPostpone(d)    given back, visible after d; counted nowhere
//	any other error   given back as failed, visible after the group's back-off; the text is the reason
//	a panic           as an error; it is recovered and logged with its stack
//
// The context carries the values of Run's, but not its end. It ends when the work should: context.Cause tells
// why, by ErrLeaseLost, ErrSessionLost, ErrStalled or ErrShutdown. An error that is returned after that gives
// the message back without counting a failure, if the lease is still there (but after ErrStalled it is a failure, and so
// is a panic always); nil is still tried as an ack.
type Handler func(ctx context.Context, d *Delivery) error

// BatchHandler does the work of several messages: nil acks all of them, a *BatchError gives each its own
// outcome, any other error is the outcome of each. The context ends when the lease of any of them is lost.
type BatchHandler func(ctx context.Context, batch []*Delivery) error

// ErrDuplicate is what a handler returns that found the work done already.
var ErrDuplicate = errors.New("leasemq: the work was done already")

// Why a handler's context ended; to be found in context.Cause with errors.Is, and in the error of OnSettled.
var (
	// ErrLeaseLost: the lease has ended, by this side's clock or by the broker's word. Somebody else may have
	// the message.
	ErrLeaseLost = errors.New("leasemq: lease lost")
	// ErrSessionLost: the session has ended, or no heartbeat was answered in time, so that it may have ended.
	ErrSessionLost = errors.New("leasemq: session lost")
	// ErrStalled: the handler has told of no progress for ConsumerOptions.ProgressTimeout.
	ErrStalled = errors.New("leasemq: no progress")
	// ErrShutdown: Run is ending, and the time for handlers to finish is over.
	ErrShutdown = errors.New("leasemq: shutting down")
)

// ErrPostpone is the error of a handler that cannot do the work now: return ErrPostpone(time.Minute). The message is
// visible again after that time, or after the longest lease of the group if that is shorter.
type ErrPostpone time.Duration

func (e ErrPostpone) Error() string { return "leasemq: postponed by " + time.Duration(e).String() }

// BatchError gives each message of a batch its own outcome.
type BatchError struct {
	Errs []error // one for each message, in order; nil: acked
}

func (e *BatchError) Error() string {
	n, first := 0, error(nil)
	for _, err := range e.Errs {
		if err != nil {
			if n++; first == nil {
				first = err
			}
		}
	}
	if n == 0 {
		return fmt.Sprintf("leasemq: none of %d messages failed", len(e.Errs))
	}
	return fmt.Sprintf("leasemq: %d of %d messages: %v", n, len(e.Errs), first)
}

// HungHandler is a message whose handler did not return.
type HungHandler struct {
	Topic   string
	Queue   int
	Offset  uint64
	ID      MessageID
	Token   uint64
	Running time.Duration
}

// HungError names the handlers that had not returned when Run did. Their goroutines still run; everything else of Run
// has ended.
type HungError struct {
	Handlers []HungHandler
}

func (e *HungError) Error() string {
	const most = 8
	var b strings.Builder
	fmt.Fprintf(&b, "leasemq: %d messages are with handlers that do not return:", len(e.Handlers))
	for i := range e.Handlers[:min(len(e.Handlers), most)] {
		h := &e.Handlers[i]
		fmt.Fprintf(&b, " %s/%d/%d (%s, token %d, for %v)", h.Topic, h.Queue, h.Offset, h.ID, h.Token, h.Running.Round(time.Millisecond))
	}
	if len(e.Handlers) > most {
		b.WriteString(" ...")
	}
	return b.String()
}

// panicError is a panic of a handler. It is a failure whatever became of the context: it tells of the
// handler, not of why it was to stop.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

var errGoexit = errors.New("the handler ended its goroutine")

// lostBecause is the error sentinel with what is known about it.
func lostBecause(sentinel, why error) error {
	if why == nil {
		return sentinel
	}
	return fmt.Errorf("%w: %w", sentinel, why)
}

// outcomeKind is what a message is to become.
type outcomeKind uint8

const (
	outcomeAck outcomeKind = iota
	outcomeDuplicate
	outcomeFailed
	outcomePostponed
	outcomeReturned // given back, counted nowhere and visible at once, since it is not the message's fault
)

type outcome struct {
	kind   outcomeKind
	delay  time.Duration
	reason string
}

// acks tells whether the message is settled by the outcome; else it is given back by a change of its lease.
func (o *outcome) acks() bool { return o.kind <= outcomeDuplicate }

// outcomeOf is what err asks for, returned by a handler whose context had ended because of cause (nil: it
// had not). Methods of the user's errors are called: they may panic, too.
func outcomeOf(err, cause error) (o outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = outcome{kind: outcomeFailed, reason: (&panicError{v}).Error()}
		}
	}()
	var panicked *panicError
	var postpone ErrPostpone
	switch {
	case err == nil:
		return outcome{kind: outcomeAck}
	case errors.As(err, &panicked):
		return outcome{kind: outcomeFailed, reason: panicked.Error()}
	case errors.Is(err, ErrDuplicate):
		return outcome{kind: outcomeDuplicate}
	case errors.As(err, &postpone):
		return outcome{kind: outcomePostponed, delay: max(time.Duration(postpone), 0)}
	case cause != nil && !errors.Is(cause, ErrStalled):
		return outcome{kind: outcomeReturned, reason: err.Error()}
	}
	return outcome{kind: outcomeFailed, reason: err.Error()}
}

// outcomesOf is outcomeOf for each of n messages of a batch.
func outcomesOf(err, cause error, n int) []outcome {
	outcomes := make([]outcome, n)
	each := batchErrors(err)
	if each != nil && len(each.Errs) != n {
		wrong := fmt.Errorf("leasemq: a BatchError of %d errors for %d messages", len(each.Errs), n)
		each, err, cause = nil, wrong, nil
	}
	for i := range outcomes {
		if each != nil {
			err = each.Errs[i]
		}
		outcomes[i] = outcomeOf(err, cause)
	}
	return outcomes
}

func batchErrors(err error) (each *BatchError) {
	defer func() {
		if recover() != nil {
			each = nil // outcomeOf finds the same, and says so
		}
	}()
	errors.As(err, &each)
	return each
}
