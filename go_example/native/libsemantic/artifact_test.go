package libsemantic

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// The infos here are made up: no test model has these values.

func TestEveryModelTypeHasItsFamily(t *testing.T) {
	for modelType, want := range map[string]native.Family{
		"bert": "BERT", "modernbert": "ModernBERT", "roberta": "RoBERTa", "xlm-roberta": "XLM-RoBERTa",
		"distilbert": "DistilBERT", "electra": "ELECTRA", "deberta-v2": "DeBERTa-v2", "qwen3": "Qwen3",
		"gemma3_text": "Gemma", "unheard_of": "unheard_of", "": "", "BERT": "BERT", "bert2": "bert2",
	} {
		if got := familyOf(&semantic.Info{Family: modelType}); got != want {
			t.Errorf("%q: got %q, want %q", modelType, got, want)
		}
	}
}

func TestWhatAnArtifactIsTakenFor(t *testing.T) {
	const large, small, silent = `{"vocab_size": 200000}`, `{"vocab_size": 199999}`, `{}`
	for _, test := range []struct {
		asked           native.Family
		modelType, json string
		reasons         []string // nil: it is taken
	}{
		{"BERT", "bert", silent, nil},
		{"MiniLM", "bert", silent, nil},
		{"MiniLM", "bert", small, nil},
		{"DeBERTa-v3", "deberta-v2", silent, nil},
		{"DeBERTa-v2", "deberta-v2", silent, nil},
		{"mmBERT", "modernbert", large, nil},
		{"mmBERT", "modernbert", `{"vocab_size": 256000, "device": 7}`, nil},
		{"mmBERT", "modernbert", small, []string{"mmBERT", "ModernBERT", "200000", "199999"}},
		{"mmBERT", "modernbert", silent, []string{"200000", "does not state"}},
		{"mmBERT", "modernbert", `{"vocab_size": "200000"}`, []string{"200000", "does not state"}},
		{"mmBERT", "modernbert", "no JSON", []string{"200000", "does not state"}},
		{"mmBERT", "bert", large, []string{`"mmBERT"`, `"BERT"`}},
		{"MiniLM", "modernbert", large, []string{`"MiniLM"`, `"ModernBERT"`}},
		{"DeBERTa-v3", "bert", silent, []string{`"DeBERTa-v3"`, `"BERT"`}},
		{"BERT", "roberta", silent, []string{`"BERT"`, `"RoBERTa"`}},
		{"Qwen3Guard", "qwen3", silent, []string{`"Qwen3Guard"`, `"Qwen3"`}},
		{"BERT", "", silent, []string{`"BERT"`, `"unstated"`}},
		{"a\nb", "c\nd", silent, []string{`"a\nb"`, `"c\nd"`}},
	} {
		got := otherFamily(test.asked, &semantic.Info{Family: test.modelType, JSON: test.json})
		if (got == "") != (test.reasons == nil) || strings.Contains(got, "\n") {
			t.Errorf("%q for %q with %s: got %q", test.asked, test.modelType, test.json, got)
		}
		for _, side := range test.reasons {
			if !strings.Contains(got, side) {
				t.Errorf("%q for %q with %s: %q does not name %s", test.asked, test.modelType, test.json, got, side)
			}
		}
	}
}

func TestTheFormatsOfArtifacts(t *testing.T) {
	onnx := []native.ArtifactFormat{"onnx_ir"}
	quantized := []native.ArtifactFormat{"quantized", "onnx_ir"}
	full := []native.ArtifactFormat{"full_model", "merged_lora"}
	for _, test := range []struct {
		source, dtype string
		want          []native.ArtifactFormat
	}{
		{"safetensors", "fp32", full}, {"safetensors", "bf16", full}, {"safetensors", "int8", full},
		{"onnx", "fp32", onnx}, {"onnx", "fp16", onnx}, {"onnx", "", onnx},
		{"onnx", "int8", quantized}, {"onnx", "int4", quantized}, {"onnx", "int8+fp32", quantized},
		{"", "int8", nil}, {"papyrus", "fp32", nil},
	} {
		if got := formatsOf(&semantic.Info{Source: test.source, DType: test.dtype}); !slices.Equal(got, test.want) {
			t.Errorf("%q of %q: got %q, want %q", test.source, test.dtype, got, test.want)
		}
	}
	lora := &semantic.Info{Source: "safetensors", DType: "fp32", JSON: `{"adapter": {"mode": "shared"}}`}
	if got := formatsOf(lora); !slices.Equal(got, []native.ArtifactFormat{"adapter"}) {
		t.Errorf("an adapter is %q", got)
	}
}

