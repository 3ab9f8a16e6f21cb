"""What the processor of this machine can do."""

from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_SUMS_OF_BYTES = frozenset({"avx512_vnni", "avx_vnni"})


def byte_steps() -> int:
    """Return into how many steps a uint8 may be divided that is multiplied with int8.

    Without VNNI instructions two products are added in 16 bits, which 255 · 127 + 255 · 127 would
    leave and 127 · 127 + 127 · 127 does not.
    """
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return 127
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return 127 if _SUMS_OF_BYTES.isdisjoint(flags) else 255
