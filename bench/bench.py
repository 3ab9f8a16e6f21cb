"""Measure the library against its own parts; every ratio is from one interleaved run.

    make bench

1. The boundary: an exported call that does nothing in the engine, from a C program.
2. MiniLM through the C API, one caller, against the same tokenizer, the same graph in ONNX
   Runtime, and the same pooling, in the same process with the same thread settings.
3. Loading: time and resident memory.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import onnxruntime as ort
from libsemantic.engine.artifacts import read_artifact
from libsemantic.engine.config import Precision, Task, available_cpus
from libsemantic.engine.graphs import FAMILIES, build_graph
from libsemantic.engine.memory import resident_bytes
from libsemantic.engine.weights import read_weights
from libsemantic.ffi import generate
from numpy.typing import NDArray
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
WORDS = "the quick brown fox jumps over the lazy dog while rain falls on green hills".split()

Embed = Callable[[str], NDArray[np.float32]]


def boundary_nanoseconds(calls: int) -> float:
    """Return the median time of an exported call that reaches Python and does nothing there."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "empty_call"
        command = ["cc", "-O2", str(ROOT / "bench" / "empty_call.c"), "-o", str(program)]
        command += ["-I", str(BUILD / "include"), "-L", str(BUILD / "lib"), "-lsemantic"]
        subprocess.run([*command, f"-Wl,-rpath,{BUILD / 'lib'}"], check=True)
        done = subprocess.run([program, str(calls)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def through_library(model: Path) -> Embed:
    """Open the library in this process and return its embedding of one text."""
    ffi: Any = cffi.FFI()
    header = generate.read_header(BUILD / "include" / "semantic.h", os.environ.get("CC", "cc"))
    ffi.cdef(header.types + "".join(f"{f.declaration};\n" for f in header.functions))
    library = ffi.dlopen(str(BUILD / "lib" / "libsemantic.so"))
    error = ffi.new("semantic_error *", {"struct_size": ffi.sizeof("semantic_error")})
    handle = ffi.new("semantic_model *")

    def check(status: int) -> None:
        if status:
            sys.exit(f"error: {ffi.string(error.message).decode()}")

    before, started = resident_bytes(), time.perf_counter()
    check(library.semantic_load_model(str(model).encode(), ffi.NULL, handle, error))
    print(
        f"load {model.name}: {time.perf_counter() - started:.2f} s with the start of the runtime, "
        f"{(resident_bytes() - before) / 2**20:.0f} MiB resident more"
    )
    result = ffi.new("semantic_embedding **")
    texts = ffi.new("semantic_text[1]")

    def embed(text: str) -> NDArray[np.float32]:
        data = ffi.from_buffer(text.encode())
        texts[0].data, texts[0].length = data, len(data)
        check(library.semantic_embed(handle[0], texts, 1, ffi.NULL, result, error))
        values = ffi.buffer(result[0].values, result[0].dimension * 4)
        vector = np.frombuffer(values, np.float32).copy()
        library.semantic_free(result[0])
        return vector

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
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(graph.weights_folder)
    )
    session = ort.InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(spec.tokenizer_path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def embed(text: str) -> NDArray[np.float32]:
        encoding = tokenizer.encode(text)
        ids = np.array([encoding.ids], np.int64)
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.array([encoding.type_ids], np.int64),
        }
        hidden = session.run([graph.output], feeds)[0][0]
        vector = hidden.mean(axis=0)
        unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
        return unit

    return embed


def interleaved(first: Callable[[], object], second: Callable[[], object], rounds: int) -> Any:
    """Time both in turn, each going first half of the time; return seconds [rounds, 2]."""
    times = np.empty((rounds, 2))
    for index in range(rounds):
        order = ((0, first), (1, second)) if index % 2 else ((1, second), (0, first))
        for column, call in order:
            started = time.perf_counter()
            call()
            times[index, column] = time.perf_counter() - started
    return times


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--model", type=Path, default=BUILD / "models" / "minilm")
    arguments = parser.parse_args()
    print(f"{available_cpus()} CPUs, onnxruntime {ort.__version__}, one caller, medians")
    print(f"empty exported call: {boundary_nanoseconds(200_000) / 1000:.2f} µs")
    library, hand = through_library(arguments.model), by_hand(arguments.model)
    print(f"{'tokens':>8} {'library ms':>11} {'by hand ms':>11} {'ratio':>6}")
    for tokens in (8, 32, 128):
        text = " ".join(WORDS[index % len(WORDS)] for index in range(tokens - 2))
        difference = float(np.abs(library(text) - hand(text)).max())
        if difference > 1e-5:
            sys.exit(f"error: the two differ by {difference}")
        for _ in range(10):
            library(text), hand(text)
        times = interleaved(
            lambda text=text: library(text), lambda text=text: hand(text), arguments.rounds
        )
        ours, theirs = (statistics.median(times[:, column]) * 1e3 for column in (0, 1))
        print(f"{tokens:>8} {ours:>11.3f} {theirs:>11.3f} {ours / theirs:>6.3f}")


if __name__ == "__main__":
    main()
