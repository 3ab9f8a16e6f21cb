package semantic

// Options of Open. The zero value of every field is its default.
type Options struct {
	// Device is "auto" (default): for each model the first that works of cuda, openvino,
	// cpu; or "cpu", "openvino", "cuda", "cuda:N", "tensorrt", "tensorrt:N": all of a model
	// runs there, or loading it is ErrDeviceUnavailable.
	Device         string
	Environment    string // folder of the Python environment; fixed once Python runs
	IntraOpThreads int    // threads of one run; default: the CPUs of the process
	ParallelRuns   int    // runs at a time on the CPUs, of all models together; default: one more than the CPUs
	QueueRows      int    // waiting rows per model; default 65,536
	QueueTokens    int    // waiting tokens per model; default 16,777,216
	LogLevel       LogLevel

	// MaxCalls is how many calls of one model are inside the library at a time.
	// Each of them holds a thread; more calls wait in Go. Default 256.
	MaxCalls int
}

// LogLevel says what the library writes to stderr.
type LogLevel int32

const (
	LogDefault LogLevel = 0 // LogWarning
	LogOff     LogLevel = 1
	LogError   LogLevel = 2
	LogWarning LogLevel = 3
	LogInfo    LogLevel = 4
	LogDebug   LogLevel = 5
)

// LoadOptions of Runtime.Load. The zero value of every field is its default.
type LoadOptions struct {
	Name           string      // default: base name of the resolved folder
	Task           Task        // must agree with the folder
	Precision      Precision   // one the provider cannot run is ErrUnsupported
	Device         string      // default: that of Open
	MaxTokens      int         // longest text or window scored; default: as the folder declares
	MaxBatchRows   int         // texts or windows in one run; default 32
	MaxBatchTokens int         // padded tokens in one run of several; default: that of the device, 256 on CPU
	MaxTextBytes   int         // a longer text is ErrTooLong; default 1 MiB
	BasePath       string      // adapter folders only: that of the base; default: as recorded
	AdapterMode    AdapterMode // adapter folders only
	ArenaBytes     int         // the most a model takes of a cuda device, or of workspace for tensorrt; default 4 GiB
	IntraOpThreads int         // default: that of Open
	ParallelRuns   int         // runs of this model at a time; default and, on the CPUs, the most: that of Open
	QueueRows      int         // default: that of Open
	QueueTokens    int         // default: that of Open

	// Replaces is a model whose name and handle the new one takes over once it
	// is ready; Load then returns that same *Model. The task must be equal. Calls
	// in flight finish on the old model; a failed load leaves it as it was.
	Replaces *Model
}

// A Task is what a model answers.
type Task int32

const (
	TaskAuto                   Task = 0 // as the model folder says
	TaskSequenceClassification Task = 1
	TaskTokenClassification    Task = 2
	TaskEmbedding              Task = 3
)

func (t Task) String() string {
	names := []string{"auto", "sequence classification", "token classification", "embedding"}
	return nameOf(names, int32(t))
}

// Precision is the arithmetic that a model is asked to run in.
type Precision int32

const (
	PrecisionAuto Precision = 0 // as the model folder says
	PrecisionFP32 Precision = 1
	PrecisionFP16 Precision = 2
	PrecisionBF16 Precision = 3
	PrecisionINT8 Precision = 4
)

// AdapterMode is how a folder with a LoRA adapter is loaded. Either way the adapter is a
// model of its own, with its labels, head and pooling.
type AdapterMode int32

const (
	AdapterShared AdapterMode = 0 // all adapters of one base run on one copy of it
	AdapterMerged AdapterMode = 1 // the adapter is added to weights of its own
)

// RunOptions of one call. The zero value of every field is its default.
type RunOptions struct {
	LongText      LongText
	MaxTokens     int     // longest text or window scored; default, and the most: Info.MaxTokens
	WindowOverlap int     // tokens; default min(128, MaxTokens / 4)
	Shorten       Shorten // pairs only
	Dimension     int     // embedding only; one of Info.Dimensions
	Layer         int     // embedding only; one of Info.Layers
	// Threshold: multi-label classes are selected from here on, default 0.5;
	// entities below it are dropped, default none.
	Threshold  float32
	PromptName string // embedding only; one of Info.PromptNames; default: the model's own
	NoPrompt   bool   // embedding only; use no prompt, not even the model's own
	Output     Output // token classification only
	Normalize  Normalize

	// CancelKey lets Runtime.Cancel end this call and all others that carry the
	// same number. Contexts need no key. 0: none.
	CancelKey uint64
}

// LongText says what happens to a text above Info.MaxTokens.
type LongText int32

const (
	LongTextAuto    LongText = 0 // token classification and pairs windows, others cut
	LongTextRefuse  LongText = 1 // the text is ErrTooLong
	LongTextCut     LongText = 2 // its first tokens are scored, Row.Truncated is true
	LongTextWindows LongText = 3 // all of it is scored, in overlapping windows
)

// Shorten says which part of a pair may be shortened; the other one never is.
type Shorten int32

const (
	// ShortenAuto is ShortenFirst with two or more labels and for token pairs,
	// and ShortenSecond for one-label heads (query, document).
	ShortenAuto   Shorten = 0
	ShortenFirst  Shorten = 1
	ShortenSecond Shorten = 2
)

// Output is the form of a token classification.
type Output int32

const (
	OutputEntities Output = 0 // neighbouring tokens of one type merged
	OutputTokens   Output = 1 // every scored token of the text
)

// Normalize says whether vectors are brought to unit length.
type Normalize int32

const (
	NormalizeAuto Normalize = 0 // as the folder says; unit length where it is silent
	NormalizeOn   Normalize = 1
	NormalizeOff  Normalize = 2
)
