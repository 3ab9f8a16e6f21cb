"""Probabilities, pooling and window aggregation against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from libsemantic.engine.errors import BadArtifactError, InvalidArgumentError, UnsupportedError
from libsemantic.engine.postprocess import (
    POOLING_MODES,
    FloatArray,
    IntArray,
    aggregate_windows,
    cut_dimension,
    l2_normalize,
    pool,
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


def reference_pool(mode: str, vectors: list[list[float]], mask: list[int]) -> list[float]:
    """Pool one text as sentence-transformers' Pooling.forward does, one column at a time."""
    result = []
    for column in range(len(vectors[0])):
        kept = [(at, row[column]) for at, row in enumerate(vectors) if mask[at]]
        values = [value for _, value in kept]
        weights = [at + 1 for at, _ in kept]
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
    require_finite(np.array([3e38, -3e38], np.float32), "logits")
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(BadArtifactError, match="output logits holds NaN or infinity"):
            require_finite(np.array([[0.0, bad]], np.float32), "logits")


@st.composite
def hidden_states(draw: st.DrawFn) -> tuple[FloatArray, IntArray]:
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4)))
    values = st.floats(-8, 8, width=16)
    hidden = draw(hnp.arrays(np.float32, shape, elements=values))
    mask = draw(hnp.arrays(np.int64, shape[:2], elements=st.integers(0, 1)))
    mask[:, draw(st.integers(0, shape[1] - 1))] = 1
    return hidden, mask


@given(hidden_states(), st.sets(st.sampled_from(POOLING_MODES), min_size=1))
def test_pooling(states: tuple[FloatArray, IntArray], modes: set[str]) -> None:
    hidden, mask = states
    found = pool(hidden, mask, sorted(modes))
    assert found.dtype == np.float32
    assert found.shape == (len(hidden), hidden.shape[2] * len(modes))
    for row, vectors, marks in zip(found, hidden.tolist(), mask.tolist(), strict=True):
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
                wanted += reference_pool(mode, vectors, marks)
        np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-5)


def test_pooling_ignores_padding() -> None:
    hidden = np.array([[[1, 10], [3, -10], [900, 900]]], np.float32)
    mask = np.array([[1, 1, 0]], np.int64)
    assert pool(hidden, mask, POOLING_MODES)[0].tolist() == pytest.approx(
        [1, 10, 3, 10, 2, 0, 4 / math.sqrt(2), 0, 7 / 3, -10 / 3, 3, -10]
    )


def test_pooling_refusals() -> None:
    hidden, mask = np.zeros((2, 2, 1), np.float32), np.array([[1, 1], [0, 0]], np.int64)
    with pytest.raises(InvalidArgumentError, match="no tokens to pool"):
        pool(hidden, mask, ["pooling_mode_mean_tokens"])
    with pytest.raises(UnsupportedError, match="pooling pooling_mode_sum is unknown"):
        pool(hidden, mask, ["pooling_mode_sum"])
    with pytest.raises(UnsupportedError, match="without a mode"):
        pool(hidden, mask, [])


def test_cut_dimension() -> None:
    vectors = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert cut_dimension(vectors, 3).tolist() == [[0, 1, 2], [4, 5, 6]]
    assert cut_dimension(vectors, 4).tolist() == cut_dimension(vectors, 0).tolist()
    with pytest.raises(InvalidArgumentError, match="dimension is 5, but the model gives 4"):
        cut_dimension(vectors, 5)


def test_l2_normalize() -> None:
    vectors = np.array([[3, 4], [0, 0], [3e30, -4e30], [3e-30, 4e-30]], np.float32)
    found = l2_normalize(vectors)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0], [0.6, -0.8], [0.6, 0.8]], rtol=1e-6)


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
