"""Compare devices and precisions on MiniLM and a model of ModernBERT-base's shape.

    make test-gpu                                              (cpu cuda tensorrt)
    build/env-openvino/bin/python bench/devices.py cpu openvino

One caller at some lengths, then many callers of 32 tokens; all in one interleaved run. It prints
one table. A device that does not work is a line with its reason.
"""

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime as ort
from random_models import MODERNBERT_BASE, modernbert_shapes, write_model

from libsemantic.engine.config import LoadOptions, available_cpus
from libsemantic.engine.errors import SemanticError
from libsemantic.engine.processor import cpu_instructions
from libsemantic.engine.providers import PROVIDERS
from libsemantic.engine.registry import REGISTRY

MINILM = Path(__file__).resolve().parent.parent / "build" / "models" / "minilm"
SENTENCE = "the quick brown fox jumps over the lazy dog while rain falls on green hills"
LENGTHS = (8, 32, 128)
CALLERS, SECONDS = 32, 3.0
TELLING = ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2")


@dataclass(slots=True)
class Row:
    """One model on one device in one precision, and what was measured."""

    label: str
    handle: int
    seconds: dict[int, list[float]] = field(default_factory=dict)
    throughput: float = 0.0


def text_of(tokens: int) -> str:
    """Return a text of about that many tokens."""
    words = SENTENCE.split() * (tokens // 8)
    return " ".join(words[: tokens - 2])


def open_rows(models: dict[str, Path], devices: list[str]) -> list[Row]:
    """Load every model on every device in each of its precisions; print what does not work."""
    rows = []
    for name, folder in models.items():
        for device in devices:
            kind = device.partition(":")[0]
            for precision in PROVIDERS[kind].precisions:
                label = f"{name}, {device}, {precision.name.lower()}"
                options = LoadOptions(
                    name=label, device=device, precision=precision, max_tokens=256
                )
                try:
                    rows.append(Row(label, REGISTRY.load(str(folder), options)))
                except SemanticError as error:
                    print(f"{label}: {error.status.name}: {error.message}")
    return rows


def measure(rows: list[Row], rounds: int) -> None:
    """Time single calls in turn, then the throughput of many callers, model by model."""
    for tokens in LENGTHS:
        text = [text_of(tokens)]
        for index in range(rounds + 3):
            for row in rows if index % 2 else rows[::-1]:
                started = time.perf_counter()
                REGISTRY.embed(row.handle, text)
                if index >= 3:
                    taken = time.perf_counter() - started
                    row.seconds.setdefault(tokens, []).append(taken)
    for row in rows:
        row.throughput = throughput(row.handle)


def throughput(handle: int) -> float:
    """Return the calls of 32 tokens per second with many callers."""
    text, counts = [text_of(32)], [0] * CALLERS
    end = time.perf_counter() + SECONDS

    def call(caller: int) -> None:
        while time.perf_counter() < end:
            REGISTRY.embed(handle, text)
            counts[caller] += 1

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(CALLERS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def cpu_name() -> str:
    """Return the model name of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.partition(": ")[2] for x in lines if x.startswith("model name")), "unknown CPU")


def main() -> None:
    """Print the machine and one table."""
    parser = argparse.ArgumentParser(description="Compare devices and precisions.")
    parser.add_argument("devices", nargs="+", help="cpu, openvino, cuda, cuda:N, tensorrt")
    parser.add_argument("--rounds", type=int, default=30, help="calls per length, default 30")
    parser.add_argument("--no-large", dest="large", action="store_false", help="only MiniLM")
    arguments = parser.parse_args()
    has = [each for each in TELLING if each in cpu_instructions()]
    print(
        f"{cpu_name()} ({', '.join(has)}), {available_cpus()} CPUs, onnxruntime {ort.__version__}"
    )
    with tempfile.TemporaryDirectory() as name:
        models = {"MiniLM": MINILM}
        if arguments.large:
            folder = models["ModernBERT-base"] = Path(name)
            write_model(folder, MODERNBERT_BASE, modernbert_shapes(MODERNBERT_BASE))
            shutil.copy(MINILM / "tokenizer.json", folder)  # of a smaller vocabulary
        rows = open_rows(models, arguments.devices)
        measure(rows, arguments.rounds)
        lengths = "".join(f" {tokens:>7} t" for tokens in LENGTHS)
        print(f"{'p50 ms, one caller':36}{lengths} {f'{CALLERS} callers, 32 t':>22}")
        for row in rows:
            times = "".join(f" {statistics.median(row.seconds[t]) * 1e3:>9.2f}" for t in LENGTHS)
            print(f"{row.label:36}{times} {row.throughput:>13.0f} per s")
        REGISTRY.cleanup(60_000)


if __name__ == "__main__":
    main()
