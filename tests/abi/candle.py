"""The candle library and what its functions must answer, as tables that the tests share."""

import ctypes
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .binding import BUILD, MODELS
from .harness import HERE, clean_environment

CONTRACT = json.loads((HERE / "candle_abi.json").read_text())
FUNCTIONS: Mapping[str, Mapping[str, Any]] = CONTRACT["functions"]
STRUCTS: Mapping[str, Mapping[str, Any]] = CONTRACT["structs"]
LIBRARY = BUILD / "lib" / "libcandle_semantic_router.so"
HEADER = "candle_semantic_router.h"

Answer = Any  # what the driver's JSON says


class Raw(str):
    """An argument in the driver's own notation."""

    __slots__ = ()


OUT = Raw("o")  # a place for the result
INVALID = b"caf\xe9 is no UTF-8"


def token(value: object) -> str:
    """Write an argument as the driver reads it."""
    if isinstance(value, Raw):
        return str(value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Path):
        return token(str(value))
    if isinstance(value, str):
        return "s" + value.encode().hex()
    if isinstance(value, bytes):
        return "s" + value.hex()
    if isinstance(value, (list, tuple)):
        return "a" + ",".join(map(token, value))
    assert isinstance(value, (int, float))
    return repr(value)


def doubles(values: Iterable[float]) -> Raw:
    return Raw("d" + ",".join(map(repr, values)))


def floats(values: Iterable[float]) -> Raw:
    return Raw("f" + ",".join(map(repr, values)))


def line(name: str, *values: object) -> str:
    return " ".join([name, *map(token, values)])


def compile_driver(target: Path, *flags: str) -> Path:
    """Compile the driver against the built libraries; found again through the run path."""
    library = BUILD / "lib"
    subprocess.run(
        [
            *("cc", "-g", "-pthread", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *flags),
            *(str(HERE / "candle_driver.c"), "-o", str(target), "-I", str(BUILD / "include")),
            *(f"-L{library}", f"-Wl,-rpath,{library}", "-lcandle_semantic_router", "-lsemantic"),
        ],
        check=True,
    )
    return target


class Candle:
    """The library in this process, called by the compiled driver."""

    def __init__(self, driver: Path) -> None:
        library = ctypes.CDLL(str(driver))
        self._run = library.candle_run
        self._run.argtypes = (ctypes.c_char_p,)
        self._run.restype = ctypes.c_void_p
        self._forget = library.candle_forget
        self._forget.argtypes = (ctypes.c_void_p,)

    def script(self, *lines: str) -> list[Answer]:
        """Run lines; return what they answered, in their order."""
        answers = self._run("\n".join(lines).encode())
        text = ctypes.string_at(answers).decode()
        self._forget(answers)
        return [json.loads(each) for each in text.splitlines()]

    def __call__(self, name: str, *values: object) -> Answer:
        (answer,) = self.script(line(name, *values))
        return answer

    def at_once(self, *lines: str) -> list[Answer]:
        """Run each line on a thread of its own, all at the same moment."""
        return self.script(*(f"& {each}" for each in lines), "wait")

    def stats(self) -> dict[str, Any]:
        (answer,) = self.script("stats")
        assert isinstance(answer, dict), answer
        return answer


@dataclass(frozen=True, slots=True)
class Said:
    """What a process of the driver answered, and what stood on stderr."""

    answers: list[Answer]
    errors: str


