//go:build !cgo

package libsemantic_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/libsemantic"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

func TestNewFailsClosedWithoutCgo(t *testing.T) {
	adapter, err := libsemantic.New(context.Background(), semantic.Options{})
	if adapter != nil || !errors.Is(err, native.ErrUnsupported) {
		t.Fatalf("got %v, %v", adapter, err)
	}
	if !strings.Contains(err.Error(), "CGO_ENABLED=1") {
		t.Fatalf("%q does not say what to do", err)
	}
}
