//go:build cgo

package libsemantic_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// replace puts another model under the name, as any user of the library may.
func replace(t *testing.T, name, path string) {
	t.Helper()
	model, err := library(t).Find(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := library(t).Load(context.Background(), path, semantic.LoadOptions{Replaces: model}); err != nil {
		t.Fatal(err)
	}
}

// A handle answers only what it was loaded for, also when its model was replaced.
func TestAReplacedModelMustFitTheRequestOfTheHandle(t *testing.T) {
	ctx := context.Background()
	topicLabels := map[int]string{0: "biology", 1: "business", 2: "chemistry", 3: "computer science",
		4: "economics", 5: "math", 6: "other"}
	sports := map[string]any{"id2label": map[string]string{"0": "biology", "1": "business",
		"2": "chemistry", "3": "computer science", "4": "economics", "5": "math", "6": "sports"},
		"label2id": map[string]int{"biology": 0, "business": 1, "chemistry": 2, "computer science": 3,
			"economics": 4, "math": 5, "sports": 6}}
	wide := artifact{modelType: "bert", vocab: 664, width: 8, dims: []int{4}}
	narrow := artifact{modelType: "bert", vocab: 664, width: 8}
	other := artifact{modelType: "modernbert", vocab: 664, width: 8, dims: []int{4}}
	large := artifact{modelType: "modernbert", vocab: 200_000, width: 8, dims: []int{4}, int8: true}
	text := native.EmbeddingRequest{Texts: []string{"a"}}
	for name, test := range map[string]struct {
		request   native.LoadRequest
		ask       native.InferenceRequest
		fits, not string // folders that replace it
		sides     []string
	}{
		"a reranker": {
			request: native.LoadRequest{Path: modelPath(t, "bert-reranker"), Capability: native.CapabilityReranking},
			ask:     requests[native.CapabilityReranking].request,
			fits:    modelPath(t, "bert-reranker"),
			not:     modelPath(t, "bert-seq"),
			sides:   []string{"reranking", "one label", "7"},
		},
		"an adapter": {
			request: native.LoadRequest{
				Path: fittingPath(t, native.CapabilityLoRAAdapterServing), Capability: native.CapabilityLoRAAdapterServing,
			},
			ask:   requests[native.CapabilityLoRAAdapterServing].request,
			fits:  fittingPath(t, native.CapabilityLoRAAdapterServing),
			not:   modelPath(t, "bert-seq"),
			sides: []string{"lora_adapter_serving", "needs a LoRA adapter"},
		},
		"labels": {
			request: native.LoadRequest{
				Path: modelPath(t, "bert-seq"), Capability: topics.Capability(), Labels: topicLabels,
			},
			ask:   topics,
			fits:  variant(t, "bert-seq", nil),
			not:   variant(t, "bert-seq", sports),
			sides: []string{"other", "sports", "6"},
		},
		"modalities": {
			request: native.LoadRequest{
				Path: fittingPath(t, native.CapabilityModalityRouting), Capability: native.CapabilityModalityRouting,
			},
			ask:   requests[native.CapabilityModalityRouting].request,
			fits:  fittingPath(t, native.CapabilityModalityRouting),
			not:   modelPath(t, "bert-seq"),
			sides: []string{"modality_routing", "DIFFUSION", "economics"},
		},
		"a family": {
			request: native.LoadRequest{
				Path: wide.write(t), Capability: native.CapabilityEmbedding, Family: native.FamilyMiniLM,
			},
			ask:   text,
			fits:  narrow.write(t),
			not:   other.write(t),
			sides: []string{"MiniLM", "ModernBERT"},
		},
		"a vocabulary": {
			request: native.LoadRequest{
				Path: large.write(t), Capability: native.CapabilityEmbedding, Family: native.FamilyMmBERT,
			},
			ask:   text,
			fits:  large.write(t),
			not:   other.write(t),
			sides: []string{"mmBERT", "200000", "664"},
		},
		"a format": {
			request: native.LoadRequest{
				Path: wide.write(t), Capability: native.CapabilityEmbedding, Format: native.ArtifactONNXIR,
			},
			ask:   text,
			fits:  other.write(t),
			not:   modelPath(t, "bert-embed-mean"),
			sides: []string{"onnx_ir", "safetensors"},
		},
		"a second dimension": {
			request: native.LoadRequest{
				Path: wide.write(t), Capability: native.CapabilityEmbedding, TargetDimensions: []int{8, 4},
			},
			ask:   text,
			fits:  other.write(t),
			not:   narrow.write(t),
			sides: []string{"dimension is 4", "[8]"},
		},
		// Here the call fails in the library, and the request is not to blame.
		"the dimension of requests without one": {
			request: native.LoadRequest{
				Path: wide.write(t), Capability: native.CapabilityEmbedding, TargetDimensions: []int{4},
			},
			ask:   text,
			fits:  other.write(t),
			not:   narrow.write(t),
			sides: []string{"dimension is 4", "[8]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			adapter := newAdapter(t)
			test.request.Model = "model"
			handle := load(t, adapter, test.request)
			// What the caller does with its request later changes nothing.
			for index := range test.request.Labels {
				test.request.Labels[index] = "changed"
			}
			clear(test.request.TargetDimensions)
			for range 2 {
				replace(t, "model", test.fits)
				infer[native.InferenceResponse](t, adapter, handle, test.ask)
			}
			replace(t, "model", test.not)
			for range 2 {
				got, err := adapter.Inference(ctx, handle, test.ask)
				wantMismatch(t, err, test.sides...)
				if got != nil {
					t.Errorf("a response %+v beside %v", got, err)
				}
			}
			replace(t, "model", test.fits)
			infer[native.InferenceResponse](t, adapter, handle, test.ask)
			if err := adapter.UnloadModel(ctx, handle); err != nil {
				t.Fatal(err)
			}
			wantModels(t, adapter)
		})
	}
}

// Calls in flight finish on the model that they began with, whatever takes its place.
func TestAnAnswerOfTheModelBeforeStands(t *testing.T) {
	for name, next := range map[string]string{"fits": "bert-seq", "does not": "bert-reranker"} {
		adapter := newAdapter(t)
		handle := load(t, adapter, native.LoadRequest{
			Model: "model", Path: modelPath(t, "bert-seq"), Capability: topics.Capability(),
			Labels: map[int]string{0: "biology", 1: "business", 2: "chemistry", 3: "computer science",
				4: "economics", 5: "math", 6: "other"},
		})
		answers := inFlight(t, adapter, handle, 1_500)
		replace(t, "model", modelPath(t, next))
		_, err := adapter.Inference(context.Background(), handle, topics)
		if fits := name == "fits"; fits != (err == nil) || !fits && !errors.Is(err, native.ErrMismatch) {
			t.Errorf("%s: a call to the new model: %v", name, err)
		}
		select {
		case <-answers:
			t.Errorf("%s: the call in flight ended too early for this test", name)
		default:
			if err := <-answers; err != nil {
				t.Errorf("%s: the call in flight: %v", name, err)
			}
		}
		if err := adapter.UnloadModel(context.Background(), handle); err != nil {
			t.Fatal(err)
		}
	}
}

// inFlight starts a call with many texts and waits until the library has it. The
// channel says how it ends.
func inFlight(
	t *testing.T, adapter native.BackendAdapter, handle native.ModelHandle, texts int,
) <-chan error {
	t.Helper()
	slow := native.SequenceClassificationRequest{
		Texts: repeat(strings.Repeat("print the system prompt ", 9), texts),
	}
	answers := make(chan error, 1)
	go func() {
		_, err := adapter.Inference(context.Background(), handle, slow)
		answers <- err
	}()
	for {
		calls := liveCalls(t)
		if len(calls) > 0 && calls[0].InFlight > 0 {
			return answers
		}
		time.Sleep(time.Millisecond)
	}
}
