package native

// An InferenceRequest is one of the request types of this package, passed by value.
type InferenceRequest interface {
	// Capability is the one that a model must be loaded for, or CapabilityLoRAAdapterServing.
	Capability() Capability
}

// An InferenceResponse is a pointer to the response type that belongs to the request.
type InferenceResponse interface {
	// Usage says how each input was answered, in the order of the request.
	Usage() []Usage
}

// Usage says how one input of a request was answered.
type Usage struct {
	TokenCount       int  // tokens of the whole input, with special tokens
	ScoredTokenCount int  // those that the model saw, each counted once
	Truncated        bool // not all tokens were scored
	WindowCount      int
	Err              error // nil: answered; else an *Error, and the counts are 0
}

// An EmbeddingRequest asks for a vector of each text.
type EmbeddingRequest struct {
	Texts      []string
	Dimension  int    // one of ModelInfo.RuntimeDimensions; 0: the first of LoadRequest.TargetDimensions
	Layer      int    // one of ModelInfo.RuntimeLayers; 0: the first of LoadRequest.TargetLayers
	PromptName string // of the artifact; "": its default
	NoPrompt   bool   // not even the default one
}

// Capability implements InferenceRequest.
func (EmbeddingRequest) Capability() Capability { return CapabilityEmbedding }

// An EmbeddingResponse answers an EmbeddingRequest.
type EmbeddingResponse struct {
	Dimension int // of every vector
	Rows      []EmbeddingRow
}

// An EmbeddingRow holds the vector of one text; NaN where it failed.
type EmbeddingRow struct {
	Usage
	Vector []float32
}

// Usage implements InferenceResponse.
func (r *EmbeddingResponse) Usage() []Usage {
	return usageOf(r.Rows, func(row EmbeddingRow) Usage { return row.Usage })
}

// A SequenceClassificationRequest asks for a label of each text, or of each pair of
// texts, as natural language inference does.
type SequenceClassificationRequest struct {
	Texts     []string
	PairTexts []string // nil: none; else the second text of each pair
	Threshold float32  // multi-label: selected from here on; 0: the backend's default
}

// Capability implements InferenceRequest.
func (SequenceClassificationRequest) Capability() Capability {
	return CapabilitySequenceClassification
}

// A SequenceClassificationResponse answers a SequenceClassificationRequest or a
// ModalityRoutingRequest.
type SequenceClassificationResponse struct {
	Labels     []string
	MultiLabel bool // the probabilities do not sum to 1
	Rows       []SequenceClassificationRow
}

// A SequenceClassificationRow holds one probability and one logit for each label of
// the response. Where the input failed the label is empty, the index -1 and every
// number NaN.
type SequenceClassificationRow struct {
	Usage
	Label         string // the winner
	Index         int
	Score         float32 // the winner's probability
	Probabilities []float32
	Logits        []float32
	Selected      []bool // probability >= threshold
}

// Usage implements InferenceResponse.
func (r *SequenceClassificationResponse) Usage() []Usage {
	return usageOf(r.Rows, func(row SequenceClassificationRow) Usage { return row.Usage })
}

// A ModalityRoutingRequest asks which kind of model should answer each text: a language
// model (label AR), an image generator (DIFFUSION), or BOTH. Its response is a
// SequenceClassificationResponse.
type ModalityRoutingRequest struct {
	Texts []string
}

// Capability implements InferenceRequest.
func (ModalityRoutingRequest) Capability() Capability { return CapabilityModalityRouting }

// A TokenClassificationRequest asks for the entities in each text, or in each text
// given a context, as hallucination detection does.
type TokenClassificationRequest struct {
	Texts     []string
	Contexts  []string // nil: none; else the context of each text
	Threshold float32  // entities below it are dropped; 0: none
}

// Capability implements InferenceRequest.
func (TokenClassificationRequest) Capability() Capability { return CapabilityTokenClassification }

// A TokenClassificationResponse answers a TokenClassificationRequest.
type TokenClassificationResponse struct {
	Labels []string // types of entities
	Rows   []TokenClassificationRow
}

// A TokenClassificationRow holds the entities of one text, ordered by start and end.
type TokenClassificationRow struct {
	Usage
	Entities []Entity
}

// An Entity is text[Start:End] of the string that was given.
type Entity struct {
	Start, End int // bytes
	Label      string
	Index      int // in TokenClassificationResponse.Labels
	Score      float32
}

// Usage implements InferenceResponse.
func (r *TokenClassificationResponse) Usage() []Usage {
	return usageOf(r.Rows, func(row TokenClassificationRow) Usage { return row.Usage })
}

// A RerankingRequest asks how well each document answers the query.
type RerankingRequest struct {
	Query     string
	Documents []string
}

// Capability implements InferenceRequest.
func (RerankingRequest) Capability() Capability { return CapabilityReranking }

// A RerankingResponse answers a RerankingRequest.
type RerankingResponse struct {
	Rows    []RerankingRow // in the order of the documents
	Ranking []int          // indices of Rows, best first, without those that failed
}

// A RerankingRow holds the score of one document; NaN where it failed.
type RerankingRow struct {
	Usage
	Score float32 // between 0 and 1
	Logit float32
}

// Usage implements InferenceResponse.
func (r *RerankingResponse) Usage() []Usage {
	return usageOf(r.Rows, func(row RerankingRow) Usage { return row.Usage })
}

func usageOf[Row any](rows []Row, usage func(Row) Usage) []Usage {
	out := make([]Usage, len(rows))
	for i, row := range rows {
		out[i] = usage(row)
	}
	return out
}
