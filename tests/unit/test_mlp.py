"""Selectors: what their JSON may say, what they answer, and that it comes back as it was."""

import copy
import json
from typing import Any

import numpy as np
import pytest

from libsemantic.engine.errors import (
    BadArtifactError,
    InvalidArgumentError,
    NotReadyError,
    TooLongError,
)
from libsemantic.engine.mlp import UNTRAINED, MlpSelector
from libsemantic.engine.mlp_json import MAX_JSON_BYTES, read_selector, write_selector

TRAINED: dict[str, Any] = {
    "algorithm": "mlp",
    "trained": True,
    "model_names": ["small", "large", "größer"],
    "feature_dim": 2,
    "n_classes": 3,
    "hidden_sizes": [2],
    "dropout": 0.1,
    "layers": [
        {
            "type": "linear",
            "in_features": 2,
            "out_features": 2,
            "weight": [[1.0, -1], [0.5, 2.0]],
            "bias": [0.25, -0.5],
        },
        {
            "type": "batch_norm",
            "num_features": 2,
            "weight": [2.0, 1.0],
            "bias": [0.0, 1.0],
            "running_mean": [0.25, 0.0],
            "running_var": [4.0, 0.25],
            "eps": 0.0,
        },
        {"type": "relu"},
        {"type": "dropout", "p": 0.1},
        {
            "type": "linear",
            "in_features": 2,
            "out_features": 3,
            "weight": [[1, 0], [0, 1], [-1, -1]],
            "bias": None,
        },
    ],
}
PLAIN_LAYER: dict[str, Any] = {
    "type": "linear",
    "in_features": 2,
    "out_features": 3,
    "weight": [[1, 0], [1, 0], [0, 1]],
}


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """Return the trained selector with one value replaced, or removed for ``...``."""
    whole = copy.deepcopy(TRAINED)
    place: Any = whole
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


def read(value: object) -> MlpSelector:
    return read_selector(json.dumps(value))


def scores(x: float, y: float) -> list[float]:
    """Compute the trained selector's outputs by hand."""
    first = (x - y + 0.25, 0.5 * x + 2.0 * y - 0.5)
    normed = ((first[0] - 0.25) / 2.0 * 2.0, first[1] / 0.5 + 1.0)
    hidden = [max(value, 0.0) for value in normed]
    return [hidden[0], hidden[1], -hidden[0] - hidden[1]]


@pytest.mark.parametrize("query", [(3.0, -0.5), (0.0, 1.0), (-1.0, 0.5), (0.3, -0.2)])
def test_the_highest_output_wins(query: tuple[float, float]) -> None:
    outputs = scores(*query)
    expected = TRAINED["model_names"][int(np.argmax(outputs))]
    assert read(TRAINED).select(np.array(query)) == expected


def test_all_names_can_win() -> None:
    layers = [PLAIN_LAYER | {"weight": [[1, 0], [0, 1], [-1, -1]]}]
    selector = read(changed(("layers",), layers))
    queries = ([1.0, 0.0], [0.0, 1.0], [-1.0, -1.0])
    assert [selector.select(np.array(q)) for q in queries] == TRAINED["model_names"]


def test_the_last_of_equal_outputs_wins() -> None:
    selector = read(changed(("layers",), [PLAIN_LAYER]))
    assert selector.select(np.array([1.0, 0.5])) == "large"
    assert selector.select(np.array([1.0, 1.0])) == "größer"


def test_what_a_batch_norm_leaves_out_has_defaults() -> None:
    layers = [{"type": "batch_norm", "num_features": 2}, PLAIN_LAYER | {"bias": [0, 0.5, 0]}]
    selector = read(changed(("layers",), layers))
    assert selector.select(np.array([1.0, 1.49])) == "large"
    assert selector.select(np.array([1.0, 1.51])) == "größer"


