"""Answers through C equal the references."""

import json
from typing import TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from libsemantic.engine.config import LongText, Output, Shorten
from libsemantic.ffi.codecs import CData

from .binding import MODELS, Library
from .harness import Models

TOLERANCE = 1e-4


class Case(TypedDict, total=False):
    text: str
    text_pair: str
    input_ids: list[int]
    token_count: int
    scored_token_count: int
    offsets_chars: list[list[int]]
    logits: list[float]
    embedding: list[float]


class TokenCase(TypedDict):
    text: str
    offsets_chars: list[list[int]]
    logits: list[list[float]]


def cases_of(folder: str) -> list[Case]:
    """Return all reference cases: short ones, odd ones, and texts around the limit, cut there."""
    cases: list[Case] = []
    for name in ("expected.json", "expected_more.json"):
        cases += json.loads((MODELS / folder / name).read_text())["cases"]
    assert len(cases) == 21
    return cases


def answer(
    library: Library, models: Models, name: str, folder: str, **values: object
) -> dict[str, CData]:
    """Call with all texts of a golden model, CUT (for pairs: the first text), and other options."""
    cases = cases_of(folder)
    arguments = models.arguments(name) | {"model": library.handle(models[folder]), "n": len(cases)}
    texts = library.texts(*(case["text"].encode() for case in cases))
    others = library.texts(*(case.get("text_pair", "").encode() for case in cases))
    for parameter in ("texts", "left"):
        arguments[parameter] = texts
    arguments["right"] = others
    values = {"long_text": int(LongText.CUT)} | values
    arguments["options"] = library.options("semantic_run_options", values)
    result = library.result_of(name, arguments)
    rows = result["rows"]
    expected = [case.get("token_count") or len(case["input_ids"]) for case in cases]
    assert rows["token_count"].tolist() == expected
    assert rows["scored_token_count"].tolist() == [min(128, count) for count in expected]
    assert rows["truncated"].tolist() == [int(count > 128) for count in expected]
    assert sum(rows["truncated"]) >= 2
    assert rows["status"].tolist() == [0] * len(cases)
    assert rows["message"] == ("",) * len(cases)
    return result


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(-1, keepdims=True)
    return shares


def test_classify_equals_the_reference(library: Library, models: Models) -> None:
    result = answer(library, models, "semantic_classify", "bert-seq")
    logits = np.array([case["logits"] for case in cases_of("bert-seq")])
    expected = softmax(logits)
    assert result["label_count"] == 7
    assert result["labels"][3] == "computer science"
    np.testing.assert_allclose(result["logits"], logits, atol=TOLERANCE)
    np.testing.assert_allclose(result["probabilities"], expected, atol=TOLERANCE)
    np.testing.assert_array_equal(result["label_index"], logits.argmax(1))
    np.testing.assert_allclose(result["score"], expected.max(1), atol=TOLERANCE)
    np.testing.assert_array_equal(result["selected"], expected >= 0.5)
    np.testing.assert_array_equal(result["class_max"], result["probabilities"])
    assert result["multi_label"] == 0
    assert len(set(result["label_index"].tolist())) > 2


def test_classify_pairs_equals_the_reference(library: Library, models: Models) -> None:
    result = answer(
        library,
        models,
        "semantic_classify_pairs",
        "bert-reranker",
        shorten=int(Shorten.FIRST),
    )
    logits = np.array([case["logits"] for case in cases_of("bert-reranker")])
    np.testing.assert_allclose(result["logits"], logits, atol=TOLERANCE)
    np.testing.assert_allclose(result["score"], 1 / (1 + np.exp(-logits[:, 0])), atol=TOLERANCE)
    assert result["label_index"].tolist() == [0] * len(logits)


def test_classify_tokens_equals_the_reference(library: Library, models: Models) -> None:
    result = answer(
        library, models, "semantic_classify_tokens", "bert-token", output=int(Output.TOKENS)
    )
    assert result["labels"][:3] == ("O", "B-EMAIL", "I-EMAIL")
    cases: list[TokenCase] = json.loads(json.dumps(cases_of("bert-token")))
    assert len(cases) == 21
    for row, case in enumerate(cases):
        items = slice(result["row_start"][row], result["row_start"][row + 1])
        # The special tokens at both ends are no part of the text.
        expected = softmax(np.array(case["logits"]))[1:-1]
        text = case["text"]
        offsets = [
            [len(text[:start].encode()), len(text[:end].encode())]
            for start, end in case["offsets_chars"][1:-1]
        ]
        assert np.stack([result["start"][items], result["end"][items]], 1).tolist() == offsets
        np.testing.assert_allclose(result["probabilities"][items], expected, atol=TOLERANCE)
        np.testing.assert_array_equal(result["label_index"][items], expected.argmax(1))
        assert set(result["row"][items].tolist()) <= {row}


