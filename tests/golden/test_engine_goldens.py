"""The engine on the golden models: equal to transformers, alone and in batches."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray

from libsemantic.engine.config import LoadOptions, LongText, Output, RunOptions, Shorten
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import (
    Classification,
    Embedding,
    ModelInfo,
    Result,
    Rows,
    TokenClassification,
)

from .graph_runs import runner_of

HERE = Path(__file__).parent
MODELS = HERE / "models"
CLASSIFIERS = (
    "bert-seq",
    "roberta-seq",
    "xlm-roberta-seq",
    "distilbert-seq",
    "electra-seq",
    "deberta-v3-seq",
    "modernbert-seq-cls",
    "modernbert-seq-mean",
)
RERANKER = "bert-reranker"
NLI = "modernbert-nli"
PAIRED = (RERANKER, NLI)
EMBEDDERS = (
    "bert-embed-mean",
    "bert-embed-cls",
    "mmbert-embed-mean",
    "qwen3-embed-last",
    "gemma3-embed-mean",
)
TOKEN = "bert-token"
TOKENS = (
    TOKEN,
    "roberta-token",
    "deberta-v3-token",
    "modernbert-token",
    "modernbert-hallucination",
)
ALL = (*CLASSIFIERS, *PAIRED, *EMBEDDERS, *TOKENS)
FILES = ("expected.json", "expected_more.json")
TOLERANCE = 1e-4  # to transformers
SAME = 1e-5  # between one text alone and in a batch

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """One text of a golden file, and what transformers says of it."""

    text: str
    other: str | None
    token_count: int
    scored_token_count: int
    values: Array  # logits or embedding
    offsets: tuple[tuple[int, int], ...]  # of the scored tokens, in characters


@cache
def tokenizer_of(name: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(str(MODELS / name / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@cache
def golden(name: str, file: str) -> tuple[int, tuple[Case, ...]]:
    """Return the length limit and the cases of a golden file."""
    content = json.loads((MODELS / name / file).read_text())
    cases = []
    for case in content["cases"]:
        text, other = case["text"], case.get("text_pair")
        if file == "expected.json":  # it counts no tokens, but gives their ids
            whole = tokenizer_of(name).encode(text, other or None)
            counts = len(whole.ids), len(case["input_ids"])
        else:
            counts = case["token_count"], case["scored_token_count"]
        values = np.array(case.get("embedding", case.get("logits")))
        offsets = tuple((start, end) for start, end in case.get("offsets_chars", ()))
        cases.append(Case(text, other, *counts, values, offsets))
    limit: int = content.get("max_tokens", content.get("max_length"))
    return limit, tuple(cases)


def load(registry: Registry, name: str, file: str) -> tuple[int, tuple[Case, ...]]:
    """Load a model at the length of a golden file: its own length, or the position limit."""
    limit, cases = golden(name, file)
    options = LoadOptions(max_tokens=0 if file == "expected.json" else limit)
    handle = registry.load(str(MODELS / name), options)
    assert registry.info(handle).max_tokens == limit
    return handle, cases


def options_for(name: str, output: Output = Output.ENTITIES) -> RunOptions:
    """Options of the reference: cut, and of a pair the left part."""
    shorten = Shorten.FIRST if name in PAIRED else Shorten.AUTO
    return RunOptions(long_text=LongText.CUT, shorten=shorten, output=output)


def answer(registry: Registry, handle: int, name: str, cases: Sequence[Case]) -> Result:
    """Call the function for the model's task with all cases at once."""
    texts, options = [case.text for case in cases], options_for(name)
    if name in PAIRED:
        others = [case.other for case in cases]
        return registry.classify_pairs(handle, texts, others, options)
    if name in TOKENS:
        tokens = options_for(name, Output.TOKENS)
        return registry.classify_tokens(handle, texts, tokens)
    if name in EMBEDDERS:
        return registry.embed(handle, texts, options)
    return registry.classify(handle, texts, options)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def check_rows(rows: Rows, cases: Sequence[Case]) -> None:
    assert rows.token_count == tuple(case.token_count for case in cases)
    assert rows.scored_token_count == tuple(case.scored_token_count for case in cases)
    assert rows.truncated == tuple(
        int(case.scored_token_count < case.token_count) for case in cases
    )
    assert rows.window_count == (1,) * len(cases)
    assert rows.errors == (None,) * len(cases)
    assert rows.status == (0,) * len(cases)


