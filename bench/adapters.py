"""Measure LoRA adapters on a shared base against the same adapters merged into weights of theirs.

    make bench

A model of ModernBERT-base's shape with random weights, adapters of rank 16 on all its linear
layers; one caller; every ratio is from one interleaved run.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from random_models import MODERNBERT_BASE, modernbert_shapes
from safetensors.numpy import save_file

from libsemantic.engine.config import AdapterMode, LoadOptions, available_cpus
from libsemantic.engine.memory import resident_bytes
from libsemantic.engine.registry import Registry

GOLDEN = Path(__file__).resolve().parent.parent / "tests/golden/models/modernbert-lora-base"
RANK = 16
LABELS = ("a", "b", "c")
CONFIG = {
    **MODERNBERT_BASE,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}

Arrays = Mapping[str, NDArray[np.float32]]


def linears() -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of each linear layer."""
    shapes = modernbert_shapes(CONFIG).items()
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in shapes
        if name.startswith("layers.") and len(shape) == 2
    }


def base_arrays(random: np.random.Generator) -> Arrays:
    """Draw the weights of the base."""

    def draw(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)

    ones = np.ones(768, np.float32)
    arrays = {f"{name}.weight": draw(*shape) for name, shape in linears().items()}
    arrays["embeddings.tok_embeddings.weight"] = draw(50_368, 768)
    arrays |= {f"layers.{layer}.mlp_norm.weight": ones.copy() for layer in range(22)}
    arrays |= {f"layers.{layer}.attn_norm.weight": ones.copy() for layer in range(1, 22)}
    return arrays | {"embeddings.norm.weight": ones.copy(), "final_norm.weight": ones.copy()}


def adapter_arrays(random: np.random.Generator) -> Arrays:
    """Draw the weights of an adapter, the head among them."""
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, (outputs, inputs) in linears().items():
        path = f"base_model.model.model.{name}"
        for kind, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
            drawn = random.standard_normal(shape, np.float32)
            arrays[f"{path}.lora_{kind}.weight"] = drawn * np.float32(0.02)
    head = "base_model.model"
    dense = random.standard_normal((768, 768), np.float32)
    arrays[f"{head}.head.dense.weight"] = dense / np.float32(768**0.5)
    arrays[f"{head}.head.norm.weight"] = np.ones(768, np.float32)
    arrays[f"{head}.classifier.weight"] = random.standard_normal((3, 768), np.float32)
    arrays[f"{head}.classifier.bias"] = np.zeros(3, np.float32)
    return arrays


def write_base(folder: Path) -> None:
    """Write a model folder; its tokenizer is that of a golden model."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / name, folder)
    save_file(dict(base_arrays(np.random.default_rng(1))), folder / "model.safetensors")


def write_adapter(folder: Path, seed: int) -> None:
    """Write an adapter folder beside its base."""
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "base_model_name_or_path": "../base",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["Wqkv", "Wo", "Wi"],
        "modules_to_save": ["classifier", "head"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    labels = {"id2label": dict(enumerate(LABELS)), "classifier_pooling": "mean"}
    (folder / "label_mapping.json").write_text(json.dumps(labels))
    arrays = adapter_arrays(np.random.default_rng(seed))
    save_file(dict(arrays), folder / "adapter_model.safetensors")


def main() -> None:
    """Print what loads take, then the time of calls by length."""
    parser = argparse.ArgumentParser(description="Measure adapters on a shared base.")
    parser.add_argument("--rounds", type=int, default=40, help="per length, default 40")
    rounds = parser.parse_args().rounds
    registry = Registry()
    handles = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_base(root / "base")
        for seed, adapter in enumerate(("first", "second")):
            write_adapter(root / adapter, seed)
        for adapter, mode in (
            ("first", AdapterMode.SHARED),
            ("second", AdapterMode.SHARED),
            ("first", AdapterMode.MERGED),
        ):
            label = f"{adapter} {mode.name.lower()}"
            before, started = resident_bytes(), time.perf_counter()
            options = LoadOptions(name=label, adapter_mode=mode, max_tokens=512)
            handles[label] = registry.load(str(root / adapter), options)
            print(
                f"load {label}: {time.perf_counter() - started:.2f} s, "
                f"{(resident_bytes() - before) / 2**20:.0f} MiB resident more"
            )
    shared, merged = handles["first shared"], handles["first merged"]
    print(f"{available_cpus()} CPUs, one caller, medians")
    print(f"{'tokens':>8} {'shared ms':>11} {'merged ms':>11} {'ratio':>6} {'CPU ratio':>10}")
    for tokens in (32, 128, 512):
        text = "math " * 600
        while registry.count_tokens(shared, [text]).rows.token_count[0] > tokens:
            text = text[:-1]
        logits = [registry.classify(handle, [text]).logits for handle in (shared, merged)]
        np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-3)
        times: dict[int, list[tuple[float, float]]] = {shared: [], merged: []}
        for index in range(rounds + 3):
            for handle in (shared, merged) if index % 2 else (merged, shared):
                started, used = time.perf_counter(), time.process_time()
                registry.classify(handle, [text])
                ended = time.perf_counter() - started, time.process_time() - used
                times[handle].append(ended)
        walls, cpus = (
            [statistics.median(pair[column] for pair in times[handle][3:]) for handle in times]
            for column in (0, 1)
        )
        print(
            f"{tokens:>8} {walls[0] * 1e3:>11.1f} {walls[1] * 1e3:>11.1f} "
            f"{walls[0] / walls[1]:>6.3f} {cpus[0] / cpus[1]:>10.3f}"
        )


if __name__ == "__main__":
    main()
