//go:build cgo

package semantic

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"
)

// together loads a model of each task and asks all of them.
func together(t *testing.T, rt *Runtime) []Request {
	t.Helper()
	var requests []Request
	for _, name := range []string{"bert-seq", "bert-token", "bert-embed-mean"} {
		requests = append(requests, Request{Model: load(t, rt, name, LoadOptions{})})
	}
	return requests
}

func TestModelsAskedTogetherAnswerAsAlone(t *testing.T) {
	requests := together(t, open(t, Options{}))
	requests = append(requests, Request{requests[0].Model, RunOptions{Threshold: 0.9}})
	texts := []string{"a derivative of x", "", "ask John Smith about the law"}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := RunModels(ctx, requests, texts)
	if err != nil {
		t.Fatal(err)
	}
	seq, errSeq := requests[0].Model.Classify(ctx, texts, RunOptions{})
	token, errToken := requests[1].Model.ClassifyTokens(ctx, texts, RunOptions{})
	embedding, errEmbed := requests[2].Model.Embed(ctx, texts, RunOptions{})
	strict, errStrict := requests[0].Model.Classify(ctx, texts, RunOptions{Threshold: 0.9})
	if err := errors.Join(errSeq, errToken, errEmbed, errStrict); err != nil {
		t.Fatal(err)
	}
	want := []Answer{
		{Classification: seq}, {TokenClassification: token}, {Embeddings: embedding},
		{Classification: strict},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestARequestFailsAlone(t *testing.T) {
	rt := open(t, Options{})
	requests := together(t, rt)
	closed := load(t, rt, "bert-reranker", LoadOptions{})
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	model := requests[0].Model
	requests = append(requests,
		Request{},
		Request{Model: closed},
		Request{model, RunOptions{Dimension: 8}},
		Request{model, RunOptions{PromptName: "a\x00b"}},
		Request{requests[2].Model, RunOptions{PromptName: "nobody's"}},
	)
	want := []Status{
		OK, OK, OK, ErrInvalidArgument, ErrClosed, ErrInvalidArgument, ErrInvalidArgument, ErrNotFound,
	}
	got, err := RunModels(context.Background(), requests, []string{"a"})
	wantStatus(t, err, ErrPartial)
	wantStatus(t, err, ErrInvalidArgument) // the status of the first request that failed
	for i, answer := range got {
		if want[i] == OK {
			if answer.Err != nil || !answer.hasResult() {
				t.Errorf("request %d: got %+v", i, answer)
			}
			continue
		}
		wantStatus(t, answer.Err, want[i])
		if answer.hasResult() {
			t.Errorf("request %d has a result", i)
		}
	}
	got, err = RunModels(context.Background(), requests[4:], []string{"a"})
	wantOnly(t, err, ErrClosed)
	if got != nil {
		t.Errorf("got %+v", got)
	}
	got, err = RunModels(context.Background(), requests[:2], []string{"a", "\xff"})
	wantStatus(t, err, ErrPartial)
	for i, answer := range got {
		var e *Error
		if !errors.As(answer.Err, &e) || e.Status != ErrPartial || e.Input != 1 || !answer.hasResult() {
			t.Errorf("request %d: got %+v", i, answer)
		}
		wantStatus(t, answer.Err, ErrInvalidArgument)
	}
	if got, err := RunModels(context.Background(), nil, []string{"a"}); err != nil || len(got) != 0 {
		t.Errorf("no requests: %v, %v", got, err)
	}
	_, err = RunModels(context.Background(), make([]Request, 65), nil)
	wantStatus(t, err, ErrInvalidArgument)
}

func TestContextsAndKeysEndRequests(t *testing.T) {
	rt := open(t, Options{})
	requests := together(t, rt)
	texts := slowTexts()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	begin := time.Now()
	_, err := RunModels(ctx, requests, texts)
	if took := time.Since(begin); !errors.Is(err, context.Canceled) || took > 5*time.Second {
		t.Errorf("got %v after %v", err, took)
	}
	_, err = RunModels(ctx, requests, texts)
	wantStatus(t, err, ErrCancelled)
	var none context.Context
	_, err = RunModels(none, requests, texts)
	wantStatus(t, err, ErrInvalidArgument)

	for i := range requests {
		requests[i].Options.CancelKey = 7
	}
	requests[1].Options.CancelKey = 8
	texts = texts[:2000]
	for i := range texts {
		texts[i] = "a"
	}
	model := requests[0].Model
	model.slots = make(chan struct{}, 1)
	model.slots <- struct{}{}
	time.AfterFunc(20*time.Millisecond, func() {
		if err := rt.Cancel(8); err != nil { // while the call waits for its slot
			t.Error(err)
		}
		<-model.slots
	})
	got, err := RunModels(context.Background(), requests, texts)
	wantStatus(t, err, ErrPartial)
	if len(got) != 3 || got[0].Err != nil || got[2].Err != nil || !errors.Is(got[1].Err, ErrCancelled) {
		t.Errorf("got %v, %+v", err, got)
	}
	wantStatus(t, rt.Cancel(7), ErrNotFound)
	wantStatus(t, rt.Cancel(8), ErrNotFound)

	model.slots <- struct{}{}
	short, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	_, err = RunModels(short, requests, texts)
	wantStatus(t, err, ErrDeadline)
	if taken := len(requests[1].Model.slots) + len(requests[2].Model.slots); taken != 0 {
		t.Errorf("%d slots are not given back", taken)
	}
	<-model.slots
}
