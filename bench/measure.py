"""Slices in turn: every contender answers every workload, again and again, in short slices.

What the machine does besides then falls on all of them alike, and ratios are formed within a round.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from closed_loop import Setting
from contenders import Contender, Kind, Report, Worker

# Texts in a run that are tried. On a CPU larger batches of mixed lengths only pad.
BATCHES = (1, 4, 16)
# Threads of ONNX Runtime that spin go on for 50 ms after a run, and would slow down who comes next.
_REST_SECONDS = 0.1

Say = Callable[[str], None]
Value = Callable[[Report], float]


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts asked in this order by so many callers."""

    name: str
    order: tuple[int, ...]
    callers: int


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least so many percent do not exceed (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values, no percentile")
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def median_latency(report: Report) -> float:
    """Return the median latency in milliseconds."""
    return statistics.median(report.latencies)


def mean_latency(report: Report) -> float:
    """Return the mean latency in milliseconds."""
    return statistics.fmean(report.latencies)


def p99(report: Report) -> float:
    """Return the latency in milliseconds that one of a hundred answers exceeds."""
    return percentile(report.latencies, 99)


def per_second(report: Report) -> float:
    """Return the answers per second."""
    return report.per_second


def cpu_seconds(report: Report) -> float:
    """Return the CPU time."""
    return report.cpu_seconds


@dataclass(slots=True)
class Results:
    """The reports of each contender and workload, one for each round."""

    reports: dict[tuple[str, str], list[Report]] = field(default_factory=dict)

    def add(self, contender: str, workload: str, report: Report) -> None:
        """Note a slice."""
        self.reports.setdefault((contender, workload), []).append(report)

    def has(self, contender: str, workload: str) -> bool:
        """Tell whether anything was measured."""
        return (contender, workload) in self.reports

    def latency(self, contender: str, workload: str, percent: float) -> float:
        """Return a percentile of all answers, in milliseconds."""
        reports = self.reports[contender, workload]
        return percentile((each for report in reports for each in report.latencies), percent)

    def per_second(self, contender: str, workload: str) -> float:
        """Return answers per second over all rounds."""
        reports = self.reports[contender, workload]
        answers = sum(len(report.latencies) for report in reports)
        return answers / sum(report.seconds for report in reports)

    def cpu_milliseconds(self, contender: str, workload: str) -> float:
        """Return the CPU time of an answer over all rounds."""
        reports = self.reports[contender, workload]
        answers = sum(len(report.latencies) for report in reports)
        return 1e3 * sum(report.cpu_seconds for report in reports) / answers

    def queue_milliseconds(self, contender: str, workload: str) -> float | None:
        """Return how long an answer waited for its first run, the mean over all rounds."""
        reports = self.reports[contender, workload]
        waits = [each.queue_seconds for each in reports if each.queue_seconds is not None]
        if len(waits) < len(reports):
            return None
        return 1e3 * sum(waits) / sum(len(report.latencies) for report in reports)

    def errors(self, contender: str, workload: str) -> int:
        """Count the calls that failed."""
        return sum(report.errors for report in self.reports[contender, workload])

    def latency_ratio(self, ours: str, theirs: str, workload: str) -> float | None:
        """Return the median over the rounds of median latency against median latency."""
        return self.ratio((ours, workload), (theirs, workload), median_latency)

    def throughput_ratio(self, ours: str, theirs: str, workload: str) -> float | None:
        """Return the median over the rounds of answers per second against the same."""
        return self.ratio((ours, workload), (theirs, workload), per_second)

    def cpu_ratio(self, ours: str, theirs: str, workload: str) -> float | None:
        """Return the median over the rounds of CPU time against CPU time."""
        return self.ratio((ours, workload), (theirs, workload), cpu_seconds)

    def ratio(
        self,
        ours: tuple[str, str],
        theirs: tuple[str, str],
        value: Value,
        their_value: Value | None = None,
    ) -> float | None:
        """Return the median over the rounds of a value against another; None without either.

        ``ours`` and ``theirs`` are contender and workload; ``their_value`` is by default the same.
        """
        if not (self.has(*ours) and self.has(*theirs)):
            return None
        pairs = zip(self.reports[ours], self.reports[theirs], strict=True)
        below = their_value or value
        return statistics.median(value(a) / below(b) for a, b in pairs)


def settings_to_try(
    kind: Kind, callers: int, cpus: int, batches: Sequence[int] = BATCHES
) -> tuple[Setting, ...]:
    """List the settings that are swept for so many callers: threads of a run × runs × batch."""
    spins = (False, True) if kind.program != "torch" else (False,)
    if callers == 1 or not kind.batches:
        tried = [Setting(1), *(Setting(cpus, spin) for spin in spins)]
        return tuple(dict.fromkeys(tried))
    runs = min(cpus, callers)
    tried = [Setting(1, False, runs, batch) for batch in batches if batch <= callers]
    tried += [Setting(cpus, False, 1, batch) for batch in batches if batch <= callers]
    tried += [Setting(cpus, False, runs), *(Setting(cpus, spin) for spin in spins[1:])]
    return tuple(dict.fromkeys(tried))


def sweep(
    contenders: Sequence[Contender],
    workloads: Sequence[Workload],
    cpus: int,
    rounds: int,
    batches: Sequence[int],
    say: Say,
) -> None:
    """Find the best setting of each contender for each workload, settings asked in turn.

    Best is the shortest median latency for one caller and the most answers per second for more.
    """
    for contender in contenders:
        if not contender.kind.sweeps:
            continue
        for workload in workloads:
            tried = settings_to_try(contender.kind, workload.callers, cpus, batches)
            # Enough to tell settings apart: twice the callers, or half of a slice.
            part = max(len(workload.order) // 2, 2 * workload.callers)
            short = replace(workload, order=workload.order[:part])
            found: dict[Setting, list[float]] = {setting: [] for setting in tried}
            for _ in range(rounds):
                for setting in tried:
                    report = run_slice(contender, short, setting)
                    cost = (
                        statistics.median(report.latencies)
                        if workload.callers == 1
                        else 1 / report.per_second
                    )
                    found[setting].append(cost)
            best = min(tried, key=lambda setting: min(found[setting]))
            contender.best[workload.name] = best
            say(f"  {contender.kind.name}, {workload.name}: best of {len(tried)}: {label(best)}")


def measure(
    contenders: Sequence[Contender],
    workloads: Sequence[Workload],
    rounds: int,
    results: Results,
    say: Say,
) -> None:
    """Let all contenders answer all workloads in turn, each going first in some of the rounds."""
    for number in range(rounds):
        renew(contender.worker for contender in contenders)
        # What is made once for a length, such as torch's kernels, is made now.
        for contender in contenders:
            for workload in workloads:
                texts = tuple(dict.fromkeys(workload.order))
                contender.worker.run(texts, 1, contender.setting(workload.name))
        for place, workload in enumerate(workloads):
            first = (number + place) % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                report = run_slice(contender, workload, contender.setting(workload.name))
                results.add(contender.name, workload.name, report)
        say(f"  round {number + 1} of {rounds}")


def renew(workers: Iterable[Worker]) -> None:
    """Start programs anew.

    Where the system happens to put a program's memory makes it up to 5 % faster or slower for as
    long as it lives; a ratio of two programs that are started once would not tell that apart.
    """
    for worker in dict.fromkeys(workers):
        worker.close()
        worker.start()


def run_slice(contender: Contender, workload: Workload, setting: Setting) -> Report:
    """Run one slice once the one before has come to rest.

    Its first text, which finds the caches empty, is asked beforehand.
    """
    time.sleep(_REST_SECONDS)
    contender.worker.run(workload.order[:1], 1, setting)
    report = contender.worker.run(workload.order, workload.callers, setting)
    if not report.latencies:
        raise RuntimeError(f"{contender.name} answered nothing: {report.first_error}")
    return report


def label(setting: Setting) -> str:
    """Say a setting in words."""
    words = f"{setting.threads} thread{'s' * (setting.threads != 1)}"
    words += ", spinning" * setting.spin
    if setting.runs > 1:
        words += f" × {setting.runs} runs"
    if setting.batch > 1:
        words += f", batches of {setting.batch}"
    return words


def agreement(vectors: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """Return the smallest cosine between vectors of unit length."""
    pairs = zip(vectors, others, strict=True)
    return min(sum(a * b for a, b in zip(one, two, strict=True)) for one, two in pairs)


def as_rows(results: Results) -> list[Mapping[str, object]]:
    """Return all that was measured, for a file that other programs read."""
    return [
        {
            "contender": contender,
            "workload": workload,
            "p50_ms": results.latency(contender, workload, 50),
            "p99_ms": results.latency(contender, workload, 99),
            "per_second": results.per_second(contender, workload),
            "cpu_ms": results.cpu_milliseconds(contender, workload),
            "errors": results.errors(contender, workload),
            "rounds": len(reports),
            "answers": sum(len(report.latencies) for report in reports),
        }
        for (contender, workload), reports in results.reports.items()
    ]
