"""The table of execution providers, and the devices that names stand for."""

import json
from collections.abc import Sequence

import pytest

from libsemantic.engine import providers
from libsemantic.engine.config import Precision
from libsemantic.engine.errors import (
    DeviceUnavailableError,
    InvalidArgumentError,
    UnsupportedError,
)
from libsemantic.engine.processor import cpu_instructions
from libsemantic.engine.providers import DEFAULT_ARENA_BYTES, PROVIDERS, Device, resolve

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
OPENVINO, TENSORRT = "OpenVINOExecutionProvider", "TensorrtExecutionProvider"
GPU_PACKAGE = (TENSORRT, CUDA, CPU)  # as onnxruntime-gpu lists them
AUTO, FP32, FP16 = Precision.AUTO, Precision.FP32, Precision.FP16
BF16, INT8 = Precision.BF16, Precision.INT8


TF32 = "NVIDIA_TF32_OVERRIDE"


@pytest.fixture(autouse=True)
def _tensorrt_computes_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TF32, "0")


def resolved(
    name: str, installed: Sequence[str], precision: Precision = AUTO, arena_bytes: int = 0
) -> list[tuple[str, str]]:
    devices = resolve(name, precision, arena_bytes, installed)
    assert all(device.name == (name or "auto") for device in devices)
    return [(device.place, device.provider.name) for device in devices]


@pytest.mark.parametrize(
    ("name", "installed", "devices"),
    [
        ("", (CPU,), [("cpu", CPU)]),
        ("auto", (CPU,), [("cpu", CPU)]),
        ("cpu", (CPU,), [("cpu", CPU)]),
        ("cpu", (OPENVINO, CPU), [("cpu", CPU)]),
        ("cpu", GPU_PACKAGE, [("cpu", CPU)]),
        ("auto", (OPENVINO, CPU), [("openvino", OPENVINO), ("cpu", CPU)]),
        ("openvino", (OPENVINO, CPU), [("openvino", OPENVINO)]),
        ("auto", ("Other", *GPU_PACKAGE), [("cuda:0", CUDA), ("cpu", CPU)]),
        ("cuda", GPU_PACKAGE, [("cuda:0", CUDA)]),
        ("cuda:0", GPU_PACKAGE, [("cuda:0", CUDA)]),
        ("cuda:12", GPU_PACKAGE, [("cuda:12", CUDA)]),
        ("tensorrt", GPU_PACKAGE, [("tensorrt:0", TENSORRT)]),
        ("tensorrt:3", GPU_PACKAGE, [("tensorrt:3", TENSORRT)]),
    ],
)
def test_names_stand_for_devices(
    name: str, installed: Sequence[str], devices: list[tuple[str, str]]
) -> None:
    assert resolved(name, installed) == devices


@pytest.mark.parametrize(
    "name",
    [
        *("gpu", "CPU", " cpu", "cpu ", "cpu:", "cpu:0", "auto:1", ":", CPU, "openvino:0"),
        *("cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:١", "cuda:1.0", "cuda 1", "cuda:1\n"),
        *("cuda:1234567890", "x" * 5000),
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"unknown device .{1,60}; use .*cuda or cuda:N, openvino"
    ):
        resolve(name, AUTO, 0, (OPENVINO, *GPU_PACKAGE))


@pytest.mark.parametrize(
    ("name", "provider", "package"),
    [
        ("cuda", CUDA, "onnxruntime-gpu"),
        ("cuda:1", CUDA, "onnxruntime-gpu"),
        ("tensorrt", TENSORRT, "onnxruntime-gpu"),
        ("openvino", OPENVINO, "onnxruntime-openvino"),
    ],
)
def test_what_is_not_installed_is_named_with_its_package(
    name: str, provider: str, package: str
) -> None:
    with pytest.raises(
        DeviceUnavailableError, match=f"'{name}' needs.*{provider}.*has {CPU}.*{package}.*use cpu"
    ):
        resolve(name, AUTO, 0, (CPU,))


# Precision


@pytest.mark.parametrize(
    ("name", "precision", "found"),
    [
        ("cpu", INT8, "cpu"),
        ("openvino", FP32, "openvino"),
        ("openvino", BF16, "openvino"),
        ("auto", BF16, "openvino"),
        ("auto", INT8, "cpu"),
    ],
)
def test_a_device_is_found_for_a_precision(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision, found: str
) -> None:
    monkeypatch.setattr(providers, "cpu_instructions", lambda: frozenset({"fpu", "avx512_bf16"}))
    places = [place for place, _ in resolved(name, (OPENVINO, CPU), precision)]
    assert places[0] == found
    assert len(places) == 1 + (name == "auto" and precision is FP32)


@pytest.mark.parametrize(
    ("name", "precision", "says"),
    [
        ("cpu", BF16, "cpu does not compute in BF16, but in FP32, INT8"),
        ("cpu", FP16, "cpu does not compute in FP16"),
        ("openvino", FP16, "openvino does not compute in FP16, but in FP32, BF16"),
        ("openvino", INT8, "openvino does not compute in INT8"),
        ("openvino", BF16, "on a CPU with amx_bf16 or avx512_bf16, and this one has neither"),
        ("auto", BF16, "has neither; cpu does not compute in BF16"),
    ],
)
def test_a_precision_that_is_not_computed_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision, says: str
) -> None:
    monkeypatch.setattr(providers, "cpu_instructions", lambda: frozenset({"fpu", "avx512f"}))
    with pytest.raises(UnsupportedError, match=f"{says}.*use precision AUTO or FP32"):
        resolve(name, precision, 0, (OPENVINO, CPU))


