"""Graphs of every encoder family: equal to transformers, however texts are put together.

A new family is a row of ``GOLDENS``, of ``LEFT`` where it fits, and rows of ``MUTATIONS``.
"""

import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest

from libsemantic.engine.config import Task
from libsemantic.engine.graphs import (
    Branches,
    bert,
    blocks,
    deberta,
    decoder,
    distilbert,
    electra,
    gemma3,
    modernbert,
    post_norm,
    qwen3,
    roberta,
    rotary,
)
from libsemantic.engine.graphs.builder import GraphBuilder
from libsemantic.engine.graphs.config_values import Size
from libsemantic.engine.graphs.decoder import FULL, SLIDING, Decoder
from libsemantic.engine.graphs.grouped_attention import (
    CAUSAL,
    EVERYTHING,
    GroupedAttention,
    Reach,
)
from libsemantic.engine.graphs.post_norm import Classifier
from libsemantic.engine.graphs.rotary import Rotary, Theta
from libsemantic.engine.weights import read_weights

from .graph_runs import (
    GOLDEN_TOLERANCE,
    GOLDENS,
    MODELS,
    SAME_TOLERANCE,
    Runner,
    built,
    cases_of,
    config_of,
    golden_difference,
    long_cases_of,
    runner_of,
)

# Models for which padding on the left changes nothing: positions do not count it, and no head
# looks at the first column.
LEFT = {  # with the id of padding
    "roberta-token": 1,
    "deberta-v3-token": 0,
    "modernbert-seq-mean": 0,
    "modernbert-nli": 0,
    "modernbert-token": 0,
    "mmbert-embed-mean": 0,
    "qwen3-embed-last": 0,
    "gemma3-embed-mean": 0,
}
# Models whose graph takes other ways for long texts; such positions are computed, not looked up.
MODERN = tuple(name for name in GOLDENS if name.startswith(("modernbert", "mmbert")))
LONG = (*MODERN, "qwen3-embed-last", "gemma3-embed-mean")
# Of hundreds of tokens the logits reach 16, and transformers itself is this far from what it
# computes in float64.
LONG_TOLERANCE = {"modernbert-token": 2e-4, "modernbert-hallucination": 2e-4}
BRANCHES = {"all long": Branches(0), "all short": Branches(10**9)}

SEQUENCE = Task.SEQUENCE_CLASSIFICATION

Change: TypeAlias = Callable[[pytest.MonkeyPatch], None]

models = pytest.mark.parametrize("name", GOLDENS)
variants = pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])


@models
@variants
def test_equals_transformers(name: str, fused: bool) -> None:
    assert golden_difference(name, runner_of(name, fused=fused)) <= GOLDEN_TOLERANCE


@pytest.mark.parametrize("name", LONG)
@variants
@pytest.mark.parametrize("branches", BRANCHES)
def test_both_sides_of_every_branch_equal_transformers(
    name: str, fused: bool, branches: str
) -> None:
    runner = Runner(built(name, fused=fused, branches=BRANCHES[branches]))
    cases, tolerance = long_cases_of(name), LONG_TOLERANCE.get(name, GOLDEN_TOLERANCE)
    assert golden_difference(name, runner) <= GOLDEN_TOLERANCE
    assert golden_difference(name, runner, cases) <= tolerance
    rows = [case["input_ids"] for case in cases[:-2]]  # in one batch, padded on either side
    longest = max(map(len, rows))
    for left in (False, True) if name in LEFT else (False,):
        places = [longest - len(row) if left else 0 for row in rows]
        ids, mask = np.full((len(rows), longest), 7), np.zeros((len(rows), longest), np.int64)
        for index, (row, place) in enumerate(zip(rows, places, strict=True)):
            ids[index, place : place + len(row)] = row
            mask[index, place : place + len(row)] = 1
        batch = runner.run(ids, mask)
        for row, place, together in zip(rows, places, batch, strict=True):
            kept = together if together.ndim == 1 else together[place : place + len(row)]
            # On the left padding moves all positions, and so the rounding of all angles.
            assert np.abs(kept - runner.one(row)).max() <= tolerance * (3 if left else 1)


