"""Adapters of small models, with weights made by a formula.

``make_adapters.py`` gives them to PEFT and keeps in expected_adapters.json what PEFT would save
and what the adapted models answer; the tests give them to the graphs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .variants import VARIANTS, Variant


@dataclass(frozen=True, slots=True)
class Adapted:
    """A model and the arguments of ``peft.LoraConfig``."""

    variant: Variant
    arguments: Mapping[str, object]


def _variant(architecture: str, name: str, labels: int) -> Variant:
    return Variant(architecture, VARIANTS[name].config, labels)


ADAPTED: Final = {
    "bert sequences, ranks and alphas by pattern": Adapted(
        _variant("BertForSequenceClassification", "bert with tanh activation", 3),
        {
            "task_type": "SEQ_CLS",
            "target_modules": ["query", "value", "dense"],
            "r": 4,
            "lora_alpha": 6,
            "rank_pattern": {"query": 2, r"layer\.1\.output\.dense": 3},
            "alpha_pattern": {"intermediate.dense": 5, "^bert.pooler.dense": 1},
        },
    ),
    "electra sequences, a head of two layers": Adapted(
        _variant("ElectraForSequenceClassification", "electra tokens", 2),
        {"task_type": "SEQ_CLS", "target_modules": ["query", "key"], "r": 3, "lora_alpha": 9},
    ),
    "qwen3 sequences, all linear, stabilised": Adapted(
        VARIANTS["qwen3 sequences"],
        {
            "task_type": "SEQ_CLS",
            "target_modules": "all-linear",
            "r": 4,
            "lora_alpha": 2,
            "use_rslora": True,
        },
    ),
    "deberta tokens, what projects content and distances": Adapted(
        _variant("DebertaV2ForTokenClassification", "deberta embedding", 2),
        {
            "task_type": "TOKEN_CLS",
            "target_modules": r".*layer\.[01]\.attention\.self\.(query|key)_proj",
            "r": 4,
            "lora_alpha": 8,
        },
    ),
    "distilbert tokens, one layer of two": Adapted(
        VARIANTS["distilbert tokens"],
        {
            "task_type": "TOKEN_CLS",
            "target_modules": ["q_lin", "v_lin", "lin1"],
            "exclude_modules": ["lin1"],
            "layers_to_transform": [1],
            "layers_pattern": "layer",
            "r": 4,
            "lora_alpha": 16,
        },
    ),
    "roberta embedding, an update of the pooler that is not used": Adapted(
        VARIANTS["roberta embedding with types"],
        {"task_type": "FEATURE_EXTRACTION", "target_modules": ["dense"], "r": 2, "lora_alpha": 4},
    ),
}
