//go:build cgo

package libsemantic_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/native/libsemantic"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

const (
	modelsVariable = "SEMANTIC_TEST_MODELS"
	tolerance      = 1e-4
)

// options of every adapter and runtime here: equal ones share the process's runtime.
var options = semantic.Options{LogLevel: semantic.LogError}

func modelsRoot(t *testing.T) string {
	t.Helper()
	root := os.Getenv(modelsVariable)
	if root == "" {
		t.Fatalf("%s is not set; set it to the folder tests/golden/models of the repository",
			modelsVariable)
	}
	return root
}

func modelPath(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(modelsRoot(t), name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s does not hold the model %s: %v", modelsVariable, name, err)
	}
	return path
}

// golden is the expected.json of a test model. Values are one row per text, for token
// classifiers one row per token.
type golden[Values any] struct {
	Cases []struct {
		Text      string   `json:"text"`
		TextPair  string   `json:"text_pair"`
		InputIDs  []int    `json:"input_ids"`
		Logits    Values   `json:"logits"`
		Probs     Values   `json:"probs"`
		Embedding Values   `json:"embedding"`
		Offsets   [][2]int `json:"offsets_chars"`
	} `json:"cases"`
}

func (g golden[Values]) texts() []string {
	out := make([]string, len(g.Cases))
	for i, c := range g.Cases {
		out[i] = c.Text
	}
	return out
}

func readGolden[Values any](t *testing.T, name string) golden[Values] {
	t.Helper()
	var out golden[Values]
	readJSON(t, filepath.Join(modelPath(t, name), "expected.json"), &out)
	if len(out.Cases) == 0 {
		t.Fatalf("%s has no cases", name)
	}
	return out
}

func readJSON(t *testing.T, path string, value any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, value); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// newAdapter makes an adapter for one test and closes it after the test.
func newAdapter(t *testing.T) *libsemantic.Adapter {
	t.Helper()
	adapter, err := libsemantic.New(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := adapter.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return adapter
}

// library is the runtime beside the adapter, to ask the library itself.
func library(t *testing.T) *semantic.Runtime {
	t.Helper()
	rt, err := semantic.Open(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func load(t *testing.T, adapter native.BackendAdapter, request native.LoadRequest) native.ModelHandle {
	t.Helper()
	handle, err := adapter.LoadModel(context.Background(), request)
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

// infer makes a call that must succeed and returns its typed response.
func infer[Response native.InferenceResponse](
	t *testing.T, adapter native.BackendAdapter, handle native.ModelHandle,
	request native.InferenceRequest,
) Response {
	t.Helper()
	got, err := adapter.Inference(context.Background(), handle, request)
	if err != nil {
		t.Fatal(err)
	}
	response, ok := got.(Response)
	if !ok {
		t.Fatalf("got a %T", got)
	}
	return response
}

// wantKind checks that an error is of the contract, of a kind, and in one line.
func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	var e *native.Error
	if !errors.As(err, &e) || !errors.Is(err, kind) {
		t.Fatalf("got %v, want %v", err, kind)
	}
	if e.Backend != native.BackendLibsemantic || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %q of %q", err, e.Backend)
	}
}

// wantModels checks that the library and the adapter hold models of these names and
// no others.
func wantModels(t *testing.T, adapter native.BackendAdapter, names ...string) {
	t.Helper()
	stats, err := library(t).Stats()
	if err != nil {
		t.Fatal(err)
	}
	infos := adapter.Info()
	if len(infos) != len(names) || len(stats.Models) != len(names) ||
		stats.ModelsReady != len(names) || stats.ModelsLoading+stats.ModelsStopping != 0 {
		t.Fatalf("want %q, the adapter has %+v, the library %+v", names, infos, stats.Models)
	}
	for i, name := range names {
		if infos[i].Name != name || stats.Models[i].Name != name || !infos[i].IsLoaded ||
			stats.Models[i].State != semantic.StateReady {
			t.Errorf("model %d: want %q, the adapter has %+v, the library %+v",
				i, name, infos[i], stats.Models[i])
		}
		owned := false
		for _, m := range stats.Memory {
			owned = owned || strings.Contains(m.Owner, name)
		}
		if !owned {
			t.Errorf("no memory of %q in %+v", name, stats.Memory)
		}
	}
}

func near(t *testing.T, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-float64(want[i])) <= tolerance) {
			t.Errorf("%s[%d]: got %v, want %v", what, i, got[i], want[i])
		}
	}
}

// liveCalls are the counters of the models that are loaded.
func liveCalls(t *testing.T) []semantic.CallStats {
	t.Helper()
	stats, err := library(t).Stats()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(stats.Calls, func(c semantic.CallStats) bool { return c.ModelID == 0 })
}

func repeat(text string, n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = text
	}
	return texts
}

// fittingPath is a model that fits an advertised capability.
func fittingPath(t *testing.T, capability native.Capability) string {
	t.Helper()
	if capability == native.CapabilityModalityRouting {
		return artifact{modelType: "modernbert", vocab: 664, labels: modalities}.write(t)
	}
	return modelPath(t, requests[capability].model)
}

// modalities are in an order that is not sorted.
var modalities = []string{"AR", "DIFFUSION", "BOTH"}

// requests are what belongs to each advertised capability: the test model that fits, ""
// where fittingPath makes one, and a request for it.
var requests = map[native.Capability]struct {
	model   string
	request native.InferenceRequest
}{
	native.CapabilityModalityRouting: {
		"", native.ModalityRoutingRequest{Texts: []string{"a", "b c"}},
	},
	native.CapabilityEmbedding: {
		"bert-embed-mean", native.EmbeddingRequest{Texts: []string{"a", "b c"}},
	},
	native.CapabilitySequenceClassification: {
		"bert-seq", native.SequenceClassificationRequest{Texts: []string{"a", "b c"}},
	},
	native.CapabilityTokenClassification: {
		"bert-token", native.TokenClassificationRequest{Texts: []string{"a", "b c"}},
	},
	native.CapabilityReranking: {
		"bert-reranker", native.RerankingRequest{Query: "a", Documents: []string{"a", "b c"}},
	},
	native.CapabilityLoRAAdapterServing: {
		adapterModel, native.SequenceClassificationRequest{Texts: []string{"a", "b c"}},
	},
}

// adapterModel is a LoRA adapter for sequences; its base is the folder above.
const adapterModel = "modernbert-lora-base/adapters/guard"
