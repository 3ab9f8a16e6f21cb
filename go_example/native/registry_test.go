package native_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
)

// idle is an adapter without models.
type idle struct {
	native.BackendAdapter
	name native.Backend
}

func (i *idle) Name() native.Backend { return i.name }

// Adapters of kinds that can be nil without being pointers.
type (
	idleMap  map[string]int
	idleFunc func()
)

func (idleMap) Name() native.Backend                { return "map" }
func (idleMap) Capabilities() native.CapabilitySet  { return native.CapabilitySet{} }
func (idleMap) Info() []native.ModelInfo            { return nil }
func (idleFunc) Name() native.Backend               { return "func" }
func (idleFunc) Capabilities() native.CapabilitySet { return native.CapabilitySet{} }
func (idleFunc) Info() []native.ModelInfo           { return nil }

func (idleMap) LoadModel(context.Context, native.LoadRequest) (native.ModelHandle, error) {
	return nil, native.ErrUnsupported
}
func (idleMap) UnloadModel(context.Context, native.ModelHandle) error { return native.ErrUnsupported }
func (idleMap) Inference(
	context.Context, native.ModelHandle, native.InferenceRequest,
) (native.InferenceResponse, error) {
	return nil, native.ErrUnsupported
}
func (idleFunc) LoadModel(context.Context, native.LoadRequest) (native.ModelHandle, error) {
	return nil, native.ErrUnsupported
}
func (idleFunc) UnloadModel(context.Context, native.ModelHandle) error { return native.ErrUnsupported }
func (idleFunc) Inference(
	context.Context, native.ModelHandle, native.InferenceRequest,
) (native.InferenceResponse, error) {
	return nil, native.ErrUnsupported
}

func TestRegisterRefusesWhatIsNoBackend(t *testing.T) {
	var registry native.AdapterRegistry
	if err := registry.Register(&idle{name: "first"}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		adapter native.BackendAdapter
		want    error
		names   string
	}{
		"nil":              {nil, native.ErrNilAdapter, "constructor"},
		"a nil pointer":    {(*idle)(nil), native.ErrNilAdapter, "constructor"},
		"a nil map":        {idleMap(nil), native.ErrNilAdapter, "constructor"},
		"a nil function":   {idleFunc(nil), native.ErrNilAdapter, "constructor"},
		"an empty name":    {&idle{}, native.ErrEmptyName, "*native_test.idle"},
		"a blank name":     {&idle{name: " \t"}, native.ErrEmptyName, "*native_test.idle"},
		"a duplicate name": {&idle{name: "first"}, native.ErrDuplicateName, `"first"`},
	} {
		err := registry.Register(test.adapter)
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.names) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
		for _, other := range []error{native.ErrNilAdapter, native.ErrEmptyName, native.ErrDuplicateName} {
			if other != test.want && errors.Is(err, other) {
				t.Errorf("%s: %v is %v too", name, err, other)
			}
		}
	}
	if got := registry.List(); !slices.Equal(got, []native.Backend{"first"}) {
		t.Errorf("registered are %q", got)
	}
}

func TestGetAndList(t *testing.T) {
	var registry native.AdapterRegistry
	if got := registry.List(); len(got) != 0 {
		t.Fatalf("a fresh registry has %q", got)
	}
	names := []native.Backend{"onnxruntime", "candle", "remote", "libsemantic"}
	adapters := map[native.Backend]native.BackendAdapter{}
	for _, name := range names {
		adapters[name] = &idle{name: name}
		if err := registry.Register(adapters[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := registry.Register(idleMap{}); err != nil { // not nil
		t.Fatal(err)
	}
	want := []native.Backend{"candle", "libsemantic", "map", "onnxruntime", "remote"}
	for range 20 {
		list := registry.List()
		if !slices.Equal(list, want) {
			t.Fatalf("got %q, want %q", list, want)
		}
		list[0] = "changed"
	}
	for _, name := range names {
		if got, err := registry.Get(name); err != nil || got != adapters[name] {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	got, err := registry.Get("openvino")
	if got != nil || !errors.Is(err, native.ErrUnknownBackend) ||
		!strings.Contains(err.Error(), "openvino") || !strings.Contains(err.Error(), "libsemantic") {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestTheRegistryIsSafeForConcurrentUse(t *testing.T) {
	var registry native.AdapterRegistry
	var running sync.WaitGroup
	won := make(chan native.Backend, 1000)
	for g := range 16 {
		running.Add(1)
		go func() {
			defer running.Done()
			for i := range 50 {
				name := native.Backend(fmt.Sprintf("backend %02d", (i+g)%50))
				err := registry.Register(&idle{name: name})
				if err == nil {
					won <- name
				} else if !errors.Is(err, native.ErrDuplicateName) {
					t.Error(err)
				}
				if got, err := registry.Get(name); err != nil || got.Name() != name {
					t.Errorf("%s: got %v, %v", name, got, err)
				}
				if list := registry.List(); !slices.IsSorted(list) || len(list) == 0 {
					t.Errorf("the list is %q", list)
				}
			}
		}()
	}
	running.Wait()
	if len(won) != 50 || len(registry.List()) != 50 {
		t.Errorf("%d registrations succeed, %d are listed", len(won), len(registry.List()))
	}
}

// closing counts how often it is closed.
type closing struct {
	idle
	closed int
	err    error
}

func (c *closing) Close() error {
	c.closed++
	return c.err
}

func TestCloseClosesWhatCanBeClosed(t *testing.T) {
	fault := errors.New("stuck")
	adapters := []*closing{
		{idle: idle{name: "a"}, err: fault}, {idle: idle{name: "b"}},
	}
	var registry native.AdapterRegistry
	for _, adapter := range []native.BackendAdapter{adapters[0], adapters[1], &idle{name: "c"}} {
		if err := registry.Register(adapter); err != nil {
			t.Fatal(err)
		}
	}
	if err := registry.Close(); !errors.Is(err, fault) {
		t.Errorf("got %v", err)
	}
	if adapters[0].closed != 1 || adapters[1].closed != 1 {
		t.Errorf("closed %d and %d times", adapters[0].closed, adapters[1].closed)
	}
}

func TestAnErrorIsItsKindAndWhatHappened(t *testing.T) {
	cause := errors.New("the disk is full")
	var err error = &native.Error{
		Backend: native.BackendLibsemantic, Kind: native.ErrOutOfMemory, Err: fmt.Errorf("load a: %w", cause),
	}
	if !errors.Is(err, native.ErrOutOfMemory) || !errors.Is(err, cause) || errors.Is(err, native.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if got := err.Error(); got != "libsemantic: load a: the disk is full" {
		t.Errorf("got %q", got)
	}
}
