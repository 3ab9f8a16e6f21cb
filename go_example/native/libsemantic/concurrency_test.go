//go:build cgo

package libsemantic_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libsemantic/libsemantic/go_example/native"
)

// longVariable set to 1 makes the tests of this file as long as they should be.
const longVariable = "SEMANTIC_TEST_LONG"

// A place holds a model that goroutines load, use and unload as they like.
type place struct {
	request native.LoadRequest
	infer   native.InferenceRequest
	right   func(native.InferenceResponse) error
	handle  atomic.Pointer[native.ModelHandle]
}

// places are eight, and only two have the same name, so that loads meet taken names.
func places(t *testing.T) []*place {
	t.Helper()
	seq, embed := readGolden[[]float32](t, "bert-seq"), readGolden[[]float32](t, "bert-embed-mean")
	token, pair := entities(t), readGolden[[]float32](t, "bert-reranker")
	tokens := readGolden[[][]float32](t, "bert-token")
	kinds := []*place{
		{
			request: native.LoadRequest{Path: modelPath(t, "bert-seq")},
			infer:   native.SequenceClassificationRequest{Texts: seq.texts()[:2]},
			right: func(got native.InferenceResponse) error {
				rows := got.(*native.SequenceClassificationResponse).Rows
				return errors.Join(close32(rows[0].Probabilities, seq.Cases[0].Probs),
					close32(rows[1].Probabilities, seq.Cases[1].Probs))
			},
		},
		{
			request: native.LoadRequest{Path: modelPath(t, "bert-embed-mean")},
			infer:   native.EmbeddingRequest{Texts: embed.texts()[:2]},
			right: func(got native.InferenceResponse) error {
				rows := got.(*native.EmbeddingResponse).Rows
				return errors.Join(close32(rows[0].Vector, embed.Cases[0].Embedding),
					close32(rows[1].Vector, embed.Cases[1].Embedding))
			},
		},
		{
			request: native.LoadRequest{Path: modelPath(t, "bert-token")},
			infer:   native.TokenClassificationRequest{Texts: tokens.texts()[:1]},
			right: func(got native.InferenceResponse) error {
				found := got.(*native.TokenClassificationResponse).Rows[0].Entities
				if len(found) != len(token[0]) {
					return fmt.Errorf("%d entities, want %d", len(found), len(token[0]))
				}
				for i, e := range found {
					if w := token[0][i]; e.Label != w.Label || e.Start != w.Start || e.End != w.End {
						return fmt.Errorf("entity %+v, want %+v", e, w)
					}
				}
				return nil
			},
		},
		{
			request: native.LoadRequest{Path: modelPath(t, "bert-reranker")},
			infer: native.RerankingRequest{
				Query: pair.Cases[0].Text, Documents: []string{pair.Cases[0].TextPair},
			},
			right: func(got native.InferenceResponse) error {
				row := got.(*native.RerankingResponse).Rows[0]
				return close32([]float32{row.Logit}, pair.Cases[0].Logits)
			},
		},
	}
	var out []*place
	for _, p := range kinds {
		p.request.Capability = p.infer.Capability()
		out = append(out, p, &place{request: p.request, infer: p.infer, right: p.right})
	}
	return out
}

func close32(got, want []float32) error {
	for i := range want {
		if len(got) != len(want) || !(math.Abs(float64(got[i]-want[i])) <= tolerance) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
	}
	return nil
}

type tally struct{ right, loads, unloads, refused atomic.Int64 }

