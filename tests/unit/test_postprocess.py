"""Probabilities, pooling and window aggregation against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from libsemantic.engine.errors import BadArtifactError, UnsupportedError
from libsemantic.engine.postprocess import (
    POOLING_MODES,
    FloatArray,
    aggregate_windows,
    l2_normalize,
    pooling,
    require_finite,
    sigmoid,
    softmax,
    weighted_mean,
)

FLOATS = st.floats(-1e4, 1e4, width=32)


def reference_softmax(row: list[float]) -> list[float]:
    top = max(row)
    parts = [math.exp(value - top) for value in row]
    return [part / sum(parts) for part in parts]


def reference_pool(mode: str, vectors: list[list[float]]) -> list[float]:
    """Pool one text as sentence-transformers' Pooling.forward does, one column at a time."""
    result = []
    for column in range(len(vectors[0])):
        values = [row[column] for row in vectors]
        weights = [at + 1 for at in range(len(vectors))]
        result.append(
            {
                "pooling_mode_cls_token": vectors[0][column],
                "pooling_mode_max_tokens": max(values),
                "pooling_mode_mean_tokens": sum(values) / len(values),
                "pooling_mode_mean_sqrt_len_tokens": sum(values) / math.sqrt(len(values)),
                "pooling_mode_weightedmean_tokens": sum(
                    weight * value for weight, value in zip(weights, values, strict=True)
                )
                / sum(weights),
                "pooling_mode_lasttoken": values[-1],
            }[mode]
        )
    return result


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3), elements=FLOATS))
def test_softmax(logits: FloatArray) -> None:
    found = softmax(logits)
    assert found.dtype == np.float32
    assert found.shape == logits.shape
    wanted = [reference_softmax(row) for row in logits.reshape(-1, logits.shape[-1]).tolist()]
    np.testing.assert_allclose(found.reshape(-1, logits.shape[-1]), wanted, rtol=1e-6, atol=1e-37)


def test_softmax_of_huge_logits() -> None:
    logits = np.array([[3e38, 3e38, -3e38], [-3e38, 0, 1]], np.float32)
    first, second = softmax(logits).tolist()
    assert first == [0.5, 0.5, 0.0]
    assert second == pytest.approx([0.0, 0.26894142, 0.73105858])


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=2), elements=FLOATS))
def test_sigmoid(logits: FloatArray) -> None:
    found = sigmoid(logits)
    assert found.dtype == np.float32
    wanted = [
        1 / (1 + math.exp(-value)) if value > -700 else 0.0 for value in logits.ravel().tolist()
    ]
    np.testing.assert_allclose(found.ravel(), wanted, rtol=1e-6, atol=1e-37)


def test_sigmoid_at_the_ends() -> None:
    logits = np.array([-3e38, -100, 0, 100, 3e38], np.float32)
    assert sigmoid(logits).tolist() == pytest.approx([0.0, 3.7835e-44, 0.5, 1.0, 1.0], abs=1e-45)


def test_require_finite() -> None:
    require_finite(np.array([3e38, -3e38], np.float32))
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(BadArtifactError, match="output holds NaN or infinity"):
            require_finite(np.array([[0.0, bad]], np.float32))
        with pytest.raises(BadArtifactError, match="output holds NaN or infinity"):
            l2_normalize(np.array([1.0, bad], np.float32))


HIDDEN = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 4)),
    elements=st.floats(-8, 8, width=16),
)


@given(HIDDEN, st.sets(st.sampled_from(POOLING_MODES), min_size=1))
def test_pooling(hidden: FloatArray, modes: set[str]) -> None:
    found = pooling(sorted(modes))(hidden)
    assert found.dtype == np.float32
    wanted: list[float] = []
    # The order in which sentence-transformers joins what is on.
    for mode in (
        "pooling_mode_cls_token",
        "pooling_mode_max_tokens",
        "pooling_mode_mean_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens",
        "pooling_mode_lasttoken",
    ):
        if mode in modes:
            wanted += reference_pool(mode, hidden.tolist())
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_pooling_refusals() -> None:
    with pytest.raises(UnsupportedError, match="pooling pooling_mode_sum is unknown"):
        pooling(["pooling_mode_sum"])
    with pytest.raises(UnsupportedError, match="without a mode"):
        pooling([])


@pytest.mark.parametrize(
    ("vector", "unit"),
    [
        ([3, 4], [0.6, 0.8]),
        ([0, 0], [0, 0]),
        ([3e30, -4e30], [0.6, -0.8]),
        ([3e-30, 4e-30], [0.6, 0.8]),
    ],
)
def test_l2_normalize(vector: list[float], unit: list[float]) -> None:
    found = l2_normalize(np.array(vector, np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, unit, rtol=1e-6)


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_aggregate_windows(windows: int, labels: int, data: st.DataObject) -> None:
    shape = (windows, labels)
    # Few distinct values, so that ties are frequent.
    rows = data.draw(hnp.arrays(np.float32, shape, elements=st.sampled_from([0.0, 0.25, 0.75])))
    weights = data.draw(hnp.arrays(np.int64, windows, elements=st.integers(1, 500)))
    found = aggregate_windows(rows, weights)
    assert found.mean.dtype == found.class_max.dtype == np.float32
    assert found.class_window.dtype == np.int32
    for label in range(labels):
        column = rows[:, label].tolist()
        total = sum(value * weight for value, weight in zip(column, weights.tolist(), strict=True))
        assert found.mean[label] == pytest.approx(total / sum(weights.tolist()), rel=1e-6)
        assert found.class_max[label] == max(column)
        assert found.class_window[label] == column.index(max(column))


def test_window_means_sum_to_one() -> None:
    rows = softmax(np.random.default_rng(5).normal(0, 4, (800, 30)).astype(np.float32))
    mean = aggregate_windows(rows, np.arange(1, 801)).mean
    assert mean.sum(dtype=np.float64) == pytest.approx(1.0, abs=1e-6)
    assert aggregate_windows(rows[:1], np.array([7])).mean.tolist() == rows[0].tolist()


def test_weighted_mean_of_vectors() -> None:
    rows = np.array([[1, -4], [4, 2]], np.float32)
    assert weighted_mean(rows, np.array([2, 1])).tolist() == [2, -2]