def padded(name: str, padding: int, *, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the golden texts in one batch, ids and mask."""
    rows = [case["input_ids"] for case in cases_of(name)]
    longest = max(map(len, rows))
    filled = [([padding] * (longest - len(row)), row) for row in rows]
    ids = [fill + row if left else row + fill for fill, row in filled]
    marks = [([0] * len(fill), [1] * len(row)) for fill, row in filled]
    mask = [zeros + ones if left else ones + zeros for zeros, ones in marks]
    return np.array(ids, np.int64), np.array(mask, np.int64)


@models
@variants
def test_a_padded_batch_answers_like_its_texts_alone(name: str, fused: bool) -> None:
    runner = runner_of(name, fused=fused)
    ids, mask = padded(name, 0)
    batch, noisy = runner.run(ids, mask), runner.run(np.where(mask == 1, ids, 17), mask)
    assert np.isfinite(batch).all()
    for case, together, disturbed in zip(cases_of(name), batch, noisy, strict=True):
        alone = runner.one(case["input_ids"])
        kept = slice(None) if together.ndim == 1 else slice(len(alone))
        assert np.abs(together[kept] - alone).max() <= SAME_TOLERANCE
        assert np.abs(disturbed[kept] - alone).max() <= SAME_TOLERANCE


@pytest.mark.parametrize("name", LEFT)
@variants
def test_padding_on_the_left_changes_nothing(name: str, fused: bool) -> None:
    runner = runner_of(name, fused=fused)
    ids, mask = padded(name, LEFT[name], left=True)
    for case, together in zip(cases_of(name), runner.run(ids, mask), strict=True):
        alone = runner.one(case["input_ids"])
        assert np.abs(together[len(together) - len(alone) :] - alone).max() <= GOLDEN_TOLERANCE


@models
@variants
def test_a_batch_of_equal_lengths_answers_like_its_texts_alone(name: str, fused: bool) -> None:
    runner = runner_of(name, fused=fused)
    ids = np.random.default_rng(3).integers(5, runner.graph.vocab_size, (7, 19))
    batch = runner.run(ids)
    alone = np.stack([runner.one(row.tolist()) for row in ids])
    assert np.abs(batch - alone).max() <= SAME_TOLERANCE
    assert np.abs(batch[0] - batch[1]).max() > 0.1


def config_limit(name: str) -> int:
    """Return the limit that the golden's generator put into its configuration."""
    return 512 if name.startswith(("modernbert", "mmbert", "qwen3", "gemma3")) else 128


@models
def test_both_variants_agree_on_any_mask_length_and_limit(name: str) -> None:
    fused, plain = (runner_of(name, fused=kind) for kind in (True, False))
    random, limit = np.random.default_rng(4), fused.graph.position_limit
    assert limit == config_limit(name)
    for shape in ((5, 12), (1, 1), (1, limit)):
        ids = random.integers(5, fused.graph.vocab_size, shape)
        mask = random.integers(0, 2, shape)
        mask[0] = 1
        if shape[0] > 1:
            mask[1], mask[2] = 0, [0] * 5 + [1] * 7  # nothing but padding; padded on the left
        # Rows of the reference's own padding are anybody's: only text is compared.
        outputs = [runner.run(ids, mask) for runner in (fused, plain)]
        assert all(np.isfinite(output).all() for output in outputs)
        tolerance = LONG_TOLERANCE.get(name, GOLDEN_TOLERANCE)
        assert np.abs(outputs[0] - outputs[1]).max() <= tolerance
    if name in LONG:
        return
    with pytest.raises(Exception, match="Non-zero status code"):
        fused.run(random.integers(5, fused.graph.vocab_size, (1, limit + 1)))


@models
def test_plain_graph_is_valid_standard_onnx(tmp_path: Path, name: str) -> None:
    shutil.copy(MODELS / name / "model.safetensors", tmp_path)
    path = tmp_path / "model.onnx"
    path.write_bytes(built(name, fused=False).model)
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load_model_from_string(built(name, fused=False).model)
    assert {node.domain for node in model.graph.node} == {""}
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 20)]


