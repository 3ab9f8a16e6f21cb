"""Measure the load of a safetensors folder against ONNX Runtime's of the same graph as a file.

    python bench/loading.py               # all of it, as make bench does
    python bench/loading.py folder|file PATH

ModernBERT of base shape with random weights. ``folder`` is all that a load does but for the
tokenizer and the self-test: it imports the builders of graphs, reads where the weights lie, builds
the graph, and opens and verifies a session. ``file`` opens a ready ONNX file, whose weights lie
beside it. Each time is that of a process of its own, since the second session of a process may
find memory that the first has left.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime as ort
from random_models import MODERNBERT_BASE, modernbert_shapes, write_model

from libsemantic.engine.config import Task, available_cpus
from libsemantic.engine.providers import Device
from libsemantic.engine.session import OrtModel, Runner

ROUNDS = 9
LIMIT = 1.3


def open_folder(folder: Path) -> None:
    """Open a session of the engine on a safetensors folder."""
    from libsemantic.engine.graphs import build_graph
    from libsemantic.engine.weights import read_weights

    graph = build_graph(MODERNBERT_BASE, Task.EMBEDDING, read_weights(folder))
    inputs = dict.fromkeys(graph.inputs, "int64")
    model = OrtModel(graph.model, graph.weights_folder, inputs, graph.output)
    Runner(model, Device("cpu", "cpu"), threads=available_cpus())


def open_file(path: Path) -> None:
    """Open an ONNX file as its users do, with as many threads as the engine takes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = available_cpus()
    options.log_severity_level = 3
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def write_file(folder: Path, path: Path) -> None:
    """Write the graph of a safetensors folder as an ONNX file with a data file beside it."""
    import onnx

    from libsemantic.engine.graphs import build_graph
    from libsemantic.engine.weights import read_weights

    graph = build_graph(MODERNBERT_BASE, Task.EMBEDDING, read_weights(folder))
    model = onnx.load_from_string(graph.model)
    onnx.load_external_data_for_model(model, str(graph.weights_folder))
    onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")


def alone(kind: str, path: Path) -> float:
    """Open a model in a process of its own; return the seconds."""
    command = [sys.executable, __file__, kind, str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare_loads() -> None:
    """Print the medians of both sides, taken in turn, and their ratio."""
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name, "folder"), Path(name, "model.onnx")
        write_model(folder, MODERNBERT_BASE, modernbert_shapes(MODERNBERT_BASE))
        write_file(folder, path)
        times: dict[str, list[float]] = {"folder": [], "file": []}
        for index in range(ROUNDS):
            for kind in ("folder", "file") if index % 2 else ("file", "folder"):
                times[kind].append(alone(kind, folder if kind == "folder" else path))
    ours, ready = statistics.median(times["folder"]), statistics.median(times["file"])
    print(
        f"load of ModernBERT-base's shape: folder {ours:.2f} s, ready ONNX file {ready:.2f} s,"
        f" ratio {ours / ready:.2f} (limit {LIMIT})"
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        started = time.perf_counter()
        {"folder": open_folder, "file": open_file}[sys.argv[1]](Path(sys.argv[2]))
        print(time.perf_counter() - started)
    else:
        compare_loads()
