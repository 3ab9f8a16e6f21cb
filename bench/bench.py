"""Measure the library against its own parts; every ratio is from one interleaved run.

    make bench

1. The boundary: an exported call that does nothing in the engine, from a C program.
2. MiniLM through the C API, one caller, against the same tokenizer, the same graph in ONNX
   Runtime, and the same pooling, in the same process with the same thread settings.
3. Loading: time and resident memory.
4. ModernBERT of base shape against plain attention (long_texts.py), some minutes and 9 GB.
"""

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
from long_texts import compare_attention
from numpy.typing import NDArray
from tokenizers import Tokenizer

from libsemantic.engine.artifacts import read_artifact
from libsemantic.engine.config import Precision, Task, available_cpus
from libsemantic.engine.graphs import FAMILIES, build_graph
from libsemantic.engine.memory import resident_bytes
from libsemantic.engine.registry import REGISTRY
from libsemantic.engine.weights import read_weights

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
TEXT = "the quick brown fox jumps over the lazy dog while rain falls on green hills"

# Embeds one text: the vector, and the seconds it took.
Embed = Callable[[str], tuple[NDArray[np.float32], float]]


def compile_c(source: str, target: Path, *flags: str, library: str = "semantic") -> None:
    """Compile a C file of this folder against one of the libraries."""
    command = ["cc", "-O2", *flags, str(ROOT / "bench" / source), "-o", str(target)]
    command += ["-I", str(BUILD / "include"), "-L", str(BUILD / "lib"), f"-l{library}"]
    subprocess.run([*command, f"-Wl,-rpath,{BUILD / 'lib'}"], check=True)


def boundary_nanoseconds(folder: Path, calls: int) -> float:
    """Return the median time of an exported call that reaches Python and does nothing there."""
    program = folder / "empty_call"
    compile_c("empty_call.c", program)
    done = subprocess.run([program, str(calls)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def through_library(folder: Path, model: Path) -> Embed:
    """Load the model in this process and return its embedding through the C API."""
    shim = folder / "embed.so"
    compile_c("embed.c", shim, "-shared", "-fPIC")
    timed_embed = ctypes.CDLL(str(shim)).timed_embed
    timed_embed.restype = ctypes.c_int64
    timed_embed.argtypes = (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)

    before, started = resident_bytes(), time.perf_counter()
    handle = REGISTRY.load(str(model))  # the library adopts this interpreter and its registry
    print(
        f"load {model.name}: {time.perf_counter() - started:.2f} s, "
        f"{(resident_bytes() - before) / 2**20:.0f} MiB resident more"
    )
    vector = np.empty(REGISTRY.info(handle).dimension, np.float32)

    def embed(text: str) -> tuple[NDArray[np.float32], float]:
        data = text.encode()
        nanoseconds = timed_embed(handle, data, len(data), vector.ctypes.data)
        if nanoseconds < 0:
            sys.exit("error: the library could not embed a text; run make test")
        return vector, nanoseconds / 1e9

    return embed


def by_hand(model: Path) -> Embed:
    """Return the same embedding from tokenizers and ONNX Runtime alone."""
    spec = read_artifact(
        str(model), task=Task.AUTO, precision=Precision.AUTO, families=FAMILIES.keys()
    )
    graph = build_graph(spec.config, spec.task, read_weights(spec.model_folder))
    options = ort.SessionOptions()
    options.intra_op_num_threads = available_cpus()
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(graph.weights_folder)
    )
    session = ort.InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(spec.tokenizer_path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    run_options = ort.RunOptions()
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def embed(text: str) -> tuple[NDArray[np.float32], float]:
        started = time.perf_counter()
        encoding = tokenizer.encode(text)
        ids = np.array([encoding.ids], np.int64)
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.array([encoding.type_ids], np.int64),
        }
        hidden = session.run([graph.output], feeds, run_options)[0][0]
        vector = hidden.mean(axis=0)
        unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
        return unit, time.perf_counter() - started

    return embed


def interleaved(first: Embed, second: Embed, text: str, rounds: int) -> tuple[float, float]:
    """Embed with both in turn, each going first half of the time; return median seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(rounds + 10):
        for column in (0, 1) if index % 2 else (1, 0):
            times[column].append((first, second)[column](text)[1])
    return statistics.median(times[0][10:]), statistics.median(times[1][10:])


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description="Measure the library against its own parts.")
    parser.add_argument("--rounds", type=int, default=300, help="per length, default 300")
    parser.add_argument("--model", type=Path, default=BUILD / "models" / "minilm")
    parser.add_argument("--no-long", dest="long", action="store_false", help="leave out 4.")
    arguments = parser.parse_args()
    print(f"{available_cpus()} CPUs, onnxruntime {ort.__version__}, one caller, medians")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"empty exported call: {boundary_nanoseconds(folder, 200_000) / 1000:.2f} µs")
        library, hand = through_library(folder, arguments.model), by_hand(arguments.model)
        print(f"{'tokens':>8} {'library ms':>11} {'by hand ms':>11} {'ratio':>6}")
        for tokens in (8, 32, 128):
            text = " ".join((TEXT.split() * 9)[: tokens - 2])
            difference = float(np.abs(library(text)[0] - hand(text)[0]).max())
            if difference > 1e-5:
                sys.exit(f"error: the two differ by {difference}")
            ours, theirs = interleaved(library, hand, text, arguments.rounds)
            print(f"{tokens:>8} {ours * 1e3:>11.3f} {theirs * 1e3:>11.3f} {ours / theirs:>6.3f}")
    if arguments.long:
        compare_attention(max(3, arguments.rounds // 30))


if __name__ == "__main__":
    main()
