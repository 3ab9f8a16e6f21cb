"""Measure what a candle function costs above the engine call that it makes.

    build/env/bin/python bench/candle.py

Of each call the time in C, with the freeing of its answer, less the time that the engine spent in
it: Python's start of the call, arguments, locks, and the answer in C's structs. Tiny models, since
the difference is the same with large ones but for what their runs drive out of the caches; one
caller. The limit is 20 µs at the median.
"""

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import BUILD, ROOT, compile_c

from libsemantic.engine.registry import Registry

MODELS = ROOT / "tests" / "golden" / "models"
TEXT = b"What is the derivative of x squared?"
LIMIT_MICROSECONDS = 20

# Each function, the one that loads its models, and their folders with what else it takes.
MEASURED: tuple[tuple[str, str, tuple[str | int, ...]], ...] = (
    ("classify_text", "init_classifier", ("bert-seq", 7)),
    ("classify_modernbert_text", "init_modernbert_classifier", ("modernbert-seq-cls",)),
    (
        "classify_modernbert_text_with_probabilities",
        "init_modernbert_classifier",
        ("modernbert-seq-cls",),
    ),
    ("classify_candle_bert_tokens", "init_candle_bert_token_classifier", ("bert-token", 7)),
    (
        "classify_batch_with_lora",
        "init_lora_unified_classifier",
        ("bert-seq", "bert-token", "deberta-v3-seq", "bert"),
    ),
    ("classify_nli", "init_nli_model", ("modernbert-nli",)),
    ("detect_hallucinations", "init_hallucination_model", ("modernbert-hallucination",)),
    ("get_text_embedding", "init_similarity_model", ("bert-embed-mean",)),
    ("calculate_similarity", "init_similarity_model", ("bert-embed-mean",)),
    ("get_embedding_with_model_type", "init_mmbert_embedding_model", ("mmbert-embed-mean",)),
)
ENGINE_CALLS = ("classify", "classify_pairs", "classify_tokens", "classify_token_pairs", "embed")


class Clock:
    """Adds up the nanoseconds that the engine's calls take."""

    def __init__(self) -> None:
        self.nanoseconds = 0
        for name in ENGINE_CALLS:
            setattr(Registry, name, self._timed(getattr(Registry, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.perf_counter_ns()
            answer = method(*arguments)
            self.nanoseconds += time.perf_counter_ns() - started
            return answer

        return call


def load(library: ctypes.CDLL, init: str, given: tuple[str | int, ...]) -> None:
    """Call an init function; a name that is a folder of the tiny models stands for that."""
    arguments: list[Any] = [
        value if isinstance(value, int) else str(MODELS / value if (MODELS / value).is_dir() else value).encode()
        for value in given
    ]
    function = getattr(library, init)
    function.restype = ctypes.c_bool
    if not function(*arguments, ctypes.c_bool(True)):
        sys.exit(f"error: {init} failed; run make test")


def overheads(call: Callable[[bytes], int], clock: Clock, rounds: int) -> list[tuple[int, int]]:
    """Return for each call the nanoseconds above the engine and those of the engine."""
    times = []
    for _ in range(rounds + 50):
        clock.nanoseconds = 0
        whole = call(TEXT)
        if whole < 0:
            sys.exit("error: a call failed; run make test")
        times.append((whole - clock.nanoseconds, clock.nanoseconds))
    return times[50:]


def main() -> None:
    """Print a line for each function; end with 1 if one is above the limit."""
    parser = argparse.ArgumentParser(description="Measure candle's functions.")
    parser.add_argument("--rounds", type=int, default=3000, help="per function, default 3000")
    rounds = parser.parse_args().rounds
    clock, slow = Clock(), []
    with tempfile.TemporaryDirectory() as name:
        shim = Path(name) / "candle.so"
        compile_c("candle.c", shim, "-shared", "-fPIC", library="candle_semantic_router")
        timed = ctypes.CDLL(str(shim))
        library = ctypes.CDLL(str(BUILD / "lib" / "libcandle_semantic_router.so"))
        print(f"{'function':<45} {'engine µs':>10} {'above it µs':>12}")
        for function, init, given in MEASURED:
            load(library, init, given)
            call = getattr(timed, f"time_{function}")
            call.restype = ctypes.c_int64
            call.argtypes = (ctypes.c_char_p,)
            times = overheads(call, clock, rounds)
            above = statistics.median(above for above, _ in times) / 1000
            engine = statistics.median(inside for _, inside in times) / 1000
            print(f"{function:<45} {engine:>10.1f} {above:>12.1f}")
            if above > LIMIT_MICROSECONDS:
                slow.append(function)
    if slow:
        sys.exit(f"error: above {LIMIT_MICROSECONDS} µs: {', '.join(slow)}")


if __name__ == "__main__":
    main()
