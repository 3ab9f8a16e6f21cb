"""How long the load and the unload of a very large vocabulary stop the other threads."""

import json
import random
import string
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from libsemantic.engine.tokenization import load_tokenizer

from ..abi.binding import MODELS
from ..ticker import Ticker
from .size import sized

ENTRIES = sized(256_000, least=2000)
# The longest pause that is let pass. The tokenizers library reads a file with the lock held.
PAUSE = 5.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordPiece tokenizer of that many entries."""
    content = json.loads((MODELS / "bert-seq" / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    chosen = random.Random(1)
    while len(vocabulary) < ENTRIES:
        word = "".join(chosen.choices(string.ascii_lowercase, k=7))
        vocabulary.setdefault(word, len(vocabulary))
    path = tmp_path_factory.mktemp("large") / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def pause(step: Callable[[], object]) -> float:
    """Return the longest wait of another thread while the step runs."""
    with Ticker() as ticker:
        time.sleep(0.05)
        step()
        time.sleep(0.05)
    return ticker.gap


def test_the_pause_of_a_large_tokenizer(large: Path) -> None:
    data = large.read_bytes()
    backends: list[tokenizers.Tokenizer] = []
    steps: dict[str, Callable[[], object]] = {
        "load_tokenizer": lambda: load_tokenizer(large),
        "from_buffer alone": lambda: backends.append(tokenizers.Tokenizer.from_buffer(data)),
        "get_vocab alone": lambda: backends[0].get_vocab(True),
        "freeing it": backends.clear,
    }
    pauses = {name: pause(step) for name, step in steps.items()}
    print({name: f"{seconds:.3f} s" for name, seconds in pauses.items()})
    assert max(pauses.values()) < PAUSE
