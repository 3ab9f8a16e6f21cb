"""Measure int8 that the library makes of safetensors against fp32 of the same weights.

    python bench/int8.py               # all but the families, as make bench does (3 minutes)
    python bench/int8.py --families    # only the memory of every family in base size (5 minutes)

1. Time of a run, one text, MiniLM and a model of ModernBERT-base's shape with random weights, one
   and two threads; every ratio is from one interleaved run.
2. Memory: a load in a process of its own, against the bytes of the weights in float32.
3. Quality on real weights: MiniLM on the sentences of tests/golden/sentences.txt, against fp32.

At the end stands what was meant to be reached, and whether it was.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from family_shapes import SIZES
from machine import describe
from numpy.typing import NDArray
from random_models import write_model
from report import targets_table
from targets import INT8_LIMITS, Target

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
LARGE = "ModernBERT-base"
TOKENS = (32, 128, 512)
THREADS = (1, 2)
MEMORY, LOWEST, MEDIAN, NEIGHBOURS, TOGETHER = 0.35, 0.99, 0.997, 0.92, 1e-5

Float32 = NDArray[np.float32]
Groups = list[tuple[str, list[Target]]]  # what was to be reached, by model


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


def compare_times(folder: Path, threads: int, seconds: float) -> dict[int, float]:
    """Run both precisions in turn; print one line for each length and return the ratios."""
    runners = open_model(folder, 0, threads), open_model(folder, byte_steps(), threads)
    random = np.random.default_rng(1)
    ratios = {}
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
        ratios[tokens] = wall[1] / wall[0]
        print(
            f"{tokens:>7} {threads:>8} {wall[0] * 1e3:>9.2f} {wall[1] * 1e3:>9.2f} "
            f"{ratios[tokens]:>6.2f} {cpu[1] / cpu[0]:>10.2f}",
            flush=True,
        )
    return ratios


def time_targets(title: str, folder: Path, seconds: float) -> list[Target]:
    """Compare times with one thread and with two, for which no limit was set."""
    targets = []
    for threads in THREADS:
        print(f"{title}\n tokens  threads   fp32 ms   int8 ms  ratio  CPU ratio")
        for tokens, ratio in compare_times(folder, threads, seconds).items():
            if threads == 1:
                what = f"{tokens} tokens, int8 against fp32, one thread"
                targets.append(Target(what, INT8_LIMITS[tokens], False, ratio))
    return targets


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def print_load(folder: Path, steps: int) -> None:
    """Load in this process and print what that took, as JSON."""
    before, all_before, started = resident("RssAnon"), resident("VmRSS"), time.process_time()
    runner = open_model(folder, steps, 1)
    used = time.process_time() - started
    ids = np.full((1, 16), 1, np.int64)
    feeds = {name: np.ones_like(ids) * (name != "token_type_ids") for name in runner.inputs}
    runner.run(feeds, RunControl(()))
    found = {
        "weights": sum(
            4 * int(np.prod(tensor.shape))
            for tensor in read_weights(folder).values()
            if tensor.dtype in ("F32", "F16", "BF16")
        ),
        "kept": resident("RssAnon") - before,
        "resident": resident("VmRSS") - all_before,
        "peak": resident("VmHWM") - all_before,
        "seconds": used,
    }
    print(json.dumps(found))


def memory_target(title: str, folder: Path) -> Target:
    """Load each precision in a process of its own; print one line each."""
    kept = 0.0
    for steps in (0, byte_steps()):
        command = [sys.executable, __file__, "--load", str(folder), "--steps", str(steps)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        kept, total, peak = (
            found[name] / found["weights"] for name in ("kept", "resident", "peak")
        )
        print(
            f"{title:>20} {'int8' if steps else 'fp32'} {found['weights'] / 2**20:>14.0f} "
            f"{found['kept'] / 2**20:>9.0f} {kept:>6.2f} {total:>9.2f} {peak:>6.2f} "
            f"{found['seconds']:>6.2f}",
            flush=True,
        )
    return Target("memory of int8 against the bytes of the weights in fp32", MEMORY, False, kept)


def print_memory_head() -> None:
    """Print the head of ``memory_target``'s lines."""
    print(
        f"{'loading':>25} {'fp32 bytes MiB':>14} {'kept MiB':>9} {'ratio':>6} {'resident':>9} "
        f"{'peak':>6} {'CPU s':>6}"
    )


def compare_answers(folder: Path) -> list[Target]:
    """Compare int8 with fp32, and a text alone with the same in a batch."""
    sentences = SENTENCES.read_text().splitlines()
    registry = Registry()
    handles = [
        registry.load(str(folder), LoadOptions(name=precision.name, precision=precision))
        for precision in (Precision.FP32, Precision.INT8)
    ]
    expected, found = (registry.embed(handle, sentences).values for handle in handles)
    alone = np.concatenate([registry.embed(handles[1], [text]).values for text in sentences])
    registry.cleanup(10_000)
    cosines = np.einsum("ij,ij->i", expected, found)
    same = float((nearest(expected) == nearest(found)).mean())
    of = f"of {len(sentences)} sentences, int8 against fp32"
    return [
        Target(f"lowest cosine {of}", LOWEST, True, float(cosines.min())),
        Target(f"median cosine {of}", MEDIAN, True, float(np.median(cosines))),
        Target(f"same nearest neighbour {of}", NEIGHBOURS, True, same),
        Target("alone against together", TOGETHER, False, float(np.abs(alone - found).max())),
    ]


def nearest(vectors: Float32) -> NDArray[np.int64]:
    """Return the row that is most similar to each, itself excepted."""
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -2)
    rows: NDArray[np.int64] = similarities.argmax(axis=1)
    return rows


def of_families() -> Groups:
    """Load every family in base size, one after the other."""
    groups: Groups = []
    print_memory_head()
    for title, (config, shapes) in SIZES.items():
        with tempfile.TemporaryDirectory() as name:
            write_model(Path(name), config, shapes)
            groups.append((title, [memory_target(title, Path(name))]))
    return groups


def of_models(minilm: Path, seconds: float) -> Groups:
    """Measure MiniLM and a model of ModernBERT-base's shape."""
    with tempfile.TemporaryDirectory() as name:
        large = Path(name)
        write_model(large, *SIZES[LARGE])
        folders = {minilm.name: minilm, f"{LARGE} shape": large}
        targets = {title: time_targets(title, each, seconds) for title, each in folders.items()}
        print_memory_head()
        for title, folder in folders.items():
            targets[title].append(memory_target(title, folder))
    targets[minilm.name] += compare_answers(minilm)
    return list(targets.items())


def main() -> None:
    """Print the machine, what was measured, and what was to be reached."""
    parser = argparse.ArgumentParser(description="Measure int8 against fp32.")
    parser.add_argument("--model", type=Path, default=MINILM, help="a real embedding model")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each length, default 8")
    parser.add_argument("--families", action="store_true", help="only the memory of all families")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        print_load(arguments.load, arguments.steps)
        return
    machine = describe({})
    print("\n".join(machine.lines()))
    print(f"int8 of {byte_steps()} steps; one caller, medians, wall and CPU time")
    found = of_families() if arguments.families else of_models(arguments.model, arguments.seconds)
    print(targets_table(found, quiet=machine.quiet))


if __name__ == "__main__":
    main()
