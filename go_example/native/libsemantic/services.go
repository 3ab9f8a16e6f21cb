package libsemantic

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// A service is how the library serves a capability.
type service struct {
	task  semantic.Task
	infer inference

	// unfit says why a model for the task does not serve the capability, "" where it
	// does. nil: every one does.
	unfit func(*semantic.Info) string
}

// An inference returns the response, nil where there is none, and the generation of the
// model that gave it.
type inference func(
	context.Context, *handle, native.InferenceRequest,
) (native.InferenceResponse, uint64, error)

// services are the capabilities that are advertised, besides that of adapters.
var services = map[native.Capability]service{
	native.CapabilityEmbedding: {
		task: semantic.TaskEmbedding, infer: typed(embed),
	},
	native.CapabilitySequenceClassification: {
		task: semantic.TaskSequenceClassification, infer: typed(classify),
	},
	native.CapabilityTokenClassification: {
		task: semantic.TaskTokenClassification, infer: typed(classifyTokens),
	},
	native.CapabilityModalityRouting: {
		task: semantic.TaskSequenceClassification, infer: typed(routeModality),
		unfit: hasOtherLabelsThanModalities,
	},
	native.CapabilityReranking: {
		task: semantic.TaskSequenceClassification, infer: typed(rerank),
		unfit: hasManyLabels,
	},
}

// serviceFor returns the service of an advertised capability.
func serviceFor(capability native.Capability) (service, bool) {
	if capability == native.CapabilityLoRAAdapterServing {
		return service{task: semantic.TaskAuto, infer: serveAdapter, unfit: isNoAdapter}, true
	}
	s, ok := services[capability]
	return s, ok
}

// lacking says why the others are not.
var lacking = map[native.Capability]string{
	native.CapabilityMultimodalEmbedding: "the library takes text only",
	native.CapabilityGuard: "the library does not generate text, as guards of the family Qwen3Guard " +
		"do; load a guard that is a classifier for sequence_classification or token_classification",
	native.CapabilityGenerativeClassification: "the library does not generate text",
	native.CapabilityMLPSelector:              "the library does not run selectors",
}

// modalities are the labels of a classifier that routes by modality, sorted.
var modalities = []string{"AR", "BOTH", "DIFFUSION"}

func hasOtherLabelsThanModalities(info *semantic.Info) string {
	labels := slices.Clone(info.Labels)
	slices.Sort(labels)
	if slices.Equal(labels, modalities) && !info.MultiLabel {
		return ""
	}
	return fmt.Sprintf("needs a head with the labels %q of which one applies, the artifact's has %q",
		modalities, info.Labels)
}

func hasManyLabels(info *semantic.Info) string {
	if len(info.Labels) == 1 {
		return ""
	}
	return fmt.Sprintf("needs a head with one label, the artifact's has %d", len(info.Labels))
}

// typed refuses requests of another type than the capability's.
func typed[Request native.InferenceRequest](
	infer func(context.Context, *handle, Request) (native.InferenceResponse, uint64, error),
) inference {
	return func(
		ctx context.Context, h *handle, request native.InferenceRequest,
	) (native.InferenceResponse, uint64, error) {
		r, ok := request.(Request)
		if !ok {
			return nil, 0, newError(native.ErrRequestType,
				"%s was loaded for %s, which takes a %T, and got a %T; load the model for the "+
					"capability of the request", h.ID(), h.request.Capability, r, request)
		}
		return infer(ctx, h, r)
	}
}

func isNoAdapter(info *semantic.Info) string {
	if isAdapter(info) {
		return ""
	}
	return "needs a LoRA adapter, the artifact is none"
}

// serveAdapter answers as a model does that was loaded for the request's own capability.
func serveAdapter(
	ctx context.Context, h *handle, request native.InferenceRequest,
) (native.InferenceResponse, uint64, error) {
	var capability native.Capability
	switch request.(type) { // others may be nil, or of anybody's making
	case native.EmbeddingRequest, native.SequenceClassificationRequest,
		native.TokenClassificationRequest, native.ModalityRoutingRequest, native.RerankingRequest:
		capability = request.Capability()
	default:
		return nil, 0, newError(native.ErrRequestType,
			"%s was loaded for %s and got a %T; send a request for what its adapter serves",
			h.ID(), h.request.Capability, request)
	}
	info, err := h.adapter.runtime.InfoOf(h.model.ID())
	if err != nil {
		return nil, 0, wrap(err)
	}
	if reason := unfit(capability, info); reason != "" {
		return nil, 0, newError(native.ErrRequestType, "%s was loaded for %s and got a %T: %s %s; "+
			"send a request for what its adapter serves",
			h.ID(), h.request.Capability, request, capability, reason)
	}
	response, generation, err := services[capability].infer(ctx, h, request)
	if response != nil && generation != info.Generation {
		return nil, 0, newError(native.ErrNotReady,
			"the model %s was replaced while it answered; ask again", h.ID())
	}
	return response, generation, err
}

