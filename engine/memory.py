"""Resident memory of this process, as the kernel counts it."""

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the resident set size in bytes (``/proc/self/statm``, second field)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
