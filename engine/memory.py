"""Memory of this process: what the kernel counts, and whether it would give more."""

import mmap
import os
from pathlib import Path

from .errors import OutOfMemoryError

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the resident set size in bytes (``/proc/self/statm``, second field)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def require_bytes(count: int, purpose: str) -> None:
    """Raise OutOfMemoryError if the system refuses that many bytes for ``purpose`` now.

    Ask before work in the tokenizers library: it ends the process where memory is refused to it.
    """
    try:
        mmap.mmap(-1, max(count, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        raise OutOfMemoryError(
            f"the system refused the memory {purpose}, up to {count >> 20} MiB; send less at a "
            "time, or raise the memory limit (ulimit -v) of the process"
        ) from None