func embed(
	ctx context.Context, h *handle, request native.EmbeddingRequest,
) (native.InferenceResponse, uint64, error) {
	got, err := h.model.Embed(ctx, request.Texts, semantic.RunOptions{
		Dimension:  cmp.Or(request.Dimension, first(h.request.TargetDimensions)),
		Layer:      cmp.Or(request.Layer, first(h.request.TargetLayers)),
		PromptName: request.PromptName,
		NoPrompt:   request.NoPrompt,
	})
	if got == nil {
		return nil, 0, wrap(err)
	}
	out := &native.EmbeddingResponse{
		Dimension: got.Dimension,
		Rows:      make([]native.EmbeddingRow, len(got.Rows)),
	}
	for i, row := range got.Rows {
		out.Rows[i] = native.EmbeddingRow{Usage: usage(row.Row), Vector: row.Vector}
	}
	return out, got.Generation, wrap(err)
}

// first is 0, the library's default, where nothing is targeted.
func first(targets []int) int {
	if len(targets) == 0 {
		return 0
	}
	return targets[0]
}

func classify(
	ctx context.Context, h *handle, request native.SequenceClassificationRequest,
) (native.InferenceResponse, uint64, error) {
	options := semantic.RunOptions{Threshold: request.Threshold}
	var got *semantic.Classification
	var err error
	if request.PairTexts == nil {
		got, err = h.model.Classify(ctx, request.Texts, options)
	} else {
		got, err = h.model.ClassifyPairs(ctx, request.Texts, request.PairTexts, options)
	}
	if got == nil {
		return nil, 0, wrap(err)
	}
	out := &native.SequenceClassificationResponse{
		Labels:     got.Labels,
		MultiLabel: got.MultiLabel,
		Rows:       make([]native.SequenceClassificationRow, len(got.Rows)),
	}
	for i, row := range got.Rows {
		out.Rows[i] = native.SequenceClassificationRow{
			Usage:         usage(row.Row),
			Label:         row.Label,
			Index:         row.LabelIndex,
			Score:         row.Score,
			Probabilities: row.Probabilities,
			Logits:        row.Logits,
			Selected:      row.Selected,
		}
	}
	return out, got.Generation, wrap(err)
}

func routeModality(
	ctx context.Context, h *handle, request native.ModalityRoutingRequest,
) (native.InferenceResponse, uint64, error) {
	return classify(ctx, h, native.SequenceClassificationRequest{Texts: request.Texts})
}

func classifyTokens(
	ctx context.Context, h *handle, request native.TokenClassificationRequest,
) (native.InferenceResponse, uint64, error) {
	options := semantic.RunOptions{Threshold: request.Threshold}
	var got *semantic.TokenClassification
	var err error
	if request.Contexts == nil {
		got, err = h.model.ClassifyTokens(ctx, request.Texts, options)
	} else {
		got, err = h.model.ClassifyTokenPairs(ctx, request.Contexts, request.Texts, options)
	}
	if got == nil {
		return nil, 0, wrap(err)
	}
	out := &native.TokenClassificationResponse{
		Labels: got.Labels,
		Rows:   make([]native.TokenClassificationRow, len(got.Rows)),
	}
	for i, row := range got.Rows {
		entities := make([]native.Entity, len(row.Spans))
		for j, span := range row.Spans {
			entities[j] = native.Entity{
				Start: span.Start,
				End:   span.End,
				Label: span.Label,
				Index: span.LabelIndex,
				Score: span.Score,
			}
		}
		out.Rows[i] = native.TokenClassificationRow{Usage: usage(row.Row), Entities: entities}
	}
	return out, got.Generation, wrap(err)
}

func rerank(
	ctx context.Context, h *handle, request native.RerankingRequest,
) (native.InferenceResponse, uint64, error) {
	queries := make([]string, len(request.Documents))
	for i := range queries {
		queries[i] = request.Query
	}
	got, err := h.model.ClassifyPairs(ctx, queries, request.Documents, semantic.RunOptions{})
	if got == nil {
		return nil, 0, wrap(err)
	}
	if len(got.Labels) != 1 { // the model was replaced since it was accepted
		return nil, 0, newError(native.ErrMismatch,
			"%s: reranking: needs a head with one label, the model there now has %d; load a reranker",
			h.ID(), len(got.Labels))
	}
	out := &native.RerankingResponse{Rows: make([]native.RerankingRow, len(got.Rows))}
	for i, row := range got.Rows {
		out.Rows[i] = native.RerankingRow{Usage: usage(row.Row), Score: row.Score, Logit: row.Logits[0]}
		if row.Err == nil {
			out.Ranking = append(out.Ranking, i)
		}
	}
	slices.SortStableFunc(out.Ranking, func(i, j int) int {
		return cmp.Compare(out.Rows[j].Logit, out.Rows[i].Logit)
	})
	return out, got.Generation, wrap(err)
}

func usage(row semantic.Row) native.Usage {
	return native.Usage{
		TokenCount:       row.TokenCount,
		ScoredTokenCount: row.ScoredTokenCount,
		Truncated:        row.Truncated,
		WindowCount:      row.WindowCount,
		Err:              wrap(row.Err),
	}
}
