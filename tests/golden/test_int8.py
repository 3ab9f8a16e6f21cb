"""Int8 that is made of safetensors: near fp32 in every family, and the same alone and together."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from libsemantic.engine import opening
from libsemantic.engine.adaptation import Update
from libsemantic.engine.batching import RunControl
from libsemantic.engine.config import AdapterMode, LoadOptions, Precision, RunOptions
from libsemantic.engine.errors import BadArtifactError, InternalError, OutOfMemoryError
from libsemantic.engine.graphs import quantized
from libsemantic.engine.graphs.builder import GraphBuilder
from libsemantic.engine.graphs.config_values import Size
from libsemantic.engine.graphs.finished import Head
from libsemantic.engine.graphs.quantized import (
    Rows,
    quantize_linear,
    quantize_table,
)
from libsemantic.engine.initializers import make_zeros
from libsemantic.engine.processor import byte_steps
from libsemantic.engine.providers import Device
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Classification, Embedding, Result, TokenClassification
from libsemantic.engine.session import OrtModel, Runner
from libsemantic.engine.weights import load_array, read_weights

from .graph_runs import MODELS, arrays_of, write_file
from .test_engine_goldens import ALL, RERANKER, SAME, answer, check_same, golden
from .test_exits import MANIFEST, shallow
from .test_real_models import folder as real_folder

Array: TypeAlias = NDArray[np.float64]
Change: TypeAlias = Callable[[pytest.MonkeyPatch], None]
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]

# The root mean square of what int8 changes, as a share of that by which answers differ among each
# other. These models are 64 wide and hardly trained: errors of rounding average out far less than
# in real ones. In 127 steps (processors without VNNI) twice as much is allowed.
TOLERANCES = {
    "bert-seq": 0.12,
    "bert-reranker": 0.09,
    "bert-token": 0.13,
    "bert-embed-mean": 0.08,
    "bert-embed-cls": 0.10,
    "roberta-seq": 0.11,
    "roberta-token": 0.15,
    "xlm-roberta-seq": 0.10,
    "distilbert-seq": 0.15,
    "electra-seq": 0.19,
    "deberta-v3-seq": 0.09,
    "deberta-v3-token": 0.15,
    "modernbert-seq-cls": 0.19,
    "modernbert-seq-mean": 0.08,
    "modernbert-nli": 0.14,
    "modernbert-token": 0.31,
    "modernbert-hallucination": 0.27,
    "mmbert-embed-mean": 0.08,
    "qwen3-embed-last": 0.07,
    "gemma3-embed-mean": 0.04,
}
CERTAIN = 0.6  # how far the best class of fp32 is ahead where int8 must find the same
BASE = MODELS / "modernbert-lora-base"
SENTENCES = (Path(__file__).parent / "sentences.txt").read_text().splitlines()


def allowed(name: str) -> float:
    return TOLERANCES[name] * (1 if byte_steps() == 255 else 2)


def answers(registry: Registry, name: str, precision: Precision) -> Result:
    """Answer all texts of both golden files."""
    limit, cases = golden(name, "expected_more.json")
    options = LoadOptions(name=precision.name, precision=precision, max_tokens=limit)
    handle = registry.load(str(MODELS / name), options)
    assert registry.info(handle).dtype == ("int8" if precision is Precision.INT8 else "fp32")
    return answer(registry, handle, name, [*cases, *golden(name, "expected.json")[1]])


@cache
def in_fp32(name: str) -> Result:
    registry = Registry()
    found = answers(registry, name, Precision.FP32)
    registry.cleanup(30_000)
    return found


def values_of(result: Result) -> Array:
    """Return the numbers that an answer consists of: a vector, logits, or classes of tokens."""
    if isinstance(result, TokenClassification):
        assert result.probabilities is not None
        return result.probabilities.astype(np.float64)
    assert isinstance(result, Classification | Embedding)
    values = result.logits if isinstance(result, Classification) else result.values
    return values.astype(np.float64)


def error_of(found: Array, expected: Array) -> float:
    spread = expected - expected.mean(axis=0)
    return float(np.sqrt(((found - expected) ** 2).mean() / (spread**2).mean()))


@pytest.mark.parametrize("name", ALL)
def test_int8_is_near_fp32(registry: Registry, name: str) -> None:
    expected, found = in_fp32(name), answers(registry, name, Precision.INT8)
    error = error_of(values_of(found), values_of(expected))
    # More than 0: it really runs in int8.
    assert allowed(name) / 8 < error <= allowed(name)
    if name == RERANKER:
        scores, others = (values_of(each)[:, 0] for each in (expected, found))
        apart = scores[:, None] - scores > 4 * allowed(name) * scores.std()
        assert apart.sum() > 30
        assert (others[:, None] > others)[apart].all()
    elif isinstance(expected, Classification | TokenClassification):
        assert isinstance(found, type(expected))
        assert expected.probabilities is not None
        best = np.sort(expected.probabilities, axis=1)
        certain = best[:, -1] - best[:, -2] > CERTAIN
        assert certain.sum() >= 5
        same = found.label_index[certain] == expected.label_index[certain]
        assert same.mean() >= (0.99 if isinstance(expected, TokenClassification) else 1.0)


# Wrong int8: each must be found


def lowest_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = quantized.quantize_rows

    def quantize_rows(graph: GraphBuilder, x: str, steps: int) -> Rows:
        rows = right(graph, x, steps)
        return replace(rows, low=graph.op("Mul", [rows.low, graph.floats(0.0, 1.0)]))

    patch.setattr(quantized, "quantize_rows", quantize_rows)


def bias_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = quantized.quantize_linear

    patch.setattr(
        quantized, "quantize_linear", lambda weight, _, update: right(weight, None, update)
    )


def few_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "byte_steps", lambda: 15)


def half_scales(patch: pytest.MonkeyPatch) -> None:
    """Quantize tables as if their scales were those of linear layers' float32."""
    right = quantized._symmetric
    patch.setattr(
        quantized,
        "_symmetric",
        lambda values, tensor: (right(values, tensor)[0], right(values, tensor)[1] / 2),
    )


