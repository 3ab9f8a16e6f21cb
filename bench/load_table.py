"""Our library under load: one model and three at once, and who holds the interpreter lock."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from closed_loop import Setting
from contenders import Places, Worker, start_together
from measure import Results, Say, Workload, renew
from targets import LOAD_SHORT, NO_BATCHES, ONE_MODEL, THREE_MODELS, Target, load_targets, mixed
from texts import Texts

SAMPLES_PER_SECOND = 100
DEFAULT = Setting(threads=0)
CALLERS = (1, 32, 128)
# How often the model is loaded, and how.
LOADS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    ONE_MODEL: (1, ()),
    NO_BATCHES: (1, ("-max-batch-rows", "1")),
    THREE_MODELS: (3, ()),
}
LOCK_SECONDS = 5


@dataclass(slots=True)
class LoadReport:
    """What each load took, by its name and that of the workload."""

    model: str
    cpus: int
    results: Results = field(default_factory=Results)
    shares: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def targets(self) -> Sequence[Target]:
        """List the targets of load; without any result none of them is measured."""
        return load_targets(self.results, self.cpus)


def load_workloads(texts: Texts) -> list[Workload]:
    """List what is asked of each load."""
    workloads = [
        Workload(mixed(callers), texts.mixed * max(2, callers // 8), callers) for callers in CALLERS
    ]
    return [*workloads, Workload(LOAD_SHORT, texts.short * 24, 32)]


def measure_under_load(
    places: Places, texts: Texts, report: LoadReport, rounds: int, say: Say, *, quick: bool
) -> None:
    """Measure a model alone, with and without batches, and three of it at once.

    When ``quick`` the interpreter lock is looked at with many callers and mixed lengths only.
    """
    workloads = load_workloads(texts)
    say(f"{report.model} under load")
    with ExitStack() as stack:
        workers = {}
        for name, (count, options) in LOADS.items():
            workers[name] = start_together(places, count, *options)
            stack.callback(workers[name].close)
        measure_load(workers, workloads, rounds, report.results, say)
        for name, worker in workers.items():
            for workload in workloads[1:3] if quick else workloads:
                share = lock_share(worker, workload, LOCK_SECONDS)
                report.shares[name, workload.name] = share
                say(f"  {name}, {workload.name}: the interpreter lock is held {share:.1%}")


def lock_share(worker: Worker, workload: Workload, seconds: int) -> float:
    """Return the share of time in which some thread of the worker holds the interpreter lock.

    A sampler of its own process (py-spy) looks, without stopping anything, while the callers ask.
    """
    spy = Path(sys.executable).parent / "py-spy"
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "stacks"
        command: list[str | Path] = [spy, "record", "--gil", "--nonblocking", "--format", "raw"]
        command += ["--rate", str(SAMPLES_PER_SECOND), "--duration", str(seconds)]
        command += ["--output", file, "--pid", str(worker.pid)]
        # The callers begin before the sampler does and end after it.
        asking = threading.Thread(
            target=worker.run,
            args=(workload.order, workload.callers, DEFAULT, seconds + 2),
        )
        asking.start()
        try:
            subprocess.run(command, check=True, capture_output=True)
        finally:
            asking.join()
        return held_share(file.read_text(), SAMPLES_PER_SECOND * seconds)


def held_share(stacks: str, looks: int) -> float:
    """Return the share of looks that found a holder; py-spy writes a line for each stack it saw."""
    held = sum(int(line.rsplit(" ", 1)[1]) for line in stacks.splitlines() if line)
    return held / looks


def measure_load(
    workers: Mapping[str, Worker],
    workloads: Sequence[Workload],
    rounds: int,
    results: Results,
    say: Say,
) -> None:
    """Let the workers answer in turn; without the sampler, which takes time itself."""
    for number in range(rounds):
        renew(workers.values())
        for workload in workloads:
            for name, worker in workers.items():
                worker.run(workload.order[:1], 1, DEFAULT)
                report = worker.run(workload.order, workload.callers, DEFAULT)
                if not report.latencies:
                    raise RuntimeError(f"{name} answered nothing: {report.first_error}")
                results.add(name, workload.name, report)
        say(f"  round {number + 1} of {rounds}")