@models
@variants
def test_weights_stay_in_their_file(name: str, fused: bool) -> None:
    graph = built(name, fused=fused)
    assert len(graph.model) < 100_000
    assert graph.weights_folder == Path(os.path.realpath(MODELS / name))
    model = onnx.load_model_from_string(graph.model)
    external = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    weights = read_weights(MODELS / name)
    unused = {key for key in weights if "pooler" in key and GOLDENS[name].task is Task.EMBEDDING}
    assert external == {
        key: {
            "location": "model.safetensors",
            "offset": str(tensor.offset),
            "length": str(tensor.nbytes),
        }
        for key, tensor in weights.items()
        if key not in unused
    }
    attentions = int(str(config_of(name).get("num_hidden_layers", 3)))
    if name in MODERN:
        attentions += 2  # the full layers, once more without a mask
    assert count_nodes(model.graph, "MultiHeadAttention") == (attentions if fused else 0)


def count_nodes(graph: onnx.GraphProto, kind: str) -> int:
    """Count the nodes of a kind, those in branches too."""
    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    own = [node.op_type for node in graph.node].count(kind)
    return own + sum(count_nodes(each, kind) for each in inner)


# Wrong graphs: each must be found by the golden of its family


def replace_block(patch: pytest.MonkeyPatch, name: str, block: Callable[..., str]) -> None:
    """Replace a function of ``blocks`` wherever a family uses it."""
    modules = (bert, deberta, distilbert, electra, modernbert, post_norm)
    for module in (module for module in modules if name in vars(module)):
        patch.setattr(module, name, block)


def wrong_epsilon(patch: pytest.MonkeyPatch) -> None:
    right = blocks.layer_norm

    def layer_norm(
        builder: GraphBuilder,
        x: str,
        name: str,
        size: Size,
        epsilon: float,
        *,
        biased: bool = True,
    ) -> str:
        return right(builder, x, name, size, epsilon + 0.01, biased=biased)

    replace_block(patch, "layer_norm", layer_norm)


def wrong_pooling(patch: pytest.MonkeyPatch) -> None:
    def last_token(builder: GraphBuilder, x: str, width: Size) -> str:
        last = [builder.unfold(x, width.value), builder.scalar(-1)]
        return builder.op("Gather", last, {"axis": 1})

    replace_block(patch, "first_token", last_token)


def wrong_activation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blocks, "ACTIVATIONS", {**blocks.ACTIVATIONS, "gelu": blocks.ACTIVATIONS["relu"]})


def approximate_activation(patch: pytest.MonkeyPatch) -> None:
    known = blocks.ACTIVATIONS
    patch.setattr(blocks, "ACTIVATIONS", {**known, "gelu": known["gelu_new"]})


def positions_from_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roberta, "_positions", lambda builder, _: blocks.token_positions(builder))


def no_positions(patch: pytest.MonkeyPatch) -> None:
    right = blocks.token_positions

    def token_positions(builder: GraphBuilder) -> str:
        return builder.op("Mul", [right(builder), builder.scalar(0)])

    replace_block(patch, "token_positions", token_positions)


def wrong_head(family: str, right: Classifier) -> Callable[[pytest.MonkeyPatch], None]:
    """Swap the head's activation, between those that heads of the other families have."""
    wrong = replace(right, activation="tanh" if right.activation != "tanh" else "gelu")

    def change(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(f"libsemantic.engine.graphs.{family}._CLASSIFIER", wrong)

    return change


def bert_pooler_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = blocks.activate
    replace_block(
        patch,
        "activate",
        lambda builder, x, name: x if name == "tanh" else right(builder, x, name),
    )


def one_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deberta, "_terms", lambda _: ("c2p",))


