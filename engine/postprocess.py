"""Model outputs to probabilities and vectors: pure functions on numpy arrays.

Sums that decide an answer run in float64 and come back as float32; pooling sums in float32 as
the reference does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import BadArtifactError, InvalidArgumentError, UnsupportedError

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
_Pool = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class WindowedProbabilities:
    """Classification of a text from its windows, each field one entry per label.

    ``mean`` float32: token-weighted mean of the windows; ``class_max`` float32: the highest
    window; ``class_window`` int32: which one that was, the earliest of equals.
    """

    mean: FloatArray
    class_max: FloatArray
    class_window: NDArray[np.int32]


def require_finite(array: FloatArray, what: str) -> None:
    """Raise BadArtifactError if ``array``, the model's output ``what``, holds NaN or infinity."""
    if not np.isfinite(array).all():
        raise BadArtifactError(
            f"the model's output {what} holds NaN or infinity; the weights are damaged or the "
            "precision is too low for them, load the model with precision FP32"
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


def pool(hidden: FloatArray, mask: IntArray, modes: Sequence[str]) -> FloatArray:
    """Pool token vectors to one vector per text, as sentence-transformers' ``1_Pooling`` does.

    ``hidden`` is float32[texts, tokens, width] and finite, ``mask`` int64[texts, tokens] (1 =
    token, 0 = padding, or prompt where the artifact leaves it out), ``modes`` the ``POOLING_MODES``
    that are on. Several are joined along the width in the table's order. Return
    float32[texts, width × modes].

    Raise UnsupportedError for an unknown mode or none, InvalidArgumentError for a text whose mask
    is empty.
    """
    unknown = [mode for mode in modes if mode not in _POOLINGS]
    if unknown or not modes:
        raise UnsupportedError(
            f"pooling {', '.join(unknown) or 'without a mode'} is unknown; "
            f"1_Pooling/config.json may set {', '.join(POOLING_MODES)}"
        )
    weights = mask.astype(np.float32)
    if not weights.any(axis=1).all():
        raise InvalidArgumentError("a text has no tokens to pool; leave it out")
    if len(modes) == 1:
        return _POOLINGS[modes[0]](hidden, weights)
    parts = [run(hidden, weights) for mode, run in _POOLINGS.items() if mode in modes]
    return np.concatenate(parts, axis=-1)


def cut_dimension(vectors: FloatArray, dimension: int) -> FloatArray:
    """Keep the first ``dimension`` columns (Matryoshka), all of them for 0; normalise after.

    Raise InvalidArgumentError if the vectors are shorter than that.
    """
    width = vectors.shape[-1]
    if dimension > width:
        raise InvalidArgumentError(
            f"dimension is {dimension}, but the model gives {width}; ask for {width} or less"
        )
    return vectors[..., :dimension] if dimension else vectors


def l2_normalize(vectors: FloatArray) -> FloatArray:
    """Scale each vector of the last axis to unit length, float32; a zero vector stays zero."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.einsum("...i,...i->...", wide, wide))[..., None]
    unit: FloatArray = (wide / np.where(lengths == 0.0, 1.0, lengths)).astype(np.float32)
    return unit


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


def _weighted_sum(hidden: FloatArray, weights: FloatArray) -> FloatArray:
    # einsum stays in this thread; matmul would wake the BLAS threads beside the session's own.
    sums: FloatArray = np.einsum("bth,bt->bh", hidden, weights)
    return sums


def _first(hidden: FloatArray, _weights: FloatArray) -> FloatArray:
    vectors: FloatArray = hidden[:, 0]
    return vectors


def _maximum(hidden: FloatArray, weights: FloatArray) -> FloatArray:
    tokens = np.where(weights[..., None] > 0, hidden, np.float32(-np.inf))
    highest: FloatArray = tokens.max(axis=1)
    return highest


def _mean(hidden: FloatArray, weights: FloatArray) -> FloatArray:
    mean: FloatArray = _weighted_sum(hidden, weights) / weights.sum(axis=1, keepdims=True)
    return mean


def _mean_sqrt_length(hidden: FloatArray, weights: FloatArray) -> FloatArray:
    lengths = np.sqrt(weights.sum(axis=1, keepdims=True))
    scaled: FloatArray = _weighted_sum(hidden, weights) / lengths
    return scaled


def _weighted_mean(hidden: FloatArray, weights: FloatArray) -> FloatArray:
    # Token k counts k times, counted from 1 over all positions (SGPT).
    ramp = np.arange(1, weights.shape[1] + 1, dtype=np.float32)
    return _mean(hidden, weights * ramp)


def _last(hidden: FloatArray, weights: FloatArray) -> FloatArray:
    last = weights.shape[1] - 1 - weights[:, ::-1].argmax(axis=1)
    vectors: FloatArray = hidden[np.arange(len(hidden)), last]
    return vectors


# Keys of 1_Pooling/config.json, in the order in which sentence-transformers joins them.
_POOLINGS: dict[str, _Pool] = {
    "pooling_mode_cls_token": _first,
    "pooling_mode_max_tokens": _maximum,
    "pooling_mode_mean_tokens": _mean,
    "pooling_mode_mean_sqrt_len_tokens": _mean_sqrt_length,
    "pooling_mode_weightedmean_tokens": _weighted_mean,
    "pooling_mode_lasttoken": _last,
}
POOLING_MODES = tuple(_POOLINGS)
