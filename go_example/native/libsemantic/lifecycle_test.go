//go:build cgo

package libsemantic_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/libsemantic"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

var topics = native.SequenceClassificationRequest{Texts: []string{"What is the derivative of x squared?"}}

func loadTopics(t *testing.T, adapter native.BackendAdapter, name string) native.ModelHandle {
	t.Helper()
	return load(t, adapter, native.LoadRequest{
		Model: name, Path: modelPath(t, "bert-seq"), Capability: topics.Capability(),
	})
}

func TestUnloadingReallyFrees(t *testing.T) {
	ctx := context.Background()
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	wantModels(t, adapter, "topics")
	infer[*native.SequenceClassificationResponse](t, adapter, handle, topics)
	if err := adapter.UnloadModel(ctx, handle); err != nil {
		t.Fatal(err)
	}
	wantModels(t, adapter)
	if _, err := library(t).Find("topics"); !errors.Is(err, semantic.ErrNotFound) {
		t.Errorf("the library finds it: %v", err)
	}
	for range 2 {
		got, err := adapter.Inference(ctx, handle, topics)
		wantKind(t, err, native.ErrClosed)
		if got != nil {
			t.Errorf("a response %v beside %v", got, err)
		}
		wantKind(t, adapter.UnloadModel(ctx, handle), native.ErrClosed)
	}

	again := loadTopics(t, adapter, "topics")
	if again.ID() == handle.ID() {
		t.Errorf("the ID %s is used again", again.ID())
	}
	_, err := adapter.Inference(ctx, handle, topics)
	wantKind(t, err, native.ErrClosed)
	wantKind(t, adapter.UnloadModel(ctx, handle), native.ErrClosed)
	wantModels(t, adapter, "topics")
	infer[*native.SequenceClassificationResponse](t, adapter, again, topics)
}

func TestAModelThatSomebodyElseFreedIsClosed(t *testing.T) {
	ctx := context.Background()
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	model, err := library(t).Find("topics")
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = adapter.Inference(ctx, handle, topics)
	wantKind(t, err, native.ErrClosed)
	wantKind(t, adapter.UnloadModel(ctx, handle), native.ErrClosed)
}

func TestOneOfManyUnloadsSucceeds(t *testing.T) {
	adapter := newAdapter(t)
	for range 10 {
		handle := loadTopics(t, adapter, "topics")
		errs := make(chan error)
		for range 8 {
			go func() { errs <- adapter.UnloadModel(context.Background(), handle) }()
		}
		succeeded := 0
		for range 8 {
			if err := <-errs; err == nil {
				succeeded++
			} else {
				wantKind(t, err, native.ErrClosed)
			}
		}
		if succeeded != 1 {
			t.Fatalf("%d of 8 succeed", succeeded)
		}
	}
}

func TestAnUnloadThatRanOutOfTimeGoesOn(t *testing.T) {
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	answers := inFlight(t, adapter, handle, 1_500)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	wantKind(t, adapter.UnloadModel(ctx, handle), context.DeadlineExceeded)
	_, err := adapter.Inference(context.Background(), handle, topics)
	wantKind(t, err, native.ErrClosed)
	if info := adapter.Info(); len(info) != 1 || info[0].IsLoaded || info[0].Name != "topics" ||
		info[0].UnsupportedReasons["embedding"] != "the model is stopping" || len(info[0].UnsupportedReasons) != 6 {
		t.Errorf("the info is %+v", info)
	}
	if err := adapter.UnloadModel(context.Background(), handle); err != nil {
		t.Errorf("the second unload: %v", err)
	}
	if err := <-answers; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	wantModels(t, adapter)
}