def terms_of_one_scale(patch: pytest.MonkeyPatch) -> None:
    """Scale as if there were no distances."""
    patch.setattr(math, "sqrt", lambda x, right=math.sqrt: right(x / 3) if x == 48 else right(x))


def buckets_as_distances(patch: pytest.MonkeyPatch) -> None:
    right = deberta.rows_of_distances
    patch.setattr(
        deberta,
        "rows_of_distances",
        lambda known, tokens: right(replace(known, buckets=0), tokens),
    )


def distances_the_other_way(patch: pytest.MonkeyPatch) -> None:
    right = deberta.rows_of_distances
    patch.setattr(deberta, "rows_of_distances", lambda known, tokens: right(known, tokens)[::-1])


def of_decoder(altered: Callable[[Decoder], Decoder]) -> Change:
    """Change what every decoder reads from its configuration."""

    def change(patch: pytest.MonkeyPatch) -> None:
        right = decoder.read_decoder

        def read_decoder(
            builder: GraphBuilder,
            config: Mapping[str, object],
            *,
            activation: str,
            depth: int,
            norm_offset: float,
            scale: float | None = None,
        ) -> Decoder:
            return altered(
                right(
                    builder,
                    config,
                    activation=activation,
                    depth=depth,
                    norm_offset=norm_offset,
                    scale=scale,
                )
            )

        for module in (qwen3, gemma3):
            patch.setattr(module, "read_decoder", read_decoder)

    return change


def wrong_theta(patch: pytest.MonkeyPatch) -> None:
    right = rotary.read_rotary

    def read_rotary(
        config: Mapping[str, object],
        depth: Size,
        theta: Theta,
        layer_type: str | None = None,
        *,
        scaled: bool = True,
    ) -> Rotary:
        known = right(config, depth, theta, layer_type, scaled=scaled)
        return replace(known, frequencies=tuple(0.9 * x for x in known.frequencies))

    for module in (qwen3, gemma3, modernbert):
        patch.setattr(module, "read_rotary", read_rotary)


def thetas_swapped(patch: pytest.MonkeyPatch) -> None:
    for module in (gemma3, modernbert):
        thetas = module._THETAS
        swapped = {FULL: thetas[SLIDING], SLIDING: thetas[FULL]}
        patch.setattr(module, "_THETAS", swapped)


def reach_of(change: Callable[[Reach], Reach]) -> Change:
    def patched(patch: pytest.MonkeyPatch) -> None:
        right = GroupedAttention.attend

        def attend(self: GroupedAttention, query: str, key: str, value: str, reach: Reach) -> str:
            return right(self, query, key, value, change(reach))

        patch.setattr(GroupedAttention, "attend", attend)

    return patched


def embeddings_unscaled(patch: pytest.MonkeyPatch) -> None:
    right = GraphBuilder.scalar
    patch.setattr(
        GraphBuilder, "scalar", lambda self, x: right(self, 1.0 if repr(x) == "8.0" else x)
    )


def no_norm_of_heads(patch: pytest.MonkeyPatch) -> None:
    right = decoder.rms_norm

    def rms_norm(builder: GraphBuilder, known: Decoder, x: str, name: str, size: Size) -> str:
        normed = right(builder, known, x, name, size)
        return x if name.endswith("k_norm") else normed

    patch.setattr(decoder, "rms_norm", rms_norm)


def one_token_less(reach: Reach) -> Reach:
    return reach if reach.before is None else Reach(reach.before - 1, reach.after)


def gate_and_value_swapped(patch: pytest.MonkeyPatch) -> None:
    right = GraphBuilder.split
    patch.setattr(
        GraphBuilder,
        "split",
        lambda self, x, parts: right(self, x, parts)[:: -1 if parts == 2 else 1],
    )


def first_token_pooled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        modernbert, "_pool", lambda builder, _, x, hidden: blocks.first_token(builder, x, hidden)
    )


