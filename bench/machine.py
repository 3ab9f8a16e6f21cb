"""Describe the machine and the software that a benchmark ran on."""

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy
import onnxruntime
import tokenizers

from libsemantic.engine.config import available_cpus

_LOOK_SECONDS = 2
_QUIET = 0.1  # other programs may take a tenth

# What makes matrix products fast: flags of /proc/cpuinfo by the name people use.
_FEATURES = {
    "AVX2": "avx2",
    "AVX-512": "avx512f",
    "AVX-512 VNNI": "avx512_vnni",
    "AVX-512 BF16": "avx512_bf16",
    "AVX-VNNI": "avx_vnni",
    "AMX": "amx_tile",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a measurement depends on.

    ``features`` tells which instructions the CPU has, ``busy`` which share of all CPUs other
    programs took just before.
    """

    cpu: str
    cpus: int
    memory_gigabytes: int
    features: Mapping[str, bool]
    kernel: str
    versions: Mapping[str, str]
    busy: float
    date: str

    @property
    def quiet(self) -> bool:
        """Tell whether other programs left the machine to the measurement."""
        return self.busy < _QUIET

    def lines(self) -> list[str]:
        """Say it in a few lines."""
        features = ", ".join(
            f"{name} {'yes' if there else 'no'}" for name, there in self.features.items()
        )
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            f"{self.cpu}, {self.cpus} CPUs, {self.memory_gigabytes} GB; {features}",
            f"{versions}; Linux {self.kernel}",
            f"{self.date}; other programs took {self.busy:.0%} of the CPUs before the run",
        ]


def read_cpu(cpuinfo: str) -> tuple[str, Mapping[str, bool]]:
    """Return the model of the CPU and its features, from the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    model = fields.get("model name", "an unknown CPU")
    return model, {name: flag in flags for name, flag in _FEATURES.items()}


def read_busy(before: str, after: str) -> float:
    """Return the share of all CPU time that was not idle between two texts of /proc/stat."""
    times = []
    for text in (before, after):
        numbers = [int(each) for each in text.split("\n", 1)[0].split()[1:9]]
        times.append((sum(numbers), numbers[3] + numbers[4]))  # idle, and waiting for a disk
    (total, idle), (total_after, idle_after) = times
    return 1 - (idle_after - idle) / max(1, total_after - total)


def _measure_busy() -> float:
    stat = Path("/proc/stat")
    before = stat.read_text()
    time.sleep(_LOOK_SECONDS)
    return read_busy(before, stat.read_text())


def describe(versions: Mapping[str, str]) -> Machine:
    """Describe this machine; ``versions`` are those of programs that told theirs."""
    cpu, features = read_cpu(Path("/proc/cpuinfo").read_text())
    own = {
        "Python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=cpu,
        cpus=available_cpus(),
        memory_gigabytes=round(memory / 2**30),
        features=features,
        kernel=platform.release(),
        versions=own | dict(versions),
        busy=_measure_busy(),
        date=time.strftime("%d %B %Y").lstrip("0"),
    )