def in_a_process(
    driver: Path, *lines: str, seconds: float = 120, under: tuple[str, ...] = (), **environment: str
) -> Said:
    """Run lines in a process of their own, ``under`` a command that watches it."""
    done = subprocess.run(
        [*under, str(driver)],
        input="".join(f"{each}\n" for each in lines),
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Said([json.loads(each) for each in done.stdout.splitlines()], done.stderr)


# ---- What fails, and how ---------------------------------------------------------------------

CLASS = {"predicted_class": -1, "confidence": 0}
CLASS_AND_LABEL = CLASS | {"label": None}
NO_PROBABILITIES = {"probabilities": None, "num_classes": 0}
NO_EMBEDDING = {
    "data": None,
    "length": 0,
    "error": True,
    "model_type": -1,
    "sequence_length": 0,
    "processing_time_ms": 0,
}

# The failure value of each kind of answer. Fields that are not listed are not looked at: the
# texts of messages, and what has no meaning beside an error flag.
FAILURES: Mapping[str, object] = {
    "bool": False,
    "ClassificationResult": CLASS_AND_LABEL,
    "ClassificationResultWithProbs": CLASS_AND_LABEL | NO_PROBABILITIES,
    "ModernBertClassificationResult": CLASS,
    "ModernBertClassificationResultWithProbs": CLASS | NO_PROBABILITIES,
    "BertTokenClassificationResult": {"entities": None, "num_entities": -1},
    "ModernBertTokenClassificationResult": {"entities": None, "num_entities": -1},
    "EmbeddingResult": NO_EMBEDDING,
    "TokenizationResult": {"token_ids": None, "token_count": 0, "tokens": None, "error": True},
    "float": -1,
    "SimilarityResult": {"index": -1, "similarity": -1},
    "UnifiedBatchResult": {
        **dict.fromkeys(("intent_results", "pii_results", "security_results")),
        "batch_size": 0,
        "error": True,
    },
    "LoRABatchResult": {
        **dict.fromkeys(("intent_results", "pii_results", "security_results")),
        "batch_size": 0,
        "avg_confidence": 0,
    },
    "HallucinationDetectionResult": {
        "has_hallucination": False,
        "spans": None,
        "num_spans": 0,
        "error": True,
    },
    "EnhancedHallucinationDetectionResult": {
        "has_hallucination": False,
        "spans": None,
        "num_spans": 0,
        "error": True,
    },
    "NLIResult": {
        "label": -1,
        "confidence": 0,
        "error": True,
        **dict.fromkeys(("entailment_prob", "neutral_prob", "contradiction_prob"), 0),
    },
    "EmbeddingSimilarityResult": {
        "similarity": -1,
        "model_type": -1,
        "processing_time_ms": 0,
        "error": True,
    },
    "BatchSimilarityResult": {"matches": None, "num_matches": 0, "model_type": -1, "error": True},
    "EmbeddingModelsInfoResult": {"models": None, "num_models": 0, "error": True},
    "MultiModalEmbeddingResult": {"data": None, "length": 0, "error": True},
    "GenerativeClassificationResult": {
        "category_name": None,
        "probabilities": None,
        "num_categories": 0,
        "error": True,
    },
    "GuardResult": {"raw_output": None, "error": True},
    "char*": None,
    "MLPHandle*": None,
}

# Where the kind of the answer does not say it.
OTHER_FAILURES: Mapping[str, object] = {
    # Go would panic at a negative count.
    "classify_mmbert_32k_pii_tokens": {"entities": None, "num_entities": 0},
    "candle_mlp_is_trained": 0,
    "get_qwen3_loaded_adapters": None,
}

# These fill the struct behind their last pointer and return 0 or -1.
FILLS = {
    name: row["parameters"][-1][:-1]
    for name, row in FUNCTIONS.items()
    if row["returns"] == "int" and row["parameters"] and row["parameters"][-1][:-1] in STRUCTS
}
PLAIN_STATUS = {"init_qwen3_multi_lora_classifier", "load_qwen3_lora_adapter", "init_qwen3_guard"}


def failure_of(name: str) -> object:
    """Return the failure value of a function: of the struct, where it fills one."""
    if name in OTHER_FAILURES:
        return OTHER_FAILURES[name]
    if name in PLAIN_STATUS:
        return -1
    return FAILURES[FILLS.get(name, FUNCTIONS[name]["returns"])]


def check_failed(name: str, answer: Answer, *, may_be_untouched: bool = True) -> None:
    """Require the failure value, field by field."""
    if name in FILLS or name == "get_qwen3_loaded_adapters":
        assert answer["status"] == -1, (name, answer)
        if answer.get("untouched"):
            assert may_be_untouched, name
            return
        answer = answer["result"]
    expected = failure_of(name)
    if isinstance(expected, dict):
        assert {field: answer[field] for field in expected} == expected, (name, answer)
    else:
        assert answer == expected, (name, answer)
        assert isinstance(answer, bool) == isinstance(expected, bool), (name, answer)


# ---- What a good call of each function is ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one model: who fills it, who reads it, and a folder that fits."""

    init: str
    folder: str
    readers: tuple[str, ...]
    classes: int = 0  # the second argument of the inits that have one

    def init_line(self, folder: Path | None = None, classes: int | None = None) -> str:
        given = (self.classes if classes is None else classes,) if self.classes else ()
        return line(self.init, folder or MODELS / self.folder, *given, True)


SLOTS = (
    Slot(
        "init_similarity_model",
        "bert-embed-mean",
        ("get_text_embedding", "calculate_similarity", "find_most_similar", "tokenize_text"),
    ),
    Slot("init_classifier", "bert-seq", ("classify_text", "classify_text_with_probabilities"), 7),
    Slot(
        "init_generic_classifier",
        "bert-seq",
        ("classify_text", "classify_text_with_probabilities"),
        7,
    ),
    Slot("init_pii_classifier", "bert-seq", ("classify_pii_text",), 7),
    Slot(
        "init_jailbreak_classifier",
        "bert-seq",
        ("classify_jailbreak_text", "classify_jailbreak_text_with_probabilities"),
        7,
    ),
    Slot(
        "init_candle_bert_classifier",
        "bert-seq",
        ("classify_candle_bert_text", "classify_bert_text"),
        7,
    ),
    Slot("init_bert_token_classifier", "bert-token", ("classify_bert_pii_tokens",), 7),
    Slot(
        "init_candle_bert_token_classifier",
        "bert-token",
        ("classify_candle_bert_tokens", "classify_candle_bert_tokens_with_labels"),
        7,
    ),
    Slot(
        "init_modernbert_classifier",
        "modernbert-seq-cls",
        ("classify_modernbert_text", "classify_modernbert_text_with_probabilities"),
    ),
    Slot(
        "init_modernbert_pii_classifier", "modernbert-seq-mean", ("classify_modernbert_pii_text",)
    ),
    Slot(
        "init_modernbert_jailbreak_classifier",
        "modernbert-seq-mean",
        (
            "classify_modernbert_jailbreak_text",
            "classify_modernbert_jailbreak_text_with_probabilities",
        ),
    ),
    Slot(
        "init_modernbert_pii_token_classifier",
        "modernbert-token",
        ("classify_modernbert_pii_tokens",),
    ),
    Slot("init_fact_check_classifier", "modernbert-seq-mean", ("classify_fact_check_text",)),
    Slot("init_feedback_detector", "modernbert-seq-cls", ("classify_feedback_text",)),
    Slot(
        "init_deberta_jailbreak_classifier", "deberta-v3-seq", ("classify_deberta_jailbreak_text",)
    ),
    Slot("init_mmbert_classifier", "modernbert-seq-cls", ()),
    Slot("init_mmbert_classifier_auto", "modernbert-seq-cls", ()),
    Slot("init_mmbert_token_classifier", "modernbert-token", ()),
    Slot(
        "init_mmbert_32k_intent_classifier", "modernbert-seq-cls", ("classify_mmbert_32k_intent",)
    ),
    Slot(
        "init_mmbert_32k_factcheck_classifier",
        "modernbert-seq-mean",
        ("classify_mmbert_32k_factcheck",),
    ),
    Slot(
        "init_mmbert_32k_jailbreak_classifier",
        "modernbert-seq-mean",
        (
            "classify_mmbert_32k_jailbreak",
            "classify_mmbert_32k_jailbreak_with_probabilities",
        ),
    ),
    Slot(
        "init_mmbert_32k_feedback_classifier",
        "modernbert-seq-cls",
        ("classify_mmbert_32k_feedback",),
    ),
    Slot("init_mmbert_32k_pii_classifier", "modernbert-token", ("classify_mmbert_32k_pii_tokens",)),
    Slot(
        "init_mmbert_32k_modality_classifier",
        "modernbert-nli",
        ("classify_mmbert_32k_modality",),
    ),
    Slot(
        "init_hallucination_model",
        "modernbert-hallucination",
        ("detect_hallucinations", "detect_hallucinations_with_nli"),
    ),
    Slot("init_nli_model", "modernbert-nli", ("classify_nli",)),
)
SLOT_OF_INIT = {slot.init: slot for slot in SLOTS}

TEXT = "My email is jane.roe@example.org and I live in Zürich"
EMBEDDING_INITS = {
    "init_embedding_models": ("qwen3-embed-last", "gemma3-embed-mean"),
    "init_embedding_models_with_mmbert": (
        *("qwen3-embed-last", "gemma3-embed-mean", "mmbert-embed-mean"),
    ),
    "init_mmbert_embedding_model": ("mmbert-embed-mean",),
    "init_embedding_models_batched": ("qwen3-embed-last",),
}

MLP = json.dumps(
    {
        "algorithm": "mlp",
        "trained": True,
        "model_names": ["small", "large"],
        "feature_dim": 3,
        "n_classes": 2,
        "hidden_sizes": [2],
        "dropout": 0.1,
        "layers": [
            {
                "type": "linear",
                "in_features": 3,
                "out_features": 2,
                "weight": [[1.0, -2.0, 0.5], [-1.0, 2.0, 0.25]],
                "bias": [0.5, -0.5],
            },
            {"type": "relu"},
            {"type": "dropout", "p": 0.1},
            {
                "type": "linear",
                "in_features": 2,
                "out_features": 2,
                "weight": [[1.0, -1.0], [-1.0, 1.0]],
                "bias": None,
            },
        ],
    }
)


def good_arguments(name: str) -> tuple[object, ...]:
    """Return arguments with which a function succeeds once everything is loaded."""
    if name in SLOT_OF_INIT:
        slot = SLOT_OF_INIT[name]
        return MODELS / slot.folder, *((slot.classes,) if slot.classes else ()), True
    if name in EMBEDDING_INITS:
        folders = tuple(MODELS / folder for folder in EMBEDDING_INITS[name])
        return (*folders, 8, 5, True) if name.endswith("batched") else (*folders, True)
    token_config = MODELS / "modernbert-token" / "config.json"
    labels = (MODELS / "bert-token" / "config.json").read_text()
    table: Mapping[str, tuple[object, ...]] = {
        "calculate_similarity": (TEXT, "a", 0),
        "find_most_similar": (TEXT, ["a", TEXT], 2, 0),
        "get_text_embedding": (TEXT, 0),
        "tokenize_text": (TEXT, 0),
        "classify_bert_pii_tokens": (TEXT, labels),
        "classify_candle_bert_tokens_with_labels": (TEXT, labels),
        "classify_modernbert_pii_tokens": (TEXT, token_config),
        "classify_unified_batch": ([TEXT, "a"], 2),
        "classify_batch_with_lora": ([TEXT, "a"], 2),
        "detect_hallucinations": ("the router picks", "Who?", TEXT, 0.5),
        "detect_hallucinations_with_nli": ("the router picks", "Who?", TEXT, 0.5),
        "classify_nli": ("the router picks", TEXT),
        "is_mmbert_model": (MODELS / "modernbert-seq-cls" / "config.json",),
        "is_mmbert_32k_model": (MODELS / "modernbert-seq-cls" / "config.json",),
        "init_lora_unified_classifier": (
            *(MODELS / f for f in ("modernbert-seq-cls", "modernbert-token", "deberta-v3-seq")),
            *("modernbert", True),
        ),
        "init_unified_classifier_c": (
            MODELS / "modernbert-lora-base",
            *(
                MODELS / f
                for f in ("modernbert-seq-cls", "modernbert-token", "modernbert-seq-mean")
            ),
            *(["a"], 1, ["a"], 1, ["a"], 1, True),
        ),
        "get_embedding_smart": (TEXT, 0.5, 0.5, OUT),
        "get_embedding_with_dim": (TEXT, 0.5, 0.5, 0, OUT),
        "get_embedding_with_model_type": (TEXT, "qwen3", 0, OUT),
        "get_embedding_2d_matryoshka": (TEXT, "mmbert", 0, 0, OUT),
        "get_embedding_batched": (TEXT, "qwen3", 0, OUT),
        "calculate_embedding_similarity": (TEXT, "a", "qwen3", 0, OUT),
        "calculate_similarity_batch": (TEXT, ["a", TEXT], 2, 0, "qwen3", 0, OUT),
        "get_embedding_models_info": (OUT,),
        "init_multimodal_embedding_model": (MODELS / "bert-embed-mean", True),
        "multimodal_encode_text": (TEXT, 0, OUT),
        "multimodal_encode_image": (floats([0.5] * 12), 2, 2, 0, OUT),
        "multimodal_encode_image_from_bytes": (b"\x89PNG", 4, 0, OUT),
        "multimodal_encode_audio": (floats([0.5] * 12), 2, 6, 0, OUT),
        "init_qwen3_multi_lora_classifier": (MODELS / "qwen3-embed-last",),
        "load_qwen3_lora_adapter": ("domain", MODELS / "modernbert-lora-base" / "adapters/domain"),
        "classify_with_qwen3_adapter": (TEXT, "domain", OUT),
        "classify_zero_shot_qwen3": (TEXT, ["a", "b"], 2, OUT),
        "get_qwen3_loaded_adapters": (OUT, OUT),
        "init_qwen3_guard": (MODELS / "qwen3-embed-last",),
        "classify_with_qwen3_guard": (TEXT, "input", OUT),
        "candle_mlp_new_with_device": (0,),
        "candle_mlp_new_with_device_and_dtype": (0, 0),
        "candle_mlp_from_json": (MLP,),
        "candle_mlp_from_json_with_device": (MLP, 0),
        "candle_mlp_from_json_with_device_and_dtype": (MLP, 0, 0),
        "candle_mlp_select": (Raw("h0"), doubles([1, 0, 0]), 3),
        "candle_mlp_is_trained": (Raw("h0"),),
        "candle_mlp_to_json": (Raw("h0"),),
        "candle_mlp_free": (None,),
        "candle_mlp_free_string": (None,),
        "validate_text_input": ("a text of traditional length", 0),
        "validate_batch_input": (["a text of traditional length"], 1, 0),
        "validate_model_path": ("models/bert-base", 0),
        "validate_confidence_threshold": (0.9, 0),
        "validate_memory_parameters": (4096, 64),
        "safe_alloc_traditional": (64,),
        "safe_alloc_lora": (64,),
        "safe_free": (None,),
        **dict.fromkeys(
            (
                *("free_embedding", "free_multimodal_embedding", "free_probabilities"),
                "free_modernbert_probabilities",
            ),
            (None, 0),
        ),
        **dict.fromkeys(
            (
                *("free_c_string_array", "free_c_int_array", "free_c_float_array"),
                "free_categories",
            ),
            (0,),
        ),
        "free_cstring": (None,),
        **dict.fromkeys(
            (
                *("free_batch_similarity_result", "free_embedding_models_info"),
                *("free_generative_classification_result", "free_guard_result"),
            ),
            (OUT,),
        ),
    }
    if name in table:
        return table[name]
    return (TEXT,) if FUNCTIONS[name]["parameters"][:1] == ["const char*"] else ()


# ---- Groups of functions ---------------------------------------------------------------------

# They need no Python: what they answer, they answer always.
NO_PYTHON = frozenset(
    name
    for name in FUNCTIONS
    if name.startswith(("free_", "validate_", "safe_"))
    or name
    in {
        *("get_memory_safety_status", "get_lora_memory_usage", "cleanup_dual_path_memory"),
        *("candle_mlp_free", "candle_mlp_free_string", "shutdown_embedding_batched"),
    }
)
UNSUPPORTED = frozenset(
    name
    for name in FUNCTIONS
    if "multimodal" in name or "qwen3_" in name or name.endswith("_qwen3") or "_qwen3_" in name
) - {"free_multimodal_embedding"}
# Arguments that no function looks at, by their places; NULL and any bytes are fine there.
IGNORED = frozenset(
    {
        ("classify_bert_pii_tokens", 1),
        ("classify_candle_bert_tokens_with_labels", 1),
        ("init_lora_unified_classifier", 3),
    }
)
ALWAYS_FALSE_HERE = frozenset(  # right, since the tiny models have small vocabularies
    {"is_mmbert_model", "is_mmbert_32k_model"}
)
INITS = tuple(name for name in FUNCTIONS if name.startswith("init_") and name not in UNSUPPORTED)
MLP_FROM_JSON = tuple(name for name in FUNCTIONS if name.startswith("candle_mlp_from_json"))