// While an unload waits for calls in flight, Info says what the library says.
func TestInfoDuringAnUnload(t *testing.T) {
	adapter, second := newAdapter(t), newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	answers := inFlight(t, adapter, handle, 1_500)
	unloaded := make(chan error)
	go func() { unloaded <- adapter.UnloadModel(context.Background(), handle) }()
	for begun := false; !begun; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		_, err := adapter.Inference(ctx, handle, topics)
		cancel()
		begun = errors.Is(err, native.ErrClosed)
	}
	for range 20 {
		stats, err := library(t).Stats()
		if err != nil || len(stats.Models) != 1 {
			t.Fatalf("the library has %+v, %v", stats.Models, err)
		}
		for _, a := range []native.BackendAdapter{adapter, second} {
			infos := a.Info()
			if len(infos) != 1 || infos[0].Name != "topics" || infos[0].ID != handle.ID() ||
				infos[0].IsLoaded != (stats.Models[0].State == semantic.StateReady) {
				t.Fatalf("the library has %+v, the info is %+v", stats.Models, infos)
			}
		}
	}
	if len(answers) > 0 {
		t.Error("the call in flight ended too early for this test")
	}
	if err := errors.Join(<-unloaded, <-answers); err != nil {
		t.Error(err)
	}
	wantModels(t, adapter)
}

// While an adapter closes, its models are there, and no unload claims to free them.
func TestAnAdapterThatIsClosing(t *testing.T) {
	for _, shut := range []func(*libsemantic.Adapter, context.Context) error{
		(*libsemantic.Adapter).Shutdown,
		func(a *libsemantic.Adapter, ctx context.Context) error {
			registry := new(native.AdapterRegistry)
			return errors.Join(registry.Register(a), registry.Shutdown(ctx))
		},
	} {
		adapter := newAdapter(t)
		handle := loadTopics(t, adapter, "topics")
		answers := inFlight(t, adapter, handle, 1_500)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		wantKind(t, shut(adapter, ctx), context.DeadlineExceeded)
		_, err := adapter.Inference(context.Background(), handle, topics)
		wantKind(t, err, native.ErrClosed)
		if infos := adapter.Info(); len(infos) != 1 || infos[0].Name != "topics" || len(answers) > 0 {
			t.Errorf("the infos are %+v", infos)
		}
		wantKind(t, adapter.UnloadModel(context.Background(), handle), native.ErrClosed)
		if err := shut(adapter, context.Background()); err != nil {
			t.Errorf("the second time: %v", err)
		}
		if err := <-answers; err != nil {
			t.Errorf("the call in flight: %v", err)
		}
		if infos := adapter.Info(); infos != nil {
			t.Errorf("closed, it describes %+v", infos)
		}
		wantKind(t, adapter.UnloadModel(context.Background(), handle), native.ErrClosed)
	}
}

// A context that is nil is refused before anything is done.
func TestANilContext(t *testing.T) {
	var none context.Context
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	_, err := adapter.LoadModel(none, native.LoadRequest{
		Model: "other", Path: modelPath(t, "bert-seq"), Capability: topics.Capability(),
	})
	wantKind(t, err, native.ErrInvalidRequest)
	for capability, fitting := range requests {
		handle := load(t, adapter, native.LoadRequest{
			Model: "fitting", Path: fittingPath(t, capability), Capability: capability,
		})
		_, err = adapter.Inference(none, handle, fitting.request)
		wantKind(t, err, native.ErrInvalidRequest)
		if err := adapter.UnloadModel(context.Background(), handle); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, adapter.UnloadModel(none, handle), native.ErrInvalidRequest)
	wantKind(t, adapter.Shutdown(none), native.ErrInvalidRequest)
	_, err = libsemantic.New(none, options)
	wantKind(t, err, native.ErrInvalidRequest)
	wantModels(t, adapter, "topics")
	infer[*native.SequenceClassificationResponse](t, adapter, handle, topics)
}

// ---- Handles ----------------------------------------------------------------

// foreign is a handle of another adapter. A nil one panics when it is asked for its ID.
type foreign struct{ id string }

func (f *foreign) ID() string { return f.id }

