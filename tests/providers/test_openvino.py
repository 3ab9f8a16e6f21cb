"""OpenVINO: equal to transformers in float32, close in bfloat16, and refused where it is not.

Run by ``make test-openvino`` in an environment with onnxruntime-openvino.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from libsemantic.engine import providers
from libsemantic.engine.config import AdapterMode, LoadOptions, Precision, RunOptions, Task
from libsemantic.engine.devices import require_one_runtime
from libsemantic.engine.errors import (
    DeadlineError,
    DeviceUnavailableError,
    Status,
    UnsupportedError,
)
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.processor import cpu_instructions
from libsemantic.engine.providers import PROVIDERS
from libsemantic.engine.registry import Registry
from libsemantic.engine.weights import read_weights
from tests.golden.test_engine_goldens import ALL, FILES, MODELS, SAME
from tests.golden.test_real_models import MINILM_REFERENCE

from .golden_differences import TOLERANCES, check_golden
from .through_c import where

OV = "openvino"
CPU, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
TOLERANCE = TOLERANCES[OV].float32
MINILM = Path(__file__).parents[2] / "build" / "models" / "minilm"
TEXT = "What is the derivative of x squared?"

has_bf16 = bool(cpu_instructions() & {"amx_bf16", "avx512_bf16"})
needs_bf16 = pytest.mark.skipif(not has_bf16, reason="this CPU has no AMX and no AVX-512 BF16")


CopyGolden = Callable[[str, Mapping[str, object]], Path]


def load(
    registry: Registry, path: Path | str, precision: Precision = Precision.AUTO, device: str = OV
) -> int:
    return registry.load(str(MODELS / path), LoadOptions(device=device, precision=precision))


def test_the_environment_has_openvino_and_nothing_beside_it() -> None:
    assert onnxruntime.get_available_providers() == [OPENVINO, CPU]
    assert version("onnxruntime-openvino") == onnxruntime.__version__
    with pytest.raises(PackageNotFoundError):
        version("onnxruntime")
    require_one_runtime()


# Right values


@pytest.mark.parametrize(
    "precision", [Precision.FP32, pytest.param(Precision.BF16, marks=needs_bf16)]
)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", ALL)
def test_openvino_is_close_to_transformers(
    registry: Registry, name: str, file: str, precision: Precision
) -> None:
    check_golden(registry, name, file, OV, precision)


@needs_bf16
def test_bfloat16_keeps_real_vectors(registry: Registry) -> None:
    handle = load(registry, MINILM, Precision.BF16)
    cases = json.loads(MINILM_REFERENCE.read_text())["cases"]
    values = registry.embed(handle, [case["text"] for case in cases]).values
    expected = np.array([case["embedding"] for case in cases])
    cosines = (values * expected).sum(axis=1) / np.linalg.norm(expected, axis=1)
    assert len(cosines) > 10
    assert cosines.min() > TOLERANCES[OV].cosine


@pytest.mark.parametrize("name", ["bert-seq", "modernbert-seq-mean", "deberta-v3-seq"])
def test_a_text_is_the_same_alone_and_in_a_batch(registry: Registry, name: str) -> None:
    handle = load(registry, name)
    texts = [TEXT, "math", "the law of the invoice", f"{TEXT} {TEXT}", "a", "code math law"] * 3
    together = registry.classify(handle, texts).logits
    alone = np.concatenate([registry.classify(handle, [text]).logits for text in texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=SAME)


def test_calls_may_end_after_fewer_layers(registry: Registry, copy_golden: CopyGolden) -> None:
    manifest = {
        "layer_indices": [1, 2, 4],
        "dim_indices": [64],
        "hidden_size": 64,
        "num_layers": 4,
        "pooling_strategy": "mean",
        "has_final_norm": True,
    }
    folder = copy_golden("mmbert-embed-mean", {"matryoshka_config.json": manifest})
    handles = [load(registry, folder, device=OV)]
    options = LoadOptions(device="cpu", name="cpu")
    handles.append(registry.load(str(folder), options))
    for layer in (1, 2, 4):
        there, here = (
            registry.embed(handle, [TEXT, "a"], RunOptions(layer=layer)).values
            for handle in handles
        )
        np.testing.assert_allclose(there, here, rtol=0, atol=TOLERANCE)
    assert registry.info(handles[0]).layers.tolist() == [1, 2, 4]


def test_merged_adapters_run_and_shared_ones_are_refused(registry: Registry) -> None:
    base = MODELS / "modernbert-lora-base"
    folders = sorted(path.parent for path in base.rglob("adapter_config.json"))
    assert folders
    for folder in folders:
        options = LoadOptions(device=OV, base_path=str(base))
        with pytest.raises(UnsupportedError, match=r"openvino cannot.*one base.*MERGED"):
            registry.load(str(folder), options)
        merged = replace(options, adapter_mode=AdapterMode.MERGED)
        handle = registry.load(str(folder), merged)
        other = registry.load(str(folder), replace(options, device="cpu", name="cpu"))
        there, here = (registry.classify(each, [TEXT, "a"]).logits for each in (handle, other))
        np.testing.assert_allclose(there, here, rtol=0, atol=TOLERANCE)
        assert registry.info(handle).device == OV
        shared = registry.load(str(folder), replace(options, device="auto", name="auto"))
        assert registry.info(shared).device == "cpu"
        assert "passed over openvino: openvino cannot" in registry.info(shared).warnings[-1]
        for each in (handle, other, shared):
            registry.unload(each, 1000)


# What is said


def test_the_device_is_said_everywhere_and_nothing_is_printed(
    registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    for device in (OV, "auto", ""):
        handle = load(registry, "modernbert-seq-cls", device=device)
        info = registry.info(handle)
        assert (info.device, info.provider) == (OV, OPENVINO)
        assert (info.precision, info.dtype, info.warnings) == ("fp32", "fp32", ())
        assert json.loads(info.json)["device"] == OV
        assert registry.stats().model_device == (OV,)
        registry.classify(handle, [TEXT, "a"])
        registry.unload(handle, 1000)
    assert capfd.readouterr() == ("", "")


@needs_bf16
def test_bfloat16_is_said(registry: Registry) -> None:
    info = registry.info(load(registry, "bert-seq", Precision.BF16))
    assert (info.device, info.precision, info.dtype) == (OV, "bf16", "fp32")
    assert json.loads(info.json)["precision"] == "bf16"


def test_the_c_library_runs_in_this_environment(tmp_path: Path) -> None:
    for device in (OV, "auto"):
        assert where(tmp_path, MODELS / "bert-seq", device) == [
            f"openvino {OPENVINO} fp32 openvino"
        ]
    assert where(tmp_path, MODELS / "bert-seq", "cpu") == [f"cpu {CPU} fp32 cpu"]
    (line,) = where(tmp_path, MODELS / "bert-seq", "cuda")
    assert line.startswith("DEVICE_UNAVAILABLE: device 'cuda' needs ONNX Runtime's CUDA")


# What is refused


def told(monkeypatch: pytest.MonkeyPatch, options: Mapping[str, str]) -> None:
    """Give OpenVINO other options than its row does."""
    row = replace(PROVIDERS[OV], options=lambda _, __: options)
    monkeypatch.setitem(PROVIDERS, OV, row)


def config(**values: str) -> Mapping[str, str]:
    return {"device_type": "CPU", "load_config": json.dumps({"CPU": values})}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device_type": "CPU", "load_config": "config.json"}, "refused its options"),
        ({"device_type": "NPU"}, "refused its options or found no device"),
        ({"device_type": "GPU"}, "refused its options or found no device"),
        ({"device_type": "CPU", "no_such": "1"}, "Invalid OpenVINO EP option: no_such"),
        (config(NO_SUCH_PROPERTY="1"), "Unsupported property NO_SUCH_PROPERTY"),
    ],
    ids=["a file", "no NPU", "no GPU", "an unknown option", "an unknown property"],
)
def test_options_that_openvino_does_not_take_never_lead_to_the_cpu(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, str], says: str
) -> None:
    told(monkeypatch, options)
    with pytest.raises(DeviceUnavailableError, match=says) as caught:
        load(registry, "bert-seq")
    assert "\n" not in caught.value.message
    assert registry.list_models().count == 0
    info = registry.info(load(registry, "bert-seq", device="auto"))
    assert (info.device, info.provider) == ("cpu", CPU)
    assert says.split(" or ")[0] in info.warnings[0]


@needs_bf16
@pytest.mark.parametrize(
    ("hint", "asked", "says"),
    [
        ("bf16", Precision.FP32, "computes in BF16 where FP32 was asked"),
        ("f16", Precision.FP32, r"computes in (BF16|FP16) where FP32 was asked"),
        ("f32", Precision.BF16, "computes in FP32 where BF16 was asked"),
        ("fp8", Precision.BF16, "computes in FP32 where BF16 was asked"),
    ],
)
def test_a_precision_that_is_not_the_one_asked_is_seen(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, hint: str, asked: Precision, says: str
) -> None:
    told(monkeypatch, config(INFERENCE_PRECISION_HINT=hint))
    with pytest.raises(UnsupportedError, match=says):
        load(registry, "bert-seq", asked)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_other_precisions_are_refused(registry: Registry, precision: Precision) -> None:
    with pytest.raises(UnsupportedError, match="openvino does not compute in"):
        load(registry, "bert-seq", precision)


def test_bfloat16_without_its_instructions_is_refused(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "cpu_instructions", lambda: frozenset({"avx512f"}))
    with pytest.raises(UnsupportedError, match="amx_bf16 or avx512_bf16"):
        load(registry, "bert-seq", Precision.BF16)


def ready_file(copy_golden: CopyGolden, *, fused: bool) -> Path:
    """Make a folder whose weights are an ONNX file."""
    folder = copy_golden("bert-seq", {})
    described = json.loads((folder / "config.json").read_text())
    weights = read_weights(folder)
    graph = build_graph(described, Task.SEQUENCE_CLASSIFICATION, weights, fused=fused)
    model = onnx.load_model_from_string(graph.model)
    onnx.external_data_helper.load_external_data_for_model(model, str(graph.weights_folder))
    for tensor in model.graph.initializer:
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    (folder / "model.safetensors").unlink()
    onnx.save(model, folder / "model.onnx")
    return folder


def test_ready_files_run_whole_or_not_at_all(registry: Registry, copy_golden: CopyGolden) -> None:
    plain, fused = (ready_file(copy_golden, fused=fused) for fused in (False, True))
    handle = load(registry, plain)
    assert registry.info(handle).device == OV
    there = registry.classify(handle, [TEXT]).logits
    with pytest.raises(DeviceUnavailableError, match=f"not run all.*MultiHeadAttention on {CPU}"):
        load(registry, fused)
    other = load(registry, fused, device="auto")
    assert registry.info(other).device == "cpu"
    np.testing.assert_allclose(
        there, registry.classify(other, [TEXT]).logits, rtol=0, atol=TOLERANCE
    )


@needs_bf16
def test_ready_files_are_not_computed_in_bfloat16(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    with pytest.raises(UnsupportedError, match=r"model.onnx cannot be computed in BF16"):
        load(registry, ready_file(copy_golden, fused=False), Precision.BF16)


def test_a_deadline_is_told_but_does_not_stop_a_run(registry: Registry) -> None:
    handle = load(registry, MINILM)
    text = "word " * 250
    texts = [text] * 24
    registry.embed(handle, [text])
    started = time.monotonic()
    registry.embed(handle, texts[:4])
    one = (time.monotonic() - started) / 4
    started = time.monotonic()
    options = RunOptions(timeout_ms=max(1, int(1000 * one)))
    try:
        status = registry.embed(handle, texts, options).rows.status
    except DeadlineError:
        status = (Status.DEADLINE,)
    # The runs under way end, those behind them do not begin.
    assert status[-1] == Status.DEADLINE
    assert set(status) <= {Status.OK, Status.DEADLINE}
    assert time.monotonic() - started < 12 * one
    assert registry.embed(handle, [text]).rows.status == (0,)
