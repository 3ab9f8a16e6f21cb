"""What a loaded model says about itself."""

import json
import time
from dataclasses import replace

import numpy as np

from .artifacts import ModelSpec
from .bases import Base
from .config import AdapterMode, Task
from .results import ModelInfo


def describe(
    spec: ModelSpec,
    base: Base | None,
    *,
    name: str,
    generation: int,
    provider: str,
    device: str,
    precision: str,
    dtype: str,
    max_tokens: int,
    position_limit: int,
    max_text_bytes: int,
    vocab_size: int,
    dimension: int,
    layers: tuple[int, ...],
    grown_bytes: int,
) -> ModelInfo:
    """Join what the folder says with what loading it showed.

    ``base`` is what an adapter shares with others, of which its own sizes have nothing.
    ``vocab_size`` is the rows of the embedding table, 0 where nothing tells; ``dimension`` is 0
    for classifiers.
    """
    embeds = spec.task is Task.EMBEDDING
    warnings = spec.warnings
    if spec.layers and not layers:
        warnings += (f"{spec.folder.name} lists layers to end at, which its graph cannot",)
    info = ModelInfo(
        generation=generation,
        name=name,
        path=str(spec.folder),
        family=spec.family,
        architecture=spec.architecture,
        source=spec.source,
        provider=provider,
        dtype=dtype,
        task=spec.task,
        multi_label=spec.multi_label,
        labels=spec.labels.names if spec.labels else (),
        max_tokens=max_tokens,
        position_limit=position_limit,
        max_text_bytes=max_text_bytes,
        dimension=dimension,
        dimensions=np.array(
            sorted({dimension, *spec.dimensions}, reverse=True) if embeds else [], np.int64
        ),
        layers=np.array(layers, np.int64),
        prompt_names=tuple(spec.prompts),
        mapped_bytes=spec.weight_bytes - (base.weight_bytes if base is not None else 0),
        grown_bytes=grown_bytes,
        file_names=tuple(file for file, _ in spec.files),
        file_sizes=np.array([size for _, size in spec.files], np.int64),
        warnings=warnings,
        json="",
        device=device,
        precision=precision,
    )
    return replace(info, json=_as_json(info, spec, base, vocab_size))


def _as_json(info: ModelInfo, spec: ModelSpec, base: Base | None, vocab_size: int) -> str:
    return json.dumps(
        {
            "name": info.name,
            "generation": info.generation,
            "path": info.path,
            "family": info.family,
            "architecture": info.architecture,
            "task": spec.task.name.lower(),
            "source": info.source,
            "provider": info.provider,
            "device": info.device,
            "precision": info.precision,
            "dtype": info.dtype,
            "multi_label": info.multi_label,
            "labels": info.labels,
            "max_tokens": info.max_tokens,
            "position_limit": info.position_limit,
            "max_text_bytes": info.max_text_bytes,
            "vocab_size": vocab_size or None,
            "dimension": info.dimension,
            "dimensions": info.dimensions.tolist(),
            "layers": info.layers.tolist(),
            "pooling": spec.pooling,
            "normalize": spec.normalize,
            "prompts": dict(spec.prompts),
            "default_prompt_name": spec.default_prompt_name,
            "mapped_bytes": info.mapped_bytes,
            "grown_bytes": info.grown_bytes,
            "files": dict(spec.files),
            "adapter": _adapter(spec, base),
            "warnings": info.warnings,
            "loaded_at": time.time(),
        },
        ensure_ascii=False,
    )


def _adapter(spec: ModelSpec, base: Base | None) -> dict[str, object] | None:
    """Describe an adapter and its base; None for a model that is none."""
    adapter = spec.adapter
    if adapter is None:
        return None
    return {
        "kind": "lora",
        "mode": (AdapterMode.MERGED if base is None else AdapterMode.SHARED).name.lower(),
        "rank": adapter.rank,
        "alpha": adapter.alpha,
        "target_modules": adapter.targets,
        "modules_to_save": adapter.saved,
        "base_path": str(spec.model_folder),
        "base_name": adapter.base_name,
        "base_mapped_bytes": spec.base_bytes,
        "base_grown_bytes": 0 if base is None else base.grown_bytes,
    }
