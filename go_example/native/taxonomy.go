package native

// A Backend is a way to run models.
type Backend string

// The backends that a router may know.
const (
	BackendCandle      Backend = "candle"
	BackendONNXRuntime Backend = "onnxruntime"
	BackendOpenVINO    Backend = "openvino"
	BackendRemote      Backend = "remote"
	BackendLibsemantic Backend = "libsemantic"
)

// A Capability is a kind of work that a model is loaded for.
type Capability string

// The capabilities that a router may ask for.
const (
	CapabilityEmbedding                Capability = "embedding"
	CapabilitySequenceClassification   Capability = "sequence_classification"
	CapabilityTokenClassification      Capability = "token_classification"
	CapabilityMultimodalEmbedding      Capability = "multimodal_embedding"
	CapabilityModalityRouting          Capability = "modality_routing"
	CapabilityReranking                Capability = "reranking"
	CapabilityGuard                    Capability = "guard"
	CapabilityGenerativeClassification Capability = "generative_classification"
	CapabilityLoRAAdapterServing       Capability = "lora_adapter_serving"
	CapabilityMLPSelector              Capability = "mlp_selector"
)

// AllCapabilities lists every capability that has a name here.
func AllCapabilities() []Capability {
	return []Capability{
		CapabilityEmbedding, CapabilitySequenceClassification, CapabilityTokenClassification,
		CapabilityMultimodalEmbedding, CapabilityModalityRouting, CapabilityReranking,
		CapabilityGuard, CapabilityGenerativeClassification, CapabilityLoRAAdapterServing,
		CapabilityMLPSelector,
	}
}

// A Family is a model architecture. An artifact may be of one that has no name here;
// its own word for it is then the family.
type Family string

// The families that a router may ask for. Some are names for special cases of another:
// a MiniLM is a small BERT, an mmBERT a ModernBERT with a large vocabulary, and the
// files of DeBERTa-v3 say DeBERTa-v2. Artifacts state the general one.
const (
	FamilyBERT       Family = "BERT"
	FamilyModernBERT Family = "ModernBERT"
	FamilyMmBERT     Family = "mmBERT"
	FamilyQwen3      Family = "Qwen3"
	FamilyGemma      Family = "Gemma"
	FamilyMiniLM     Family = "MiniLM"
	FamilyQwen3Guard Family = "Qwen3Guard"
	FamilyRoBERTa    Family = "RoBERTa"
	FamilyXLMRoBERTa Family = "XLM-RoBERTa"
	FamilyDistilBERT Family = "DistilBERT"
	FamilyELECTRA    Family = "ELECTRA"
	FamilyDeBERTaV2  Family = "DeBERTa-v2"
	FamilyDeBERTaV3  Family = "DeBERTa-v3"
)

// An ArtifactFormat is the form in which a model lies on disk.
type ArtifactFormat string

// The formats that a router may ask for. A merged LoRA is a full model once it is
// merged, and its files say nothing else.
const (
	ArtifactFullModel  ArtifactFormat = "full_model"
	ArtifactMergedLoRA ArtifactFormat = "merged_lora"
	ArtifactAdapter    ArtifactFormat = "adapter"
	ArtifactONNXIR     ArtifactFormat = "onnx_ir"
	ArtifactOpenVINOIR ArtifactFormat = "openvino_ir"
	ArtifactQuantized  ArtifactFormat = "quantized"
)

// AllArtifactFormats lists every format that has a name here.
func AllArtifactFormats() []ArtifactFormat {
	return []ArtifactFormat{
		ArtifactFullModel, ArtifactMergedLoRA, ArtifactAdapter, ArtifactONNXIR,
		ArtifactOpenVINOIR, ArtifactQuantized,
	}
}

// A Modality is the kind of input that a model takes.
type Modality string

// The modalities that a router may know.
const (
	ModalityText       Modality = "text"
	ModalityImage      Modality = "image"
	ModalityAudio      Modality = "audio"
	ModalityMultimodal Modality = "multimodal"
)
