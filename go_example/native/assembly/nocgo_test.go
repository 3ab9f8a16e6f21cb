//go:build !cgo

package assembly_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/assembly"
)

func TestAssembleFailsClosedWithoutCgo(t *testing.T) {
	registry, err := assembly.Assemble(context.Background(), assembly.Config{})
	if registry != nil || !errors.Is(err, native.ErrUnsupported) {
		t.Fatalf("got %v, %v", registry, err)
	}
	if !strings.Contains(err.Error(), "CGO_ENABLED=1") {
		t.Fatalf("%q does not say what to do", err)
	}
}
