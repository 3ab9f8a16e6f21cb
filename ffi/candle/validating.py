"""Verbs that say whether an argument is allowed: pure functions with candle-binding's limits.

Path type 0 is the traditional one, 1 that of LoRA.
"""

import unicodedata
from enum import IntEnum
from typing import NamedTuple

from .arguments import OptionalText, OptionalTexts
from .context import Context, Verb

_TRADITIONAL, _LORA = 0, 1
_MOST_BYTES = 10_000
_MOST_TEXTS = 1000
_MOST_TRADITIONAL_TEXTS = 100
_MOST_PATH_BYTES = 1000
_LEAST_LORA_BYTES = 10
_LEAST_CONFIDENCE = {_TRADITIONAL: 0.5, _LORA: 0.8}
_MOST_MEMORY = 1 << 30
_PATH_WORDS = {_TRADITIONAL: ("traditional", "bert"), _LORA: ("lora", "adapter")}


class Code(IntEnum):
    """Values of ``ValidationResult.error_code``."""

    VALID = 0
    NULL_POINTER = 1
    INVALID_STRING = 2
    TEXT_TOO_LONG = 3
    TEXT_TOO_SHORT = 4
    INVALID_BATCH_SIZE = 5
    INVALID_CONFIDENCE = 6
    INVALID_MODEL_PATH = 7
    MEMORY = 9
    LORA_RULE = 100
    TRADITIONAL_RULE = 200


_RULE_OF = {_TRADITIONAL: Code.TRADITIONAL_RULE, _LORA: Code.LORA_RULE}


class Verdict(NamedTuple):
    """Whether an argument is allowed, and if not, why and what to do."""

    is_valid: bool
    error_code: int
    error_message: str | None
    suggestions: str | None


_VALID = Verdict(True, Code.VALID, None, None)


def _refused(code: Code, message: str, suggestion: str) -> Verdict:
    return Verdict(False, code, message, suggestion)


def _unknown_path_type(path_type: int) -> Verdict:
    return _refused(Code.LORA_RULE, f"path_type is {path_type}", "pass 0 (traditional) or 1 (LoRA)")


def validate_text(context: Context, text: OptionalText, path_type: int) -> Verdict:
    """Check a text: 1 to 10,000 bytes of UTF-8, and the rule of its path type."""
    del context
    return _judge_text(text.data, path_type)


def _judge_text(text: bytes | None, path_type: int) -> Verdict:
    if text is None:
        return _refused(Code.NULL_POINTER, "the text is NULL", "pass a text")
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        return _refused(
            Code.INVALID_STRING, f"the text is not UTF-8 at byte {error.start}", "pass UTF-8"
        )
    if not text:
        return _refused(Code.TEXT_TOO_SHORT, "the text is empty", "pass at least one byte")
    if len(text) > _MOST_BYTES:
        return _refused(
            Code.TEXT_TOO_LONG,
            f"the text has {len(text)} bytes",
            f"pass at most {_MOST_BYTES} bytes",
        )
    if path_type == _TRADITIONAL:
        if any(unicodedata.category(c) == "Cc" and c not in "\n\r\t" for c in decoded):
            return _refused(
                Code.TRADITIONAL_RULE, "the text has control characters", "take them out"
            )
        return _VALID
    if path_type == _LORA:
        if len(text) < _LEAST_LORA_BYTES:
            return _refused(
                Code.LORA_RULE,
                f"the text has {len(text)} bytes, fewer than {_LEAST_LORA_BYTES}",
                "use path type 0 for such short texts",
            )
        return _VALID
    return _unknown_path_type(path_type)


def validate_batch(context: Context, texts: OptionalTexts, path_type: int) -> Verdict:
    """Check a batch: 1 to 1,000 texts, each of them, and the rule of its path type."""
    del context
    if texts.is_null:
        return _refused(Code.NULL_POINTER, "the array of texts is NULL", "pass an array of texts")
    if not 0 < texts.count <= _MOST_TEXTS:
        return _refused(
            Code.INVALID_BATCH_SIZE,
            f"the batch has {texts.count} texts",
            f"pass 1 to {_MOST_TEXTS} texts",
        )
    for index in range(texts.count):
        verdict = _judge_text(texts[index], path_type)
        if not verdict.is_valid:
            return verdict._replace(error_message=f"Batch item {index}: {verdict.error_message}")
    if path_type == _TRADITIONAL and texts.count > _MOST_TRADITIONAL_TEXTS:
        return _refused(
            Code.TRADITIONAL_RULE,
            f"the batch has {texts.count} texts",
            f"pass at most {_MOST_TRADITIONAL_TEXTS}, or use path type 1",
        )
    if path_type == _LORA and texts.count == 1:
        return _refused(Code.LORA_RULE, "the batch has one text", "pass more, or use path type 0")
    return _VALID


def validate_path(context: Context, path: OptionalText, path_type: int) -> Verdict:
    """Check a model path: 1 to 1,000 bytes of UTF-8, with a word that its path type asks for."""
    del context
    data = path.data
    if data is None:
        return _refused(Code.NULL_POINTER, "the path is NULL", "pass the folder of a model")
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        return _refused(
            Code.INVALID_STRING, f"the path is not UTF-8 at byte {error.start}", "pass UTF-8"
        )
    if not 0 < len(data) <= _MOST_PATH_BYTES:
        return _refused(
            Code.INVALID_MODEL_PATH,
            f"the path has {len(data)} bytes",
            f"pass 1 to {_MOST_PATH_BYTES} bytes",
        )
    words = _PATH_WORDS.get(path_type)
    if words is None:
        return _unknown_path_type(path_type)
    if not any(word in decoded for word in words):
        return _refused(
            _RULE_OF[path_type],
            f"the path has none of the words {', '.join(words)}",
            "pass the folder of a model of this path type",
        )
    return _VALID


def validate_confidence(context: Context, confidence: float, path_type: int) -> Verdict:
    """Check a threshold: 0 to 1, and not below 0.5 (traditional) or 0.8 (LoRA)."""
    del context
    if not 0.0 <= confidence <= 1.0:
        return _refused(
            Code.INVALID_CONFIDENCE, f"the threshold is {confidence:g}", "pass 0.0 to 1.0"
        )
    least = _LEAST_CONFIDENCE.get(path_type)
    if least is None:
        return _unknown_path_type(path_type)
    if round(confidence, 6) < least:  # a float32 of 0.8 is above it, of another number below
        return _refused(
            _RULE_OF[path_type], f"the threshold is {confidence:g}", f"pass {least} or more"
        )
    return _VALID


def validate_memory(context: Context, size: int, alignment: int) -> Verdict:
    """Check a block: 1 byte to 1 GiB, aligned to a power of two."""
    del context
    if not 0 < size <= _MOST_MEMORY:
        return _refused(Code.MEMORY, f"the size is {size}", f"pass 1 to {_MOST_MEMORY} bytes")
    if alignment <= 0 or alignment & (alignment - 1):
        return _refused(Code.MEMORY, f"the alignment is {alignment}", "pass a power of two")
    return _VALID


VERBS: tuple[Verb, ...] = (
    validate_text,
    validate_batch,
    validate_path,
    validate_confidence,
    validate_memory,
)
