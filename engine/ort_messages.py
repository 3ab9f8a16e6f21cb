"""What ONNX Runtime says in its exceptions: whose fault it is, and its reason on one line."""

import re

from .batching import RunStoppedError
from .errors import (
    BadArtifactError,
    DeviceUnavailableError,
    InternalError,
    OutOfMemoryError,
    SemanticError,
)
from .memory import MORE_THREADS
from .providers import CPU_PROVIDER, Device

SILENT = 4  # ONNX Runtime's "fatal": errors come as exceptions, not as lines on stderr

_TERMINATED = "terminate flag"
_THREAD_REFUSED = "pthread_create failed"
# Of the system, of an arena at its limit or in pieces, of a GPU, of its libraries.
_OUT_OF_MEMORY = (
    *("bad_alloc", "Failed to allocate", "failed to allocate"),
    *("is smaller than requested bytes of", "Failed to find a free memory block"),
    *("out of memory", "OutOfMemory", "STATUS_ALLOC_FAILED"),
)
# Where in its source a message comes from: file, line, and a function with its types.
_PLACE = re.compile(
    r"/onnxruntime\w*/\S+:[0-9]+ .*?\)(?: const)?(?: \[with .*?>\])?(?: \[with [^]]*\])? ",
    re.DOTALL,
)
_KIND = re.compile(r"\[ONNXRuntimeError\] : [0-9]+ : ([A-Z_]+) :")
_OPERATOR = re.compile(r"while running (\w+) node")
# Kinds of failures that lie in the file, on whatever device it is opened.
_DAMAGED = frozenset({"INVALID_PROTOBUF", "INVALID_GRAPH", "NO_MODEL", "NO_SUCHFILE"})


def reason(error: Exception) -> str:
    """Return ONNX Runtime's own reason on one line, without its prefix and its own places."""
    text = _PLACE.sub("", str(error).replace("[ONNXRuntimeError] :", ""))
    return " ".join(text.split())[:600]


def memory_refused(error: Exception) -> bool:
    """Tell whether the system, or an arena, refused memory."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def load_error(error: Exception, device: Device) -> SemanticError:
    """Turn what was raised while a session was made on a device that works."""
    if _THREAD_REFUSED in str(error):
        return OutOfMemoryError(
            f"the system refused a thread of the model; {MORE_THREADS}, or lower intra_op_threads"
        )
    if memory_refused(error) and device.provider.memory:
        return OutOfMemoryError(
            f"device {device.place} refused the memory to load the model, of which arena_bytes "
            f"lets it take {device.arena_bytes}; raise that, or free some"
        )
    if memory_refused(error):
        return OutOfMemoryError("the system refused the memory to load the model; free some")
    kind = _KIND.search(str(error))
    if device.provider.name != CPU_PROVIDER and not (kind and kind[1] in _DAMAGED):
        return DeviceUnavailableError(
            f"{device.provider.name} cannot open the model on device {device.name!r}: "
            f"{reason(error)}; use cpu"
        )
    return BadArtifactError(
        f"ONNX Runtime refuses the model: {reason(error)}; export or fetch it again"
    )


def run_error(error: Exception) -> Exception:
    """Turn what was raised in a run, without a word of the caller's text."""
    if _TERMINATED in str(error):
        return RunStoppedError()
    if memory_refused(error):
        return OutOfMemoryError("the system refused the memory of a run; send shorter texts")
    # The rest may quote numbers, and numbers may be tokens of the caller's text.
    kind = _KIND.search(str(error))
    operators = " > ".join(_OPERATOR.findall(str(error)))
    return InternalError(
        f"ONNX Runtime failed in a run: {kind[1] if kind else type(error).__name__} in "
        f"{operators or 'no operator that it names'}; the model cannot score this text, check its "
        "export"
    )
