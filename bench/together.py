"""Measure one call to several models against a call to each, one after the other.

    build/env/bin/python bench/together.py

The same folder is loaded under several names. Beside both stands the work itself: the calls one
after the other on one thread each, divided by the CPUs, which is what models side by side could
take at best. All of them take turns in one run.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from libsemantic.engine.config import LoadOptions, available_cpus
from libsemantic.engine.registry import Registry
from libsemantic.engine.together import ModelRequest

MODEL = Path(__file__).resolve().parent.parent / "build/models/minilm"
WORD = "the"  # one token


class Cost(NamedTuple):
    """Seconds by the clock, and of all CPUs together."""

    wall: float
    cpu: float


def measure(call: Callable[[], object], repeats: int) -> Cost:
    """Return what one call costs."""
    started, used = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        call()
    wall, cpu = time.perf_counter() - started, time.process_time() - used
    return Cost(wall / repeats, cpu / repeats)


def in_turn(calls: Sequence[Callable[[], object]], rounds: int, repeats: int) -> list[Cost]:
    """Measure all calls in each round; return medians."""
    costs: list[list[Cost]] = [[] for _ in calls]
    for number in range(rounds + 1):  # the first one warms up
        for index, call in enumerate(calls):
            cost = measure(call, repeats)
            if number:
                costs[index].append(cost)
    return [Cost(*map(statistics.median, zip(*column, strict=True))) for column in costs]


def main() -> None:
    """Print a line for each length of text."""
    parser = argparse.ArgumentParser(description="Measure one call to several models.")
    parser.add_argument("--rounds", type=int, default=15, help="per length, default 15")
    parser.add_argument("--models", type=int, default=3, help="how many, default 3")
    parser.add_argument("--model", type=Path, default=MODEL, help="an embedding model")
    arguments = parser.parse_args()
    registry, cpus = Registry(), available_cpus()

    def load(name: str, threads: int) -> int:
        options = LoadOptions(name=name, intra_op_threads=threads, max_tokens=512)
        return registry.load(str(arguments.model), options)

    names = range(arguments.models)
    handles = [load(f"model {name}", 0) for name in names]
    single = [load(f"model {name} on one thread", 1) for name in names]
    print(f"{arguments.models} models, {cpus} CPUs; ms by the clock (and of all CPUs)")
    print("tokens   one by one         together           by one by one   by work / CPUs")
    for tokens in (8, 32, 128, 512):
        texts = [" ".join([WORD] * (tokens - 2))]

        def one_by_one(handles: Sequence[int] = handles, texts: Sequence[str] = texts) -> None:
            for handle in handles:
                registry.embed(handle, texts)

        def work(texts: Sequence[str] = texts) -> None:
            one_by_one(single, texts)

        def together(texts: Sequence[str] = texts) -> None:
            registry.run_models([ModelRequest(handle) for handle in handles], texts)

        apart, joined, least = in_turn(
            (one_by_one, together, work), arguments.rounds, max(1, 256 // tokens)
        )
        sides = "   ".join(f"{c.wall * 1e3:6.2f} ({c.cpu * 1e3:6.2f})" for c in (apart, joined))
        of_apart, of_work = joined.wall / apart.wall, joined.wall / (least.wall / cpus)
        print(f"{tokens:6}   {sides}   {of_apart:13.2f}   {of_work:14.2f}")
    registry.cleanup(10_000)


if __name__ == "__main__":
    main()
