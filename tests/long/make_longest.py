"""Compute what transformers answers for the longest texts that models take (fp32, CPU).

usage: make_longest.py > expected_longest.json   (needs torch and transformers)

The models are the golden ones with more positions; ids are a fixed sequence. Of Qwen3 the last
state is kept, of the others the mean: what their embeddings read.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

MODELS = Path(__file__).parents[1] / "golden" / "models"
TOKENS = 32_768

answers = {}
for name in ("mmbert-embed-mean", "qwen3-embed-last", "gemma3-embed-mean"):
    model = transformers.AutoModel.from_pretrained(
        MODELS / name, max_position_embeddings=TOKENS, dtype=torch.float32
    ).eval()
    ids = torch.arange(TOKENS)[None] * 7919 % 325 + 5
    with torch.no_grad():
        states = model(ids, attention_mask=torch.ones_like(ids))[0][0]
    vector = states[-1] if "last" in name else states.mean(dim=0)
    answers[name] = [round(value, 6) for value in vector.tolist()]
json.dump({"transformers": transformers.__version__, "answers": answers}, sys.stdout)
