"""Devices as ONNX Runtime has them: found, tried, verified; never a quiet fall back to the CPU.

What a provider says when it does not start goes to a log that cannot be read, and where its library
does not load ONNX Runtime goes on without it. So a device is tried with one small product before a
model is opened on it, and of a model every heavy operator must be assigned to it.
"""

import ctypes
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from .config import Precision
from .errors import (
    DeviceUnavailableError,
    InterpreterError,
    OutOfMemoryError,
    UnsupportedError,
)
from .ort_messages import SILENT, memory_refused, reason
from .providers import CPU_PROVIDER, Device, resolve

# Operators that a device must run itself, or it was not worth asking for.
_HEAVY: Final = frozenset(
    {
        *("MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "MatMulNBits", "QLinearMatMul"),
        *("DynamicQuantizeMatMul", "FusedGemm", "Attention", "MultiHeadAttention"),
        "GroupQueryAttention",
    }
)

# Distributions that install the module onnxruntime; two of them are laid over one another.
RUNTIMES: Final = (
    "onnxruntime",
    *(
        f"onnxruntime-{build}"
        for build in (
            *("gpu", "openvino", "directml", "training", "qnn", "rocm", "migraphx", "cann"),
            *("vitisai", "azure", "webgpu", "silicon", "coreml"),
        )
    ),
    *("ort-nightly", "ort-nightly-gpu", "ort-nightly-openvino", "onnxruntime-gpu-nightly"),
)

# The product of x [n, 1] and w [1, 1], the smallest model there is: tests/fault/test_devices.py
# builds it again and compares.
PRODUCT_MODEL: Final = bytes.fromhex(
    "080812003a570a110a01780a017712017922064d61744d756c1201675a140a0178120f0a0d080112090a0312016e0a"
    "0208015a130a0177120e0a0c080112080a0208010a02080162140a0179120f0a0d080112090a0312016e0a02080142"
    "040a00100d"
)
_REPAIR: Final = "check its driver and libraries, or use cpu"
# What rounds in 10 bits of mantissa (float16, tf32), and what in 7 bits (bfloat16).
_FINE, _COARSE = 1 + 2**-12, 1 + 2**-9
_PRODUCTS: Final = {
    (_FINE, _COARSE): Precision.FP32,
    (1.0, _COARSE): Precision.FP16,
    (1.0, 1.0): Precision.BF16,
}


def find_devices(
    name: str, precision: Precision = Precision.AUTO, arena_bytes: int = 0
) -> tuple[Device, ...]:
    """Return the devices that ``name`` may mean here, best first; see ``providers.resolve``."""
    return resolve(name, precision, arena_bytes, ort.get_available_providers())


def require_one_runtime(folder: Path | None = None) -> None:
    """Raise InterpreterError if packages of ONNX Runtime are installed over one another.

    ``folder`` holds the packages; by default it is that of the imported ONNX Runtime.
    """
    place = str(folder or Path(ort.__file__).parents[1])
    found = sorted(
        name for name in RUNTIMES if any(True for _ in distributions(name=name, path=[place]))
    )
    if len(found) > 1:
        raise InterpreterError(
            f"{place} holds {' and '.join(found)}, which install the same module over one another; "
            f"uninstall all of them, then install one"
        )


def provider_list(device: Device, threads: int) -> list[tuple[str, dict[str, str]]]:
    """Return the providers of a session and their options: the device's own, then the CPU."""
    own = (device.provider.name, dict(device.provider.options(device, threads)))
    return [own] if own[0] == CPU_PROVIDER else [own, (CPU_PROVIDER, {})]


def require_working(device: Device) -> None:
    """Multiply two numbers on a device: it starts, runs the product and rounds as it should.

    Raise DeviceUnavailableError with the provider's own reason, OutOfMemoryError, or
    UnsupportedError if it computes in another precision than asked.
    """
    row = device.provider
    if row.name == CPU_PROVIDER:
        return
    # Providers write warnings about every model into the process-wide log.
    ort.set_default_logger_severity(SILENT)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    feeds = {"x": np.array([[_FINE], [_COARSE]], np.float32), "w": np.ones((1, 1), np.float32)}
    try:
        session = ort.InferenceSession(
            PRODUCT_MODEL, options, providers=provider_list(device, 1), enable_fallback=False
        )
        require_assigned(device, [session])
        ((fine, coarse),) = session.run(None, feeds)[0].T.tolist()
    except DeviceUnavailableError:
        raise
    except Exception as error:
        if memory_refused(error):
            raise OutOfMemoryError(
                f"the system refused the memory to start {row.name}; free some, or use cpu"
            ) from None
        raise DeviceUnavailableError(
            f"{row.name} does not work for device {device.name!r}: {reason(error)}; {_REPAIR}"
        ) from None
    computed = _PRODUCTS.get((fine, coarse))
    # Where the graph is in float16, a provider may compute a float32 product in that too.
    if computed not in (device.lowered, device.precision):
        found = computed.name if computed else f"{fine!r}, {coarse!r}"
        raise UnsupportedError(
            f"{row.name} on {device.place} computes in {found} where {device.lowered.name} was "
            "asked; use another precision or cpu"
        )


def require_assigned(device: Device, sessions: Iterable[ort.InferenceSession]) -> None:
    """Raise DeviceUnavailableError if a session leaves heavy operators to another provider."""
    row = device.provider
    if row.name == CPU_PROVIDER:
        return
    sessions = list(sessions)
    if any(row.name not in each.get_providers() for each in sessions):
        why = _loader_reason(row.library) or "it refused its options or found no device"
        raise DeviceUnavailableError(
            f"ONNX Runtime could not start {row.name} for device {device.name!r}: {why}; {_REPAIR}"
        )
    elsewhere = {
        f"{node.op_type} on {part.ep_name}"
        for session in sessions
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != row.name
        for node in part.get_nodes()
        if node.op_type in _HEAVY
    }
    if elsewhere:
        raise DeviceUnavailableError(
            f"device {device.place!r} does not run all of the model: "
            f"{', '.join(sorted(elsewhere))}; use cpu or a model for this device"
        )


def _loader_reason(library: str) -> str:
    """Return why a provider's library does not load, "" if it does.

    Only ask once ONNX Runtime has tried: a library that it did not load itself first would crash.
    """
    path = Path(ort.__file__).parent / "capi" / library
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return " ".join(str(error).split())[:400]
    return ""
