"""Measure what a call costs besides its two parts: tokenising the text and running the model.

    python bench/call_time.py MODEL_FOLDER texts.json

One caller in C; tokenizers and ONNX Runtime are timed from within the same calls, and what is left
is ours. Prints the median microseconds by the number of tokens as JSON, in the last line.
"""

import json
import sys
import tempfile
from pathlib import Path

from embedders import own_seconds, through_library
from texts import FIXED

CALLS = 40


def main() -> None:
    """Print the microseconds of each fixed length that the model's own limit allows."""
    model, file = Path(sys.argv[1]), Path(sys.argv[2])
    entries = {entry["tokens"]: entry["text"] for entry in json.loads(file.read_text())}
    with tempfile.TemporaryDirectory() as name:
        handle, embed = through_library(Path(name), model, 0)
        found = {
            tokens: 1e6 * own_seconds(embed, handle, entries[tokens], CALLS) for tokens in FIXED[:3]
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