func TestHandlesThatAreNotTheAdapters(t *testing.T) {
	ctx := context.Background()
	adapter, second := newAdapter(t), newAdapter(t)
	own := loadTopics(t, adapter, "topics")
	for name, test := range map[string]struct {
		handle native.ModelHandle
		kind   error
	}{
		"nil":           {nil, native.ErrNilHandle},
		"another type":  {&foreign{own.ID()}, native.ErrForeignHandle},
		"a typed nil":   {(*foreign)(nil), native.ErrForeignHandle},
		"the other one": {loadTopics(t, second, "others"), native.ErrForeignHandle},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := adapter.Inference(ctx, test.handle, topics)
			wantKind(t, err, test.kind)
			if got != nil {
				t.Errorf("a response %v beside %v", got, err)
			}
			wantKind(t, adapter.UnloadModel(ctx, test.handle), test.kind)
		})
	}
	wantModels(t, adapter, "topics", "others")
	infer[*native.SequenceClassificationResponse](t, adapter, own, topics)
}

func TestARequestMustBelongToTheCapability(t *testing.T) {
	adapter := newAdapter(t)
	for capability, asked := range requests {
		handle := load(t, adapter, native.LoadRequest{
			Model: string(capability), Path: fittingPath(t, capability), Capability: capability,
		})
		for other, wrong := range requests {
			if other == capability || reflect.TypeOf(wrong.request) == reflect.TypeOf(asked.request) {
				continue
			}
			got, err := adapter.Inference(context.Background(), handle, wrong.request)
			wantKind(t, err, native.ErrRequestType)
			if got != nil || !strings.Contains(err.Error(), string(capability)) ||
				!strings.Contains(err.Error(), fmt.Sprintf("%T", wrong.request)) {
				t.Errorf("got %v beside %q", got, err)
			}
		}
		for _, wrong := range []native.InferenceRequest{
			nil, (*native.EmbeddingRequest)(nil), &topics, odd{capability},
		} {
			_, err := adapter.Inference(context.Background(), handle, wrong)
			wantKind(t, err, native.ErrRequestType)
		}
	}
}

// odd is a request that no package knows.
type odd struct{ capability native.Capability }

func (o odd) Capability() native.Capability { return o.capability }

// ---- The adapter ------------------------------------------------------------

func TestAClosedAdapter(t *testing.T) {
	ctx := context.Background()
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	for range 2 {
		if err := adapter.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := adapter.Inference(ctx, handle, topics)
	wantKind(t, err, native.ErrClosed)
	wantKind(t, adapter.UnloadModel(ctx, handle), native.ErrClosed)
	_, err = adapter.LoadModel(ctx, native.LoadRequest{
		Path: modelPath(t, "bert-seq"), Capability: topics.Capability(),
	})
	wantKind(t, err, native.ErrClosed)
	if infos := adapter.Info(); len(infos) != 0 {
		t.Errorf("it describes %+v", infos)
	}
	next := newAdapter(t)
	wantModels(t, next)
	wantKind(t, next.UnloadModel(ctx, handle), native.ErrForeignHandle)
}

func TestClosingOneAdapterFreesTheModelsOfAll(t *testing.T) {
	ctx := context.Background()
	first, second := newAdapter(t), newAdapter(t)
	handle := loadTopics(t, second, "topics")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := second.Inference(ctx, handle, topics)
	wantKind(t, err, native.ErrClosed)
	wantKind(t, second.UnloadModel(ctx, handle), native.ErrClosed)
	wantModels(t, second)
}

func TestClosingUnderLoad(t *testing.T) {
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	errs := make(chan error)
	for g := range 16 {
		go func() {
			for {
				var err error
				if g%4 == 0 {
					_, err = adapter.LoadModel(context.Background(), native.LoadRequest{
						Model: fmt.Sprint(g), Path: modelPath(t, "bert-seq"), Capability: topics.Capability(),
					})
				} else {
					_, err = adapter.Inference(context.Background(), handle, topics)
				}
				if err != nil && !errors.Is(err, native.ErrAlreadyExists) {
					errs <- err
					return
				}
			}
		}()
	}
	time.Sleep(200 * time.Millisecond)
	if err := adapter.Close(); err != nil {
		t.Error(err)
	}
	for range 16 {
		wantKind(t, <-errs, native.ErrClosed)
	}
	wantModels(t, newAdapter(t))
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		options semantic.Options
		kind    error
	}{
		"device":   {semantic.Options{Device: "abacus"}, native.ErrInvalidRequest},
		"maxcalls": {semantic.Options{MaxCalls: -1}, native.ErrInvalidRequest},
	} {
		adapter, err := libsemantic.New(context.Background(), test.options)
		wantKind(t, err, test.kind)
		if adapter != nil {
			t.Errorf("%s: an adapter beside %v", name, err)
		}
	}
	newAdapter(t)
	_, err := libsemantic.New(context.Background(), semantic.Options{QueueRows: 5})
	wantKind(t, err, native.ErrAlreadyExists)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = libsemantic.New(ctx, options)
	wantKind(t, err, context.Canceled)
}

