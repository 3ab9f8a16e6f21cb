"""Answers of a model's first layers: those of a model that has no others."""

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from libsemantic.engine.config import AdapterMode, LoadOptions, RunOptions, Task
from libsemantic.engine.errors import InvalidArgumentError, UnsupportedError
from libsemantic.engine.graphs import Branches, Graph, build_graph
from libsemantic.engine.graphs.builder import DEFAULT_BRANCHES
from libsemantic.engine.registry import Registry
from libsemantic.engine.weights import read_weights

from .graph_runs import MODELS, Runner, arrays_of, config_of, write_file

NAME = "mmbert-embed-mean"
LAYERS = 4
MANIFEST: dict[str, object] = {
    "layer_indices": [1, 2, 4],
    "dim_indices": [16, 32, 64],
    "hidden_size": 64,
    "num_layers": LAYERS,
    "pooling_strategy": "mean",
    "has_final_norm": True,
}
TEXTS = ["What is the derivative of x squared?", "math code law", "a", "El murciélago hindú comía"]

CopyGolden = Callable[[str, Mapping[str, object]], Path]
Float32 = NDArray[np.float32]


def shallow(folder: Path, layers: int, dtype: str = "F32") -> None:
    """Write the golden's first layers as a model of its own."""
    shutil.copytree(MODELS / NAME, folder, ignore=shutil.ignore_patterns("expected*"))
    (folder / "config.json").write_text(json.dumps(config_of(NAME) | {"num_hidden_layers": layers}))
    deeper = tuple(f"layers.{layer}." for layer in range(layers, LAYERS))
    arrays = {key: a for key, a in arrays_of(NAME).items() if not key.startswith(deeper)}
    write_file(folder / "model.safetensors", arrays, lambda _: dtype)


