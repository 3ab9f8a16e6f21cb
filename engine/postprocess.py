"""Model outputs to probabilities and vectors: pure functions on numpy arrays.

Sums that decide an answer run in float64 and come back as float32; pooling sums in float32 as
the reference does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import BadArtifactError, UnsupportedError

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
Pool = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class WindowedProbabilities:
    """Classification of a text from its windows, each field one entry per label.

    ``mean`` float32: token-weighted mean of the windows; ``class_max`` float32: the highest
    window; ``class_window`` int32: which one that was, the earliest of equals.
    """

    mean: FloatArray
    class_max: FloatArray
    class_window: NDArray[np.int32]


def require_finite(array: FloatArray) -> None:
    """Raise BadArtifactError if the model's output holds NaN or infinity."""
    if not np.isfinite(array).all():
        raise not_finite()


def not_finite() -> BadArtifactError:
    """Make the error for outputs that are no numbers."""
    return BadArtifactError(
        "the model's output holds NaN or infinity; the weights are damaged or the precision is "
        "too low for them, load the model with precision FP32"
    )


def softmax(logits: FloatArray) -> FloatArray:
    """Return exp(x) / Σ exp(x) along the last axis, float32, for finite logits of any size."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=-1, keepdims=True)
    probabilities: FloatArray = shifted.astype(np.float32)
    return probabilities


def sigmoid(logits: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(−x)) of each logit, float32, without overflow at any size."""
    wide = logits.astype(np.float64)
    small = np.exp(-np.abs(wide))
    result: FloatArray = (np.where(wide >= 0, 1.0, small) / (1.0 + small)).astype(np.float32)
    return result


def pooling(modes: Sequence[str]) -> Pool:
    """Return the function that pools the token vectors of one text.

    It is that of sentence-transformers' ``1_Pooling`` with the ``POOLING_MODES`` that are on:
    float32[tokens, width] without padding to float32[width × modes], several joined in the
    table's order. Raise UnsupportedError for an unknown mode or none.
    """
    unknown = [mode for mode in modes if mode not in _POOLINGS]
    if unknown or not modes:
        raise UnsupportedError(
            f"pooling {', '.join(unknown) or 'without a mode'} is unknown; "
            f"1_Pooling/config.json may set {', '.join(POOLING_MODES)}"
        )
    chosen = [run for mode, run in _POOLINGS.items() if mode in modes]
    if len(chosen) == 1:
        return chosen[0]
    return lambda hidden: np.concatenate([run(hidden) for run in chosen])


def l2_normalize(vector: FloatArray) -> FloatArray:
    """Scale float32[width] to unit length; a zero vector stays zero.

    Raise BadArtifactError if it holds NaN or infinity: its length tells.
    """
    # In float64 no square of a float32 overflows or vanishes.
    square = float(np.einsum("i,i", vector, vector, dtype=np.float64))
    if not math.isfinite(square):
        raise not_finite()
    unit = np.divide(vector, math.sqrt(square) or 1.0, dtype=np.float64)
    return unit.astype(np.float32)


def weighted_mean(rows: FloatArray, weights: IntArray) -> FloatArray:
    """Return the mean of float32[windows, columns] under positive weights[windows], float32.

    For embeddings: windows are averaged before normalisation, weighted by their content tokens.
    """
    if len(rows) == 1:
        only: FloatArray = rows[0]
        return only
    wide = weights.astype(np.float64)
    sums = np.einsum("wc,w->c", rows.astype(np.float64), wide)
    mean: FloatArray = (sums / wide.sum()).astype(np.float32)
    return mean


def aggregate_windows(probabilities: FloatArray, weights: IntArray) -> WindowedProbabilities:
    """Join the probabilities float32[windows, labels] of one text's windows.

    ``weights`` int64[windows] are the content tokens of each window, at least 1.
    """
    best = probabilities.argmax(axis=0)
    highest = np.take_along_axis(probabilities, best[None], axis=0)[0]
    return WindowedProbabilities(
        weighted_mean(probabilities, weights), highest, best.astype(np.int32)
    )


def _sum(hidden: FloatArray) -> FloatArray:
    sums: FloatArray = np.add.reduce(hidden, axis=0)
    return sums


def _weighted_mean(hidden: FloatArray) -> FloatArray:
    # Token k counts k times, counted from 1 (SGPT).
    ramp = np.arange(1, len(hidden) + 1, dtype=np.float32)
    mean: FloatArray = np.einsum("th,t->h", hidden, ramp) / ramp.sum()
    return mean


# Keys of 1_Pooling/config.json, in the order in which sentence-transformers joins them.
_POOLINGS: dict[str, Pool] = {
    "pooling_mode_cls_token": lambda hidden: hidden[0],
    "pooling_mode_max_tokens": lambda hidden: hidden.max(axis=0),
    "pooling_mode_mean_tokens": lambda hidden: _sum(hidden) / np.float32(len(hidden)),
    "pooling_mode_mean_sqrt_len_tokens": lambda hidden: (
        _sum(hidden) / np.float32(math.sqrt(len(hidden)))
    ),
    "pooling_mode_weightedmean_tokens": _weighted_mean,
    "pooling_mode_lasttoken": lambda hidden: hidden[-1],
}
POOLING_MODES = tuple(_POOLINGS)
