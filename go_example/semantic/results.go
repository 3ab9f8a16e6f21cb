package semantic

import "time"

// A Row says how one text of a call was answered.
type Row struct {
	TokenCount       int  // tokens of the whole text, with special tokens
	ScoredTokenCount int  // those that the model saw, each counted once
	Truncated        bool // not all tokens were scored
	WindowCount      int
	Err              error // nil: answered; else an *Error, and the counts are 0
}

// A Classification is the answer of Classify and ClassifyPairs, one row per text
// or pair.
type Classification struct {
	Generation uint64 // of the model that answered; grows with every replace
	Labels     []string
	MultiLabel bool
	Rows       []ClassificationRow
}

// A ClassificationRow holds one probability and one logit per label of
// Classification.Labels. Where the row failed the label is empty, its index -1
// and every number NaN.
type ClassificationRow struct {
	Row
	Label         string // the winner
	LabelIndex    int
	Score         float32 // the winner's probability
	Probabilities []float32
	Logits        []float32
	Selected      []bool    // probability >= RunOptions.Threshold
	ClassMax      []float32 // per label the highest probability of any window
	ClassWindow   []int32   // and the window that has it
}

// A TokenClassification is the answer of ClassifyTokens and ClassifyTokenPairs.
type TokenClassification struct {
	Generation uint64
	Labels     []string // OutputEntities: types; OutputTokens: the model's labels
	Rows       []TokenRow
}

// A TokenRow holds the spans of one text, ordered by start and end.
type TokenRow struct {
	Row
	Spans []Span
}

// A Span is an entity or a token: text[Start:End] of the string that was given.
type Span struct {
	Start, End    int // bytes
	Label         string
	LabelIndex    int
	Score         float32
	Probabilities []float32 // OutputTokens: one per label; OutputEntities: nil
}

// Embeddings is the answer of Embed.
type Embeddings struct {
	Generation uint64
	Dimension  int
	Rows       []EmbeddingRow
}

// An EmbeddingRow holds the vector of one text; NaN where the row failed.
type EmbeddingRow struct {
	Row
	Vector []float32
}

// An Answer is what one model says in RunModels: one of the three results, that of its
// task, or only an error.
type Answer struct {
	Classification      *Classification
	TokenClassification *TokenClassification
	Embeddings          *Embeddings
	Err                 error // nil: answered; ErrPartial: some rows failed
}

// TokenCounts is the answer of CountTokens.
type TokenCounts struct {
	Generation uint64
	Rows       []TokenCountRow
}

// A TokenCountRow holds the windows that a call would score.
type TokenCountRow struct {
	Row
	Windows []Window
}

// A Window covers text[Start:End] with Tokens tokens, special tokens included.
type Window struct {
	Start, End int // bytes
	Tokens     int
}

// A ModelEntry is a line in the list of models.
type ModelEntry struct {
	ID    uint64
	Name  string
	Task  Task // TaskAuto while it is not known yet
	State State
}

// A State is where a model is in its life.
type State int32

const (
	StateLoading  State = 1
	StateReady    State = 2
	StateStopping State = 3 // no new calls; waits for those in flight
)

func (s State) String() string {
	return nameOf([]string{"", "loading", "ready", "stopping"}, int32(s))
}

// Info describes a loaded model.
type Info struct {
	Generation    uint64 // 1, and one more with every replace
	Name          string
	Path          string // resolved folder
	Family        string // model_type of config.json
	Architecture  string // of config.json, may be empty
	Source        string // "safetensors" or "onnx"
	Provider      string // execution provider that runs it
	DType         string // of the weights: of the files, or "int8" made of them
	Task          Task
	MultiLabel    bool
	Labels        []string
	MaxTokens     int   // longest text or window that is scored
	PositionLimit int   // the most LoadOptions.MaxTokens may be
	MaxTextBytes  int   // a longer text is ErrTooLong
	Dimension     int   // of a full embedding, else 0
	Dimensions    []int // values that RunOptions.Dimension may have
	Layers        []int // likewise; empty: only the last
	PromptNames   []string
	MappedBytes   int64 // weight files mapped into memory
	GrownBytes    int64 // growth of resident memory measured while it loaded
	Files         []File
	Warnings      []string // what was odd about the folder
	JSON          string   // all of it, as a JSON object
	Device        string   // where it runs: "cpu", "openvino", "cuda:0"
	Precision     string   // what it computes in: "fp32", "bf16"
}

// A File is part of a model folder.
type File struct {
	Name string // relative to Info.Path
	Size int64
}

// Stats are the counters of the runtime. The unit is the row:
// Accepted = Completed + Failed + Expired + Cancelled + InFlight; refused rows are
// counted apart.
type Stats struct {
	Running        bool // between the first start and Runtime.Close
	ModelsLoading  int
	ModelsReady    int
	ModelsStopping int

	Models       []ModelEntry
	ModelDevices []string // where each of Models runs; empty while it loads
	Calls        []CallStats

	// The upper bounds of the buckets of histograms, one fewer than there are buckets:
	// the last one is open. Those of time and those of the sizes of runs.
	LatencyBounds []time.Duration
	BatchBounds   []int

	Memory              []MemoryStats
	ResultsUnfreed      int // results not yet given back
	ResultsUnfreedBytes int64
	LogDropped          uint64
}

// CallStats count the calls of one kind to one model. The counters of closed
// models move to entries with ModelID 0 and the name "(closed)".
type CallStats struct {
	ModelID   uint64
	ModelName string
	Call      Call

	Accepted, Completed, Failed, Expired, Cancelled, InFlight uint64 // rows
	Refused                                                   uint64 // rows

	Tokens        uint64 // scored
	PaddingTokens uint64 // computed beside those
	Truncated     uint64 // rows
	Batches       uint64 // runs of the model, shared ones counted once

	Latency   Histogram[time.Duration]              // of calls
	Phases    [PhaseDecode]Histogram[time.Duration] // of calls that ended the phase; Phases[PhaseRun-1]
	BatchRows Histogram[uint64]                     // of runs, by their texts and windows
}

// A Histogram counts events by a value of theirs, and sums the values up.
type Histogram[Value any] struct {
	Counts []uint64 // per bucket, not cumulative
	Sum    Value
}

// A Phase is what a call does one after the other.
type Phase int32

const (
	PhaseTokenize Phase = 1
	PhaseQueue    Phase = 2 // waits for its first run
	PhaseRun      Phase = 3 // is in runs, or between those of many rows
	PhaseDecode   Phase = 4
)

func (p Phase) String() string {
	return nameOf([]string{"", "tokenize", "queue", "run", "decode"}, int32(p))
}

// A Call is a kind of call.
type Call int32

const (
	CallClassify           Call = 1
	CallClassifyPairs      Call = 2
	CallClassifyTokens     Call = 3
	CallClassifyTokenPairs Call = 4
	CallEmbed              Call = 5
	CallCountTokens        Call = 6
)

func (c Call) String() string {
	names := []string{"", "Classify", "ClassifyPairs", "ClassifyTokens", "ClassifyTokenPairs",
		"Embed", "CountTokens"}
	return nameOf(names, int32(c))
}

// MemoryStats is the memory of one owner, such as a model.
type MemoryStats struct {
	Owner string
	Bytes int64
}
