"""Measure the library against its own parts; every ratio is from one interleaved run.

    make bench

1. The boundary: an exported call that does nothing in the engine, from a C program.
2. MiniLM through the C API, one caller, against the same tokenizer and the same graph in ONNX
   Runtime, in the same process with the same thread settings; and what of a call is neither: the
   library's own Python and C, with the model's weights driving it out of the caches, and with a
   tiny model that leaves it there.
3. Loading: time and resident memory.
4. ModernBERT of base shape against plain attention (long_texts.py), some minutes and 9 GB.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
from embedders import BUILD, ROOT, Embed, by_hand, compile_c, own_seconds, through_library
from long_texts import compare_attention

from libsemantic.engine.config import available_cpus

LENGTHS = (8, 32, 128, 512)
TINY = ROOT / "tests/golden/models/bert-embed-mean"
TEXT = "the quick brown fox jumps over the lazy dog while rain falls on green hills"


def boundary_nanoseconds(folder: Path, calls: int) -> float:
    """Return the median time of an exported call that reaches Python and does nothing there."""
    program = folder / "empty_call"
    compile_c("empty_call.c", program)
    done = subprocess.run([program, str(calls)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def interleaved(first: Embed, second: Embed, text: str, rounds: int) -> tuple[float, float]:
    """Embed with both in turn, each going first half of the time; return median seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(rounds + 10):
        for column in (0, 1) if index % 2 else (1, 0):
            times[column].append((first, second)[column](text)[1])
    return statistics.median(times[0][10:]), statistics.median(times[1][10:])


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description="Measure the library against its own parts.")
    parser.add_argument("--rounds", type=int, default=300, help="per length, default 300")
    parser.add_argument("--model", type=Path, default=BUILD / "models" / "minilm")
    parser.add_argument("--no-long", dest="long", action="store_false", help="leave out 4.")
    arguments = parser.parse_args()
    print(f"{available_cpus()} CPUs, onnxruntime {ort.__version__}, one caller, medians")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"empty exported call: {boundary_nanoseconds(folder, 200_000) / 1000:.2f} µs")
        handle, library = through_library(folder, arguments.model, LENGTHS[-1])
        tiny, embed_tiny = through_library(folder, TINY, 0)
    hand = by_hand(arguments.model, available_cpus())
    print(f"{'tokens':>8} {'library ms':>11} {'by hand ms':>11} {'ratio':>6} {'own µs':>7}")
    for tokens in LENGTHS:
        text = " ".join((TEXT.split() * 35)[: tokens - 2])
        difference = float(np.abs(library(text)[0] - hand(text)[0]).max())
        if difference > 1e-5:
            sys.exit(f"error: the two differ by {difference}")
        rounds = min(arguments.rounds, 20_000 // tokens)
        ours, theirs = interleaved(library, hand, text, rounds)
        own = own_seconds(library, handle, text, rounds)
        print(
            f"{tokens:>8} {ours * 1e3:>11.3f} {theirs * 1e3:>11.3f} {ours / theirs:>6.3f} "
            f"{own * 1e6:>7.0f}"
        )
    own = own_seconds(embed_tiny, tiny, TEXT, 10 * arguments.rounds)
    print(f"Python time per call (all that is not tokenise or run), tiny model: {own * 1e6:.0f} µs")
    if arguments.long:
        compare_attention(max(3, arguments.rounds // 30))


if __name__ == "__main__":
    main()
