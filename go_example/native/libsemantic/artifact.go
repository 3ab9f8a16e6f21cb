package libsemantic

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/libsemantic/libsemantic/go_example/native"
	"github.com/libsemantic/libsemantic/go_example/semantic"
)

// families are the names of the values that model_type has in config.json, and
// whether the library builds such models from safetensors. It runs the ONNX files of
// any family.
var families = []struct {
	modelType string
	name      native.Family
	built     bool
}{
	{"bert", native.FamilyBERT, true},
	{"modernbert", native.FamilyModernBERT, true},
	{"roberta", native.FamilyRoBERTa, true},
	{"xlm-roberta", native.FamilyXLMRoBERTa, true},
	{"distilbert", native.FamilyDistilBERT, true},
	{"electra", native.FamilyELECTRA, true},
	{"deberta-v2", native.FamilyDeBERTaV2, true},
	{"qwen3", native.FamilyQwen3, true},
	{"gemma3_text", native.FamilyGemma, true},
}

// specialCases are families that artifacts state as a general one.
var specialCases = []struct {
	name, general native.Family
	minVocabulary int
}{
	{native.FamilyMiniLM, native.FamilyBERT, 0},
	{native.FamilyMmBERT, native.FamilyModernBERT, 200_000},
	{native.FamilyDeBERTaV3, native.FamilyDeBERTaV2, 0},
}

// formats are the artifacts that are advertised; lackingFormats says why others are not.
var (
	formats = []native.ArtifactFormat{
		native.ArtifactFullModel, native.ArtifactMergedLoRA, native.ArtifactAdapter,
		native.ArtifactONNXIR, native.ArtifactQuantized,
	}
	lackingFormats = map[native.ArtifactFormat]string{
		native.ArtifactOpenVINOIR: "the library does not read OpenVINO files; export the model to ONNX",
	}
)

// onnxFormats are those of ONNX files. The library runs them whatever the family.
var onnxFormats = []native.ArtifactFormat{native.ArtifactONNXIR, native.ArtifactQuantized}

// Capabilities implements native.BackendAdapter. Every family that has a name here loads
// from ONNX files, and so do those that have none; ArtifactsByFamily says which load
// from safetensors too.
func (a *Adapter) Capabilities() native.CapabilitySet {
	set := native.CapabilitySet{
		SupportedArtifacts: slices.Clone(formats),
		ArtifactsByFamily:  map[native.Family][]native.ArtifactFormat{},
		Features: map[string]bool{
			native.FeatureBatching:     true,
			native.FeatureCancellation: true,
			native.FeatureDeadline:     true,
		},
	}
	for _, capability := range native.AllCapabilities() {
		if _, ok := serviceFor(capability); ok {
			set.Capabilities = append(set.Capabilities, capability)
		}
	}
	for _, family := range families {
		artifacts := onnxFormats
		if family.built {
			artifacts = formats
		}
		set.SupportedFamilies = append(set.SupportedFamilies, family.name)
		set.ArtifactsByFamily[family.name] = slices.Clone(artifacts)
	}
	for _, special := range specialCases {
		set.SupportedFamilies = append(set.SupportedFamilies, special.name)
		set.ArtifactsByFamily[special.name] = slices.Clone(set.ArtifactsByFamily[special.general])
	}
	return set
}

// servable refuses what no artifact could be loaded for.
func servable(request native.LoadRequest) error {
	if _, ok := serviceFor(request.Capability); !ok {
		if reason, ok := lacking[request.Capability]; ok {
			return newError(native.ErrUnsupported, "%s: %s", request.Capability, reason)
		}
		return newError(native.ErrInvalidRequest,
			"the capability %q is unknown; ask for one of %q", request.Capability, native.AllCapabilities())
	}
	if request.Path == "" {
		return newError(native.ErrInvalidRequest,
			"the path of the artifact is empty; resolve the model %q to a folder", request.Model)
	}
	if f := request.Format; f != "" && !slices.Contains(formats, f) {
		if reason, ok := lackingFormats[f]; ok {
			return newError(native.ErrUnsupported, "%s: %s", f, reason)
		}
		return newError(native.ErrInvalidRequest,
			"the artifact format %q is unknown; ask for one of %q", f, native.AllArtifactFormats())
	}
	return nil
}

