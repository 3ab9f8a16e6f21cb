"""Cut and compare vectors: pure functions on numpy arrays."""

from collections.abc import Sequence

import numpy as np

from libsemantic.engine.errors import InvalidArgumentError
from libsemantic.engine.postprocess import l2_normalize
from libsemantic.engine.results import Float32


def check_dimension(dimension: int, width: int) -> int:
    """Return how many numbers of vectors of ``width`` a call wants; 0 and less stand for all.

    Raise InvalidArgumentError above ``width``.
    """
    if dimension > width:
        raise InvalidArgumentError(
            f"target_dim is {dimension}, the model gives {width}; pass 1 to {width}, or 0 for all"
        )
    return dimension if dimension > 0 else width


def cut(vectors: Float32, dimension: int) -> Float32:
    """Return the first numbers of each row of float32[n, width], scaled to unit length again."""
    if dimension == vectors.shape[1]:
        return vectors
    parts: Float32 = np.array([l2_normalize(row[:dimension]) for row in vectors])
    return parts


def similarity(left: Float32, right: Float32) -> float:
    """Return the cosine of two vectors, 0 where one is zero."""
    return float(similarities(left, right[None])[0])


def similarities(query: Float32, candidates: Float32) -> Float32:
    """Return the cosines of float32[width] with each row of float32[n, width], 0 for zeros."""
    left, right = query.astype(np.float64), candidates.astype(np.float64)
    lengths = np.linalg.norm(right, axis=1) * np.linalg.norm(left)
    products = right @ left
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    bounded: Float32 = np.clip(cosines, -1.0, 1.0).astype(np.float32)
    return bounded


def best(scores: Float32, count: int) -> Sequence[int]:
    """Return the indices of the ``count`` highest scores in descending order.

    0 and less, and more than there are, stand for all; equal scores keep their order.
    """
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order[:count] if count > 0 else order
