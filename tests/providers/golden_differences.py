"""How far the golden models are from transformers on a device, in a precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a device may be from transformers.

    ``float32`` bounds any value in FP32. In a lower precision, which must differ by more than
    ``lower``: logits by a share of their range, probabilities of tokens, the share of their labels
    that agree, and the cosine of embeddings.
    """

    float32: float
    lower: float
    logits: float
    token_values: float
    token_labels: float
    cosine: float


# Of tiny models with random weights. Kernels of a GPU sum in another order than those of a CPU, so
# that float32 has more room; float16 is held to what tests/golden/test_half_graphs.py holds it to.
_GPU: Final = Tolerance(
    float32=5e-4, lower=1e-5, logits=0.03, token_values=0.2, token_labels=0.97, cosine=0.999
)
TOLERANCES: Final = {
    "openvino": Tolerance(
        float32=1e-4, lower=1e-4, logits=0.05, token_values=0.5, token_labels=0.94, cosine=0.999
    ),
    "cuda": _GPU,
    "tensorrt": _GPU,
}


def check_golden(
    registry: Registry, name: str, file: str, device: str, precision: Precision
) -> None:
    """Hold a golden model on a device, in a precision, to the row of the device."""
    found, allowed = difference(registry, name, file, device, precision), TOLERANCES[device]
    if precision is Precision.FP32:
        assert found.values < allowed.float32
        assert found.agreement == 1.0
        return
    assert found.values > allowed.lower  # else it is float32
    if name in EMBEDDERS:
        assert found.cosine > allowed.cosine
    elif name in TOKENS:
        assert found.values < allowed.token_values
        assert found.agreement > allowed.token_labels
    else:
        assert found.values < allowed.logits * found.spread


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
