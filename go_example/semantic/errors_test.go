package semantic

import (
	"context"
	"errors"
	"io/fs"
	"testing"
)

func TestErrorMatchesItsStatusOnly(t *testing.T) {
	for status := OK; status <= ErrPartial; status++ {
		err := error(newError(status, "text"))
		for other := OK; other <= ErrPartial; other++ {
			if got := errors.Is(err, other); got != (other == status) {
				t.Errorf("errors.Is(%v, %v) = %v", err, other, got)
			}
		}
		if got := errors.Is(err, context.DeadlineExceeded); got != (status == ErrDeadline) {
			t.Errorf("errors.Is(%v, context.DeadlineExceeded) = %v", err, got)
		}
		if got := errors.Is(err, context.Canceled); got != (status == ErrCancelled) {
			t.Errorf("errors.Is(%v, context.Canceled) = %v", err, got)
		}
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v matches a foreign error", err)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{&Error{Status: ErrTooLong, Input: 3, Message: "too long"}, "semantic: TOO_LONG: row 3: too long"},
		{&Error{Status: ErrNotFound, Input: -1, Message: "gone"}, "semantic: NOT_FOUND: gone"},
		{&Error{Status: 99, Input: -1, Message: "new"}, "semantic: UNKNOWN: new"},
		{Status(-1), "UNKNOWN"},
		{ErrPartial, "PARTIAL"},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestPartialErrorUnwrapsToItsRow(t *testing.T) {
	row := &Error{Status: ErrDeadline, Input: 2, Message: "late"}
	err := error(&Error{Status: ErrPartial, Input: 2, Message: "late", row: row})
	for _, target := range []error{ErrPartial, ErrDeadline, context.DeadlineExceeded} {
		if !errors.Is(err, target) {
			t.Errorf("%v does not match %v", err, target)
		}
	}
	if errors.Is(err, ErrTooLong) || errors.Is(err, context.Canceled) {
		t.Errorf("%v matches too much", err)
	}
}

func TestNames(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{TaskEmbedding.String(), "embedding"},
		{StateStopping.String(), "stopping"},
		{CallCountTokens.String(), "CountTokens"},
		{PhaseDecode.String(), "decode"},
		{Task(9).String(), "UNKNOWN"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
