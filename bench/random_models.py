"""Write model folders of real size with random weights, for what does not hang on their values."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

MODERNBERT_BASE: Mapping[str, object] = {
    "architectures": ["ModernBertModel"],
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}


def modernbert_shapes(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Return the weights of a ModernBERT encoder: names and shapes."""
    vocabulary, hidden, inner, layers = (
        int(str(config[key]))
        for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    )
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.tok_embeddings.weight": (vocabulary, hidden),
        "embeddings.norm.weight": (hidden,),
        "final_norm.weight": (hidden,),
    }
    for layer in range(layers):
        name = f"layers.{layer}"
        if layer:
            shapes[f"{name}.attn_norm.weight"] = (hidden,)
        shapes[f"{name}.attn.Wqkv.weight"] = (3 * hidden, hidden)
        shapes[f"{name}.attn.Wo.weight"] = (hidden, hidden)
        shapes[f"{name}.mlp_norm.weight"] = (hidden,)
        shapes[f"{name}.mlp.Wi.weight"] = (2 * inner, hidden)
        shapes[f"{name}.mlp.Wo.weight"] = (hidden, inner)
    return shapes


def write_model(
    folder: Path, config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Write config.json and model.safetensors (float32), the same at every call."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    entries: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    random = np.random.default_rng(1)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for shape in shapes.values():
            if len(shape) == 1:
                values = np.ones(shape, np.float32)
            else:
                values = random.standard_normal(shape, np.float32)
                values /= np.float32(np.sqrt(shape[-1]))
            values.tofile(file)
