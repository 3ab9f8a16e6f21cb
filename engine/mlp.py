"""A multi-layer perceptron that picks a name for a vector of features.

It is a few small arrays without tokenizer, session or thread: a value that its owner keeps, not
a model of the registry.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import BadArtifactError, InvalidArgumentError, NotReadyError
from .results import Float32


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """``weight @ x + bias``: weight float32[out, in], bias float32[out] or None."""

    weight: Float32
    bias: Float32 | None

    def apply(self, x: Float32) -> Float32:
        """Turn float32[in] into float32[out]."""
        product: Float32 = self.weight @ x
        return product if self.bias is None else product + self.bias


@dataclass(frozen=True, slots=True)
class Relu:
    """``max(x, 0)``."""

    def apply(self, x: Float32) -> Float32:
        """Return an array of the same shape."""
        return np.maximum(x, np.float32(0))


@dataclass(frozen=True, slots=True, eq=False)
class BatchNorm:
    """``(x − mean) / sqrt(variance + eps) · weight + bias``: float32[features], and a number."""

    weight: Float32
    bias: Float32
    mean: Float32
    variance: Float32
    eps: float

    def apply(self, x: Float32) -> Float32:
        """Return an array of the same shape."""
        scale = self.weight / np.sqrt(self.variance + np.float32(self.eps))
        normed: Float32 = (x - self.mean) * scale + self.bias
        return normed


@dataclass(frozen=True, slots=True)
class Dropout:
    """Nothing, outside of training, of which ``p`` tells."""

    p: float

    def apply(self, x: Float32) -> Float32:
        """Return ``x``."""
        return x


Layer: TypeAlias = Linear | Relu | BatchNorm | Dropout


@dataclass(frozen=True, slots=True, eq=False)
class MlpSelector:
    """A selector, immutable, used by many threads.

    ``layers`` turn float32[feature_dim] into one number for each of ``model_names``;
    ``hidden_sizes`` and ``dropout`` tell how it was trained and change no answer.
    """

    trained: bool
    model_names: tuple[str, ...]
    feature_dim: int
    hidden_sizes: tuple[int, ...]
    dropout: float
    layers: tuple[Layer, ...]

    def select(self, query: NDArray[np.float64]) -> str:
        """Return the name with the highest output for float64[feature_dim], the last of equals.

        Numbers are computed in float32. Raise NotReadyError if the selector is not trained,
        InvalidArgumentError for a query of another length or of no numbers, BadArtifactError
        if the outputs are no numbers.
        """
        if not self.trained:
            raise NotReadyError("the selector is not trained; read a trained one from its JSON")
        if query.shape != (self.feature_dim,):
            raise InvalidArgumentError(
                f"the query has {query.size} numbers, the selector takes {self.feature_dim}; pass "
                "as many"
            )
        with np.errstate(all="ignore"):  # what overflows is refused
            scores = query.astype(np.float32)
            if not np.isfinite(scores).all():
                raise InvalidArgumentError(
                    "the query holds NaN, infinity or a number beyond float32; pass finite numbers"
                )
            for layer in self.layers:
                scores = layer.apply(scores)
        if not np.isfinite(scores).all():
            raise BadArtifactError(
                "the selector's outputs hold NaN or infinity; its weights are damaged, train again"
            )
        return self.model_names[len(scores) - 1 - int(scores[::-1].argmax())]


UNTRAINED = MlpSelector(
    trained=False, model_names=(), feature_dim=0, hidden_sizes=(), dropout=0.0, layers=()
)
