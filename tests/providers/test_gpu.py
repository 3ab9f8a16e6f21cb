"""CUDA and TensorRT on a machine with an NVIDIA GPU; run by ``make test-gpu``.

Without one it fails at the first test, with what ONNX Runtime and the loader say.
"""

import time

import numpy as np
import onnxruntime
import pytest

from libsemantic.engine.config import LoadOptions, Precision, RunOptions
from libsemantic.engine.devices import find_devices, require_one_runtime, require_working
from libsemantic.engine.errors import (
    DeadlineError,
    DeviceUnavailableError,
    OutOfMemoryError,
    UnsupportedError,
)
from libsemantic.engine.registry import Registry
from tests.golden.test_engine_goldens import ALL, FILES, MODELS, SAME

from .golden_differences import TOLERANCES, check_golden

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TEXT = "What is the derivative of x squared?"


@pytest.fixture(scope="session", autouse=True)
def _a_gpu_is_there() -> None:
    require_one_runtime()
    try:
        require_working(find_devices("cuda")[0])
    except DeviceUnavailableError as error:
        pytest.exit(f"make test-gpu needs an NVIDIA GPU: {error.message}", returncode=1)


@pytest.fixture(scope="session")
def _tensorrt_is_there() -> None:
    try:
        require_working(find_devices("tensorrt", Precision.FP16)[0])
    except DeviceUnavailableError as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", ALL)
def test_cuda_is_close_to_transformers(
    registry: Registry, name: str, file: str, precision: Precision
) -> None:
    check_golden(registry, name, file, "cuda", precision)


@pytest.mark.usefixtures("_tensorrt_is_there")
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("name", ["bert-seq", "bert-embed-mean", "modernbert-seq-mean"])
def test_tensorrt_is_close_to_transformers(
    registry: Registry, name: str, precision: Precision
) -> None:
    check_golden(registry, name, "expected.json", "tensorrt", precision)


@pytest.mark.parametrize("name", ["bert-seq", "modernbert-seq-mean", "deberta-v3-seq"])
def test_a_text_is_the_same_alone_and_in_a_batch(registry: Registry, name: str) -> None:
    handle = registry.load(str(MODELS / name), LoadOptions(device="cuda"))
    texts = [TEXT, "math", "the law of the invoice", f"{TEXT} {TEXT}", "a"] * 6
    together = registry.classify(handle, texts).logits
    alone = np.concatenate([registry.classify(handle, [text]).logits for text in texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=10 * SAME)


def test_auto_is_cuda_and_says_so(registry: Registry, capfd: pytest.CaptureFixture[str]) -> None:
    handle = registry.load(str(MODELS / "bert-seq"), LoadOptions())
    info = registry.info(handle)
    assert (info.device, info.provider, info.precision) == ("cuda:0", CUDA, "fp32")
    assert info.warnings == ()
    assert registry.stats().model_device == ("cuda:0",)
    registry.classify(handle, [TEXT])
    assert capfd.readouterr() == ("", "")


def test_a_gpu_that_is_not_there_is_refused(registry: Registry) -> None:
    with pytest.raises(DeviceUnavailableError, match="'cuda:99'"):
        registry.load(str(MODELS / "bert-seq"), LoadOptions(device="cuda:99"))
    with pytest.raises(UnsupportedError, match="cuda does not compute in BF16"):
        registry.load(
            str(MODELS / "bert-seq"), LoadOptions(device="cuda", precision=Precision.BF16)
        )


def test_the_arena_is_bounded(registry: Registry) -> None:
    options = LoadOptions(device="cuda", arena_bytes=1 << 16)
    with pytest.raises(OutOfMemoryError):
        registry.load(str(MODELS / "bert-seq"), options)


def test_shared_bases_keep_their_updates_on_the_gpu(registry: Registry) -> None:
    base = MODELS / "modernbert-lora-base"
    for folder in sorted(path.parent for path in base.rglob("adapter_config.json")):
        logits = []
        for device in ("cuda", "cpu"):
            options = LoadOptions(device=device, base_path=str(base), name=device + folder.name)
            handle = registry.load(str(folder), options)
            logits.append(registry.classify(handle, [TEXT, "a"]).logits)
        np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=TOLERANCES["cuda"].float32)


def test_a_deadline_is_kept(registry: Registry) -> None:
    handle = registry.load(str(MODELS / "modernbert-seq-mean"), LoadOptions(device="cuda"))
    registry.classify(handle, [TEXT])
    started = time.monotonic()
    with pytest.raises(DeadlineError):
        registry.classify(handle, [TEXT * 20] * 5000, RunOptions(timeout_ms=5))
    assert time.monotonic() - started < 5
    assert registry.classify(handle, [TEXT]).rows.status == (0,)
    assert onnxruntime.get_available_providers()[-1] == CPU
