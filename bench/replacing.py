"""Measure the calls to one model while another one is loaded, replaced and unloaded.

    python bench/replacing.py

MiniLM answers 20 texts a second, each sent on time whether or not others are answered, in periods
that are quiet and periods in which another thread loads, replaces and unloads a model of MiniLM's
shape with a vocabulary of 64,000 entries, over and over. A latency counts from when a text was due.
"""

import argparse
import json
import random
import shutil
import string
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from embedders import BUILD
from random_models import write_model

from libsemantic.engine.config import LoadOptions
from libsemantic.engine.registry import REGISTRY
from libsemantic.engine.weights import read_weights

ENTRIES = 64_000
CALLS_A_SECOND = 20
CALLERS = 16
TOKENS = (8, 32, 17, 64, 12, 128, 24, 48)
LIMIT = 3.0
WORD = "the"  # one token


def write_other(folder: Path, model: Path) -> None:
    """Write a model of the same shape with random weights and a vocabulary of ``ENTRIES``."""
    config = json.loads((model / "config.json").read_text()) | {"vocab_size": ENTRIES}
    shapes = {name: tensor.shape for name, tensor in read_weights(model).items()}
    table = "embeddings.word_embeddings.weight"
    shapes = {n: s for n, s in shapes.items() if n != "embeddings.position_ids"}
    shapes[table] = (ENTRIES, shapes[table][1])
    write_model(folder, config, shapes)
    shutil.copytree(model / "1_Pooling", folder / "1_Pooling")
    shutil.copy(model / "modules.json", folder)
    content = json.loads((model / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    chosen = random.Random(1)
    while len(vocabulary) < ENTRIES:
        word = "".join(chosen.choices(string.ascii_lowercase, k=7))
        vocabulary.setdefault(word, len(vocabulary))
    (folder / "tokenizer.json").write_text(json.dumps(content))


class Loader(threading.Thread):
    """Loads, replaces and unloads a model until it is told to end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = str(folder)
        self.ended = False
        self.rounds = 0

    def run(self) -> None:
        """Go round at least once."""
        while not self.ended or not self.rounds:
            handle = REGISTRY.load(self._folder, LoadOptions(name="other"))
            REGISTRY.load(self._folder, LoadOptions(replaces=handle))
            REGISTRY.unload(handle, 10_000)
            self.rounds += 1


def answer(handle: int, texts: Sequence[str], seconds: float) -> list[float]:
    """Send texts on time for so long; return the latencies in seconds."""

    def embed(text: str, due: float) -> float:
        REGISTRY.embed(handle, [text])
        return time.perf_counter() - due

    with ThreadPoolExecutor(CALLERS) as pool:
        sent: list[Future[float]] = []
        begin = time.perf_counter()
        for number in range(int(seconds * CALLS_A_SECOND)):
            due = begin + number / CALLS_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            sent.append(pool.submit(embed, texts[number % len(texts)], due))
        return [each.result() for each in sent]


def main() -> None:
    """Print the latencies of both kinds of periods and the ratio of their p99."""
    parser = argparse.ArgumentParser(description="Measure calls while another model is loaded.")
    parser.add_argument("--rounds", type=int, default=6, help="of two periods, default 6")
    parser.add_argument("--seconds", type=float, default=10, help="of a period, default 10")
    parser.add_argument("--model", type=Path, default=BUILD / "models" / "minilm")
    arguments = parser.parse_args()
    handle = REGISTRY.load(str(arguments.model))
    texts = [" ".join([WORD] * (tokens - 2)) for tokens in TOKENS]
    latencies: dict[str, list[float]] = {"quiet": [], "loading": []}
    loads = 0
    with tempfile.TemporaryDirectory() as name:
        write_other(Path(name), arguments.model)
        answer(handle, texts, 1.0)
        for index in range(arguments.rounds):
            for kind in ("quiet", "loading") if index % 2 else ("loading", "quiet"):
                loader = Loader(Path(name)) if kind == "loading" else None
                if loader is not None:
                    loader.start()
                latencies[kind] += answer(handle, texts, arguments.seconds)
                if loader is not None:
                    loader.ended = True
                    loader.join()
                    loads += 2 * loader.rounds
    print(f"{CALLS_A_SECOND} calls a second, {min(TOKENS)} to {max(TOKENS)} tokens, {loads} loads")
    tails = []
    for kind, values in latencies.items():
        p50, p99 = (1e3 * float(np.percentile(values, share)) for share in (50, 99))
        tails.append(p99)
        print(f"  {kind:<8} p50 {p50:7.1f} ms  p99 {p99:7.1f} ms")
    print(f"  ratio of p99 {tails[1] / tails[0]:.2f} (limit {LIMIT})")


if __name__ == "__main__":
    main()
