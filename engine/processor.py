"""What the processor of this machine can do."""

import re
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_SUMS_OF_BYTES = frozenset({"avx512_vnni", "avx_vnni"})


def cpu_instructions() -> frozenset[str]:
    """Return the instruction sets of the first CPU (``/proc/cpuinfo``); none where it is silent."""
    try:
        text = _CPU_INFO.read_text()
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def byte_steps() -> int:
    """Return into how many steps a uint8 may be divided that is multiplied with int8.

    Without VNNI instructions two products are added in 16 bits, which 255 · 127 + 255 · 127 would
    leave and 127 · 127 + 127 · 127 does not.
    """
    return 127 if _SUMS_OF_BYTES.isdisjoint(cpu_instructions()) else 255
