package native

import (
	"context"
	"slices"
)

// A BackendAdapter runs models on one backend. Its methods may be called from any
// number of goroutines.
type BackendAdapter interface {
	// Name is the backend, the same at every call.
	Name() Backend

	// Capabilities says what LoadModel and Inference can do. What is not in it is
	// ErrUnsupported.
	Capabilities() CapabilitySet

	// LoadModel loads a model, or returns an error and leaves nothing loaded. A
	// request that contradicts the artifact is ErrMismatch. Only a loaded model can be
	// compared, so one that is about to be refused may show in Info for a moment.
	LoadModel(ctx context.Context, request LoadRequest) (ModelHandle, error)

	// UnloadModel refuses new calls, waits for those in flight and frees the model.
	// It succeeds once for each handle, then it is ErrClosed. When ctx ends first,
	// new calls stay refused, and calling it again goes on waiting.
	UnloadModel(ctx context.Context, handle ModelHandle) error

	// Inference answers one request. The request must be of the type that belongs
	// to the capability that the model was loaded for, else it is ErrRequestType. A
	// model that was loaded for CapabilityLoRAAdapterServing takes the requests of
	// all other capabilities that its ModelInfo lists.
	// When some inputs failed, the response comes together with ErrPartial. Where the
	// backend has replaced the model and the new one contradicts the request that the
	// handle was loaded with, it is ErrMismatch.
	Inference(ctx context.Context, handle ModelHandle, request InferenceRequest) (InferenceResponse, error)

	// Info describes the models that the backend holds at this moment.
	Info() []ModelInfo
}

// A ModelHandle stands for a loaded model. Only the adapter that made it takes it.
type ModelHandle interface {
	// ID names the model within the process. It is never reused.
	ID() string
}

// The names of features in CapabilitySet and ModelInfo.
const (
	FeatureBatching        = "batching"         // inputs of one request run together
	FeatureCancellation    = "cancellation"     // ending the context stops the work
	FeatureDeadline        = "deadline"         // so does the deadline of the context
	FeatureDimensionChoice = "dimension_choice" // embeddings in more than one dimension
	FeatureLayerChoice     = "layer_choice"     // embeddings from more than one layer
	FeaturePrompts         = "prompts"          // the artifact brings named prompts
	FeatureMultiLabel      = "multi_label"      // labels do not exclude each other
)

// A CapabilitySet is what an adapter can do. A family is in it if artifacts of it load
// from some format, a format if it loads for some family.
type CapabilitySet struct {
	Capabilities       []Capability     `json:"capabilities"`
	SupportedFamilies  []Family         `json:"supported_families"`
	SupportedArtifacts []ArtifactFormat `json:"supported_artifacts"`

	// ArtifactsByFamily are the formats that each supported family loads from.
	ArtifactsByFamily map[Family][]ArtifactFormat `json:"artifacts_by_family"`

	Features map[string]bool `json:"features"`
}

// Has reports whether the capability is advertised.
func (s CapabilitySet) Has(capability Capability) bool {
	return slices.Contains(s.Capabilities, capability)
}

// A LoadRequest says which model to load and what it must be. The zero value of a
// field that is not required asks for nothing.
type LoadRequest struct {
	// Model is the reference by which the router knows the model, such as
	// "org/model". The backend lists the model under this name; default: the base
	// name of the resolved folder.
	Model string
	Path  string // resolved folder of the artifact; required
	// BasePath is the resolved folder of the base of an adapter. Empty: the one that
	// the adapter records.
	BasePath string

	Capability Capability     // required
	Family     Family         // must be what the artifact says
	Format     ArtifactFormat // likewise

	Device   DevicePolicy
	Provider ProviderPolicy
	Batching BatchingHints

	// TargetDimensions and TargetLayers are those that embeddings will be asked for;
	// the artifact must have each of them. Requests that name none get the first. nil:
	// the full dimension, the last layer.
	TargetDimensions []int
	TargetLayers     []int

	// Labels is the label of each output of the head that the router counts on. It
	// must be the whole table of the artifact.
	Labels map[int]string
}

// A DevicePolicy is the device that a model must run on, as the backend names it: "cpu",
// "openvino", "cuda", "cuda:N", "tensorrt", or "auto". Empty: the backend's default.
type DevicePolicy string

// A ProviderPolicy is the execution provider that a model must run on, named as in
// ModelInfo.Provider. Empty: any.
type ProviderPolicy string

// BatchingHints bound what a model runs together and what may wait for it. 0: the
// backend's default.
type BatchingHints struct {
	MaxRows     int // inputs in one run
	MaxTokens   int // padded tokens in one run of several inputs
	QueueRows   int // waiting inputs
	QueueTokens int // waiting tokens
}

// ModelInfo is what a backend states of one of its models. An empty field was not
// stated.
type ModelInfo struct {
	ID                string         `json:"id"` // as ModelHandle.ID
	Backend           Backend        `json:"backend"`
	Version           string         `json:"version"` // of the backend
	Name              string         `json:"name"`
	Path              string         `json:"path"`         // resolved folder
	IsLoaded          bool           `json:"is_loaded"`    // false while it is loading or stopping
	Capabilities      []Capability   `json:"capabilities"` // that the artifact can serve
	Family            Family         `json:"family"`       // what the artifact says
	Format            ArtifactFormat `json:"format"`
	Modality          Modality       `json:"modality"`
	Provider          string         `json:"provider"` // that runs it
	Device            string         `json:"device"`
	MaxSequenceLength int            `json:"max_sequence_length"` // tokens; longer inputs are cut or windowed
	DefaultDimension  int            `json:"default_dimension"`   // of a full embedding; 0: gives none

	// RequestedDimensions and RequestedLayers are those that the model was loaded for,
	// where the backend itself keeps them beside the model. nil: it does not; an adapter
	// must not fill them in from a LoadRequest.
	RequestedDimensions []int `json:"requested_dimensions"`
	RequestedLayers     []int `json:"requested_layers"`

	// RuntimeDimensions and RuntimeLayers are those that the loaded model gives.
	RuntimeDimensions []int `json:"runtime_dimensions"`
	RuntimeLayers     []int `json:"runtime_layers"` // nil: only the last, which has no number

	Features map[string]bool `json:"features"`
	// UnsupportedReasons says why the model lacks what it lacks: for each capability
	// of the backend that is not in Capabilities and each feature that is false in
	// Features.
	UnsupportedReasons map[string]string `json:"unsupported_reasons"`
}