class PartsRunner:
    """Sessions on the parts of a graph, run up to a layer."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(graph.weights_folder)
        )
        self.sessions = [
            onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            for model in (*(part.model for part in graph.parts), graph.model)
        ]

    def run(self, layer: int, feeds: Mapping[str, NDArray[np.int64]]) -> Float32:
        carried: dict[str, NDArray[np.generic]] = {}
        for part, session in zip(self.graph.parts, self.sessions, strict=False):
            if part.layer == layer:
                (output,) = session.run([self.graph.output], {**feeds, **carried})
                break
            (hidden,) = session.run([part.hidden], {**feeds, **carried})
            carried = {part.hidden: hidden}
        else:
            (output,) = self.sessions[-1].run([self.graph.output], {**feeds, **carried})
        result: Float32 = output
        return result


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("branches", [DEFAULT_BRANCHES, Branches(0)], ids=["short", "long"])
def test_each_exit_answers_like_a_model_of_so_many_layers(
    tmp_path: Path, fused: bool, dtype: str, branches: Branches
) -> None:
    random = np.random.default_rng(5)
    mask = np.ones((3, 150), np.int64)
    mask[1, 80:] = 0
    feeds = {"input_ids": random.integers(5, 900, mask.shape), "attention_mask": mask}
    outputs = []
    runner = None
    for layers in (4, 3, 2, 1):
        shallow(tmp_path / str(layers), layers, dtype)
        graph = build_graph(
            config_of(NAME) | {"num_hidden_layers": layers},
            Task.EMBEDDING,
            read_weights(tmp_path / str(layers)),
            fused=fused,
            branches=branches,
            exits=(1, 2, 3) if layers == LAYERS else (),
        )
        if runner is None:
            runner = PartsRunner(graph)
            assert [part.layer for part in graph.parts] == [1, 2, 3]
            whole = build_graph(
                config_of(NAME),
                Task.EMBEDDING,
                read_weights(tmp_path / "4"),
                fused=fused,
                branches=branches,
            )
            assert whole.parts == ()
            expected = Runner(whole).run(feeds["input_ids"], mask)
        else:
            expected = Runner(graph).run(feeds["input_ids"], mask)
        np.testing.assert_array_equal(runner.run(layers, feeds), expected)
        outputs.append(expected)
    assert min(np.abs(a - b).max() for a, b in zip(outputs[1:], outputs, strict=False)) > 0.1


def test_only_families_that_can_be_cut_are() -> None:
    with pytest.raises(UnsupportedError, match="bert models answer only from their last layer"):
        build_graph(
            config_of("bert-embed-cls"),
            Task.EMBEDDING,
            read_weights(MODELS / "bert-embed-cls"),
            exits=(1,),
        )


def test_a_call_may_ask_for_what_the_manifest_lists(
    registry: Registry, copy_golden: CopyGolden, tmp_path: Path
) -> None:
    handle = registry.load(str(copy_golden(NAME, {"matryoshka_config.json": MANIFEST})))
    info = registry.info(handle)
    assert info.layers.tolist() == [1, 2, 4]
    assert info.dimensions.tolist() == [64, 32, 16]
    assert info.warnings == ()
    assert "matryoshka_config.json" in info.file_names
    full = registry.embed(handle, TEXTS)
    np.testing.assert_array_equal(
        registry.embed(handle, TEXTS, RunOptions(layer=4)).values, full.values
    )
    for layer in (1, 2):
        shallow(tmp_path / f"of-{layer}", layer)
        other = registry.load(str(tmp_path / f"of-{layer}"))
        expected = registry.embed(other, TEXTS).values
        found = registry.embed(handle, TEXTS, RunOptions(layer=layer))
        np.testing.assert_array_equal(found.values, expected)
        assert np.abs(found.values - full.values).max() > 0.05
        assert found.rows.token_count == full.rows.token_count
        cut = registry.embed(handle, TEXTS, RunOptions(layer=layer, dimension=16)).values
        head = expected[:, :16] / np.linalg.norm(expected[:, :16], axis=1, keepdims=True)
        np.testing.assert_allclose(cut, head, rtol=0, atol=1e-6)
    for layer in (3, 5, 22):
        with pytest.raises(InvalidArgumentError, match=f"layer is {layer}, .* allows 1, 2, 4"):
            registry.embed(handle, TEXTS, RunOptions(layer=layer))


def test_layers_of_many_callers_at_once_keep_apart(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    handle = registry.load(str(copy_golden(NAME, {"matryoshka_config.json": MANIFEST})))
    expected = {
        layer: registry.embed(handle, [text], RunOptions(layer=layer)).values
        for layer in (0, 1, 2)
        for text in TEXTS[:1]
    }
    wrong: list[int] = []

    def call(layer: int) -> None:
        for _ in range(30):
            values = registry.embed(handle, TEXTS[:1], RunOptions(layer=layer)).values
            if np.abs(values - expected[layer]).max() > 1e-5:
                wrong.append(layer)

    threads = [threading.Thread(target=call, args=(layer,)) for layer in (0, 1, 2) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_list_that_the_weights_cannot_follow_is_a_warning(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    folder = copy_golden("bert-embed-mean", {"matryoshka_config.json": {"layer_indices": [1, 3]}})
    handle = registry.load(str(folder))
    info = registry.info(handle)
    assert info.layers.tolist() == []
    assert any("lists layers to end at" in warning for warning in info.warnings)
    with pytest.raises(InvalidArgumentError, match="answers only from its last layer"):
        registry.embed(handle, ["a"], RunOptions(layer=1))


def add_adapter(base: Path) -> Path:
    """Write an adapter of a base's first two layers into a folder inside it."""
    folder = base / "adapter"
    folder.mkdir()
    random = np.random.default_rng(8)
    arrays = {
        f"base_model.model.layers.{layer}.attn.Wqkv.lora_{side}.weight": random.normal(
            0, 0.2, shape
        ).astype(np.float32)
        for layer in (0, 1)
        for side, shape in (("A", (2, 64)), ("B", (192, 2)))
    }
    write_file(folder / "adapter_model.safetensors", arrays, lambda _: "F32")
    config = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": "..",
        "target_modules": ["Wqkv"],
        "layers_to_transform": [0, 1],
        "r": 2,
        "lora_alpha": 4,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_merged_adapters_answer_after_fewer_layers_and_shared_ones_do_not(
    registry: Registry, copy_golden: CopyGolden, tmp_path: Path
) -> None:
    def load(folder: Path, name: str, mode: AdapterMode) -> int:
        return registry.load(str(folder), LoadOptions(name=name, adapter_mode=mode))

    base = copy_golden(NAME, {"matryoshka_config.json": MANIFEST})
    adapter = add_adapter(base)
    shallow(tmp_path / "two", 2)
    two = load(add_adapter(tmp_path / "two"), "two", AdapterMode.MERGED)
    merged = load(adapter, "merged", AdapterMode.MERGED)
    shared = load(adapter, "shared", AdapterMode.SHARED)
    assert registry.info(merged).layers.tolist() == [1, 2, 4]
    found = registry.embed(merged, TEXTS, RunOptions(layer=2)).values
    np.testing.assert_allclose(found, registry.embed(two, TEXTS).values, rtol=0, atol=1e-6)
    plain = registry.embed(registry.load(str(base)), TEXTS, RunOptions(layer=2)).values
    assert np.abs(found - plain).max() > 0.01
    info = registry.info(shared)
    assert info.layers.tolist() == []
    assert any("lists layers to end at" in warning for warning in info.warnings)
    full = registry.embed(merged, TEXTS).values
    np.testing.assert_allclose(registry.embed(shared, TEXTS).values, full, rtol=0, atol=1e-5)
    assert np.abs(full - found).max() > 0.05
    with pytest.raises(InvalidArgumentError, match="answers only from its last layer"):
        registry.embed(shared, TEXTS, RunOptions(layer=2))
