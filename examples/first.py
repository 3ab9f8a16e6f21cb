"""Find the entities in a sentence with a token classifier, from Python.

build/env/bin/python examples/first.py MODEL_FOLDER
"""

import sys

from libsemantic.engine.errors import SemanticError
from libsemantic.engine.registry import REGISTRY

SENTENCE = "I am Sarah Connor, write to sarah@example.org"


def main(folder: str) -> None:
    """Print the entities of the sentence with their byte ranges."""
    model = REGISTRY.load(folder)
    found = REGISTRY.classify_tokens(model, [SENTENCE])

    data = SENTENCE.encode()  # all offsets count UTF-8 bytes
    for i in range(found.item_count):
        start, end = found.start[i], found.end[i]
        label = found.labels[found.label_index[i]]
        score = found.score[i]
        print(f"{data[start:end].decode():20} {label:12} {score:.2f}  bytes {start} to {end}")

    REGISTRY.unload(model, timeout_ms=1000)
    REGISTRY.cleanup(timeout_ms=1000)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: first.py MODEL_FOLDER (a token classifier)")
    try:
        main(sys.argv[1])
    except SemanticError as error:
        sys.exit(f"{error.status.name}: {error.message}")