// ---- Memory -----------------------------------------------------------------

func TestUnloadingReturnsTheMemory(t *testing.T) {
	adapter := newAdapter(t)
	const size = 64 << 20
	large := artifact{modelType: "bert", vocab: 1 << 16, width: size >> 18}.write(t)
	request := native.LoadRequest{Path: large, Capability: native.CapabilityEmbedding}
	cycle := func() (grown, kept int64) {
		before := resident(t)
		handle := load(t, adapter, request)
		infer[*native.EmbeddingResponse](t, adapter, handle, native.EmbeddingRequest{Texts: []string{"a"}})
		grown = resident(t) - before
		if err := adapter.UnloadModel(context.Background(), handle); err != nil {
			t.Fatal(err)
		}
		return grown, resident(t) - before
	}
	// What the first load brings along stays, and later ones may use it again. The kernel may
	// take some of it away meanwhile.
	if grown, _ := cycle(); grown < size/2 {
		t.Errorf("the load of %d bytes takes %d", size, grown)
	}
	for range 2 {
		if _, kept := cycle(); kept > size/10 {
			t.Errorf("of a load of %d bytes %d stay", size, kept)
		}
	}
}

// resident is the memory of the process in bytes, without what the kernel can read again
// from files and so may take away at any time.
func resident(t *testing.T) int64 {
	t.Helper()
	return int64(procStatus(t, "RssAnon")+procStatus(t, "VmSwap")) << 10
}

// procStatus reads a number of /proc/self/status.
func procStatus(t *testing.T, name string) (value int) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if number, ok := strings.CutPrefix(line, name+":"); ok {
			if _, err := fmt.Sscan(number, &value); err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("no %s in /proc/self/status", name)
	return 0
}

// ---- Loads that end too late ------------------------------------------------

func TestACancelledLoadLeavesNothing(t *testing.T) {
	adapter := newAdapter(t)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	request := native.LoadRequest{Path: modelPath(t, "bert-seq"), Capability: topics.Capability()}
	_, err := adapter.LoadModel(cancelled, request)
	wantKind(t, err, context.Canceled)
	wantModels(t, adapter)

	// Cancelled halfway, it goes on to its end in the library and is undone then.
	large := artifact{modelType: "bert", vocab: 1 << 16, width: 64}.write(t)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			if stats, err := library(t).Stats(); err != nil || stats.ModelsLoading > 0 {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	handle, err := adapter.LoadModel(ctx, native.LoadRequest{Path: large, Capability: native.CapabilityEmbedding})
	wantKind(t, err, context.Canceled)
	if handle != nil {
		t.Errorf("a handle %v beside %v", handle, err)
	}
	wantModels(t, adapter)

	// Cancelled at any moment, it returns a handle or leaves nothing.
	for pause := time.Duration(0); pause < 60*time.Millisecond; pause += 4 * time.Millisecond {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(pause, cancel)
		handle, err := adapter.LoadModel(ctx, request)
		if err != nil {
			wantKind(t, err, context.Canceled)
		} else if err := adapter.UnloadModel(context.Background(), handle); err != nil {
			t.Fatal(err)
		}
		cancel()
		wantModels(t, adapter)
	}
}
