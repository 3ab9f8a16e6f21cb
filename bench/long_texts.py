"""Measure ModernBERT of base shape against plain attention: short texts, and 8,192 tokens.

    python bench/long_texts.py            # all of it, as make bench does
    python bench/long_texts.py FOLDER engine|heap|plain TOKENS

The second form runs one text in a process of its own and prints JSON: ``seconds`` of CPU time and
the ``growth`` of resident memory at its peak, in bytes. ``engine`` is the graph in a session of
the engine, ``heap`` the same graph in one without an arena, ``plain`` the graph of standard
operators that holds all scores and adds a mask, without an arena too.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from random_models import MODERNBERT_BASE, modernbert_shapes, write_model

from libsemantic.engine.batching import RunControl
from libsemantic.engine.config import Task, available_cpus
from libsemantic.engine.graphs import Branches, Graph, build_graph
from libsemantic.engine.providers import Device
from libsemantic.engine.session import OrtModel, Runner, Session
from libsemantic.engine.weights import read_weights

LONG = 8192
SHORT = (32, 128, 512)
MEGABYTE = 1 << 20
NO_LENGTH = 1 << 40

# Runs a text of so many tokens.
Run = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Text:
    """A window of random tokens."""

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]


def text_of(tokens: int) -> Text:
    """Return the same random text at every call."""
    ids = np.random.default_rng(tokens).integers(0, int(str(MODERNBERT_BASE["vocab_size"])), tokens)
    return Text(ids, np.zeros_like(ids))


def graph_of(folder: Path, kind: str) -> Graph:
    """Build the graph, or the one of plain attention."""
    weights = read_weights(folder)
    if kind != "plain":
        return build_graph(MODERNBERT_BASE, Task.EMBEDDING, weights)
    whole = Branches(whole=NO_LENGTH)
    return build_graph(MODERNBERT_BASE, Task.EMBEDDING, weights, fused=False, branches=whole)


def in_engine(graph: Graph) -> Run:
    """Open a graph as the engine does."""
    inputs = dict.fromkeys(graph.inputs, "int64")
    model = OrtModel(graph.model, graph.weights_folder, inputs, graph.output)
    runner = Runner(model, Device("cpu", "cpu"), threads=available_cpus())
    session = Session(runner, pad_id=0, token_types=False)

    def run(tokens: int) -> None:
        session.run([text_of(tokens)], RunControl(()))

    return run


def on_heap(graph: Graph) -> Run:
    """Open a graph in a session that takes all its memory from the C heap."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = available_cpus()
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(graph.weights_folder)
    )
    session = ort.InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])

    def run(tokens: int) -> None:
        ids = text_of(tokens).ids[None]
        session.run([graph.output], {"input_ids": ids, "attention_mask": np.ones_like(ids)})

    return run


def resident(key: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(key)


def run_one(folder: Path, kind: str, tokens: int) -> None:
    """Run one text and print what it took."""
    run = (in_engine if kind == "engine" else on_heap)(graph_of(folder, kind))
    run(16)
    Path("/proc/self/clear_refs").write_text("5")  # man proc: resets VmHWM
    before, started = resident("VmRSS"), time.process_time()
    run(tokens)
    seconds = time.process_time() - started
    print(json.dumps({"seconds": seconds, "growth": resident("VmHWM") - before}))


def alone(folder: Path, kind: str) -> dict[str, float]:
    """Run the long text in a process of its own."""
    command = [sys.executable, __file__, str(folder), kind, str(LONG)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


def interleaved(first: Run, second: Run, tokens: int, rounds: int) -> tuple[float, float]:
    """Run both in turn, each going first half of the time; return median CPU seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(rounds + 1):
        for column in (0, 1) if index % 2 else (1, 0):
            started = time.process_time()
            (first, second)[column](tokens)
            times[column].append(time.process_time() - started)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def compare_attention(rounds: int) -> None:
    """Print what the engine's graph takes and what plain attention does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, MODERNBERT_BASE, modernbert_shapes(MODERNBERT_BASE))
        print("ModernBERT-base shape, CPU time; plain: standard operators, all scores, a mask")
        ours, plain = (in_engine(graph_of(folder, kind)) for kind in ("engine", "plain"))
        print(f"{'tokens':>8} {'ours ms':>11} {'plain ms':>11} {'ratio':>6} {'limit':>6}")
        for tokens in SHORT:
            times = interleaved(ours, plain, tokens, rounds)
            row = (*(1e3 * seconds for seconds in times), times[0] / times[1])
            print(f"{tokens:>8} {row[0]:>11.1f} {row[1]:>11.1f} {row[2]:>6.3f} {1.05:>6}")
        del ours, plain
        growth = alone(folder, "engine")["growth"] / MEGABYTE
        print(f"{LONG:>8} tokens: one call grows by {growth:.0f} MB (limit 700)", flush=True)
        ours_alone, plain_alone = (alone(folder, kind) for kind in ("heap", "plain"))
        ratio = ours_alone["seconds"] / plain_alone["seconds"]
        print(
            f"{LONG:>8} tokens, C heap: {ours_alone['seconds']:.1f} s, plain"
            f" {plain_alone['seconds']:.1f} s and {plain_alone['growth'] / MEGABYTE:.0f} MB:"
            f" ratio {ratio:.3f} (limit 0.35)"
        )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run_one(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        compare_attention(9)