// check compares a request with what the library states of the artifact.
func check(request native.LoadRequest, info *semantic.Info) error {
	if reason := unfit(request.Capability, info); reason != "" {
		return mismatch(info, "%s: %s", request.Capability, reason)
	}
	if f := request.Family; f != "" {
		if reason := otherFamily(f, info); reason != "" {
			return mismatch(info, "%s", reason)
		}
	}
	if f := request.Format; f != "" && !slices.Contains(formatsOf(info), f) {
		kind := ""
		if isAdapter(info) {
			kind = ", an adapter"
		}
		return mismatch(info, "the request says the format %s, the artifact is %q of %q%s",
			f, info.Source, orUnstated(info.DType), kind)
	}
	if p := string(request.Provider); p != "" && p != info.Provider {
		return mismatch(info, "the request wants the provider %q, the model runs on %q", p, info.Provider)
	}
	for _, d := range request.TargetDimensions {
		if !slices.Contains(info.Dimensions, d) {
			return mismatch(info, "the target dimension is %d, the artifact has %v", d, info.Dimensions)
		}
	}
	for _, l := range request.TargetLayers {
		if !slices.Contains(info.Layers, l) {
			return mismatch(info, "the target layer is %d, the artifact has %v besides its last", l, info.Layers)
		}
	}
	return sameLabels(request.Labels, info)
}

func mismatch(info *semantic.Info, format string, args ...any) error {
	return newError(native.ErrMismatch, "%q: %s; correct the request or the path",
		info.Path, fmt.Sprintf(format, args...))
}

// unfit says why a model cannot serve an advertised capability, "" where it can.
func unfit(capability native.Capability, info *semantic.Info) string {
	service, _ := serviceFor(capability)
	if service.task != semantic.TaskAuto && service.task != info.Task {
		return fmt.Sprintf("needs a model for %s, the artifact is one for %s", service.task, info.Task)
	}
	if service.unfit == nil {
		return ""
	}
	return service.unfit(info)
}

func familyOf(info *semantic.Info) native.Family {
	for _, family := range families {
		if family.modelType == info.Family {
			return family.name
		}
	}
	return native.Family(info.Family)
}

// otherFamily says why an artifact is not of a family, "" where it is.
func otherFamily(asked native.Family, info *semantic.Info) string {
	general := familyOf(info)
	if asked == general {
		return ""
	}
	for _, special := range specialCases {
		if special.name != asked || special.general != general {
			continue
		}
		vocabulary := stated[int](info, "vocab_size")
		if vocabulary >= special.minVocabulary {
			return ""
		}
		has := "one that the library does not state"
		if vocabulary > 0 {
			has = fmt.Sprint(vocabulary)
		}
		return fmt.Sprintf("the request says the family %s, which is %s with a vocabulary of at "+
			"least %d; the artifact's is %s", asked, general, special.minVocabulary, has)
	}
	return fmt.Sprintf("the request says the family %q, the artifact is %q",
		asked, orUnstated(string(general)))
}

// formatsOf lists the formats that an artifact may be asked for by; it states the first.
func formatsOf(info *semantic.Info) []native.ArtifactFormat {
	switch {
	case isAdapter(info):
		return []native.ArtifactFormat{native.ArtifactAdapter}
	case info.Source == "safetensors":
		return []native.ArtifactFormat{native.ArtifactFullModel, native.ArtifactMergedLoRA}
	case info.Source != "onnx":
		return nil
	case strings.HasPrefix(info.DType, "int"):
		return []native.ArtifactFormat{native.ArtifactQuantized, native.ArtifactONNXIR}
	default:
		return []native.ArtifactFormat{native.ArtifactONNXIR}
	}
}

func isAdapter(info *semantic.Info) bool { return stated[*struct{}](info, "adapter") != nil }