// churn lets 32 goroutines load, infer and unload for a while.
func churn(t *testing.T, adapter native.BackendAdapter, all []*place, length time.Duration) *tally {
	t.Helper()
	counts := new(tally)
	deadline := time.Now().Add(length)
	var running sync.WaitGroup
	for g := range 32 {
		running.Add(1)
		go func() {
			defer running.Done()
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for time.Now().Before(deadline) && !t.Failed() {
				if err := step(adapter, all[random.IntN(len(all))], random, counts); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	running.Wait()
	for _, p := range all {
		if h := p.handle.Swap(nil); h != nil {
			if err := counts.unload(adapter, *h); err != nil {
				t.Error(err)
			}
		}
	}
	return counts
}

// step does one thing at a place. Its error is one that must not be.
func step(adapter native.BackendAdapter, p *place, random *rand.Rand, counts *tally) error {
	ctx := context.Background()
	if random.IntN(8) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(3_000))*time.Microsecond)
		defer cancel()
	}
	held := p.handle.Load()
	switch action := random.IntN(40); {
	case held == nil || action == 0:
		handle, err := adapter.LoadModel(ctx, p.request)
		if err != nil {
			return counts.mayRefuse(err, native.ErrAlreadyExists, context.DeadlineExceeded)
		}
		counts.loads.Add(1)
		if old := p.handle.Swap(&handle); old != nil {
			return counts.unload(adapter, *old)
		}
		return nil
	case action == 1:
		err := adapter.UnloadModel(ctx, *held)
		if err != nil {
			return counts.mayRefuse(err, native.ErrClosed, context.DeadlineExceeded)
		}
		counts.unloads.Add(1)
		if random.IntN(4) > 0 { // else the next load finds it
			p.handle.CompareAndSwap(held, nil)
		}
		return nil
	case action == 2:
		for _, info := range adapter.Info() {
			if info.Name == "" || info.IsLoaded && (info.Path == "" || info.Provider == "") {
				return fmt.Errorf("info %+v", info)
			}
		}
		return nil
	}
	got, err := adapter.Inference(ctx, *held, p.infer)
	if err != nil {
		return counts.mayRefuse(err, native.ErrClosed, native.ErrNotReady, context.DeadlineExceeded)
	}
	counts.right.Add(1)
	return p.right(got)
}

// unload frees a model that may be free already, however long it takes.
func (c *tally) unload(adapter native.BackendAdapter, handle native.ModelHandle) error {
	err := adapter.UnloadModel(context.Background(), handle)
	if err == nil {
		c.unloads.Add(1)
		return nil
	}
	return c.mayRefuse(err, native.ErrClosed)
}

func (c *tally) mayRefuse(err error, kinds ...error) error {
	var e *native.Error
	for _, kind := range kinds {
		if errors.As(err, &e) && errors.Is(err, kind) {
			c.refused.Add(1)
			return nil
		}
	}
	return err
}

type footprint struct {
	goroutines, threads int
	resident            int64
}

func measure(t *testing.T) footprint {
	t.Helper()
	runtime.GC()
	return footprint{runtime.NumGoroutine(), procStatus(t, "Threads"), resident(t)}
}

func TestManyGoroutinesLoadInferAndUnload(t *testing.T) {
	length := 5 * time.Second
	if os.Getenv(longVariable) == "1" {
		length = 30 * time.Second
	}
	adapter := newAdapter(t)
	all := places(t)
	var after [2]footprint
	for round := range after {
		counts := churn(t, adapter, all, length)
		wantModels(t, adapter)
		right, loads, unloads := counts.right.Load(), counts.loads.Load(), counts.unloads.Load()
		t.Logf("round %d: %d right answers, %d loads, %d refusals", round, right, loads, counts.refused.Load())
		if loads != unloads || loads < 4 || right < 50 || counts.refused.Load() == 0 {
			t.Errorf("%d loads, %d unloads, %d right answers, %d refusals",
				loads, unloads, right, counts.refused.Load())
		}
		after[round] = measure(t)
	}
	first, second := after[0], after[1]
	t.Logf("after the rounds: %+v, %+v", first, second)
	if second.goroutines > first.goroutines+1 || second.threads > first.threads+4 ||
		second.resident > first.resident+32<<20 {
		t.Errorf("the second round leaves %+v, the first %+v", second, first)
	}
}
