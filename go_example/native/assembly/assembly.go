// Package assembly composes the backends of a program. It is the one place that
// decides which adapters there are; importing it registers nothing.
package assembly

import (
	"context"
	"errors"
	"fmt"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/libsemantic"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// Config says how the backends are started. The zero value means their defaults.
type Config struct {
	Libsemantic semantic.Options
}

// Assemble starts every backend of this build and returns a registry that holds each
// of them once. It fails closed: when one cannot start, there is no registry. Built
// with CGO_ENABLED=0 there is no backend, and the error is native.ErrUnsupported.
//
// Close the registry to free the models.
func Assemble(ctx context.Context, config Config) (*native.AdapterRegistry, error) {
	adapter, err := libsemantic.New(ctx, config.Libsemantic)
	if err != nil {
		return nil, fmt.Errorf("assemble the backends: %w", err)
	}
	registry := new(native.AdapterRegistry)
	if err := registry.Register(adapter); err != nil {
		return nil, errors.Join(err, adapter.Close())
	}
	return registry, nil
}