# By the merge rule of the header from the reference logits, worked out by hand: label, bytes.
ENTITIES = {
    "My email is jane.roe@example.org and I live in Zürich": [
        ("PERSON", 0, 4),
        ("EMAIL", 4, 5),
        ("PERSON", 5, 8),
        ("EMAIL", 9, 11),
        ("PERSON", 12, 16),
        ("EMAIL", 16, 17),
        ("PERSON", 17, 28),
        ("EMAIL", 28, 29),
        ("PERSON", 29, 43),
        ("EMAIL", 47, 54),
    ],
    "El murciélago hindú comía feliz cardillo": [
        ("EMAIL", 0, 14),
        ("PERSON", 15, 21),
        ("EMAIL", 22, 28),
        ("EMAIL", 29, 34),
        ("PERSON", 35, 43),
    ],
}


def test_entities_are_byte_ranges_of_the_callers_text(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_classify_tokens") | {"n": len(ENTITIES)}
    arguments["texts"] = library.texts(*(text.encode() for text in ENTITIES))
    result = library.result_of("semantic_classify_tokens", arguments)
    assert result["labels"] == ("EMAIL", "PERSON", "LOCATION")
    found = [
        (result["labels"][label], start, end)
        for label, start, end in zip(
            result["label_index"], result["start"], result["end"], strict=True
        )
    ]
    assert found == [entity for entities in ENTITIES.values() for entity in entities]
    assert result["row_start"].tolist() == [0, 10, 15]
    assert result["row"].tolist() == [0] * 10 + [1] * 5
    assert result["probabilities"] is None
    # The mean over both tokens of the probabilities of B- and I- together.
    np.testing.assert_allclose(result["score"][0], 0.90895, atol=TOLERANCE)


@pytest.mark.parametrize("folder", ["bert-embed-mean", "bert-embed-cls"])
def test_embed_equals_the_reference(library: Library, models: Models, folder: str) -> None:
    result = answer(library, models, "semantic_embed", folder)
    expected = np.array([case["embedding"] for case in cases_of(folder)])
    assert result["dimension"] == expected.shape[1] == 64
    np.testing.assert_allclose(result["values"], expected, atol=TOLERANCE)


@pytest.mark.parametrize("folder", ["bert-seq", "bert-token", "bert-embed-cls"])
def test_count_tokens_equals_the_reference(library: Library, models: Models, folder: str) -> None:
    result = answer(library, models, "semantic_count_tokens", folder)
    rows = result["rows"]
    assert result["window_tokens"].tolist() == rows["scored_token_count"].tolist()
    assert result["row_start"].tolist() == list(range(22))


def test_windows_of_a_long_text(library: Library, models: Models) -> None:
    text = b"math " * 300
    arguments = models.arguments("semantic_count_tokens") | {"texts": library.texts(text)}
    arguments["options"] = library.options(
        "semantic_run_options", {"long_text": int(LongText.WINDOWS), "window_overlap": 26}
    )
    result = library.result_of("semantic_count_tokens", arguments)
    # 300 tokens, 126 fit beside the special ones, each window starts 100 after the one before.
    assert result["window_tokens"].tolist() == [128, 128, 102]
    assert result["window_start"].tolist() == [0, 500, 1000]
    assert result["window_end"].tolist() == [629, 1129, 1500]
    assert result["rows"]["token_count"].tolist() == [302]
    assert result["rows"]["scored_token_count"].tolist() == [302]
    assert result["rows"]["window_count"].tolist() == [3]


def test_token_pairs_label_the_second_text(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_classify_token_pairs")
    answer_text = "Zoë wrote é".encode()
    arguments["context"] = library.texts(b"contracts and taxes " * 3)
    arguments["answer"] = library.texts(answer_text)
    arguments["options"] = library.options("semantic_run_options", {"output": int(Output.TOKENS)})
    result = library.result_of("semantic_classify_token_pairs", arguments)
    pieces = [
        answer_text[start:end].decode()
        for start, end in zip(result["start"], result["end"], strict=True)
    ]
    assert "".join(pieces) == "Zoëwroteé"
    assert result["end"].max() == len(answer_text)


def test_an_empty_text_may_be_null(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_embed") | {"n": 2}
    arguments["texts"] = library.texts((None, 0), b"")
    result = library.result_of("semantic_embed", arguments)
    np.testing.assert_array_equal(result["values"][0], result["values"][1])
    expected = next(case for case in cases_of("bert-embed-mean") if case["text"] == "")
    np.testing.assert_allclose(result["values"][0], expected["embedding"], atol=TOLERANCE)
