"""Verbs that check an answer against its context: hallucinations and inference."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from libsemantic.engine.config import DEFAULT_THRESHOLD, Output, RunOptions
from libsemantic.engine.entities import quiet_label
from libsemantic.engine.errors import SemanticError
from libsemantic.engine.results import Classification, Float32, TokenClassification

from .arguments import Text
from .context import Context, Verb

_TOKENS = RunOptions(output=Output.TOKENS)
_LABEL = "HALLUCINATED"

ENTAILMENT, NEUTRAL, CONTRADICTION, UNKNOWN = 0, 1, 2, -1
_STEMS = ("entail", "neutral", "contradict")

# The label of the inference: severity from 1 to 4, and what is said before the share.
_JUDGEMENTS: Mapping[int, tuple[int, str]] = {
    CONTRADICTION: (4, "CONTRADICTION: the context says otherwise"),
    NEUTRAL: (2, "FABRICATION: the context does not say this"),
    ENTAILMENT: (1, "UNCERTAIN: the context may well support this"),
    UNKNOWN: (2, "Unable to determine how the context relates to this"),
}
_FAILED = "NLI classification failed, see the log"
_ALONE = "Unsupported claim detected"
_INK = frozenset(range(0x21, 0x7F))  # bytes that are characters of their own and no blanks
_SURE = 0.8  # of a span, where there is no inference: severity 3 above, else 2


class Spans(NamedTuple):
    """Parts of an answer by field; ``start`` and ``end`` are half-open bytes of the answer."""

    text: Sequence[bytes]
    start: Sequence[int]
    end: Sequence[int]
    confidence: Sequence[float]
    label: Sequence[str]


class Detection(NamedTuple):
    """What of an answer the context does not support."""

    has_hallucination: bool
    confidence: float
    spans: Spans
    num_spans: int
    error: bool = False
    error_message: None = None


class Inference(NamedTuple):
    """How a hypothesis relates to a premise."""

    label: int
    confidence: float
    entailment_prob: float
    neutral_prob: float
    contradiction_prob: float
    error: bool = False
    error_message: None = None


class ExplainedSpan(NamedTuple):
    """A part of an answer, and why it is one."""

    text: bytes
    start: int
    end: int
    hallucination_confidence: float
    nli_label: int
    nli_confidence: float
    severity: int
    explanation: str


class Explanation(NamedTuple):
    """What of an answer the context does not support, and why."""

    has_hallucination: bool
    confidence: float
    spans: Sequence[ExplainedSpan]
    num_spans: int
    error: bool = False
    error_message: None = None


def detect_hallucinations(
    context: Context, source: Text, question: Text, answer: Text, threshold: float
) -> Detection:
    """Mark the tokens of an answer that the source does not support, and join neighbours.

    The source is shortened where both are too long, never the answer: all of the source is looked
    at, in windows. Without a span the confidence is 1.
    """
    slots = context.slots
    handle = slots.first(context.row.slots[:1])
    if question:
        source = Text(source + b" Question: " + question)
    result = slots.registry.classify_token_pairs(handle, [source], [answer], _TOKENS)
    spans = _spans(answer, result, threshold if 0 < threshold <= 1 else DEFAULT_THRESHOLD)
    count = len(spans.text)
    return Detection(count > 0, max(spans.confidence, default=1.0), spans, count)


def _spans(answer: bytes, result: TokenClassification, threshold: float) -> Spans:
    """Return the runs of tokens whose likeliest label is not the quiet one and likely enough.

    Tokens without width neither break nor extend a span; blanks at its ends are no part of it.
    """
    quiet = quiet_label(result.labels)
    least = _as_float32(threshold)
    starts: list[int] = []
    ends: list[int] = []
    scores: list[float] = []
    inside = False
    columns = (result.label_index, result.score, result.start, result.end)
    for label, score, start, end in zip(*(c.tolist() for c in columns), strict=True):
        if start >= end:
            continue
        if label != quiet and score >= least:
            if not inside:
                starts.append(start)
                ends.append(end)
                scores.append(score)
                inside = True
                continue
            if end > ends[-1]:
                ends[-1] = end
            if score > scores[-1]:
                scores[-1] = score
        else:
            inside = False
    for index in reversed(range(len(starts))):
        start, end = starts[index], ends[index]
        if answer[start] in _INK and answer[end - 1] in _INK:
            continue
        starts[index], ends[index] = _trimmed(answer, start, end)
        if starts[index] == ends[index]:
            del starts[index], ends[index], scores[index]
    texts = [answer[start:end] for start, end in zip(starts, ends, strict=True)]
    return Spans(texts, starts, ends, scores, [_LABEL] * len(texts))


@lru_cache(maxsize=16)
def _as_float32(threshold: float) -> float:
    """Return a threshold rounded as the scores are."""
    return float(np.float32(threshold))


def _trimmed(answer: bytes, start: int, end: int) -> tuple[int, int]:
    """Return a range without the blanks at its ends."""
    text = answer[start:end].decode()
    bare = text.lstrip()
    start = end - len(bare.encode())
    return start, start + len(bare.rstrip().encode())


def infer(context: Context, premise: Text, hypothesis: Text) -> Inference:
    """Tell how a hypothesis relates to a premise, which is shortened where both are too long."""
    slots = context.slots
    handle = slots.first(context.row.slots)
    result = slots.registry.classify_pairs(handle, [premise], [hypothesis])
    return _inference(result, 0)


def _inference(result: Classification, row: int) -> Inference:
    kinds = _kinds(result.labels)
    probabilities: Float32 = result.probabilities[row]
    shares = dict(zip(kinds, probabilities.tolist(), strict=True))
    return Inference(
        label=kinds[int(result.label_index[row])],
        confidence=float(result.score[row]),
        entailment_prob=shares.get(ENTAILMENT, 0.0),
        neutral_prob=shares.get(NEUTRAL, 0.0),
        contradiction_prob=shares.get(CONTRADICTION, 0.0),
    )


@lru_cache(maxsize=16)
def _kinds(labels: tuple[str, ...]) -> tuple[int, ...]:
    """Return what each label of a model means.

    By its name; where the names do not say it, in the order entailment, neutral, contradiction.
    """
    named = tuple(
        next((kind for kind, stem in enumerate(_STEMS) if stem in label.lower()), UNKNOWN)
        for label in labels
    )
    if {ENTAILMENT, CONTRADICTION} <= set(named) and len(set(named)) == len(named):
        return named
    return tuple(index if index < len(_STEMS) else UNKNOWN for index in range(len(labels)))


def explain_hallucinations(
    context: Context, source: Text, question: Text, answer: Text, threshold: float
) -> Explanation:
    """Detect hallucinations, and ask the inference how the source relates to each of them."""
    found = detect_hallucinations(context, source, question, answer, threshold)
    premise = source + b" " + question if question else source
    texts, starts, ends, scores, _ = found.spans
    inferences = _infer_spans(context, premise, texts) if texts else []
    spans = [
        _explained(text, start, end, score, inference)
        for text, start, end, score, inference in zip(
            texts, starts, ends, scores, inferences, strict=True
        )
    ]
    confidence = max(
        (max(span.hallucination_confidence, span.nli_confidence) for span in spans), default=1.0
    )
    return Explanation(bool(spans), confidence, spans, len(spans))


def _infer_spans(
    context: Context, premise: bytes, spans: Sequence[bytes]
) -> Sequence[Inference | str]:
    """Return for each span the inference, or in words why there is none."""
    slots = context.slots
    slot = context.row.slots[1]
    try:
        handle = slots.find(slot)
        if handle is None:
            return [_ALONE] * len(spans)
        result = slots.registry.classify_pairs(handle, [premise] * len(spans), spans)
    except SemanticError as error:
        _warn(context, slot, error)
        return [_FAILED] * len(spans)
    inferences: list[Inference | str] = []
    for row, failure in enumerate(result.rows.errors):
        if failure is not None:
            _warn(context, slot, failure)
        inferences.append(_FAILED if failure is not None else _inference(result, row))
    return inferences


def _warn(context: Context, slot: str, error: SemanticError) -> None:
    context.slots.registry.log.warning(
        f"{context.row.function}: no inference by candle/{slot}: {error.message}"
    )


def _explained(
    text: bytes, start: int, end: int, score: float, inference: Inference | str
) -> ExplainedSpan:
    if isinstance(inference, Inference):
        kind, share = inference.label, inference.confidence
        severity, words = _JUDGEMENTS[kind]
        explanation = words if kind == UNKNOWN else f"{words} ({share:.1%})"
    else:
        kind, share, severity, explanation = NEUTRAL, 0.0, 2, inference
        if inference == _ALONE:
            severity = 3 if score > _SURE else 2
            explanation = f"{inference} ({score:.1%})"
    return ExplainedSpan(text, start, end, score, kind, share, severity, explanation)


VERBS: tuple[Verb, ...] = (detect_hallucinations, infer, explain_hallucinations)
