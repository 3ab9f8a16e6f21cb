"""Compute what transformers answers for the models of variants.py (fp32, CPU).

usage: make_variants.py > expected_variants.json   (needs torch and transformers)
"""

import json
import sys

import torch
import transformers
from variants import VARIANTS, inputs

answers = {}
for name, variant in VARIANTS.items():
    config = variant.full_config()
    kind = transformers.AutoConfig.for_model(config["model_type"])
    model = getattr(transformers, variant.architecture)(
        type(kind)(**{key: value for key, value in config.items() if key != "model_type"})
    )
    state = {key: torch.from_numpy(array) for key, array in variant.arrays().items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [key for key in missing if "pooler" not in key or variant.task != "Model"]
    if missing or unexpected:
        sys.exit(f"{name}: missing {missing}, unexpected {unexpected}")
    model.eval()
    feeds = {key: torch.from_numpy(array) for key, array in inputs(variant).items()}
    if config["model_type"] in ("distilbert", "gemma3_text", "modernbert", "qwen3"):
        del feeds["token_type_ids"]
    with torch.no_grad():
        output = model(**feeds)
    values = output.last_hidden_state[:, :, :3] if variant.task == "Model" else output.logits
    answers[name] = [[round(x, 6) for x in row.flatten().tolist()] for row in values]
json.dump({"transformers": transformers.__version__, "answers": answers}, sys.stdout)
