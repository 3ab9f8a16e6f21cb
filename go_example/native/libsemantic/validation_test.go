//go:build cgo

package libsemantic_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

func TestARequestThatTheArtifactContradictsLoadsNothing(t *testing.T) {
	adapter := newAdapter(t)
	seq, embed := modelPath(t, "bert-seq"), modelPath(t, "bert-embed-mean")
	reranker := modelPath(t, "bert-reranker")
	labels := map[int]string{0: "biology", 1: "business", 2: "chemistry", 3: "computer science",
		4: "economics", 5: "math", 6: "other"}
	other := func(index int, label string) map[int]string {
		changed := map[int]string{}
		for i, l := range labels {
			changed[i] = l
		}
		delete(changed, 6)
		changed[index] = label
		return changed
	}
	for name, test := range map[string]struct {
		request native.LoadRequest
		kind    error
		sides   []string // of the message
	}{
		"no capability": {
			native.LoadRequest{Path: seq},
			native.ErrInvalidRequest, []string{`""`, "embedding"},
		},
		"an unknown capability": {
			native.LoadRequest{Path: seq, Capability: "soothsaying"},
			native.ErrInvalidRequest, []string{"soothsaying", "embedding"},
		},
		"an unknown format": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Format: "papyrus"},
			native.ErrInvalidRequest, []string{"papyrus", "full_model"},
		},
		"no path": {
			native.LoadRequest{Model: "org/model", Capability: topics.Capability()},
			native.ErrInvalidRequest, []string{"org/model", "path"},
		},
		"a missing folder": {
			native.LoadRequest{Path: seq + "-nowhere", Capability: topics.Capability()},
			native.ErrNotFound, []string{"bert-seq-nowhere"},
		},
		"a missing file": {
			native.LoadRequest{Path: t.TempDir(), Capability: topics.Capability()},
			native.ErrNotFound, []string{"config.json"},
		},
		"a NUL in the path": {
			native.LoadRequest{Path: seq + "\x00", Capability: topics.Capability()},
			native.ErrInvalidRequest, []string{"path", "NUL"},
		},
		"an embedding of a classifier": {
			native.LoadRequest{Path: seq, Capability: native.CapabilityEmbedding},
			native.ErrUnsupported, []string{"BertForSequenceClassification", "embedding"},
		},
		"a classification of an embedding model": {
			native.LoadRequest{Path: embed, Capability: topics.Capability()},
			native.ErrUnsupported, []string{"BertModel", "sequence_classification"},
		},
		"tokens of a sequence classifier": {
			native.LoadRequest{Path: seq, Capability: native.CapabilityTokenClassification},
			native.ErrUnsupported, []string{"BertForSequenceClassification", "token_classification"},
		},
		"reranking with seven labels": {
			native.LoadRequest{Path: seq, Capability: native.CapabilityReranking},
			native.ErrMismatch, []string{"reranking", "one label", "7"},
		},
		"another family": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Family: native.FamilyModernBERT},
			native.ErrMismatch, []string{"ModernBERT", "BERT"},
		},
		"a family nobody knows": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Family: "Bart"},
			native.ErrMismatch, []string{"Bart", "BERT"},
		},
		"another format": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Format: native.ArtifactONNXIR},
			native.ErrMismatch, []string{"onnx_ir", "safetensors of fp32"},
		},
		"an unknown dimension": {
			native.LoadRequest{Path: embed, Capability: native.CapabilityEmbedding, TargetDimension: 32},
			native.ErrMismatch, []string{"32", "[64]"},
		},
		"a negative dimension": {
			native.LoadRequest{Path: embed, Capability: native.CapabilityEmbedding, TargetDimension: -64},
			native.ErrMismatch, []string{"-64", "[64]"},
		},
		"a dimension of a classifier": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), TargetDimension: 64},
			native.ErrMismatch, []string{"64", "[]"},
		},
		"an unknown layer": {
			native.LoadRequest{Path: embed, Capability: native.CapabilityEmbedding, TargetLayer: 2},
			native.ErrMismatch, []string{"layer is 2", "[]"},
		},
		"a label too few": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Labels: map[int]string{0: "biology"}},
			native.ErrMismatch, []string{"1 label", "7", "economics"},
		},
		"another label": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Labels: other(6, "sports")},
			native.ErrMismatch, []string{"sports", "other", "6"},
		},
		"another index": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Labels: other(7, "other")},
			native.ErrMismatch, []string{"index 6", "other"},
		},
		"labels of an embedding model": {
			native.LoadRequest{Path: embed, Capability: native.CapabilityEmbedding, Labels: labels},
			native.ErrMismatch, []string{"7 labels", "0"},
		},
		"another provider": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Provider: "AbacusExecutionProvider"},
			native.ErrMismatch, []string{"AbacusExecutionProvider", "CPUExecutionProvider"},
		},
		"an unknown device": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Device: "abacus"},
			native.ErrInvalidRequest, []string{"abacus", "cpu"},
		},
		"a device that is not there": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Device: "cuda:99"},
			native.ErrUnavailable, []string{"cuda:99"},
		},
		"a negative hint": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Batching: native.BatchingHints{MaxRows: -1}},
			native.ErrInvalidRequest, []string{"max_batch_rows", "-1"},
		},
		"negative waiting inputs": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Batching: native.BatchingHints{QueueRows: -2}},
			native.ErrInvalidRequest, []string{"queue_rows", "-2"},
		},
		"negative waiting tokens": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Batching: native.BatchingHints{QueueTokens: -3}},
			native.ErrInvalidRequest, []string{"queue_tokens", "-3"},
		},
		"a hint that fits in no field": {
			native.LoadRequest{Path: seq, Capability: topics.Capability(), Batching: native.BatchingHints{MaxTokens: 1 << 40}},
			native.ErrInvalidRequest, []string{"MaxBatchTokens"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			handle, err := adapter.LoadModel(context.Background(), test.request)
			wantKind(t, err, test.kind)
			if handle != nil {
				t.Errorf("a handle %v beside %v", handle, err)
			}
			for _, side := range test.sides {
				if !strings.Contains(err.Error(), side) {
					t.Errorf("%q does not name %q", err, side)
				}
			}
			wantModels(t, adapter)
		})
	}

	load(t, adapter, native.LoadRequest{
		Model: "all of it", Path: seq, Capability: topics.Capability(), Family: native.FamilyBERT,
		Format: native.ArtifactFullModel, Device: "cpu", Provider: "CPUExecutionProvider",
		Batching: native.BatchingHints{MaxRows: 4, MaxTokens: 64, QueueRows: 100, QueueTokens: 10_000},
		Labels:   labels,
	})
	_, err := adapter.LoadModel(context.Background(), native.LoadRequest{
		Model: "all of it", Path: reranker, Capability: native.CapabilityReranking,
	})
	wantKind(t, err, native.ErrAlreadyExists)
	wantModels(t, adapter, "all of it")
}

