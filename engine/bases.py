"""The base of several adapters: its encoder is opened once, and each runs it with its updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .adaptation import HIDDEN_STATE
from .batching import RunControl
from .pairing import RunnerPair
from .results import Float32
from .session import Feeds, Output, Runner, as_values


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Base:
    """An open encoder that no adapter has to itself.

    ``runner`` takes, beside what it takes of a text, two matrices for each of its linear layers,
    and gives token states. ``linears`` names those layers. ``grown_bytes``: of resident memory
    while it was opened.
    """

    folder: Path
    runner: Runner | RunnerPair
    linears: frozenset[str]
    weight_bytes: int
    grown_bytes: int


class AdaptedRunner:
    """A base with one adapter's updates, and the adapter's head; safe from any thread.

    Without a head, for embeddings, the token states are the answer.
    """

    def __init__(self, base: Base, updates: Mapping[str, Float32], head: Runner | None) -> None:
        """Keep ``updates`` by the names of the base's inputs; what is left out changes nothing."""
        self._base = base
        self._head = head
        self._updates = base.runner.keep(updates)
        self.inputs = {**base.runner.inputs, **(head.inputs if head is not None else {})}
        self.provider = base.runner.provider

    def run(self, feeds: Feeds, control: RunControl) -> Output:
        """Run the base, then the head; the states between them are not copied."""
        values = as_values(feeds)
        encoder, head = self._base.runner, self._head
        given = {name: values[name] for name in encoder.inputs}
        states = encoder.run_values({**given, **self._updates}, control)
        if head is not None:
            given = {name: values[name] for name in head.inputs}
            states = head.run_values({**given, HIDDEN_STATE: states}, control)
        answer: Output = states.numpy()
        return answer