@pytest.mark.parametrize("query", [[], [1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]]])
def test_queries_of_another_length_are_refused(query: list[float]) -> None:
    with pytest.raises(InvalidArgumentError, match="takes 2"):
        read(TRAINED).select(np.array(query, np.float64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_queries_of_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match="NaN, infinity"):
        read(TRAINED).select(np.array([1.0, value]))


def test_outputs_that_overflow_are_an_error() -> None:
    selector = read(changed(("layers",), [PLAIN_LAYER | {"weight": [[3e38, 3e38]] * 3}]))
    with pytest.raises(BadArtifactError, match="NaN or infinity"):
        selector.select(np.array([9.0, -9.0]))


@pytest.mark.parametrize("selector", [UNTRAINED, read(changed(("trained",), False))])
def test_an_untrained_selector_answers_nothing(selector: MlpSelector) -> None:
    with pytest.raises(NotReadyError, match="not trained"):
        selector.select(np.zeros(selector.feature_dim))


@pytest.mark.parametrize(
    "value",
    [
        TRAINED,
        changed(("trained",), False),
        changed(("layers", 1), {"type": "batch_norm", "num_features": 2}),
        changed(("layers", 0, "weight"), [[0.1, 1e-45], [3.4028234e38, -0.0]]),
    ],
)
def test_a_selector_comes_back_as_it_was(value: dict[str, Any]) -> None:
    first = read(value)
    text = write_selector(first)
    again = read_selector(text)
    assert write_selector(again) == text
    assert again.trained is value["trained"]
    assert again.model_names == tuple(value["model_names"])
    assert (again.feature_dim, again.hidden_sizes, again.dropout) == (2, (2,), 0.1)
    written = json.loads(text)["layers"]
    assert [layer["type"] for layer in written] == [layer["type"] for layer in value["layers"]]
    assert np.array_equal(
        np.array(written[0]["weight"], np.float32),
        np.array(value["layers"][0]["weight"], np.float32),
    )
    if first.trained:
        for query in np.random.default_rng(7).normal(scale=0.1, size=(20, 2)):
            assert again.select(query) == first.select(query)


def test_an_untrained_selector_comes_back_too() -> None:
    again = read_selector(write_selector(UNTRAINED))
    assert write_selector(again) == write_selector(UNTRAINED)
    assert not again.trained


def test_unknown_keys_are_left_out() -> None:
    assert write_selector(read(TRAINED | {"version": 3})) == write_selector(read(TRAINED))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(((key,), ...) for key in TRAINED),
        (("algorithm",), "knn"),
        (("algorithm",), None),
        (("trained",), 1),
        (("trained",), "true"),
        (("model_names",), ["a", "b"]),
        (("model_names",), ["a", "", "c"]),
        (("model_names",), ["a", "b\0", "c"]),
        (("model_names",), ["a", 2, "c"]),
        (("model_names",), "abc"),
        (("model_names",), []),
        (("feature_dim",), 3),
        (("feature_dim",), 2.0),
        (("feature_dim",), True),
        (("feature_dim",), -2),
        (("feature_dim",), 2**31),
        (("n_classes",), 2),
        (("hidden_sizes",), [2.5]),
        (("hidden_sizes",), 2),
        (("dropout",), "0.1"),
        (("dropout",), -0.1),
        (("dropout",), float("nan")),
        (("layers",), []),
        (("layers",), {}),
        (("layers",), TRAINED["layers"][:1]),
        (("layers", 0), "relu"),
        (("layers", 0, "type"), "conv"),
        (("layers", 0, "type"), ...),
        (("layers", 0, "in_features"), 3),
        (("layers", 0, "out_features"), 3),
        (("layers", 0, "weight"), ...),
        (("layers", 0, "weight"), [[1, 2], [3]]),
        (("layers", 0, "weight"), [[1, 2], 3]),
        (("layers", 0, "weight"), [[1, 2]]),
        (("layers", 0, "weight"), [[1, 2], [3, "4"]]),
        (("layers", 0, "weight"), [[1, 2], [3, None]]),
        (("layers", 0, "weight"), [[1, 2], [3, True]]),
        (("layers", 0, "weight"), [[1, 2], [3, 1e39]]),
        (("layers", 0, "weight"), [[1, 2], [3, 10**400]]),
        (("layers", 0, "weight"), [[1, 2], [3, float("nan")]]),
        (("layers", 0, "bias"), [1]),
        (("layers", 0, "bias"), 0),
        (("layers", 1, "num_features"), 3),
        (("layers", 1, "running_var"), [4.0, 0.0]),
        (("layers", 1, "running_var"), [4.0, -1.0]),
        (("layers", 1, "running_mean"), [4.0]),
        (("layers", 1, "eps"), -1e-5),
        (("layers", 1, "eps"), float("inf")),
        (("layers", 3, "p"), ...),
        (("layers", 3, "p"), 2),
        (("layers", 4, "out_features"), 2),
    ],
)
def test_a_selector_that_contradicts_itself_is_refused(
    path: tuple[str | int, ...], value: object
) -> None:
    with pytest.raises(BadArtifactError, match="selector"):
        read(changed(path, value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"mlp"',
        "[" * 100_000,
        json.dumps(TRAINED)[:-1] + ', "trained": false}',
        json.dumps(changed(("model_names", 0), "\ud800")),
    ],
)
def test_what_is_no_object_of_json_is_refused(text: str) -> None:
    with pytest.raises(BadArtifactError, match="JSON of the selector"):
        read_selector(text)


def test_a_json_without_end_is_refused_unread() -> None:
    with pytest.raises(TooLongError, match="at most"):
        read_selector(" " * (MAX_JSON_BYTES + 1))
