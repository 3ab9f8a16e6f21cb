// Package libsemantic is the adapter for package semantic, which runs models inside
// the calling process.
//
// The library's registry is the only store of models: the adapter asks it whenever it
// says what is there, and keeps nothing but the runtime. What a handle was loaded for
// lies in the handle, so that its answers keep their promise when the model is replaced.
package libsemantic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
func (a *Adapter) Close() error { return a.Shutdown(context.Background()) }

// Shutdown is Close, but it waits only until ctx ends. New calls stay refused then, and
// calling it again goes on waiting.
func (a *Adapter) Shutdown(ctx context.Context) error { return wrap(a.runtime.Shutdown(ctx)) }

// Name implements native.BackendAdapter.
func (a *Adapter) Name() native.Backend { return native.BackendLibsemantic }

// A handle is a loaded model and what it was loaded for.
type handle struct {
	adapter  *Adapter
	model    *semantic.Model
	request  native.LoadRequest // a copy
	accepted atomic.Uint64      // the newest generation of the model that fits the request
	unloaded atomic.Bool
}

func (h *handle) ID() string { return modelID(h.model.ID()) }

func modelID(id uint64) string { return fmt.Sprintf("%s:%d", native.BackendLibsemantic, id) }

// LoadModel implements native.BackendAdapter. The deadline of ctx ends a load in the
// library. A cancelled one goes on to its end there and is undone then.
func (a *Adapter) LoadModel(
	ctx context.Context, request native.LoadRequest,
) (native.ModelHandle, error) {
	if err := servable(request); err != nil {
		return nil, err
	}
	model, err := a.load(ctx, request)
	if err != nil {
		return nil, err
	}
	h := &handle{adapter: a, model: model, request: copied(request)}
	if err := h.accept(ctx); err != nil {
		return nil, undo(model, err)
	}
	return h, nil
}

// load loads the model for the task of the capability. The library's refusals do not
// tell whether the artifact is one for another task. To know, it is loaded as what it
// is and given back.
func (a *Adapter) load(ctx context.Context, request native.LoadRequest) (*semantic.Model, error) {
	service, _ := serviceFor(request.Capability)
	options := semantic.LoadOptions{
		Name:           request.Model,
		Task:           service.task,
		BasePath:       request.BasePath,
		Device:         string(request.Device),
		MaxBatchRows:   request.Batching.MaxRows,
		MaxBatchTokens: request.Batching.MaxTokens,
		QueueRows:      request.Batching.QueueRows,
		QueueTokens:    request.Batching.QueueTokens,
	}
	model, err := a.runtime.Load(ctx, request.Path, options)
	if err == nil {
		return model, nil
	}
	refusal := wrap(err)
	wrongTask := errors.Is(err, semantic.ErrUnsupported) || errors.Is(err, semantic.ErrBadArtifact)
	if !wrongTask || options.Task == semantic.TaskAuto {
		return nil, refusal
	}
	options.Task = semantic.TaskAuto
	model, err = a.runtime.Load(ctx, request.Path, options)
	if err != nil {
		return nil, refusal
	}
	if info, err := model.Info(); err == nil {
		if reason := unfit(request.Capability, info); reason != "" {
			refusal = mismatch(info, "%s: %s", request.Capability, reason)
		}
	}
	return nil, undo(model, refusal)
}

// undo unloads a model that was refused and returns why.
func undo(model *semantic.Model, refusal error) error {
	if err := model.Close(); err != nil {
		return newError(native.ErrInternal, "%v; the model stays loaded: %v", refusal, err)
	}
	return refusal
}

// copied keeps the request as it was when the model was loaded.
func copied(request native.LoadRequest) native.LoadRequest {
	request.TargetDimensions = slices.Clone(request.TargetDimensions)
	request.TargetLayers = slices.Clone(request.TargetLayers)
	request.Labels = maps.Clone(request.Labels)
	return request
}

// accept compares a model that was just loaded with the request.
func (h *handle) accept(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return newError(err, "%q was loaded after the context had ended: %w", h.request.Path, err)
	}
	return h.compare(0)
}

// fits says whether the request of the handle holds for the model of a generation.
// Models are replaced under their handles, so that answers may come from one that was
// never compared.
func (h *handle) fits(generation, acceptedBefore uint64) error {
	if generation == acceptedBefore || generation == h.accepted.Load() {
		return nil
	}
	return h.compare(generation)
}

// compare compares the model that is there now with the request. It must be of the
// generation, unless that is 0.
func (h *handle) compare(generation uint64) error {
	info, err := h.adapter.runtime.InfoOf(h.model.ID())
	if err != nil {
		return wrap(err)
	}
	if generation != 0 && generation != info.Generation {
		return newError(native.ErrNotReady,
			"the model %s was replaced again while it answered; ask again", h.ID())
	}
	if err := check(h.request, info); err != nil {
		return err
	}
	for old := h.accepted.Load(); old < info.Generation; old = h.accepted.Load() {
		h.accepted.CompareAndSwap(old, info.Generation)
	}
	return nil
}

// UnloadModel implements native.BackendAdapter.
func (a *Adapter) UnloadModel(ctx context.Context, modelHandle native.ModelHandle) error {
	h, err := a.own(modelHandle)
	if err != nil {
		return err
	}
	// The binding's Shutdown is silent about a model that somebody else has freed.
	there, err := a.holds(h.model.ID())
	if err != nil {
		return err
	}
	if !there {
		return alreadyUnloaded(h)
	}
	if err := h.model.Shutdown(ctx); err != nil {
		return wrap(err)
	}
	// And about one that the closing runtime has yet to free.
	if there, err := a.holds(h.model.ID()); err == nil && there {
		return newError(native.ErrClosed,
			"the adapter is closing and frees the model %s once its calls are done", h.ID())
	}
	if !h.unloaded.CompareAndSwap(false, true) {
		return alreadyUnloaded(h) // another call was first
	}
	return nil
}

// holds asks the library whether a model is in its registry.
func (a *Adapter) holds(id uint64) (bool, error) {
	models, err := a.runtime.Models()
	if err != nil {
		return false, wrap(err)
	}
	return slices.ContainsFunc(models, func(m semantic.ModelEntry) bool { return m.ID == id }), nil
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
	accepted := h.accepted.Load()
	service, _ := serviceFor(h.request.Capability)
	response, generation, err := service.infer(ctx, h, request)
	if response == nil {
		// A target dimension that a replaced model lacks is not the request's fault.
		if errors.Is(err, native.ErrInvalidRequest) {
			if changed := h.compare(0); errors.Is(changed, native.ErrMismatch) {
				return nil, changed
			}
		}
		return nil, err
	}
	if changed := h.fits(generation, accepted); changed != nil {
		return nil, changed
	}
	return response, err
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
// first, those too that other users of the library have loaded. A closed adapter has
// none.
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
		info, err := a.runtime.InfoOf(entry.ID)
		if err == nil {
			return modelInfo(entry.ID, info), true
		}
		if there, _ := a.holds(entry.ID); !there {
			return native.ModelInfo{}, false
		}
		reason = err.Error()
	}
	return unready(entry, reason), true
}
