package native

import "errors"

// The kinds of errors, for errors.Is. A deadline that passed is
// context.DeadlineExceeded and a cancelled call context.Canceled.
var (
	// Requests.
	ErrInvalidRequest = errors.New("the request is incomplete or out of range")
	ErrRequestType    = errors.New("the request does not belong to the handle's capability")
	ErrMismatch       = errors.New("the request contradicts the artifact")
	ErrUnsupported    = errors.New("the backend or the model cannot do it")
	ErrTooLong        = errors.New("an input is longer than allowed")
	ErrPartial        = errors.New("some inputs failed; the response is there")

	// Models and handles.
	ErrNilHandle     = errors.New("the handle is nil")
	ErrForeignHandle = errors.New("the handle is another adapter's")
	ErrClosed        = errors.New("the model or the backend is closed")
	ErrNotReady      = errors.New("the model is loading or stopping")
	ErrNotFound      = errors.New("a file, model or prompt is not there")
	ErrAlreadyExists = errors.New("the name is taken")
	ErrBadArtifact   = errors.New("the artifact is damaged or contradicts itself")

	// The backend.
	ErrOverloaded  = errors.New("the model's queue is full")
	ErrUnavailable = errors.New("the device or the runtime is not there")
	ErrOutOfMemory = errors.New("the system refused memory")
	ErrInternal    = errors.New("a fault of the backend")

	// Registration.
	ErrNilAdapter     = errors.New("the adapter is nil")
	ErrEmptyName      = errors.New("the adapter has no name")
	ErrDuplicateName  = errors.New("the name is registered already")
	ErrUnknownBackend = errors.New("no adapter has the name")
)

// An Error is what every failing method of an adapter returns.
type Error struct {
	Backend Backend
	Kind    error // what errors.Is finds
	Err     error // what happened, in one line: both sides and the remedy
}

func (e *Error) Error() string { return string(e.Backend) + ": " + e.Err.Error() }

// Unwrap returns the kind and what happened.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }
