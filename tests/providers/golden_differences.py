"""How far the golden models are from transformers on a device, in a precision."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libsemantic.engine.config import LoadOptions, Precision
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Classification, Embedding, TokenClassification
from tests.golden.test_engine_goldens import (
    EMBEDDERS,
    MODELS,
    TOKENS,
    Case,
    answer,
    golden,
    softmax,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """Of all texts of a golden file: the largest differences, the agreement of labels.

    ``values`` is that of logits, of tokens' probabilities, or of embeddings' elements;
    ``cosine`` the lowest of embeddings (1 elsewhere); ``agreement`` the share of equal labels.
    """

    values: float
    cosine: float
    agreement: float
    spread: float  # the range of the reference's values


def difference(
    registry: Registry, name: str, file: str, device: str, precision: Precision
) -> Difference:
    """Answer the texts of a golden file, all in one call, and compare with the reference."""
    limit, cases = golden(name, file)
    options = LoadOptions(
        device=device, precision=precision, max_tokens=0 if file == "expected.json" else limit
    )
    handle = registry.load(str(MODELS / name), options)
    found, expected = _values(registry, handle, name, cases)
    registry.unload(handle, 10_000)
    cosine, agreement = 1.0, 1.0
    if name in EMBEDDERS:
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        cosine = float(((found * expected).sum(axis=1) / lengths).min())
    elif found.shape[1] > 1:
        agreement = float((found.argmax(axis=1) == expected.argmax(axis=1)).mean())
    return Difference(
        float(np.abs(found - expected).max()),
        cosine,
        agreement,
        float(expected.max() - expected.min()),
    )


def _values(
    registry: Registry, handle: int, name: str, cases: Sequence[Case]
) -> tuple[Array, Array]:
    result = answer(registry, handle, name, cases)
    assert result.rows.status == (0,) * len(cases)
    if isinstance(result, TokenClassification):
        assert name in TOKENS
        assert result.probabilities is not None
        expected = softmax(np.concatenate([case.values[1:-1] for case in cases]))
        return result.probabilities.astype(np.float64), expected
    expected = np.stack([case.values for case in cases])
    if isinstance(result, Embedding):
        return result.values.astype(np.float64), expected
    assert isinstance(result, Classification)
    return result.logits.astype(np.float64), expected
