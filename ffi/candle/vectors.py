"""Cut and compare vectors of unit length: pure functions, fast for a few rows."""

import math
from collections.abc import Sequence

import numpy as np

from libsemantic.engine.errors import InvalidArgumentError
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
    """Return the first numbers of each row of float32[n, width], scaled to unit length again.

    Numbers that are all zero stay so. Raise as ``check_dimension`` does.
    """
    width = vectors.shape[1]
    dimension = check_dimension(dimension, width)
    if dimension == width:
        return vectors
    rows = [row / (math.sqrt(row.dot(row)) or 1.0) for row in vectors[:, :dimension]]
    return np.array(rows, np.float32)


def cosines(vectors: Float32) -> list[float]:
    """Return the cosine of the first row of float32[n, width] with each of the others.

    Each is computed by itself: a product of matrices may add up equal rows differently.
    """
    query, *others = vectors
    return [min(1.0, max(-1.0, float(query.dot(row)))) for row in others]


def best(scores: Sequence[float], count: int) -> Sequence[int]:
    """Return the indices of the ``count`` highest scores in descending order.

    0 and less, and more than there are, stand for all; equal scores keep their order.
    """
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return order[:count] if count > 0 else order
