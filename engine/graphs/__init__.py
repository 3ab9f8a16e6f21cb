"""ONNX graphs of the model families, built from config.json and safetensors weights.

Import this package only where a model is loaded: it imports ``onnx``, which calls do not need. A
new family is one file beside this one and one row of ``FAMILIES``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..config import Task
from ..errors import UnsupportedError
from ..weights import Tensor
from .bert import build_bert
from .blocks import DEFAULT_BRANCHES, Branches, Graph, GraphBuilder, Head, read
from .modernbert import build_modernbert

__all__ = ["FAMILIES", "Branches", "Family", "Graph", "build_graph"]


@dataclass(frozen=True, slots=True)
class Family:
    """A row of ``FAMILIES``.

    ``build`` writes the graph and returns its head. ``inputs`` are what the graph takes, the ids
    first. ``ignorable`` lists, for each task the family answers, patterns of weight names that
    may stay unused.
    """

    build: Callable[[GraphBuilder, Mapping[str, object], Task], Head]
    inputs: tuple[str, ...]
    ignorable: Mapping[Task, tuple[str, ...]]


_POSITION_IDS: Final = "*position_ids"  # a buffer 0, 1, 2 … that old checkpoints saved
_BERT_POOLER: Final = ("pooler.*", "bert.pooler.*")

FAMILIES: Final[Mapping[str, Family]] = {  # by "model_type" of config.json
    "bert": Family(
        build=build_bert,
        inputs=("input_ids", "attention_mask", "token_type_ids"),
        ignorable={
            Task.SEQUENCE_CLASSIFICATION: (_POSITION_IDS,),
            Task.TOKEN_CLASSIFICATION: (_POSITION_IDS, *_BERT_POOLER),
            Task.EMBEDDING: (_POSITION_IDS, *_BERT_POOLER, "cls.*"),
        },
    ),
    "modernbert": Family(
        build=build_modernbert,
        inputs=("input_ids", "attention_mask"),
        ignorable={
            Task.SEQUENCE_CLASSIFICATION: ("decoder.*",),
            Task.TOKEN_CLASSIFICATION: ("decoder.*",),
            Task.EMBEDDING: ("head.*", "decoder.*"),
        },
    ),
}


def build_graph(
    config: Mapping[str, object],
    task: Task,
    weights: Mapping[str, Tensor],
    *,
    fused: bool = True,
    branches: Branches = DEFAULT_BRANCHES,
) -> Graph:
    """Build the graph of a model for one task.

    ``config`` is the content of config.json, ``weights`` comes from ``read_weights``. With
    ``fused`` the graph holds com.microsoft operators, else only standard ones.
    ``branches`` says from which lengths on attention saves memory. Raises
    ``UnsupportedError`` for a family, task or variant that is not known, and
    ``BadArtifactError`` where config and weights are incomplete or contradict each other.
    """
    model_type = read(config, "model_type", str)
    if model_type not in FAMILIES:
        raise UnsupportedError(
            f"config.json: model_type {model_type!r} is not known; known are"
            f" {', '.join(sorted(FAMILIES))}"
        )
    family = FAMILIES[model_type]
    if task not in family.ignorable:
        raise UnsupportedError(
            f"{model_type} models cannot answer {task.name}; choose"
            f" {', '.join(known.name for known in family.ignorable)}"
        )
    builder = GraphBuilder(weights, family.inputs, fused=fused, branches=branches)
    return builder.finish(family.build(builder, config, task), family.ignorable[task])
