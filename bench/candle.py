"""Measure what a candle function costs above the engine call that it makes.

    build/env/bin/python bench/candle.py

Of each call the CPU time of its thread in C, with the freeing of its answer, less what the engine
spent of it: the way into Python, arguments, and the answer in C's structs. Once with the engine's
answers ready, which the limit of 20 µs for each call of the engine is for, and once behind runs of
tiny models, which drive code and data out of the caches. One caller; medians.
"""

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from embedders import BUILD, ROOT, compile_c

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
    """Adds up the CPU time of the engine's calls, or answers them as it has answered before."""

    def __init__(self) -> None:
        self.nanoseconds = 0
        self.ready: list[object] | None = None  # answers, in the order of the calls
        self._kept: list[object] = []
        for name in ENGINE_CALLS:
            setattr(Registry, name, self._timed(getattr(Registry, name)))

    def begin(self) -> None:
        """Forget the calls that were."""
        self.nanoseconds = 0
        self._kept = []

    @property
    def kept(self) -> list[object]:
        """What the calls since the beginning have answered."""
        return self._kept

    def _timed(self, method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            started = time.thread_time_ns()
            answer = method(*arguments) if self.ready is None else self.ready[len(self._kept)]
            self._kept.append(answer)
            self.nanoseconds += time.thread_time_ns() - started
            return answer

        return call


def load(library: ctypes.CDLL, init: str, given: tuple[str | int, ...]) -> None:
    """Call an init function; a name that is a folder of the tiny models stands for that."""
    arguments: list[int | bytes] = []
    for value in given:
        folder = MODELS / str(value)
        text = str(folder if folder.is_dir() else value).encode()
        arguments.append(value if isinstance(value, int) else text)
    function = getattr(library, init)
    function.restype = ctypes.c_bool
    if not function(*arguments, ctypes.c_bool(True)):
        sys.exit(f"error: {init} failed; run make test")


def medians(call: Callable[[bytes], int], clock: Clock, rounds: int) -> tuple[float, float]:
    """Return the microseconds above the engine and those of the engine."""
    above, inside = [], []
    for _ in range(rounds + 50):
        clock.begin()
        whole = call(TEXT)
        if whole < 0:
            sys.exit("error: a call failed; run make test")
        above.append(whole - clock.nanoseconds)
        inside.append(clock.nanoseconds)
    return statistics.median(above[50:]) / 1000, statistics.median(inside[50:]) / 1000


def main() -> None:
    """Print a line for each function, marked if it is above the limit."""
    parser = argparse.ArgumentParser(description="Measure candle's functions.")
    parser.add_argument("--rounds", type=int, default=3000, help="per function, default 3000")
    rounds = parser.parse_args().rounds
    clock = Clock()
    with tempfile.TemporaryDirectory() as name:
        shim = Path(name) / "candle.so"
        compile_c("candle.c", shim, "-shared", "-fPIC", library="candle_semantic_router")
        timed = ctypes.CDLL(str(shim))
        library = ctypes.CDLL(str(BUILD / "lib" / "libcandle_semantic_router.so"))
        print(f"{'function':<45} {'engine µs':>10} {'above it':>10} {'answers ready':>14}")
        for function, init, given in MEASURED:
            load(library, init, given)
            call = getattr(timed, f"time_{function}")
            call.restype = ctypes.c_int64
            call.argtypes = (ctypes.c_char_p,)
            above, engine = medians(call, clock, rounds)
            clock.ready, calls = clock.kept, len(clock.kept)
            warm, _ = medians(call, clock, rounds)
            clock.ready = None
            mark = " !" if warm > LIMIT_MICROSECONDS * calls else ""
            print(f"{function:<45} {engine:>10.1f} {above:>10.1f} {warm:>14.1f}{mark}")


if __name__ == "__main__":
    main()
