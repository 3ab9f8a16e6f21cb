"""Compute what PEFT saves of the adapters of adapters.py and what the models answer (fp32, CPU).

usage: python -m tests.golden.make_adapters > tests/golden/expected_adapters.json
(needs torch, transformers and peft)
"""

import json
import sys
from enum import Enum

import peft
import torch
import transformers

from .adapters import ADAPTED, Adapted
from .variants import drawn, inputs


def plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    return sorted(value) if isinstance(value, set) else value


def answer(adapted: Adapted) -> dict[str, object]:
    """Return the adapter's configuration, its tensors' shapes and the model's answers."""
    variant = adapted.variant
    config = variant.full_config()
    kind = transformers.AutoConfig.for_model(config["model_type"])
    model = getattr(transformers, variant.architecture)(
        type(kind)(**{key: value for key, value in config.items() if key != "model_type"})
    )
    arrays = {key: torch.from_numpy(array) for key, array in variant.arrays().items()}
    missing, unexpected = model.load_state_dict(arrays, strict=False)
    if unexpected or any("pooler" not in key for key in missing):
        sys.exit(f"{variant.architecture}: missing {missing}, unexpected {unexpected}")
    lora = peft.LoraConfig(**adapted.arguments)
    wrapped = peft.get_peft_model(model, lora)
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in peft.get_peft_model_state_dict(wrapped).items()
    }
    state = {name: torch.from_numpy(drawn(name, shape)) for name, shape in shapes.items()}
    peft.set_peft_model_state_dict(wrapped, state)
    wrapped.eval()
    feeds = {key: torch.from_numpy(array) for key, array in inputs(variant).items()}
    if config["model_type"] in ("distilbert", "qwen3"):
        del feeds["token_type_ids"]
    with torch.no_grad():
        output = wrapped(**feeds)
    values = output.last_hidden_state[:, :, :3] if variant.task == "Model" else output.logits
    return {
        "config": {key: plain(value) for key, value in lora.to_dict().items()},
        "tensors": shapes,
        "answers": [[round(x, 6) for x in row.flatten().tolist()] for row in values],
    }


if __name__ == "__main__":
    adapters = {name: answer(adapted) for name, adapted in ADAPTED.items()}
    versions = {"transformers": transformers.__version__, "peft": peft.__version__}
    json.dump(versions | {"adapters": adapters}, sys.stdout, indent=1)
