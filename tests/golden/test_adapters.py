"""LoRA adapters, shared and merged: equal to PEFT, and to each other, in every family."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from libsemantic.engine import adapter_weights
from libsemantic.engine.adaptation import HIDDEN_STATE, Adaptation, Part, Update, slot_names
from libsemantic.engine.adapter_weights import AdaptedWeights, read_adapted_weights
from libsemantic.engine.adapters import Adapter, read_adapter
from libsemantic.engine.config import AdapterMode, LoadOptions, LongText, RunOptions, Task
from libsemantic.engine.graphs import FAMILIES, Graph, build_graph
from libsemantic.engine.registry import Registry
from libsemantic.engine.weights import Tensor, read_weights

from .adapters import ADAPTED
from .graph_runs import (
    GOLDEN_TOLERANCE,
    GOLDENS,
    MODELS,
    SAME_TOLERANCE,
    Array,
    Ids,
    Runner,
    config_of,
    write_file,
)
from .variants import drawn, inputs

BASE = MODELS / "modernbert-lora-base"
NAMES = ("domain", "guard")
TASKS = {
    "ForSequenceClassification": Task.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": Task.TOKEN_CLASSIFICATION,
    "Model": Task.EMBEDDING,
}

variants = pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
modes = pytest.mark.parametrize("mode", AdapterMode)


# The engine on the golden adapters


@cache
def golden(name: str) -> tuple[list[str], Array]:
    """Return the texts of an adapter and the logits of the reference."""
    cases = json.loads((BASE / "expected.json").read_text())["adapters"][name]
    assert len(cases) == 10
    return [case["text"] for case in cases], np.array([case["logits"] for case in cases])


def load(
    registry: Registry, adapter: str, mode: AdapterMode, name: str = "", max_tokens: int = 0
) -> int:
    options = LoadOptions(adapter_mode=mode, name=name, max_tokens=max_tokens)
    return registry.load(str(BASE / "adapters" / adapter), options)


@modes
def test_adapters_equal_peft(registry: Registry, mode: AdapterMode) -> None:
    handles = {name: load(registry, name, mode) for name in NAMES}
    for name in (*NAMES, *NAMES[::-1]):
        texts, expected = golden(name)
        together = registry.classify(handles[name], texts)
        assert np.abs(together.logits - expected).max() <= GOLDEN_TOLERANCE
        singles = [registry.classify(handles[name], [text]).logits[0] for text in texts]
        assert np.abs(together.logits - np.stack(singles)).max() <= SAME_TOLERANCE
        assert together.label_index.tolist() == expected.argmax(axis=1).tolist()
        table = json.loads((BASE / "adapters" / name / "label_mapping.json").read_text())
        assert together.labels == tuple(table["id2label"].values())
        info = registry.info(handles[name])
        assert (info.family, info.architecture) == ("modernbert", "ModernBertModel")
        assert (info.source, info.dtype, info.warnings) == ("safetensors", "fp32", ())
    # Another pooling, which the base's config.json asks for, is far from it.
    assert config_of("modernbert-lora-base")["classifier_pooling"] == "cls"


def test_both_modes_agree_beyond_every_branch_and_at_the_limit(registry: Registry) -> None:
    texts = ["math code law " * 60, "math " * 600, "a"]
    handles = [load(registry, "guard", mode, mode.name, 512) for mode in AdapterMode]
    options = RunOptions(long_text=LongText.CUT)
    answers = [registry.classify(handle, texts, options) for handle in handles]
    assert np.abs(answers[0].logits - answers[1].logits).max() <= SAME_TOLERANCE
    assert answers[0].rows.scored_token_count == answers[1].rows.scored_token_count
    info = registry.info(handles[0])
    assert max(answers[0].rows.scored_token_count) == info.max_tokens == info.position_limit > 192


# Mutations: each must be found by the golden


def scaled_by_rank_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Adapter, "scale_of", lambda self, module: 1 / self.rank_of(module))


def stabilised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Adapter, "scale_of", lambda self, _: self.alpha / self.rank**0.5)


def last_layer_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = adapter_weights._update

    def update(adapter: Adapter, module: str, pair: Mapping[str, Tensor]) -> Update:
        known = right(adapter, module, pair)
        return replace(known, up=known.up * 0) if "layers.3.mlp.Wo" in module else known

    patch.setattr(adapter_weights, "_update", update)


def pooling_of_the_base(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("libsemantic.engine.adapters._HEAD_KEYS", ("id2label", "label2id"))


@modes
@pytest.mark.parametrize(
    "change", [scaled_by_rank_alone, stabilised, last_layer_forgotten, pooling_of_the_base]
)
def test_a_wrong_adapter_is_found_by_its_golden(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    mode: AdapterMode,
    change: Callable[[pytest.MonkeyPatch], None],
) -> None:
    change(monkeypatch)
    for name in NAMES:
        texts, expected = golden(name)
        found = registry.classify(load(registry, name, mode), texts).logits
        assert np.abs(found - expected).max() > 3 * GOLDEN_TOLERANCE


# Graphs in two parts, in every family


class Chain:
    """An encoder that takes updates, and a head on its token states, as the engine runs them."""

    def __init__(self, encoder: Graph, head: Graph) -> None:
        self.encoder = Runner(encoder)
        self.head = Runner(head)

    def run(self, updates: Mapping[str, Update], feeds: Mapping[str, Ids]) -> Array:
        given: dict[str, NDArray[np.generic]] = {x: feeds[x] for x in self.encoder.graph.inputs}
        for name, update in updates.items():
            down, up = slot_names(name)
            given[down], given[up] = update.down, update.up
        (states,) = self.encoder.session.run(None, given)
        given = {x: feeds[x] for x in self.head.graph.inputs}
        (answer,) = self.head.session.run(None, {**given, HIDDEN_STATE: states})
        assert answer.dtype == np.float32
        result: Array = answer
        return result


@dataclass(frozen=True, slots=True)
class Forms:
    """One adapted model in both forms, and what runs of it take."""

    chain: Chain
    merged: Runner
    updates: Mapping[str, Update]


def feeds_of(graph: Graph, ids: Ids, mask: Ids) -> dict[str, Ids]:
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    assert set(graph.inputs) <= feeds.keys()
    return feeds


@pytest.mark.parametrize("name", GOLDENS)
@variants
def test_an_encoder_with_room_for_updates(name: str, fused: bool) -> None:
    """Without updates it is the base to the bit; with them, of any layers, what merging gives.

    DeBERTa's is the base to the last bits: what is computed once is then scaled at each run.
    """
    config, task = config_of(name), GOLDENS[name].task
    family = FAMILIES[str(config["model_type"])]
    weights = {x.removeprefix(family.prefix): t for x, t in read_weights(MODELS / name).items()}

    def build(kind: Task, adaptation: Adaptation) -> Graph:
        return build_graph(config, kind, weights, fused=fused, adaptation=adaptation)

    unused = ("*",)
    plain = Runner(build(Task.EMBEDDING, Adaptation(spare=unused)))
    encoder = build(Task.EMBEDDING, Adaptation(Part.ENCODER, spare=unused))
    random = np.random.default_rng(2)
    updates = {
        linear: Update(
            random.standard_normal((3, sizes[0].value), np.float32) * np.float32(0.1),
            random.standard_normal((sizes[1].value, 3), np.float32) * np.float32(0.2),
        )
        for index, (linear, sizes) in enumerate(build(task, Adaptation()).linears.items())
        if index % 4 != 1
    }
    chain = Chain(encoder, build(task, Adaptation(Part.HEAD, updates)))
    merged = Runner(build(task, Adaptation(Part.WHOLE, updates)))
    ids = random.integers(5, encoder.vocab_size, (3, 21))
    mask = np.ones_like(ids)
    mask[1, 9:] = 0
    feeds = feeds_of(encoder, ids, mask)
    none = {x: feeds[x] for x in encoder.inputs}
    difference = chain.encoder.session.run(None, none)[0] - plain.run(ids, mask)
    assert np.abs(difference).max() <= (SAME_TOLERANCE if "deberta" in name else 0)
    inside = {x: update for x, update in updates.items() if x in encoder.encoder_linears}
    assert 0 < len(inside) < len(encoder.encoder_linears)
    found, expected = chain.run(inside, feeds), merged.run(ids, mask)
    kept = mask == 1 if expected.ndim == 3 else slice(None)
    assert np.abs(found[kept] - expected[kept]).max() <= GOLDEN_TOLERANCE
    # The updates matter.
    unchanged = Runner(build(task, Adaptation())).run(ids, mask)
    assert np.abs(found[kept] - unchanged[kept]).max() > 0.01


def test_a_head_holds_only_its_own_weights() -> None:
    config = config_of("bert-seq")
    weights = read_weights(MODELS / "bert-seq")
    head = build_graph(
        config, Task.SEQUENCE_CLASSIFICATION, weights, adaptation=Adaptation(Part.HEAD)
    )
    session = Runner(head).session
    assert {each.name for each in session.get_inputs()} == {"input_ids", HIDDEN_STATE}
    assert len(head.model) < 5000
    names = {name for name in weights if name.encode() in head.model}
    assert {name.split(".")[0] for name in names} == {"bert", "classifier"}
    assert all("pooler" in name or "classifier" in name for name in names)
    assert head.encoder_weights == weights.keys() - names


# PEFT on small models of other families


class Saved(TypedDict):
    """What PEFT says of one adapter."""

    config: dict[str, object]
    tensors: dict[str, tuple[int, ...]]
    answers: list[list[float]]


@cache
def saved(name: str) -> Saved:
    content = json.loads((Path(__file__).parent / "expected_adapters.json").read_text())
    assert content["adapters"].keys() == ADAPTED.keys()
    adapter: Saved = content["adapters"][name]
    return adapter


def write_adapter(folder: Path, name: str, **changes: object) -> Path:
    """Write a base and, in a folder inside it, an adapter as PEFT does; return the adapter's."""
    variant, adapter = ADAPTED[name].variant, saved(name)
    folder.mkdir(exist_ok=True)
    own = {x.removeprefix("base_model.model.") for x in adapter["tensors"]}
    arrays = {x: array for x, array in variant.arrays().items() if x not in own}
    write_file(folder / "model.safetensors", arrays, lambda _: "F32")
    config = variant.full_config() | {"id2label": None}
    (folder / "config.json").write_text(json.dumps(config))
    inside = folder / "adapter"
    inside.mkdir()
    tensors = {x: drawn(x, tuple(shape)) for x, shape in adapter["tensors"].items()}
    write_file(inside / "adapter_model.safetensors", tensors, lambda _: "F32")
    written = adapter["config"] | {"base_model_name_or_path": ".."} | changes
    (inside / "adapter_config.json").write_text(json.dumps(written))
    return inside


