"""Outputs of the model to results: labels, spans, vectors, counts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from . import results
from .config import DEFAULT_THRESHOLD, Normalize, Output, RunOptions, Shorten
from .entities import LabelScheme, merge_entities
from .errors import SemanticError
from .inputs import Prepared, Row
from .model import DenseLayer, Model
from .postprocess import (
    aggregate_windows,
    cut_dimension,
    l2_normalize,
    pool,
    sigmoid,
    softmax,
    weighted_mean,
)
from .results import Float32, Int32, Int64
from .tokenization import to_byte_offsets
from .windows import join_other, join_part, window_byte_ranges

Scalar = TypeVar("Scalar", np.int32, np.int64, np.float32)

_Outputs = Sequence[Sequence[Float32]]


def decode_classification(
    model: Model, options: RunOptions, rows: Sequence[Row], outputs: _Outputs
) -> results.Classification:
    """Turn logits float32[labels] per window into probabilities and winners per row."""
    labels = model.info.labels
    n, width = len(rows), len(labels)
    activate = sigmoid if model.info.multi_label or width == 1 else softmax
    logits, probabilities, class_max = _nan(n, width), _nan(n, width), _nan(n, width)
    class_window = np.zeros((n, width), np.int32)
    winner = np.full(n, -1, np.int32)
    score = _nan(n)
    for index, row in enumerate(rows):
        if not isinstance(row, Prepared):
            continue
        window_logits = np.stack(outputs[index])
        weights = row.plan.weights
        joined = aggregate_windows(activate(window_logits), weights)
        logits[index] = weighted_mean(window_logits, weights)
        probabilities[index] = joined.mean
        class_max[index] = joined.class_max
        class_window[index] = joined.class_window
        winner[index] = joined.mean.argmax()
        score[index] = joined.mean[winner[index]]
    threshold = np.float32(options.threshold or DEFAULT_THRESHOLD)
    return results.Classification(
        generation=model.generation,
        rows=_rows(rows),
        labels=labels,
        multi_label=model.info.multi_label,
        label_index=winner,
        score=score,
        probabilities=probabilities,
        logits=logits,
        selected=(probabilities >= threshold).astype(np.uint8),
        class_max=class_max,
        class_window=class_window,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """Items of one row: labels int32, scores float32, byte ranges int64[items]."""

    label_index: Int32
    score: Float32
    start: Int64
    end: Int64
    probabilities: Float32


def decode_token_classification(
    model: Model, options: RunOptions, rows: Sequence[Row], outputs: _Outputs
) -> results.TokenClassification:
    """Turn logits float32[tokens, labels] per window into entities or labelled tokens."""
    scheme = model.scheme
    assert scheme is not None
    as_tokens = options.output is Output.TOKENS
    counts = np.zeros(len(rows) + 1, np.int64)
    items = []
    for index, row in enumerate(rows):
        if isinstance(row, Prepared):
            found = _find(row, outputs[index], scheme, options.threshold, as_tokens)
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
    )


def _find(
    row: Prepared,
    outputs: Sequence[Float32],
    scheme: LabelScheme,
    threshold: float,
    as_tokens: bool,
) -> _Items:
    """Label the tokens of a text, or of the second text of a pair."""
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
    model: Model, options: RunOptions, rows: Sequence[Row], outputs: _Outputs
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
    values = _nan(len(rows), width)
    for index, row in enumerate(rows):
        if isinstance(row, Prepared):
            vectors = np.concatenate([_vector(model, output) for output in outputs[index]])
            values[index] = cut_dimension(weighted_mean(vectors, row.plan.weights), width)
    return results.Embedding(
        generation=model.generation,
        rows=_rows(rows),
        values=l2_normalize(values) if normalize else values,
    )


def _vector(model: Model, output: Float32) -> Float32:
    """Return float32[1, dimension] of one window, not normalised."""
    vector = output[None]
    if output.ndim == 2:
        mask = np.ones((1, len(output)), np.int64)
        vector = pool(vector, mask, model.spec.pooling)
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


def decode_counts(model: Model, rows: Sequence[Row]) -> results.TokenCounts:
    """Report the windows of each row as byte ranges of the caller's text."""
    counts = np.zeros(len(rows) + 1, np.int64)
    ranges, tokens = [np.empty((0, 2), np.int64)], []
    for index, row in enumerate(rows):
        if not isinstance(row, Prepared):
            continue
        counts[index + 1] = len(row.plan.windows)
        found = window_byte_ranges(row.plan, row.encoded, row.text)
        ranges.append(np.maximum(found - row.prompt_bytes, 0))
        tokens += [len(window.ids) for window in row.plan.windows]
    table = np.concatenate(ranges)
    return results.TokenCounts(
        generation=model.generation,
        rows=_rows(rows),
        row_start=np.cumsum(counts),
        window_start=table[:, 0],
        window_end=table[:, 1],
        window_tokens=np.array(tokens, np.int64),
    )


def _rows(rows: Sequence[Row]) -> results.Rows:
    counts = [
        (row.plan.token_count, row.plan.scored_token_count, len(row.plan.windows))
        if isinstance(row, Prepared)
        else (0, 0, 0)
        for row in rows
    ]
    errors = [row if isinstance(row, SemanticError) else None for row in rows]
    return results.make_rows(counts, errors)


def _nan(*shape: int) -> Float32:
    return np.full(shape, np.nan, np.float32)


def _join(arrays: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
