"""One model embedded two ways: through the C library, and by hand with its parts."""

import ctypes
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from libsemantic.engine.artifacts import read_artifact
from libsemantic.engine.config import LoadOptions, Precision, Task
from libsemantic.engine.dense import load_dense
from libsemantic.engine.graphs import FAMILIES, EmbeddingEnd, build_graph
from libsemantic.engine.memory import resident_bytes
from libsemantic.engine.registry import REGISTRY
from libsemantic.engine.weights import read_weights

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"

# Embeds one text: the vector, and the seconds it took.
Embed = Callable[[str], tuple[NDArray[np.float32], float]]


def compile_c(source: str, target: Path, *flags: str, library: str = "semantic") -> None:
    """Compile a C file of this folder against one of the libraries."""
    command = ["cc", "-O2", *flags, str(ROOT / "bench" / source), "-o", str(target)]
    command += ["-I", str(BUILD / "include"), "-L", str(BUILD / "lib"), f"-l{library}"]
    subprocess.run([*command, f"-Wl,-rpath,{BUILD / 'lib'}"], check=True)


def through_library(folder: Path, model: Path, max_tokens: int) -> tuple[int, Embed]:
    """Load the model in this process; return its handle and its embedding through the C API."""
    shim = folder / "embed.so"
    compile_c("embed.c", shim, "-shared", "-fPIC")
    timed_embed = ctypes.CDLL(str(shim)).timed_embed
    timed_embed.restype = ctypes.c_int64
    timed_embed.argtypes = (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)

    before, started = resident_bytes(), time.perf_counter()
    # The library adopts this interpreter and its registry.
    handle = REGISTRY.load(str(model), LoadOptions(max_tokens=max_tokens))
    print(
        f"load {model.name}: {time.perf_counter() - started:.2f} s, "
        f"{(resident_bytes() - before) / 2**20:.0f} MiB resident more"
    )
    width = REGISTRY.info(handle).dimension

    def embed(text: str) -> tuple[NDArray[np.float32], float]:
        vector = np.empty(width, np.float32)
        data = text.encode()
        nanoseconds = timed_embed(handle, data, len(data), vector.ctypes.data)
        if nanoseconds < 0:
            sys.exit("error: the library could not embed a text; run make test")
        return vector, nanoseconds / 1e9

    return handle, embed


def by_hand(model: Path, threads: int) -> Embed:
    """Return the same embedding from tokenizers and ONNX Runtime alone.

    The graph is the library's own; it ends in the vector and its length.
    """
    spec = read_artifact(
        str(model), task=Task.AUTO, precision=Precision.AUTO, families=FAMILIES.keys()
    )
    weights = read_weights(spec.model_folder)
    end = EmbeddingEnd(spec.pooling, load_dense(spec))
    graph = build_graph(spec.config, spec.task, weights, end=end)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
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
            "token_type_ids": np.zeros_like(ids),
        }
        vector: NDArray[np.float32] = session.run([graph.output], feeds, run_options)[0][0, :-1]
        return vector, time.perf_counter() - started

    return embed


class Stopwatch:
    """Sums up the time inside ONNX Runtime and the tokenizers library, until it is stopped."""

    def __init__(self, handle: int) -> None:
        """Watch a loaded model."""
        self.seconds = 0.0
        self._run = ort.InferenceSession.run
        model = REGISTRY._entries[handle].model
        assert model is not None
        self._tokenizer = model.tokenizer
        self._backend = self._tokenizer.backend
        watched = SimpleNamespace(encode=self._timed(self._backend.encode))
        for name in ("encode_batch", "encode_batch_fast"):
            setattr(watched, name, self._timed(getattr(self._backend, name)))
        object.__setattr__(self._tokenizer, "backend", watched)
        timed = self._timed(self._run)
        ort.InferenceSession.run = lambda session, *values: timed(session, *values)

    def stop(self) -> None:
        """Put everything back."""
        ort.InferenceSession.run = self._run
        object.__setattr__(self._tokenizer, "backend", self._backend)

    def _timed(self, function: Callable[..., object]) -> Callable[..., object]:
        def timed(*values: object) -> object:
            started = time.perf_counter()
            answer = function(*values)
            self.seconds += time.perf_counter() - started
            return answer

        return timed


def own_seconds(embed: Embed, handle: int, text: str, rounds: int) -> float:
    """Return the median of what a call takes outside of ONNX Runtime and the tokenizer."""
    stopwatch = Stopwatch(handle)
    own = []
    for _ in range(rounds + 10):
        stopwatch.seconds = 0.0
        seconds = embed(text)[1]
        own.append(seconds - stopwatch.seconds)
    stopwatch.stop()
    return statistics.median(own[10:])
