package semantic

import (
	"context"
	"errors"
	"fmt"
)

// A Status says how a call or a row ended. It is an error itself, so that each
// status serves as the target of errors.Is. The values are those of
// semantic_status in the C API.
type Status int32

// The statuses. OK is never returned as an error.
const (
	OK                   Status = 0
	ErrInvalidArgument   Status = 1  // an argument or option is wrong
	ErrNotFound          Status = 2  // a file, model, prompt or base is not there
	ErrAlreadyExists     Status = 3  // the name is taken; running with other options
	ErrUnsupported       Status = 4  // this library, model or provider cannot do it
	ErrNotReady          Status = 5  // the model is loading or stopping
	ErrClosed            Status = 6  // the model or runtime is closed
	ErrOverloaded        Status = 7  // the model's queue is full
	ErrDeadline          Status = 8  // the deadline has passed
	ErrTooLong           Status = 9  // a text is longer than allowed
	ErrBadArtifact       Status = 10 // a model folder is damaged or contradictory
	ErrDeviceUnavailable Status = 11 // the device asked for cannot run the model
	ErrOutOfMemory       Status = 12 // the system refused memory
	ErrInterpreter       Status = 13 // Python could not start or does not fit
	ErrInternal          Status = 14 // a fault of the library
	ErrCancelled         Status = 15 // the context or Runtime.Cancel ended the call
	ErrPartial           Status = 16 // some rows failed; the result is there
)

var statusNames = [...]string{
	"OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "UNSUPPORTED", "NOT_READY",
	"CLOSED", "OVERLOADED", "DEADLINE", "TOO_LONG", "BAD_ARTIFACT", "DEVICE_UNAVAILABLE",
	"OUT_OF_MEMORY", "INTERPRETER", "INTERNAL", "CANCELLED", "PARTIAL",
}

// Error returns the status in words, such as "NOT_FOUND".
func (s Status) Error() string {
	return nameOf(statusNames[:], int32(s))
}

// An Error is what every failing function of this package returns.
type Error struct {
	Status  Status
	Input   int    // the row it concerns, -1: none
	Message string // one line; never holds the text that was given

	row error // ErrPartial: the error of the first failed row or request
}

func (e *Error) Error() string {
	if e.Input >= 0 {
		return fmt.Sprintf("semantic: %s: row %d: %s", e.Status.Error(), e.Input, e.Message)
	}
	return fmt.Sprintf("semantic: %s: %s", e.Status.Error(), e.Message)
}

// Is reports whether target is the error's status or the context error that
// means the same.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Status == ErrDeadline
	case context.Canceled:
		return e.Status == ErrCancelled
	}
	return target == error(e.Status)
}

// Unwrap returns the error of the first failed row or request of an ErrPartial, else nil.
func (e *Error) Unwrap() error { return e.row }

func newError(status Status, format string, args ...any) *Error {
	return &Error{Status: status, Input: -1, Message: fmt.Sprintf(format, args...)}
}

// contextError returns nil while ctx is alive.
func contextError(ctx context.Context) error {
	if ctx == nil {
		return newError(ErrInvalidArgument, "the context is nil; pass context.Background()")
	}
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return newError(ErrDeadline, "the deadline of the context has passed")
	default:
		return newError(ErrCancelled, "the context was cancelled")
	}
}

func closedError(what string) error {
	return newError(ErrClosed, "the %s is closed", what)
}

// nameOf returns names[i], for a number of a newer library "UNKNOWN".
func nameOf(names []string, i int32) string {
	if i < 0 || int(i) >= len(names) {
		return "UNKNOWN"
	}
	return names[i]
}
