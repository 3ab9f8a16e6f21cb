"""Rows: how many there may be, how each arrives, and how one fails alone."""

import json

import numpy as np
import pytest

from libsemantic.engine.config import MAX_ROWS, LongText, RunOptions, Shorten
from libsemantic.engine.errors import Status
from libsemantic.engine.registry import REGISTRY
from libsemantic.ffi.codecs import CData

from .binding import ROW_BY_ROW, Library, having, pointers
from .harness import Models, refused

SENTENCE = "Zoë and café wrote to jane.roe@example.org 😀".encode()


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_no_rows(library: Library, models: Models, name: str) -> None:
    for null in (False, True):
        arguments = models.arguments(name) | {"n": 0}
        if null:
            arguments.update(
                (p.name, library.ffi.NULL) for p in pointers(name) if p.type == "semantic_text"
            )
        result = library.result_of(name, arguments)
        assert result["rows"]["count"] == 0
        assert result["generation"] == 1
        for field in ("item_count", "window_total"):
            assert result.get(field, 0) == 0
        if "row_start" in result:
            assert result["row_start"].tolist() == [0]


@pytest.mark.parametrize("name", having("n"))
@pytest.mark.parametrize("count", [MAX_ROWS + 1, 2**60, 2**64 - 1])
def test_too_many_rows(library: Library, models: Models, name: str, count: int) -> None:
    # The array has one row: reading beyond it would crash or answer otherwise.
    arguments = models.arguments(name) | {"n": count}
    assert f"{count} rows" in refused(library, name, arguments)


def test_as_many_rows_as_allowed(library: Library, models: Models) -> None:
    arguments = models.arguments("semantic_count_tokens")
    arguments |= {"texts": library.texts(*[b""] * MAX_ROWS), "n": MAX_ROWS}
    result = library.result_of("semantic_count_tokens", arguments)
    assert result["rows"]["token_count"].tolist() == [2] * MAX_ROWS


def same(through_c: dict[str, CData], python: object) -> None:
    """Require that a result read from C equals the engine's, field by field."""
    for field, value in through_c.items():
        expected = getattr(python, field)
        if isinstance(value, dict):
            same(value, expected)
        elif isinstance(value, np.ndarray):
            expected = np.asarray(expected)
            assert value.shape == expected.shape, field
            np.testing.assert_array_equal(value, expected.astype(value.dtype), err_msg=field)
        else:
            assert value == expected, field


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_every_field_of_a_result_arrives(library: Library, models: Models, name: str) -> None:
    """All fields, with failed rows and windows among them, are those of the engine's answer."""
    rows: list[bytes | None] = [SENTENCE, b"\xff", None, b"", b"a \0 b", b"math word " * 200]
    arguments = models.arguments(name) | {"n": len(rows)}
    others = [b"a router", b"two", b"", b"x", b"and \xe9", b"taxes"]
    texts = library.texts(*((None, 3) if row is None else row for row in rows))
    for parameter in ("texts", "left", "context"):
        arguments[parameter] = texts
    for parameter in ("right", "answer"):
        arguments[parameter] = library.texts(*others)
    pairs = "pairs" in name
    options = RunOptions(
        long_text=LongText.WINDOWS, shorten=Shorten.FIRST if pairs else Shorten.AUTO
    )
    arguments["options"] = library.options(
        "semantic_run_options",
        {"long_text": int(options.long_text), "shorten": int(options.shorten)},
    )
    assert library.call(name, arguments) == Status.PARTIAL
    result = library.take(library.out(name, arguments))

    call = getattr(REGISTRY, name.removeprefix("semantic_"))
    same(result, call(arguments["model"].id, rows, *([others] if pairs else []), options))
    failed = {1: "not UTF-8 at byte 0", 2: "NULL but has a length"}
    if pairs:
        failed[4] = "not UTF-8 at byte 4"
    for row in range(len(rows)):
        good = row not in failed
        assert result["rows"]["status"][row] == (Status.OK if good else Status.INVALID_ARGUMENT)
        assert failed.get(row, "") in result["rows"]["message"][row]
        assert bool(result["rows"]["message"][row]) != good
        assert (result["rows"]["token_count"][row] > 0) == good
        for field in ("score", "probabilities", "logits", "class_max", "values"):
            if field in result and "row_start" not in result:
                assert np.isnan(result[field][row]).all() != good
        if "label_index" in result and "row_start" not in result:
            assert (result["label_index"][row] == -1) != good
    error = arguments["error"]
    assert error.status == Status.PARTIAL
    assert error.input_index == 1
    assert library.message(error) == result["rows"]["message"][1]
    assert result["rows"]["window_count"][5] > 1


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_when_every_row_fails_there_is_no_result(
    library: Library, models: Models, name: str
) -> None:
    arguments = models.arguments(name) | {"n": 2}
    bad = library.texts(b"ok \xf0\x9f", b"\xff")
    arguments |= dict.fromkeys(("texts", "left", "context", "right", "answer"), bad)
    assert library.call(name, arguments) == Status.INVALID_ARGUMENT
    assert library.out(name, arguments) == library.ffi.NULL
    assert arguments["error"].status == Status.INVALID_ARGUMENT
    assert arguments["error"].input_index == 0
    assert "not UTF-8 at byte 3" in library.message(arguments["error"])


@pytest.mark.parametrize("name", ROW_BY_ROW)
@pytest.mark.parametrize("length", [1 << 20 | 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_length_beyond_all_sense_fails_its_row_unread(
    library: Library, models: Models, name: str, length: int
) -> None:
    arguments = models.arguments(name) | {"n": 2}
    texts = library.texts(b"fine", (b"short", length))
    arguments |= dict.fromkeys(("texts", "left", "context", "right", "answer"), texts)
    assert library.call(name, arguments) == Status.PARTIAL
    result = library.take(library.out(name, arguments))
    assert result["rows"]["status"].tolist() == [Status.OK, Status.TOO_LONG]
    assert "max_text_bytes is 1048576" in result["rows"]["message"][1]


def test_nul_is_a_character_like_any_other(library: Library, models: Models) -> None:
    text = "math \0 jane@example.org"
    arguments = models.arguments("semantic_classify") | {"n": 2}
    arguments["texts"] = library.texts(text.encode(), text.split("\0")[0].encode())
    result = library.result_of("semantic_classify", arguments)
    counts = result["rows"]["token_count"].tolist()
    assert counts[0] > counts[1] + 3  # what follows the NUL was read


def test_info_list_and_statistics_arrive(library: Library, models: Models) -> None:
    for folder in ("bert-seq", "bert-token", "bert-embed-mean"):
        arguments = models.arguments("semantic_get_model_info")
        arguments["model"] = library.handle(models[folder])
        info = library.result_of("semantic_get_model_info", arguments)
        same(info, REGISTRY.info(models[folder]))
        assert info["name"] == f"golden {folder}"
        assert info["family"] == "bert"
        assert info["source"] == "safetensors"
        assert json.loads(info["json"])["labels"] == list(info["labels"])
    same(
        library.result_of("semantic_list_models", models.arguments("semantic_list_models")),
        REGISTRY.list_models(),
    )
    library.result_of("semantic_classify", models.arguments("semantic_classify"))
    stats = library.result_of("semantic_get_stats", models.arguments("semantic_get_stats"))
    assert stats.pop("results_unfreed") == 0
    assert stats.pop("results_unfreed_bytes") == 0
    stats.pop("log_dropped")
    same(stats, REGISTRY.stats())
    assert stats["models_ready"] == 3
    assert stats["running"] == 1
