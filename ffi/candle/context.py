"""What a verb gets besides its arguments."""

from collections.abc import Callable
from dataclasses import dataclass

from .answers import Interned
from .slots import Slots
from .table import Row

Verb = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Context:
    """The row that is answered, the models, and the labels that outlive a call."""

    row: Row
    slots: Slots
    labels: Interned
