"""One row for each function of ``candle_semantic_router.h``. Plain data: the build reads it too.

``failure`` is the error value: a C constant, or the fields of a struct that are not zero in it.
It is answered alike where Python could not start and where it raised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Failure = str | Mapping[str, str]

FREE = "free"  # generated C: the first pointer that is not NULL is the block
PLAIN = "plain"  # written in ffi/candle/*.c

# Answered while Python has not been started, which these functions do not do.
IDLE = True

NOTHING: Failure = ""
FALSE: Failure = "false"
ZERO: Failure = "0"
NULL: Failure = "NULL"
MINUS_ONE: Failure = "-1"
NO_CLASS: Failure = MappingProxyType({"predicted_class": "-1"})
NO_COUNT: Failure = MappingProxyType({"num_entities": "-1"})
EMPTY: Failure = MappingProxyType({})
ERROR: Failure = MappingProxyType({"error": "true"})
NO_LABEL: Failure = MappingProxyType({"label": "NLI_ERROR", "error": "true"})
NO_VECTOR: Failure = MappingProxyType({"error": "true", "model_type": "-1"})
NO_MEDIA: Failure = MappingProxyType({"error": "true", "modality": "-1"})
NO_COSINE: Failure = MappingProxyType({"similarity": "-1", "model_type": "-1", "error": "true"})
NO_MATCHES: Failure = MappingProxyType({"model_type": "-1", "error": "true"})
NO_MATCH: Failure = MappingProxyType({"index": "-1", "similarity": "-1"})
NO_CATEGORY: Failure = MappingProxyType({"class_id": "-1", "error": "true"})
REFUSED: Failure = MappingProxyType({"error_code": "9"})

TaskName = Literal["SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "EMBEDDING"]
SEQUENCE: TaskName = "SEQUENCE_CLASSIFICATION"
TOKENS: TaskName = "TOKEN_CLASSIFICATION"
VECTORS: TaskName = "EMBEDDING"

MODERNBERT = frozenset({"modernbert"})
DEBERTA = frozenset({"deberta-v2"})
QWEN3 = frozenset({"qwen3"})
GEMMA = frozenset({"gemma3_text"})
ANY_FAMILY: frozenset[str] = frozenset()
MMBERT_LAYERS = (3, 6, 11, 22)  # what candle-binding advertises


@dataclass(frozen=True, slots=True)
class Slot:
    """What a slot holds: a model of this task, and of these families where any are named.

    ``unnamed_labels`` is their number where the folder neither names nor counts them; 0 refuses it.
    ``layers`` are those after which an embedding may be asked for, where the folder lists none.
    """

    task: TaskName
    families: frozenset[str] = ANY_FAMILY
    layers: tuple[int, ...] = ()
    unnamed_labels: int = 2

    @staticmethod
    def model_name(slot: str) -> str:
        """Return the name of a slot's model in the registry."""
        return f"candle/{slot}"


SLOTS: Mapping[str, Slot] = {
    "similarity": Slot(VECTORS),
    "classifier": Slot(SEQUENCE),
    "pii": Slot(SEQUENCE),
    "jailbreak": Slot(SEQUENCE),
    "bert": Slot(SEQUENCE),
    "deberta-jailbreak": Slot(SEQUENCE, DEBERTA),
    "modernbert": Slot(SEQUENCE, MODERNBERT),
    "modernbert-pii": Slot(SEQUENCE, MODERNBERT),
    "modernbert-jailbreak": Slot(SEQUENCE, MODERNBERT),
    "fact-check": Slot(SEQUENCE, MODERNBERT),
    "feedback": Slot(SEQUENCE, MODERNBERT),
    "mmbert": Slot(SEQUENCE, MODERNBERT),
    "mmbert-32k-intent": Slot(SEQUENCE, MODERNBERT),
    "mmbert-32k-factcheck": Slot(SEQUENCE, MODERNBERT),
    "mmbert-32k-jailbreak": Slot(SEQUENCE, MODERNBERT),
    "mmbert-32k-feedback": Slot(SEQUENCE, MODERNBERT),
    "mmbert-32k-modality": Slot(SEQUENCE, MODERNBERT),
    "bert-token": Slot(TOKENS, unnamed_labels=0),
    "candle-bert-token": Slot(TOKENS, unnamed_labels=0),
    "modernbert-pii-token": Slot(TOKENS, MODERNBERT, unnamed_labels=0),
    "mmbert-token": Slot(TOKENS, MODERNBERT, unnamed_labels=0),
    "mmbert-32k-pii": Slot(TOKENS, MODERNBERT, unnamed_labels=0),
    "hallucination": Slot(TOKENS),
    "nli": Slot(SEQUENCE, unnamed_labels=3),
    "unified-intent": Slot(SEQUENCE),
    "unified-pii": Slot(TOKENS, unnamed_labels=0),
    "unified-security": Slot(SEQUENCE),
    "lora-intent": Slot(SEQUENCE),
    "lora-pii": Slot(TOKENS, unnamed_labels=0),
    "lora-security": Slot(SEQUENCE),
    "qwen3": Slot(VECTORS, QWEN3),
    "gemma": Slot(VECTORS, GEMMA),
    "mmbert-embedding": Slot(VECTORS, MODERNBERT, MMBERT_LAYERS),
    "qwen3-batched": Slot(VECTORS, QWEN3),
}

