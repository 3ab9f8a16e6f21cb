package libsemantic

import (
	"context"
	"errors"
	"fmt"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// kinds are the statuses of the library in the words of the contract.
var kinds = map[semantic.Status]error{
	semantic.ErrInvalidArgument:   native.ErrInvalidRequest,
	semantic.ErrNotFound:          native.ErrNotFound,
	semantic.ErrAlreadyExists:     native.ErrAlreadyExists,
	semantic.ErrUnsupported:       native.ErrUnsupported,
	semantic.ErrNotReady:          native.ErrNotReady,
	semantic.ErrClosed:            native.ErrClosed,
	semantic.ErrOverloaded:        native.ErrOverloaded,
	semantic.ErrDeadline:          context.DeadlineExceeded,
	semantic.ErrTooLong:           native.ErrTooLong,
	semantic.ErrBadArtifact:       native.ErrBadArtifact,
	semantic.ErrDeviceUnavailable: native.ErrUnavailable,
	semantic.ErrOutOfMemory:       native.ErrOutOfMemory,
	semantic.ErrInterpreter:       native.ErrUnavailable,
	semantic.ErrInternal:          native.ErrInternal,
	semantic.ErrCancelled:         context.Canceled,
	semantic.ErrPartial:           native.ErrPartial,
}

// wrap makes an error of the binding one of the contract; nil stays nil.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	return &native.Error{Backend: native.BackendLibsemantic, Kind: kind(err), Err: err}
}

// kind of a partial answer is also that of its first failed row, as in the binding.
func kind(err error) error {
	var e *semantic.Error
	if !errors.As(err, &e) {
		return native.ErrInternal
	}
	k, ok := kinds[e.Status]
	if !ok {
		return native.ErrInternal // a status of a newer library
	}
	if row := errors.Unwrap(e); row != nil {
		return errors.Join(k, kind(row))
	}
	return k
}

// isGone reports whether a model was unloaded while it was asked for.
func isGone(err error) bool {
	return errors.Is(err, semantic.ErrClosed) || errors.Is(err, semantic.ErrNotFound)
}

func newError(kind error, format string, args ...any) error {
	return &native.Error{
		Backend: native.BackendLibsemantic,
		Kind:    kind,
		Err:     fmt.Errorf(format, args...),
	}
}
