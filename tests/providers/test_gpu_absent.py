"""The GPU build of ONNX Runtime on a machine without a GPU: refused with the reason, or reported.

Run by ``make test-gpu-absent`` in an environment with onnxruntime-gpu.
"""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnxruntime
import pytest

from libsemantic.engine.config import LoadOptions, LogLevel, Precision, RuntimeOptions
from libsemantic.engine.devices import require_one_runtime
from libsemantic.engine.errors import DeviceUnavailableError, UnsupportedError
from libsemantic.engine.registry import Registry
from tests.golden.test_engine_goldens import MODELS

from .through_c import where

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
FOLDER = str(MODELS / "bert-seq")
# Without NVIDIA's libraries their first missing file; with them, what CUDA says of no device.
LOADER = r"lib[a-z_A-Z]+\.so\.[0-9]+: cannot open shared object file|CUDA (?:failure|error)"

pytestmark = pytest.mark.skipif(
    any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU: make test-gpu"
)


def test_the_gpu_package_claims_what_it_cannot_do() -> None:
    assert {CUDA, TENSORRT, CPU} == set(onnxruntime.get_available_providers())
    assert version("onnxruntime-gpu") == onnxruntime.__version__
    with pytest.raises(PackageNotFoundError):
        version("onnxruntime")
    require_one_runtime()


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_cuda_is_refused_with_the_loaders_reason(registry: Registry, name: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=f"'{name}'.*(?:{LOADER})") as caught:
        registry.load(FOLDER, LoadOptions(device=name))
    assert "\n" not in caught.value.message
    with pytest.raises(DeviceUnavailableError, match=LOADER):
        registry.init(RuntimeOptions(device=name))
    assert not registry.list_models().count


def test_cuda_is_refused_with_cuda_path_set_too(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_PATH", "/usr/local/cuda")
    with pytest.raises(DeviceUnavailableError, match=LOADER):
        registry.load(FOLDER, LoadOptions(device="cuda"))


def test_tensorrt_is_refused(registry: Registry) -> None:
    with pytest.raises(
        DeviceUnavailableError, match=r"'tensorrt'.*(TensorRT libraries|cannot open)"
    ):
        registry.load(FOLDER, LoadOptions(device="tensorrt", precision=Precision.FP16))


@pytest.mark.parametrize("name", ["auto", ""])
def test_auto_is_the_cpu_and_says_so(
    registry: Registry, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    lines: list[tuple[LogLevel, str]] = []
    registry.log.send_to(lambda level, line: lines.append((level, line)))
    handle = registry.load(FOLDER, LoadOptions(device=name))
    info = registry.info(handle)
    assert (info.device, info.provider, info.precision) == ("cpu", CPU, "fp32")
    (warning,) = info.warnings
    assert re.match(rf"device auto passed over cuda:0: .*(?:{LOADER})", warning)
    assert lines == [(LogLevel.WARNING, f"model bert-seq: {warning}")]
    assert registry.stats().model_device == ("cpu",)
    assert registry.classify(handle, ["math"]).rows.status == (0,)
    assert capfd.readouterr() == ("", "")


def test_no_precision_of_a_gpu_is_given_by_the_cpu(registry: Registry) -> None:
    with pytest.raises(DeviceUnavailableError, match=LOADER):
        registry.load(FOLDER, LoadOptions(precision=Precision.FP16))
    with pytest.raises(UnsupportedError, match="cpu does not compute in FP16"):
        registry.load(FOLDER, LoadOptions(device="cpu", precision=Precision.FP16))


def test_the_c_library_says_the_same(tmp_path: Path) -> None:
    (line,) = where(tmp_path, MODELS / "bert-seq", "cuda")
    assert re.match(rf"DEVICE_UNAVAILABLE: .*'cuda'.*(?:{LOADER})", line)
    found, warning = where(tmp_path, MODELS / "bert-seq", "auto")
    assert found == f"cpu {CPU} fp32 cpu"
    assert warning.startswith("device auto passed over cuda:0: ")
