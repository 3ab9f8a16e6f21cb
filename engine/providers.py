"""Execution providers of ONNX Runtime: one row each, and the devices that callers name.

A new provider is one row of ``PROVIDERS``. Nothing here asks ONNX Runtime; see ``devices``.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from .config import Precision
from .errors import DeviceUnavailableError, InvalidArgumentError, UnsupportedError
from .grouping import DEFAULT_PADDING, Padding
from .processor import cpu_instructions

CPU_PROVIDER: Final = "CPUExecutionProvider"
DEFAULT_ARENA_BYTES: Final = 4 << 30
_BF16_INSTRUCTIONS: Final = frozenset({"amx_bf16", "avx512_bf16"})
_REMEDY: Final = "use precision AUTO or FP32"
_FORM: Final = re.compile(r"([a-z]+)(?::([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Provider:
    """A row of ``PROVIDERS``.

    ``name`` is ONNX Runtime's, ``package`` the distribution that has it, ``library`` its file
    beside ONNX Runtime's own, "" where it is part of that. ``options`` makes what the provider is
    given of a device and a number of threads.

    Graphs that are built for it may hold com.microsoft operators if ``fused``, and branches and
    loops if ``branches``; bases are shared if it takes matrices of rank 0. ``precisions`` are what
    it computes in, ``lowers`` those that are an option of the provider and not of the graph, and
    ``instructions`` what of the CPU must have one of for them. Where ``exact_by`` is given, FP32
    is rounded unless that environment variable is "0".

    ``memory`` is where values stay between runs, "" for the host's. ``batch_rows``,
    ``batch_tokens`` and ``parallel_runs`` (0: one more than the CPUs) are the defaults of a load;
    runs in the host's memory share its CPUs with those of all such models (``scheduler``).
    ``padding`` says what may be padded to share a run. ``automatic``: "auto" may choose it.
    """

    name: str
    package: str
    options: Callable[["Device", int], Mapping[str, str]]
    precisions: tuple[Precision, ...]
    library: str = ""
    numbered: bool = False
    fused: bool = True
    branches: bool = True
    shares_bases: bool = True
    lowers: frozenset[Precision] = frozenset()
    instructions: Mapping[Precision, frozenset[str]] | None = None
    exact_by: str = ""
    memory: str = ""
    batch_rows: int = 32
    batch_tokens: int = 256  # measured on CPU, batches pay only for short texts
    padding: Padding = DEFAULT_PADDING
    parallel_runs: int = 0
    automatic: bool = True


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a caller names it, and what drives it in which precision.

    ``name`` is "auto" where nobody chose it; ``asked`` may be AUTO. ``arena_bytes`` bounds the
    memory that a model takes on a device of its own.
    """

    name: str
    kind: str
    index: int = 0
    asked: Precision = Precision.AUTO
    arena_bytes: int = DEFAULT_ARENA_BYTES

    @property
    def provider(self) -> Provider:
        """The row that drives it."""
        return PROVIDERS[self.kind]

    @property
    def place(self) -> str:
        """Name the device itself, also where "auto" has found it."""
        return f"{self.kind}:{self.index}" if self.provider.numbered else self.kind

    @property
    def precision(self) -> Precision:
        """What a model that is built computes in: float32 unless another one was asked."""
        return self.asked or Precision.FP32

    @property
    def lowered(self) -> Precision:
        """What the provider makes of a float32 graph."""
        return self.asked if self.asked in self.provider.lowers else Precision.FP32

    @property
    def graph_precision(self) -> Precision:
        """What is asked of the graph; AUTO: as the folder says."""
        return Precision.FP32 if self.asked in self.provider.lowers else self.asked


def _no_options(device: Device, threads: int) -> Mapping[str, str]:
    del device, threads
    return {}


def _openvino_options(device: Device, threads: int) -> Mapping[str, str]:
    # Without a hint it chooses a precision itself. Pinned threads of several models would wait for
    # the same cores.
    cpu = {
        "INFERENCE_PRECISION_HINT": {Precision.FP32: "f32", Precision.BF16: "bf16"}[device.lowered],
        "INFERENCE_NUM_THREADS": str(threads),
        "NUM_STREAMS": "1",
        "ENABLE_CPU_PINNING": "NO",
    }
    return {"device_type": "CPU", "load_config": json.dumps({"CPU": cpu})}


def _cuda_options(device: Device, threads: int) -> Mapping[str, str]:
    del threads
    return {
        "device_id": str(device.index),
        "gpu_mem_limit": str(device.arena_bytes),
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",  # one stream for copies and kernels
        "use_tf32": "0",  # else float32 matrices are multiplied with 10 bits of mantissa
    }


def _tensorrt_options(device: Device, threads: int) -> Mapping[str, str]:
    del threads
    return {
        "device_id": str(device.index),
        "trt_max_workspace_size": str(device.arena_bytes),
        # Without it TensorRT refuses graphs in float16; with it, it rounds float32 ones too.
        "trt_fp16_enable": str(int(device.precision is Precision.FP16)),
    }


