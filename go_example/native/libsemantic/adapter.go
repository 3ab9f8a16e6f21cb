// Package libsemantic is the adapter for package semantic, which runs models inside
// the calling process.
//
// The library's registry is the only store of models: the adapter asks it whenever it
// says what is there, and keeps nothing but the runtime. What a handle was loaded for
// lies in the handle.
package libsemantic

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

var (
	_ native.BackendAdapter = (*Adapter)(nil)
	_ io.Closer             = (*Adapter)(nil)
)

// An Adapter runs models with libsemantic. Make it with New.
type Adapter struct {
	runtime *semantic.Runtime
}

// New starts the runtime of the process. There is one: adapters of equal options share
// it, other options while it runs are native.ErrAlreadyExists, and closing one adapter
// frees the models of all. Without cgo it is native.ErrUnsupported.
func New(ctx context.Context, options semantic.Options) (*Adapter, error) {
	runtime, err := semantic.Open(ctx, options)
	if err != nil {
		return nil, wrap(err)
	}
	return &Adapter{runtime: runtime}, nil
}

// Close waits for the calls in flight, unloads every model and stops the runtime. Later
// calls of this adapter are native.ErrClosed. Closing again does nothing.
func (a *Adapter) Close() error { return wrap(a.runtime.Close()) }

// Name implements native.BackendAdapter.
func (a *Adapter) Name() native.Backend { return native.BackendLibsemantic }

// A handle is a loaded model and what it was loaded for.
type handle struct {
	adapter    *Adapter
	model      *semantic.Model
	capability native.Capability
	dimension  int // of embeddings, unless a request names another
	layer      int
	serves     []native.Capability // of an adapter that was loaded as such
	unloaded   atomic.Bool
}

func (h *handle) ID() string { return modelID(h.model.ID()) }

func modelID(id uint64) string { return fmt.Sprintf("%s:%d", native.BackendLibsemantic, id) }

// LoadModel implements native.BackendAdapter. The library looks at ctx between the
// steps of a load; one that ends too late is undone.
func (a *Adapter) LoadModel(
	ctx context.Context, request native.LoadRequest,
) (native.ModelHandle, error) {
	if err := servable(request); err != nil {
		return nil, err
	}
	served, _ := serviceFor(request.Capability)
	model, err := a.runtime.Load(ctx, request.Path, semantic.LoadOptions{
		Name:           request.Model,
		Task:           served.task,
		BasePath:       request.BasePath,
		Device:         string(request.Device),
		MaxBatchRows:   request.Batching.MaxRows,
		MaxBatchTokens: request.Batching.MaxTokens,
		QueueRows:      request.Batching.QueueRows,
		QueueTokens:    request.Batching.QueueTokens,
	})
	if err != nil {
		return nil, wrap(err)
	}
	info, err := accept(ctx, model, request)
	if err != nil {
		if closed := model.Close(); closed != nil {
			return nil, newError(native.ErrInternal, "%v; the model stays loaded: %v", err, closed)
		}
		return nil, err
	}
	return &handle{
		adapter:    a,
		model:      model,
		capability: request.Capability,
		dimension:  request.TargetDimension,
		layer:      request.TargetLayer,
		serves:     capabilitiesOf(info),
	}, nil
}

// accept compares a model that was just loaded with the request.
func accept(
	ctx context.Context, model *semantic.Model, request native.LoadRequest,
) (*semantic.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, newError(err, "%s was loaded after the context had ended: %w", request.Path, err)
	}
	info, err := model.Info()
	if err != nil {
		return nil, wrap(err)
	}
	return info, check(request, info)
}

// UnloadModel implements native.BackendAdapter.
func (a *Adapter) UnloadModel(ctx context.Context, modelHandle native.ModelHandle) error {
	h, err := a.own(modelHandle)
	if err != nil {
		return err
	}
	// The binding's Shutdown is silent about a model that somebody else has freed.
	models, err := a.runtime.Models()
	if err != nil {
		return wrap(err)
	}
	isThere := func(m semantic.ModelEntry) bool { return m.ID == h.model.ID() }
	if !slices.ContainsFunc(models, isThere) {
		return alreadyUnloaded(h)
	}
	if err := h.model.Shutdown(ctx); err != nil {
		return wrap(err)
	}
	if !h.unloaded.CompareAndSwap(false, true) {
		return alreadyUnloaded(h) // another call was first
	}
	return nil
}

func alreadyUnloaded(h *handle) error {
	return newError(native.ErrClosed, "the model %s is unloaded already; load it again", h.ID())
}

// Inference implements native.BackendAdapter.
func (a *Adapter) Inference(
	ctx context.Context, modelHandle native.ModelHandle, request native.InferenceRequest,
) (native.InferenceResponse, error) {
	h, err := a.own(modelHandle)
	if err != nil {
		return nil, err
	}
	served, _ := serviceFor(h.capability)
	return served.infer(ctx, h, request)
}

// own returns the handle if this adapter made it.
func (a *Adapter) own(modelHandle native.ModelHandle) (*handle, error) {
	if modelHandle == nil {
		return nil, newError(native.ErrNilHandle, "the handle is nil; pass one that LoadModel returned")
	}
	h, ok := modelHandle.(*handle)
	switch {
	case !ok:
		return nil, newError(native.ErrForeignHandle,
			"the handle is a %T, of another adapter; pass it to the adapter that loaded it", modelHandle)
	case h == nil:
		return nil, newError(native.ErrNilHandle, "the handle is nil; pass one that LoadModel returned")
	case h.adapter != a:
		return nil, newError(native.ErrForeignHandle,
			"the handle %s was made by another libsemantic adapter; pass it to that one", h.ID())
	}
	return h, nil
}

// Info implements native.BackendAdapter: the models in the library's registry, oldest
// first. A closed adapter has none.
func (a *Adapter) Info() []native.ModelInfo {
	models, err := a.runtime.Models()
	if err != nil {
		return nil
	}
	out := make([]native.ModelInfo, 0, len(models))
	for _, entry := range models {
		if info, ok := a.describe(entry); ok {
			out = append(out, info)
		}
	}
	return out
}

// describe returns false for a model that has gone since it was listed.
func (a *Adapter) describe(entry semantic.ModelEntry) (native.ModelInfo, bool) {
	reason := "the model is " + entry.State.String()
	if entry.State == semantic.StateReady {
		info, err := a.infoOf(entry)
		if err == nil {
			return modelInfo(entry.ID, info), true
		}
		if isGone(err) {
			return native.ModelInfo{}, false
		}
		reason = err.Error()
	}
	return native.ModelInfo{
		ID:                 modelID(entry.ID),
		Backend:            native.BackendLibsemantic,
		Version:            semantic.Version(),
		Name:               entry.Name,
		UnsupportedReasons: map[string]string{"inference": reason},
	}, true
}

func (a *Adapter) infoOf(entry semantic.ModelEntry) (*semantic.Info, error) {
	model, err := a.runtime.Find(entry.Name)
	if err != nil {
		return nil, err
	}
	if model.ID() != entry.ID {
		return nil, semantic.ErrClosed // its name is another model's by now
	}
	return model.Info()
}
