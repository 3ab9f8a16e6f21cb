"""Tables of a benchmark in Markdown, which a terminal shows as well."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contenders import GO_PEER, OURS, RAW, TORCH, Contender
from load_table import LoadReport
from machine import Machine
from measure import Results, label
from targets import Target, fixed, mixed
from texts import FIXED

# What ONNX Runtime takes where its threads sleep as soon as they wait, as ours do after 20 µs.
SAME = f"{RAW}, not spinning"


@dataclass(slots=True)
class ModelReport:
    """All that was measured of one model."""

    model: str
    contenders: Sequence[Contender]
    callers: Sequence[int]
    results: Results = field(default_factory=Results)
    absent: dict[str, str] = field(default_factory=dict)
    cosines: dict[str, float] = field(default_factory=dict)
    targets: Sequence[Target] = ()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table with columns of equal width; all but the first are numbers, to the right."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join((line(head), line(rule), *(line(row) for row in rows)))


def number(value: float | None) -> str:
    """Write a number with three digits, a dash where there is none."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def mixed_table(report: ModelReport) -> str:
    """Show p50, p99 and throughput of the mixed lengths, by contender and callers."""
    head = ["mixed lengths, 3 to 400 tokens"]
    for callers in report.callers:
        head += [f"p50 ms ({callers})", f"p99 ms ({callers})", f"texts/s ({callers})"]
    rows = []
    for contender in report.contenders:
        row = [contender.name]
        for callers in report.callers:
            workload = mixed(callers)
            values: list[float | None] = [None] * 3
            if report.results.has(contender.name, workload):
                values = [
                    report.results.latency(contender.name, workload, 50),
                    report.results.latency(contender.name, workload, 99),
                    report.results.per_second(contender.name, workload),
                ]
            row += [number(value) for value in values]
        rows.append(row)
    rows += [[name, *["n/a"] * 3 * len(report.callers)] for name in report.absent]
    return table(head, rows)


def fixed_table(report: ModelReport) -> str:
    """Show the median latency of one caller by length, and our ratios to the others."""
    head = ["one caller, p50 ms", *(f"{tokens} tokens" for tokens in FIXED)]
    results = report.results
    names = [OURS, *(name for name, workload in results.reports if workload == fixed(FIXED[0]))]
    rows = [
        [name, *(number(results.latency(name, fixed(tokens), 50)) for tokens in FIXED)]
        for name in dict.fromkeys(names)
    ]
    for name in (RAW, SAME, TORCH, GO_PEER):
        ratios = [results.latency_ratio(OURS, name, fixed(tokens)) for tokens in FIXED]
        if ratios[0] is not None:
            rows.append([f"{OURS} ÷ {name}", *map(number, ratios)])
    times = [results.cpu_ratio(OURS, SAME, fixed(tokens)) for tokens in FIXED]
    rows.append([f"{OURS} ÷ {SAME}, CPU time", *map(number, times)])
    return table(head, rows)


def settings_lines(report: ModelReport) -> list[str]:
    """Name the best settings that the sweeps found."""
    lines = []
    for contender in report.contenders:
        found = (f"{name}: {label(setting)}" for name, setting in contender.best.items())
        if contender.kind.sweeps:
            lines.append(f"- {contender.name}: {'; '.join(found)}")
    return lines


def targets_table(groups: Sequence[tuple[str, Sequence[Target]]], *, quiet: bool) -> str:
    """Show each target with its limit, what was measured, and whether that is kept.

    A group is a model and its targets.
    """
    doubt = {} if quiet else {"yes": "yes? (busy)", "no": "no? (busy)"}
    rows = [
        [
            f"{model}: {target.what}",
            f"{'≥' if target.at_least else '≤'} {target.limit:g}",
            "–" if target.measured is None else f"{target.measured:.4g}",
            doubt.get(target.verdict, target.verdict),
        ]
        for model, targets in groups
        for target in targets
    ]
    return table(["target", "limit", "measured", "kept"], rows)


def load_table(load: LoadReport) -> str:
    """Show what each load took."""
    results, rows = load.results, []
    for (name, workload), reports in sorted(results.reports.items(), key=lambda each: each[0][0]):
        share = load.shares.get((name, workload))
        busy = sum(report.cpu_seconds for report in reports)
        rows.append(
            [
                f"{name}, {workload}",
                number(results.per_second(name, workload)),
                number(results.latency(name, workload, 50)),
                number(results.latency(name, workload, 99)),
                number(results.queue_milliseconds(name, workload)),
                str(results.errors(name, workload)),
                number(busy / sum(report.seconds for report in reports)),
                "–" if share is None else f"{100 * share:.1f} %",
            ]
        )
    head = ["load", "requests/s", "p50 ms", "p99 ms", "queued ms", "errors", "CPUs busy"]
    return table([*head, "lock held"], rows)


def between(page: str, name: str, content: str) -> str:
    """Return the page with what stands between the marks of a name replaced.

    Raises ValueError for a page without them.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, ends, after = rest.partition(end)
    if not (found and ends):
        raise ValueError(f"the page has no {begin} and {end}")
    return f"{before}{begin}\n{content.strip()}\n{end}{after}"


BUSY = "**Other programs ran meanwhile: this shows what is measured, and no speed.**"


def _heading(machine: Machine, command: str) -> list[str]:
    parts = [f"`{command}` on", "", *(f"- {line}" for line in machine.lines())]
    return parts if machine.quiet else [*parts, "", BUSY]


def _load_parts(load: LoadReport) -> list[str]:
    return (
        ["", f"**{load.model} under load**", "", load_table(load)] if load.results.reports else []
    )


def summary(
    machine: Machine, command: str, reports: Sequence[ModelReport], load: LoadReport
) -> str:
    """Write what the README shows: the command, the machine and the tables."""
    parts = _heading(machine, command)
    for report in reports:
        parts += ["", f"**{report.model}**", "", mixed_table(report), "", fixed_table(report)]
    return "\n".join(parts + _load_parts(load))


def write_report(
    machine: Machine, command: str, reports: Sequence[ModelReport], load: LoadReport
) -> str:
    """Write everything as one page."""
    parts = _heading(machine, command)
    for report in reports:
        parts += ["", f"**{report.model}**", "", mixed_table(report), "", fixed_table(report), ""]
        parts += ["Best settings found:", "", *settings_lines(report)]
        parts += ["", *(f"- {name}: not available: {why}" for name, why in report.absent.items())]
        parts += [
            f"- smallest cosine to {OURS}: {name} {cosine:.6f}"
            for name, cosine in report.cosines.items()
        ]
    groups = [(report.model, report.targets) for report in reports]
    groups.append((f"{load.model} under load", load.targets))
    parts += [*_load_parts(load), "", "**Targets**", ""]
    parts.append(targets_table(groups, quiet=machine.quiet))
    return "\n".join(parts) + "\n"