_GPU: Final = (Precision.FP32, Precision.FP16)

PROVIDERS: Final[Mapping[str, Provider]] = {  # by kind of device; "auto" takes the first that works
    "tensorrt": Provider(
        name="TensorrtExecutionProvider",
        package="onnxruntime-gpu",
        library="libonnxruntime_providers_tensorrt.so",
        options=_tensorrt_options,
        precisions=_GPU,
        exact_by="NVIDIA_TF32_OVERRIDE",  # TensorRT's own switch is not among the options
        numbered=True,
        fused=False,
        branches=False,
        shares_bases=False,
        memory="cuda",
        batch_tokens=16_384,
        parallel_runs=1,
        automatic=False,  # it takes minutes to make its engines, anew for other lengths
    ),
    "cuda": Provider(
        name="CUDAExecutionProvider",
        package="onnxruntime-gpu",
        library="libonnxruntime_providers_cuda.so",
        options=_cuda_options,
        precisions=_GPU,
        numbered=True,
        memory="cuda",
        batch_tokens=16_384,
        parallel_runs=1,
    ),
    "openvino": Provider(
        name="OpenVINOExecutionProvider",
        package="onnxruntime-openvino",
        library="libonnxruntime_providers_openvino.so",
        options=_openvino_options,
        precisions=(Precision.FP32, Precision.BF16),
        fused=False,
        branches=False,  # its frontend does not find values around a loop in a branch
        shares_bases=False,  # matrices of rank 0 give NaN
        lowers=frozenset({Precision.BF16}),
        instructions={Precision.BF16: _BF16_INSTRUCTIONS},
    ),
    "cpu": Provider(
        name=CPU_PROVIDER,
        package="onnxruntime",
        options=_no_options,
        precisions=(Precision.FP32, Precision.INT8),
    ),
}


def resolve(
    name: str,
    precision: Precision,
    arena_bytes: int,
    installed: Collection[str],
) -> tuple[Device, ...]:
    """Return the devices that ``name`` may mean, best first: one, or for "auto" all that may do.

    ``installed`` are names of ONNX Runtime's providers; empty and 0 mean the default. Raise
    InvalidArgumentError for another name, DeviceUnavailableError for a provider that is not
    installed, UnsupportedError for a precision that it does not compute in, or would round.
    """
    form = _FORM.fullmatch(name or "auto")
    kind, index = form.groups() if form else ("", None)
    if kind == "auto" and index is None:
        kinds = [k for k, row in PROVIDERS.items() if row.automatic and row.name in installed]
    elif kind in PROVIDERS and (index is None or PROVIDERS[kind].numbered):
        kinds = [kind]
    else:
        known = [f"{k} or {k}:N" if row.numbered else k for k, row in PROVIDERS.items()]
        raise InvalidArgumentError(f"unknown device {name!r:.60}; use auto, {', '.join(known)}")
    devices = []
    for each in kinds:
        row = PROVIDERS[each]
        if row.name not in installed:
            raise DeviceUnavailableError(
                f"device {name!r} needs ONNX Runtime's {row.name}, and this installation has "
                f"{', '.join(installed)}; install {row.package} in place of the package that is "
                "there, or use cpu"
            )
        if arena_bytes and kind != "auto" and not row.memory:
            raise InvalidArgumentError(
                f"arena_bytes is {arena_bytes}, but {each} computes in the memory of the process; "
                "leave it 0"
            )
        if _rounds(row, precision):
            raise UnsupportedError(
                f"{each} rounds FP32 to tf32 unless {row.exact_by} is 0 in the environment of the "
                "process when it starts; set it, use precision FP16, or cuda"
            )
        lacks = _lacks(each, precision)
        if not lacks:
            number, limit = int(index or 0), arena_bytes or DEFAULT_ARENA_BYTES
            devices.append(Device(name or "auto", each, number, precision, limit))
    if not devices:
        raise UnsupportedError("; ".join([*(_lacks(each, precision) for each in kinds), _REMEDY]))
    return tuple(devices)


def _rounds(row: Provider, precision: Precision) -> bool:
    """Tell whether a provider would round float32 where that was asked."""
    asked = precision in (Precision.AUTO, Precision.FP32)
    return asked and row.exact_by != "" and os.environ.get(row.exact_by) != "0"


def _lacks(kind: str, precision: Precision) -> str:
    """Tell why a kind of device does not compute in ``precision``; "" if it does."""
    row = PROVIDERS[kind]
    if precision is Precision.AUTO:
        return ""
    if precision not in row.precisions:
        known = ", ".join(each.name for each in row.precisions)
        return f"{kind} does not compute in {precision.name}, but in {known}"
    needed = (row.instructions or {}).get(precision, frozenset())
    if needed and not needed & cpu_instructions():
        return (
            f"{kind} computes in {precision.name} on a CPU with {' or '.join(sorted(needed))}, "
            "and this one has neither"
        )
    return ""