def test_precision_stays_fp32_unless_another_one_is_asked() -> None:
    for kind in PROVIDERS:
        for asked in (AUTO, FP32):
            device = Device(kind, kind, asked=asked)
            assert (device.precision, device.lowered, device.graph_precision) == (FP32, FP32, asked)
    # OpenVINO computes a float32 graph in bfloat16, CUDA is given a float16 graph.
    device = Device("openvino", "openvino", asked=BF16)
    assert (device.precision, device.lowered, device.graph_precision) == (BF16, BF16, FP32)
    device = Device("cuda", "cuda", asked=FP16)
    assert (device.precision, device.lowered, device.graph_precision) == (FP16, FP32, FP16)


# What the providers are given


@pytest.mark.parametrize(("asked", "hint"), [(AUTO, "f32"), (FP32, "f32"), (BF16, "bf16")])
def test_openvino_is_told_precision_and_threads(asked: Precision, hint: str) -> None:
    device = Device("openvino", "openvino", asked=asked)
    options = device.provider.options(device, 3)
    assert options["device_type"] == "CPU"
    assert json.loads(options["load_config"]) == {
        "CPU": {
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": "3",
            "NUM_STREAMS": "1",
            "ENABLE_CPU_PINNING": "NO",
        }
    }


def test_a_gpu_is_told_its_number_and_its_memory() -> None:
    (device,) = resolve("cuda:2", FP32, 123, GPU_PACKAGE)
    options = device.provider.options(device, 8)
    assert (options["device_id"], options["gpu_mem_limit"]) == ("2", "123")
    assert options["use_tf32"] == "0"  # or float32 would have 10 bits of mantissa
    (device,) = resolve("tensorrt:1", FP32, 0, GPU_PACKAGE)
    options = device.provider.options(device, 8)
    assert options["device_id"] == "1"
    assert options["trt_max_workspace_size"] == str(DEFAULT_ARENA_BYTES) == str(4 * 2**30)


@pytest.mark.parametrize(("asked", "flag"), [(AUTO, "0"), (FP32, "0"), (FP16, "1")])
def test_tensorrt_is_told_of_float16_graphs(asked: Precision, flag: str) -> None:
    (device,) = resolve("tensorrt", asked, 0, GPU_PACKAGE)
    assert device.provider.options(device, 8)["trt_fp16_enable"] == flag


@pytest.mark.parametrize("value", [None, "", "1"])
def test_tensorrt_does_not_round_float32_without_a_word(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(TF32)
    else:
        monkeypatch.setenv(TF32, value)
    for precision in (AUTO, FP32):
        with pytest.raises(UnsupportedError, match=f"tf32 unless {TF32} is 0 .*use .*FP16"):
            resolve("tensorrt", precision, 0, GPU_PACKAGE)
        for name in ("cuda", "auto"):
            assert resolved(name, GPU_PACKAGE, precision)[0] == ("cuda:0", CUDA)
    assert resolved("tensorrt", GPU_PACKAGE, FP16) == [("tensorrt:0", TENSORRT)]


def test_an_arena_is_for_devices_that_have_one() -> None:
    for name in ("cpu", "openvino"):
        with pytest.raises(
            InvalidArgumentError, match=f"arena_bytes is 7, but {name} .*leave it 0"
        ):
            resolve(name, AUTO, 7, (OPENVINO, CPU))
    assert [device.arena_bytes for device in resolve("auto", AUTO, 7, GPU_PACKAGE)] == [7, 7]


def test_the_table_agrees_with_itself() -> None:
    assert list(PROVIDERS)[-1] == "cpu"  # "auto" ends there
    assert len({row.name for row in PROVIDERS.values()}) == len(PROVIDERS)
    for kind, row in PROVIDERS.items():
        assert row.precisions[0] is FP32
        assert row.lowers <= set(row.precisions)
        assert bool(row.library) == (kind != "cpu")
        assert not row.shares_bases or row.fused  # what takes rank 0 takes all of ONNX Runtime's


def test_the_cpu_says_what_it_has() -> None:
    assert cpu_instructions() & {"sse2", "asimd"}
