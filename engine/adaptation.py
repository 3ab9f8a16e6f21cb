"""What an adapter makes of a graph: low-rank updates, and a model in two parts.

An update of a linear layer ``W`` is ``W + up @ down`` (LoRA, arXiv 2106.09685). Either it is added
to the weight, or several adapters share one graph of the encoder, which takes the two matrices as
inputs, and each has a graph of its own for what follows the last hidden state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from .results import Float32

HIDDEN_STATE: Final = "hidden_state"


class Part(Enum):
    """Which part of a model a graph holds."""

    WHOLE = auto()
    ENCODER = auto()  # up to the last hidden state, with inputs for updates of its linear layers
    HEAD = auto()  # from the last hidden state, which is an input, to the answer


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What is added to a linear layer: ``up @ down``, the scale included.

    ``down`` is float32[rank, inputs], ``up`` float32[outputs, rank].
    """

    down: Float32
    up: Float32


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """How to build a model with an adapter.

    ``updates``, by name of the linear layer, are added to its weight. ``own`` names the weights
    that come from the adapter: they are written into the graph, since ONNX Runtime reads the files
    of one folder only. ``spare`` are patterns of names of weights that may stay unused besides
    those of the family.
    """

    part: Part = Part.WHOLE
    updates: Mapping[str, Update] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    spare: tuple[str, ...] = ()


UNADAPTED: Final = Adaptation()


def slot_names(linear: str) -> tuple[str, str]:
    """Return the inputs of an encoder's graph for ``down`` and ``up`` of a linear layer."""
    return f"{linear}.lora_A", f"{linear}.lora_B"