func TestBatchingHintsReachTheLibrary(t *testing.T) {
	adapter := newAdapter(t)
	handle := load(t, adapter, native.LoadRequest{
		Path: modelPath(t, "bert-seq"), Capability: topics.Capability(),
		Batching: native.BatchingHints{MaxRows: 1},
	})
	infer[*native.SequenceClassificationResponse](t, adapter, handle,
		native.SequenceClassificationRequest{Texts: repeat("a b", 16)})
	if calls := liveCalls(t); len(calls) != 1 || calls[0].Batches != 16 {
		t.Fatalf("got %+v", calls)
	}
}

func TestAFullQueueIsOverloaded(t *testing.T) {
	adapter := newAdapter(t)
	handle := load(t, adapter, native.LoadRequest{
		Path: modelPath(t, "bert-seq"), Capability: topics.Capability(),
		Batching: native.BatchingHints{MaxRows: 1, QueueRows: 1},
	})
	errs := make(chan error)
	for range 32 {
		go func() {
			_, err := adapter.Inference(context.Background(), handle,
				native.SequenceClassificationRequest{Texts: repeat("a b", 50)})
			errs <- err
		}()
	}
	refused := 0
	for range 32 {
		if err := <-errs; err != nil {
			wantKind(t, err, native.ErrOverloaded)
			refused++
		}
	}
	if refused == 0 || refused == 32 {
		t.Errorf("%d of 32 are refused", refused)
	}
}

