//go:build cgo

package assembly_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/assembly"
	"github.com/libsemantic/libsemantic/go_example/native/libsemantic"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

func TestAssembleRegistersEachBackendOnce(t *testing.T) {
	ctx := context.Background()
	for range 2 {
		registry, err := assembly.Assemble(ctx, assembly.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if got := registry.List(); !slices.Equal(got, []native.Backend{native.BackendLibsemantic}) {
			t.Errorf("registered are %q", got)
		}
		adapter, err := registry.Get(native.BackendLibsemantic)
		if _, ok := adapter.(*libsemantic.Adapter); err != nil || !ok {
			t.Errorf("got a %T, %v", adapter, err)
		}
		if err := registry.Register(adapter); !errors.Is(err, native.ErrDuplicateName) {
			t.Errorf("a second registration: %v", err)
		}
		if err := registry.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := adapter.LoadModel(ctx, native.LoadRequest{
			Path: t.TempDir(), Capability: native.CapabilityEmbedding,
		}); !errors.Is(err, native.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestAssembleFailsClosed(t *testing.T) {
	registry, err := assembly.Assemble(context.Background(), assembly.Config{
		Libsemantic: semantic.Options{Device: "abacus"},
	})
	if registry != nil || !errors.Is(err, native.ErrInvalidRequest) {
		t.Errorf("got %v, %v", registry, err)
	}
}
