"""Outputs of the model to results: labels, spans, vectors, counts.

Numbers that overflow fail their row; numpy would print, or raise if the host says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from . import results
from .config import DEFAULT_THRESHOLD, Normalize, Output, RunOptions, Shorten
from .dense import DenseLayer
from .entities import LabelScheme, merge_entities
from .errors import SemanticError
from .inputs import Prepared, Row
from .model import Model
from .postprocess import (
    aggregate_windows,
    l2_normalize,
    not_finite,
    require_finite,
    sigmoid,
    softmax,
    weighted_mean,
)
from .results import Float32, Int32, Int64
from .tokenization import to_byte_offsets
from .windows import join_other, join_part, window_byte_ranges

Scalar = TypeVar("Scalar", np.int32, np.int64, np.float32)

_Outputs = Sequence[Sequence[Float32]]
# A vector that is shorter counts as zero: squares of it vanish in float32.
_SHORTEST = 1e-18


@np.errstate(all="ignore")
def decode_classification(
    model: Model, options: RunOptions, rows: list[Row], outputs: _Outputs
) -> results.Classification:
    """Turn logits float32[labels] per window into probabilities and winners per row."""
    labels = model.info.labels
    absent = np.full(len(labels), np.nan, np.float32)
    # One entry per window; a failed row has one of NaN.
    windows = [window for output in outputs for window in (output or (absent,))]
    logits = np.stack(windows) if windows else np.empty((0, len(labels)), np.float32)
    if not np.isfinite(logits).all():
        _fail_rows(rows, outputs, logits)
    activate = sigmoid if model.info.multi_label or len(labels) == 1 else softmax
    class_max = probabilities = activate(logits)
    class_window = np.zeros(logits.shape, np.int32)
    if len(windows) > len(rows):
        logits, probabilities, class_max, class_window = _join_windows(
            logits, probabilities, rows, outputs
        )
    winner = probabilities.argmax(axis=1).astype(np.int32)
    for index, row in enumerate(rows):
        if isinstance(row, SemanticError):
            winner[index] = -1
    threshold = np.float32(options.threshold or DEFAULT_THRESHOLD)
    return results.Classification(
        generation=model.generation,
        rows=_rows(rows),
        labels=labels,
        multi_label=model.info.multi_label,
        label_index=winner,
        score=probabilities.max(axis=1),
        probabilities=probabilities,
        logits=logits,
        selected=(probabilities >= threshold).astype(np.uint8),
        class_max=class_max,
        class_window=class_window,
    )


def _join_windows(
    logits: Float32, probabilities: Float32, rows: Sequence[Row], outputs: _Outputs
) -> tuple[Float32, Float32, Float32, Int32]:
    """Join the windows of each row: mean logits and probabilities, highest window per label."""
    shape = (len(rows), logits.shape[1])
    joined_logits, means, highest = (np.empty(shape, np.float32) for _ in range(3))
    window_of_highest = np.zeros(shape, np.int32)
    start = 0
    for index, (row, output) in enumerate(zip(rows, outputs, strict=True)):
        span = slice(start, start + max(1, len(output)))
        start = span.stop
        weights = row.plan.weights if isinstance(row, Prepared) else np.ones(1, np.int64)
        joined = aggregate_windows(probabilities[span], weights)
        joined_logits[index] = weighted_mean(logits[span], weights)
        means[index] = joined.mean
        highest[index] = joined.class_max
        window_of_highest[index] = joined.class_window
    return joined_logits, means, highest, window_of_highest


def _fail_rows(rows: list[Row], outputs: _Outputs, logits: Float32) -> None:
    """Fail the rows with a window whose logits hold NaN or infinity; they become all NaN."""
    start = 0
    for index, output in enumerate(outputs):
        span = slice(start, start + max(1, len(output)))
        start = span.stop
        if not np.isfinite(logits[span]).all():
            logits[span] = np.nan
            if isinstance(rows[index], Prepared):
                rows[index] = not_finite()


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """Items of one row: labels int32, scores float32, byte ranges int64[items]."""

    label_index: Int32
    score: Float32
    start: Int64
    end: Int64
    probabilities: Float32


@np.errstate(all="ignore")
def decode_token_classification(
    model: Model, options: RunOptions, rows: list[Row], outputs: _Outputs
) -> results.TokenClassification:
    """Turn logits float32[tokens, labels] per window into entities or labelled tokens."""
    scheme = model.scheme
    assert scheme is not None
    as_tokens = options.output is Output.TOKENS
    counts = np.zeros(len(rows) + 1, np.int64)
    items = []
    for index, row in enumerate(rows):
        if not isinstance(row, Prepared):
            continue
        try:
            found = _find(row, outputs[index], scheme, options.threshold, as_tokens)
        except SemanticError as error:
            rows[index] = error.detached()
        else:
            counts[index + 1] = len(found.start)
            items.append(found)
    empty = np.empty((0, len(model.info.labels)), np.float32)
    return results.TokenClassification(
        generation=model.generation,
        rows=_rows(rows),
        labels=model.info.labels if as_tokens else scheme.types,
        row_start=np.cumsum(counts),
        row=np.repeat(np.arange(len(rows)), counts[1:]),
        label_index=_join([item.label_index for item in items], np.int32),
        score=_join([item.score for item in items], np.float32),
        start=_join([item.start for item in items], np.int64),
        end=_join([item.end for item in items], np.int64),
        probabilities=np.concatenate([empty, *(item.probabilities for item in items)])
        if as_tokens
        else None,
        model_labels=model.info.labels,
    )


def _find(
    row: Prepared,
    outputs: Sequence[Float32],
    scheme: LabelScheme,
    threshold: float,
    as_tokens: bool,
) -> _Items:
    """Label the tokens of a text, or of the second text of a pair."""
    for output in outputs:
        require_finite(output)
    windows = [softmax(output) for output in outputs]
    encoded, plan, text, part = row.encoded, row.plan, row.text, Shorten.FIRST
    if encoded.second is not None:
        text, part = row.other, Shorten.SECOND
    if part is plan.part:
        probabilities = join_part(plan, windows)
    else:
        start, end = encoded.part(part)
        probabilities = join_other(plan, windows, end - start, scheme.quiet_label)
    offsets = encoded.offsets(part)[: len(probabilities)]
    winners = probabilities.argmax(axis=1)
    if as_tokens:
        ranges = to_byte_offsets(text, offsets)
        score = probabilities.max(axis=1)
        return _Items(winners.astype(np.int32), score, ranges[:, 0], ranges[:, 1], probabilities)
    entities = merge_entities(text, offsets, winners, probabilities, scheme, threshold)
    return _Items(
        entities.type_index, entities.score, entities.start, entities.end, probabilities[:0]
    )


def decode_embedding(
    model: Model, options: RunOptions, rows: list[Row], outputs: _Outputs
) -> results.Embedding:
    """Turn token states (or pooled vectors) per window into one vector per row.

    Several windows are averaged by their content tokens before the vector is cut and
    normalised.
    """
    width = options.dimension or model.info.dimension
    declared = model.spec.normalize
    normalize = options.normalize is Normalize.ON or (
        options.normalize is Normalize.AUTO and declared is not False
    )
    vectors = []
    for index, row in enumerate(rows):
        vector = None
        if isinstance(row, Prepared):
            try:
                vector = _vector(model, row, outputs[index], width, normalize)
            except SemanticError as error:
                rows[index] = error.detached()
        vectors.append(np.full(width, np.nan, np.float32) if vector is None else vector)
    if len(vectors) == 1:
        values = vectors[0][None]
    else:
        values = np.array(vectors, np.float32).reshape(len(rows), width)
    return results.Embedding(model.generation, _rows(rows), values)


def _vector(
    model: Model, row: Prepared, outputs: Sequence[Float32], width: int, normalize: bool
) -> Float32:
    output = outputs[0]
    if model.pools and normalize and len(outputs) == 1 and width == len(output) - 1:
        length = output.item(width)  # before
        if not math.isfinite(length):
            raise not_finite()
        return output[:width] if length > _SHORTEST else np.zeros(width, np.float32)
    with np.errstate(all="ignore"):
        return _computed_vector(model, row, outputs, width, normalize)


def _computed_vector(
    model: Model, row: Prepared, outputs: Sequence[Float32], width: int, normalize: bool
) -> Float32:
    vector = _window_vector(model, outputs[0])
    if len(outputs) > 1:
        parts = [vector, *(_window_vector(model, output) for output in outputs[1:])]
        vector = weighted_mean(np.array(parts), row.plan.weights)
    if width < len(vector):  # Matryoshka
        vector = vector[:width]
    if normalize:
        return l2_normalize(vector)
    require_finite(vector)
    return vector


def _window_vector(model: Model, output: Float32) -> Float32:
    """Return float32[dimension] of one window, not normalised."""
    if model.pools:
        scaled: Float32 = output[:-1] * output[-1]
        return scaled
    vector = output if model.pool is None else model.pool(output)
    for layer in model.dense:
        vector = _apply(layer, vector)
    return vector


def _apply(layer: DenseLayer, vector: Float32) -> Float32:
    product = vector @ layer.weight.T
    if layer.bias is not None:
        product = product + layer.bias
    return _ACTIVATIONS[layer.activation](product)


def _gelu(x: Float32) -> Float32:
    """Return x · Φ(x), with Φ by the error function, as torch.nn.GELU does."""
    half = np.array([0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x.flat])
    gelu: Float32 = (x * half.reshape(x.shape)).astype(np.float32)
    return gelu


_ACTIVATIONS: Mapping[str, Callable[[Float32], Float32]] = {
    "Identity": lambda x: x,
    "Tanh": lambda x: np.tanh(x),
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
    "GELU": _gelu,
}


def decode_counts(model: Model, rows: list[Row]) -> results.TokenCounts:
    """Report the windows of each row as byte ranges of the caller's text."""
    counts = np.zeros(len(rows) + 1, np.int64)
    ranges, ids = [np.empty((0, 2), np.int64)], []
    for index, row in enumerate(rows):
        if not isinstance(row, Prepared):
            continue
        counts[index + 1] = len(row.plan.windows)
        found = window_byte_ranges(row.plan, row.encoded, row.text)
        ranges.append(np.maximum(found - row.prompt_bytes, 0))
        ids += [window.ids for window in row.plan.windows]
    table = np.concatenate(ranges)
    return results.TokenCounts(
        generation=model.generation,
        rows=_rows(rows),
        row_start=np.cumsum(counts),
        window_start=table[:, 0],
        window_end=table[:, 1],
        window_tokens=np.array([len(each) for each in ids], np.int64),
        window_ids=tuple(ids),
    )


def _rows(rows: Sequence[Row]) -> results.Rows:
    facts: list[tuple[int, int, int, int, int, str, SemanticError | None]] = []
    for row in rows:
        if isinstance(row, Prepared):
            plan = row.plan
            tokens, scored = plan.token_count, plan.scored_token_count
            facts.append((tokens, scored, int(scored < tokens), len(plan.windows), 0, "", None))
        else:
            facts.append((0, 0, 0, 0, int(row.status), row.message, row))
    return results.Rows(*zip(*facts, strict=True)) if facts else results.Rows(*[()] * 7)


def _join(arrays: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
