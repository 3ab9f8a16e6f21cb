"""Measure one caller and many on one loaded model against raw ONNX Runtime at its best.

    make bench

The library serves both loads from one model with default options. Beside it stand sessions of one
and of two threads, each called by as many Python threads as pay: what one would have to choose
between. Texts have the lengths of ``TOKENS``; all settings take turns in one run.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from embedders import BUILD, Embed, by_hand, through_library

from libsemantic.engine.config import available_cpus

TOKENS = (3, 120, 17, 400, 8, 64, 250, 32, 5, 180, 48, 12, 90, 330, 24, 150)
WORD = "the"  # one token


@dataclass(frozen=True, slots=True)
class Setting:
    """How texts are embedded: ``workers`` threads at a time."""

    label: str
    embed: Embed
    workers: int


class Cost(NamedTuple):
    """Seconds by the clock, and of all CPUs together."""

    wall: float
    cpu: float


def measure(setting: Setting, texts: Sequence[str]) -> Cost:
    """Let the workers embed all texts, each the next one that is left."""
    left = iter(texts)  # one step of the interpreter: needs no lock
    ready = threading.Barrier(setting.workers + 1)

    def work() -> None:
        ready.wait()
        for text in left:
            setting.embed(text)

    threads = [threading.Thread(target=work) for _ in range(setting.workers)]
    for thread in threads:
        thread.start()
    ready.wait()
    started, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    return Cost(time.perf_counter() - started, time.process_time() - used)


def in_turn(settings: Sequence[Setting], texts: Sequence[str], rounds: int) -> list[Cost]:
    """Measure all settings in each round, another one first each time; return medians."""
    costs: list[list[Cost]] = [[] for _ in settings]
    for first in range(rounds + 1):
        for step in range(len(settings)):
            index = (first + step) % len(settings)
            costs[index].append(measure(settings[index], texts))
    return [Cost(*map(statistics.median, zip(*column[1:], strict=True))) for column in costs]


def main() -> None:
    """Print what each setting takes, and how near the library comes to the best."""
    parser = argparse.ArgumentParser(description="Measure one caller and many on one model.")
    parser.add_argument("--rounds", type=int, default=9, help="per load, default 9")
    parser.add_argument("--model", type=Path, default=BUILD / "models" / "minilm")
    arguments = parser.parse_args()
    texts = [" ".join([WORD] * (tokens - 2)) for tokens in TOKENS]
    cpus = available_cpus()
    with tempfile.TemporaryDirectory() as name:
        _, library = through_library(Path(name), arguments.model, max(TOKENS))
    raw = {threads: by_hand(arguments.model, threads) for threads in sorted({1, cpus})}
    print(f"{cpus} CPUs, texts of {min(TOKENS)} to {max(TOKENS)} tokens")
    for callers, repeats in ((1, 1), (8, 4)):
        settings = [Setting("library", library, callers)]
        for threads, embed in raw.items():
            for workers in sorted({min(callers, cpus), min(callers, 2 * cpus), callers}):
                label = f"raw, {threads} threads a run, {workers} at a time"
                settings.append(Setting(label, embed, workers))
        costs = in_turn(settings, texts * repeats, arguments.rounds)
        count = len(texts) * repeats
        print(f"callers: {callers}{'texts a second':>38}{'CPU ms a text':>16}")
        for setting, cost in zip(settings, costs, strict=True):
            print(f"  {setting.label:<36}{count / cost.wall:>9.1f}{cost.cpu / count * 1e3:>16.2f}")
        wall, cpu = (min(column) for column in zip(*costs[1:], strict=True))
        ours = costs[0]
        print(f"  of the best raw{wall / ours.wall:>30.3f}{ours.cpu / cpu:>16.3f}")


if __name__ == "__main__":
    main()