def sliding_layers_shifted(patch: pytest.MonkeyPatch) -> None:
    right = modernbert._read_layer_types
    patch.setattr(
        modernbert,
        "_read_layer_types",
        lambda config, layers: (FULL, SLIDING) * (len(right(config, layers)) // 2),
    )


DECODER: dict[str, tuple[Change, ...]] = {
    "qwen3-embed-last": (
        of_decoder(lambda known: replace(known, epsilon=known.epsilon + 0.01)),
        of_decoder(lambda known: replace(known, activation="gelu")),
        of_decoder(lambda known: replace(known, heads=replace(known.heads, scale=0.2))),
        of_decoder(lambda known: replace(known, norm_offset=1.0)),
        wrong_theta,
        no_norm_of_heads,
        reach_of(lambda _: EVERYTHING),
    ),
    "gemma3-embed-mean": (
        of_decoder(lambda known: replace(known, epsilon=known.epsilon + 0.01)),
        of_decoder(lambda known: replace(known, activation="silu")),
        of_decoder(lambda known: replace(known, heads=replace(known.heads, scale=0.2))),
        of_decoder(lambda known: replace(known, norm_offset=0.0)),
        wrong_theta,
        thetas_swapped,
        no_norm_of_heads,
        embeddings_unscaled,
        reach_of(lambda reach: CAUSAL if reach == EVERYTHING else Reach(reach.before, 0)),
        reach_of(lambda _: EVERYTHING),
        reach_of(one_token_less),
    ),
}

WITH_LAYER_NORMS = [name for name in GOLDENS if name not in DECODER]
MUTATIONS: list[tuple[str, Change]] = [
    *((name, wrong_epsilon) for name in WITH_LAYER_NORMS),
    *((name, wrong_activation) for name in WITH_LAYER_NORMS),
    *((name, approximate_activation) for name in WITH_LAYER_NORMS if not GOLDENS[name].pool),
    *((name, change) for name, changes in DECODER.items() for change in changes),
    *(
        (name, wrong_pooling)
        for name in GOLDENS
        if GOLDENS[name].task is SEQUENCE and name not in ("modernbert-seq-mean", "modernbert-nli")
    ),
    *((name, thetas_swapped) for name in MODERN if "rope_parameters" not in config_of(name)),
    *((name, first_token_pooled) for name in ("modernbert-seq-mean", "modernbert-nli")),
    *(
        (name, change)
        for name in MODERN
        for change in (
            wrong_theta,
            gate_and_value_swapped,
            sliding_layers_shifted,
            reach_of(lambda _: EVERYTHING),
            reach_of(one_token_less),
        )
    ),
    ("bert-seq", no_positions),
    ("bert-seq", bert_pooler_forgotten),
    ("roberta-seq", positions_from_zero),
    ("roberta-token", positions_from_zero),
    ("xlm-roberta-seq", positions_from_zero),
    ("roberta-seq", wrong_head("roberta", roberta._CLASSIFIER)),
    ("xlm-roberta-seq", wrong_head("roberta", roberta._CLASSIFIER)),
    ("distilbert-seq", no_positions),
    ("distilbert-seq", wrong_head("distilbert", distilbert._CLASSIFIER)),
    ("electra-seq", no_positions),
    ("electra-seq", wrong_head("electra", electra._CLASSIFIER)),
    *(
        (name, change)
        for name in ("deberta-v3-seq", "deberta-v3-token")
        for change in (
            one_term,
            terms_of_one_scale,
            buckets_as_distances,
            distances_the_other_way,
        )
    ),
]


@pytest.mark.parametrize(("name", "change"), MUTATIONS)
@variants
def test_a_wrong_graph_is_found_by_its_golden(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[pytest.MonkeyPatch], None],
    fused: bool,
) -> None:
    change(monkeypatch)
    assert golden_difference(name, Runner(built(name, fused=fused))) > 3 * GOLDEN_TOLERANCE
