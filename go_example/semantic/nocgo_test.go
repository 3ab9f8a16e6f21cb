//go:build !cgo

package semantic

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestOpenFailsClosedWithoutCgo(t *testing.T) {
	rt, err := Open(context.Background(), Options{})
	if rt != nil || !errors.Is(err, ErrUnsupported) {
		t.Fatalf("got %v, %v", rt, err)
	}
	if !strings.Contains(err.Error(), "CGO_ENABLED=1") {
		t.Fatalf("%q does not say what to do", err)
	}
}