UNIFIED = ("unified-intent", "unified-pii", "unified-security")
LORA = ("lora-intent", "lora-pii", "lora-security")
EMBEDDINGS = ("qwen3", "gemma", "mmbert-embedding")
CANDLE_BERT_TOKENS = ("candle-bert-token", "bert-token", "modernbert-pii-token")


@dataclass(frozen=True, slots=True)
class Row:
    """How one function is answered.

    ``slots`` are those of the verb: of several, a verb for texts asks the first that is loaded.
    ``threshold`` drops entities below it; ``most`` is the number of items that the caller has
    room for, 0 for any. ``clears`` are fields that a free function sets to zero.
    """

    function: str
    verb: str
    slots: tuple[str, ...] = ()
    failure: Failure = NOTHING
    idle: bool = False
    threshold: float = 0.0
    most: int = 0
    clears: tuple[str, ...] = field(default=())


ROWS: tuple[Row, ...] = (
    # Similarity and tokens
    Row("init_similarity_model", "load_similarity", ("similarity",), FALSE),
    Row("is_similarity_model_initialized", "is_loaded", ("similarity",), FALSE, IDLE),
    Row("get_text_embedding", "embed_text", ("similarity",), NO_VECTOR),
    Row("calculate_similarity", "compare_texts", ("similarity",), MINUS_ONE),
    Row("find_most_similar", "find_most_similar", ("similarity",), NO_MATCH),
    Row("tokenize_text", "tokenize", ("similarity",), ERROR),
    # Classifiers of whole texts
    Row("init_classifier", "load_counted", ("classifier",), FALSE),
    Row("init_generic_classifier", "load_counted", ("classifier",), FALSE),
    Row("classify_text", "classify", ("classifier",), NO_CLASS),
    Row("classify_text_with_probabilities", "classify", ("classifier",), NO_CLASS),
    Row("init_pii_classifier", "load_counted", ("pii",), FALSE),
    Row("classify_pii_text", "classify", ("pii",), NO_CLASS),
    Row("init_jailbreak_classifier", "load_counted_or_adapter", ("jailbreak",), FALSE),
    Row("classify_jailbreak_text", "classify", ("jailbreak",), NO_CLASS),
    Row("classify_jailbreak_text_with_probabilities", "classify", ("jailbreak",), NO_CLASS),
    Row("init_candle_bert_classifier", "load_counted_or_adapter", ("bert",), FALSE),
    Row("classify_candle_bert_text", "classify", ("bert",), NO_CLASS),
    Row("classify_bert_text", "classify", ("bert",), NO_CLASS),
    Row("init_modernbert_classifier", "load", ("modernbert",), FALSE),
    Row("classify_modernbert_text", "classify", ("modernbert",), NO_CLASS),
    Row("classify_modernbert_text_with_probabilities", "classify", ("modernbert",), NO_CLASS),
    Row("init_modernbert_pii_classifier", "load", ("modernbert-pii",), FALSE),
    Row("classify_modernbert_pii_text", "classify", ("modernbert-pii",), NO_CLASS),
    Row("init_modernbert_jailbreak_classifier", "load", ("modernbert-jailbreak",), FALSE),
    Row("classify_modernbert_jailbreak_text", "classify", ("modernbert-jailbreak",), NO_CLASS),
    Row(
        "classify_modernbert_jailbreak_text_with_probabilities",
        "classify",
        ("modernbert-jailbreak",),
        NO_CLASS,
    ),
    Row("init_deberta_jailbreak_classifier", "load", ("deberta-jailbreak",), FALSE),
    Row("classify_deberta_jailbreak_text", "classify", ("deberta-jailbreak",), NO_CLASS),
    Row("init_fact_check_classifier", "load", ("fact-check",), FALSE),
    Row("classify_fact_check_text", "classify", ("fact-check",), NO_CLASS),
    Row("init_feedback_detector", "load", ("feedback",), FALSE),
    Row("classify_feedback_text", "classify", ("feedback",), NO_CLASS),
    Row("init_mmbert_classifier", "load", ("mmbert",), FALSE),
    Row("init_mmbert_classifier_auto", "load", ("mmbert",), FALSE),
    Row("is_mmbert_model", "is_multilingual", (), FALSE),
    Row("is_mmbert_32k_model", "is_multilingual_32k", (), FALSE),
    Row("init_mmbert_32k_intent_classifier", "load", ("mmbert-32k-intent",), FALSE),
    Row("classify_mmbert_32k_intent", "classify", ("mmbert-32k-intent",), NO_CLASS),
    Row("init_mmbert_32k_factcheck_classifier", "load", ("mmbert-32k-factcheck",), FALSE),
    Row("classify_mmbert_32k_factcheck", "classify", ("mmbert-32k-factcheck",), NO_CLASS),
    Row("init_mmbert_32k_jailbreak_classifier", "load", ("mmbert-32k-jailbreak",), FALSE),
    Row("classify_mmbert_32k_jailbreak", "classify", ("mmbert-32k-jailbreak",), NO_CLASS),
    Row(
        "classify_mmbert_32k_jailbreak_with_probabilities",
        "classify",
        ("mmbert-32k-jailbreak",),
        NO_CLASS,
    ),
    Row("init_mmbert_32k_feedback_classifier", "load", ("mmbert-32k-feedback",), FALSE),
    Row("classify_mmbert_32k_feedback", "classify", ("mmbert-32k-feedback",), NO_CLASS),
    Row("init_mmbert_32k_modality_classifier", "load", ("mmbert-32k-modality",), FALSE),
    Row("classify_mmbert_32k_modality", "classify", ("mmbert-32k-modality",), NO_CLASS),
    # Classifiers of tokens
    Row("init_bert_token_classifier", "load_uncounted", ("bert-token",), FALSE),
    Row(
        "classify_bert_pii_tokens",
        "find_entities_beside",
        ("bert-token", "candle-bert-token"),
        NO_COUNT,
        threshold=0.5,
    ),
    Row("init_candle_bert_token_classifier", "load_uncounted", ("candle-bert-token",), FALSE),
    Row(
        "classify_candle_bert_tokens",
        "find_entities",
        CANDLE_BERT_TOKENS,
        NO_COUNT,
        threshold=0.5,
        most=1000,
    ),
    Row(
        "classify_candle_bert_tokens_with_labels",
        "find_entities_with",
        ("candle-bert-token", "bert-token"),
        NO_COUNT,
        threshold=0.5,
        most=1000,
    ),
    Row("init_modernbert_pii_token_classifier", "load", ("modernbert-pii-token",), FALSE),
    Row(
        "classify_modernbert_pii_tokens",
        "find_entities_named_by",
        ("modernbert-pii-token",),
        NO_COUNT,
        threshold=0.5,
    ),
    Row("init_mmbert_token_classifier", "load", ("mmbert-token",), FALSE),
    Row("init_mmbert_32k_pii_classifier", "load", ("mmbert-32k-pii",), FALSE),
    Row("classify_mmbert_32k_pii_tokens", "find_entities", ("mmbert-32k-pii",), EMPTY),
    # Batches of intent, personal data and safety
    Row("init_unified_classifier_c", "load_unified", UNIFIED, FALSE),
    Row("classify_unified_batch", "classify_batch", UNIFIED, ERROR),
    Row("init_lora_unified_classifier", "load_lora", LORA, FALSE),
    Row("classify_batch_with_lora", "classify_batch", LORA, EMPTY, most=1000),
    # Hallucinations and inference
    Row("init_hallucination_model", "load", ("hallucination",), FALSE),
    Row("detect_hallucinations", "detect_hallucinations", ("hallucination",), ERROR),
    Row("init_nli_model", "load", ("nli",), FALSE),
    Row("is_nli_model_initialized", "is_loaded", ("nli",), FALSE, IDLE),
    Row("classify_nli", "infer", ("nli",), NO_LABEL),
    Row(
        "detect_hallucinations_with_nli", "explain_hallucinations", ("hallucination", "nli"), ERROR
    ),
    # Embeddings
    Row("init_embedding_models", "load_embeddings", EMBEDDINGS[:2], FALSE),
    Row("init_embedding_models_with_mmbert", "load_embeddings_with_mmbert", EMBEDDINGS, FALSE),
    Row("init_mmbert_embedding_model", "load", EMBEDDINGS[2:], FALSE),
    Row("init_embedding_models_batched", "load_batched", ("qwen3-batched",), FALSE),
    Row("get_embedding_smart", "embed_smart", EMBEDDINGS, NO_VECTOR),
    Row("get_embedding_with_dim", "embed_routed", EMBEDDINGS, NO_VECTOR),
    Row("get_embedding_with_model_type", "embed_named", EMBEDDINGS, NO_VECTOR),
    Row("get_embedding_2d_matryoshka", "embed_layered", EMBEDDINGS, NO_VECTOR),
    Row("get_embedding_batched", "embed_batched", ("qwen3-batched",), NO_VECTOR),
    Row("shutdown_embedding_batched", "unload", ("qwen3-batched",), idle=IDLE),
    Row("calculate_embedding_similarity", "compare_embeddings", EMBEDDINGS, NO_COSINE),
    Row("calculate_similarity_batch", "rank_embeddings", EMBEDDINGS, NO_MATCHES),
    Row("get_embedding_models_info", "list_embeddings", EMBEDDINGS, ERROR),
    # Embeddings of images and sound
    Row("init_multimodal_embedding_model", "unsupported", (), FALSE),
    Row("multimodal_encode_text", "unsupported", (), NO_MEDIA),
    Row("multimodal_encode_image", "unsupported", (), NO_MEDIA),
    Row("multimodal_encode_image_from_bytes", "unsupported", (), NO_MEDIA),
    Row("multimodal_encode_audio", "unsupported", (), NO_MEDIA),
    # Generative models
    Row("init_qwen3_multi_lora_classifier", "unsupported", (), MINUS_ONE),
    Row("load_qwen3_lora_adapter", "unsupported", (), MINUS_ONE),
    Row("classify_with_qwen3_adapter", "unsupported", (), NO_CATEGORY),
    Row("get_qwen3_loaded_adapters", "unsupported", (), MINUS_ONE),
    Row("classify_zero_shot_qwen3", "unsupported", (), NO_CATEGORY),
    Row("is_qwen3_multi_lora_initialized", PLAIN),
    Row("init_qwen3_guard", "unsupported", (), MINUS_ONE),
    Row("classify_with_qwen3_guard", "unsupported", (), ERROR),
    Row("is_qwen3_guard_initialized", PLAIN),
    # Model selector
    Row("candle_mlp_new", "new_selector", (), NULL),
    Row("candle_mlp_new_with_device", "new_selector", (), NULL),
    Row("candle_mlp_new_with_device_and_dtype", "new_selector", (), NULL),
    Row("candle_mlp_from_json", "selector_from_json", (), NULL),
    Row("candle_mlp_from_json_with_device", "selector_from_json", (), NULL),
    Row("candle_mlp_from_json_with_device_and_dtype", "selector_from_json", (), NULL),
    Row("candle_mlp_select", "select", (), NULL),
    Row("candle_mlp_is_trained", "is_trained", (), ZERO),
    Row("candle_mlp_to_json", "selector_to_json", (), NULL),
    Row("candle_mlp_free", "free_selector", idle=IDLE),
    Row("candle_mlp_free_string", FREE),
    # Validation
    Row("validate_text_input", "validate_text", (), REFUSED),
    Row("validate_batch_input", "validate_batch", (), REFUSED),
    Row("validate_model_path", "validate_path", (), REFUSED),
    Row("validate_confidence_threshold", "validate_confidence", (), REFUSED),
    Row("validate_memory_parameters", "validate_memory", (), REFUSED),
    # Memory
    Row("safe_alloc_traditional", PLAIN),
    Row("safe_alloc_lora", PLAIN),
    Row("safe_free", PLAIN),
    Row("get_memory_safety_status", PLAIN),
    Row("get_lora_memory_usage", PLAIN),
    Row("cleanup_dual_path_memory", PLAIN),
    Row("free_embedding", FREE),
    Row("free_multimodal_embedding", FREE),
    Row("free_probabilities", FREE),
    Row("free_modernbert_probabilities", FREE),
    Row("free_tokenization_result", FREE),
    Row("free_cstring", FREE),
    Row("free_bert_token_classification_result", FREE),
    Row("free_modernbert_token_result", FREE),
    Row("free_unified_batch_result", FREE),
    Row("free_lora_batch_result", FREE),
    Row("free_hallucination_detection_result", FREE),
    Row("free_enhanced_hallucination_detection_result", FREE),
    Row("free_nli_result", FREE),
    Row("free_batch_similarity_result", FREE, clears=("matches", "num_matches")),
    Row("free_embedding_models_info", FREE, clears=("models", "num_models")),
    Row("free_generative_classification_result", FREE),
    Row("free_categories", FREE),
    Row("free_guard_result", FREE),
    Row("free_validation_result", FREE),
    Row("free_c_string_array", FREE),
    Row("free_c_int_array", FREE),
    Row("free_c_float_array", FREE),
)
