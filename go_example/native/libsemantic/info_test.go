//go:build cgo

package libsemantic_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

func TestInfoStatsAndRealityAgree(t *testing.T) {
	adapter := newAdapter(t)
	wantModels(t, adapter)
	var handles []native.ModelHandle
	var names []string
	for _, capability := range adapter.Capabilities().Capabilities {
		name := "org/" + string(capability)
		handle := load(t, adapter, native.LoadRequest{
			Model: name, Path: fittingPath(t, capability), Capability: capability,
		})
		handles, names = append(handles, handle), append(names, name)
		wantModels(t, adapter, names...)
	}
	for i, info := range adapter.Info() {
		capability := adapter.Capabilities().Capabilities[i]
		if info.ID != handles[i].ID() || !slices.Contains(info.Capabilities, capability) {
			t.Errorf("%s: the info is %+v", handles[i].ID(), info)
		}
		if _, err := adapter.Inference(context.Background(), handles[i], requests[capability].request); err != nil {
			t.Errorf("%s: %v", capability, err)
		}
	}
	for len(handles) > 0 {
		if err := adapter.UnloadModel(context.Background(), handles[0]); err != nil {
			t.Fatal(err)
		}
		handles, names = handles[1:], names[1:]
		wantModels(t, adapter, names...)
	}
}

// Models that others load lie in the same registry.
func TestInfoShowsTheWholeRegistry(t *testing.T) {
	adapter := newAdapter(t)
	_, err := library(t).Load(context.Background(), modelPath(t, "bert-token"), semantic.LoadOptions{Name: "theirs"})
	if err != nil {
		t.Fatal(err)
	}
	loadTopics(t, adapter, "ours")
	wantModels(t, adapter, "theirs", "ours")
}

