package semantic

import (
	"context"
	"sync"
	"sync/atomic"
)

const defaultMaxCalls = 256

// stops counts how often the runtime of the process was stopped. A handle from before
// must not start it again, with options that nobody chose.
var stops atomic.Uint64

// A Runtime is a handle for the one runtime of the process. Make it with Open.
type Runtime struct {
	life     *lifetime
	maxCalls int
	opened   uint64 // stops, when it was opened

	mu     sync.Mutex
	models map[uint64]*Model                           // by ID, so that Find and Load agree
	keys   map[uint64]map[*context.CancelFunc]struct{} // calls by RunOptions.CancelKey
}

// Version is that of the loaded library, such as "0.1.0"; empty without cgo. It starts
// nothing.
func Version() string { return nativeVersion() }

// Open starts the runtime. The same options again give one more handle for it;
// other options while it runs are ErrAlreadyExists.
func Open(ctx context.Context, options Options) (*Runtime, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	maxCalls := options.MaxCalls
	if maxCalls < 0 {
		return nil, newError(ErrInvalidArgument,
			"MaxCalls is %d; give 0 for the default or more", maxCalls)
	}
	if maxCalls == 0 {
		maxCalls = defaultMaxCalls
	}
	opened := stops.Load()
	for {
		if err := nativeInit(options); err != nil {
			return nil, err
		}
		now := stops.Load()
		if now == opened {
			break
		}
		opened = now // stopped meanwhile, perhaps after it was started here
	}
	return &Runtime{
		opened:   opened,
		life:     newLifetime(),
		maxCalls: maxCalls,
		models:   map[uint64]*Model{},
		keys:     map[uint64]map[*context.CancelFunc]struct{}{},
	}, nil
}

// Load loads the model in the folder path: its files are verified, it is opened on
// the device and tests itself, and only then it can be found. A name that another
// model has is ErrAlreadyExists.
func (r *Runtime) Load(ctx context.Context, path string, options LoadOptions) (*Model, error) {
	if !r.enter() {
		return nil, closedError("runtime")
	}
	defer r.life.leave()
	timeout, err := timeoutMS(ctx)
	if err != nil {
		return nil, err
	}
	var replaces uint64
	if old := options.Replaces; old != nil {
		if !old.life.enter() {
			return nil, closedError("model to replace")
		}
		defer old.life.leave()
		replaces = old.id
	}
	id, err := nativeLoad(path, options, replaces, timeout)
	if err != nil {
		return nil, err
	}
	return r.model(id), nil
}

// Find returns the model of a name: the same *Model that Load returned. A model
// that is still loading is ErrNotReady.
func (r *Runtime) Find(name string) (*Model, error) {
	if !r.enter() {
		return nil, closedError("runtime")
	}
	defer r.life.leave()
	id, err := nativeFind(name)
	if err != nil {
		return nil, err
	}
	return r.model(id), nil
}

// enter is false once this handle, or another for the same runtime, was closed.
func (r *Runtime) enter() bool {
	if !r.life.enter() {
		return false
	}
	if r.opened == stops.Load() {
		return true
	}
	r.life.leave()
	return false
}

func (r *Runtime) model(id uint64) *Model {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[id]
	if m == nil {
		m = &Model{runtime: r, id: id, life: newLifetime(), slots: make(chan struct{}, r.maxCalls)}
		r.models[id] = m
	}
	return m
}

func (r *Runtime) forget(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.models, id)
}

// Models lists all models that are loading, ready or stopping, oldest first.
func (r *Runtime) Models() ([]ModelEntry, error) {
	if !r.enter() {
		return nil, closedError("runtime")
	}
	defer r.life.leave()
	return nativeModels()
}

// Stats returns the counters of the runtime. It works after Close too.
func (r *Runtime) Stats() (*Stats, error) {
	return nativeStats()
}

// Cancel ends all calls made through r that carry the key, as if their contexts
// were cancelled. When there is none it returns ErrNotFound.
func (r *Runtime) Cancel(key uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.keys[key]
	if len(calls) == 0 {
		return newError(ErrNotFound, "no call carries the key %d", key)
	}
	for cancel := range calls {
		(*cancel)()
	}
	return nil
}

// withKey returns a context that Cancel(key) ends, and what to do after the call.
func (r *Runtime) withKey(ctx context.Context, key uint64) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[key] == nil {
		r.keys[key] = map[*context.CancelFunc]struct{}{}
	}
	r.keys[key][&cancel] = struct{}{}
	return ctx, func() {
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.keys[key], &cancel)
		if len(r.keys[key]) == 0 {
			delete(r.keys, key)
		}
	}
}

// Close refuses new calls with ErrClosed, waits for those in flight, unloads every
// model and stops the runtime, for all handles. Closing again does nothing. Open may
// follow.
func (r *Runtime) Close() error {
	return r.Shutdown(context.Background())
}

// Shutdown is Close, but it waits only until ctx ends. It then returns ErrDeadline
// or ErrCancelled; new calls stay refused, and calling it again goes on waiting.
func (r *Runtime) Shutdown(ctx context.Context) error {
	return r.life.end(ctx, func(timeoutMS int64) error {
		if r.opened != stops.Load() {
			return nil // another handle has stopped it
		}
		err := nativeCleanup(timeoutMS)
		if err == nil {
			stops.Add(1)
		}
		return err
	})
}
