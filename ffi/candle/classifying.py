"""Verbs that answer a text with one class."""

from typing import NamedTuple

from libsemantic.engine.results import Float32

from .arguments import Text
from .context import Context, Verb


class Classified(NamedTuple):
    """The winning class; ``label`` is the address of its name, ``probabilities`` float32[n]."""

    predicted_class: int
    confidence: float
    label: int
    probabilities: Float32
    num_classes: int


def classify(context: Context, text: Text) -> Classified:
    """Answer with the model in the first slot of the row that holds one."""
    slots = context.slots
    handle = slots.first(context.row.slots)
    result = slots.registry.classify(handle, [text])
    slots.note_cuts(handle, result)
    winner = int(result.label_index[0])
    return Classified(
        predicted_class=winner,
        confidence=float(result.score[0]),
        label=context.labels.address(result.labels[winner]),
        probabilities=result.probabilities[0],
        num_classes=len(result.labels),
    )


VERBS: tuple[Verb, ...] = (classify,)
