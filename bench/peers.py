"""Compare libsemantic with what a user would pick instead, in one interleaved run.

    make bench                       # all of it
    python bench/peers.py --quick    # MiniLM only, few rounds, about two minutes

Contenders: libsemantic through its Go binding in each precision that is installed, ONNX Runtime
from Python by hand, transformers on torch, and a Go binding of ONNX Runtime. Each is a process of
its own that stays idle while another is asked; they answer the same texts in short slices in turn.
Peers run at the best setting that a sweep finds beforehand, ours at its defaults. The table and the
plot go to build/bench; docs/performance.md explains them.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from comparison import CALLERS, PLANS, measure_model, model_folder
from contenders import BUILD, KINDS, ROOT, Places
from load_table import LoadReport, measure_under_load
from machine import describe
from measure import Results, as_rows
from plot import Panel, draw
from report import ModelReport, between, summary, write_report
from targets import mixed
from texts import as_json, make_texts, read_tokenizer

# The model that is put under load.
LOADED = "minilm"


class Progress:
    """Lines for the person who waits, with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        """Say a line on standard error; standard output is for the table."""
        sys.stderr.write(f"[{self.minutes():5.1f} min] {text}\n")

    def minutes(self) -> float:
        """Return the minutes since the start."""
        return (time.monotonic() - self._started) / 60


def put_under_load(load: LoadReport, say: Progress, *, quick: bool) -> None:
    """Measure what many callers get, without peers."""
    texts = make_texts(read_tokenizer(model_folder(LOADED)))
    file = BUILD / "bench" / f"{LOADED}.texts.json"
    file.write_text(as_json(texts))
    places = Places(model_folder(LOADED), file, None)
    measure_under_load(places, texts, load, 2 if quick else 3, say, quick=quick)


def write_plot(reports: Sequence[ModelReport]) -> str:
    """Draw throughput and latency of the mixed lengths."""
    names = [
        kind.name
        for kind in KINDS
        if any(report.results.has(kind.name, mixed(1)) for report in reports)
    ]
    groups = [f"{callers} caller{'s' * (callers > 1)}" for callers in CALLERS]
    rows = []
    for report in reports:
        speeds, middles, tails = (
            [
                [
                    value(report.results, name, mixed(callers))
                    if report.results.has(name, mixed(callers))
                    else None
                    for callers in CALLERS
                ]
                for name in names
            ]
            for value in (
                Results.per_second,
                lambda results, name, workload: results.latency(name, workload, 50),
                lambda results, name, workload: results.latency(name, workload, 99),
            )
        )
        what = f"{report.model}: p50 (bar) and p99 (line), milliseconds"
        rows.append(
            [
                Panel(f"{report.model}: texts a second", groups, speeds),
                Panel(what, groups, middles, tails, logarithmic=True),
            ]
        )
    return draw("Mixed lengths, 3 to 400 tokens", names, rows)


def publish(page: str, short: str, picture: str) -> None:
    """Put what was measured where people read it."""
    for file, content in ((ROOT / "README.md", short), (ROOT / "docs/performance.md", page)):
        file.write_text(between(file.read_text(), "measured", content))
    (ROOT / "docs/performance.svg").write_text(picture)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare libsemantic with its peers.")
    parser.add_argument("--quick", action="store_true", help="MiniLM only, few rounds, no batches")
    parser.add_argument("--models", nargs="+", choices=PLANS, default=list(PLANS))
    parser.add_argument("--rounds", type=int, default=0, help="of each model; default: as planned")
    parser.add_argument("--no-load", dest="load", action="store_false", help="leave out the load")
    parser.add_argument(
        "--publish", action="store_true", help="put the tables into README and docs/performance"
    )
    parser.add_argument(
        "--torch-python",
        type=Path,
        default=Path(os.environ.get("PEERS_PYTHON", BUILD / "peers/bin/python")),
        help="Python with torch and transformers; default: that of `make setup-peers`",
    )
    options = parser.parse_args(arguments)
    if options.publish and not options.load:
        parser.error("--publish replaces whole tables; measure the load too")
    if options.rounds < 0:
        parser.error(f"--rounds is {options.rounds}; give 1 or more")
    return options


def main() -> None:
    """Measure, then print the tables and write them with the plot to build/bench."""
    options = parse(sys.argv[1:])
    torch_python = options.torch_python if options.torch_python.exists() else None
    output = BUILD / "bench"
    output.mkdir(parents=True, exist_ok=True)
    say, machine = Progress(), describe({})
    if not machine.quiet:
        say(f"other programs take {machine.busy:.0%} of the CPUs: what follows is no speed")
    reports = []
    for name in ["minilm"] if options.quick else options.models:
        plan = PLANS[name]
        if options.quick:
            plan = replace(plan, rounds=3, sweep_rounds=1, batches=(1,))
        plan = replace(plan, rounds=options.rounds or plan.rounds)
        reports.append(measure_model(plan, torch_python, machine, say))
    load = LoadReport(PLANS[LOADED].title, machine.cpus)
    if options.load:
        put_under_load(load, say, quick=options.quick)
    about = {
        key: value
        for report in reports
        for contender in report.contenders
        for key, value in contender.worker.about.items()
        if key in ("torch", "transformers")
    }
    machine = replace(machine, versions={**machine.versions, **about})
    command = " ".join(["bench/peers.py", *sys.argv[1:]])
    page = write_report(machine, command, reports, load)
    page += f"\nThis took {say.minutes():.0f} minutes.\n"
    (output / "peers.md").write_text(page)
    (output / "peers.svg").write_text(write_plot(reports))
    rows = {report.model: as_rows(report.results) for report in reports}
    rows[f"{load.model} under load"] = as_rows(load.results)
    (output / "peers.json").write_text(json.dumps(rows, indent=1))
    if options.publish:
        publish(page, summary(machine, command, reports, load), write_plot(reports))
    print(page)
    say(f"written: {output.relative_to(ROOT)}/peers.md, peers.svg, peers.json")


if __name__ == "__main__":
    main()