func TestModelInfoTakesEachFieldFromTheLibrary(t *testing.T) {
	reason := func(reasons map[string]string, keys ...string) {
		t.Helper()
		if len(reasons) != len(keys) {
			t.Errorf("the reasons are %q, want some for %q", reasons, keys)
		}
		for _, key := range keys {
			if reasons[key] == "" {
				t.Errorf("no reason for %s in %q", key, reasons)
			}
		}
	}
	got := modelInfo(77, &semantic.Info{
		Name: "a name", Path: "/a/path", Family: "qwen3", Source: "onnx", DType: "int4",
		Provider: "AbacusExecutionProvider", Task: semantic.TaskEmbedding, MaxTokens: 31337,
		Dimension: 96, Dimensions: []int{96, 48}, Layers: []int{3, 6}, PromptNames: []string{"query"},
		JSON: `{"device": "abacus:3", "vocab_size": "odd"}`,
	})
	reason(got.UnsupportedReasons, "sequence_classification", "token_classification",
		"modality_routing", "reranking", "lora_adapter_serving", "multi_label")
	got.UnsupportedReasons = nil
	want := native.ModelInfo{
		ID: "libsemantic:77", Backend: "libsemantic", Version: semantic.Version(), Name: "a name",
		Path: "/a/path", IsLoaded: true, Capabilities: []native.Capability{"embedding"}, Family: "Qwen3",
		Format: "quantized", Modality: "text", Provider: "AbacusExecutionProvider", Device: "abacus:3",
		MaxSequenceLength: 31337, DefaultDimension: 96, RuntimeDimensions: []int{96, 48},
		RuntimeLayers: []int{3, 6}, Features: map[string]bool{
			"dimension_choice": true, "layer_choice": true, "prompts": true, "multi_label": false,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}

	got = modelInfo(1, &semantic.Info{
		Source: "safetensors", DType: "int8", Task: semantic.TaskSequenceClassification,
		MultiLabel: true, Labels: []string{"BOTH", "AR", "DIFFUSION"}, MaxTokens: 5,
		JSON: `{"device": 5, "vocab_size": 9}`,
	})
	reason(got.UnsupportedReasons, "embedding", "token_classification", "modality_routing",
		"reranking", "lora_adapter_serving", "dimension_choice", "layer_choice", "prompts")
	if got.Format != "full_model" || got.Device != "" || got.MaxSequenceLength != 5 || got.Family != "" ||
		!got.Features["multi_label"] || got.Provider != "" || got.RuntimeDimensions != nil {
		t.Errorf("got %+v", got)
	}

	// A task of a newer library: nothing is claimed of it.
	got = modelInfo(1, &semantic.Info{Source: "papyrus", Task: 99})
	if got.Capabilities != nil || got.Modality != "" || got.Format != "" ||
		!strings.Contains(got.UnsupportedReasons["embedding"], "UNKNOWN") {
		t.Errorf("got %+v", got)
	}
}

func TestTheCapabilitiesOfHeads(t *testing.T) {
	for _, test := range []struct {
		labels     []string
		multiLabel bool
		want       []native.Capability
	}{
		{[]string{"score"}, false, []native.Capability{"sequence_classification", "reranking"}},
		{[]string{"yes", "no"}, false, []native.Capability{"sequence_classification"}},
		{[]string{"BOTH", "AR", "DIFFUSION"}, false, []native.Capability{"sequence_classification", "modality_routing"}},
		{[]string{"BOTH", "AR", "DIFFUSION"}, true, []native.Capability{"sequence_classification"}},
		{[]string{"BOTH", "AR", "AR"}, false, []native.Capability{"sequence_classification"}},
	} {
		info := &semantic.Info{
			Task: semantic.TaskSequenceClassification, Labels: test.labels, MultiLabel: test.multiLabel,
		}
		labels := slices.Clone(info.Labels)
		got := modelInfo(1, info)
		if !slices.Equal(got.Capabilities, test.want) || !slices.Equal(labels, info.Labels) {
			t.Errorf("%q, multi-label %v: got %q, want %q", labels, test.multiLabel, got.Capabilities, test.want)
		}
		for _, capability := range native.AllCapabilities() {
			_, served := serviceFor(capability)
			_, lacks := got.UnsupportedReasons[string(capability)]
			if lacks != (served && !slices.Contains(test.want, capability)) {
				t.Errorf("%q: the reasons are %q", labels, got.UnsupportedReasons)
			}
		}
	}
}

func TestAnUnreadyModelClaimsNothing(t *testing.T) {
	got := unready(semantic.ModelEntry{
		ID: 5, Name: "a name", Task: semantic.TaskEmbedding, State: semantic.StateStopping,
	}, "why")
	for _, capability := range native.AllCapabilities() {
		if _, served := serviceFor(capability); served != (got.UnsupportedReasons[string(capability)] == "why") {
			t.Errorf("the reasons are %q", got.UnsupportedReasons)
		}
	}
	if len(got.UnsupportedReasons) != len(services)+1 {
		t.Errorf("the reasons are %q", got.UnsupportedReasons)
	}
	got.UnsupportedReasons = nil
	want := native.ModelInfo{
		ID: "libsemantic:5", Backend: "libsemantic", Version: semantic.Version(), Name: "a name",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
