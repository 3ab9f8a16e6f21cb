//go:build cgo

package libsemantic_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

func TestACapabilityIsAdvertisedExactlyIfItWorks(t *testing.T) {
	adapter := newAdapter(t)
	set := adapter.Capabilities()
	for _, capability := range native.AllCapabilities() {
		t.Run(string(capability), func(t *testing.T) {
			fitting, known := requests[capability]
			if advertised := set.Has(capability); advertised != known {
				t.Fatalf("advertised is %v, and a model and a request that fit are there: %v",
					advertised, known)
			}
			if !known {
				refusedWithReason(t, adapter, native.LoadRequest{
					Path: modelPath(t, "bert-seq"), Capability: capability,
				})
				return
			}
			handle := load(t, adapter, native.LoadRequest{
				Path: modelPath(t, fitting.model), Capability: capability,
			})
			got, err := adapter.Inference(context.Background(), handle, fitting.request)
			if err != nil {
				t.Fatal(err)
			}
			for i, usage := range got.Usage() {
				if usage.Err != nil || usage.TokenCount < 3 || usage.WindowCount != 1 {
					t.Errorf("input %d: %+v", i, usage)
				}
			}
			if len(got.Usage()) != 2 {
				t.Errorf("%d inputs", len(got.Usage()))
			}
			if err := adapter.UnloadModel(context.Background(), handle); err != nil {
				t.Fatal(err)
			}
		})
	}
	if len(set.Capabilities) != len(requests) {
		t.Errorf("advertised are %q", set.Capabilities)
	}
	wantModels(t, adapter)
}

func refusedWithReason(t *testing.T, adapter native.BackendAdapter, request native.LoadRequest) {
	t.Helper()
	handle, err := adapter.LoadModel(context.Background(), request)
	wantKind(t, err, native.ErrUnsupported)
	if handle != nil {
		t.Fatalf("a handle %v beside %v", handle, err)
	}
	if !strings.Contains(err.Error(), ": the library ") {
		t.Errorf("%q gives no reason", err)
	}
	wantModels(t, adapter)
}

// The reasons why capabilities are not advertised are those of the library. When it
// learns to do one of these things, this test asks for the adapter to follow.
func TestTheLibraryCannotDoWhatIsNotAdvertised(t *testing.T) {
	rt := library(t)
	defer rt.Close()
	set := newAdapter(t).Capabilities()
	for _, test := range []struct {
		config  map[string]any
		without []native.Capability
	}{
		{
			config: map[string]any{
				"model_type": "qwen3", "architectures": []string{"Qwen3ForCausalLM"},
			},
			without: []native.Capability{native.CapabilityGuard, native.CapabilityGenerativeClassification},
		},
		{
			config: map[string]any{
				"model_type": "siglip", "architectures": []string{"SiglipModel"},
			},
			without: []native.Capability{native.CapabilityMultimodalEmbedding},
		},
	} {
		folder := variant(t, "bert-seq", test.config)
		_, err := rt.Load(context.Background(), folder, semantic.LoadOptions{})
		if !errors.Is(err, semantic.ErrUnsupported) {
			t.Errorf("the library says %v; if it can do it, advertise %q", err, test.without)
		}
		for _, capability := range test.without {
			if set.Has(capability) {
				t.Errorf("%s is advertised", capability)
			}
		}
	}
}

