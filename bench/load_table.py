"""Our library under load: one model and three at once, and who holds the interpreter lock."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from closed_loop import Setting
from contenders import Worker
from measure import Results, Say, Workload, percentile
from report import number, table

SAMPLES_PER_SECOND = 100
DEFAULT = Setting(threads=0)


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
    for number_ in range(rounds):
        for workload in workloads:
            for name, worker in workers.items():
                worker.run(workload.order[:1], 1, DEFAULT)
                report = worker.run(workload.order, workload.callers, DEFAULT)
                results.add(name, workload.name, report)
        say(f"  round {number_ + 1} of {rounds}")


def load_rows(
    workers: Mapping[str, Worker],
    workloads: Sequence[Workload],
    results: Results,
    shares: Mapping[tuple[str, str], float],
) -> str:
    """Show what each load took."""
    rows = []
    for name in workers:
        for workload in workloads:
            reports = results.reports[name, workload.name]
            latencies = [each for report in reports for each in report.latencies]
            seconds = sum(report.seconds for report in reports)
            share = shares.get((name, workload.name))
            rows.append(
                [
                    f"{name}, {workload.name}",
                    number(len(latencies) / seconds),
                    number(percentile(latencies, 50)),
                    number(percentile(latencies, 99)),
                    str(results.errors(name, workload.name)),
                    number(sum(report.cpu_seconds for report in reports) / seconds),
                    "–" if share is None else f"{100 * share:.1f} %",
                ]
            )
    head = ["load", "requests/s", "p50 ms", "p99 ms", "errors", "CPUs busy", "lock held"]
    return table(head, rows)