func sameLabels(asked map[int]string, info *semantic.Info) error {
	if len(asked) == 0 {
		return nil
	}
	if len(asked) != len(info.Labels) {
		return mismatch(info, "the request maps %d labels, the artifact has %d: %q",
			len(asked), len(info.Labels), info.Labels)
	}
	for index, label := range info.Labels {
		if got, ok := asked[index]; !ok || got != label {
			return mismatch(info, "the request gives index %d the label %q, the artifact %q",
				index, got, label)
		}
	}
	return nil
}

// stated reads what the library states only in Info.JSON, the zero value where it does
// not. Each entry is read alone: an odd one does not take the others along.
func stated[T any](info *semantic.Info, key string) (value T) {
	var entries map[string]json.RawMessage
	if err := json.Unmarshal([]byte(info.JSON), &entries); err != nil {
		return value
	}
	var read T
	if err := json.Unmarshal(entries[key], &read); err != nil {
		return value
	}
	return read
}

// modelInfo is what the library states of a ready model.
func modelInfo(id uint64, info *semantic.Info) native.ModelInfo {
	out := native.ModelInfo{
		ID:                modelID(id),
		Backend:           native.BackendLibsemantic,
		Version:           semantic.Version(),
		Name:              info.Name,
		Path:              info.Path,
		IsLoaded:          true,
		Family:            familyOf(info),
		Provider:          info.Provider,
		Device:            stated[string](info, "device"),
		MaxSequenceLength: info.MaxTokens,
		DefaultDimension:  info.Dimension,
		RuntimeDimensions: noneAsNil(info.Dimensions),
		RuntimeLayers:     noneAsNil(info.Layers),
		Features: map[string]bool{
			native.FeatureDimensionChoice: len(info.Dimensions) > 1,
			native.FeatureLayerChoice:     len(info.Layers) > 0,
			native.FeaturePrompts:         len(info.PromptNames) > 0,
			native.FeatureMultiLabel:      info.MultiLabel,
		},
		UnsupportedReasons: map[string]string{},
	}
	if formats := formatsOf(info); len(formats) > 0 {
		out.Format = formats[0]
	}
	for _, capability := range native.AllCapabilities() {
		if _, ok := serviceFor(capability); !ok {
			continue
		}
		if reason := unfit(capability, info); reason != "" {
			out.UnsupportedReasons[string(capability)] = reason
			continue
		}
		out.Capabilities = append(out.Capabilities, capability)
		out.Modality = native.ModalityText // all that the library's tasks take
	}
	for feature, has := range out.Features {
		if !has {
			out.UnsupportedReasons[feature] = withoutFeature(feature, info)
		}
	}
	return out
}

// withoutFeature says why a model lacks a feature of modelInfo.
func withoutFeature(feature string, info *semantic.Info) string {
	switch {
	case feature == native.FeatureMultiLabel && info.Task != semantic.TaskSequenceClassification:
		return "the artifact is none for " + semantic.TaskSequenceClassification.String()
	case feature == native.FeatureMultiLabel && len(info.Labels) == 1:
		return "the artifact has one label"
	case feature == native.FeatureMultiLabel:
		return "the labels of the artifact exclude each other"
	case info.Task != semantic.TaskEmbedding:
		return "the artifact is none for " + semantic.TaskEmbedding.String()
	case feature == native.FeatureDimensionChoice:
		return fmt.Sprintf("the artifact allows no dimension besides %d", info.Dimension)
	case feature == native.FeatureLayerChoice:
		return "the artifact states no layers besides its last"
	default:
		return "the artifact brings no prompts"
	}
}

// unready is what there is to say of a model that cannot be used, and why.
func unready(entry semantic.ModelEntry, reason string) native.ModelInfo {
	out := native.ModelInfo{
		ID:                 modelID(entry.ID),
		Backend:            native.BackendLibsemantic,
		Version:            semantic.Version(),
		Name:               entry.Name,
		UnsupportedReasons: map[string]string{},
	}
	for _, capability := range native.AllCapabilities() {
		if _, ok := serviceFor(capability); ok {
			out.UnsupportedReasons[string(capability)] = reason
		}
	}
	return out
}

func noneAsNil(values []int) []int {
	if len(values) == 0 {
		return nil
	}
	return values
}

func orUnstated(word string) string {
	if word == "" {
		return "unstated"
	}
	return word
}