def byte_ranges(case: Case) -> list[tuple[int, int]]:
    """Return the byte ranges of the text's own tokens."""
    return [
        (len(case.text[:start].encode()), len(case.text[:end].encode()))
        for start, end in case.offsets[1:-1]
    ]


# Equal to transformers


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", [*CLASSIFIERS, NLI])
def test_classification_equals_transformers(registry: Registry, name: str, file: str) -> None:
    handle, cases = load(registry, name, file)
    result = answer(registry, handle, name, cases)
    assert isinstance(result, Classification)
    check_rows(result.rows, cases)
    expected = np.stack([case.values for case in cases])
    probabilities = softmax(expected)
    np.testing.assert_allclose(result.logits, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(result.probabilities, probabilities, rtol=0, atol=TOLERANCE)
    table = json.loads((MODELS / name / "config.json").read_text())["id2label"]
    names = [table[str(index)] for index in expected.argmax(axis=1)]
    assert [result.labels[index] for index in result.label_index] == names
    assert len(set(names)) >= min(3, len(table))
    np.testing.assert_allclose(result.score, probabilities.max(axis=1), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(result.class_max, result.probabilities)
    assert not result.class_window.any()
    assert not result.multi_label


@pytest.mark.parametrize("file", FILES)
def test_the_reranker_equals_transformers(registry: Registry, file: str) -> None:
    handle, cases = load(registry, RERANKER, file)
    result = answer(registry, handle, RERANKER, cases)
    assert isinstance(result, Classification)
    check_rows(result.rows, cases)
    expected = np.stack([case.values for case in cases])
    assert expected.shape == (len(cases), 1)
    np.testing.assert_allclose(result.logits, expected, rtol=0, atol=TOLERANCE)
    sigmoid = 1 / (1 + np.exp(-expected))
    np.testing.assert_allclose(result.probabilities, sigmoid, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(result.score, sigmoid[:, 0], rtol=0, atol=TOLERANCE)
    assert result.label_index.tolist() == [0] * len(cases)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", EMBEDDERS)
def test_embeddings_equal_transformers(registry: Registry, name: str, file: str) -> None:
    handle, cases = load(registry, name, file)
    result = answer(registry, handle, name, cases)
    assert isinstance(result, Embedding)
    check_rows(result.rows, cases)
    expected = np.stack([case.values for case in cases])
    assert result.values.shape == expected.shape == (len(cases), 64)
    assert result.values.dtype == np.float32
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(np.linalg.norm(result.values, axis=1), 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", TOKENS)
def test_labelled_tokens_equal_transformers(registry: Registry, name: str, file: str) -> None:
    handle, cases = load(registry, name, file)
    result = answer(registry, handle, name, cases)
    assert isinstance(result, TokenClassification)
    check_rows(result.rows, cases)
    own = [case.values[1:-1] for case in cases]
    assert np.diff(result.row_start).tolist() == [len(values) for values in own]
    probabilities = softmax(np.concatenate(own))
    assert result.probabilities is not None
    np.testing.assert_allclose(result.probabilities, probabilities, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(result.label_index, probabilities.argmax(axis=1))
    np.testing.assert_allclose(result.score, probabilities.max(axis=1), rtol=0, atol=TOLERANCE)
    table = json.loads((MODELS / name / "config.json").read_text())["id2label"]
    assert result.labels == tuple(table.values())
    ranges = [each for case in cases for each in byte_ranges(case)]
    assert list(zip(result.start.tolist(), result.end.tolist(), strict=True)) == ranges
    rows = [row for row, values in enumerate(own) for _ in values]
    assert result.row.tolist() == rows


# Entities, derived from the reference logits by make_expected_entities.py

KINDS = ("EMAIL", "PERSON", "LOCATION")


def test_the_expected_entities_come_from_their_generator() -> None:
    generator = HERE / "make_expected_entities.py"
    made = subprocess.run([sys.executable, generator], capture_output=True, check=True).stdout
    assert made == (HERE / "expected_entities.json").read_bytes()


@pytest.mark.parametrize("file", FILES)
def test_entities_are_merged_by_the_rule(registry: Registry, file: str) -> None:
    handle, cases = load(registry, TOKEN, file)
    expected = json.loads((HERE / "expected_entities.json").read_text())[file]
    result = registry.classify_tokens(handle, [case.text for case in cases], options_for(TOKEN))
    check_rows(result.rows, cases)
    assert result.labels == KINDS
    assert result.probabilities is None
    found = [
        (row, result.labels[label], start, end)
        for row, label, start, end in zip(
            result.row.tolist(),
            result.label_index.tolist(),
            result.start.tolist(),
            result.end.tolist(),
            strict=True,
        )
    ]
    flat = [(row, entity) for row, entities in enumerate(expected) for entity in entities]
    assert found == [(row, each["label"], each["start"], each["end"]) for row, each in flat]
    assert {label for _, label, _, _ in found} == set(KINDS)
    assert np.diff(result.row_start).tolist() == [len(entities) for entities in expected]
    scores = [entity["score"] for _, entity in flat]
    np.testing.assert_allclose(result.score, scores, rtol=0, atol=TOLERANCE)
    for row, _, start, end in found:
        covered = cases[row].text.encode()[start:end].decode()  # never inside a character
        assert covered == covered.strip() != ""


def test_the_threshold_drops_entities_below_it(registry: Registry) -> None:
    handle, cases = load(registry, TOKEN, "expected.json")
    texts = [case.text for case in cases]
    expected = json.loads((HERE / "expected_entities.json").read_text())["expected.json"]
    scores = sorted(entity["score"] for entities in expected for entity in entities)
    middle = len(scores) // 2
    threshold = (scores[middle - 1] + scores[middle]) / 2
    assert scores[middle] - scores[middle - 1] > 2 * TOLERANCE
    result = registry.classify_tokens(handle, texts, RunOptions(threshold=threshold))
    assert result.item_count == len(scores) - middle
    assert result.score.min() > threshold


# Alone and together


def columns(result: Result) -> dict[str, NDArray[np.float32 | np.integer]]:
    return {
        field.name: getattr(result, field.name)
        for field in fields(result)
        if isinstance(getattr(result, field.name), np.ndarray) and field.name != "row_start"
    }


def check_same(batch: Result, singles: Sequence[Result]) -> None:
    """Check that a batch's answer is the singles' answers, one after the other."""
    assert batch.rows.token_count == tuple(each.rows.token_count[0] for each in singles)
    parts = [columns(each) for each in singles]
    for name, values in columns(batch).items():
        together = np.concatenate([part[name] for part in parts])
        if name == "row":  # of singles always 0
            together = np.concatenate(
                [np.full(len(part[name]), row) for row, part in enumerate(parts)]
            )
        assert values.shape == together.shape
        if values.dtype == np.float32:
            np.testing.assert_allclose(values, together, rtol=0, atol=SAME, err_msg=name)
        else:
            np.testing.assert_array_equal(values, together, err_msg=name)


def batches(info: ModelInfo, registry: Registry) -> int:
    """Return the runs that the model made."""
    stats = registry.stats()
    return sum(
        int(count)
        for name, count in zip(stats.call_model_name, stats.batches, strict=True)
        if name == info.name
    )


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_mixed_lengths_equals_its_texts_alone(registry: Registry, name: str) -> None:
    handle, short = load(registry, name, "expected.json")
    cases = [*golden(name, "expected_more.json")[1], *short]
    singles = [answer(registry, handle, name, [case]) for case in cases]
    before = batches(registry.info(handle), registry)
    assert before == len(cases)
    check_same(answer(registry, handle, name, cases), singles)
    # Some ran together, so that padding was there to go wrong.
    assert batches(registry.info(handle), registry) - before < len(cases)
    check_same(answer(registry, handle, name, cases[::-1]), singles[::-1])


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_equal_lengths_equals_its_texts_alone(registry: Registry, name: str) -> None:
    handle, _ = load(registry, name, "expected.json")
    words = ["math code law", "law code math", "code math law", "law math code", "math math code"]
    texts = [text for text in words if count(name, text) == count(name, words[0])]
    assert len(texts) >= 4
    cases = [Case(text, "the router", 0, 0, np.empty(0), ()) for text in texts]
    singles = [answer(registry, handle, name, [case]) for case in cases]
    before = batches(registry.info(handle), registry)
    result = answer(registry, handle, name, cases)
    assert batches(registry.info(handle), registry) == before + 1
    check_same(result, singles)
    # The texts differ, so an order that is lost would show.
    first = next(values for values in columns(result).values() if values.dtype == np.float32)
    assert len(np.unique(first.round(4), axis=0)) > 2


def count(name: str, text: str) -> int:
    return len(tokenizer_of(name).encode(text).ids)


def test_the_reranker_reads_both_texts_in_their_order(registry: Registry) -> None:
    handle, _ = load(registry, RERANKER, "expected.json")
    there = registry.classify_pairs(handle, ["math code"], ["the law"])
    back = registry.classify_pairs(handle, ["the law"], ["math code"])
    alone = registry.classify(handle, ["math code"])
    empty = registry.classify_pairs(handle, ["math code"], [""])
    assert abs(float(there.logits[0, 0] - back.logits[0, 0])) > 0.01
    assert abs(float(there.logits[0, 0] - alone.logits[0, 0])) > 0.01
    # As in transformers: an empty right text is no second text.
    np.testing.assert_array_equal(empty.logits, alone.logits)
    assert there.score[0] == pytest.approx(1 / (1 + math.exp(-float(there.logits[0, 0]))), abs=1e-6)


# Pairs on models whose goldens are single texts: the graphs are equal to transformers, so what is
# left is that both texts reach them as the tokenizer's own pair encoding.

PAIR = "What is the derivative of x squared?", "Send the invoice to jane"


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_any_classifier_reads_pairs(registry: Registry, name: str) -> None:
    handle, _ = load(registry, name, "expected.json")
    result = registry.classify_pairs(handle, [PAIR[0]], [PAIR[1]])
    ids = tokenizer_of(name).encode(*PAIR).ids
    np.testing.assert_allclose(
        result.logits[0], runner_of(name, fused=True).one(ids), rtol=0, atol=SAME
    )
    assert result.rows.token_count == (len(ids),)
    assert np.abs(result.logits - registry.classify(handle, [PAIR[0]]).logits).max() > 0.01


@pytest.mark.parametrize("name", TOKENS)
def test_any_token_model_marks_the_second_text_of_a_pair(registry: Registry, name: str) -> None:
    handle, _ = load(registry, name, "expected.json")
    options = RunOptions(output=Output.TOKENS)
    result = registry.classify_token_pairs(handle, [PAIR[0]], [PAIR[1]], options)
    encoding = tokenizer_of(name).encode(*PAIR)
    logits = runner_of(name, fused=True).one(encoding.ids)
    own = [index for index, part in enumerate(encoding.sequence_ids) if part == 1]
    assert result.probabilities is not None
    np.testing.assert_allclose(
        result.probabilities, softmax(logits[own].astype(np.float64)), rtol=0, atol=SAME
    )
    ranges = [
        (len(PAIR[1][:start]), len(PAIR[1][:end])) for start, end in np.array(encoding.offsets)[own]
    ]
    assert list(zip(result.start.tolist(), result.end.tolist(), strict=True)) == ranges
