"""Measure what a call costs besides its two parts: tokenising the text and running the model.

    python bench/call_time.py MODEL_FOLDER texts.json

One caller in C; tokenizers and ONNX Runtime are timed from within the same calls, and what is left
is ours: the way through C and Python, and the numpy that prepares and pools. Prints the median
microseconds by the number of tokens as JSON.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import onnxruntime
import tokenizers
from texts import FIXED

from bench import through_library

Result = TypeVar("Result")
CALLS = 40
WARM = 5


class Clock:
    """Adds up the time that the parts take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[..., Result]) -> Callable[..., Result]:
        """Return the same call with its time added up."""

        def run(*arguments: object, **named: object) -> Result:
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - started

        return run


class TimedTokenizer:
    """A tokenizer whose encodings are timed; all else is the tokenizer's own."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, clock: Clock) -> None:
        self._tokenizer = tokenizer
        self.encode = clock.timed(tokenizer.encode)
        self.encode_batch = clock.timed(tokenizer.encode_batch)
        self.encode_batch_fast = clock.timed(tokenizer.encode_batch_fast)

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)


class TimedReader:
    """Stands for the class of tokenizers: what it reads from a file is timed."""

    def __init__(self, original: type[tokenizers.Tokenizer], clock: Clock) -> None:
        self._original = original
        self._clock = clock

    def from_buffer(self, data: bytes) -> TimedTokenizer:
        """Read a tokenizer as the engine does."""
        return TimedTokenizer(self._original.from_buffer(data), self._clock)

    def __call__(self, model: tokenizers.models.Model) -> tokenizers.Tokenizer:
        """Make one from its parts, which is not timed."""
        return self._original(model)


def watch_parts(clock: Clock) -> None:
    """Time all that this process tokenises and runs from here on."""
    session = onnxruntime.InferenceSession
    for name in ("run", "run_with_ort_values"):
        setattr(session, name, clock.timed(getattr(session, name)))
    vars(tokenizers)["Tokenizer"] = TimedReader(tokenizers.Tokenizer, clock)


def main() -> None:
    """Print the microseconds of each fixed length that the model's own limit allows."""
    model, file = Path(sys.argv[1]), Path(sys.argv[2])
    entries = {entry["tokens"]: entry["text"] for entry in json.loads(file.read_text())}
    clock = Clock()
    watch_parts(clock)
    with tempfile.TemporaryDirectory() as name:
        embed = through_library(Path(name), model)
        found: dict[int, float] = {}
        for tokens in FIXED[:3]:
            spent = []
            for _ in range(CALLS + WARM):
                clock.seconds = 0.0
                seconds = embed(entries[tokens])[1]
                if clock.seconds == 0:
                    sys.exit("error: neither tokenizers nor ONNX Runtime was called as expected")
                spent.append(1e6 * (seconds - clock.seconds))
            found[tokens] = statistics.median(spent[WARM:])
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
