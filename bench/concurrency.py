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
from collections.abc import Callable, Sequence
from pathlib import Path

from embedders import BUILD, Embed, by_hand, through_library

from libsemantic.engine.config import available_cpus

TOKENS = (3, 120, 17, 400, 8, 64, 250, 32, 5, 180, 48, 12, 90, 330, 24, 150)
WORD = "the"  # one token


def seconds(embed: Embed, texts: Sequence[str], callers: int) -> float:
    """Return how long it takes that many threads to embed all texts, each the next one left."""
    left = iter(texts)  # one step of the interpreter: needs no lock
    ready = threading.Barrier(callers + 1)

    def call() -> None:
        ready.wait()
        for text in left:
            embed(text)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def in_turn(settings: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """Run all settings in each round, from another one on each time; return their medians."""
    times: list[list[float]] = [[] for _ in settings]
    for first in range(rounds + 1):
        for step in range(len(settings)):
            index = (first + step) % len(settings)
            times[index].append(settings[index]())
    return [statistics.median(column[1:]) for column in times]


def main() -> None:
    """Print texts per second of each setting, and the library's share of the best."""
    parser = argparse.ArgumentParser(description="Measure one caller and many on one model.")
    parser.add_argument("--rounds", type=int, default=9, help="per load, default 9")
    parser.add_argument("--model", type=Path, default=BUILD / "models" / "minilm")
    arguments = parser.parse_args()
    texts = [" ".join([WORD] * (tokens - 2)) for tokens in TOKENS]
    with tempfile.TemporaryDirectory() as name:
        library = through_library(Path(name), arguments.model, max(TOKENS))
    cpus = available_cpus()
    raw = {threads: by_hand(arguments.model, threads) for threads in sorted({1, cpus})}
    print(f"{cpus} CPUs, texts of {min(TOKENS)} to {max(TOKENS)} tokens, texts a second")
    for callers in (1, 8):
        rows: list[tuple[str, Embed, int]] = [("library", library, callers)]
        for threads, embed in raw.items():
            for workers in sorted({min(callers, cpus), min(callers, 2 * cpus), callers}):
                rows.append((f"raw, intra-op {threads}, {workers} at a time", embed, workers))
        some = texts * (1 if callers == 1 else 4)
        medians = in_turn(
            [lambda e=embed, w=workers: seconds(e, some, w) for _, embed, workers in rows],
            arguments.rounds,
        )
        rates = [len(some) / median for median in medians]
        print(f"{callers} callers" if callers > 1 else "1 caller")
        for (label, _, _), rate in zip(rows, rates, strict=True):
            print(f"  {label:<32} {rate:>8.1f}")
        print(f"  library / best raw throughput    {rates[0] / max(rates[1:]):>8.3f}")


if __name__ == "__main__":
    main()
