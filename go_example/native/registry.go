package native

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// An AdapterRegistry holds the adapters that a program was composed of. The zero
// value is empty and ready; it may be used from any number of goroutines. It must not
// be copied.
type AdapterRegistry struct {
	mu       sync.RWMutex
	adapters map[Backend]BackendAdapter
}

// Register adds an adapter under its name. It refuses a nil adapter, also a nil
// pointer in the interface, with ErrNilAdapter, a blank name with ErrEmptyName and
// one that is taken with ErrDuplicateName.
func (r *AdapterRegistry) Register(adapter BackendAdapter) error {
	if isNil(adapter) {
		return fmt.Errorf("native: register: %w; pass what the adapter's constructor returned", ErrNilAdapter)
	}
	name := adapter.Name()
	if strings.TrimSpace(string(name)) == "" {
		return fmt.Errorf("native: register %T: %w; return a backend from Name", adapter, ErrEmptyName)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, taken := r.adapters[name]; taken {
		return fmt.Errorf("native: register %T as %q: %w, by a %T; register each backend once",
			adapter, name, ErrDuplicateName, old)
	}
	if r.adapters == nil {
		r.adapters = map[Backend]BackendAdapter{}
	}
	r.adapters[name] = adapter
	return nil
}

// Get returns the adapter of a name. One that is not registered is ErrUnknownBackend.
func (r *AdapterRegistry) Get(name Backend) (BackendAdapter, error) {
	r.mu.RLock()
	adapter, ok := r.adapters[name]
	r.mu.RUnlock()
	if !ok {
		return nil, fmt.Errorf("native: %w %q; registered are %q", ErrUnknownBackend, name, r.List())
	}
	return adapter, nil
}

// List returns the names that are registered, sorted.
func (r *AdapterRegistry) List() []Backend {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := make([]Backend, 0, len(r.adapters))
	for name := range r.adapters {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Close closes the adapters that can be closed, which frees their models. They stay
// registered, and their calls are ErrClosed.
func (r *AdapterRegistry) Close() error {
	var errs []error
	for _, name := range r.List() {
		adapter, err := r.Get(name)
		if err != nil {
			errs = append(errs, err)
		} else if closer, ok := adapter.(io.Closer); ok {
			errs = append(errs, closer.Close())
		}
	}
	return errors.Join(errs...)
}

// isNil tells a nil interface and a nil value in one.
func isNil(adapter BackendAdapter) bool {
	switch v := reflect.ValueOf(adapter); v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Chan, reflect.Func, reflect.Map, reflect.Pointer, reflect.Slice:
		return v.IsNil()
	default:
		return false
	}
}