func TestInfoIsWhatTheLibraryStates(t *testing.T) {
	adapter := newAdapter(t)
	resolved, err := filepath.EvalSymlinks(modelPath(t, "bert-seq"))
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(resolved)
	const (
		noEmbedding = "needs a model for embedding, the artifact is one for sequence classification"
		noTokens    = "needs a model for token classification, the artifact is one for "
		noSequence  = "needs a model for sequence classification, the artifact is one for embedding"
		noAdapter   = "needs a LoRA adapter, the artifact is none"
		noModality  = `needs a head with the labels ["AR" "BOTH" "DIFFUSION"] of which one applies, ` +
			`the artifact's has `
	)
	wants := map[string]native.ModelInfo{
		"bert-seq": {
			Capabilities: []native.Capability{native.CapabilitySequenceClassification},
			UnsupportedReasons: map[string]string{
				"embedding":            noEmbedding,
				"token_classification": noTokens + "sequence classification",
				"modality_routing": noModality + `["biology" "business" "chemistry" "computer science" ` +
					`"economics" "math" "other"]`,
				"reranking":            "needs a head with one label, the artifact's has 7",
				"lora_adapter_serving": noAdapter,
				"dimension_choice":     "the artifact is none for embedding",
				"layer_choice":         "the artifact is none for embedding",
				"prompts":              "the artifact is none for embedding",
				"multi_label":          "the labels of the artifact exclude each other",
			},
		},
		"bert-reranker": {
			Capabilities: []native.Capability{
				native.CapabilitySequenceClassification, native.CapabilityReranking,
			},
			UnsupportedReasons: map[string]string{
				"embedding":            noEmbedding,
				"token_classification": noTokens + "sequence classification",
				"modality_routing":     noModality + `["LABEL_0"]`,
				"lora_adapter_serving": noAdapter,
				"dimension_choice":     "the artifact is none for embedding",
				"layer_choice":         "the artifact is none for embedding",
				"prompts":              "the artifact is none for embedding",
				"multi_label":          "the artifact has one label",
			},
		},
		"bert-embed-cls": {
			Capabilities:      []native.Capability{native.CapabilityEmbedding},
			DefaultDimension:  64,
			RuntimeDimensions: []int{64},
			UnsupportedReasons: map[string]string{
				"sequence_classification": noSequence,
				"token_classification":    noTokens + "embedding",
				"modality_routing":        noSequence,
				"reranking":               noSequence,
				"lora_adapter_serving":    noAdapter,
				"dimension_choice":        "the artifact allows no dimension besides 64",
				"layer_choice":            "the artifact states no layers besides its last",
				"prompts":                 "the artifact brings no prompts",
				"multi_label":             "the artifact is none for sequence classification",
			},
		},
	}
	// Nothing of these is in the info: the artifacts say otherwise.
	asked := native.LoadRequest{
		Family: native.FamilyMiniLM, Format: native.ArtifactMergedLoRA, Device: "auto",
	}
	for name, want := range wants {
		request := asked
		request.Path, request.Capability = modelPath(t, name), want.Capabilities[0]
		if want.DefaultDimension > 0 {
			request.TargetDimensions = []int{want.DefaultDimension}
		}
		handle := load(t, adapter, request)
		model, err := library(t).Find(name)
		if err != nil {
			t.Fatal(err)
		}
		stated, err := model.Info()
		if err != nil {
			t.Fatal(err)
		}
		var details struct{ Device string }
		if err := json.Unmarshal([]byte(stated.JSON), &details); err != nil {
			t.Fatal(err)
		}
		want.ID, want.Backend, want.Version = handle.ID(), native.BackendLibsemantic, semantic.Version()
		want.Name, want.Path, want.IsLoaded = name, filepath.Join(root, name), true
		want.Family, want.Format, want.Modality = native.FamilyBERT, native.ArtifactFullModel, native.ModalityText
		want.Provider, want.Device, want.MaxSequenceLength = stated.Provider, details.Device, 64
		want.Features = map[string]bool{
			"dimension_choice": false, "layer_choice": false, "prompts": false, "multi_label": false,
		}
		got := adapter.Info()
		if len(got) != 1 || !reflect.DeepEqual(got[0], want) || stated.Provider == "" || want.Version == "" {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
		if err := adapter.UnloadModel(context.Background(), handle); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDimensionsAreThoseOfTheArtifact(t *testing.T) {
	adapter := newAdapter(t)
	path := artifact{modelType: "bert", vocab: 664, width: 8, dims: []int{4, 2}}.write(t)
	whole := load(t, adapter, native.LoadRequest{
		Model: "whole", Path: path, Capability: native.CapabilityEmbedding,
	})
	cut := load(t, adapter, native.LoadRequest{
		Model: "cut", Path: path, Capability: native.CapabilityEmbedding, TargetDimensions: []int{4, 2},
	})
	for _, test := range []struct {
		handle native.ModelHandle
		asked  int
		want   int
	}{{whole, 0, 8}, {whole, 2, 2}, {cut, 0, 4}, {cut, 2, 2}, {cut, 8, 8}} {
		got := infer[*native.EmbeddingResponse](t, adapter, test.handle,
			native.EmbeddingRequest{Texts: []string{"a"}, Dimension: test.asked})
		if got.Dimension != test.want || len(got.Rows[0].Vector) != test.want {
			t.Errorf("%s, asked for %d: got %d", test.handle.ID(), test.asked, got.Dimension)
		}
	}
	for _, info := range adapter.Info() {
		_, lacks := info.UnsupportedReasons[native.FeatureDimensionChoice]
		if info.DefaultDimension != 8 || !slices.Equal(info.RuntimeDimensions, []int{8, 4, 2}) ||
			!info.Features[native.FeatureDimensionChoice] || lacks || info.RequestedDimensions != nil {
			t.Errorf("the info is %+v", info)
		}
	}
}

func TestFeaturesAreThoseOfTheArtifact(t *testing.T) {
	adapter := newAdapter(t)
	prompted := artifact{modelType: "bert", vocab: 664, width: 8}.write(t)
	writeJSON(t, prompted, "config_sentence_transformers.json", map[string]any{
		"prompts": map[string]string{"query": "query: "}, "default_prompt_name": "query",
	})
	multi := variant(t, "bert-seq", map[string]any{"problem_type": "multi_label_classification"})

	handle := load(t, adapter, native.LoadRequest{
		Model: "multi", Path: multi, Capability: native.CapabilitySequenceClassification,
	})
	got := infer[*native.SequenceClassificationResponse](t, adapter, handle, topics)
	var sum float32
	for _, p := range got.Rows[0].Probabilities {
		sum += p
	}
	if !got.MultiLabel || sum > 0.9 && sum < 1.1 {
		t.Errorf("multi-label is %v, the probabilities sum to %v", got.MultiLabel, sum)
	}

	handle = load(t, adapter, native.LoadRequest{
		Model: "prompted", Path: prompted, Capability: native.CapabilityEmbedding,
	})
	for _, test := range []struct {
		request native.EmbeddingRequest
		more    bool // tokens than the text has
	}{
		{native.EmbeddingRequest{}, true},
		{native.EmbeddingRequest{PromptName: "query"}, true},
		{native.EmbeddingRequest{NoPrompt: true}, false},
	} {
		test.request.Texts = []string{"a"}
		got := infer[*native.EmbeddingResponse](t, adapter, handle, test.request)
		if n := got.Usage()[0].TokenCount; n > 3 != test.more {
			t.Errorf("%+v: %d tokens", test.request, n)
		}
	}
	infos := adapter.Info()
	if len(infos) != 2 || !infos[0].Features[native.FeatureMultiLabel] ||
		!infos[1].Features[native.FeaturePrompts] || infos[0].Features[native.FeaturePrompts] {
		t.Errorf("the infos are %+v", infos)
	}
}
