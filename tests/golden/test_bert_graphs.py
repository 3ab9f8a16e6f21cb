"""BERT graphs: equal to transformers and to a float64 oracle, whatever form the weights take."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from libsemantic.engine.config import Task
from libsemantic.engine.errors import BadArtifactError, SemanticError, UnsupportedError
from libsemantic.engine.graphs import FAMILIES, Graph, build_graph
from libsemantic.engine.graphs.config_values import Size
from libsemantic.engine.weights import Tensor, read_weights

from .graph_runs import (
    GOLDEN_TOLERANCE,
    GOLDENS,
    MODELS,
    Arrays,
    Runner,
    arrays_of,
    built,
    cases_of,
    config_of,
    runner_of,
)

TASKS = {name: row.task for name, row in GOLDENS.items() if name.startswith("bert-")}
SEP = 3

models = pytest.mark.parametrize("name", TASKS)
variants = pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])


ORACLE_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}
ORACLE_ACTIVATIONS["gelu_pytorch_tanh"] = ORACLE_ACTIVATIONS["gelu_new"]


def oracle(
    arrays: Arrays, ids: list[int], types: list[int], heads: int = 4, activation: str = "gelu"
) -> NDArray[np.float64]:
    """Compute the logits of a ``bert.``-prefixed sequence classifier in float64, text by text."""

    def linear(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        weight = arrays[f"{name}.weight"].astype(np.float64)
        return x @ weight.T + arrays[f"{name}.bias"].astype(np.float64)

    def norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        centred = x - x.mean(axis=-1, keepdims=True)
        x = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
        return x * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]

    table = "bert.embeddings.{}_embeddings.weight"
    x = arrays[table.format("word")].astype(np.float64)[ids]
    x = x + arrays[table.format("position")][: len(ids)] + arrays[table.format("token_type")][types]
    x = norm(x, "bert.embeddings.LayerNorm")
    layer = 0
    while f"bert.encoder.layer.{layer}.output.dense.weight" in arrays:
        name = f"bert.encoder.layer.{layer}"
        q, k, v = (
            linear(x, f"{name}.attention.self.{part}").reshape(len(ids), heads, -1)
            for part in ("query", "key", "value")
        )
        scores = np.exp(np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1]))
        shares = scores / scores.sum(axis=-1, keepdims=True)
        attended = np.einsum("hij,jhd->ihd", shares, v).reshape(x.shape)
        attended = linear(attended, f"{name}.attention.output.dense")
        x = norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = np.vectorize(ORACLE_ACTIVATIONS[activation])(
            linear(x, f"{name}.intermediate.dense")
        )
        x = norm(x + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        layer += 1
    assert layer == 3
    return linear(np.tanh(linear(x[0], "bert.pooler.dense")), "classifier")


def pair_types(ids: list[int]) -> list[int]:
    first = ids.index(SEP) + 1
    return [0] * first + [1] * (len(ids) - first)


@variants
def test_pairs_use_both_token_types(fused: bool) -> None:
    arrays = arrays_of("bert-reranker")
    runner = runner_of("bert-reranker", fused=fused)
    moved = 0.0
    for case in cases_of("bert-reranker"):
        ids = case["input_ids"]
        logit = runner.one(ids, pair_types(ids))
        assert np.abs(logit - oracle(arrays, ids, pair_types(ids))).max() <= GOLDEN_TOLERANCE
        moved = max(moved, float(np.abs(logit - runner.one(ids)).max()))
    assert moved > 1.0


def test_any_mask_is_answered_alike_and_without_nan() -> None:
    random = np.random.default_rng(4)
    ids = random.integers(5, 600, (6, 12))
    mask = random.integers(0, 2, (6, 12))
    mask[0] = 0  # nothing but padding
    mask[1] = [0] * 5 + [1] * 7  # padded on the left
    fused, plain = (runner_of("bert-token", fused=kind).run(ids, mask) for kind in (True, False))
    assert np.isfinite(fused).all()
    assert np.abs(fused - plain).max() <= GOLDEN_TOLERANCE
    assert np.abs(fused - runner_of("bert-token", fused=True).run(ids)).max() > 0.1


@variants
def test_one_token_and_the_longest_text(fused: bool) -> None:
    arrays, runner = arrays_of("bert-seq"), runner_of("bert-seq", fused=fused)
    for ids in ([2], [2] + [7, 300, 41] * 42 + [SEP]):
        expected = oracle(arrays, ids, [0] * len(ids))
        assert np.abs(runner.one(ids) - expected).max() <= GOLDEN_TOLERANCE


@variants
def test_ids_and_lengths_out_of_range_fail_the_run_only(fused: bool) -> None:
    runner = runner_of("bert-seq", fused=fused)
    expected = runner.one([2, 5, SEP])
    for ids, types in (
        ([2, 664, SEP], [0, 0, 0]),
        ([2, 5, SEP], [0, 2, 0]),
        ([5] * 129, [0] * 129),
    ):
        with pytest.raises(Exception, match=r"out of data bounds|128 by 129"):
            runner.one(ids, types)
    assert np.array_equal(runner.one([2, 5, SEP]), expected)


def test_graph_describes_itself() -> None:
    graph = built("bert-reranker")
    assert replace(graph, model=b"", linears={}) == Graph(
        model=b"",
        parts=(),
        weights_folder=Path(os.path.realpath(MODELS / "bert-reranker")),
        inputs=("input_ids", "attention_mask", "token_type_ids"),
        output="logits",
        width=1,
        vocab_size=664,
        position_limit=128,
        type_vocab_size=2,
        dtype="F32",
        makes=(),
        linears={},
        encoder_linears=frozenset(graph.linears.keys() - {"bert.pooler.dense", "classifier"}),
        encoder_weights=frozenset(
            name
            for name in read_weights(MODELS / "bert-reranker")
            if "pooler" not in name and "classifier" not in name
        ),
    )
    hidden, inner = graph.linears["bert.encoder.layer.2.intermediate.dense"]
    assert (hidden, inner) == (Size("hidden_size", 64), Size("intermediate_size", 128))
    assert len(graph.linears) == 3 * 6 + 2
    outputs = {name: (built(name).output, built(name).width) for name in TASKS}
    assert outputs == {
        "bert-seq": ("logits", 7),
        "bert-reranker": ("logits", 1),
        "bert-token": ("logits", 7),
        "bert-embed-mean": ("last_hidden_state", 64),
        "bert-embed-cls": ("last_hidden_state", 64),
    }
    assert built("bert-seq").model == built("bert-seq").model


@pytest.mark.parametrize("activation", ORACLE_ACTIVATIONS)
def test_activations(activation: str) -> None:
    arrays, config = arrays_of("bert-seq"), config_of("bert-seq") | {"hidden_act": activation}
    weights = read_weights(MODELS / "bert-seq")
    runner = Runner(build_graph(config, Task.SEQUENCE_CLASSIFICATION, weights))
    ids = [2, 90, 400, 17, 555, SEP]
    expected = oracle(arrays, ids, [0] * 6, activation=activation)
    assert np.abs(runner.one(ids) - expected).max() <= GOLDEN_TOLERANCE


def extra(weights: Mapping[str, Tensor], *names: str) -> dict[str, Tensor]:
    first = next(iter(weights.values()))
    return dict(weights) | {name: replace(first, name=name) for name in names}


IGNORED = {
    Task.SEQUENCE_CLASSIFICATION: ["bert.embeddings.position_ids"],
    Task.TOKEN_CLASSIFICATION: ["embeddings.position_ids", "bert.pooler.dense.weight"],
    Task.EMBEDDING: [
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "cls.predictions.bias",
        "cls.seq_relationship.weight",
    ],
}


@models
def test_weights_of_other_tasks_are_ignored_where_a_row_says_so(name: str) -> None:
    task, weights = TASKS[name], read_weights(MODELS / name)
    graph = build_graph(config_of(name), task, extra(weights, *IGNORED[task]))
    assert graph == built(name)


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("bert-seq", "cls.predictions.bias"),
        ("bert-seq", "bert.encoder.layer.0.attention.self.query.lora_A"),
        ("bert-token", "cls.predictions.bias"),
        ("bert-embed-mean", "classifier.weight"),
        ("bert-embed-mean", "encoder.layer.0.output.LayerNorm.gamma"),
        ("bert-embed-mean", "bert.embeddings.LayerNorm.weight"),
    ],
)
def test_unknown_weights_are_named(name: str, unknown: str) -> None:
    weights = extra(read_weights(MODELS / name), unknown)
    with pytest.raises(BadArtifactError, match=f"weights '{unknown}' are no part of"):
        build_graph(config_of(name), TASKS[name], weights)


def test_many_unknown_weights_are_counted() -> None:
    weights = extra(read_weights(MODELS / "bert-seq"), *(f"x{n}" for n in range(5)))
    with pytest.raises(BadArtifactError, match="weights 'x0', 'x1', 'x2' and 2 more are no part"):
        build_graph(config_of("bert-seq"), Task.SEQUENCE_CLASSIFICATION, weights)


Change = Callable[[dict[str, Tensor]], object]
QUERY = "bert.encoder.layer.1.attention.self.query.weight"
BAD_WEIGHTS: dict[str, tuple[Change, type[SemanticError], str]] = {
    "missing query": (
        lambda w: w.pop(QUERY),
        BadArtifactError,
        rf"weight '{QUERY}' \[hidden_size 64, hidden_size 64\] is missing",
    ),
    "missing norm": (
        lambda w: w.pop("bert.embeddings.LayerNorm.weight"),
        BadArtifactError,
        r"weight 'bert.embeddings.LayerNorm.weight' \[hidden_size 64\] is missing",
    ),
    "missing pooler": (
        lambda w: (w.pop("bert.pooler.dense.weight"), w.pop("bert.pooler.dense.bias")),
        BadArtifactError,
        r"weight 'bert.pooler.dense.weight' .* is missing .* check that the task fits",
    ),
    "missing head": (
        lambda w: w.pop("classifier.weight"),
        BadArtifactError,
        "weight 'classifier.weight' is missing",
    ),
    "missing tables": (
        lambda w: w.pop("bert.embeddings.word_embeddings.weight"),
        BadArtifactError,
        r"'bert.embeddings.word_embeddings.weight' \[vocab_size 664, hidden_size 64\] is missing",
    ),
    "transposed": (
        lambda w: w.update({QUERY: replace(w[QUERY], shape=(64, 63))}),
        BadArtifactError,
        rf"'{QUERY}' of model.safetensors has shape \[64, 63\], expected \[hidden_size 64, hidden",
    ),
    "scalar head": (
        lambda w: w.update({"classifier.weight": replace(w["classifier.weight"], shape=())}),
        BadArtifactError,
        r"'classifier.weight' of model.safetensors has shape \[\]",
    ),
    "quantized": (
        lambda w: w.update({QUERY: replace(w[QUERY], dtype="I8")}),
        UnsupportedError,
        f"weight '{QUERY}' is stored as I8; store it as F32, F16, BF16",
    ),
    "another folder": (
        lambda w: w.update({QUERY: replace(w[QUERY], path=Path("/elsewhere/model.safetensors"))}),
        BadArtifactError,
        "weight files lie in .*bert-seq and in /elsewhere, .* put them into one",
    ),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_bad_weights_are_refused(case: str) -> None:
    change, kind, expected = BAD_WEIGHTS[case]
    weights = read_weights(MODELS / "bert-seq")
    change(weights)
    with pytest.raises(kind, match=expected) as caught:
        build_graph(config_of("bert-seq"), Task.SEQUENCE_CLASSIFICATION, weights)
    assert type(caught.value) is kind


REQUIRED = [
    "model_type",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "hidden_act",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_required_keys_must_be_there_and_of_their_type(key: str) -> None:
    weights, config = read_weights(MODELS / "bert-seq"), config_of("bert-seq")
    for value, expected in (
        (None, f"config.json lacks '{key}'"),
        ([], f"'{key}' is of type list"),
        (True, f"'{key}' is of type bool"),
        (64.0, f"'{key}' is of type float"),
    ):
        with pytest.raises(BadArtifactError, match=expected):
            build_graph(config | {key: value}, Task.SEQUENCE_CLASSIFICATION, weights)
    del config[key]
    with pytest.raises(BadArtifactError, match=f"config.json lacks '{key}'"):
        build_graph(config, Task.SEQUENCE_CLASSIFICATION, weights)


BAD_CONFIGS: list[tuple[str, object, type[SemanticError], str]] = [
    ("model_type", "bart", UnsupportedError, "model_type 'bart' is not known; known are bert"),
    (
        "hidden_act",
        "mish",
        UnsupportedError,
        "'hidden_act' is 'mish', an act.*known are gelu, gelu_fast",
    ),
    ("position_embedding_type", "relative_key", UnsupportedError, "'relative_key' is not supp"),
    ("position_embedding_type", 3, BadArtifactError, "'position_embedding_type' is of type int"),
    ("is_decoder", True, UnsupportedError, "is_decoder is true"),
    ("is_decoder", 1, BadArtifactError, "'is_decoder' is of type int"),
    ("add_cross_attention", True, UnsupportedError, "add_cross_attention is true"),
    ("layer_norm_eps", "1e-12", BadArtifactError, "'layer_norm_eps' is of type str"),
    ("layer_norm_eps", 0.0, BadArtifactError, "'layer_norm_eps' is 0.0, not between"),
    ("layer_norm_eps", float("nan"), BadArtifactError, "'layer_norm_eps' is nan, not between"),
    ("vocab_size", 0, BadArtifactError, "'vocab_size' is 0, not positive"),
    (
        "vocab_size",
        665,
        BadArtifactError,
        r"shape \[664, 64\], expected \[vocab_size 665, hidden_s",
    ),
    (
        "hidden_size",
        32,
        BadArtifactError,
        r"\[664, 64\], expected \[vocab_size 664, hidden_size 32",
    ),
    ("max_position_embeddings", 64, BadArtifactError, r"\[128, 64\], expected \[max_position_emb"),
    ("type_vocab_size", 1, BadArtifactError, r"\[2, 64\], expected \[type_vocab_size 1, hidden"),
    ("intermediate_size", 129, BadArtifactError, r"\[128, 64\], expected \[intermediate_size 129"),
    ("num_attention_heads", 5, BadArtifactError, "hidden_size 64 is no multiple of num_attention"),
    ("num_hidden_layers", 2, BadArtifactError, "'num_hidden_layers' is 2, the weights hold 3"),
    ("num_hidden_layers", 10**12, BadArtifactError, "the weights hold 3 layers"),
    ("num_labels", 6, BadArtifactError, "'num_labels' states 6 labels, weight 'classifier.weight'"),
    ("id2label", {"0": "a"}, BadArtifactError, r"'id2label' states 1 labels, .* shape \[7, 64\]"),
    ("id2label", ["a"], BadArtifactError, "'id2label' is of type list"),
]


@pytest.mark.parametrize(("key", "value", "kind", "expected"), BAD_CONFIGS)
def test_configs_that_cannot_be_right_are_refused(
    key: str, value: object, kind: type[SemanticError], expected: str
) -> None:
    config = config_of("bert-seq") | {key: value}
    weights = read_weights(MODELS / "bert-seq")
    with pytest.raises(kind, match=expected) as caught:
        build_graph(config, Task.SEQUENCE_CLASSIFICATION, weights)
    assert type(caught.value) is kind


def test_optional_keys_may_be_absent_or_null() -> None:
    config = config_of("bert-seq")
    for key in ("is_decoder", "add_cross_attention", "layer_norm_eps", "id2label"):
        config[key] = None
    del config["layer_norm_eps"]
    weights = read_weights(MODELS / "bert-seq")
    assert build_graph(config, Task.SEQUENCE_CLASSIFICATION, weights) == built("bert-seq")


def test_task_must_be_one_the_family_answers() -> None:
    assert set(FAMILIES["bert"].ignorable) == set(Task) - {Task.AUTO}
    with pytest.raises(UnsupportedError, match="bert models cannot answer AUTO; choose SEQUENCE"):
        build_graph(config_of("bert-seq"), Task.AUTO, read_weights(MODELS / "bert-seq"))
