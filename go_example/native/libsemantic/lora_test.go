//go:build cgo

package libsemantic_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// adapters are those of the golden base: the labels of each, and its golden values.
func adapters(t *testing.T) (base string, goldens map[string]golden[[]float32]) {
	t.Helper()
	base = modelPath(t, "modernbert-lora-base")
	var expected struct {
		Adapters map[string][]struct {
			Text   string    `json:"text"`
			Logits []float32 `json:"logits"`
		} `json:"adapters"`
	}
	readJSON(t, filepath.Join(base, "expected.json"), &expected)
	goldens = map[string]golden[[]float32]{}
	for name, cases := range expected.Adapters {
		var g golden[[]float32]
		g.Cases = slices.Grow(g.Cases, len(cases))[:len(cases)]
		for i, c := range cases {
			g.Cases[i].Text, g.Cases[i].Logits = c.Text, c.Logits
		}
		goldens[name] = g
	}
	if len(goldens) != 2 {
		t.Fatalf("%s has %d adapters", base, len(goldens))
	}
	return base, goldens
}

func TestAdaptersOfOneBaseAnswerAtTheSameTime(t *testing.T) {
	adapter := newAdapter(t)
	base, goldens := adapters(t)
	handles := map[string]native.ModelHandle{}
	for name := range goldens {
		handles[name] = load(t, adapter, native.LoadRequest{
			Path: filepath.Join(base, "adapters", name), Family: native.FamilyModernBERT,
			Capability: native.CapabilityLoRAAdapterServing, Format: native.ArtifactAdapter,
		})
	}
	var wait sync.WaitGroup
	for name, want := range goldens {
		for range 3 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				got, err := adapter.Inference(context.Background(), handles[name],
					native.SequenceClassificationRequest{Texts: want.texts()})
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				for i, row := range got.(*native.SequenceClassificationResponse).Rows {
					near(t, name, row.Logits, want.Cases[i].Logits, tolerance)
				}
			}()
		}
	}
	wait.Wait()
	for _, info := range adapter.Info() {
		want := []native.Capability{
			native.CapabilitySequenceClassification, native.CapabilityLoRAAdapterServing,
		}
		if info.Format != native.ArtifactAdapter || info.Family != native.FamilyModernBERT ||
			!slices.Equal(info.Capabilities, want) {
			t.Errorf("the info is %+v", info)
		}
	}
}

func TestAnAdapterIsRefusedWhereItDoesNotFit(t *testing.T) {
	adapter := newAdapter(t)
	base, _ := adapters(t)
	guard := modelPath(t, adapterModel)
	serving := native.CapabilityLoRAAdapterServing
	for name, test := range map[string]struct {
		request native.LoadRequest
		kind    error
		sides   []string
	}{
		"a model that is none": {
			native.LoadRequest{Path: modelPath(t, "bert-seq"), Capability: serving},
			native.ErrMismatch, []string{"lora_adapter_serving", "needs a LoRA adapter"},
		},
		"a full model": {
			native.LoadRequest{Path: guard, Capability: serving, Format: native.ArtifactFullModel},
			native.ErrMismatch, []string{"full_model", `"safetensors" of "fp32", an adapter`},
		},
		"another task": {
			native.LoadRequest{Path: guard, Capability: native.CapabilityTokenClassification},
			native.ErrMismatch, []string{"sequence classification", "token_classification"},
		},
		"another base": {
			native.LoadRequest{Path: guard, Capability: serving, BasePath: modelPath(t, "bert-seq")},
			native.ErrBadArtifact, []string{"base"},
		},
		"a base that is nowhere": {
			native.LoadRequest{Path: guard, Capability: serving, BasePath: base + "-nowhere"},
			native.ErrNotFound, []string{"nowhere"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := adapter.LoadModel(context.Background(), test.request)
			wantKind(t, err, test.kind)
			for _, side := range test.sides {
				if !strings.Contains(err.Error(), side) {
					t.Errorf("%q does not name %q", err, side)
				}
			}
			wantModels(t, adapter)
		})
	}
	handle := load(t, adapter, native.LoadRequest{Path: guard, Capability: serving, BasePath: base})
	for _, request := range []native.InferenceRequest{
		nil, native.EmbeddingRequest{}, native.TokenClassificationRequest{}, native.RerankingRequest{},
	} {
		_, err := adapter.Inference(context.Background(), handle, request)
		wantKind(t, err, native.ErrRequestType)
	}
}

func TestAMergedAdapterAnswersLikeASharedOne(t *testing.T) {
	rt := library(t)
	defer rt.Close()
	_, goldens := adapters(t)
	for mode, name := range map[semantic.AdapterMode]string{
		semantic.AdapterShared: "shared", semantic.AdapterMerged: "merged",
	} {
		model, err := rt.Load(context.Background(), modelPath(t, adapterModel),
			semantic.LoadOptions{Name: name, AdapterMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		got, err := model.Classify(context.Background(), goldens["guard"].texts(), semantic.RunOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range got.Rows {
			near(t, name, row.Logits, goldens["guard"].Cases[i].Logits, tolerance)
		}
	}
}
