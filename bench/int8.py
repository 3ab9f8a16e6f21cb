"""Measure int8 that the library makes of safetensors against fp32 of the same weights.

    make bench

1. Time of a run, one text, MiniLM and a model of ModernBERT-base's shape with random weights, one
   and two threads; every ratio is from one interleaved run.
2. Memory: a load in a process of its own, against the bytes of the weights in float32.
3. Quality on real weights: MiniLM on the sentences of tests/golden/sentences.txt, against fp32.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from random_models import MODERNBERT_BASE, modernbert_shapes, write_model

from libsemantic.engine.batching import RunControl
from libsemantic.engine.config import LoadOptions, Precision, Task
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.processor import byte_steps
from libsemantic.engine.providers import Device
from libsemantic.engine.registry import Registry
from libsemantic.engine.session import OrtModel, Runner
from libsemantic.engine.weights import read_weights

ROOT = Path(__file__).resolve().parent.parent
MINILM = ROOT / "build" / "models" / "minilm"
SENTENCES = ROOT / "tests" / "golden" / "sentences.txt"
TOKENS = (32, 128, 512)
THREADS = (1, 2)

Float32 = NDArray[np.float32]


def open_model(folder: Path, steps: int, threads: int) -> Runner:
    """Open the encoder in a folder, in int8 where there are ``steps``."""
    config = json.loads((folder / "config.json").read_text())
    graph = build_graph(config, Task.EMBEDDING, read_weights(folder), steps=steps)
    model = OrtModel(
        model=graph.model,
        weights_folder=graph.weights_folder,
        inputs=dict.fromkeys(graph.inputs, "int64"),
        output=graph.output,
        makes=graph.makes,
    )
    return Runner(model, Device("cpu", "cpu"), threads=threads)


def compare_times(folder: Path, threads: int, seconds: float) -> Iterator[str]:
    """Run both precisions in turn; yield one line for each length."""
    runners = open_model(folder, 0, threads), open_model(folder, byte_steps(), threads)
    random = np.random.default_rng(1)
    for tokens in TOKENS:
        ids = random.integers(1000, 30_000, (1, tokens))
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        feeds["token_type_ids"] = np.zeros_like(ids)
        given = {name: feeds[name] for name in runners[0].inputs}
        walls: tuple[list[float], list[float]] = ([], [])
        cpus: tuple[list[float], list[float]] = ([], [])
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends or len(walls[0]) < 7:
            for column in (0, 1) if len(walls[0]) % 2 else (1, 0):
                started, used = time.perf_counter(), time.process_time()
                runners[column].run(given, RunControl(()))
                cpus[column].append(time.process_time() - used)
                walls[column].append(time.perf_counter() - started)
        wall, cpu = (
            [statistics.median(values[2:]) for values in columns] for columns in (walls, cpus)
        )
        yield (
            f"{tokens:>7} {threads:>8} {wall[0] * 1e3:>9.2f} {wall[1] * 1e3:>9.2f} "
            f"{wall[1] / wall[0]:>6.2f} {cpu[1] / cpu[0]:>10.2f}"
        )


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def print_load(folder: Path, steps: int) -> None:
    """Load in this process and print what that took."""
    before, all_before, started = resident("RssAnon"), resident("VmRSS"), time.process_time()
    runner = open_model(folder, steps, 1)
    used = time.process_time() - started
    ids = np.full((1, 16), 1, np.int64)
    feeds = {name: np.ones_like(ids) * (name != "token_type_ids") for name in runner.inputs}
    runner.run(feeds, RunControl(()))
    weights = sum(
        4 * int(np.prod(tensor.shape))
        for tensor in read_weights(folder).values()
        if tensor.dtype in ("F32", "F16", "BF16")
    )
    print(
        f"{'int8' if steps else 'fp32':>7} {weights / 2**20:>13.0f} "
        f"{(resident('RssAnon') - before) / 2**20:>10.0f} "
        f"{(resident('RssAnon') - before) / weights:>6.2f} "
        f"{(resident('VmHWM') - all_before) / weights:>6.2f} {used:>6.2f}"
    )


def compare_memory(folder: Path) -> None:
    """Load each precision in a process of its own."""
    print(f"{'':>7} {'fp32 bytes MiB':>13} {'kept MiB':>10} {'ratio':>6} {'peak':>6} {'CPU s':>6}")
    for steps in (0, byte_steps()):
        command = [sys.executable, __file__, "--load", str(folder), "--steps", str(steps)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="")


def compare_answers(folder: Path) -> None:
    """Print how near int8 comes to fp32, and whether a text alone is the text in a batch."""
    sentences = SENTENCES.read_text().splitlines()
    registry = Registry()
    handles = [
        registry.load(str(folder), LoadOptions(name=precision.name, precision=precision))
        for precision in (Precision.FP32, Precision.INT8)
    ]
    expected, found = (registry.embed(handle, sentences).values for handle in handles)
    alone = np.concatenate([registry.embed(handles[1], [text]).values for text in sentences])
    cosines = np.einsum("ij,ij->i", expected, found)
    same = nearest(expected) == nearest(found)
    print(
        f"{len(sentences)} sentences: cosine at least {cosines.min():.4f}, median "
        f"{np.median(cosines):.4f}, same nearest neighbour {same.mean():.1%}; alone against "
        f"together at most {np.abs(alone - found).max():.1e}"
    )
    registry.cleanup(10_000)


def nearest(vectors: Float32) -> NDArray[np.int64]:
    """Return the row that is most similar to each, itself excepted."""
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -2)
    rows: NDArray[np.int64] = similarities.argmax(axis=1)
    return rows


def main() -> None:
    """Print one table for each question."""
    parser = argparse.ArgumentParser(description="Measure int8 against fp32.")
    parser.add_argument("--model", type=Path, default=MINILM, help="a real embedding model")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each length, default 4")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        print_load(arguments.load, arguments.steps)
        return
    with tempfile.TemporaryDirectory() as name:
        large = Path(name)
        write_model(large, MODERNBERT_BASE, modernbert_shapes(MODERNBERT_BASE))
        print(f"int8 of {byte_steps()} steps; one caller, medians")
        for (title, folder), threads in product(
            ((arguments.model.name, arguments.model), ("ModernBERT-base shape", large)), THREADS
        ):
            print(f"{title}\n tokens  threads   fp32 ms   int8 ms  ratio  CPU ratio")
            for line in compare_times(folder, threads, arguments.seconds):
                print(line, flush=True)
        for title, folder in ((arguments.model.name, arguments.model), ("ModernBERT-base", large)):
            print(f"loading {title}, against the bytes of its weights in fp32")
            compare_memory(folder)
    compare_answers(arguments.model)


if __name__ == "__main__":
    main()