func TestOneBadInputFailsItsRowOnly(t *testing.T) {
	adapter := newAdapter(t)
	ctx := context.Background()
	bad := "bad \xff text"
	for capability, request := range map[native.Capability]native.InferenceRequest{
		native.CapabilityEmbedding:              native.EmbeddingRequest{Texts: []string{"a", bad}},
		native.CapabilitySequenceClassification: native.SequenceClassificationRequest{Texts: []string{"a", bad}},
		native.CapabilityTokenClassification:    native.TokenClassificationRequest{Texts: []string{"a", bad}},
		native.CapabilityReranking:              native.RerankingRequest{Query: "a", Documents: []string{bad, "b"}},
	} {
		handle := load(t, adapter, native.LoadRequest{
			Path: modelPath(t, requests[capability].model), Capability: capability,
		})
		got, err := adapter.Inference(ctx, handle, request)
		wantKind(t, err, native.ErrPartial)
		wantKind(t, err, native.ErrInvalidRequest) // the kind of its first failed row
		if got == nil || len(got.Usage()) != 2 {
			t.Fatalf("%s: got %v beside %v", capability, got, err)
		}
		failed := 1
		if r, ok := got.(*native.RerankingResponse); ok {
			failed = 0
			if len(r.Ranking) != 1 || r.Ranking[0] != 1 {
				t.Errorf("the ranking is %v", r.Ranking)
			}
		}
		wantKind(t, got.Usage()[failed].Err, native.ErrInvalidRequest)
		if good := got.Usage()[1-failed]; good.Err != nil || good.TokenCount < 3 {
			t.Errorf("%s: the good row is %+v", capability, good)
		}
		var e *semantic.Error
		if !errors.As(err, &e) || e.Input != failed {
			t.Errorf("%s: the library's error is %+v", capability, e)
		}
	}
}

func TestEveryBadInputFailsTheCall(t *testing.T) {
	adapter := newAdapter(t)
	handle := loadTopics(t, adapter, "topics")
	got, err := adapter.Inference(context.Background(), handle,
		native.SequenceClassificationRequest{Texts: []string{"\xff"}})
	wantKind(t, err, native.ErrInvalidRequest)
	if got != nil || errors.Is(err, native.ErrPartial) {
		t.Errorf("got %v beside %v", got, err)
	}
	_, err = adapter.Inference(context.Background(), handle,
		native.SequenceClassificationRequest{Texts: []string{strings.Repeat("a", 2<<20)}})
	wantKind(t, err, native.ErrTooLong)
	_, err = adapter.Inference(context.Background(), handle,
		native.SequenceClassificationRequest{Texts: []string{"a"}, PairTexts: []string{}})
	wantKind(t, err, native.ErrInvalidRequest)
}

func TestRequestsAreValidatedAgainstTheModel(t *testing.T) {
	adapter := newAdapter(t)
	handle := load(t, adapter, native.LoadRequest{
		Path: modelPath(t, "bert-embed-mean"), Capability: native.CapabilityEmbedding, TargetDimension: 64,
	})
	for _, test := range []struct {
		request native.EmbeddingRequest
		kind    error
	}{
		{native.EmbeddingRequest{Texts: []string{"a"}, Dimension: 32}, native.ErrInvalidRequest},
		{native.EmbeddingRequest{Texts: []string{"a"}, Layer: 2}, native.ErrInvalidRequest},
		{native.EmbeddingRequest{Texts: []string{"a"}, PromptName: "query"}, native.ErrNotFound},
	} {
		_, err := adapter.Inference(context.Background(), handle, test.request)
		wantKind(t, err, test.kind)
	}
	got := infer[*native.EmbeddingResponse](t, adapter, handle, native.EmbeddingRequest{})
	if got.Dimension != 64 || len(got.Rows) != 0 || len(got.Usage()) != 0 {
		t.Errorf("no texts: %+v", got)
	}
}
