package native_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
)

// Other code compares these strings.
func TestTheTaxonomyHasItsExactValues(t *testing.T) {
	want := map[string]map[string]string{
		"Backend": {
			"BackendCandle": "candle", "BackendONNXRuntime": "onnxruntime",
			"BackendOpenVINO": "openvino", "BackendRemote": "remote",
			"BackendLibsemantic": "libsemantic",
		},
		"Capability": {
			"CapabilityEmbedding":                "embedding",
			"CapabilitySequenceClassification":   "sequence_classification",
			"CapabilityTokenClassification":      "token_classification",
			"CapabilityMultimodalEmbedding":      "multimodal_embedding",
			"CapabilityModalityRouting":          "modality_routing",
			"CapabilityReranking":                "reranking",
			"CapabilityGuard":                    "guard",
			"CapabilityGenerativeClassification": "generative_classification",
			"CapabilityLoRAAdapterServing":       "lora_adapter_serving",
			"CapabilityMLPSelector":              "mlp_selector",
		},
		"Family": {
			"FamilyBERT": "BERT", "FamilyModernBERT": "ModernBERT", "FamilyMmBERT": "mmBERT",
			"FamilyQwen3": "Qwen3", "FamilyGemma": "Gemma", "FamilyMiniLM": "MiniLM",
			"FamilyQwen3Guard": "Qwen3Guard", "FamilyRoBERTa": "RoBERTa",
			"FamilyXLMRoBERTa": "XLM-RoBERTa", "FamilyDistilBERT": "DistilBERT",
			"FamilyELECTRA": "ELECTRA", "FamilyDeBERTaV2": "DeBERTa-v2",
			"FamilyDeBERTaV3": "DeBERTa-v3",
		},
		"ArtifactFormat": {
			"ArtifactFullModel": "full_model", "ArtifactMergedLoRA": "merged_lora",
			"ArtifactAdapter": "adapter", "ArtifactONNXIR": "onnx_ir",
			"ArtifactOpenVINOIR": "openvino_ir", "ArtifactQuantized": "quantized",
		},
		"Modality": {
			"ModalityText": "text", "ModalityImage": "image", "ModalityAudio": "audio",
			"ModalityMultimodal": "multimodal",
		},
	}
	got := constants(t)
	for kind, values := range want {
		if !maps.Equal(got[kind], values) {
			t.Errorf("%s: got %v, want %v", kind, got[kind], values)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d types, want %d", len(got), len(want))
	}
	same(t, native.AllCapabilities(), got["Capability"])
	same(t, native.AllArtifactFormats(), got["ArtifactFormat"])
}

// same checks that a list holds every constant once.
func same[T ~string](t *testing.T, list []T, constants map[string]string) {
	t.Helper()
	var listed, declared []string
	for _, value := range list {
		listed = append(listed, string(value))
	}
	for _, value := range constants {
		declared = append(declared, value)
	}
	slices.Sort(listed)
	slices.Sort(declared)
	if !slices.Equal(listed, declared) {
		t.Errorf("listed are %q, declared %q", listed, declared)
	}
}

// constants reads the constants of taxonomy.go by type and name.
func constants(t *testing.T) map[string]map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "taxonomy.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, declaration := range file.Decls {
		d, ok := declaration.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			value := spec.(*ast.ValueSpec)
			kind := value.Type.(*ast.Ident).Name
			text, err := strconv.Unquote(value.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			if out[kind] == nil {
				out[kind] = map[string]string{}
			}
			out[kind][value.Names[0].Name] = text
		}
	}
	return out
}