def forms(folder: Path, name: str, *, fused: bool) -> Forms:
    variant = ADAPTED[name].variant
    config, task = variant.full_config(), TASKS[variant.task]
    family = FAMILIES[str(config["model_type"])]
    weights: AdaptedWeights = read_adapted_weights(
        read_adapter(folder), read_weights(folder.parent), family.prefix, family.ignorable[task]
    )
    patterns = [pattern for some in family.ignorable.values() for pattern in some]

    def build(part: Part) -> Graph:
        adaptation = weights.adaptation(part, patterns)
        graph = build_graph(config, task, weights.weights, fused=fused, adaptation=adaptation)
        weights.check(graph)
        return graph

    encoder = build_graph(
        config,
        Task.EMBEDDING,
        weights.base,
        fused=fused,
        adaptation=Adaptation(Part.ENCODER, spare=("*",)),
    )
    inside = {x: weights.updates[x] for x in weights.updates.keys() & encoder.encoder_linears}
    return Forms(Chain(encoder, build(Part.HEAD)), Runner(build(Part.WHOLE)), inside)


@pytest.mark.parametrize("name", ADAPTED)
@variants
def test_adapters_of_small_models_equal_peft(tmp_path: Path, name: str, fused: bool) -> None:
    variant = ADAPTED[name].variant
    both = forms(write_adapter(tmp_path / "base", name), name, fused=fused)
    feeds = inputs(variant)
    ids, mask, types = feeds["input_ids"], feeds["attention_mask"], feeds["token_type_ids"]
    outputs = (both.chain.run(both.updates, feeds), both.merged.run(ids, mask, types))
    for row, answer in enumerate(saved(name)["answers"]):
        kept = mask[row] == 1
        for output in outputs:
            if variant.task == "ForSequenceClassification":
                if not mask[row, 0] and variant.config["model_type"] != "qwen3":
                    continue  # the head reads padding
                found, expected = output[row], np.array(answer)
            else:
                width = variant.labels or 3
                found = output[row][kept, :width]
                expected = np.array(answer).reshape(-1, width)[kept]
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() <= GOLDEN_TOLERANCE
            assert np.abs(expected).max() > 0.05
    unchanged = both.chain.run({}, feeds)
    assert np.abs(unchanged - outputs[0]).max() > 0.01


def test_the_expected_adapters_name_what_peft_wrote(tmp_path: Path) -> None:
    """The tensors of the file are those of golden adapters, which PEFT itself has saved."""
    names = {name for each in ADAPTED for name in saved(each)["tensors"]}
    assert all(name.startswith("base_model.model.") for name in names)
    shutil.copytree(BASE / "adapters" / "domain", tmp_path / "domain")
    own = read_weights_of(tmp_path / "domain")
    kinds = {name.rpartition(".lora_")[2] for name in own if "lora" in name}
    assert kinds == {"A.weight", "B.weight"}
    assert {name.rpartition(".lora_")[2] for name in names if "lora" in name} == kinds


def read_weights_of(folder: Path) -> set[str]:
    (folder / "adapter_model.safetensors").rename(folder / "model.safetensors")
    return set(read_weights(folder))
