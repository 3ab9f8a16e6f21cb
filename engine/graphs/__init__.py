"""ONNX graphs of the model families, built from config.json and safetensors weights.

Import this package only where a model is loaded: it imports ``onnx``, which calls do not need. A
new family is one file beside this one and one row of ``FAMILIES``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..adaptation import UNADAPTED, Adaptation
from ..config import Task
from ..errors import UnsupportedError
from ..memory import require_bytes
from ..weights import Tensor
from .bert import build_bert
from .builder import DEFAULT_BRANCHES, Branches, GraphBuilder
from .config_values import read
from .deberta import build_deberta
from .distilbert import build_distilbert
from .electra import build_electra
from .embedding_end import EmbeddingEnd, end_embedding
from .finished import Graph, Head
from .gemma3 import build_gemma3
from .modernbert import build_modernbert
from .qwen3 import build_qwen3
from .roberta import build_roberta

__all__ = [
    "DEFAULT_BRANCHES",
    "FAMILIES",
    "Branches",
    "EmbeddingEnd",
    "Family",
    "Graph",
    "build_graph",
]


@dataclass(frozen=True, slots=True)
class Family:
    """A row of ``FAMILIES``.

    ``build`` writes the graph and returns its head. ``inputs`` are what the graph takes, the ids
    first. ``ignorable`` lists, for each task the family answers, patterns of weight names that
    may stay unused. ``prefix`` begins the names of the encoder's weights in models with a head.
    ``exits``: runs may stop after some of the layers.
    """

    build: Callable[[GraphBuilder, Mapping[str, object], Task], Head]
    inputs: tuple[str, ...]
    ignorable: Mapping[Task, tuple[str, ...]]
    prefix: str = "model."
    exits: bool = False


# More than a graph takes without its weights; protobuf crashes where memory is refused to it.
_GRAPH_BYTES: Final = 32 << 20
_POSITION_IDS: Final = "*position_ids"  # a buffer 0, 1, 2 … that old checkpoints saved
_ROTARY_BUFFER: Final = "*rotary_emb.inv_freq"  # frequencies that old checkpoints saved
_LANGUAGE_HEAD: Final = "lm_head.weight"  # of a language model that became an embedder
_BERT_POOLER: Final = ("pooler.*", "bert.pooler.*")
_DEBERTA_UNUSED: Final = (_POSITION_IDS, "*embeddings.position_embeddings.weight")
_ALL: Final = ("input_ids", "attention_mask", "token_type_ids")

_ROBERTA: Final = Family(
    build=build_roberta,
    inputs=_ALL,
    ignorable={
        Task.SEQUENCE_CLASSIFICATION: (_POSITION_IDS, "roberta.pooler.*"),
        Task.TOKEN_CLASSIFICATION: (_POSITION_IDS, "roberta.pooler.*"),
        Task.EMBEDDING: (_POSITION_IDS, "pooler.*", "roberta.pooler.*", "lm_head.*"),
    },
    prefix="roberta.",
)

FAMILIES: Final[Mapping[str, Family]] = {  # by "model_type" of config.json
    "bert": Family(
        build=build_bert,
        inputs=_ALL,
        ignorable={
            Task.SEQUENCE_CLASSIFICATION: (_POSITION_IDS,),
            Task.TOKEN_CLASSIFICATION: (_POSITION_IDS, *_BERT_POOLER),
            Task.EMBEDDING: (_POSITION_IDS, *_BERT_POOLER, "cls.*"),
        },
        prefix="bert.",
    ),
    "deberta-v2": Family(
        build=build_deberta,
        inputs=_ALL,
        ignorable={
            # Checkpoints of v3 keep a table of positions that position_biased_input rules out.
            Task.SEQUENCE_CLASSIFICATION: _DEBERTA_UNUSED,
            Task.TOKEN_CLASSIFICATION: (*_DEBERTA_UNUSED, "pooler.*"),
            Task.EMBEDDING: (
                *_DEBERTA_UNUSED,
                "pooler.*",
                "cls.*",
                "lm_predictions.*",
                "mask_predictions.*",
            ),
        },
        prefix="deberta.",
    ),
    "distilbert": Family(
        build=build_distilbert,
        inputs=("input_ids", "attention_mask"),
        ignorable={
            Task.SEQUENCE_CLASSIFICATION: (_POSITION_IDS,),
            Task.TOKEN_CLASSIFICATION: (_POSITION_IDS,),
            Task.EMBEDDING: (_POSITION_IDS, "vocab_*"),
        },
        prefix="distilbert.",
    ),
    "electra": Family(
        build=build_electra,
        inputs=_ALL,
        ignorable={
            Task.SEQUENCE_CLASSIFICATION: (_POSITION_IDS,),
            Task.TOKEN_CLASSIFICATION: (_POSITION_IDS,),
            Task.EMBEDDING: (_POSITION_IDS, "discriminator_predictions.*", "generator_*"),
        },
        prefix="electra.",
    ),
    "gemma3_text": Family(
        build=build_gemma3,
        inputs=("input_ids", "attention_mask"),
        ignorable={Task.EMBEDDING: (_ROTARY_BUFFER, _LANGUAGE_HEAD)},
    ),
    "modernbert": Family(
        build=build_modernbert,
        inputs=("input_ids", "attention_mask"),
        ignorable={
            Task.SEQUENCE_CLASSIFICATION: ("decoder.*",),
            Task.TOKEN_CLASSIFICATION: ("decoder.*",),
            Task.EMBEDDING: ("head.*", "decoder.*"),
        },
        exits=True,
    ),
    "qwen3": Family(
        build=build_qwen3,
        inputs=("input_ids", "attention_mask"),
        ignorable={
            Task.SEQUENCE_CLASSIFICATION: (_ROTARY_BUFFER,),
            Task.TOKEN_CLASSIFICATION: (_ROTARY_BUFFER,),
            Task.EMBEDDING: (_ROTARY_BUFFER, _LANGUAGE_HEAD),
        },
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}


def build_graph(
    config: Mapping[str, object],
    task: Task,
    weights: Mapping[str, Tensor],
    *,
    fused: bool = True,
    branches: Branches = DEFAULT_BRANCHES,
    exits: tuple[int, ...] = (),
    adaptation: Adaptation = UNADAPTED,
    steps: int = 0,
    end: EmbeddingEnd | None = None,
) -> Graph:
    """Build the graph of a model for one task.

    ``config`` is the content of config.json, ``weights`` comes from ``read_weights``. With
    ``fused`` the graph holds com.microsoft operators, else only standard ones.
    ``branches`` says from which lengths on attention saves memory, ``exits`` after how many
    layers, in rising order and less than all, a run may stop, ``adaptation`` what an adapter
    makes of the model. With ``steps`` the model runs in int8 (see ``quantized``). With ``end`` the
    graph of an embedding model answers with vectors, else with token states. Raises
    ``UnsupportedError`` for a family, task or variant that is not known,
    ``BadArtifactError`` where config and weights are incomplete or contradict each other, and
    ``OutOfMemoryError``.
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
    if exits and not family.exits:
        raise UnsupportedError(f"{model_type} models answer only from their last layer")
    require_bytes(_GRAPH_BYTES, "to build the graph of the model")
    builder = GraphBuilder(
        weights,
        family.inputs,
        fused=fused,
        branches=branches,
        exits=exits,
        adaptation=adaptation,
        steps=steps,
    )
    head = family.build(builder, config, task)
    if end is not None:
        head = end_embedding(builder, head, end)
    return builder.finish(head, family.ignorable[task])
