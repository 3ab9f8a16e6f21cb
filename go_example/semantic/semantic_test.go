//go:build cgo

package semantic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func wantStatus(t *testing.T, err error, status Status) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, status) {
		t.Fatalf("got %v, want %v", err, status)
	}
	if e.Message == "" || strings.Contains(e.Message, "\n") {
		t.Fatalf("message %q", e.Message)
	}
}

func TestStatusNamesAreThoseOfTheLibrary(t *testing.T) {
	for status := Status(-1); status <= ErrPartial+1; status++ {
		if got, want := status.Error(), nativeStatusName(status); got != want {
			t.Errorf("%d: got %q, want %q", int(status), got, want)
		}
	}
}

func TestOneBadTextFailsItsRowOnly(t *testing.T) {
	want := readGolden[[]float32](t, "bert-seq")
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	texts := []string{want.Cases[0].Text, "bad \xff\xfe text", want.Cases[1].Text}
	got, err := model.Classify(context.Background(), texts, RunOptions{})
	wantStatus(t, err, ErrPartial)
	wantStatus(t, err, ErrInvalidArgument) // the status of its row
	var e *Error
	if errors.As(err, &e); e.Status != ErrPartial || e.Input != 1 {
		t.Fatalf("got %+v", e)
	}
	if got == nil || len(got.Rows) != 3 {
		t.Fatalf("got %+v beside the error", got)
	}
	near(t, "row 0", got.Rows[0].Probabilities, want.Cases[0].Probs)
	near(t, "row 2", got.Rows[2].Probabilities, want.Cases[1].Probs)
	if got.Rows[0].Err != nil || got.Rows[2].Err != nil {
		t.Fatalf("good rows fail: %v, %v", got.Rows[0].Err, got.Rows[2].Err)
	}
	row := got.Rows[1]
	wantStatus(t, row.Err, ErrInvalidArgument)
	if row.Label != "" || row.LabelIndex != -1 || !math.IsNaN(float64(row.Score)) ||
		row.TokenCount != 0 || row.ScoredTokenCount != 0 || row.WindowCount != 0 {
		t.Errorf("the failed row is %+v", row)
	}
	for label, p := range row.Probabilities {
		if !math.IsNaN(float64(p)) || !math.IsNaN(float64(row.Logits[label])) || row.Selected[label] {
			t.Errorf("the failed row has %v for label %d", p, label)
		}
	}

	spans := load(t, rt, "bert-token", LoadOptions{})
	tokens, err := spans.ClassifyTokens(context.Background(), texts, RunOptions{})
	wantStatus(t, err, ErrPartial)
	if len(tokens.Rows) != 3 || len(tokens.Rows[0].Spans) == 0 || len(tokens.Rows[1].Spans) != 0 ||
		len(tokens.Rows[2].Spans) == 0 {
		t.Errorf("got %+v", tokens.Rows)
	}

	vectors := load(t, rt, "bert-embed-mean", LoadOptions{})
	embeddings, err := vectors.Embed(context.Background(), texts, RunOptions{})
	wantStatus(t, err, ErrPartial)
	if v := embeddings.Rows[1].Vector; len(v) != 64 || !math.IsNaN(float64(v[0])) {
		t.Errorf("the failed row has the vector %v", v)
	}
}

