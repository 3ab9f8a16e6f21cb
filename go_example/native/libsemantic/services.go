package libsemantic

import (
	"cmp"
	"context"
	"slices"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// A service is how the library serves a capability.
type service struct {
	task  semantic.Task
	infer inference
}

type inference func(context.Context, *handle, native.InferenceRequest) (native.InferenceResponse, error)

// services are the capabilities that are advertised, besides that of adapters.
var services = map[native.Capability]service{
	native.CapabilityEmbedding:              {semantic.TaskEmbedding, typed(embed)},
	native.CapabilitySequenceClassification: {semantic.TaskSequenceClassification, typed(classify)},
	native.CapabilityTokenClassification:    {semantic.TaskTokenClassification, typed(classifyTokens)},
	native.CapabilityReranking:              {semantic.TaskSequenceClassification, typed(rerank)},
}

// serviceFor returns the service of an advertised capability.
func serviceFor(capability native.Capability) (service, bool) {
	if capability == native.CapabilityLoRAAdapterServing {
		return service{semantic.TaskAuto, serveAdapter}, true
	}
	s, ok := services[capability]
	return s, ok
}

// lacking says why the others are not.
var lacking = map[native.Capability]string{
	native.CapabilityMultimodalEmbedding:      "the library takes text only",
	native.CapabilityModalityRouting:          "the library takes text only",
	native.CapabilityGuard:                    "the library does not run guard models, which generate text",
	native.CapabilityGenerativeClassification: "the library does not generate text",
	native.CapabilityMLPSelector:              "the library does not run selectors",
}

// typed refuses requests of another type than the capability's.
func typed[Request native.InferenceRequest](
	infer func(context.Context, *handle, Request) (native.InferenceResponse, error),
) inference {
	return func(
		ctx context.Context, h *handle, request native.InferenceRequest,
	) (native.InferenceResponse, error) {
		r, ok := request.(Request)
		if !ok {
			return nil, newError(native.ErrRequestType,
				"%s was loaded for %s, which takes a %T, and got a %T; load the model for the "+
					"capability of the request", h.ID(), h.capability, r, request)
		}
		return infer(ctx, h, r)
	}
}

// serveAdapter answers as a model does that was loaded for the request's own capability.
func serveAdapter(
	ctx context.Context, h *handle, request native.InferenceRequest,
) (native.InferenceResponse, error) {
	switch request.(type) {
	case native.EmbeddingRequest, native.SequenceClassificationRequest,
		native.TokenClassificationRequest, native.RerankingRequest:
		if slices.Contains(h.serves, request.Capability()) {
			return services[request.Capability()].infer(ctx, h, request)
		}
	}
	return nil, newError(native.ErrRequestType,
		"%s was loaded for %s, its adapter serves %q, and got a %T; load an adapter that serves "+
			"the request", h.ID(), h.capability, h.serves, request)
}

func embed(
	ctx context.Context, h *handle, request native.EmbeddingRequest,
) (native.InferenceResponse, error) {
	got, err := h.model.Embed(ctx, request.Texts, semantic.RunOptions{
		Dimension:  cmp.Or(request.Dimension, h.dimension),
		Layer:      cmp.Or(request.Layer, h.layer),
		PromptName: request.PromptName,
		NoPrompt:   request.NoPrompt,
	})
	if got == nil {
		return nil, wrap(err)
	}
	out := &native.EmbeddingResponse{
		Dimension: got.Dimension,
		Rows:      make([]native.EmbeddingRow, len(got.Rows)),
	}
	for i, row := range got.Rows {
		out.Rows[i] = native.EmbeddingRow{Usage: usage(row.Row), Vector: row.Vector}
	}
	return out, wrap(err)
}

func classify(
	ctx context.Context, h *handle, request native.SequenceClassificationRequest,
) (native.InferenceResponse, error) {
	options := semantic.RunOptions{Threshold: request.Threshold}
	var got *semantic.Classification
	var err error
	if request.PairTexts == nil {
		got, err = h.model.Classify(ctx, request.Texts, options)
	} else {
		got, err = h.model.ClassifyPairs(ctx, request.Texts, request.PairTexts, options)
	}
	if got == nil {
		return nil, wrap(err)
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
	return out, wrap(err)
}

func classifyTokens(
	ctx context.Context, h *handle, request native.TokenClassificationRequest,
) (native.InferenceResponse, error) {
	options := semantic.RunOptions{Threshold: request.Threshold}
	var got *semantic.TokenClassification
	var err error
	if request.Contexts == nil {
		got, err = h.model.ClassifyTokens(ctx, request.Texts, options)
	} else {
		got, err = h.model.ClassifyTokenPairs(ctx, request.Contexts, request.Texts, options)
	}
	if got == nil {
		return nil, wrap(err)
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
	return out, wrap(err)
}

func rerank(
	ctx context.Context, h *handle, request native.RerankingRequest,
) (native.InferenceResponse, error) {
	queries := make([]string, len(request.Documents))
	for i := range queries {
		queries[i] = request.Query
	}
	got, err := h.model.ClassifyPairs(ctx, queries, request.Documents, semantic.RunOptions{})
	if got == nil {
		return nil, wrap(err)
	}
	out := &native.RerankingResponse{Rows: make([]native.RerankingRow, len(got.Rows))}
	for i, row := range got.Rows {
		// The head has one label: check refuses others.
		out.Rows[i] = native.RerankingRow{Usage: usage(row.Row), Score: row.Score, Logit: row.Logits[0]}
		if row.Err == nil {
			out.Ranking = append(out.Ranking, i)
		}
	}
	slices.SortStableFunc(out.Ranking, func(i, j int) int {
		return cmp.Compare(out.Rows[j].Logit, out.Rows[i].Logit)
	})
	return out, wrap(err)
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
