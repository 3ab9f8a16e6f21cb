"""Which embedding model answers, and what is done with its vectors."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from libsemantic.engine.errors import InvalidArgumentError, TooLongError
from libsemantic.ffi.candle import vectors
from libsemantic.ffi.candle.routing import (
    EmbeddingModel,
    choose,
    choose_for_batch,
    choose_for_pair,
    count_words,
    named,
)

QWEN3, GEMMA, MMBERT, MULTIMODAL = EmbeddingModel
ABOVE_07 = math.nextafter(0.7, 1)
ABOVE_05 = math.nextafter(0.5, 1)


@pytest.mark.parametrize(
    ("words", "quality", "latency", "dimension", "model"),
    [
        (0, 0.0, 0.0, 0, QWEN3),
        (1, 0.7, 0.7, 0, QWEN3),
        (1, 0.7, ABOVE_07, 0, GEMMA),
        (1, ABOVE_07, ABOVE_07, 0, QWEN3),
        (512, 0.0, 1.0, 0, GEMMA),
        (512, 0.0, 0.0, 0, QWEN3),
        (513, 1.0, 0.0, 0, GEMMA),
        (2048, 1.0, 0.0, 0, GEMMA),
        (2049, 0.0, 1.0, 0, QWEN3),
        (32_768, 0.0, 1.0, 0, QWEN3),
        (1, 1.0, 0.5, 256, QWEN3),
        (1, 1.0, ABOVE_05, 256, GEMMA),
        (1, 1.0, ABOVE_05, 767, GEMMA),
        (1, 1.0, ABOVE_05, 768, QWEN3),
        (1, 1.0, ABOVE_05, 0, QWEN3),
        (1, 1.0, ABOVE_05, -256, QWEN3),
        (4096, 1.0, ABOVE_05, 1, GEMMA),
        (1, math.nan, math.nan, 256, QWEN3),
        (1, -5.0, 5.0, 0, GEMMA),
    ],
)
def test_length_and_priorities_choose(
    words: int, quality: float, latency: float, dimension: int, model: EmbeddingModel
) -> None:
    assert choose(words, quality, latency, dimension)[0] is model


def test_others_answer_for_a_model_that_is_not_loaded() -> None:
    assert tuple(choose(1, 1.0, 0.0, 0)) == (QWEN3, MMBERT, GEMMA)
    assert tuple(choose(1, 0.0, 1.0, 0)) == (GEMMA, MMBERT, QWEN3)


def test_texts_of_too_many_words_are_refused() -> None:
    with pytest.raises(TooLongError, match="32769 words"):
        choose(32_769, 0.5, 0.5, 0)
    with pytest.raises(TooLongError, match="32769 words"):
        choose_for_pair((1, 32_769))


def test_a_pair_is_routed_by_its_longer_text() -> None:
    pairs = ((1, 513), (513, 1), (3000, 513), (1, 1))
    assert [choose_for_pair(pair)[0] for pair in pairs] == [GEMMA, GEMMA, QWEN3, QWEN3]


def test_a_batch_is_routed_by_its_mean_size() -> None:
    assert choose_for_batch((0, 1024))[0] is GEMMA
    assert choose_for_batch((0, 1025))[0] is QWEN3
    assert choose_for_batch((0, 0))[0] is GEMMA


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 0), (" \t\n", 0), ("one", 1), ("  one two\u3000three\u00a0four\n", 4), ("天气很好", 1)],
)
def test_words_stand_between_white_space(text: str, words: int) -> None:
    assert count_words(text.encode()) == words


def test_models_are_named_exactly() -> None:
    names = ["qwen3", "gemma", "mmbert", "multimodal"]
    assert [named(name) for name in names] == [QWEN3, GEMMA, MMBERT, MULTIMODAL]
    for name in ("", "Qwen3", "qwen3 ", "auto", "bert"):
        with pytest.raises(InvalidArgumentError, match="qwen3, gemma, mmbert, multimodal"):
            named(name)
    with pytest.raises(InvalidArgumentError, match=r"qwen3, gemma$"):
        named("mmbert", (QWEN3, GEMMA))


@pytest.mark.parametrize(
    ("dimension", "served"), [(-(2**31), 4), (-1, 4), (0, 4), (1, 1), (3, 3), (4, 4)]
)
def test_a_vector_is_cut_to_the_dimension(dimension: int, served: int) -> None:
    assert vectors.check_dimension(dimension, 4) == served


@pytest.mark.parametrize("dimension", [5, 2**31 - 1])
def test_more_dimensions_than_there_are_are_refused(dimension: int) -> None:
    with pytest.raises(InvalidArgumentError, match="the model gives 4"):
        vectors.check_dimension(dimension, 4)


def test_what_is_cut_has_unit_length_again() -> None:
    whole = np.array([[0.6, 0.0, -0.8], [-0.6, 0.8, 0.0], [0.0, 0.0, 1.0]], np.float32)
    assert all(vectors.cut(whole, dimension) is whole for dimension in (3, 0, -1))
    with pytest.raises(InvalidArgumentError, match="the model gives 3"):
        vectors.cut(whole, 4)
    assert vectors.cut(whole, 2) == pytest.approx(np.array([[1, 0], [-0.6, 0.8], [0, 0]]))
    assert vectors.cut(whole, 1).tolist() == [[1], [-1], [0]]


def test_the_first_vector_is_compared_with_the_others() -> None:
    rows = np.array([[0.6, 0.8], [0.6, 0.8], [-0.6, -0.8], [0.8, -0.6], [0, 0], [1, 0]], np.float32)
    assert vectors.cosines(rows) == pytest.approx([1, -1, 0, 0, 0.6], abs=1e-7)
    assert vectors.cosines(rows[:1]) == []


def test_cosines_stay_in_their_range_and_are_equal_for_equal_vectors() -> None:
    for width in (1, 7, 64, 1023):
        row = np.random.default_rng(width).normal(size=(1, width)).astype(np.float32)
        whole = vectors.cut(np.hstack([row, row]), width)
        found = vectors.cosines(np.repeat(whole, 38, axis=0))
        assert found == [found[0]] * 37
        assert 1 - 1e-6 < found[0] <= 1


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, [1, 3, 0, 2, 4]),
        (-1, [1, 3, 0, 2, 4]),
        (1, [1]),
        (2, [1, 3]),
        (4, [1, 3, 0, 2]),
        (5, [1, 3, 0, 2, 4]),
        (6, [1, 3, 0, 2, 4]),
        (2**31 - 1, [1, 3, 0, 2, 4]),
    ],
)
def test_the_best_come_first_and_equals_keep_their_order(
    count: int, expected: Sequence[int]
) -> None:
    scores = [0.5, 0.9, 0.5, 0.9, -1.0]
    assert list(vectors.best(scores, count)) == expected
