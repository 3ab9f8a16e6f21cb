"""Devices on this installation: tried, verified, and never a quiet fall back to the CPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from libsemantic.engine.config import (
    LoadOptions,
    LogLevel,
    Precision,
    RunOptions,
    RuntimeOptions,
)
from libsemantic.engine.devices import (
    PRODUCT_MODEL,
    find_devices,
    require_one_runtime,
    require_working,
)
from libsemantic.engine.errors import (
    BadArtifactError,
    DeviceUnavailableError,
    InterpreterError,
    OutOfMemoryError,
    UnsupportedError,
)
from libsemantic.engine.ort_messages import run_error
from libsemantic.engine.providers import PROVIDERS
from libsemantic.engine.registry import Registry

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
REAL = onnxruntime.InferenceSession
TEXTS = ["What is the derivative of x squared?", "math", "the law of the invoice"]


def test_the_product_model_is_what_it_says() -> None:
    sizes: Mapping[str, list[str | int]] = {"x": ["n", 1], "w": [1, 1], "y": ["n", 1]}
    x, w, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items())
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x, w], [y])
    built = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name=""
    )
    onnx.checker.check_model(built)
    assert built.SerializeToString() == PRODUCT_MODEL


@dataclass(frozen=True, slots=True)
class Node:
    op_type: str


@dataclass(frozen=True, slots=True)
class Part:
    ep_name: str
    nodes: tuple[Node, ...]

    def get_nodes(self) -> tuple[Node, ...]:
        return self.nodes


class Gpu:
    """ONNX Runtime on a machine with a GPU: the CPU computes, and what a test says is told."""

    def __init__(self) -> None:
        self.starts = True  # whether the provider does
        self.leaves: Sequence[str] = ()  # operators of models that it leaves to the CPU
        self.raises: Callable[[bytes], Exception | None] = lambda _: None
        self.rounds: Callable[[NDArray[np.float32]], object] = lambda x: x
        self.asked: list[Sequence[tuple[str, Mapping[str, str]]]] = []

    def session(
        self,
        model: bytes | str,
        sess_options: onnxruntime.SessionOptions,
        *,
        providers: Sequence[tuple[str, Mapping[str, str]]],
        enable_fallback: bool,
    ) -> object:
        assert not enable_fallback  # it prints, and goes on with the CPU
        self.asked.append(providers)
        names = [name for name, _ in providers]
        assert names in ([CPU], [CUDA, CPU])
        assert isinstance(model, bytes)
        error = self.raises(model) if names[0] == CUDA else None
        if error is not None:
            raise error
        opened = REAL(model, sess_options, providers=[CPU], enable_fallback=False)
        if names[0] == CPU:
            return opened
        gpu = self

        class Opened:
            """A session that lies about its provider."""

            io_binding = opened.io_binding
            run_with_iobinding = opened.run_with_iobinding

            @staticmethod
            def run(names: None, feeds: Mapping[str, NDArray[np.float32]]) -> list[object]:
                return [gpu.rounds(each) for each in opened.run(names, feeds)]

            @staticmethod
            def get_providers() -> list[str]:
                return [CUDA, CPU] if gpu.starts else [CPU]

            @staticmethod
            def get_provider_graph_assignment_info() -> Iterator[Part]:
                for part in opened.get_provider_graph_assignment_info():
                    for node in part.get_nodes():
                        left = model != PRODUCT_MODEL and node.op_type in gpu.leaves
                        yield Part(CPU if left else CUDA, (Node(node.op_type),))

        return Opened()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    fake = Gpu()
    monkeypatch.setattr(onnxruntime, "InferenceSession", fake.session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    # Its memory is the host's, so that values are bound as on a GPU.
    monkeypatch.setitem(PROVIDERS, "cuda", replace(PROVIDERS["cuda"], memory="cpu"))
    return fake


def load(registry: Registry, device: str, precision: Precision = Precision.AUTO) -> int:
    options = LoadOptions(device=device, precision=precision)
    return registry.load(str(GOLDEN / "bert-seq"), options)


def refused(registry: Registry, device: str, match: str) -> str:
    """Load on a device that cannot be had; nothing is left of it."""
    with pytest.raises(DeviceUnavailableError, match=match) as caught:
        load(registry, device)
    assert "\n" not in caught.value.message
    assert registry.list_models().count == 0
    return caught.value.message


@dataclass(frozen=True, slots=True)
class Lines:
    """A log that is kept."""

    lines: list[tuple[LogLevel, str]]

    def of(self, level: LogLevel) -> list[str]:
        return [line for each, line in self.lines if each is level]


@pytest.fixture
def log(registry: Registry) -> Lines:
    kept = Lines([])
    registry.log.send_to(lambda level, line: kept.lines.append((level, line)))
    registry.init(RuntimeOptions(log_level=LogLevel.INFO))
    return kept


# A device that works


def test_a_gpu_runs_the_model_and_says_so(gpu: Gpu, registry: Registry, log: Lines) -> None:
    for name in ("cuda", "auto", "cuda:3"):
        handle = load(registry, name)
        info = registry.info(handle)
        number = "3" if name == "cuda:3" else "0"
        assert (info.device, info.provider, info.precision) == (f"cuda:{number}", CUDA, "fp32")
        assert info.warnings == ()
        assert registry.stats().model_device == (f"cuda:{number}",)
        answer = registry.classify(handle, ["What is the derivative of x squared?"])
        assert log.of(LogLevel.INFO)[-1].endswith(f"fp32, on cuda:{number} ({CUDA}) in fp32")
        registry.unload(handle, 1000)
        asked = dict(gpu.asked[-1])
        assert list(asked) == [CUDA, CPU]
        assert asked[CUDA]["device_id"] == number
        handle = load(registry, "cpu")
        assert registry.info(handle).device == "cpu"
        same = registry.classify(handle, ["What is the derivative of x squared?"])
        np.testing.assert_allclose(answer.logits, same.logits, rtol=0, atol=1e-5)
        registry.unload(handle, 1000)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [(Precision.FP32, 1e-5), (Precision.FP16, 0.3)], ids=["32", "16"]
)
def test_values_that_stay_on_the_device_pass_from_base_to_head(
    gpu: Gpu, registry: Registry, precision: Precision, tolerance: float
) -> None:
    base = GOLDEN / "modernbert-lora-base"
    folders = sorted(path.parent for path in base.rglob("adapter_config.json"))
    assert len(folders) > 1
    options = LoadOptions(device="cuda", precision=precision, base_path=str(base))
    for folder in folders:
        logits = []
        for each in (options, LoadOptions(device="cpu", base_path=str(base))):
            handle = registry.load(str(folder), each)
            assert registry.info(handle).device == ("cuda:0" if each is options else "cpu")
            logits.append(registry.classify(handle, TEXTS).logits)
            registry.unload(handle, 1000)
        np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=tolerance)
        assert np.ptp(logits[1]) > 20 * tolerance
    assert len(gpu.asked) > 4


def test_values_that_stay_on_the_device_pass_from_exit_to_exit(
    gpu: Gpu, registry: Registry, copy_golden: Callable[[str, Mapping[str, object]], Path]
) -> None:
    manifest = {
        "layer_indices": [1, 2, 4],
        "dim_indices": [64],
        "hidden_size": 64,
        "num_layers": 4,
        "pooling_strategy": "mean",
        "has_final_norm": True,
    }
    folder = copy_golden("mmbert-embed-mean", {"matryoshka_config.json": manifest})
    there = registry.load(str(folder), LoadOptions(device="cuda", name="there"))
    here = registry.load(str(folder), LoadOptions(device="cpu", name="here"))
    assert len(gpu.asked) > 6  # the product, three parts, three parts
    for layer in (1, 2, 4):
        vectors = [
            registry.embed(each, TEXTS, RunOptions(layer=layer)).values for each in (there, here)
        ]
        np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_computes_in_float16_if_asked(registry: Registry) -> None:
    text = ["What is the derivative of x squared?", "math"]
    handle = load(registry, "cuda", Precision.FP16)
    info = registry.info(handle)
    assert (info.device, info.precision, info.dtype) == ("cuda:0", "fp16", "fp32")
    half = registry.classify(handle, text).logits
    registry.unload(handle, 1000)
    handle = load(registry, "cpu")
    full = registry.classify(handle, text).logits
    registry.unload(handle, 1000)
    assert 1e-4 < np.abs(half - full).max() < 0.05
    assert np.ptp(full) > 5
    with pytest.raises(UnsupportedError, match="cuda does not compute in BF16"):
        load(registry, "cuda", Precision.BF16)


# A device that does not


def test_a_provider_whose_library_does_not_load_says_why(gpu: Gpu, registry: Registry) -> None:
    gpu.starts = False
    for name in ("cuda", "cuda:1"):
        message = refused(registry, name, f"could not start {CUDA} for device '{name}'")
        # The loader's own words: this installation has no such file.
        assert "libonnxruntime_providers_cuda.so: cannot open shared object file" in message
        with pytest.raises(DeviceUnavailableError, match="cannot open shared object file"):
            registry.init(RuntimeOptions(device=name))
    assert not registry.stats().running or registry.list_models().count == 0


def test_a_provider_that_fails_says_why(gpu: Gpu, registry: Registry) -> None:
    gpu.raises = lambda _: RuntimeError(
        "/onnxruntime_src/onnxruntime/core/a.cc:129 bool F(int) CUDA failure 100:\nno device"
    )
    message = refused(registry, "cuda", f"{CUDA} does not work for device 'cuda'")
    assert "CUDA failure 100: no device; check its driver" in message


def test_auto_never_names_a_device_that_it_does_not_use(
    gpu: Gpu, registry: Registry, log: Lines
) -> None:
    gpu.starts = False
    handle = load(registry, "auto")
    info = registry.info(handle)
    assert (info.device, info.provider) == ("cpu", CPU)
    (warning,) = info.warnings
    assert warning.startswith("device auto passed over cuda:0: ONNX Runtime could not start")
    assert "cannot open shared object file" in warning
    assert f"model bert-seq: {warning}" in log.of(LogLevel.WARNING)
    assert log.of(LogLevel.INFO)[-1].endswith(f"on cpu ({CPU}) in fp32")
    assert registry.stats().model_device == ("cpu",)
    assert registry.classify(handle, ["math"]).rows.status == (0,)


def test_a_device_must_run_all_heavy_operators(gpu: Gpu, registry: Registry) -> None:
    gpu.leaves = ("Shape", "Gather", "Softmax")
    registry.unload(load(registry, "cuda"), 1000)
    gpu.leaves = ("Shape", "MultiHeadAttention", "Gemm")
    refused(registry, "cuda:0", f"'cuda:0' does not run all.*Gemm on {CPU}, MultiHead.* on {CPU}")
    handle = load(registry, "auto")
    assert registry.info(handle).device == "cpu"
    assert "does not run all of the model: Gemm" in registry.info(handle).warnings[0]


@pytest.mark.parametrize(("step", "found"), [(2**-10, "FP16"), (2**-7, "BF16"), (2, "2.0, 2.0")])
def test_a_device_that_rounds_more_than_asked_is_refused(
    gpu: Gpu, registry: Registry, step: float, found: str
) -> None:
    gpu.rounds = lambda x: np.round(x / step + 1e-9) * step
    with pytest.raises(UnsupportedError, match=f"on cuda:0 computes in {found}.*FP32 was asked"):
        load(registry, "cuda")
    assert registry.info(load(registry, "auto")).device == "cpu"


@pytest.mark.parametrize(
    "says",
    [
        "Available memory of 65536 is smaller than requested bytes of 169984",
        "Failed to allocate memory for requested buffer of size 169984",
        "Failed to find a free memory block despite calling Extend. rounded_bytes=256",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=x ; expr=cudaMalloc((void**)&p, size);",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&handle);",
        "CUDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cudnnCreate(&handle);",
        "std::bad_alloc",
    ],
)
def test_memory_that_a_gpu_refuses_is_told_from_other_failures(
    gpu: Gpu, registry: Registry, says: str
) -> None:
    failure = RuntimeError(f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : {says}")
    gpu.raises = lambda _: failure
    with pytest.raises(OutOfMemoryError, match=f"refused the memory to start {CUDA}"):
        load(registry, "cuda")
    gpu.raises = lambda model: failure if model != PRODUCT_MODEL else None
    with pytest.raises(OutOfMemoryError, match=r"cuda:0 refused .*arena_bytes .*4294967296; raise"):
        load(registry, "cuda")
    assert isinstance(run_error(failure), OutOfMemoryError)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("10 : INVALID_GRAPH", BadArtifactError),
        ("7 : INVALID_PROTOBUF", BadArtifactError),
        ("1 : FAIL", DeviceUnavailableError),
        ("9 : NOT_IMPLEMENTED", DeviceUnavailableError),
    ],
)
def test_a_model_that_does_not_open_is_told_from_a_device_that_does_not(
    gpu: Gpu, registry: Registry, kind: str, error: type[Exception]
) -> None:
    failure = RuntimeError(f"[ONNXRuntimeError] : {kind} : no kernel for it")
    gpu.raises = lambda model: None if model == PRODUCT_MODEL else failure
    with pytest.raises(error, match="no kernel for it"):
        load(registry, "cuda")
    assert registry.info(load(registry, "auto")).device == "cpu"  # where the model does open


def test_the_cpu_passes_its_own_verification(registry: Registry) -> None:
    options = LoadOptions(device="cpu")
    for name in ("bert-seq", "bert-token", "bert-embed-mean"):
        info = registry.info(registry.load(str(GOLDEN / name), options))
        assert (info.provider, info.device, info.precision) == (CPU, "cpu", "fp32")
    require_working(find_devices("cpu")[0])


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "openvino", "tensorrt"])
def test_a_device_that_is_not_installed_is_refused_everywhere(
    monkeypatch: pytest.MonkeyPatch, registry: Registry, name: str
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    with pytest.raises(DeviceUnavailableError):
        registry.init(RuntimeOptions(device=name))
    assert not registry.stats().running
    refused(registry, name, f"'{name}' needs")
    assert registry.info(load(registry, "cpu")).provider == CPU


# Packages of ONNX Runtime over one another


def install(folder: Path, *names: str) -> None:
    """Make what pip leaves of packages."""
    for name in names:
        place = folder / f"{name.replace('-', '_')}-1.2.3.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")


@pytest.mark.parametrize(
    "names",
    [
        ("onnxruntime", "onnxruntime-gpu"),
        ("onnxruntime-openvino", "onnxruntime"),
        ("onnxruntime-gpu", "onnxruntime-openvino", "ort-nightly"),
    ],
)
def test_two_runtimes_over_one_another_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: Sequence[str]
) -> None:
    install(tmp_path, "numpy", "onnxruntime-extensions", *names)
    with pytest.raises(InterpreterError) as caught:
        require_one_runtime(tmp_path)
    assert f"{tmp_path} holds {' and '.join(sorted(names))}, which" in caught.value.message
    # And at the start, where the module lies in that folder.
    monkeypatch.setattr(onnxruntime, "__file__", str(tmp_path / "onnxruntime" / "__init__.py"))
    registry = Registry()
    with pytest.raises(InterpreterError, match="over one another"):
        registry.init(RuntimeOptions())
    with pytest.raises(InterpreterError, match="over one another"):
        registry.load(str(GOLDEN / "bert-seq"))


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"])
def test_one_runtime_is_fine(tmp_path: Path, name: str) -> None:
    install(tmp_path, name, "onnxruntime-extensions", "onnxruntime-genai", "onnx")
    require_one_runtime(tmp_path)
    require_one_runtime()