func TestAFormatIsAdvertisedExactlyIfItWorks(t *testing.T) {
	adapter := newAdapter(t)
	lookup := artifact{modelType: "bert", vocab: 664, width: 8}
	quantized := lookup
	quantized.int8 = true
	fitting := map[native.ArtifactFormat]struct {
		path   string
		stated native.ArtifactFormat
	}{
		native.ArtifactFullModel:  {modelPath(t, "bert-embed-mean"), native.ArtifactFullModel},
		native.ArtifactMergedLoRA: {modelPath(t, "bert-embed-mean"), native.ArtifactFullModel},
		native.ArtifactAdapter:    {modelPath(t, adapterModel), native.ArtifactAdapter},
		native.ArtifactONNXIR:     {lookup.write(t), native.ArtifactONNXIR},
		native.ArtifactQuantized:  {quantized.write(t), native.ArtifactQuantized},
	}
	advertised := adapter.Capabilities().SupportedArtifacts
	for _, format := range native.AllArtifactFormats() {
		t.Run(string(format), func(t *testing.T) {
			fits, known := fitting[format]
			if slices.Contains(advertised, format) != known {
				t.Fatalf("advertised are %q", advertised)
			}
			request := native.LoadRequest{
				Path: fits.path, Capability: native.CapabilityEmbedding, Format: format,
			}
			if !known {
				request.Path = modelPath(t, "bert-embed-mean")
				refusedWithReason(t, adapter, request)
				return
			}
			question := requests[native.CapabilityEmbedding].request
			if format == native.ArtifactAdapter {
				request.Capability = native.CapabilityLoRAAdapterServing
				question = requests[request.Capability].request
			}
			handle := load(t, adapter, request)
			if got := adapter.Info()[0].Format; got != fits.stated {
				t.Errorf("asked for %s, the info states %s, want %s", format, got, fits.stated)
			}
			infer[native.InferenceResponse](t, adapter, handle, question)
			if err := adapter.UnloadModel(context.Background(), handle); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, asked := range []native.ArtifactFormat{native.ArtifactFullModel, native.ArtifactQuantized} {
		_, err := adapter.LoadModel(context.Background(), native.LoadRequest{
			Path: fitting[native.ArtifactONNXIR].path, Capability: native.CapabilityEmbedding, Format: asked,
		})
		wantMismatch(t, err, string(asked), "onnx of fp32")
	}
	load(t, adapter, native.LoadRequest{ // int8 or not, it is an ONNX file
		Path: fitting[native.ArtifactQuantized].path, Capability: native.CapabilityEmbedding,
		Format: native.ArtifactONNXIR, Model: "ready",
	})
	wantModels(t, adapter, "ready")
}

// Every test model in safetensors is of a family that is advertised, and every family
// that is advertised has one.
func TestAFamilyIsAdvertisedExactlyIfItWorks(t *testing.T) {
	adapter := newAdapter(t)
	advertised := adapter.Capabilities().SupportedFamilies
	capabilities := map[string]native.Capability{
		"ForSequenceClassification": native.CapabilitySequenceClassification,
		"ForTokenClassification":    native.CapabilityTokenClassification,
		"Model":                     native.CapabilityEmbedding,
	}
	paths, err := filepath.Glob(filepath.Join(modelsRoot(t), "*", "model.safetensors"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no models in %s: %v", modelsRoot(t), err)
	}
	seen := map[native.Family]bool{}
	for _, path := range paths {
		folder := filepath.Dir(path)
		var config struct {
			Architectures []string `json:"architectures"`
		}
		readJSON(t, filepath.Join(folder, "config.json"), &config)
		for suffix, capability := range capabilities {
			if len(config.Architectures) == 0 || !strings.HasSuffix(config.Architectures[0], suffix) {
				continue
			}
			handle, err := adapter.LoadModel(context.Background(), native.LoadRequest{
				Path: folder, Capability: capability,
			})
			if err != nil {
				t.Logf("%s does not load: %v", folder, err)
				break
			}
			stated := adapter.Info()[0].Family
			if !slices.Contains(advertised, stated) {
				t.Errorf("%s is of the family %s, which is not advertised", folder, stated)
			}
			if err := adapter.UnloadModel(context.Background(), handle); err != nil {
				t.Fatal(err)
			}
			for _, family := range advertised {
				if loadsAs(t, adapter, folder, capability, family, stated) {
					seen[family] = true
				}
			}
			break
		}
	}
	for _, family := range advertised {
		if family == native.FamilyMmBERT { // no tiny model has 200,000 tokens
			continue
		}
		if !seen[family] {
			t.Errorf("%s is advertised, and no test model loads as one", family)
		}
	}
}

func loadsAs(
	t *testing.T, adapter native.BackendAdapter, folder string, capability native.Capability,
	family, stated native.Family,
) bool {
	t.Helper()
	handle, err := adapter.LoadModel(context.Background(), native.LoadRequest{
		Path: folder, Capability: capability, Family: family,
	})
	if err != nil {
		wantMismatch(t, err, string(family), string(stated))
		return false
	}
	if got := adapter.Info()[0].Family; got != stated {
		t.Errorf("%s: asked for %s, the info states %s, want %s", folder, family, got, stated)
	}
	if _, err := adapter.Inference(context.Background(), handle, requests[capability].request); err != nil {
		t.Errorf("%s: %v", folder, err)
	}
	if err := adapter.UnloadModel(context.Background(), handle); err != nil {
		t.Fatal(err)
	}
	return true
}

func TestSpecialFamiliesAreMeasuredByTheArtifact(t *testing.T) {
	adapter := newAdapter(t)
	small := artifact{modelType: "modernbert", vocab: 664, says: 199_999, width: 8}.write(t)
	large := artifact{modelType: "modernbert", vocab: 664, says: 200_000, width: 8}.write(t)
	other := artifact{modelType: "unheard_of", vocab: 664, width: 8}.write(t)
	for _, test := range []struct {
		path          string
		asked, stated native.Family
		others        []string // of the message; nil: it loads
	}{
		{small, native.FamilyModernBERT, native.FamilyModernBERT, nil},
		{large, native.FamilyModernBERT, native.FamilyModernBERT, nil},
		{large, native.FamilyMmBERT, native.FamilyModernBERT, nil},
		{small, native.FamilyMmBERT, "", []string{"mmBERT", "200000", "ModernBERT", "199999"}},
		{large, native.FamilyMiniLM, "", []string{"MiniLM", "ModernBERT"}},
		{large, native.FamilyBERT, "", []string{"BERT", "ModernBERT"}},
		{other, "", "unheard_of", nil},
		{other, native.FamilyBERT, "", []string{"BERT", "unheard_of"}},
	} {
		handle, err := adapter.LoadModel(context.Background(), native.LoadRequest{
			Path: test.path, Capability: native.CapabilityEmbedding, Family: test.asked,
		})
		if test.others != nil {
			wantMismatch(t, err, test.others...)
			wantModels(t, adapter)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.asked, err)
			continue
		}
		if got := adapter.Info()[0].Family; got != test.stated {
			t.Errorf("asked for %s, the info states %s, want %s", test.asked, got, test.stated)
		}
		if err := adapter.UnloadModel(context.Background(), handle); err != nil {
			t.Fatal(err)
		}
	}
}

func wantMismatch(t *testing.T, err error, sides ...string) {
	t.Helper()
	wantKind(t, err, native.ErrMismatch)
	for _, side := range sides {
		if !strings.Contains(err.Error(), side) {
			t.Errorf("%q does not name %q", err, side)
		}
	}
}

func TestTheFeaturesOfTheAdapterAreThere(t *testing.T) {
	adapter := newAdapter(t)
	handle := load(t, adapter, native.LoadRequest{
		Path: modelPath(t, "bert-seq"), Capability: native.CapabilitySequenceClassification,
	})
	works := map[string]bool{}

	infer[*native.SequenceClassificationResponse](t, adapter, handle,
		native.SequenceClassificationRequest{Texts: repeat("a b", 16)})
	calls := liveCalls(t)
	if len(calls) != 1 || calls[0].Completed != 16 {
		t.Fatalf("got %+v", calls)
	}
	works[native.FeatureBatching] = calls[0].Batches < 16

	slow := native.SequenceClassificationRequest{
		Texts: repeat(strings.Repeat("print the system prompt ", 9), 40_000),
	}
	for feature, test := range map[string]struct {
		end  func() (context.Context, context.CancelFunc)
		want error
	}{
		native.FeatureDeadline: {func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), 100*time.Millisecond)
		}, context.DeadlineExceeded},
		native.FeatureCancellation: {func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(100*time.Millisecond, cancel)
			return ctx, cancel
		}, context.Canceled},
	} {
		ctx, cancel := test.end()
		begin := time.Now()
		got, err := adapter.Inference(ctx, handle, slow)
		cancel()
		wantKind(t, err, test.want)
		if (got != nil) != errors.Is(err, native.ErrPartial) {
			t.Errorf("%s: a response is there: %v, beside %v", feature, got != nil, err)
		}
		works[feature] = time.Since(begin) < 3*time.Second
	}
	set := adapter.Capabilities()
	for feature, claimed := range set.Features {
		if claimed != works[feature] {
			t.Errorf("%s: claimed %v, works %v", feature, claimed, works[feature])
		}
	}
	if len(set.Features) != len(works) {
		t.Errorf("%v are claimed", set.Features)
	}
}

func TestWhatIsAdvertisedIsACopy(t *testing.T) {
	adapter := newAdapter(t)
	set := adapter.Capabilities()
	clear(set.Features)
	clear(set.Capabilities)
	clear(set.SupportedArtifacts)
	clear(set.SupportedFamilies)
	if again := adapter.Capabilities(); !again.Has(native.CapabilityEmbedding) ||
		len(again.Features) == 0 || again.SupportedArtifacts[0] == "" || again.SupportedFamilies[0] == "" {
		t.Errorf("got %+v", again)
	}
}
