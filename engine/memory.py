"""Memory and threads of this process: what it has, and whether the system would give more."""

import ctypes
import mmap
import os
import resource
import threading
from pathlib import Path

from .errors import OutOfMemoryError

MORE_THREADS = (
    "let the process have more threads (ulimit -u, pids.max of its cgroup) or memory (ulimit -v)"
)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
_NEVER = "2"  # the kernel promises only memory that it has (proc_sys_vm(5))
# Less than this is refused only by a limit of the process, or where nothing is overcommitted.
_SMALL_BYTES = 1 << 24
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; other C libraries have none


def resident_bytes() -> int:
    """Return the resident set size in bytes (``/proc/self/statm``, second field)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def give_back_freed() -> None:
    """Return to the system what the C heap keeps of freed memory.

    ONNX Runtime folds constants in pieces that lie between those it keeps, so that the heap does
    not shrink by itself: of DeBERTa-v3 in int8 that was 60 MiB. It takes 4 ms after a load.
    """
    if _TRIM is not None:
        _TRIM(0)


def require_bytes(count: int, purpose: str) -> None:
    """Raise OutOfMemoryError if the system refuses that many bytes for ``purpose`` now.

    Ask before work in the tokenizers library and in protobuf: they end the process where memory is
    refused to them.
    """
    if count < _SMALL_BYTES and not _refuses_small():
        return
    try:
        mmap.mmap(-1, max(count, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        raise OutOfMemoryError(
            f"the system refused the memory {purpose}, up to {count >> 20} MiB; send less at a "
            "time, or raise the memory limit (ulimit -v) of the process"
        ) from None


def _refuses_small() -> bool:
    """Tell whether the system may refuse even a little memory; cheaper than to ask for it."""
    limits = resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_DATA)[0]
    return limits != _UNLIMITED or _COMMITS_STRICTLY


def _commits_strictly() -> bool:
    try:
        return _OVERCOMMIT.read_text().strip() == _NEVER
    except OSError:
        return True


_COMMITS_STRICTLY = _commits_strictly()


def require_threads(count: int) -> None:
    """Raise OutOfMemoryError if the system refuses that many threads now.

    Ask before a session is opened: where ONNX Runtime gets some threads and not the rest, it waits
    for ever.
    """
    ended = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=ended.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:  # all that Python says of a refused thread
        raise OutOfMemoryError(
            f"the system refused the {count} threads of the model; {MORE_THREADS}, or lower "
            "intra_op_threads"
        ) from None
    finally:
        ended.set()
        for thread in started:
            thread.join()
