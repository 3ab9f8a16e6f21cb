"""Load a model folder and answer its longest text; print what that took.

usage: loaded_size.py SMALL FOLDER PRECISION: SMALL is another folder of the same task, loaded
first so that what the process needs once is there. Prints, as JSON, resident memory in bytes over
what it was before: ``peak`` of the load, ``loaded`` after it, and ``call``, the peak of a call over
that; and ``seconds`` of the load, the ``tokens`` of the text and the ``shape`` of what came back.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from libsemantic.engine.config import (
    LoadOptions,
    LongText,
    Output,
    Precision,
    RunOptions,
    Task,
)
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Float32


def memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(key)


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # man proc: resets VmHWM


def answer(registry: Registry, handle: int, text: str) -> tuple[int, Float32]:
    """Return how many tokens were scored and what came of them."""
    options = RunOptions(long_text=LongText.CUT)
    task = registry.info(handle).task
    if task is Task.SEQUENCE_CLASSIFICATION:
        result = registry.classify(handle, [text], options)
        return result.rows.scored_token_count[0], result.logits
    if task is Task.EMBEDDING:
        vectors = registry.embed(handle, [text], options)
        return vectors.rows.scored_token_count[0], vectors.values
    options = RunOptions(long_text=LongText.CUT, output=Output.TOKENS)
    tokens = registry.classify_tokens(handle, [text], options)
    assert tokens.probabilities is not None
    return tokens.rows.scored_token_count[0], tokens.probabilities


def main(small: str, folder: str, precision: str) -> None:
    registry = Registry()
    text = "a b c " * 4000
    registry.unload(registry.load(small), 10_000)
    before = memory("VmRSS")
    forget_peak()
    start = time.monotonic()
    handle = registry.load(folder, LoadOptions(precision=Precision[precision]))
    seconds = time.monotonic() - start
    peak, loaded = memory("VmHWM"), memory("VmRSS")
    answer(registry, handle, "a b c")  # pages of the embeddings that any text needs
    forget_peak()
    resident = memory("VmRSS")
    tokens, values = answer(registry, handle, text)
    assert np.isfinite(values).all()
    numbers = {
        "peak": peak - before,
        "loaded": loaded - before,
        "call": memory("VmHWM") - resident,
        "seconds": seconds,
        "tokens": tokens,
        "shape": values.shape,
    }
    sys.stdout.write(json.dumps(numbers))
    registry.cleanup(10_000)


if __name__ == "__main__":
    main(*sys.argv[1:])