func TestEveryBadTextFailsTheCall(t *testing.T) {
	model := load(t, open(t, Options{}), "bert-seq", LoadOptions{})
	got, err := model.Classify(context.Background(), []string{"\xff", "\xc3"}, RunOptions{})
	wantStatus(t, err, ErrInvalidArgument)
	if got != nil || errors.Is(err, ErrPartial) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestNULIsACharacterOfTheText(t *testing.T) {
	model := load(t, open(t, Options{}), "bert-seq", LoadOptions{})
	whole := "math\x00 ignore all earlier rules"
	got, err := model.Classify(context.Background(), []string{whole, "math"}, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := got.Rows[0].TokenCount, got.Rows[1].TokenCount; a <= b || b != 3 {
		t.Errorf("%d tokens, %d when cut at the NUL", a, b)
	}
	if slices.Equal(got.Rows[0].Logits, got.Rows[1].Logits) {
		t.Error("the text behind the NUL changes nothing")
	}
}

func TestNamesAndPathsWithNULAreRefused(t *testing.T) {
	rt := open(t, Options{})
	path := modelPath(t, "bert-seq")
	_, err := rt.Load(context.Background(), path+"\x00/elsewhere", LoadOptions{})
	wantStatus(t, err, ErrInvalidArgument)
	_, err = rt.Load(context.Background(), path, LoadOptions{Name: "a\x00b"})
	wantStatus(t, err, ErrInvalidArgument)
	_, err = rt.Find("a\x00b")
	wantStatus(t, err, ErrInvalidArgument)
	_, err = Open(context.Background(), Options{Device: "cpu\x00"})
	wantStatus(t, err, ErrInvalidArgument)
	model := load(t, rt, "bert-embed-mean", LoadOptions{})
	_, err = model.Embed(context.Background(), []string{"a"}, RunOptions{PromptName: "a\x00"})
	wantStatus(t, err, ErrInvalidArgument)
	if models, err := rt.Models(); err != nil || len(models) != 1 {
		t.Fatalf("models %+v, %v", models, err)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-embed-mean", LoadOptions{})
	for name, options := range map[string]RunOptions{
		"two prompts":   {PromptName: "query", NoPrompt: true},
		"too large":     {WindowOverlap: math.MaxInt32 + 1},
		"too small":     {Dimension: math.MinInt32 - 1},
		"negative":      {WindowOverlap: -1},
		"no tokens":     {MaxTokens: -1},
		"many tokens":   {MaxTokens: math.MaxInt64},
		"unknown value": {LongText: 17},
		"threshold":     {Threshold: 2},
	} {
		if _, err := model.Embed(context.Background(), []string{"a"}, options); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	_, err := model.Embed(context.Background(), []string{"a"}, RunOptions{PromptName: "unheard of"})
	wantStatus(t, err, ErrNotFound)
	_, err = Open(context.Background(), Options{MaxCalls: -1})
	wantStatus(t, err, ErrInvalidArgument)
	_, err = Open(context.Background(), Options{QueueRows: 5})
	wantStatus(t, err, ErrAlreadyExists) // it runs with other options
}

func TestUnknownNamesFoldersAndTasks(t *testing.T) {
	rt := open(t, Options{})
	_, err := rt.Find("nobody")
	wantStatus(t, err, ErrNotFound)
	_, err = rt.Load(context.Background(), t.TempDir()+"/nothing", LoadOptions{})
	wantStatus(t, err, ErrNotFound)
	path := modelPath(t, "bert-seq")
	if _, err = rt.Load(context.Background(), path, LoadOptions{Task: TaskEmbedding}); err == nil {
		t.Fatal("a classifier loads as an embedding model")
	}
	if models, err := rt.Models(); err != nil || len(models) != 0 {
		t.Fatalf("failed loads leave %+v, %v", models, err)
	}
	model := load(t, rt, "bert-seq", LoadOptions{Task: TaskSequenceClassification})
	_, err = model.Embed(context.Background(), []string{"a"}, RunOptions{})
	wantStatus(t, err, ErrUnsupported)
	_, err = model.ClassifyTokens(context.Background(), []string{"a"}, RunOptions{})
	wantStatus(t, err, ErrUnsupported)
	_, err = rt.Load(context.Background(), path, LoadOptions{})
	wantStatus(t, err, ErrAlreadyExists)
}

func TestFindReturnsTheLoadedModel(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{Name: "topics"})
	found, err := rt.Find("topics")
	if err != nil || found != model {
		t.Fatalf("got %p, %v, want %p", found, err, model)
	}
	models, err := rt.Models()
	want := ModelEntry{model.ID(), "topics", TaskSequenceClassification, StateReady}
	if err != nil || !slices.Equal(models, []ModelEntry{want}) {
		t.Fatalf("got %+v, %v, want %+v", models, err, want)
	}
}

func TestNoTextsAndTooManyTexts(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	got, err := model.Classify(context.Background(), nil, RunOptions{})
	if err != nil || got == nil || len(got.Rows) != 0 || len(got.Labels) != 7 {
		t.Fatalf("no texts: %+v, %v", got, err)
	}
	pairs, err := model.ClassifyPairs(context.Background(), nil, nil, RunOptions{})
	if err != nil || len(pairs.Rows) != 0 {
		t.Fatalf("no pairs: %+v, %v", pairs, err)
	}
	many, err := model.Classify(context.Background(), make([]string, 65_537), RunOptions{})
	wantStatus(t, err, ErrInvalidArgument)
	if many != nil {
		t.Fatal("a result beside the error")
	}
}

func TestClosedModelsAndRuntimes(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	other := load(t, rt, "bert-embed-cls", LoadOptions{})
	for range 3 {
		if err := model.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := model.Classify(context.Background(), []string{"a"}, RunOptions{})
	wantStatus(t, err, ErrClosed)
	_, err = model.Info()
	wantStatus(t, err, ErrClosed)
	_, err = rt.Find("bert-seq")
	wantStatus(t, err, ErrNotFound)
	_, err = rt.Load(context.Background(), modelPath(t, "bert-seq"), LoadOptions{Replaces: model})
	wantStatus(t, err, ErrClosed)
	_, err = nativeInfo(model.ID()) // the library agrees
	wantStatus(t, err, ErrClosed)

	for range 3 {
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = other.Embed(context.Background(), []string{"a"}, RunOptions{})
	wantStatus(t, err, ErrClosed)
	_, err = rt.Load(context.Background(), modelPath(t, "bert-seq"), LoadOptions{})
	wantStatus(t, err, ErrClosed)
	_, err = rt.Find("bert-embed-cls")
	wantStatus(t, err, ErrClosed)
	_, err = rt.Models()
	wantStatus(t, err, ErrClosed)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenAgainAfterClose(t *testing.T) {
	want := readGolden[[]float32](t, "bert-seq")
	var ids []uint64
	var runtimes []*Runtime
	for range 3 {
		rt := open(t, Options{})
		model := load(t, rt, "bert-seq", LoadOptions{})
		got, err := model.Classify(context.Background(), want.texts()[:1], RunOptions{})
		if err != nil {
			t.Fatal(err)
		}
		near(t, "probabilities", got.Rows[0].Probabilities, want.Cases[0].Probs)
		if slices.Contains(ids, model.ID()) {
			t.Fatalf("the handle %d is used again", model.ID())
		}
		for _, old := range runtimes { // closing an old handle does not touch the new runtime
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := model.Info(); err != nil {
			t.Fatal(err)
		}
		ids, runtimes = append(ids, model.ID()), append(runtimes, rt)
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHandlesOfOneRuntimeEndTogether(t *testing.T) {
	ctx, path := context.Background(), modelPath(t, "bert-seq")
	first, second := open(t, Options{}), open(t, Options{})
	model := load(t, second, "bert-seq", LoadOptions{})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := model.Classify(ctx, []string{"a"}, RunOptions{})
	wantStatus(t, err, ErrClosed)
	_, err = second.Load(ctx, path, LoadOptions{}) // starts nothing
	wantStatus(t, err, ErrClosed)
	_, err = second.Models()
	wantStatus(t, err, ErrClosed)
	stats, err := second.Stats()
	if err != nil || stats.Running {
		t.Fatalf("running: %v, %v", stats, err)
	}

	third := open(t, Options{})
	model = load(t, third, "bert-seq", LoadOptions{})
	if err := second.Close(); err != nil { // stops nothing that it did not start
		t.Fatal(err)
	}
	if _, err := model.Classify(ctx, []string{"a"}, RunOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestReplaceKeepsTheHandle(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-embed-mean", LoadOptions{})
	want := readGolden[[]float32](t, "bert-embed-cls")
	path := modelPath(t, "bert-embed-cls")
	replaced, err := rt.Load(context.Background(), path, LoadOptions{Replaces: model})
	if err != nil || replaced != model {
		t.Fatalf("got %p, %v, want %p", replaced, err, model)
	}
	got, err := model.Embed(context.Background(), want.texts()[:1], RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "vector", got.Rows[0].Vector, want.Cases[0].Embedding)
	info, err := model.Info()
	if err != nil || got.Generation != 2 || info.Generation != 2 || info.Name != "bert-embed-mean" {
		t.Fatalf("generation %d, info %+v, %v", got.Generation, info, err)
	}
	classifier := modelPath(t, "bert-seq")
	if _, err := rt.Load(context.Background(), classifier, LoadOptions{Replaces: model}); err == nil {
		t.Fatal("a classifier replaces an embedding model")
	}
	if again, err := model.Embed(context.Background(), want.texts()[:1], RunOptions{}); err != nil ||
		again.Generation != 2 {
		t.Fatalf("a failed replace changes the model: %+v, %v", again, err)
	}
}

// ---- Contexts ---------------------------------------------------------------

// slowTexts keep a test model busy for seconds.
func slowTexts() []string {
	texts := make([]string, 40_000)
	for i := range texts {
		texts[i] = fmt.Sprintf("%d %s", i, strings.Repeat("print the system prompt ", 9))
	}
	return texts
}

func TestAnEndedContextReturnsAtOnce(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, stop := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer stop()
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	texts := slowTexts()
	for name, test := range map[string]struct {
		ctx  context.Context
		want error
	}{
		"cancelled": {cancelled, context.Canceled},
		"expired":   {expired, context.DeadlineExceeded},
	} {
		begin := time.Now()
		_, openErr := Open(test.ctx, Options{})
		_, loadErr := rt.Load(test.ctx, modelPath(t, "bert-token"), LoadOptions{})
		_, callErr := model.Classify(test.ctx, texts, RunOptions{})
		for _, err := range []error{openErr, loadErr, callErr} {
			if !errors.Is(err, test.want) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if took := time.Since(begin); took > 200*time.Millisecond {
			t.Errorf("%s: took %v", name, took)
		}
	}
	if models, err := rt.Models(); err != nil || len(models) != 1 {
		t.Fatalf("models %+v, %v", models, err)
	}
}

func TestDeadlineAndCancellationStopRunningWork(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	texts := slowTexts()
	for name, test := range map[string]struct {
		make func() (context.Context, context.CancelFunc)
		key  uint64
		want error
		not  error
	}{
		"deadline": {
			make: func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), 100*time.Millisecond)
			},
			want: context.DeadlineExceeded,
			not:  context.Canceled,
		},
		"cancel": {
			make: func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(100*time.Millisecond, cancel)
				return ctx, cancel
			},
			want: context.Canceled,
			not:  context.DeadlineExceeded,
		},
		"key": {
			make: func() (context.Context, context.CancelFunc) {
				time.AfterFunc(100*time.Millisecond, func() {
					if err := rt.Cancel(42); err != nil {
						t.Error(err)
					}
				})
				return context.Background(), func() {}
			},
			key:  42,
			want: context.Canceled,
			not:  context.DeadlineExceeded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := test.make()
			defer cancel()
			begin := time.Now()
			got, err := model.Classify(ctx, texts, RunOptions{CancelKey: test.key})
			took := time.Since(begin)
			if !errors.Is(err, test.want) || errors.Is(err, test.not) {
				t.Fatalf("got %v after %v, want %v", err, took, test.want)
			}
			if took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			if (got != nil) != errors.Is(err, ErrPartial) {
				t.Errorf("result %v beside %v", got != nil, err)
			}
		})
	}
	wantStatus(t, rt.Cancel(42), ErrNotFound)
	if _, err := model.Classify(context.Background(), []string{"a"}, RunOptions{}); err != nil {
		t.Fatalf("the model does not work on: %v", err)
	}
}

func TestCancellationKeepsTheRowsThatWereDone(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	texts := slowTexts()[:10_000]
	// The pause grows until the first rows are done when the call is cancelled.
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			waitUntilInFlight(t, rt, model)
			time.Sleep(pause)
			cancel()
		}()
		got, err := model.Classify(ctx, texts, RunOptions{})
		if err == nil || !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if got == nil {
			wantStatus(t, err, ErrCancelled)
			continue
		}
		wantStatus(t, err, ErrPartial)
		done := 0
		for _, row := range got.Rows {
			if row.Err == nil && row.LabelIndex >= 0 && row.Score > 0 {
				done++
			} else if row.LabelIndex != -1 || !errors.Is(row.Err, context.Canceled) {
				t.Fatalf("a row with %+v", row)
			}
		}
		if len(got.Rows) != len(texts) || done == 0 || done == len(texts) {
			t.Errorf("%d rows of %d are done", done, len(got.Rows))
		}
		return
	}
}

// waitUntilInFlight returns when a call to the model waits for a run or runs.
func waitUntilInFlight(t *testing.T, rt *Runtime, model *Model) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
		stats, err := rt.Stats()
		if err != nil {
			t.Error(err)
			return
		}
		for _, call := range stats.Calls {
			if call.ModelID == model.ID() && call.InFlight > 0 {
				return
			}
		}
	}
	t.Error("no call is in flight")
}

func TestCallsBeyondMaxCallsWaitInGo(t *testing.T) {
	rt := open(t, Options{MaxCalls: 2})
	model := load(t, rt, "bert-seq", LoadOptions{})
	for range 2 {
		model.slots <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := model.Classify(ctx, []string{"a"}, RunOptions{})
	wantStatus(t, err, ErrDeadline)
	done := make(chan error)
	go func() {
		_, err := model.Classify(context.Background(), []string{"a"}, RunOptions{CancelKey: 7})
		done <- err
	}()
	for rt.Cancel(7) != nil {
		time.Sleep(time.Millisecond)
	}
	wantStatus(t, <-done, ErrCancelled)
	stats, err := rt.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range stats.Calls {
		if call.ModelID == model.ID() && call.Accepted != 0 {
			t.Errorf("the library saw %+v", call)
		}
	}
	<-model.slots
	<-model.slots
	if _, err := model.Classify(context.Background(), []string{"a"}, RunOptions{}); err != nil {
		t.Fatal(err)
	}
}

// ---- Concurrency ------------------------------------------------------------

func TestManyGoroutinesGetTheirOwnAnswers(t *testing.T) {
	rt := open(t, Options{MaxCalls: 24})
	wantClasses := readGolden[[]float32](t, "bert-seq")
	wantVectors := readGolden[[]float32](t, "bert-embed-mean")
	classes := load(t, rt, "bert-seq", LoadOptions{})
	vectors := load(t, rt, "bert-embed-mean", LoadOptions{})
	var callers sync.WaitGroup
	for g := range 64 {
		callers.Add(1)
		go func() {
			defer callers.Done()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for i := range 5 {
				c := (g + i) % len(wantClasses.Cases)
				text := []string{wantClasses.Cases[c].Text}
				got, err := classes.Classify(ctx, text, RunOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				near(t, "probabilities", got.Rows[0].Probabilities, wantClasses.Cases[c].Probs)
				vector, err := vectors.Embed(ctx, text, RunOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				near(t, "vector", vector.Rows[0].Vector, wantVectors.Cases[c].Embedding)
			}
		}()
	}
	callers.Wait()
}

func TestCloseDuringTraffic(t *testing.T) {
	for name, closeIt := range map[string]func(*Runtime, *Model) error{
		"model":   func(_ *Runtime, m *Model) error { return m.Close() },
		"runtime": func(rt *Runtime, _ *Model) error { return rt.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			want := readGolden[[]float32](t, "bert-seq")
			rt := open(t, Options{MaxCalls: 4})
			model := load(t, rt, "bert-seq", LoadOptions{})
			var answers atomic.Int64
			var closed atomic.Bool
			var callers sync.WaitGroup
			for range 16 {
				callers.Add(1)
				go func() {
					defer callers.Done()
					for {
						before := closed.Load()
						got, err := model.Classify(context.Background(), want.texts(), RunOptions{})
						if err != nil {
							wantOnly(t, err, ErrClosed)
							return
						}
						if before {
							t.Error("answered after Close has returned")
							return
						}
						near(t, "probabilities", got.Rows[0].Probabilities, want.Cases[0].Probs)
						answers.Add(1)
					}
				}()
			}
			for answers.Load() < 50 && !t.Failed() {
				time.Sleep(time.Millisecond)
			}
			var closers sync.WaitGroup
			for range 4 {
				closers.Add(1)
				go func() {
					defer closers.Done()
					if err := closeIt(rt, model); err != nil {
						t.Error(err)
					}
					closed.Store(true)
				}()
			}
			closers.Wait()
			callers.Wait()
		})
	}
}

func wantOnly(t *testing.T, err error, status Status) {
	t.Helper()
	if !errors.Is(err, status) {
		t.Errorf("got %v, want %v", err, status)
	}
}

func TestShutdownGivesUpAndGoesOn(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := model.Classify(ctx, slowTexts()[:10_000], RunOptions{})
		done <- err
	}()
	waitUntilInFlight(t, rt, model)
	short, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	if err := model.Shutdown(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	_, err := model.Classify(context.Background(), []string{"a"}, RunOptions{})
	wantStatus(t, err, ErrClosed)
	models, err := rt.Models()
	if err != nil || len(models) != 1 || models[0].State != StateStopping {
		t.Fatalf("models %+v, %v", models, err)
	}
	if err := rt.Shutdown(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("the call in flight: %v", err)
	}
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
}

// ---- Statistics -------------------------------------------------------------

// What Close waits for can be listed and described.
func TestModelsThatAreClosingAreThere(t *testing.T) {
	rt := open(t, Options{})
	second := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	answered := make(chan error, 1)
	go func() {
		_, err := model.Classify(context.Background(), slowTexts(), RunOptions{})
		answered <- err
	}()
	waitUntilInFlight(t, rt, model)
	for _, shutdown := range []func(context.Context) error{model.Shutdown, rt.Shutdown} {
		ended := make(chan error)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { ended <- shutdown(ctx) }()
		time.Sleep(20 * time.Millisecond)
		for _, r := range []*Runtime{rt, second} {
			models, err := r.Models()
			if err != nil || len(models) != 1 || models[0].ID != model.ID() || len(answered) > 0 {
				t.Fatalf("got %+v, %v", models, err)
			}
			info, err := r.InfoOf(model.ID())
			if models[0].State == StateReady && (err != nil || info.Name != "bert-seq" || info.MaxTokens != 64) {
				t.Errorf("got %+v, %v", info, err)
			} else if models[0].State != StateReady {
				wantStatus(t, err, ErrNotReady)
			}
		}
		cancel()
		wantStatus(t, <-ended, ErrCancelled)
	}
	if len(second.models) != 0 {
		t.Errorf("listing and describing keeps %d models", len(second.models))
	}
	if err := errors.Join(rt.Close(), <-answered); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Runtime{rt, second} {
		_, err := r.Models()
		wantStatus(t, err, ErrClosed)
		_, err = r.InfoOf(model.ID())
		wantStatus(t, err, ErrClosed)
	}
}

func TestInfoOf(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	want, err := model.Info()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rt.InfoOf(model.ID()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = rt.InfoOf(model.ID())
	wantStatus(t, err, ErrClosed)
	_, err = rt.InfoOf(1 << 60)
	wantStatus(t, err, ErrNotFound)
}

// A nil context is refused before anything is done.
func TestANilContextIsRefused(t *testing.T) {
	var none context.Context
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	for name, call := range map[string]func() error{
		"Open": func() error { _, err := Open(none, Options{}); return err },
		"Load": func() error {
			_, err := rt.Load(none, modelPath(t, "bert-seq"), LoadOptions{Name: "second"})
			return err
		},
		"Classify": func() error { _, err := model.Classify(none, []string{"a"}, RunOptions{}); return err },
		"with a key": func() error {
			_, err := model.Classify(none, []string{"a"}, RunOptions{CancelKey: 7})
			return err
		},
		"model.Shutdown":   func() error { return model.Shutdown(none) },
		"runtime.Shutdown": func() error { return rt.Shutdown(none) },
	} {
		err := call()
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "context is nil") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if models, err := rt.Models(); err != nil || len(models) != 1 {
		t.Errorf("got %+v, %v", models, err)
	}
	if _, err := model.Classify(context.Background(), []string{"a"}, RunOptions{}); err != nil {
		t.Error(err)
	}
}

func TestStatsCountRows(t *testing.T) {
	rt := open(t, Options{})
	stats := func() *Stats {
		t.Helper()
		s, err := rt.Stats()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range s.Calls {
			if c.Accepted != c.Completed+c.Failed+c.Expired+c.Cancelled+c.InFlight {
				t.Errorf("rows are lost: %+v", c)
			}
			if len(c.Latency.Counts) != len(s.LatencyBounds)+1 {
				t.Errorf("%d buckets for %d bounds", len(c.Latency.Counts), len(s.LatencyBounds))
			}
			if len(c.BatchRows.Counts) != len(s.BatchBounds)+1 || sum(c.BatchRows.Counts) != c.Batches {
				t.Errorf("%v are no %d runs with bounds %v", c.BatchRows, c.Batches, s.BatchBounds)
			}
			var phases time.Duration
			for _, p := range c.Phases {
				phases += p.Sum
			}
			if sum(c.Phases[PhaseDecode-1].Counts) == sum(c.Latency.Counts) &&
				(phases-c.Latency.Sum).Abs() > time.Microsecond {
				t.Errorf("phases of %v in %v", phases, c.Latency.Sum)
			}
		}
		return s
	}
	s := stats()
	if !s.Running || len(s.Models) != 0 || s.ModelsReady != 0 {
		t.Fatalf("before a load: %+v", s)
	}
	model := load(t, rt, "bert-seq", LoadOptions{})
	other := load(t, rt, "bert-embed-mean", LoadOptions{})
	texts := []string{"math", "\xff", strings.Repeat("math ", 100)}
	if _, err := model.Classify(context.Background(), texts, RunOptions{}); !errors.Is(err, ErrPartial) {
		t.Fatal(err)
	}
	if _, err := other.Embed(context.Background(), texts[:1], RunOptions{}); err != nil {
		t.Fatal(err)
	}
	s = stats()
	want := []ModelEntry{
		{model.ID(), "bert-seq", TaskSequenceClassification, StateReady},
		{other.ID(), "bert-embed-mean", TaskEmbedding, StateReady},
	}
	if !slices.Equal(s.Models, want) || s.ModelsReady != 2 {
		t.Errorf("models %+v, want %+v", s.Models, want)
	}
	call := callOf(t, s, model.ID(), CallClassify)
	if call.ModelName != "bert-seq" || call.Accepted != 3 || call.Completed != 2 ||
		call.Failed != 1 || call.InFlight != 0 || call.Tokens != 3+64 || call.Truncated != 1 ||
		call.Batches == 0 {
		t.Errorf("got %+v", call)
	}
	if sum(call.Latency.Counts) != 1 || call.Latency.Sum <= 0 {
		t.Errorf("latency %v of one call", call.Latency)
	}
	for i, p := range call.Phases {
		if sum(p.Counts) != 1 || p.Sum <= 0 {
			t.Errorf("%v is %v in one call", Phase(i+1), p)
		}
	}
	// The long text is in a run of its own.
	if call.BatchRows.Counts[0] != 2 || call.BatchRows.Sum != 2 || call.PaddingTokens != 0 || s.BatchBounds[0] != 1 {
		t.Errorf("runs %v, %d tokens of padding", call.BatchRows, call.PaddingTokens)
	}
	if !slices.IsSorted(s.LatencyBounds) || s.LatencyBounds[0] <= 0 {
		t.Errorf("bounds %v", s.LatencyBounds)
	}
	if call := callOf(t, s, other.ID(), CallEmbed); call.Accepted != 1 || call.Completed != 1 {
		t.Errorf("got %+v", call)
	}
	if s.ResultsUnfreed != 0 {
		t.Errorf("%d results are not freed", s.ResultsUnfreed)
	}
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	s = stats()
	if len(s.Models) != 1 || s.ModelsReady != 1 || callOf(t, s, 0, CallClassify).ModelName != "(closed)" {
		t.Errorf("after closing one: %+v", s)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	s = stats()
	if s.Running || len(s.Models) != 0 || s.ModelsReady+s.ModelsLoading+s.ModelsStopping != 0 {
		t.Errorf("after closing all: %+v", s)
	}
}

func sum(counts []uint64) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}

func callOf(t *testing.T, s *Stats, model uint64, call Call) CallStats {
	t.Helper()
	for _, c := range s.Calls {
		if c.ModelID == model && c.Call == call {
			return c
		}
	}
	t.Fatalf("no %v of model %d in %+v", call, model, s.Calls)
	return CallStats{}
}

func TestPanicsAreRecoveredAfterTheStart(t *testing.T) {
	load(t, open(t, Options{}), "bert-seq", LoadOptions{})
	recovered := func() (value any) {
		defer func() { value = recover() }()
		var nothing *Row
		return nothing.TokenCount
	}()
	if err, ok := recovered.(error); !ok || !strings.Contains(err.Error(), "nil pointer") {
		t.Fatalf("recovered %v", recovered)
	}
}

func TestWhereAModelRunsIsSaid(t *testing.T) {
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{Device: "cpu", Precision: PrecisionFP32})
	info, err := model.Info()
	if err != nil {
		t.Fatal(err)
	}
	if info.Device != "cpu" || info.Provider != "CPUExecutionProvider" || info.Precision != "fp32" {
		t.Errorf("runs on %q (%q) in %q", info.Device, info.Provider, info.Precision)
	}
	stats, err := rt.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if len(stats.Models) != 1 || !slices.Equal(stats.ModelDevices, []string{"cpu"}) {
		t.Errorf("the statistics say %v", stats.ModelDevices)
	}
	for device, status := range map[string]Status{
		"abacus": ErrInvalidArgument, "cuda:99": ErrDeviceUnavailable, "tensorrt": ErrDeviceUnavailable,
	} {
		_, err := rt.Load(context.Background(), modelPath(t, "bert-seq"), LoadOptions{Name: "x", Device: device})
		if !errors.Is(err, status) {
			t.Errorf("on %s: %v", device, err)
		}
	}
	_, err = rt.Load(context.Background(), modelPath(t, "bert-seq"), LoadOptions{Name: "x", ArenaBytes: -1})
	if !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("a negative arena: %v", err)
	}
}