MUTATIONS = [
    *((name, change) for name in ALL for change in (lowest_forgotten, few_steps, half_scales)),
    *((name, bias_forgotten) for name in ALL if not name.startswith(("modern", "mmb", "q", "gem"))),
]


@pytest.mark.parametrize(("name", "change"), MUTATIONS)
def test_a_wrong_quantization_is_found(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str, change: Change
) -> None:
    change(monkeypatch)
    found = answers(registry, name, Precision.INT8)
    assert error_of(values_of(found), values_of(in_fp32(name))) > 1.5 * TOLERANCES[name]


# Alone and together


def alone_and_together(registry: Registry, name: str) -> None:
    limit, cases = golden(name, "expected_more.json")
    options = LoadOptions(precision=Precision.INT8, max_tokens=limit)
    handle = registry.load(str(MODELS / name), options)
    cases = (*cases, *golden(name, "expected.json")[1])
    singles = [answer(registry, handle, name, [case]) for case in cases]
    before = registry.stats().batches.sum()
    check_same(answer(registry, handle, name, cases), singles)
    assert registry.stats().batches.sum() - before < len(cases)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_equals_its_texts_alone(registry: Registry, name: str) -> None:
    alone_and_together(registry, name)


@pytest.mark.parametrize("name", ["bert-seq", "modernbert-seq-mean", "qwen3-embed-last"])
def test_one_step_for_all_rows_would_be_found(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def quantize_rows(graph: GraphBuilder, x: str, steps: int) -> Rows:
        op, low_and_one = graph.op, right(graph, x, steps).low
        high, low = (op(kind, [x], {"keepdims": 0}) for kind in ("ReduceMax", "ReduceMin"))
        step = op("Mul", [op("Sub", [high, low]), graph.scalar(1 / steps)])
        values = op("QuantizeLinear", [op("Sub", [x, low]), step])
        lows = op(
            "Add",
            [
                op("Mul", [low_and_one, graph.floats(0.0, 1.0)]),
                op("Mul", [low, graph.floats(1.0, 0.0)]),
            ],
        )
        return Rows(values, step, lows)

    right = quantized.quantize_rows
    monkeypatch.setattr(quantized, "quantize_rows", quantize_rows)
    with pytest.raises(AssertionError):
        alone_and_together(registry, name)


# Parts and adapters


def test_fewer_layers_are_those_of_a_model_of_so_many(
    registry: Registry, copy_golden: CopyGolden, tmp_path: Path
) -> None:
    name = "mmbert-embed-mean"
    folder = copy_golden(name, {"matryoshka_config.json": MANIFEST})
    options = LoadOptions(precision=Precision.INT8)
    handle = registry.load(str(folder), options)
    assert registry.info(handle).layers.tolist() == [1, 2, 4]
    texts = SENTENCES[:20]
    for layer in (1, 2):
        shallow(tmp_path / f"of-{layer}", layer)
        other = registry.load(str(tmp_path / f"of-{layer}"), options)
        found = registry.embed(handle, texts, RunOptions(layer=layer))
        np.testing.assert_allclose(
            found.values, registry.embed(other, texts).values, rtol=0, atol=SAME
        )
        alone = [registry.embed(handle, [text], RunOptions(layer=layer)) for text in texts]
        check_same(found, alone)


@pytest.mark.parametrize("mode", AdapterMode)
def test_adapters_run_on_an_int8_base(registry: Registry, mode: AdapterMode) -> None:
    found = {}
    for precision in (Precision.FP32, Precision.INT8):
        for name in ("domain", "guard"):
            label = f"{name} {precision.name}"
            options = LoadOptions(name=label, precision=precision, adapter_mode=mode)
            handle = registry.load(str(BASE / "adapters" / name), options)
            found[label] = registry.classify(handle, SENTENCES[::5])
            adapter = json.loads(registry.info(handle).json)["adapter"]
            assert adapter["mode"] == mode.name.lower()
            alone = [registry.classify(handle, [text]) for text in SENTENCES[:40:5]]
            check_same(registry.classify(handle, SENTENCES[:40:5]), alone)
    for name in ("domain", "guard"):
        expected, quantized = found[f"{name} FP32"], found[f"{name} INT8"]
        error = error_of(values_of(quantized), values_of(expected))
        assert 0.01 < error < 0.25 * (255 / byte_steps())
    owners = [owner for owner in registry.stats().memory_owner if owner.startswith("base ")]
    # Those of one precision share a base, and never with the other.
    assert len(owners) == (2 if mode is AdapterMode.SHARED else 0)


@pytest.mark.parametrize("mode", AdapterMode)
def test_an_update_that_is_lost_is_found(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, mode: AdapterMode
) -> None:
    path = str(BASE / "adapters" / "domain")
    right = registry.load(path, LoadOptions(name="right", adapter_mode=mode))
    expected = values_of(registry.classify(right, SENTENCES[::5]))
    quantize = quantized.quantize_linear
    adapted = GraphBuilder.adapted

    def unchanged(  # with an update of nothing, so that the graph keeps its inputs
        self: GraphBuilder, x: str, y: str, name: str, inputs: Size, outputs: Size
    ) -> str:
        lost = self.op("Mul", [adapted(self, x, y, name, inputs, outputs), self.scalar(0.0)])
        return self.op("Add", [lost, y])

    monkeypatch.setattr(GraphBuilder, "adapted", unchanged)
    monkeypatch.setattr(
        quantized, "quantize_linear", lambda weight, bias, _: quantize(weight, bias, None)
    )
    options = LoadOptions(name="wrong", adapter_mode=mode, precision=Precision.INT8)
    wrong = registry.load(path, options)
    assert error_of(values_of(registry.classify(wrong, SENTENCES[::5])), expected) > 0.3


# Rows while they run


@pytest.mark.parametrize("steps", [255, 127])
def test_rows_are_within_half_a_step_and_use_them_all(tmp_path: Path, steps: int) -> None:
    rows = np.random.default_rng(4).standard_normal((9, 40)).astype(np.float32)
    rows[1] = 0
    rows[2] = 1.7
    rows[3] = -np.abs(rows[3])
    rows[4] = np.abs(rows[4]) + 3
    rows[5] *= 1e-30
    rows[6] *= 1e30
    rows[7, 11] = -900
    write_file(tmp_path / "model.safetensors", {"rows": rows}, lambda _: "F32")
    width = Size("width", 40)

    def run(pick: Callable[[GraphBuilder, Rows], str]) -> Array:
        graph = GraphBuilder(read_weights(tmp_path), ("input_ids",), fused=True)
        x = graph.fold(graph.embedding("input_ids", "rows", Size("rows", 9), width), width)
        value = pick(graph, quantized.quantize_rows(graph, x, steps))
        finished = graph.finish(Head(value, "y", ("rows", "w"), 40, 9, 9, 0), ())
        model = OrtModel(finished.model, finished.weights_folder, {"input_ids": "int64"}, "y")
        runner = Runner(model, Device("cpu", "cpu"), threads=1)
        return runner.run({"input_ids": np.arange(9)[None]}, RunControl(())).astype(np.float64)

    values = run(lambda graph, rows: graph.op("Cast", [rows.values], {"to": 1}))
    step = run(lambda _, rows: rows.step)
    low = run(lambda _, rows: rows.low)
    assert (low[:, 1] == 1).all()
    plain = [row for row in range(9) if row not in (1, 2)]
    assert (values[plain].min(axis=1) == 0).all()
    assert (values[plain].max(axis=1) == steps).all()
    again = values * step + low[:, :1]
    assert (np.abs(again - rows) <= step * 0.501).all()
    np.testing.assert_array_equal(again[[1, 2]], rows[[1, 2]])


def test_no_pair_of_products_leaves_16_bits_without_vnni() -> None:
    assert 2 * 127 * 127 < 2**15 < 2 * 255 * 127


# Weights as they are stored, and damaged


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_value_of_a_layer_is_within_half_a_step(tmp_path: Path, dtype: str) -> None:
    random = np.random.default_rng(3)
    array = random.standard_normal((700, 96)).astype(np.float32)  # more than is held at a time
    array[5] = 0
    array[6] *= 1e-30
    update = Update(
        *(random.standard_normal(shape).astype(np.float32) for shape in ((2, 96), (700, 2)))
    )
    write_file(tmp_path / "model.safetensors", {"w": array, "b": array[:, 0]}, lambda _: dtype)
    tensors = read_weights(tmp_path)
    stored = load_array(tensors["w"])
    for change, expected in ((None, stored), (update, stored + update.up @ update.down)):
        weight, scales, offsets = (
            each.values.astype(np.float64)
            for each in quantize_linear(tensors["w"], tensors["b"], change).make()
        )
        assert weight.shape == (96, 700)
        assert np.abs(weight).max() == 127
        np.testing.assert_allclose(scales, np.abs(expected).max(axis=1) / 127, rtol=1e-6)
        again = weight.T * scales[:, None]
        assert (np.abs(again - expected) <= scales[:, None] * 0.5001).all()
        np.testing.assert_allclose(offsets[0], again.sum(axis=1), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(offsets[1], load_array(tensors["b"]))
    table, scales = (each.values.astype(np.float64) for each in quantize_table(tensors["w"]).make())
    assert (np.abs(table * scales - stored) <= scales * 0.5001).all()
    assert not table[5].any()


def test_a_weight_that_is_too_large_is_refused(registry: Registry, tmp_path: Path) -> None:
    """Its sums overflow, which is no warning on the caller's stderr."""
    folder = tmp_path / "model"
    shutil.copytree(MODELS / "bert-embed-mean", folder, ignore=shutil.ignore_patterns("expected*"))
    arrays = arrays_of("bert-embed-mean")
    arrays["encoder.layer.0.attention.self.query.weight"][:] = 3e38
    write_file(folder / "model.safetensors", arrays, lambda _: "F32")
    with pytest.raises(BadArtifactError, match="NaN or infinity"):
        registry.load(str(folder), LoadOptions(precision=Precision.INT8))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", ["embeddings.word_embeddings", "encoder.layer.1.output.dense"])
def test_a_weight_that_is_no_number_is_named(
    registry: Registry, tmp_path: Path, value: float, weight: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODELS / "bert-embed-mean", folder, ignore=shutil.ignore_patterns("expected*"))
    arrays = arrays_of("bert-embed-mean")
    arrays[f"{weight}.weight"][3, 5] = value
    write_file(folder / "model.safetensors", arrays, lambda _: "F32")
    with pytest.raises(BadArtifactError, match=f"'{weight}.weight' .* holds NaN or infinity"):
        registry.load(str(folder), LoadOptions(precision=Precision.INT8))


def test_weights_that_are_still_read_are_not_let_go(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that answers differently once the pages are zeros is refused."""
    answers = iter(np.arange(2.0))
    monkeypatch.setattr(Runner, "run", lambda *_: next(answers))
    with pytest.raises(InternalError, match="still reads the weights"):
        registry.load(str(MODELS / "bert-seq"), LoadOptions(precision=Precision.INT8))


def test_memory_that_is_refused_is_said(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        MAP_PRIVATE = MAP_ANONYMOUS = 0

        def mmap(self, _: int, size: int, *, flags: int) -> None:
            raise OSError(12, f"Cannot allocate memory: {size} {flags}")

    monkeypatch.setattr("libsemantic.engine.initializers.mmap", Refusing())
    with pytest.raises(OutOfMemoryError, match=r"refused [1-9]\d* MiB for weights in int8"):
        registry.load(str(MODELS / "bert-seq"), LoadOptions(precision=Precision.INT8))
    assert registry.list_models().count == 0


def test_dropped_pages_are_zeros() -> None:
    made = make_zeros("x", (3, 5000), np.int8)
    made.values[:] = 7
    made.drop()
    assert not made.values.any()


# A real model


def test_int8_of_minilm_is_near_fp32(registry: Registry) -> None:
    found, expected = (
        registry.embed(
            registry.load(str(real_folder("minilm")), LoadOptions(name=each.name, precision=each)),
            SENTENCES,
        ).values
        for each in (Precision.INT8, Precision.FP32)
    )
    assert len(SENTENCES) == len(set(SENTENCES)) == 200
    cosines = np.einsum("ij,ij->i", found, expected)
    neighbours = [(each @ each.T - 9 * np.eye(200)).argmax(axis=1) for each in (found, expected)]
    assert (neighbours[0] == neighbours[1]).mean() >= 0.92
    full = byte_steps() == 255
    assert cosines.min() >= (0.99 if full else 0.97)
    assert np.median(cosines) >= (0.998 if full else 0.996)
    info = registry.info(registry.find("INT8"))
    assert info.dtype == "int8"
