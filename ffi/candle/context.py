"""What a verb gets besides its arguments."""

from collections.abc import Callable
from dataclasses import dataclass

from .answers import Interned
from .selectors import Selectors
from .slots import Slots
from .table import Row

Verb = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Context:
    """The row that is answered, the models, the labels that outlive a call, and the selectors."""

    row: Row
    slots: Slots
    labels: Interned
    selectors: Selectors
